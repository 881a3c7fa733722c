"""Looking into one file or object: places of records, tallies, and the first thing that is wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.core.errors import ChainError, CorruptRecordError, TornRecordError
from journal.core.inspection import EXTENT_MAGIC, Inspector
from journal.core.record import Record, encode
from journal.core.segment import Predecessor, SegmentStart, start_record
from journal.ops import Op

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
