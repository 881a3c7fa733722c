"""Acts as a region's driver for a moment if no driver runs: to trim, to restore, to make a savepoint.

The manifest is taken over as by a driver: this fences one that is running after all, and proves the last
checkpoint. A driver that starts meanwhile claims with a higher epoch, and this one ends. Stopped at any
point, nothing is lost: a record that is not acknowledged is found by the next opening, or never counts.
"""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec

from checkpoint import limits
from checkpoint.chains.manifest_log import ManifestHost, ManifestLog, StoreHost, read_manifest
from checkpoint.core.coordination.vocabulary import (
    AppendCheckpoint,
    CheckpointAppended,
    Event,
    ManifestOpened,
    ManifestSuperseded,
    ManifestTaken,
    ManifestUnreadable,
    OpenManifest,
)
from checkpoint.core.graph_change import Operators
from checkpoint.core.records.lines import (
    find_target,
    recorded_again,
    refuse_republishing,
    restored,
    savepoint_problem,
)
from checkpoint.core.records.manifest import (
    NO_NOTE,
    BatchNote,
    Checkpoint,
    SavepointNote,
    check_checkpoint,
    savepoint_why_problem,
)
from checkpoint.errors import (
    NoAnswerError,
    RegionFencedError,
    ReleaseRefusedError,
    SavepointRefusedError,
)
from checkpoint.requests.client import RequestClient, requester, running_text
from checkpoint.runtime import this_driver, wall_time_ms
from dos_client import Store


class HeldManifest(NamedTuple):
    """The manifest, held; the result of its opening; and the events since."""

    log: ManifestLog
    opened: ManifestOpened
    events: list[Event]


@asynccontextmanager
async def hold_manifest(
    host: ManifestHost,
    region: str,
    *,
    above: int = 0,
    above_terms: bool = False,
    decide: Callable[[Checkpoint | None], None] = lambda _: None,
) -> AsyncIterator[HeldManifest]:
    """Hold the manifest of a region that no driver runs, in an epoch above `above`. Waits while too few
    members answer.

    above_terms: also above all terms of taken-over workers, so that their directories can be claimed with it.
    decide: as for `OpenManifest`; what it raises propagates. Raises RegionFencedError, ManifestError and what
    taking over raises; nothing changed then except the claim.
    """
    events: list[Event] = []
    log = ManifestLog(host, region, events.append, driver=this_driver())
    try:
        await log.open(OpenManifest(above=above, held=0, decide=decide))
        opened = events[-1]
        if above_terms and isinstance(opened, ManifestOpened):
            number, terms = opened.incarnation, limits.terms_per_incarnation
            if number > terms:  # the region ran with local recovery
                await log.open(OpenManifest(above=number, held=number, step=terms))
                opened = events[-1]
        if isinstance(opened, ManifestUnreadable):
            raise opened.error
        if not isinstance(opened, ManifestOpened):
            raise RegionFencedError(
                f"the manifest of region {region!r} was claimed by another process in the meantime:"
                " the region is not stopped",
                epoch_held=opened.epoch_held if isinstance(opened, ManifestSuperseded | ManifestTaken) else 0,
            )
        yield HeldManifest(log, opened, events)
    finally:
        await log.aclose()


def find_restored(
    kept: Sequence[Checkpoint], to: str, *, region: str, allow_republish: bool, by_program: bool
) -> Checkpoint | None:
    """Return the checkpoint to restore; None if a program requested it before. Raises RestoreRefusedError."""
    # A program requests it each time it starts: started again, it must not go back again and take its output
    # back.
    if by_program and kept and kept[-1].rewinds and kept[-1].rewinds[-1].by == to:
        return None
    target = find_target(kept, to, region=region)
    if not allow_republish:
        refuse_republishing(kept[-1], target)
    return target


async def restore_stopped(
    host: ManifestHost,
    region: str,
    to: str,
    *,
    allow_republish: bool = False,
    by_program: bool = False,
    graph: Operators | None = None,
) -> Checkpoint:
    """Record that a region that no driver runs continues from an older checkpoint (`lines.find_target`).

    allow_republish: also if rows come again that were shown. by_program: do nothing if the last restore was
    the same request. graph: as for `restored`. Raises RestoreRefusedError, with nothing changed;
    RegionFencedError: it may be restored or not, as when this is cancelled; and as `hold_manifest`.
    """
    async with hold_manifest(host, region) as held:
        kept = held.opened.kept
        target = find_restored(
            kept, to, region=region, allow_republish=allow_republish, by_program=by_program
        )
        if target is None:
            return kept[-1]
        record = restored(kept, target, held.opened.incarnation, by=to if by_program else "", graph=graph)
        check_checkpoint(record, before=kept[-1])
        await append_record(held, region, record)
        return record


async def append_first(
    host: ManifestHost, region: str, make: Callable[[int], Checkpoint], *, above: int
) -> Checkpoint | None:
    """Append the first checkpoint of a region, in an incarnation above `above`, and return it, also if an
    interrupted call has appended it. None: the region has others. Raises as `restore_stopped`.
    """
    async with hold_manifest(host, region, above=above) as held:
        first, last = make(held.opened.incarnation), held.opened.last_checkpoint
        if last is not None:
            again = msgspec.structs.replace(
                first, incarnation=last.incarnation, wall_time_ms=last.wall_time_ms, driver=last.driver
            )
            return last if last == again else None
        check_checkpoint(first)
        await append_record(held, region, first)
        return first


