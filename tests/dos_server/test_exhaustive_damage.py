"""A whole data directory, damaged in every way that is small enough to try them all, and started again.

A server made it: three appends, each acknowledged, so three extents, and each knows the ones before it to be
durable. Then every bit is flipped, every byte is where the file ends, blocks are swapped, taken from another
time or another object. The start is the real storage's, on the fake disk; what is served is read through it.

Rules that hold for all: what is served is a prefix of what was appended; it is no shorter than what was
acknowledged without an error; the file is left as it is; and a start after that one says the same.
"""

import itertools
import logging
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.store_record import Member, StoreRecord, encode_store_record
from dos_server.core import vocabulary as v
from dos_server.core.files.records import ClaimRecord, ObjectMark, encode_mark
from dos_server.core.files.recovery import RecoveredObject
from dos_server.core.files.scan import ExtentStart
from dos_server.storage import Storage
from tests.dos_server.core_requests import to_claim
from tests.support.core_harness import SERVER_ID, Harness
from tests.support.fake_disk import FakeDisk

TEXTS = [b"the first append, ", b"second, one byte\x00more", b"and the third\xff\xff"]
CONTENT = b"".join(TEXTS)
ENDS = [18, 39, 54]
RECORD = encode_store_record(StoreRecord(b"s" * 16, 3, 1, (Member(SERVER_ID, "127.0.0.1:9999"),)))

Files = dict[str, bytes]


def made(texts: list[bytes], name: str = "obj", directory: str = "dir", epoch: int = 7) -> Files:
    """The files of a server that acknowledged the appends one after the other, and was killed."""
    server = Harness()
    session = server.connect()
    server.ask(session, m.Configure(RECORD))
    claim = to_claim(epoch, directory=directory)
    server.ask(session, claim)
    content = b""
    for text in texts:
        server.send(session, m.Append(name, len(content), prefix_digest(content), text))
        server.settle()
        content += text
        last = server.unasked(session, m.DurabilityAck)[-1]
        assert (last.name, last.synced) == (name, len(content))
    disk = server.disk
    paths = [
        "identity",
        "directories",
        "store",
        f"d/{directory}/.claim",
        f"d/{directory}/.marks",
        f"d/{directory}/{name}",
    ]
    return {path: bytes(disk.content(path)) for path in paths}


FILES = made(TEXTS)
OBJECT, MARKS, CLAIM = "d/dir/obj", "d/dir/.marks", "d/dir/.claim"
WHOLE = FILES[OBJECT]
SPANS = [(0, 82), (82, 167), (167, 246)]
STARTS = [start for start, _ in SPANS]
EXTENTS = [WHOLE[start:end] for start, end in SPANS]
HEADERS = [extent[:64] for extent in EXTENTS]
ROOT = int.from_bytes(WHOLE[12:16])
HEADER_BYTES = {place for start in STARTS for place in range(start, start + 64)}
CONTENT_BEFORE = dict(zip(STARTS, (0, *ENDS), strict=False))
assert b"".join(EXTENTS) == WHOLE


@pytest.fixture(autouse=True)
def _tens_of_thousands_of_starts_say_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "dos.server")


class Started(NamedTuple):
    """What a server makes of the files, and what it would serve of the object."""

    disk: FakeDisk
    loaded: v.DirectoryLoaded
    found: RecoveredObject
    served: bytes
    error: bool


def started(files: Files) -> Started:
    disk = FakeDisk()
    for path, data in files.items():
        disk.put(path, data)
    return started_on(disk)


def started_on(disk: FakeDisk) -> Started:
    storage = Storage(disk)
    storage.start(b"f" * 16)
    loaded = storage.load("dir")
    assert not loaded.problem, loaded.problem
    found = loaded.objects["obj"]
    read = v.ReadData(1, 1, "dir", "obj", ExtentStart(0, 0), 0, found.size)
    got = storage.read(read)
    parts = got.parts
    if got.damaged_at is not None:
        parts = storage.read(read._replace(end=got.damaged_at)).parts
    served = b"".join(parts)
    storage.stop()
    return Started(disk, loaded, found, served, found.corrupt or got.damaged_at is not None)


def judge(files: Files, acknowledged: int, context: str) -> Started:
    """The rules of the module's head, for one damaged data directory."""
    one = started(files)
    assert CONTENT.startswith(one.served), f"{context}: other bytes served"
    assert one.error or len(one.served) >= acknowledged, f"{context}: fewer bytes and no error"
    if one.found.corrupt:
        assert one.disk.content(OBJECT) == files[OBJECT], f"{context}: a quarantined file was touched"
    else:
        assert one.found.fold.value == prefix_digest(CONTENT[: one.found.size]), context
    again = started_on(one.disk)
    assert (again.served, again.error) == (one.served, one.error), f"{context}: the next start says otherwise"
    return one


