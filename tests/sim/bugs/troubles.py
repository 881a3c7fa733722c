"""Transient causes, short writes and removed directories: see docs/decisions/0201 and 0202. Most of these
bugs need a run with such troubles.
"""

import errno
from typing import Any

from dos_protocol.messages import SessionEvent
from dos_server import disk, log_files, marks, storage
from dos_server.core import vocabulary as v
from dos_server.core.directory_state import LoadState
from dos_server.core.requests.claims import Claims
from dos_server.core.vocabulary import DiskFailure
from dos_server.disk import read_file
from dos_server.log_files import LogFiles
from dos_server.marks import DirectoryRegister
from dos_server.storage import Storage
from tests.sim.bugs.catalogue import Patch, bug
from tests.sim.engine.disk import SimDisk
from tests.sim.engine.random_streams import RandomStreams
from tests.sim.nemesis import has_troubles, plan
from tests.support.group_log import LOG_SEEDS


@bug("0202", where=has_troubles)
def lack_of_descriptors_is_remembered_as_damage() -> list[Patch]:
    """A directory that could not be read now is refused until the server is restarted."""
    original = storage.DirectoryLoader.load

    def load(self: Any, directory: str) -> v.DirectoryLoaded:
        return original(self, directory)._replace(temporary=False)

    return [(storage.DirectoryLoader, "load", load)]


@bug("0202", where=has_troubles)
def missing_rights_are_reported_as_no_space() -> list[Patch]:
    return [(disk, "_MEANING", {**disk._MEANING, errno.EACCES: DiskFailure.NO_SPACE})]


@bug("0202", where=has_troubles)
def every_error_is_the_disks() -> list[Patch]:
    """A lack of descriptors poisons the objects that should have been written or synced."""
    return [
        (module, name, value)
        for name, value in (
            ("failure_of", lambda error: DiskFailure.FAILED),
            ("preceded_sync", lambda error: False),
        )
        for module in (storage, disk)
        if hasattr(module, name)
    ]


@bug("0202, row 6", where=has_troubles)
def a_folder_that_cannot_be_opened_needs_no_sync() -> list[Patch]:
    """Acknowledged before the name is durable, because its folder could not be opened to be synced."""
    original = Storage.sync

    def sync(self: Storage, effect: v.Sync) -> v.DiskFailure:
        trouble = original(self, effect)
        return v.DiskFailure.NONE if trouble is v.DiskFailure.TEMPORARY else trouble

    return [(Storage, "sync", sync)]


@bug("0202, R2", where=has_troubles)
def a_claim_that_cannot_be_read_was_never_made() -> list[Patch]:
    """A passing error at a start, or at the first use of a directory, loses its claim."""
    original = read_file

    def read(of: Any, path: str) -> bytes | None:
        try:
            return original(of, path)
        except OSError:
            if path.endswith(".claim"):
                return None
            raise

    return [(module, "read_file", read) for module in (storage, marks, log_files)]


@bug("row 14", where=has_troubles)
def short_writes_are_taken_for_whole() -> list[Patch]:
    return [(disk, "_write_rest", lambda *given: None)]


@bug("row 14", where=has_troubles)
def the_rest_of_a_short_write_goes_to_the_beginning() -> list[Patch]:
    original = disk._write_rest

    def rest(system: Any, handle: int, position: int, data: bytes, written: int) -> None:
        original(system, handle, position, data[written:], 0)

    return [(disk, "_write_rest", rest)]


@bug("0201", where=has_troubles)
def appends_to_a_removed_directory_are_acknowledged() -> list[Patch]:
    return [(SimDisk, "is_named", lambda self, handle, path: True)]


# Folders that a person removes: decision 0265


def _loses_a_directory(streams: RandomStreams) -> bool:
    """Whether a run has the play in which the member with a lost directory is asked by the next writer."""
    return any(fault.kind in ("two_of_three", "removed_directory") for fault in plan(streams))


@bug("0265, R4", where=_loses_a_directory)
def a_missing_directory_was_never_claimed() -> list[Patch]:
    """Missing directories count as empty, as before there was a register."""
    return [
        (storage.DirectoryLoader, "_check_not_lost", lambda self, directory, is_missing: None),
        (DirectoryRegister, "epoch_of", lambda self, directory: 0),
    ]


@bug("0265, R4", where=_loses_a_directory)
def only_claims_of_a_missing_directory_are_refused() -> list[Patch]:
    """A reader receives an empty directory."""
    original = Claims._open

    def opened(self: Any, directory: Any, opening: Any) -> None:
        if directory.loading is LoadState.BROKEN and not opening.request.claim:
            self._opened(directory, opening, SessionEvent.OPENED)
        else:
            original(self, directory, opening)

    return [(Claims, "_open", opened)]


@bug("0265, R2", where=_loses_a_directory)
def directories_are_never_registered() -> list[Patch]:
    return [(DirectoryRegister, "add", lambda self, directory, epoch=0: None)]


@bug("0265", where=_loses_a_directory)
def the_folder_of_objects_is_made_again() -> list[Patch]:
    """A server that finds no `d` begins anew, under its old identity."""

    def made(of: Any) -> None:
        if of.make_folder("d"):
            of.put("directories", b"")

    return [(storage, "check_folder_of_objects", made)]


def _loses_one_at_work(streams: RandomStreams) -> bool:
    return any(fault.kind == "removed_directory" for fault in plan(streams))


@bug("0265", where=_loses_one_at_work)
def a_directory_removed_at_work_is_not_noticed() -> list[Patch]:
    return [(Storage, "missing_directories", lambda self: [])]


@bug("0265", where=_loses_one_at_work, first=LOG_SEEDS)
def a_removed_log_is_not_noticed() -> list[Patch]:
    return [(LogFiles, "missing", lambda self: "")]


@bug("0265, R4", where=_loses_a_directory, first=LOG_SEEDS)
def the_log_makes_a_missing_directory_again() -> list[Patch]:
    """A replay makes the directory with what the log still has of it, and nobody compares the register."""

    def checked(self: Any, folders: Any) -> None:
        del folders

    return [
        (DirectoryRegister, "check", checked),
        (DirectoryRegister, "names", property(lambda self: frozenset())),
    ]
