"""The pure parts of planning a stream: recent bytes, points on a chain, and the pieces of a micro-batch."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal import SegmentSpan
from spark_integration.core.offsets import BatchAdmission, BatchLimits, SplitPoint, StreamPiece
from spark_integration.reading.chains import RecentBytes
from spark_integration.reading.origin import follows, resumed


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 12), st.binary(max_size=9))), st.data())
def test_what_a_scan_read_last_is_given_as_it_was_or_not_at_all(
    reads: list[tuple[str, int, bytes]], data: st.DataObject
) -> None:
    recent, held = RecentBytes(8), {"a": b"", "b": b""}
    begins = {"a": 0, "b": 0}
    for name, skip, chunk in reads:
        begins[name] += skip if data.draw(st.booleans()) else 0
        offset = begins[name]
        recent.add(name, offset, chunk)
        held[name] = held[name].ljust(offset, b"?")[:offset] + chunk
        begins[name] = offset + len(chunk)
        for one in "ab":
            begin = data.draw(st.integers(0, len(held[one]) + 1))
            end = data.draw(st.integers(begin, len(held[one]) + 2))
            given_ = recent.get(one, begin, end)
            assert given_ is None or given_ == held[one][begin:end]
        last = max(offset, begins[name] - 8)
        assert recent.get(name, last, begins[name]) == held[name][last:], "what came last is there"


def span(epoch: int, begin: int, end: int) -> SegmentSpan:
    return SegmentSpan(f"out.{epoch:016x}.{begin:016x}", begin, end - begin, 0)


@pytest.mark.parametrize(
    ("spans", "start", "resumes"),
    [
        ([span(1, 0, 100)], SplitPoint(1, 40), None),
        ([span(1, 0, 100), span(2, 100, 150)], SplitPoint(1, 100), None),
        ([span(1, 0, 100), span(2, 100, 150)], SplitPoint(2, 150), None),
        ([span(2, 100, 150)], SplitPoint(1, 100), None),
        ([], SplitPoint(), None),
        ([span(1, 0, 50), span(2, 50, 150)], SplitPoint(1, 100), SplitPoint(2, 50)),
        ([span(2, 50, 100), span(3, 100, 150)], SplitPoint(1, 100), SplitPoint(2, 50)),
        ([span(2, 100, 150)], SplitPoint(1, 40), SplitPoint(2, 100)),
        ([span(1, 100, 150)], SplitPoint(1, 40), SplitPoint(1, 100)),
        ([span(1, 0, 50)], SplitPoint(1, 100), SplitPoint(1, 50)),
    ],
)
def test_a_point_is_on_a_chain_or_it_is_known_where_what_is_lost_ends(
    spans: list[SegmentSpan], start: SplitPoint, resumes: SplitPoint | None
) -> None:
    assert follows(spans, start) is (resumes is None)
    if resumes is not None:
        assert resumed(spans, start) == resumes


def test_no_split_starves_and_no_micro_batch_exceeds_its_limits_but_by_a_single_piece() -> None:
    rng = random.Random(7)
    for _ in range(200):
        pieces = {
            split: [
                StreamPiece(SplitPoint(0, i + 1), rng.randint(0, 5), rng.randint(1, 50), i) for i in range(9)
            ]
            for split in "abc"[: rng.randint(1, 3)]
        }
        limits = BatchLimits(rng.choice([None, 1, 6]), rng.choice([None, 1, 99]))
        admission = BatchAdmission(list(pieces), limits)
        given: dict[str, int] = dict.fromkeys(pieces, 0)
        while (split := admission.next_split()) is not None:
            at = given[split]
            admission.offer(split, pieces[split][at] if at < 9 else None)
            given[split] += 1
        taken = [
            p for s in pieces for p in pieces[s][: admission.taken[s].end.size if s in admission.taken else 0]
        ]
        assert taken, "progress"
        rows, size = sum(p.rows for p in taken), sum(p.bytes for p in taken)
        fits = (limits.rows is None or rows <= limits.rows) and (limits.bytes is None or size <= limits.bytes)
        assert fits or len(taken) == 1
        ends = [admission.taken[s].end.size if s in admission.taken else 0 for s in pieces]
        assert max(ends) - min(ends) <= 1, "the oldest first"