def flips(data: bytes) -> Iterator[tuple[int, bytes]]:
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bit, bytes(flipped)


def with_object(data: bytes, mark: int | None) -> Files:
    """The files with another object; its mark tells that size, or there is none."""
    marks = b"" if mark is None else encode_mark(ObjectMark("obj", mark, root=ROOT))
    return {**FILES, OBJECT: data, MARKS: marks}


MARKED: list[int | None] = [None, ENDS[1], ENDS[2]]
"""No mark, one that a power cut left behind, the one that was written last: all are lower bounds."""


def shown(data: bytes, mark: int | None) -> int:
    """What is acknowledged as far as these files show: by the mark, or by a header that is still whole."""
    headers = [data[at : at + 64] for at in STARTS]
    durable = [int.from_bytes(one[32:40]) for one, good in zip(headers, HEADERS, strict=True) if one == good]
    return max(mark or 0, *durable, 0)


def shown_anywhere(order: tuple[int, ...], mark: int | None) -> int:
    """The same, for whole extents in an order: a header counts wherever it stands."""
    return max(mark or 0, *([0, *ENDS][one] for one in order), 0) if order else mark or 0


def test_the_whole_directory_is_served_whole() -> None:
    one = judge(FILES, len(CONTENT), "untouched")
    assert (one.served, one.error, one.found.letter) == (CONTENT, False, "A")
    assert one.loaded.claim == ClaimRecord(7, b"w" * 16)
    assert [shown(WHOLE, mark) for mark in MARKED] == [39, 39, 54]


@pytest.mark.parametrize("mark", MARKED)
def test_every_flipped_bit_is_found_whatever_the_mark_knows(mark: int | None) -> None:
    # EVIDENCE-OF: P-2
    for bit, data in flips(WHOLE):
        one = judge(with_object(data, mark), len(CONTENT), f"bit {bit}")
        assert one.error, f"bit {bit} went unseen"
        if bit // 8 in HEADER_BYTES:
            assert one.found.corrupt
            assert one.found.letter == "D", f"bit {bit} of a header is {one.found.letter}: not torn, rotten"


@pytest.mark.parametrize("mark", MARKED)
def test_every_cut_and_every_zeroed_end_is_an_error_or_costs_nothing_acknowledged(mark: int | None) -> None:
    # EVIDENCE-OF: P-2
    for size in range(len(WHOLE)):
        for kind, data in (("cut", WHOLE[:size]), ("zeros", WHOLE[:size].ljust(len(WHOLE), b"\0"))):
            one = judge(with_object(data, mark), shown(data, mark), f"{kind} at {size}")
            assert one.error or one.found.letter in "ABC"
            assert one.error or mark != len(CONTENT) or data == WHOLE


@pytest.mark.parametrize("mark", MARKED)
def test_zeros_after_the_end_are_the_end_however_many(mark: int | None) -> None:
    for count in (*range(1, 130), 447, 448, 449, 511, 512, 513, 4096, 262_144, 262_208):
        one = judge(with_object(WHOLE + bytes(count), mark), len(CONTENT), f"{count} zeros")
        assert (one.served, one.error, one.found.letter) == (CONTENT, False, "B")
        assert one.disk.content(OBJECT) == WHOLE


@pytest.mark.parametrize("mark", MARKED)
def test_every_hole_of_zeros_is_an_error_or_costs_nothing_acknowledged(mark: int | None) -> None:
    errors = 0
    for start in range(0, len(WHOLE), 3):
        for end in range(start + 1, len(WHOLE) + 1, 13):
            data = WHOLE[:start] + bytes(end - start) + WHOLE[end:]
            if data != WHOLE:
                one = judge(with_object(data, mark), shown(data, mark), f"zeros from {start} to {end}")
                errors += one.error
    assert errors, "some holes are in acknowledged bytes"


@pytest.mark.parametrize("mark", [None, len(CONTENT)])
def test_every_value_of_every_byte_of_a_length_is_rotten_and_not_torn(mark: int | None) -> None:
    # EVIDENCE-OF: P-2
    for start in STARTS:
        for place, value in itertools.product(range(start + 8, start + 12), range(256)):
            data = WHOLE[:place] + bytes((value,)) + WHOLE[place + 1 :]
            if data != WHOLE:
                one = judge(with_object(data, mark), len(CONTENT), f"byte {place} is {value}")
                assert (one.found.letter, one.found.size) == ("D", CONTENT_BEFORE[start])


