"""Inspection of a journal, and the lines that its records become."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dos_protocol.errors import CorruptDataError
from journal.core.chain import Predecessor, SegmentStart, start_record
from journal.core.errors import (
    ChainError,
    CorruptRecordError,
    LostBytesError,
    TornRecordError,
    UnknownRecordError,
)
from journal.core.inspection import (
    EXTENT_MAGIC,
    Inspector,
    Located,
    fault_fields,
    fault_text,
    kind_of,
    original_text,
    record_json,
    record_text,
)
from journal.core.record import Op, Record, encode

BELOW = Predecessor("J.0000000000000002.0000000000000000", 500, 7)
FIRST = SegmentStart("J", 3, 0, None, 1, "00" * 16)
LATER = SegmentStart("J", 3, 500, BELOW, 1, "00" * 16)
MARKS = [Record(Op.MARK, 0, (number,)) for number in range(3)]


def fed(inspector: Inspector, data: bytes, piece: int) -> list[tuple[int, int, Record]]:
    found = []
    for at in range(0, len(data), piece):
        found += [(one.offset, one.end, one.record) for one in inspector.feed(data[at : at + piece])]
    return found


@given(st.sampled_from([None, FIRST, LATER]), st.integers(1, 400), st.booleans())
def test_each_record_has_its_place_on_the_chain(start: SegmentStart | None, piece: int, named: bool) -> None:
    """Under any name, an object that was copied to a file is recognized by its start alone."""
    records = MARKS if start is None else [start_record(start), *MARKS]
    base, name = (start.base, start.name) if start is not None else (0, "file")
    inspector = Inspector(name if named else "file")
    found = fed(inspector, b"".join(map(encode, records)), piece)
    assert [record for *_, record in found] == records
    at = base
    for offset, end, record in found:
        assert (offset, end) == (at, at + len(encode(record)))
        at = end
    assert inspector.finish() is None
    tally = inspector.tally
    assert (tally.segments, tally.records, tally.bytes, tally.version) == (1, len(records), at - base, 1)
    assert (tally.first_offset, tally.end_offset, inspector.logical_base) == (base, at, base)


def test_the_plain_way_gives_the_same_ends() -> None:
    data = b"".join(map(encode, [start_record(LATER), *MARKS]))
    ends = [end for end, _ in Inspector(LATER.name).feed_plain(data)]
    assert ends == [end for _, end, _ in fed(Inspector(LATER.name), data, len(data))]


def test_nothing_seen_is_nothing_counted() -> None:
    inspector = Inspector("file")
    assert inspector.feed(b"") == []
    assert inspector.finish() is None
    assert (inspector.tally.version, inspector.tally.first_offset, inspector.tally.end_offset) == (
        None,
        None,
        0,
    )


@pytest.mark.parametrize(
    ("records", "sound", "text"),
    [
        ([*MARKS, start_record(LATER)], 3, "a segment start only as the first record"),
        ([start_record(FIRST), MARKS[0], start_record(LATER)], 2, "another segment's start"),
        ([start_record(FIRST), MARKS[0], Record(Op.SNAPSHOT_BEGIN)], 2, "a snapshot only at"),
        ([start_record(FIRST), Record(Op.SNAPSHOT_END, 0, (0,))], 1, "no snapshot begun"),
        ([start_record(LATER)], 0, "the start record of this segment"),
    ],
)
@pytest.mark.parametrize("piece", [1, 100_000])
def test_what_stands_before_a_misplaced_record_is_handed_out_and_then_nothing(
    records: list[Record], sound: int, text: str, piece: int
) -> None:
    inspector = Inspector(FIRST.name)
    found = fed(inspector, b"".join(map(encode, [*records, MARKS[0]])), piece)
    assert [record for *_, record in found] == records[:sound]
    assert isinstance(inspector.fault, ChainError)
    assert text in str(inspector.fault)
    assert inspector.fault.offset == sum(len(encode(record)) for record in records[:sound])
    assert inspector.tally.records == sound
    assert inspector.feed(encode(MARKS[0])) == []
    assert inspector.finish() is inspector.fault


@pytest.mark.parametrize("piece", [1, 2, 50])
def test_an_extent_of_a_data_directory_is_named_as_that(piece: int) -> None:
    inspector = Inspector("file")
    assert fed(inspector, EXTENT_MAGIC + bytes(50), piece) == []
    assert "read it through the server" in str(inspector.finish())


def test_a_cut_off_record_and_a_broken_one_are_faults_at_their_place() -> None:
    data = b"".join(map(encode, MARKS))
    inspector = Inspector("file")
    assert len(inspector.feed(data[:-1])) == 2
    assert isinstance(inspector.finish(), TornRecordError)
    inspector = Inspector("file")
    assert len(inspector.feed(data[:80] + bytes([data[80] ^ 1]) + data[81:])) == 2
    assert isinstance(inspector.finish(), CorruptRecordError)
    assert inspector.finish().offset == 80  # type: ignore[union-attr]
    inspector = Inspector("file")
    inspector.feed(data)
    assert inspector.feed(b"garbage" * 10) == []
    assert inspector.feed(data) == []
    assert isinstance(inspector.finish(), CorruptRecordError)


SHOWN = 64


def located(*strings: bytes, flags: int = 0) -> Located:
    return Located("J", 100, 140, 1, Record(Op.WRITE, 2, (10,), strings, flags))


def test_a_line_is_what_the_original_wrote_with_place_and_name() -> None:
    assert (
        record_text(located(b"/w/a", b"0\n"))
        == "100 WRITE version=1 op=1 tag=2 ints=[10] strings=['/w/a', '0\\n']"
    )
    assert (
        original_text(located(b"\x1b[2J\xff")) == "version=1 op=1 tag=2 ints=[10] strings=['\\x1b[2J\\xff']"
    )
    assert original_text(located(flags=0x12)) == "version=1 op=1 tag=2 flags=0x0012 ints=[10] strings=[]"


@pytest.mark.parametrize("size", [0, 1, SHOWN - 1, SHOWN, SHOWN + 1, 1000])
@pytest.mark.parametrize("full", [False, True])
def test_of_a_long_string_the_beginning_is_visible_and_how_long_it_is(size: int, full: bool) -> None:
    cut = size > SHOWN and not full
    shown = "a" * (SHOWN if cut else size)
    expected = f"'{shown}'" + (f"...[{size} bytes]" if cut else "")
    assert record_text(located(b"a" * size), full=full).endswith(f" strings=[{expected}]")
    assert original_text(located(b"a" * size)).endswith(f" strings=['{'a' * size}']")
    (text,) = json.loads(record_json(located(b"a" * size), full=full))["strings"]
    assert text == {"bytes": size, "text": shown} | ({"cut": True} if cut else {})
    (binary,) = json.loads(record_json(located(b"\xff" * size), full=full))["strings"]
    if size:
        assert binary == {"bytes": size, "hex": "ff" * len(shown)} | ({"cut": True} if cut else {})


def test_a_character_that_the_cut_divides_is_left_out() -> None:
    (one,) = json.loads(record_json(located(b"a" * (SHOWN - 1) + "é".encode())))["strings"]
    assert one == {"bytes": SHOWN + 1, "text": "a" * (SHOWN - 1), "cut": True}


def test_a_json_line_has_every_field() -> None:
    assert json.loads(record_json(located(b"p", flags=5))) == {
        "segment": "J", "offset": 100, "end": 140, "version": 1, "op": 1, "name": "WRITE", "tag": 2,
        "flags": 5, "ints": [10], "strings": [{"bytes": 1, "text": "p"}],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (TornRecordError("J", 5, "a record", "the end", "why"), "torn"),
        (UnknownRecordError("J", 5, "a record", "the end", "why"), "version"),
        (ChainError("J", 5, "a record", "the end", "why"), "chain"),
        (CorruptRecordError("J", 5, "a record", "the end", "why"), "corrupt"),
    ],
)
def test_a_fault_in_bytes_is_told_with_both_offsets(fault: CorruptDataError, kind: str) -> None:
    assert kind_of(fault) == kind
    assert fault_fields(fault, 1000) == {
        "kind": kind, "segment": "J", "offset": 5, "logical_offset": 1005,
        "expected": "a record", "found": "the end", "hint": "why",
    }  # fmt: skip
    assert fault_text(fault, 1000).splitlines()[:3] == [
        f"kind            {kind}", "segment         J", "offset          5",
    ]  # fmt: skip
    assert "logical offset  1005" in fault_text(fault, 1000).splitlines()


def test_of_another_fault_the_problem_and_the_remedy_are_reported_and_nothing_empty() -> None:
    fault = LostBytesError("bytes are gone", remedy="get them back")
    assert fault_fields(fault) == {"kind": "lost", "problem": "bytes are gone", "hint": "get them back"}
    assert len(fault_text(CorruptRecordError("J", 0, "x", "y", "")).splitlines()) == 6
