"""Segments on bytes alone: names, start records and their rules, surveys and replays. Reading from one member
after the other: what a member that is away may have is not called lost.
"""

import re
from collections.abc import AsyncGenerator
from itertools import product
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from dos_client.errors import QuorumUnavailableError
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import (
    BadNameError,
    BrokenConnectionError,
    BusyError,
    CorruptError,
    FencedError,
    LocalProtocolError,
    NotFoundError,
)
from dos_protocol.names import is_name
from journal.chain import report_unproved
from journal.core.chain import (
    ORIGIN,
    ChainState,
    Floors,
    Position,
    Predecessor,
    SegmentName,
    SegmentSpan,
    SegmentStart,
    base_of,
    below,
    below_or_within,
    check_chain_name,
    lowest,
    parse_segment_name,
    parse_start,
    segment_name,
    start_record,
)
from journal.core.errors import (
    ChainError,
    CorruptRecordError,
    LostBytesError,
    StopNotFoundError,
    TornRecordError,
)
from journal.core.record import Op, Record, encode
from journal.core.scan import (
    RecordBoundary,
    SegmentSurvey,
    SegmentSurveyor,
    SnapshotSearch,
    SnapshotTracker,
    SpanReplay,
    fold,
)
from journal.reading import ChainSource
from tests.journal.strategies import other_records

START = SegmentStart("J", 3, 0, None, 1, "00" * 16)
NAME = START.name
BEGIN = Record(Op.SNAPSHOT_BEGIN)
plain_records = other_records.filter(
    lambda record: record.op not in (Op.SEGMENT_START, Op.SNAPSHOT_BEGIN, Op.SNAPSHOT_END, Op.INDEX)
)


def mark(number: int) -> Record:
    return Record(Op.MARK, ints=(number,))


def end(count: int) -> Record:
    return Record(Op.SNAPSHOT_END, ints=(count,))


def segment(*records: Record) -> bytes:
    return b"".join(encode(record) for record in (start_record(START), *records))


def survey(data: bytes, *, within: int = 0, piece: int = 1 << 20) -> SegmentSurvey:
    surveyor = SegmentSurveyor(NAME, within=within)
    for at in range(0, len(data), piece):
        surveyor.feed(data[at : at + piece])
    return surveyor.finish()


def at(data: bytes, length: int) -> RecordBoundary:
    return RecordBoundary(length, prefix_digest(data[:length]))


@given(
    records=st.lists(plain_records, max_size=6),
    cut=st.integers(0, 500),
    within=st.integers(0, 1500),
    piece=st.integers(1, 700),
)
def test_a_survey_finds_every_boundary_it_is_asked_for(
    records: list[Record], cut: int, within: int, piece: int
) -> None:
    data = segment(*records)
    ends = [len(segment(*records[:count])) for count in range(len(records) + 1)]
    length = max(len(data) - cut, ends[0])
    whole = [boundary for boundary in ends if boundary <= length]
    found = survey(data[:length], within=within, piece=piece)
    assert found.start == START
    assert found.first == at(data, ends[0])
    assert found.last == at(data, whole[-1])
    assert found.before_last == (at(data, whole[-2]) if len(whole) > 1 else RecordBoundary())
    inside = [boundary for boundary in whole if boundary <= within]
    assert found.within == (at(data, inside[-1]) if inside else RecordBoundary())
    assert found.torn_bytes == length - whole[-1]
    assert found.snapshot_end == 0


_LETTERS = {
    "S": start_record(START),
    "B": BEGIN,
    "m": mark(0),
    **{str(count): end(count) for count in range(3)},
}
_ORDERS = ["".join(one) for count in range(6) for one in product(_LETTERS, repeat=count)]


def is_in_order(records: str) -> bool:
    """A start, at most one snapshot after it, whose end states its number of records, and any others."""
    found = re.fullmatch(r"(S(B(m*)(([0-2])m*)?|m*))?", records)
    return found is not None and (found[5] is None or int(found[5]) == len(found[3]))