@pytest.mark.parametrize("mark", MARKED)
def test_blocks_in_any_other_order_number_or_place_are_never_other_bytes(mark: int | None) -> None:
    # EVIDENCE-OF: P-2
    for count in range(5):
        for order in itertools.product(range(3), repeat=count):
            data = b"".join(EXTENTS[one] for one in order)
            one = judge(with_object(data, mark), shown_anywhere(order, mark), f"extents {order}")
            if order[:3] != (0, 1, 2)[: len(order)]:
                assert one.found.corrupt, order


@pytest.mark.parametrize("mark", MARKED)
def test_an_older_block_in_the_place_of_a_newer_one_is_never_fewer_bytes_unsaid(mark: int | None) -> None:
    """A write that the disk lost: from `start` on there is what was there before, the file of that time."""
    errors = 0
    for then in (0, *STARTS[1:]):
        for start in range(0, len(WHOLE), 7):
            for end in range(start + 1, len(WHOLE) + 1, 11):
                before = WHOLE[:then].ljust(len(WHOLE), b"\0")
                data = WHOLE[:start] + before[start:end] + WHOLE[end:]
                what = f"{start} to {end} as of {then} bytes"
                one = judge(with_object(data, mark), shown(data, mark), what)
                errors += one.error
    assert errors, "some lost writes are of acknowledged bytes"


FOREIGN = {
    "another object": made(TEXTS, name="other")["d/dir/other"],
    "the same name in another directory": made(TEXTS, directory="elsewhere")["d/elsewhere/obj"],
}


@pytest.mark.parametrize("owner_of", FOREIGN)
@pytest.mark.parametrize("mark", MARKED)
def test_extents_of_another_object_are_never_served(mark: int | None, owner_of: str) -> None:
    # EVIDENCE-OF: P-2
    foreign = FOREIGN[owner_of]
    for mask in itertools.product((False, True), repeat=3):
        data = b"".join(
            foreign[at:to] if other else WHOLE[at:to] for other, (at, to) in zip(mask, SPANS, strict=True)
        )
        one = judge(with_object(data, mark), len(CONTENT), f"{mask}")
        assert one.error is any(mask)
    one = judge(with_object(WHOLE + foreign, mark), len(CONTENT), "all of it behind the end")
    assert (one.served, one.found.corrupt) == (CONTENT, True)


EARLIER = made([text[::-1] for text in TEXTS])[OBJECT]
"""What the name had before it was removed and made again: other bytes, of the same lengths."""


@pytest.mark.parametrize("mark", MARKED)
def test_extents_that_the_name_had_in_an_earlier_life_are_never_served(mark: int | None) -> None:
    # EVIDENCE-OF: P-2
    for mask in itertools.product((False, True), repeat=3):
        if all(mask) and mark is None:
            continue  # a whole file of another time: without a mark nothing here says that there was another
        data = b"".join(
            EARLIER[at:to] if stale else WHOLE[at:to] for stale, (at, to) in zip(mask, SPANS, strict=True)
        )
        one = judge(with_object(data, mark), len(CONTENT), f"{mask}")
        assert one.found.corrupt is any(mask)


def test_damage_is_remembered_when_the_file_looks_good_again() -> None:
    for bit, data in flips(WHOLE):
        if bit % 8 == 0:
            one = started(FILES | {OBJECT: data})
            one.disk.put(OBJECT, WHOLE)
            again = started_on(one.disk)
            assert again.found.corrupt == one.found.corrupt
            if one.found.corrupt:
                assert again.found.letter == "R"


LARGE = [b"x" * 420, bytes(range(1, 151)) + bytes(600) + b"tail", b"\x01" + bytes(300) + b"\x80"]
"""Extents over several sectors: a header across an edge, sectors of zeros that were written as zeros."""


@pytest.mark.parametrize("marked", [True, False])
def test_over_several_sectors_a_flip_or_cut_costs_nothing_that_is_known_to_be_acknowledged(
    marked: bool,
) -> None:
    """Without its mark, a last extent with a sector of zeros may look like a torn one: it may be cut."""
    files, content = made(LARGE), b"".join(LARGE)
    whole = files[OBJECT]
    marks = files[MARKS] if marked else b""
    known = len(content) if marked else len(LARGE[0]) + len(LARGE[1])
    third = len(whole) - len(LARGE[2]) - 64
    cases = [(f"bit {bit}", data) for bit, data in flips(whole) if bit % 8 in (0, 7)]
    cases += [(f"cut at {size}", whole[:size]) for size in range(third if not marked else 0, len(whole), 3)]
    for context, data in cases:
        one = started(files | {OBJECT: data, MARKS: marks})
        assert content.startswith(one.served), context
        assert one.error or len(one.served) >= known, context
        assert one.error or not marked, context
        if one.found.corrupt:
            assert one.disk.content(OBJECT) == data, context
