"""Segments: names, start records, and the rules that a start must keep."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dos_protocol.errors import BadNameError, LocalProtocolError
from dos_protocol.names import is_name
from journal.core.chain import (
    ORIGIN,
    Floors,
    Position,
    Predecessor,
    SegmentName,
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
from journal.core.errors import ChainError
from journal.core.record import Op, Record

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
