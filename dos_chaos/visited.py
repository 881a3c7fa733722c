"""A store that the user runs: the ground of a run in which the user breaks things by hand.

The run accepts a store that holds nothing. Everything of a run is in directories named after it; the object
`marker` in one of them identifies them. At the end their objects are deleted. The directories stay, empty,
because a store never forgets who has claimed a directory.
"""

import json
import os
import re
import socket
from pathlib import Path
from typing import Final

import trio

from dos_chaos import NotConvergedError, RunRefusedError
from dos_chaos.story import FaultLog
from dos_chaos.workload import in_sync
from dos_client import Claim, Store, open_connection, open_store
from dos_protocol.errors import DosError

PREFIX: Final = "dos-chaos."
_OWN: Final = re.compile(r"dos-chaos\.([0-9a-f]{12})\.(?:run|w[0-9]{4}|coord)")
MARKER: Final = "marker"
OUTAGE: Final = "outage"
DELETED_S: Final = 60.0
LOOK_EVERY_S: Final = 0.25
UNAVAILABLE_S: Final = 1.0
"""A member that does not answer a ping for so long counts as unavailable."""


class VisitedStore:
    """The user's store, for one run. Implements `story.Ground`. `unavailable`: addresses, as last seen."""

    def __init__(self, url: str, token: bytes, evidence: Path, *, discard: bool) -> None:
        self.url = url
        self.token = token
        self.evidence = evidence
        self.copies = 0
        self.description = ""
        self._ack_quorum = 0
        self.run_id = os.urandom(6).hex()
        self.unavailable: set[str] = set()
        self._addresses: list[str] = []
        self._discard = discard
        self._marked = False

    @property
    def prefix(self) -> str:
        return f"{PREFIX}{self.run_id}."

    def directories(self) -> list[str]:
        return [f"{self.prefix}{name}" for name in ("w0000", "w0001", "w0002", "coord")]

    async def used_bytes(self) -> int:
        return 0  # not known: the disks are on other hosts

    async def start(self) -> None:
        """Check that the store holds nothing, and mark it. Raises RunRefusedError, with nothing changed."""
        async with open_store(self.url, token=self.token, client="dos chaos") as store:
            try:
                await in_sync(store)
            except NotConvergedError as error:
                raise RunRefusedError(f"at the start, every member must be available: {error}") from error
            self.copies, self._ack_quorum = len(store.record.members), store.record.ack_quorum
            self._addresses = [one.address for one in store.record.members]
            self.description = (
                f"store of {self.copies}: {', '.join(self._addresses)}; {self._ack_quorum} acknowledge"
            )
            runs = await earlier_runs(store)
            if runs and not self._discard:
                raise RunRefusedError(
                    f"the store holds the data of an earlier run: {'; '.join(runs.values())}. If it has"
                    " ended, pass --discard to delete this data"
                )
            for run_id in runs:
                await delete_run(store, run_id)
            await write_marker(store, self.run_id)
            self._marked = True

    def describe(self) -> str:
        return (
            f"unavailable: {' '.join(sorted(self.unavailable))}"
            if self.unavailable
            else "all members available"
        )

    async def faults(self, log: FaultLog, seconds: float) -> None:
        """Observe which members are unavailable. An outage lasts until all are available again."""
        async with trio.open_nursery() as nursery:
            for address in self._addresses:
                nursery.start_soon(self._ping, address)
            seen: set[str] = set()
            while log.clock() < seconds:
                if self.unavailable and not seen:
                    log.begin(OUTAGE, sorted(self.unavailable))
                if seen and not self.unavailable:
                    self._end(log, seen)
                    seen = set()
                seen |= self.unavailable
                await trio.sleep(LOOK_EVERY_S)
            self._end(log, seen)
            nursery.cancel_scope.cancel()

    async def _ping(self, address: str) -> None:
        while True:
            try:
                async with open_connection(address, token=self.token, client="dos chaos watch") as connection:
                    while True:
                        with trio.move_on_after(UNAVAILABLE_S):
                            await connection.ping()
                            self.unavailable.discard(address)
                            await trio.sleep(LOOK_EVERY_S)
                            continue
                        self.unavailable.add(address)
            except DosError:
                self.unavailable.add(address)
                await trio.sleep(LOOK_EVERY_S)

    def _end(self, log: FaultLog, seen: set[str]) -> None:
        quorum_left = self.copies - len(seen) >= self._ack_quorum
        log.end(quorum_left=quorum_left, note=f"unavailable meanwhile: {' '.join(sorted(seen))}")

    async def heal(self) -> None:
        """The user heals."""

    async def reopen(self) -> None:
        """The user's servers are not restarted."""

    async def delete(self) -> None:
        """Delete the objects of this run. Raises DosError, NotConvergedError if some may be left."""
        if self._marked:
            async with open_store(self.url, token=self.token, client="dos chaos") as store:
                await in_sync(store)
                await delete_run(store, self.run_id)