def test_records_are_accepted_in_the_orders_of_the_grammar_and_in_no_other() -> None:
    """All orders of up to five records, and what is known of a snapshot in each that is accepted."""
    accepted = 0
    for order in _ORDERS:
        tracker, ends = SnapshotTracker(NAME), [order.find(letter) + 1 for letter in "012" if letter in order]
        records = [(place + 1, _LETTERS[letter]) for place, letter in enumerate(order)]
        if not is_in_order(order):
            with pytest.raises(ChainError):
                tracker.take_all(0, records)
            continue
        one_by_one = SnapshotTracker(NAME)
        tracker.take_all(0, records)
        for place, record in enumerate(records):
            one_by_one.take_all(place, [record])
        assert tracker.finished_at == one_by_one.finished_at == sum(ends), order
        assert tracker.unfinished == one_by_one.unfinished == ("B" in order and not ends)
        accepted += 1
    assert accepted == 16


def test_a_survey_of_a_start_that_is_cut_off_has_no_start() -> None:
    assert survey(segment()[:-1]).start is None
    assert survey(b"").start is None


def test_a_finished_snapshot_ends_where_its_end_does() -> None:
    data = segment(BEGIN, mark(1), mark(2), end(2))
    assert survey(data + encode(mark(3))).snapshot_end == len(data)
    assert survey(segment(BEGIN, end(0))).snapshot_end == len(segment(BEGIN, end(0)))
    assert survey(data[:-1]).snapshot_end == 0
    assert survey(segment(BEGIN)).snapshot_end == 0


@pytest.mark.parametrize(
    ("records", "text"),
    [
        ([BEGIN, mark(1), end(2)], "an end that fits 1 records"),
        ([BEGIN, mark(1), Record(Op.SNAPSHOT_END)], "an end that fits 1 records"),
        ([end(0)], "no snapshot begun"),
        ([mark(1), BEGIN], "a snapshot only at a segment's start"),
        ([BEGIN, BEGIN], "a snapshot only at a segment's start"),
        ([BEGIN, mark(1), end(1), end(1)], "no snapshot begun"),
        ([mark(1), start_record(START)], "another segment's start"),
    ],
)
def test_records_that_cannot_stand_where_they_stand_are_refused(records: list[Record], text: str) -> None:
    with pytest.raises(ChainError, match=text):
        survey(segment(*records))
    with pytest.raises(ChainError, match=text):
        replay(segment(*records))


def test_a_segment_begins_with_its_start() -> None:
    with pytest.raises(ChainError, match="a segment start as the first record"):
        survey(encode(mark(1)))


def index_of(records: list[Record]) -> Record:
    return Record(Op.INDEX, ints=(0, len(records), sum(len(encode(record)) for record in records)))


def search(data: bytes, length: int | None = None, most: int = 1 << 30) -> tuple[int, int]:
    """Where a search finds the snapshot's end, and how many bytes it read for that."""
    one, read = SnapshotSearch(NAME, len(data) if length is None else length), 0
    while (wanted := one.wanted) is not None:
        piece = data[wanted.offset : wanted.offset + min(wanted.max_bytes, most)]
        read += len(piece)
        one.take(piece)
        assert one.wanted != wanted, "it moves on"
    return one.snapshot_end, read


