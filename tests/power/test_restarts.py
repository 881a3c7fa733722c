"""No sequence of kills and power cuts takes anything back: see `restarts`."""

import contextlib
import errno
import functools
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dos_protocol import messages as m
from dos_protocol.store_record import Member, StoreRecord, encode_store_record
from dos_server.core import vocabulary as v
from dos_server.core.object_state import ObjectState, WriteBatch
from dos_server.storage import OpenFile, Storage
from tests.power.disk_state import DiskState
from tests.power.history import History, observe
from tests.power.model_disk import DeadError, ModelDisk
from tests.power.restarts import NAMES, ServerRun, many_runs
from tests.support.core_harness import SERVER_ID, Harness


@given(seed=st.integers(0, 2**32))
def test_no_sequence_of_kills_and_power_cuts_takes_back_what_was_reported(seed: int) -> None:
    # EVIDENCE-OF: P-1, P-2, P-4
    many_runs(seed, 8)


@given(seed=st.integers(0, 2**32))
def test_what_was_refused_leaves_nothing_behind_whatever_is_killed_or_cut(seed: int) -> None:
    """A full disk, no descriptors, no right. Half of a refused write was written back, and the next one at
    the same place made a mixture of the two; a file that was made and removed again came back, empty."""
    # EVIDENCE-OF: P-8, P-10
    many_runs(seed, 8, troubled=True)


@given(seed=st.integers(0, 2**32))
def test_what_a_session_of_version_0_was_reported_is_never_taken_back(seed: int) -> None:
    # EVIDENCE-OF: P-1
    many_runs(seed, 6, version0=True)


def test_status_frames_that_run_ahead_of_the_disk_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def was_written(self: ObjectState) -> WriteBatch:
        batch = original(self)
        self.synced = self.covered = self.written
        return batch

    original = ObjectState.wrote
    monkeypatch.setattr(ObjectState, "wrote", was_written)
    with pytest.raises(AssertionError):
        _runs_of_version_0(100)


def _runs_of_version_0(seeds: int) -> None:
    for seed in range(seeds):
        many_runs(seed, 6, version0=True)


def _cut_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    def taken_back(self: Storage, file: OpenFile, effect: v.Write) -> bool:
        if effect.create:
            return original(self, file, effect)
        self._disk.cut(file.handle, effect.position)
        return True

    original = Storage._undone
    patch.setattr(Storage, "_undone", taken_back)


def _removed_name_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    def taken_back(self: Storage, file: OpenFile, effect: v.Write) -> bool:
        if not effect.create:
            return original(self, file, effect)
        self._disk.remove(f"d/{effect.directory}/{effect.name}")
        return True

    original = Storage._undone
    patch.setattr(Storage, "_undone", taken_back)


def _short_write_counts_as_whole(patch: pytest.MonkeyPatch) -> None:
    def write(self: Storage, effect: v.Write) -> v.DiskFailure:
        original(self, effect)
        return v.DiskFailure.NONE

    original = Storage.write
    patch.setattr(Storage, "write", write)


