"""Small files are old or new, whole, wherever a crash comes: identity, store record, claim."""

import contextlib
import itertools
import random
from collections.abc import Callable

import pytest

from dos_server.core import vocabulary as v
from dos_server.core.files.records import ClaimRecord, decode_claim
from dos_server.disk import read_file, replace_file
from dos_server.storage import OpenFiles, Storage
from tests.dos_server.store_member import PowerCutError, PowerPlug
from tests.support.core_harness import SERVER_ID, Harness
from tests.support.fake_disk import FakeDisk

OLD, NEW = b"old" * 400, b"new and longer" * 300


def replaced_until(disk: FakeDisk, name: str, data: bytes, nth: int, *, power: bool, seed: int) -> bool:
    """Replace the file, the power going or the process dying at the nth call. Whether it came to its end."""
    plug, whole = PowerPlug(disk, nth), False
    with contextlib.suppress(PowerCutError):
        replace_file(disk, "", name, data)
        whole = True
    plug.restore()
    disk.power_cut(random.Random(seed)) if power else disk.kill()
    return whole


@pytest.mark.parametrize("power", [True, False])
@pytest.mark.parametrize("name", ["store", ".claim"])
def test_a_crash_at_every_step_of_a_replacement_leaves_the_old_or_the_new(name: str, power: bool) -> None:
    steps = set()
    for nth, seed in itertools.product(range(1, 20), range(30)):
        disk = FakeDisk()
        replace_file(disk, "", name, OLD)
        whole = replaced_until(disk, name, NEW, nth, power=power, seed=seed)
        found = read_file(disk, name)
        assert found == NEW if whole else found in (OLD, NEW), (nth, seed)
        steps.add((nth, whole))
        replace_file(disk, "", name, NEW)  # a leftover is in nobody's way
        assert read_file(disk, name) == NEW
    assert {nth for nth, whole in steps if not whole} >= set(range(1, 8)), "a crash at every call"


def test_a_crash_at_every_step_of_the_first_start_leaves_one_identity_or_none() -> None:
    for nth, seed in itertools.product(range(1, 20), range(30)):
        disk = FakeDisk()
        plug = PowerPlug(disk, nth)
        with contextlib.suppress(PowerCutError):
            Storage(disk).start(b"first id, 16 byt")
        plug.restore()
        disk.power_cut(random.Random(seed))
        assert Storage(disk).start(SERVER_ID)[0] in (b"first id, 16 byt", SERVER_ID), (nth, seed)


def test_a_crash_at_every_step_of_a_claim_leaves_the_old_one_or_the_new() -> None:
    # EVIDENCE-OF: P-4
    old, new = ClaimRecord(1, b"a" * 16), ClaimRecord(2, b"b" * 16)
    for nth, seed in itertools.product(range(1, 16), range(30)):
        server = Harness()
        server.storage.load("dir")
        assert server.storage.store_claim(v.WriteClaim("dir", old)).failure is v.DiskFailure.NONE
        plug, trouble = PowerPlug(server.disk, nth), None
        with contextlib.suppress(PowerCutError):
            trouble = server.storage.store_claim(v.WriteClaim("dir", new)).failure
        plug.restore()
        server.disk.power_cut(random.Random(seed))
        data = read_file(server.disk, "d/dir/.claim")
        assert data is not None, (nth, seed)
        found = decode_claim(data, "claim")
        assert found == new if trouble is v.DiskFailure.NONE else found in (old, new), (nth, seed)
        server.start()
        assert server.storage.load("dir").claim == found


# --- The table of open files: nothing unsynced or in use is ever closed, and not more stay open ... --------


@pytest.fixture
def disk() -> FakeDisk:
    disk = FakeDisk()
    disk.make_folder("d")
    return disk


def still_open(disk: FakeDisk) -> set[str]:
    return {path for _, path in disk._handles.values()}


def test_no_more_files_stay_open_than_allowed_but_for_unsynced_ones(
    disk: FakeDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    # EVIDENCE-OF: P-9
    monkeypatch.setattr("dos_server.storage.open_files_max", 3)
    files = OpenFiles(disk)
    with files.use("d/dirty", create=True) as dirty:
        dirty.writes += 1
    for number in range(10):
        with files.use(f"d/{number}", create=True):
            pass
    assert still_open(disk) == {"d/dirty", "d/8", "d/9"}
    assert [path for path, _ in files.unsynced()] == ["d/dirty"]
    with files.use("d/dirty") as same:
        assert same is dirty


@pytest.mark.parametrize(
    "forget", [lambda files: files.forget("d/a"), lambda files: files.forget_folder("d")]
)
def test_a_file_forgotten_in_use_is_closed_at_the_end_of_its_use(
    disk: FakeDisk, forget: Callable[[OpenFiles], None]
) -> None:
    files = OpenFiles(disk)
    with files.use("d/a", create=True):
        forget(files)
        assert still_open(disk) == {"d/a"}
    assert still_open(disk) == set()


def test_forgetting_one_leaves_others_whose_names_begin_alike(disk: FakeDisk) -> None:
    files = OpenFiles(disk)
    for path in ("d/a", "d/ab"):
        with files.use(path, create=True):
            pass
    files.forget("d/a")
    files.forget("d/missing")
    assert still_open(disk) == {"d/ab"}
