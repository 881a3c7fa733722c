"""The server's disk: what is synced, what is cut, what a start accepts."""

import errno
from typing import Any

from dos_server import log_files, side_files, storage
from dos_server.core import vocabulary as v
from dos_server.core.files import recovery, scan
from dos_server.core.files.extent import HeaderFault, decode_header
from dos_server.core.files.records import OBJECTS, ObjectMark
from dos_server.core.files.recovery import RecoveryDecision
from dos_server.core.object_state import ObjectState
from dos_server.core.requests.scrub import Scrub
from dos_server.disk import Disk
from dos_server.limits import extent_header_bytes
from dos_server.storage import Storage
from tests.sim.bugs.catalogue import Patch, bug
from tests.sim.engine.random_streams import RandomStreams
from tests.sim.nemesis import plan


@bug("row 1")
def acknowledge_before_sync() -> list[Patch]:
    return [(Storage, "sync", lambda self, effect: v.DiskFailure.NONE)]


@bug("row 2")
def sync_covers_what_comes_meanwhile() -> list[Patch]:
    original = ObjectState.was_synced

    def was_synced(self: ObjectState) -> Any:
        self.sync_covers = self.written
        return original(self)

    return [(ObjectState, "was_synced", was_synced)]


@bug("row 3")
def failed_sync_is_tried_again() -> list[Patch]:
    original = Storage.sync

    def sync(self: Storage, effect: v.Sync) -> v.DiskFailure:
        trouble = original(self, effect)
        if trouble is not v.DiskFailure.FAILED:
            return trouble
        with self._files.use(f"{OBJECTS}/{effect.directory}/{effect.name}") as file:
            file.failed = False  # the open file refuses a second sync, too
        return original(self, effect)

    return [(Storage, "sync", sync)]


def _loses_a_sync(streams: RandomStreams) -> bool:
    return any(fault.kind == "failed_sync_then_power" for fault in plan(streams))


@bug("row 4", where=_loses_a_sync)
def restart_trusts_the_page_cache() -> list[Patch]:
    original = Storage.set_mark

    def set_mark(self: Storage, directory: str, watermark: ObjectMark) -> None:
        if not watermark.poisoned:
            original(self, directory, watermark)

    def make_durable(disk: Disk, handle: int, found: Any, synced: int) -> None:
        disk.sync(handle)  # as if the page cache were the platters

    return [(Storage, "set_mark", set_mark), (side_files, "make_durable", make_durable)]


@bug("row 6")
def directory_entry_is_not_synced() -> list[Patch]:
    original = Storage.sync
    return [(Storage, "sync", lambda self, effect: original(self, effect._replace(entry=False)))]


@bug("row 7")
def small_files_are_overwritten_in_place() -> list[Patch]:
    def replace(disk: Disk, folder: str, name: str, data: bytes) -> None:
        handle = disk.open(f"{folder}/{name}" if folder else name, create=True)
        try:
            disk.cut(handle, 0)
            disk.write(handle, 0, [data])
        finally:
            disk.close(handle)

    return [(module, "replace_file", replace) for module in (storage, log_files)]


@bug("row 9")
def damage_is_taken_for_a_torn_tail() -> list[Patch]:
    cases = tuple(
        case._replace(decision=RecoveryDecision.COPY_CUT)
        if case.decision is RecoveryDecision.QUARANTINE
        else case
        for case in recovery.CASES
    )
    rotten = recovery.ROTTEN_CASE._replace(decision=RecoveryDecision.COPY_CUT)
    return [(recovery, "CASES", cases), (recovery, "ROTTEN_CASE", rotten)]


@bug("row 8")
def zeroed_bytes_are_cut_off() -> list[Patch]:
    cases = tuple(
        case._replace(decision=RecoveryDecision.CUT) if case.letter == "H" else case
        for case in recovery.CASES
    )
    return [(recovery, "CASES", cases)]


@bug("row 9: a file that was cut off")
def a_short_file_is_all_there_is() -> list[Patch]:
    cases = tuple(
        case._replace(decision=RecoveryDecision.KEEP) if case.letter == "G" else case
        for case in recovery.CASES
    )
    return [(recovery, "CASES", cases)]


@bug("row 10")
def a_damaged_header_is_a_torn_tail() -> list[Patch]:
    original = recovery._Scan.facts

    def facts(self: recovery._Scan) -> recovery.ExtentFacts:
        found = original(self)
        head = self.read(self.position, extent_header_bytes)
        if len(head) < extent_header_bytes or self.damaged_payload is not None or not any(head):
            return found
        if decode_header(head, self.seed) is HeaderFault.DIGEST:
            return found._replace(damage=recovery.TailDamage.TORN, below=False)
        return found

    return [(recovery._Scan, "facts", facts)]


@bug("row 12")
def payload_digests_are_not_compared() -> list[Patch]:
    def is_whole(payload: Any, count: int, digest: int) -> bool:
        return len(payload) == count

    return [(scan, "is_whole", is_whole)]


@bug("O12: what the scrub finds")
def the_scrub_keeps_what_it_finds_to_itself() -> list[Patch]:
    return [(Scrub, "_damaged", lambda self, state, offset, what: None)]


@bug("O12: nothing else is reported")
def the_scrub_takes_new_bytes_for_damage() -> list[Patch]:
    """It reads an object that grows meanwhile, and treats the end that it knew as the end of the file."""
    original = Scrub.read_done

    def read_done(self: Scrub, event: v.ScrubReadDone) -> None:
        state = self._object
        if state is not None and event.chain is not None and state.synced > event.read.goal.size:
            event = event._replace(
                chain=None, damaged_at=event.read.goal.size, what="more than there should be"
            )
        original(self, event)

    return [(Scrub, "read_done", read_done)]


@bug("row 14")
def full_disk_leaves_a_part() -> list[Patch]:
    def write(self: Storage, effect: v.Write) -> v.DiskFailure:
        path = f"d/{effect.directory}/{effect.name}"
        try:
            with self._files.use(path, create=effect.create) as file:
                file.writes += 1
                self._disk.write(file.handle, effect.position, effect.buffers)
        except OSError as error:
            return v.DiskFailure.NONE if error.errno == errno.ENOSPC else v.DiskFailure.FAILED
        return v.DiskFailure.NONE

    return [(Storage, "write", write)]


@bug("row 24")
def unsynced_bytes_are_served() -> list[Patch]:
    def was_written(self: ObjectState) -> Any:
        batch = original(self)
        self.synced, self.synced_digest = self.written, self.written_fold.value
        return batch

    original = ObjectState.wrote
    return [(ObjectState, "wrote", was_written)]