def _want_of_descriptors_poisons(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("dos_server.storage.preceded_sync", lambda error: False)


def _entry_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    original = Storage.sync
    patch.setattr(Storage, "sync", lambda self, effect: original(self, effect._replace(entry=False)))


def _removal_that_was_put_off_is_begun_anew(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("dos_server.marks.ObjectMarks.of", lambda self, name: None)


def _sync_that_was_not_tried_is_acknowledged(patch: pytest.MonkeyPatch) -> None:
    def sync(self: Storage, effect: v.Sync) -> v.DiskFailure:
        trouble = original(self, effect)
        return v.DiskFailure.NONE if trouble is v.DiskFailure.TEMPORARY else trouble

    original = Storage.sync
    patch.setattr(Storage, "sync", sync)


def _runs_on_troubled_disks(seeds: int) -> None:
    for seed in range(seeds):
        many_runs(seed, 8, troubled=True)


def _refused_and_written_again() -> None:
    """A full disk takes half of an append; another one is written to the same place, and before it is synced
    the power goes."""
    rng, history, state = random.Random(4), History(), DiskState()
    disk = ModelDisk(state)
    run = ServerRun(disk, history, 1)
    run.append("a", b"first")
    disk.trouble = lambda method: errno.ENOSPC if method == "write" else 0
    run.append("a", rng.randbytes(9_000))
    disk.trouble = lambda _: 0
    with contextlib.suppress(DeadError):
        disk.dies_after = len(disk.journal) + 1  # written, and not synced
        run.append("a", rng.randbytes(9_000))
    for seed in range(300):
        server = Harness(ModelDisk(DiskState.of(state.crash(seed))))
        wrong = history.violations(observe(functools.partial(server.ask, server.connect())))
        assert not wrong, (seed, wrong)


def test_a_refused_write_leaves_nothing_that_the_next_one_could_be_mixed_with() -> None:
    # EVIDENCE-OF: P-8, P-10
    _refused_and_written_again()


def test_a_refused_removal_after_a_torn_end_was_cut_off_leaves_what_was_acknowledged() -> None:
    """The mark that was restored had the end of the extent that was cut off, of which only the header had
    reached the disk: the next start missed bytes that nobody had been told of."""
    # EVIDENCE-OF: P-8
    for seed in range(60):
        history, state = History(), DiskState()
        disk = ModelDisk(state)
        run = ServerRun(disk, history, 1)
        run.append("a", bytes(500))
        disk.dies_after = len(disk.journal) + 1  # written, and not synced
        with contextlib.suppress(DeadError):
            run.append("a", random.Random(4).randbytes(9_000))
        left = DiskState.of(state.crash(seed))
        disk, once = ModelDisk(left), iter([errno.EMFILE])
        run = ServerRun(disk, history, 2)
        disk.trouble = lambda method, once=once: next(once, 0) if method == "sync_folder" else 0
        run.delete("a")
        ServerRun(ModelDisk(left), history, 3)


def test_without_a_sync_of_the_cut_the_mixture_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    _cut_is_not_synced(monkeypatch)
    with pytest.raises(AssertionError):
        _refused_and_written_again()


@pytest.mark.parametrize(
    "bug",
    [
        _removed_name_is_not_synced,
        _short_write_counts_as_whole,
        _want_of_descriptors_poisons,
        _entry_is_not_synced,
        _removal_that_was_put_off_is_begun_anew,
        _sync_that_was_not_tried_is_acknowledged,
    ],
)
def test_runs_on_a_troubled_disk_find_a_bug_that_is_put_in(
    monkeypatch: pytest.MonkeyPatch, bug: Callable[[pytest.MonkeyPatch], None]
) -> None:
    bug(monkeypatch)
    with pytest.raises((AssertionError, OSError)):
        _runs_on_troubled_disks(400)


class NoStampFits(ModelDisk):
    """A disk that is full when its server starts."""

    def rename(self, folder: str, old: str, new: str) -> None:
        if new == "stamps":
            raise OSError(errno.ENOSPC, "full", new)
        super().rename(folder, old, new)


@pytest.mark.parametrize("full", [False, True], ids=["", "and no stamp fits on the disk"])
def test_what_a_killed_server_left_in_memory_is_not_taken_for_durable(full: bool) -> None:
    """Killed after each of its calls to the disk; the next run adds to what it finds; then all that was not
    synced goes. (A mark that said *removed* came back, and took away an object that had the name anew; and an
    identity could be read and was not durable.) full: the start of the next run cannot write a stamp, which
    would make the entries of the data directory durable by the way."""
    # EVIDENCE-OF: P-1
    ended = False
    for count in range(1_000):
        history, state = History(), DiskState()
        with contextlib.suppress(DeadError):
            run = ServerRun(ModelDisk(state, dies_after=count), history, 1)
            for name in NAMES:
                run.append(name, b"first")
                run.delete(name)
            ended = True
        run = ServerRun(NoStampFits(state) if full else ModelDisk(state), history, 2)
        for name in NAMES:
            run.append(name, b"second")
        ServerRun(ModelDisk(DiskState.of(state.bare())), history, 3)
        if ended:
            return
    raise AssertionError("the first run never came to its end")


def test_a_store_record_that_a_killed_server_left_in_memory_is_durable_before_it_is_shown() -> None:
    """Killed after each of its calls to the disk, while it stored a record. The next start shows what it
    finds, and can write no stamp, which would make the entries of the data directory durable by the way."""
    record = encode_store_record(StoreRecord(b"S" * 16, 1, 1, (Member(SERVER_ID, "h:1"),)))
    shown = set()
    for count in range(1_000):
        state = DiskState()
        ended = False
        with contextlib.suppress(DeadError):
            server = Harness(ModelDisk(state, dies_after=count))
            server.ask(server.connect(), m.Configure(record))
            ended = True
        found = _record_shown(NoStampFits(state))
        shown.add(found)
        assert _record_shown(ModelDisk(DiskState.of(state.bare()))) == found
        if ended:
            assert shown == {b"", record}
            return
    raise AssertionError("the first run never came to its end")


def _record_shown(disk: ModelDisk) -> bytes:
    server = Harness(disk)
    session = server.connect()
    welcome = server.heard[session][0][1]
    assert isinstance(welcome, m.Welcome | m.Error)
    return welcome.store_record if isinstance(welcome, m.Welcome) else welcome.record
