"""The records that a bench compares, its budget and its percentiles."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dos_bench.core.figures import (
    LINK_BYTES,
    P99_SAMPLES_MIN,
    SAMPLES_MIN,
    WARM_UP,
    AppendMeter,
    BenchBudget,
    Comparison,
    RecordChain,
    percentile,
    row_of_times,
)
from dos_protocol.errors import CorruptDataError

BODY = bytes(range(200))
sizes = st.integers(LINK_BYTES, LINK_BYTES + len(BODY))


def written(size: int, count: int) -> tuple[RecordChain, list[bytes]]:
    chain = RecordChain(BODY, size)
    return chain, [chain.next() for _ in range(count)]


def compare(chain: RecordChain, data: bytes, piece: int) -> None:
    comparison = Comparison("d/o", BODY, chain)
    for at in range(0, len(data), piece):
        comparison.feed(data[at : at + piece])
    comparison.finish()


@given(sizes, st.integers(0, 9), st.integers(1, 300))
def test_what_was_written_is_equal_in_pieces_of_any_size(size: int, count: int, piece: int) -> None:
    chain, records = written(size, count)
    compare(chain, b"".join(records), piece)
    assert chain.size == size * count


@given(sizes, st.integers(1, 9), st.integers(1, 300), st.data())
def test_a_wrong_byte_is_found_where_it_is(size: int, count: int, piece: int, data: st.DataObject) -> None:
    chain, records = written(size, count)
    content = bytearray(b"".join(records))
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(
        CorruptDataError, match=rf"d/o at byte {at}: expected 0x.., found 0x{content[at]:02x}"
    ):
        compare(chain, bytes(content), piece)


@given(sizes, st.integers(2, 9), st.integers(1, 300), st.data())
def test_records_that_are_missing_repeated_or_exchanged_are_found(
    size: int, count: int, piece: int, data: st.DataObject
) -> None:
    chain, records = written(size, count)
    one, other = data.draw(st.tuples(*[st.integers(0, count - 1)] * 2).filter(lambda two: two[0] != two[1]))
    exchanged = records.copy()
    exchanged[one], exchanged[other] = records[other], records[one]
    missing = [*records[:one], *records[one + 1 :]]
    repeated = [*records, records[one]]
    for wrong in (exchanged, missing, repeated):
        with pytest.raises(CorruptDataError):
            compare(chain, b"".join(wrong), piece)


def test_bytes_that_are_missing_at_the_end_are_counted() -> None:
    chain, records = written(100, 3)
    with pytest.raises(CorruptDataError, match=re.escape("at byte 299: expected 300 bytes, found 299 bytes")):
        compare(chain, b"".join(records)[:-1], 64)


@given(st.lists(st.floats(0, 1e3), min_size=1).map(sorted), st.sampled_from([0.5, 0.99, 1.0]))
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(
    times: list[float], part: float
) -> None:
    found = percentile(times, part)
    assert found == min(one for one in times if sum(other <= one for other in times) >= part * len(times))


@given(
    st.sampled_from([0.0, 0.1, 3.0]),
    st.integers(0, 10_000),
    st.integers(1, 500),
    st.integers(1, 8),
    st.lists(st.floats(0.001, 2), min_size=1),
)
def test_a_measurement_has_no_time_of_its_warm_up_and_stays_in_its_bytes(
    seconds: float, limit: int, size: int, writers: int, lengths: list[float]
) -> None:
    """Several writers, each with one append at a time, until the meter is over or the lengths are used."""
    meter = AppendMeter(100.0, seconds, limit)
    warm_at: float | None = None
    flying: list[tuple[float, float]] = []
    expected, now, sent = [], 100.0, 0
    for length in lengths:
        while len(flying) < writers and meter.take(size):
            flying.append((now + length, now))
            sent += size
        if not flying:
            break
        flying.sort()
        now, begun = flying.pop(0)
        if warm_at is not None and begun >= warm_at:
            expected.append(now - begun)
        if warm_at is None and (now - 100.0 >= WARM_UP * seconds or sent >= WARM_UP * limit):
            warm_at = now
        meter.note(begun, now)
    assert meter.spent == sent <= limit
    assert meter.times_s == expected
    assert meter.measured_s <= max(0.0, now - (now if warm_at is None else warm_at))


def test_the_rate_is_of_what_ended_after_the_warm_up_and_before_the_end() -> None:
    meter, now = AppendMeter(0.0, 10.0, 1 << 30), 0.0
    while meter.take(100):
        meter.note(now, now + 0.5)
        now += 0.5
    assert (meter.times_s, meter.done, meter.measured_s) == ([0.5] * 18, 18, 9.0)
    row = row_of_times("append", meter, record_bytes=100, writers=1)
    assert (row.samples, row.p50_ms, row.p99_ms, row.max_ms) == (18, 500.0, None, 500.0)
    assert (row.per_s, row.bytes_per_s) == (2.0, 200.0)


def test_what_few_samples_do_not_show_is_left_out() -> None:
    few, more, many = (
        row_of_times("replay", AppendMeter.of([1.0] * count, count), record_bytes=9)
        for count in (SAMPLES_MIN - 1, P99_SAMPLES_MIN - 1, P99_SAMPLES_MIN)
    )
    assert (few.per_s, few.p99_ms, few.p50_ms) == (None, None, 1_000.0)
    assert (more.per_s, more.bytes_per_s, more.p99_ms) == (1.0, 9.0, None)
    assert many.p99_ms == 1_000.0
    none = row_of_times("append", AppendMeter(0.0, 1.0, 0))
    assert (none.samples, none.p50_ms, none.max_ms, none.per_s) == (0, None, None, None)


def test_what_a_measurement_leaves_is_for_the_others() -> None:
    budget = BenchBudget(9.0, 900, 3)
    assert budget.share() == (3.0, 300)
    budget.spend(1.0, 100)
    assert budget.share() == (4.0, 400)
    budget.spend(12.0, 800)
    assert budget.share() == (0.0, 0)