@given(
    records=st.lists(plain_records, max_size=8),
    large=st.lists(st.integers(0, 300_000), max_size=3),
    after=st.lists(plain_records, max_size=3),
    cut=st.integers(0, 200),
    data=st.data(),
)
def test_a_search_by_headers_finds_the_same_end_as_a_survey_of_everything(
    records: list[Record], large: list[int], after: list[Record], cut: int, data: st.DataObject
) -> None:
    inside = data.draw(
        st.permutations([*records, *(Record(Op.STATE_BLOCK, strings=(bytes(size),)) for size in large)])
    )
    if data.draw(st.booleans()):
        begin, until = sorted(data.draw(st.tuples(*[st.integers(0, len(inside))] * 2)))
        inside.insert(begin, index_of(inside[begin:until]))
    whole = segment(BEGIN, *inside, end(len(inside)), *after)
    length = max(len(whole) - cut, len(segment(BEGIN)))
    assert search(whole, length)[0] == survey(whole[:length]).snapshot_end
    assert search(whole, length, most=100)[0] == survey(whole[:length]).snapshot_end


def test_a_search_does_not_read_what_an_index_describes() -> None:
    blocks = [Record(Op.STATE_BLOCK, strings=(bytes(100_000),))] * 40
    whole = segment(BEGIN, index_of(blocks), *blocks, end(41), mark(1))
    found, read = search(whole)
    assert found == len(whole) - len(encode(mark(1)))
    assert read < 200_000


def test_a_search_refuses_an_index_that_leads_elsewhere() -> None:
    blocks = [mark(1)] * 3
    for ints in ((0, 2, 3 * len(encode(mark(1)))), (0, 3, len(encode(mark(1)))), (0, 3, 1)):
        with pytest.raises((ChainError, CorruptRecordError)):
            search(segment(BEGIN, Record(Op.INDEX, ints=ints), *blocks, end(4), mark(2)))


def test_a_search_reads_little_of_large_records() -> None:
    blocks = [Record(Op.STATE_BLOCK, strings=(bytes(5_000_000),))] * 4
    whole = segment(BEGIN, *blocks, end(4), mark(1))
    found, read = search(whole)
    assert found == len(whole) - len(encode(mark(1)))
    assert read < 500_000


def test_a_search_refuses_what_a_survey_refuses() -> None:
    with pytest.raises(ChainError, match="an end that fits 1 records"):
        search(segment(BEGIN, mark(1), end(2)))
    for flipped in (3, 12, 20):
        data = bytearray(segment(BEGIN, mark(1), end(1)))
        data[len(segment(BEGIN)) + flipped] ^= 1
        with pytest.raises(CorruptRecordError):
            search(bytes(data))
    data = bytearray(segment(BEGIN, mark(1), end(1)))
    data[-9] ^= 1
    with pytest.raises(CorruptRecordError, match="record digest"):
        search(bytes(data))


def span_of(data: bytes, snapshot_end: int = 0) -> SegmentSpan:
    return SegmentSpan(NAME, 0, len(data), prefix_digest(data), snapshot_end)


def replay(data: bytes, span: SegmentSpan | None = None, piece: int = 100, **options: bool) -> list[Record]:
    one = SpanReplay(span or span_of(data), **options)
    records = [record for i in range(0, len(data), piece) for _, record in one.feed(data[i : i + piece])]
    one.finish()
    return records


@given(records=st.lists(plain_records, max_size=6), piece=st.integers(1, 700))
def test_a_replay_gives_each_record_with_the_position_just_past_it(records: list[Record], piece: int) -> None:
    data = segment(*records)
    one = SpanReplay(span_of(data))
    steps = [step for i in range(0, len(data), piece) for step in one.feed(data[i : i + piece])]
    one.finish()
    ends = [len(segment(*records[:count])) for count in range(len(records) + 1)]
    assert [record for _, record in steps] == [start_record(START), *records]
    assert [position for position, _ in steps] == [Position(3, *at(data, boundary)) for boundary in ends]


