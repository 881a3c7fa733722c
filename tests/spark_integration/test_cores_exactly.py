"""Pure cores against what they mean, written out: handed bytes, admission, frames, filters, options."""

import operator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dos_client import BadUrlError
from dos_protocol.errors import DosError
from spark_integration.core.framing import PrefixFramer
from spark_integration.core.offsets import BatchAdmission, BatchLimits, SplitPoint, StreamPiece
from spark_integration.core.options import parse_options, url_of
from spark_integration.core.row_filter import ColumnCondition, parse_filter, passing
from spark_integration.errors import BadOptionError
from spark_integration.reading.chains import RecentBytes


@given(
    st.integers(1, 6), st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 1), st.binary(max_size=5)))
)
def test_bytes_that_are_given_are_those_that_were_taken_and_the_last_ones_are(
    keep: int, taken: list[tuple[str, int, bytes]]
) -> None:
    recent, name, at, whole = RecentBytes(keep), "", 0, b""
    for other, skipped, data in taken:
        if other != name or skipped:
            name, whole, begun = other, b"", at + skipped
            at = begun
        recent.add(name, at, data)
        at, whole = at + len(data), whole + data
        begin = at - len(whole)
        for first in range(begin - 1, at + 1):
            given_ = recent.get(name, first, at)
            if given_ is not None:
                assert first >= begin
                assert given_ == whole[first - begin :]
            else:
                assert first < begin or at - first > keep, "so many of the last bytes are always here"
        assert recent.get(name, begin, at + 1) is None
        assert recent.get("other", begin, at) is None
    assert len(recent._data) <= keep + 10, "no more is kept than was asked for and came in two pieces"


def admitted(splits: dict[str, list[StreamPiece]], limits: BatchLimits) -> tuple[dict[str, int], list[str]]:
    """How many of each split are taken, and of which splits was asked."""
    admission, at, asked = BatchAdmission(list(splits), limits), dict.fromkeys(splits, 0), []
    while (split := admission.next_split()) is not None:
        asked.append(split)
        admission.offer(split, splits[split][at[split]] if at[split] < len(splits[split]) else None)
        at[split] += 1
    taken = {one: 1 + splits[one].index(piece) for one, piece in admission.taken.items()}
    return taken, asked


pieces = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 9)), max_size=5)


@given(
    st.dictionaries(st.sampled_from("cab"), pieces),
    st.integers(1, 6) | st.none(),
    st.integers(1, 6) | st.none(),
)
def test_a_micro_batch_is_the_oldest_pieces_up_to_its_limits(
    given_: dict[str, list[tuple[int, int, int]]], rows: int | None, size: int | None
) -> None:
    splits = {
        split: [
            StreamPiece(SplitPoint(1, index + 1), r, b, order) for index, (r, b, order) in enumerate(ones)
        ]
        for split, ones in given_.items()
    }
    heads, taken, used_rows, used_bytes = dict.fromkeys(splits, 0), dict[str, int](), 0, 0
    while True:
        there = [
            (ones[heads[split]].order, split) for split, ones in splits.items() if heads[split] < len(ones)
        ]
        if not there:
            break
        _, split = min(there)
        piece = splits[split][heads[split]]
        over = (rows is not None and used_rows + piece.rows > rows) or (
            size is not None and used_bytes + piece.bytes > size
        )
        if over and taken:
            break
        used_rows, used_bytes = used_rows + piece.rows, used_bytes + piece.bytes
        heads[split] += 1
        taken[split] = heads[split]
    found, asked = admitted(splits, BatchLimits(rows, size))
    assert found == taken
    assert asked[: len(splits)] == sorted(splits), "each is looked at before any is chosen"


@given(st.lists(st.binary(max_size=3)), st.lists(st.integers(0, 40)))
def test_a_record_ends_as_soon_as_its_last_byte_exists(records: list[bytes], cuts: list[int]) -> None:
    data = b"".join(len(one).to_bytes(4, "big") + one for one in records)
    due, at = [], 0
    for one in records:
        at += 4 + len(one)
        due.append(at)
    framer, found, before = PrefixFramer("o", 0), [], 0
    for cut in [*sorted(cut for cut in cuts if cut < len(data)), len(data)]:
        found += framer.feed(data[before:cut])
        before = cut
        assert found == [end for end in due if end <= cut]


NUMBERS = pa.record_batch([pa.array([1, 2, 3, None]), pa.array(["ab", "b", "ba", None])], ["n", "s"])
MEANS = {
    "=": operator.eq, "<>": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge,
}  # fmt: skip


@pytest.mark.parametrize("sign", MEANS)
def test_comparisons_mean_what_they_say_at_the_boundary_too(sign: str) -> None:
    (one,) = parse_filter(f"n {sign} 2")
    assert passing(NUMBERS, [one]).column("n").to_pylist() == [n for n in (1, 2, 3) if MEANS[sign](n, 2)]


@pytest.mark.parametrize(
    ("word", "found"), [("starts", ["b", "ba"]), ("ends", ["ab", "b"]), ("contains", ["ab", "b", "ba"])]
)
def test_texts_are_compared_as_spark_says(word: str, found: list[str]) -> None:
    assert passing(NUMBERS, [ColumnCondition("s", word, ("b",))]).column("s").to_pylist() == found
    rest = [one for one in ("ab", "b", "ba") if one not in found]
    negated = passing(NUMBERS, [ColumnCondition("s", word, ("b",), negated=True)])
    assert negated.column("s").to_pylist() == rest


@pytest.mark.parametrize("text", ["n ! 2", "n not = 2", "n like 2", "n 2"])
def test_what_is_no_comparison_is_refused(text: str) -> None:
    with pytest.raises(BadOptionError):
        parse_filter(text)


def test_numbers_are_not_compared_with_texts_or_times() -> None:
    with pytest.raises(BadOptionError, match="write it as text"):
        passing(NUMBERS, [ColumnCondition("s", "=", (1,))])
    days = pa.record_batch([pa.array([0], pa.timestamp("us"))], ["t"])
    with pytest.raises(BadOptionError, match="write it as text"):
        passing(days, [ColumnCondition("t", "=", (1,))])


def test_what_is_read_is_named_by_the_option_that_names_it() -> None:
    where = {"path": "dos://h/logs", "content": "lines"}
    assert parse_options(where).what == "objects logs/* (lines)"
    assert parse_options({**where, "objects": "a*"}).what == "objects logs/a* (lines)"
    assert parse_options({**where, "path": "dos://h/logs/b"}).what == "objects logs/b (lines)"
    with pytest.raises(DosError):
        parse_options({"path": "dos://h/app", "input": "no.name/at all"})


def test_a_url_must_name_what_is_read() -> None:
    with pytest.raises(BadOptionError, match="no URL was given"):
        url_of(None, "remedy")
    with pytest.raises(BadOptionError, match="names a store but nothing in it"):
        url_of("dos://h", "remedy")
    with pytest.raises(BadUrlError):
        url_of("http://h/a", "remedy")
    assert url_of("dos://h/a", "remedy").directory == "a"
