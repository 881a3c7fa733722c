"""Planted bugs: each is one rule broken, in the real code, for as long as a run lasts.

They are here to be found: a simulator that finds none of them would find nothing. The switch is this
module, which only tests import: a bug is a replacement of functions, put in place by `planted` and taken
away after.

Rules of this file: a bug is a few lines, and says which row of the bug classes or which rule of take-over
it breaks.
"""

import errno
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

from dos_client.core.quorum import Quorums
from dos_server import side_files, small_files
from dos_server.core import recovery, recovery_scan
from dos_server.core import vocabulary as v
from dos_server.core.appends import Appends
from dos_server.core.claims import Claims
from dos_server.core.directory_state import DirectoryState
from dos_server.core.object_state import ObjectState
from dos_server.core.recovery import Decision
from dos_server.disk import Disk
from dos_server.storage import Storage
from journal.core import chain as chain_core
from journal.core import walk
from tests.sim.claim import SimClaim, SimWriter
from tests.sim.server import Machine

Patch = tuple[Any, str, Any]


@dataclass(frozen=True)
class Bug:
    """One planted bug. `breaks`: the row or rule; `patches`: what is put in whose place."""

    name: str
    breaks: str
    patches: Callable[[], list[Patch]]


BUGS: Final[dict[str, Bug]] = {}