@given(
    records=st.lists(plain_records, max_size=6),
    snapshot=st.sampled_from(["none", "finished", "unfinished"]),
    piece=st.integers(1, 700),
    base=st.sampled_from([0, 5000]),
)
def test_the_fast_way_gives_the_same_records_and_checks_the_same(
    records: list[Record], snapshot: str, piece: int, base: int
) -> None:
    below = Predecessor(SegmentStart("J", 2, 0, None, 1, "00" * 16).name, base, 9) if base else None
    start = SegmentStart("J", 3, base, below, 1, "00" * 16)
    copies = {"none": [], "finished": [BEGIN, *records, end(len(records))], "unfinished": [BEGIN, *records]}
    copied = b"".join(map(encode, (start_record(start), *copies[snapshot])))
    data = copied + b"".join(map(encode, records))
    snapshot_end = len(copied) if snapshot == "finished" else 0
    span = SegmentSpan(start.name, base, len(data), prefix_digest(data), snapshot_end)
    pieces = [data[i : i + piece] for i in range(0, len(data), piece)]
    slow, fast = SpanReplay(span), SpanReplay(span)
    steps = [step for one in pieces for step in slow.feed(one)]
    assert [one for part in pieces for one in fast.feed_plain(part)] == [
        (position.size, record) for position, record in steps
    ]
    slow.finish()
    fast.finish()
    wrong = SpanReplay(SegmentSpan(start.name, base, len(data), span.digest ^ 1, snapshot_end))
    for one in pieces:
        wrong.feed_plain(one)
    with pytest.raises(ChainError, match="prefix digest"):
        wrong.finish()


def test_a_replay_leaves_out_a_snapshot_that_was_not_finished_and_keeps_one_that_was() -> None:
    open_ended = segment(BEGIN, mark(1), mark(2))
    assert replay(open_ended) == [start_record(START)]
    finished = segment(BEGIN, mark(1), end(1))
    data = finished + encode(mark(2))
    assert replay(data, span_of(data, len(finished)))[1:] == [BEGIN, mark(1), end(1), mark(2)]


def test_a_replay_checks_length_and_digest_at_the_spans_end() -> None:
    data = segment(mark(1))
    with pytest.raises(ChainError, match="bytes, as the chain says"):
        replay(data[:-40], span_of(data))
    with pytest.raises(ChainError, match="prefix digest 0000000000000007"):
        replay(data, SegmentSpan(NAME, 0, len(data), 7))
    with pytest.raises(TornRecordError):
        replay(data[:-1])
    with pytest.raises(StopNotFoundError, match="lies inside the record that begins at"):
        replay(data[:-1], stopped=True)
    broken = bytearray(data)
    broken[-9] ^= 1
    with pytest.raises(CorruptRecordError):
        replay(bytes(broken))


def test_a_fold_stops_exactly_at_the_given_size() -> None:
    steps = [(Position(1, size, size), mark(size)) for size in (10, 20, 30)]

    def add(state: tuple[int, ...], record: Record) -> tuple[int, ...]:
        return (*state, record.ints[0])

    assert fold(steps, (), add) == (10, 20, 30)
    assert fold(steps, (), add, stop=steps[1][0]) == (10, 20)
    assert fold(steps, (), add, stop=ORIGIN) == ()
    for stop in (Position(1, 15, 15), Position(2, 20, 20), Position(1, 40, 40)):
        with pytest.raises(StopNotFoundError, match="no record ends at"):
            fold(steps, (), add, stop=stop)