async def earlier_runs(store: Store) -> dict[str, str]:
    """Return the runs of which the store holds objects, with a description of each. Raises RunRefusedError if
    it holds anything that is not a run's.
    """
    names = await store.list_directories()
    if foreign := [name for name in names if _OWN.fullmatch(name) is None]:
        raise RunRefusedError(
            f"the store holds directories of others: {', '.join(foreign[:3])}; use a store that holds nothing"
        )
    runs: dict[str, str] = {}
    with_objects: dict[str, str] = {}
    for name in names:
        match = _OWN.fullmatch(name)
        assert match is not None
        objects = await objects_of(store, name)
        if objects:
            with_objects[match[1]] = name
        if MARKER in objects and name == run_directory(match[1]):
            runs[match[1]] = await read_marker(store, name)
    if unmarked := sorted(with_objects.keys() - runs.keys()):
        raise RunRefusedError(
            f"directory {with_objects[unmarked[0]]} has objects, and no run has marked it; use a store that"
            " holds nothing"
        )
    return runs


def run_directory(run_id: str) -> str:
    return f"{PREFIX}{run_id}.run"


async def objects_of(store: Store, directory: str) -> set[str]:
    view = await store.inspect(directory)
    return {name for held in (*view.answers.values(), *view.filled.values()) for name in held}


async def write_marker(store: Store, run_id: str) -> None:
    content = json.dumps({"program": "dos chaos", "run": run_id, "host": socket.gethostname()})
    async with await claimed(store, run_directory(run_id)) as claim:
        writer = claim.open_object(MARKER)
        await writer.wait_synced(writer.append(content.encode()))
        await in_sync(store)


async def read_marker(store: Store, directory: str) -> str:
    try:
        content = json.loads(await store.read(directory, MARKER, 0, 10_000))
    except ValueError:
        content = {}
    if not isinstance(content, dict) or content.get("program") != "dos chaos":
        raise RunRefusedError(
            f"{directory}/{MARKER} is not the marker of a run; use a store that holds nothing"
        )
    return f"run {content.get('run')} of host {content.get('host')}"


async def claimed(store: Store, directory: str) -> Claim:
    view = await store.inspect(directory)
    return await store.claim(directory, view.epoch_seen + 1, os.urandom(16))


async def delete_run(store: Store, run_id: str) -> None:
    """Delete all objects of a run on every member. Raises NotConvergedError if a member still has some."""
    # The marker last: with it, running again continues; without it, the objects would be a stranger's.
    names = [name for name in await store.list_directories(f"{PREFIX}{run_id}.") if _OWN.fullmatch(name)]
    for name in sorted(names, key=lambda one: one == run_directory(run_id)):
        async with await claimed(store, name) as claim:
            if not await claim.wait_all(DELETED_S):
                raise NotConvergedError(f"not every member takes part in deleting {name}")
            claim.collect(lambda _: True)
            if not await claim.wait_collected(DELETED_S):
                raise NotConvergedError(f"the objects of {name} are not deleted on every member")
