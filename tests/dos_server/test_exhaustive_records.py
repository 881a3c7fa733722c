"""The small files of a data directory, every bit flipped and every byte cut off: what they said before, or a
refusal by name, and never anything else.

Identity, store record and claim are one value each: a server that is not sure of it must not answer. A mark
is a lower bound: an incomplete one is ignored, with a line in the log.
"""

import logging
from collections.abc import Iterator

import pytest

from dos_protocol.errors import CorruptDataError
from dos_server.core.files.records import ClaimRecord, ObjectMark, encode_mark
from dos_server.limits import mark_bytes
from dos_server.marks import ObjectMarks
from dos_server.storage import Storage
from tests.dos_server.test_exhaustive_damage import CLAIM, FILES, MARKS, RECORD, flips
from tests.support.core_harness import SERVER_ID
from tests.support.fake_disk import FakeDisk


def disk_with(files: dict[str, bytes]) -> FakeDisk:
    disk = FakeDisk()
    for path, data in files.items():
        disk.put(path, data)
    return disk


def damages(data: bytes) -> Iterator[tuple[str, bytes]]:
    for bit, flipped in flips(data):
        yield f"bit {bit}", flipped
    for size in range(len(data)):
        yield f"cut at {size}", data[:size]
        yield f"zeros from {size}", data[:size].ljust(len(data), b"\0")
    for more in (b"\0", b"\n", data):
        yield f"{more!r} behind it", data + more


@pytest.mark.parametrize("path", ["identity", "store"])
def test_a_server_is_itself_in_its_own_store_or_does_not_start(path: str) -> None:
    # EVIDENCE-OF: P-4
    assert Storage(disk_with(FILES)).start(b"f" * 16) == (SERVER_ID, RECORD, {"dir"})
    for where, data in damages(FILES[path]):
        if data == FILES[path]:
            continue
        disk = disk_with(FILES | {path: data})
        with pytest.raises(CorruptDataError) as caught:
            pytest.fail(f"{path}, {where}: started as {Storage(disk).start(b'f' * 16)}")
        assert path in str(caught.value), where
        assert str(caught.value).isprintable(), where
        assert disk.content(path) == data, "left as it is"


def test_a_claim_is_the_one_that_was_granted_or_the_directory_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # EVIDENCE-OF: P-4
    caplog.set_level(logging.CRITICAL, "dos.server")
    whole = Storage(disk_with(FILES))
    whole.start(b"f" * 16)
    assert whole.load("dir").claim == ClaimRecord(7, b"w" * 16)
    for where, data in damages(FILES[CLAIM]):
        if data == FILES[CLAIM]:
            continue
        disk = disk_with(FILES | {CLAIM: data})
        storage = Storage(disk)
        storage.start(b"f" * 16)
        loaded = storage.load("dir")
        assert ".claim" in loaded.problem, where
        assert loaded.problem.isprintable(), where
        assert loaded.objects == {}, where
        assert disk.content(CLAIM) == data, "left as it is"


SLOTS = [
    ObjectMark("one", 2**40 + 5),
    ObjectMark("obj", 54, damaged=True),
    ObjectMark("x" * 128, 2**64 - 1, poisoned=True, removed=True),
]
SLOT_BYTES = [encode_mark(mark) for mark in SLOTS]


def marks_in(data: bytes) -> dict[str, ObjectMark]:
    return ObjectMarks(disk_with({MARKS: data}), "d/dir").load()


@pytest.mark.parametrize("slot", range(3))
def test_a_mark_is_what_was_written_or_says_nothing_and_the_others_stand(
    slot: int, caplog: pytest.LogCaptureFixture
) -> None:
    # EVIDENCE-OF: P-2
    others = {mark.name: mark for mark in SLOTS if mark is not SLOTS[slot]}
    for bit, data in flips(SLOT_BYTES[slot]):
        caplog.clear()
        found = marks_in(b"".join([*SLOT_BYTES[:slot], data, *SLOT_BYTES[slot + 1 :]]))
        assert found == others, f"bit {bit}"
        (line,) = caplog.messages
        assert f"mark {slot} of d/dir" in line, f"bit {bit}"


def test_marks_cut_at_any_byte_are_those_that_are_whole(caplog: pytest.LogCaptureFixture) -> None:
    whole = b"".join(SLOT_BYTES)
    for size in range(len(whole) + 1):
        caplog.clear()
        count = size // mark_bytes
        assert marks_in(whole[:size]) == {mark.name: mark for mark in SLOTS[:count]}
        assert marks_in(whole[:size].ljust(len(whole), b"\0")) == {mark.name: mark for mark in SLOTS[:count]}
        assert bool(caplog.messages) is (size % mark_bytes > 0), size


def test_an_erased_mark_is_no_damage(caplog: pytest.LogCaptureFixture) -> None:
    assert marks_in(SLOT_BYTES[0] + bytes(mark_bytes) + SLOT_BYTES[2]).keys() == {"one", "x" * 128}
    assert caplog.messages == []