def test_a_chain_cut_at_a_position_keeps_what_lies_below() -> None:
    spans = (
        SegmentSpan("J.0000000000000001.0000000000000064", 100, 50, 1, 20),
        SegmentSpan("J.0000000000000002.0000000000000096", 150, 30, 2),
    )
    chain = ChainState("J", spans, spans[-1].end)
    assert chain.bytes == 80
    assert chain.snapshot_size == 120
    assert chain.up_to(Position(2, 180, 2)) == chain
    assert chain.up_to(Position(1, 150, 1)).segments == spans[:1]
    cut = chain.up_to(Position(1, 130, 9))
    assert cut.segments == (SegmentSpan(spans[0].name, 100, 30, 9, 20),)
    assert cut.end == Position(1, 130, 9)
    with pytest.raises(StopNotFoundError, match="inside the snapshot"):
        chain.up_to(Position(1, 110, 9))
    with pytest.raises(StopNotFoundError, match="reaches from 1:100 to 2:180"):
        chain.up_to(Position(1, 90, 9))
    with pytest.raises(StopNotFoundError, match="has digest"):
        chain.up_to(Position(2, 180, 3))
    assert chain.up_to(Position(1, 120, 9)).segments == (SegmentSpan(spans[0].name, 100, 20, 9, 20),)
    assert chain.up_to(ORIGIN) == ChainState("J", (), ORIGIN)
    whole = (SegmentSpan("J.0000000000000001.0000000000000000", 0, 50, 1, 20),)
    cut_inside = ChainState("J", whole, whole[-1].end).up_to(Position(1, 10, 9))
    assert cut_inside.segments == (SegmentSpan(whole[0].name, 0, 10, 9),), "its snapshot is not finished"
    for other in (Position(2, 150, 1), Position(1, 151, 1), Position(2, 181, 2), Position(1, 100, 1)):
        assert not chain.holds(other)
        with pytest.raises(StopNotFoundError, match="is not in chain J"):
            chain.up_to(other)


@pytest.mark.parametrize("end", [None, ORIGIN])
def test_a_chain_with_nothing_in_it_holds_no_position_but_the_origin(end: Position | None) -> None:
    chain = ChainState("J", (), end, unproved=7, claimed=9)
    assert (chain.bytes, chain.snapshot_size, chain.holds(ORIGIN)) == (0, 0, True)
    with pytest.raises(StopNotFoundError, match="which is empty; 7 more bytes of chain J"):
        chain.up_to(Position(1, 1, 0))
    report_unproved("d", chain)  # of a take-over that did not complete: only a warning
    report_unproved("d", msgspec.structs.replace(chain, unproved=0, claimed=0))
    with pytest.raises(QuorumUnavailableError, match="d: 7 more bytes of chain J"):
        report_unproved("d", msgspec.structs.replace(chain, claimed=0))


chains = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,93}", fullmatch=True).filter(
    lambda name: parse_segment_name(name) is None
)
FIRST = SegmentStart("state", 3, 0, None, 1, "00" * 16)
BELOW = Predecessor("state.0000000000000003.0000000000000000", 100, 7)
SECOND = SegmentStart("state", 3, 100, BELOW, 1, "00" * 16)