async def append_record(held: HeldManifest, region: str, record: Checkpoint) -> None:
    """Append to a held manifest, and wait for the quorum. Raises RegionFencedError: it may count or not."""
    await held.log.append(AppendCheckpoint(record))
    # Not reported as done without the acknowledgement: a driver that took over may have cut the record off.
    if not any(isinstance(event, CheckpointAppended) for event in held.events):
        raise RegionFencedError(
            f"a driver took region {region!r} over before the record was acknowledged; it may count or"
            " not, see `dos checkpoint ls`"
        )


async def savepoint_stopped(
    host: ManifestHost, region: str, name: str, checkpoint: int, *, on: bool, note: SavepointNote = NO_NOTE
) -> int:
    """Create a savepoint of a checkpoint (0: the last) of a region that no driver runs, or drop one; return
    its number.

    Raises SavepointRefusedError, with nothing changed; RegionFencedError: the savepoint may exist or not, as
    when this is cancelled; and as `hold_manifest`.
    """
    async with hold_manifest(host, region) as held:
        kept, last = held.opened.kept, held.opened.last_checkpoint
        if last is None:
            raise SavepointRefusedError(f"region {region!r} has committed no checkpoint")
        savepoints = dict(last.savepoints)
        numbers = [one.number for one in kept]
        wanted = (checkpoint or _voted(last, numbers)) if on else None
        why = savepoint_why_problem(note.why) if on else ""
        if problem := why or savepoint_problem(name, wanted, savepoints, numbers):
            raise SavepointRefusedError(problem)
        if wanted is not None and savepoints.get(name) == wanted:
            return wanted
        was = savepoints.pop(name, 0)
        if wanted is not None:
            savepoints[name] = wanted
        record = recorded_again(kept, held.opened.incarnation, savepoints, {name: note})
        check_checkpoint(record, before=last)
        await append_record(held, region, record)
        return wanted or was


async def release_stopped(
    store: Store, region: str, *, patience_s: float = limits.request_patience_s
) -> BatchNote:
    """Record that no query drives a region any more, and return the last batch of the one that did. The state
    stays as it is, and the next query begins with its batch 0.

    patience_s: for an answer of a driver that runs it after all. Raises ReleaseRefusedError, with nothing
    changed; NoRegionError; RegionFencedError: it may be released or not, as when this is cancelled; and as
    `hold_manifest`.
    """
    await read_manifest(store, region)  # raises NoRegionError before anything is asked
    if running := await running_text(store, region, patience_s):
        raise ReleaseRefusedError(running, remedy="stop its query first")
    async with hold_manifest(StoreHost(store), region) as held:
        kept, last = held.opened.kept, held.opened.last_checkpoint
        if last is None or last.batch is None:
            raise ReleaseRefusedError(
                f"region {region!r} is driven by no query: its last checkpoint has no batch",
                remedy="nothing is to be done: any query may drive it, if its graph is fed by one",
            )
        record = recorded_again(kept, held.opened.incarnation, last.savepoints, released=True)
        check_checkpoint(record, before=last)
        await append_record(held, region, record)
        return last.batch


def _voted(last: Checkpoint, retained: Collection[int]) -> int:
    """Return the checkpoint whose positions the last one has, if that only recorded it once more."""
    return last.voted_as if last.voted_as in retained else last.number


async def act_stopped(host: ManifestHost, region: str, what: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Do a verb that has `shown_by` as the driver of a region that no driver runs, and return the result as
    an answer has it. given: fields of the `Request`. Raises as `restore_stopped`, `savepoint_stopped`.
    """
    name, on = given["name"], what == "savepoint"
    if what == "restore":
        record = await restore_stopped(host, region, name, allow_republish=given["allow_republish"])
        return {"checkpoint": record.rolled_back_to, "step": record.step}
    said = {"why": given.get("why", ""), "fork": given.get("fork", "")}
    note = SavepointNote(by=requester(), wall_time_ms=wall_time_ms(), **said) if on else NO_NOTE
    number = await savepoint_stopped(host, region, name, given.get("checkpoint", 0), on=on, note=note)
    return {"name": name, "checkpoint": number}


class SavepointMaker:
    """Makes and drops savepoints of one region: by a request to its driver, or, if it is `stopped`, as its
    driver, which fences one that runs after all. patience_s: for the first answer of the driver.
    """

    def __init__(
        self, store: Store, region: str, *, stopped: bool, patience_s: float = limits.request_patience_s
    ) -> None:
        self._store = store
        self._region = region
        self._client = None if stopped else RequestClient(store, region)
        self._patience_s = patience_s

    async def make(self, name: str, *, why: str, checkpoint: int = 0, fork: str = "") -> int:
        """Make a savepoint of a checkpoint (0: the last), and return its number. Raises
        SavepointRefusedError, with nothing changed, and NoAnswerError.
        """
        result = await self._do("savepoint", name, checkpoint=checkpoint, why=why, fork=fork)
        return int(result["checkpoint"])

    async def drop(self, name: str) -> None:
        """Drop a savepoint. Raises as `make`."""
        await self._do("drop_savepoint", name)

    async def _do(self, what: str, name: str, **fields: Any) -> dict[str, Any]:
        if self._client is None:
            return await act_stopped(StoreHost(self._store), self._region, what, {"name": name, **fields})
        try:
            reply = await self._client.send(
                what, patience_s=self._patience_s, wait_s=limits.drain_timeout_s, name=name, **fields
            )
        except NoAnswerError as silence:
            raise NoAnswerError(
                f"savepoint {name}: {silence}",
                remedy="if the region does not run, pass --stopped (stopped=True)",
            ) from silence
        answer = reply.answer
        if answer.verdict != "done":
            raise SavepointRefusedError(
                f"the savepoint was {answer.verdict} by {answer.driver}: {answer.reason}"
            )
        return answer.result
