"""The group log of the server: what its sync acknowledges, when a segment dies, what a start makes of it."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dos_protocol.digests import Buffer
from dos_server import log_files
from dos_server.core import vocabulary as v
from dos_server.core.files.log_replay import FoundRecord, LogSurvey, ObjectPlan, ReplayEntry
from dos_server.core.files.records import ClaimRecord
from dos_server.core.group_log import GroupLog, Key, Segments
from dos_server.core.object_state import ObjectState
from dos_server.core.requests.removals import Removals, _remove
from dos_server.disk import Disk
from dos_server.log_files import LogFiles
from dos_server.storage import Storage
from tests.sim.bugs.catalogue import Patch
from tests.sim.bugs.catalogue import bug as any_bug
from tests.support.group_log import LOG_SEEDS


def bug(breaks: str) -> Callable[[Callable[[], list[Patch]]], Callable[[], list[Patch]]]:
    """Register a bug that only servers with a log can have."""
    return any_bug(breaks, first=LOG_SEEDS)


@bug("log: acknowledge after its sync")
def the_log_acknowledges_before_its_sync() -> list[Patch]:
    def append(self: LogFiles, place: Any, record: Buffer) -> None:
        self._disk.write(self._slots[place.slot], place.offset, [record])

    return [(LogFiles, "append", append)]


@bug("log: a segment is released after its objects are filed")
def a_segment_is_released_before_its_objects_are_filed() -> list[Patch]:
    def release(self: Segments) -> None:
        while self.live and self.live[0] is not self._active:
            self._released.append(self.live.popleft())

    original = Segments.to_file

    def to_file(self: Segments) -> tuple[Key, ...]:
        self.release()
        return original(self)

    return [(Segments, "release", release), (Segments, "to_file", to_file)]


@bug("log: a removal is logged first")
def removals_are_not_logged() -> list[Patch]:
    def order(self: Removals, state: ObjectState, session: int, request_id: int) -> None:
        self._tables.effects.append(_remove(state, session, request_id))

    return [(Removals, "_order", order)]


@bug("log: bytes are logged only above covered bytes")
def bytes_are_logged_above_bytes_that_are_not_covered() -> list[Patch]:
    def takes(self: GroupLog, state: ObjectState, begin: int, count: int, now: float) -> bool:
        return count <= 1_000 and self._has_room(count)

    return [(GroupLog, "takes", takes)]


@bug("log: replay syncs before the old part dies")
def what_is_replayed_is_not_synced() -> list[Patch]:
    def write(self: Any, directory: str, name: str, plan: ObjectPlan) -> None:
        handle = self._disk.open(f"d/{directory}/{name}", create=plan.create)
        try:
            for position, content in plan.writes:
                self._disk.write(handle, position, [self._content(content)])
        finally:
            self._disk.close(handle)

    return [(log_files._Replay, "_write", write)]


@bug("log: a failed sync of a file ends the server")
def a_failed_sync_of_what_the_log_has_counts_as_filed() -> list[Patch]:
    original = Storage.sync

    def sync(self: Storage, effect: v.Sync) -> v.DiskFailure:
        trouble = original(self, effect)
        return v.DiskFailure.NONE if trouble is v.DiskFailure.FAILED else trouble

    return [(Storage, "sync", sync)]


@bug("log: a clean stop files everything")
def a_clean_stop_files_nothing() -> list[Patch]:
    def end_log(disk: Disk) -> None:
        life = log_files._life(disk, b"")
        if life.state is log_files.LogState.IN_USE:
            now = life._replace(state=log_files.LogState.CLEAN)
            log_files.replace_file(disk, "", log_files.LIFE, log_files.encode_life(now))

    def stop(self: Storage) -> None:
        if self._log is not None:
            self.abandon()
            end_log(self._disk)

    return [(Storage, "stop", stop)]


@bug("log: a claim is filed as the highest that is held")
def claims_are_replayed_as_the_last_entry_says() -> list[Patch]:
    def claim_to_store(entries: Sequence[ReplayEntry], held_epoch: int) -> ReplayEntry | None:
        del held_epoch
        return entries[0] if entries else None

    return [(log_files, "claim_to_store", claim_to_store)]


@bug("log: a claim is granted after its record")
def claims_are_granted_before_their_record() -> list[Patch]:
    def claim(self: GroupLog, directory: str, claim: ClaimRecord, then: Any) -> bool:
        del self, directory, claim
        then()
        return True

    return [(GroupLog, "claim", claim)]


@bug("log: a repair is logged before it changes names")
def repairs_are_not_logged() -> list[Patch]:
    def replace(self: GroupLog, state: ObjectState, new_root: int, size: int, then: Any) -> bool:
        del self, state, new_root, size
        then()
        return True

    return [(GroupLog, "replace", replace)]


@bug("log: the reserve is kept")
def the_reserve_ignores_the_log() -> list[Patch]:
    return [(log_files, "reserve_of", lambda total_bytes: 0)]


@bug("log: all live records are replayed")
def the_log_is_halved_at_each_start() -> list[Patch]:
    original = log_files.survey

    def survey(found: Iterable[FoundRecord], seen: Any, starts: int) -> LogSurvey:
        result = original(found, seen, starts)
        return result._replace(records=result.records[len(result.records) // 2 :])

    return [(log_files, "survey", survey)]


@bug("decision 0201")
def the_log_acknowledges_what_no_name_finds() -> list[Patch]:
    return [(Storage, "_is_named", lambda self, directory, name: True)]