@given(chains, st.integers(1, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_a_segments_name_is_an_objects_name_and_comes_apart_again(chain: str, epoch: int, base: int) -> None:
    name = segment_name(chain, epoch, base)
    assert is_name(name)
    assert parse_segment_name(name) == SegmentName(chain, epoch, base)


@given(st.lists(st.tuples(st.integers(1, 2**64 - 1), st.integers(0, 2**64 - 1)), min_size=2))
def test_names_of_one_chain_sort_as_their_epochs_and_bases_do(pairs: list[tuple[int, int]]) -> None:
    assert sorted(segment_name("c", *pair) for pair in pairs) == [
        segment_name("c", *pair) for pair in sorted(pairs)
    ]


@pytest.mark.parametrize(
    "name",
    [
        "state",
        "state.3.0",
        "state.0000000000000003.000000000000000G",
        "state.000000000000000A.0000000000000000",
        ".0000000000000003.0000000000000000",
        "a" * 95 + ".0000000000000003.0000000000000000",
        "state.0000000000000003.0000000000000000\n",
    ],
)
def test_other_names_are_not_segments(name: str) -> None:
    assert parse_segment_name(name) is None


def test_the_longest_name_of_a_chain_is_that_of_the_longest_segment() -> None:
    longest = "a" * 94
    assert check_chain_name(longest) == longest
    assert len(segment_name(longest, 2**64 - 1, 2**64 - 1)) == 128
    assert parse_segment_name(segment_name(longest, 1, 0)) == SegmentName(longest, 1, 0)


@pytest.mark.parametrize("chain", ["", "../x", "a" * 95, "c.0000000000000003.0000000000000000"])
def test_a_chains_name_leaves_room_and_is_no_segments_name(chain: str) -> None:
    with pytest.raises(BadNameError):
        check_chain_name(chain)


@pytest.mark.parametrize(("epoch", "base"), [(0, 0), (1, -1), (2**64, 0), (1, 2**64)])
def test_epochs_count_from_one_and_both_have_64_bits(epoch: int, base: int) -> None:
    with pytest.raises(LocalProtocolError):
        segment_name("state", epoch, base)


@pytest.mark.parametrize("start", [FIRST, SECOND])
def test_a_start_record_says_all_that_was_put_in(start: SegmentStart) -> None:
    assert parse_start(start_record(start), start.name) == start


def test_digests_and_offsets_of_64_bits_survive_the_json() -> None:
    below = Predecessor("c.0000000000000001.0000000000000001", 2**64 - 2, 2**64 - 1)
    start = SegmentStart("c", 2**64 - 1, 2**64 - 1, below, 2**64 - 1, "ff" * 16)
    assert parse_start(start_record(start), start.name) == start


def test_fields_of_a_newer_release_are_ignored() -> None:
    record = start_record(FIRST)
    newer = record.strings[0][:-1] + b',"compression":"none"}'
    assert parse_start(Record(Op.SEGMENT_START, strings=(newer,)), FIRST.name) == FIRST


def changed(start: SegmentStart, **fields: object) -> Record:
    return start_record(msgspec.structs.replace(start, **fields))


@pytest.mark.parametrize(
    ("record", "name", "text"),
    [
        (Record(Op.MARK), FIRST.name, "a SEGMENT_START record"),
        (Record(Op.SEGMENT_START), FIRST.name, "a SEGMENT_START record"),
        (Record(Op.CHECKPOINT, strings=start_record(FIRST).strings), FIRST.name, "a SEGMENT_START record"),
        (
            Record(Op.SEGMENT_START, ints=(1,), strings=start_record(FIRST).strings),
            FIRST.name,
            "a SEGMENT_START record",
        ),
        (
            Record(Op.SEGMENT_START, strings=start_record(FIRST).strings * 2),
            FIRST.name,
            "a SEGMENT_START record",
        ),
        (Record(Op.SEGMENT_START, strings=(b"{}",)), FIRST.name, "JSON of a segment start"),
        (Record(Op.SEGMENT_START, strings=(b"\xff",)), FIRST.name, "JSON of a segment start"),
        (Record(Op.SEGMENT_START, strings=(b"[" * 5000,)), FIRST.name, "JSON of a segment start"),
        (start_record(FIRST), SECOND.name, "the start record of this segment"),
        (changed(SECOND, predecessor=None), SECOND.name, "a predecessor below base 100"),
        (
            changed(SECOND, predecessor=Predecessor(SECOND.name, 100, 7)),
            SECOND.name,
            "an earlier epoch or base",
        ),
        (
            changed(SECOND, predecessor=Predecessor("state.0000000000000004.0000000000000000", 100, 7)),
            SECOND.name,
            "an earlier epoch or base",
        ),
        (
            changed(SECOND, predecessor=Predecessor("steps.0000000000000001.0000000000000000", 100, 7)),
            SECOND.name,
            "a predecessor in chain state",
        ),
        (
            changed(SECOND, predecessor=Predecessor("state", 100, 7)),
            SECOND.name,
            "a predecessor in chain state",
        ),
        (changed(SECOND, predecessor=Predecessor(BELOW.name, 99, 7)), SECOND.name, "ends at base 100"),
        (changed(SECOND, predecessor=Predecessor(BELOW.name, 0, 7)), SECOND.name, "ends at base 100"),
        (changed(SECOND, predecessor=Predecessor(BELOW.name, 101, 7)), SECOND.name, "ends at base 100"),
        (
            changed(FIRST, predecessor=Predecessor("state.0000000000000002.0000000000000000", 0, 7)),
            FIRST.name,
            "ends at base 0",
        ),
        (changed(FIRST, base=1), f"{FIRST.name[:-1]}1", "a predecessor below base 1"),
        (changed(SECOND, released=(3, 100)), SECOND.name, "a release of segments below an earlier one"),
        (changed(SECOND, released=(4, 0)), SECOND.name, "a release of segments below an earlier one"),
        (changed(SECOND, released=(0, 0)), SECOND.name, "a release of segments below an earlier one"),
        (changed(SECOND, released=(-1, 9)), SECOND.name, "a release of segments below an earlier one"),
    ],
)
def test_a_start_that_breaks_a_rule_is_refused_by_name(record: Record, name: str, text: str) -> None:
    with pytest.raises(ChainError, match=text) as caught:
        parse_start(record, name)
    assert caught.value.where == name


@pytest.mark.parametrize("released", [(0, 1), (1, 0), (3, 99)])
def test_a_start_may_release_what_lies_below_any_earlier_segment(released: tuple[int, int]) -> None:
    start = msgspec.structs.replace(SECOND, released=released)
    assert parse_start(start_record(start), SECOND.name).released == released


def test_a_segment_may_stand_on_an_earlier_one_of_its_epoch_and_release_nothing() -> None:
    same = Predecessor("state.0000000000000003.0000000000000063", 1, 7)
    start = msgspec.structs.replace(SECOND, predecessor=same)
    assert parse_start(start_record(start), SECOND.name) == start
    assert "released" not in start_record(start).strings[0].decode()


floors = st.dictionaries(st.sampled_from("abc"), st.tuples(st.integers(1, 3), st.integers(0, 3)))


@given(st.lists(floors, max_size=3))
def test_the_floor_that_several_need_is_the_lowest_of_those_that_all_name(several: list[Floors]) -> None:
    found = lowest(several)
    for chain in "abc":
        named = [each[chain] for each in several if chain in each]
        assert found.get(chain) == (min(named) if named and len(named) == len(several) else None)
    assert list(found) == sorted(found), "the same order everywhere, for it is written down"


@given(floors, st.sampled_from("abcd"), st.integers(1, 3), st.integers(0, 3))
def test_garbage_is_what_lies_below_its_chains_floor(
    named: Floors, chain: str, epoch: int, base: int
) -> None:
    is_garbage = chain in named and (epoch, base) < named[chain]
    assert below(named)(segment_name(chain, epoch, base)) == is_garbage
    assert not below(named)(chain)


def test_the_position_that_a_segment_stands_on() -> None:
    assert SECOND.end_below == Position(3, 100, 7)
    assert FIRST.end_below == ORIGIN


def test_a_position_lies_in_the_segment_with_the_largest_base_below_it() -> None:
    bases = [0, 100, 250]
    assert base_of(Position(3, 100, 0), bases) == 0
    assert base_of(Position(3, 101, 0), bases) == 100
    assert base_of(Position(3, 900, 0), bases) == 250
    assert base_of(Position(3, 5, 0), [10]) is None
    assert base_of(ORIGIN, bases) is None


@given(st.builds(Position, *[st.integers(0, 2**64 - 1)] * 3))
def test_a_position_is_the_same_after_json(position: Position) -> None:
    assert msgspec.json.decode(msgspec.json.encode(position), type=Position) == position


def test_both_ends_of_a_gap_are_needed() -> None:
    is_unneeded = below_or_within({"c": (1, 5)}, {"c": [((2, 0), (4, 0))]})
    orders = [(1, 4), (1, 5), (2, 0), (2, 1), (3, 9), (4, 0), (5, 0)]
    assert [order for order in orders if is_unneeded(segment_name("c", *order))] == [(1, 4), (2, 1), (3, 9)]
    assert not is_unneeded(segment_name("d", 3, 0))
    assert not is_unneeded("other")


class BeingRemoved:
    """A store whose object is being removed when it is read from an offset on, so often; then it is gone."""

    def __init__(self, offset: int, times: int) -> None:
        self._offset, self._times = offset, times

    async def read(self, directory: str, name: str, offset: int, max_bytes: int) -> bytes:
        del directory, name
        if offset < self._offset:
            return bytes(min(max_bytes, self._offset - offset))
        self._times -= 1
        if self._times >= 0:
            raise BusyError("x is being removed")
        raise NotFoundError("there is no x")

    async def stream(self, directory: str, name: str, offset: int, end: int) -> AsyncGenerator[bytes]:
        while offset < end:
            yield (data := await self.read(directory, name, offset, 2))
            offset += len(data)


@pytest.mark.trio
@pytest.mark.parametrize(("times", "ends"), [(1, NotFoundError), (3, NotFoundError), (99, BusyError)])
async def test_a_segment_that_is_removed_while_it_is_read_is_gone_and_not_busy(
    autojump_clock: MockClock, times: int, ends: type[Exception]
) -> None:
    """Readers of a chain that is trimmed expect NotFoundError, and list its segments again."""
    del autojump_clock
    reading = ChainSource(cast("Any", BeingRemoved(4, times)), "d")
    with pytest.raises(ends):
        [chunk async for chunk in reading.chunks("x", 8)]


AWAY = QuorumUnavailableError("it is away", [])


class Members:
    """A claim whose members answer with these bytes, or with these errors."""

    def __init__(self, **answers: bytes | Exception) -> None:
        self._answers = answers

    async def read(self, name: str, offset: int, max_bytes: int, *, member: bytes | None = None) -> bytes:
        del name
        assert member is not None
        answer = self._answers[member.decode()]
        if isinstance(answer, Exception):
            raise answer
        return answer[offset : offset + max_bytes]


def source(**answers: bytes | Exception) -> tuple[ChainSource, list[bytes]]:
    return ChainSource(cast("Any", Members(**answers))), [name.encode() for name in answers]


async def chunks(length: int, **answers: bytes | Exception) -> bytes:
    reading, members = source(**answers)
    return b"".join([chunk async for chunk in reading.chunks("x", length, cast("Any", members))])


@pytest.mark.trio
async def test_what_one_member_lacks_another_gives() -> None:
    assert await chunks(6, a=b"abc", b=b"abcdef") == b"abcdef"
    assert await chunks(6, a=CorruptError("rotten"), b=b"abcdef") == b"abcdef"
    assert await chunks(6, a=AWAY, b=b"abcdef") == b"abcdef"


@pytest.mark.trio
@pytest.mark.parametrize("absence", [AWAY, BrokenConnectionError("reset")])
async def test_bytes_that_a_member_may_have_that_is_unavailable_are_not_lost(absence: Exception) -> None:
    """Found by the simulator, seed 464: it had answered the claim, and lost its power before it was read."""
    for answers in ({"a": absence, "b": b"abc"}, {"a": b"abc", "b": absence}):
        with pytest.raises(QuorumUnavailableError, match="x from byte 3 on may be on a member"):
            await chunks(6, **answers)


@pytest.mark.trio
async def test_bytes_that_nobody_has_are_lost_and_a_fence_ends_everything() -> None:
    with pytest.raises(LostBytesError, match="x should have 6 bytes and ends at 3"):
        await chunks(6, a=b"abc", b=b"ab")
    with pytest.raises(LostBytesError):
        await chunks(6, a=b"abc", b=CorruptError("rotten"))
    with pytest.raises(CorruptError):
        await chunks(6, a=CorruptError("rotten"), b=CorruptError("rotten too"))
    with pytest.raises(FencedError):
        await chunks(6, a=FencedError("superseded"), b=b"abcdef")