def _bug(breaks: str) -> Callable[[Callable[[], list[Patch]]], Callable[[], list[Patch]]]:
    def keep(patches: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
        name = patches.__name__
        BUGS[name] = Bug(name, breaks, patches)
        return patches

    return keep


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """The bug of that name is there inside; None: none is."""
    with ExitStack() as stack:
        for target, attribute, replacement in BUGS[name].patches() if name is not None else ():
            stack.enter_context(mock.patch.object(target, attribute, replacement))
        yield


# The server's disk


@_bug("row 1")
def acknowledge_before_sync() -> list[Patch]:
    return [(Storage, "sync", lambda self, effect: v.Trouble.NONE)]


@_bug("row 2")
def sync_covers_what_comes_meanwhile() -> list[Patch]:
    original = ObjectState.was_synced

    def was_synced(self: ObjectState) -> Any:
        self.sync_covers = self.written
        return original(self)

    return [(ObjectState, "was_synced", was_synced)]


@_bug("row 3")
def failed_sync_is_tried_again() -> list[Patch]:
    original = Storage.sync

    def sync(self: Storage, effect: v.Sync) -> v.Trouble:
        trouble = original(self, effect)
        return original(self, effect) if trouble is v.Trouble.FAILED else trouble

    return [(Storage, "sync", sync)]


@_bug("row 4")
def restart_trusts_the_page_cache() -> list[Patch]:
    original = Storage.set_mark

    def set_mark(
        self: Storage, directory: str, name: str, synced: int, *, poisoned: bool, damaged: bool = False
    ) -> None:
        if not poisoned:
            original(self, directory, name, synced, poisoned=False, damaged=damaged)

    def make_durable(disk: Disk, handle: int, found: Any, synced: int) -> None:
        disk.sync(handle)  # as if the page cache were the platters

    return [(Storage, "set_mark", set_mark), (side_files, "make_durable", make_durable)]


@_bug("row 6")
def directory_entry_is_not_synced() -> list[Patch]:
    original = Storage.sync
    return [(Storage, "sync", lambda self, effect: original(self, effect._replace(entry=False)))]


@_bug("row 7")
def small_files_are_overwritten_in_place() -> list[Patch]:
    def replace(disk: Disk, folder: str, name: str, data: bytes) -> None:
        handle = disk.open(f"{folder}/{name}" if folder else name, create=True)
        try:
            disk.cut(handle, 0)
            disk.write(handle, 0, [data])
        finally:
            disk.close(handle)

    return [(small_files, "replace", replace)]


@_bug("row 9")
def damage_is_taken_for_a_torn_tail() -> list[Patch]:
    cases = tuple(
        case._replace(decision=Decision.COPY_CUT) if case.decision is Decision.QUARANTINE else case
        for case in recovery.CASES
    )
    rotten = recovery.ROTTEN_CASE._replace(decision=Decision.COPY_CUT)
    return [(recovery, "CASES", cases), (recovery_scan, "ROTTEN_CASE", rotten)]


@_bug("row 14")
def full_disk_leaves_a_part() -> list[Patch]:
    def write(self: Storage, effect: v.Write) -> v.Trouble:
        path = f"d/{effect.directory}/{effect.name}"
        try:
            with self._files.use(path, create=effect.create) as file:
                file.writes += 1
                self._disk.write(file.handle, effect.position, effect.buffers)
        except OSError as error:
            return v.Trouble.NONE if error.errno == errno.ENOSPC else v.Trouble.FAILED
        return v.Trouble.NONE

    return [(Storage, "write", write)]


@_bug("row 24")
def unsynced_bytes_are_served() -> list[Patch]:
    def was_written(self: ObjectState) -> None:
        original(self)
        self.synced, self.synced_digest = self.written, self.written_fold.value

    original = ObjectState.wrote
    return [(ObjectState, "wrote", was_written)]


# The server's claims


@_bug("R2, row 18")
def claim_is_not_stored() -> list[Patch]:
    return [(Storage, "store_claim", lambda self, directory, claim: v.Trouble.NONE)]


@_bug("R2")
def lower_epochs_may_claim() -> list[Patch]:
    return [(DirectoryState, "may_claim", lambda self, claim: claim.epoch >= 1)]


@_bug("R2, row 18")
def fenced_sessions_may_append() -> list[Patch]:
    return [
        (Claims, "may_write", lambda self, session, directory, request_id: True),
        (Claims, "end_writers", lambda self, *args, **kwargs: None),
        (Appends, "may_hear", lambda self, session, directory: not session.closed),
    ]


@_bug("R3")
def older_sessions_hear_watermarks() -> list[Patch]:
    def supersede(self: Claims, directory: DirectoryState, claim: Any, newcomer: Any) -> None:
        directory.holder = None

    return [
        (Appends, "may_hear", lambda self, session, directory: not session.closed),
        (Claims, "_supersede", supersede),
    ]


@_bug("P-3")
def size_is_not_compared() -> list[Patch]:
    original = ObjectState.refuses
    return [
        (
            ObjectState,
            "refuses",
            lambda self, append, session: original(
                self, type(append)(append.name, self.accepted, self.fold.value, append.payload), session
            ),
        )
    ]


@_bug("row 21")
def wiped_server_counts() -> list[Patch]:
    original = Machine.lose_disk

    def lose_disk(self: Machine, fresh_id: bytes) -> None:
        record = self.disk.content("store")
        original(self, self.fresh_id)
        storage = Storage(self.disk)
        storage.start(self.fresh_id)
        storage.store_record(record or b"")

    return [(Machine, "lose_disk", lose_disk)]


# The client and the journal


@_bug("Qa")
def one_member_acknowledges() -> list[Patch]:
    return [(Quorums, "watermark", lambda self, sizes: max([sizes.get(one, 0) for one in self.members]))]


@_bug("R1, row 19")
def one_claim_is_enough() -> list[Patch]:
    return [
        (Quorums, "can_take_over", lambda self, members: bool(self.members & frozenset(members))),
        (walk, "claims_needed", lambda members, quorum: 1),
    ]


@_bug("R4, row 11")
def damaged_copies_have_answered() -> list[Patch]:
    def member_claimed(self: SimClaim, link: Any, opened: Any) -> None:
        clean = tuple(
            type(info)(info.name, info.received, info.synced, info.digest) for info in opened.entries
        )
        original(self, link, type(opened)(opened.epoch, opened.writer_id, clean))

    original = SimClaim.member_claimed
    return [(SimClaim, "member_claimed", member_claimed)]


@_bug("R5, row 22")
def longest_copy_is_the_head() -> list[Patch]:
    original = chain_core.segments_seen
    return [
        (
            walk,
            "segments_seen",
            lambda chain, answers: sorted(
                original(chain, answers), key=lambda seen: seen.name.base + seen.longest, reverse=True
            ),
        )
    ]


@_bug("R7")
def nothing_is_settled() -> list[Patch]:
    async def settle(self: SimClaim, name: str, size: int, digest: int, local: object = None) -> None:
        self.check()

    return [(SimClaim, "settle", settle)]


@_bug("R8")
def own_start_is_not_waited_for() -> list[Patch]:
    original = SimWriter.wait_synced

    async def wait_synced(self: SimWriter, size: int) -> None:
        if not getattr(self, "_began", False):
            self._began = True  # type: ignore[attr-defined]
            return
        await original(self, size)

    return [(SimWriter, "wait_synced", wait_synced)]


@_bug("R10, row 24")
def readers_are_shown_everything() -> list[Patch]:
    original = walk.Look._held_by_quorum

    def held(self: walk.Look, seen: Any) -> int:
        original(self, seen)
        return int(seen.longest)

    return [(walk.Look, "_held_by_quorum", held)]


@_bug("R16")
def created_without_all_members() -> list[Patch]:
    def require(self: Any, counted: int, needed: int, purpose: str, why: Any) -> None:
        if purpose != "creating it":
            original(self, counted, needed, purpose, why)

    original = walk._Walk._require
    return [(walk._Walk, "_require", require)]


@_bug("R2: writer ids are random")
def same_epoch_twice() -> list[Patch]:
    original = SimClaim.__init__

    def init(self: SimClaim, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.writer_id = b"\x07" * 16

    return [(SimClaim, "__init__", init)]
