"""Entry points of an input: clocks, the horizon, settings, the list of origins, and the chain of an origin.
`tests/dataflow/entry_model.py` plays whole histories.
"""

import msgspec
import pytest

from checkpoint import limits
from checkpoint.chains.input_log import InputFollower, InputLog, last_recorded
from checkpoint.core.records.consumers import Register, decode_register, encode_register, with_entry
from checkpoint.core.records.inputs import (
    AttendedOrigins,
    ClockCheck,
    EntryOrigins,
    EntrySettings,
    InputPart,
    InputPiece,
    InputSequence,
    OriginMark,
    OriginTime,
    checked_settings,
    decode_input,
    decode_mark,
    encode_mark,
    encode_part,
    may_stamp,
)
from checkpoint.errors import EntryRefusedError
from dos_client import Store, open_store
from dos_protocol.errors import BadNameError, CorruptDataError
from dos_server.testing import memory_store
from journal import Op, Record

SECOND = 1_000_000


def measured(
    check: ClockCheck, peer: str, *, offset_s: float, rtt_s: float = 0.02, at_s: float = 100.0
) -> None:
    """This clock shows `at_s` seconds; the peer's is `offset_s` behind it."""
    middle = round((at_s - rtt_s / 2 - offset_s) * SECOND)
    check.measured(peer, sent_s=at_s - rtt_s, received_s=at_s, peer_us=middle)


def test_a_clock_is_good_within_the_limit_of_a_majority() -> None:
    check = ClockCheck(["a", "b"], 250_000)
    assert not check.is_good(100 * SECOND, 100.0), "nothing is known of the others"
    measured(check, "a", offset_s=0.1)
    assert check.is_good(100 * SECOND, 100.0), "two of three"
    offset_us, bound_us = check.errors(100 * SECOND, 100.0)["a"]
    assert (offset_us, bound_us // 10) == (100_000, 11_000)
    measured(check, "b", offset_s=-5)
    assert check.is_good(100 * SECOND, 100.0), "b is wrong"
    measured(check, "a", offset_s=5)
    assert not check.is_good(100 * SECOND, 100.0)
    assert ClockCheck([], 250_000).is_good(0, 0.0), "alone: unverified"


def test_a_step_of_this_clock_and_the_age_of_a_measurement_count() -> None:
    check = ClockCheck(["a", "b"], 250_000)
    measured(check, "a", offset_s=0)
    assert check.is_good(110 * SECOND, 110.0)
    assert not check.is_good(111 * SECOND, 110.0), "it was set forward by a second"
    assert not check.is_good(2_100 * SECOND, 2_100.0), "two clocks may part by 0.4 s in 2,000 s"
    measured(check, "a", offset_s=0, rtt_s=0.4, at_s=101.0)
    assert check.errors(101 * SECOND, 101.0)["a"].bound_us < 11_000, "the better measurement stays"
    measured(check, "a", offset_s=3, rtt_s=0.4, at_s=101.0)
    assert check.errors(101 * SECOND, 101.0)["a"].bound_us > 3_000_000, "unless both cannot be true"


def test_times_stop_at_the_horizon_above_the_least_mark() -> None:
    horizon = limits.entry_horizon_us
    assert may_stamp(10, {}, ["p"]), "no reader holds anything yet"
    assert may_stamp(horizon + 5, {"p": 5, "q": 9}, ["p", "q"])
    assert not may_stamp(horizon + 6, {"p": 5, "q": 9}, ["p", "q"])
    assert may_stamp(horizon + 6, {"other": 5, "q": 9}, ["q"]), "only origins of the list count"


def test_marks_are_the_multiples_minus_one_and_lag_by_the_lateness() -> None:
    time = OriginTime(EntrySettings(marks_every_us=100), 1, OriginMark(0, 1, 1, 0))
    first = time.next_mark(1_234, version=1)
    assert first is not None
    assert first.mark == 1_199
    assert time.next_mark(1_299, version=1) is None
    again = time.next_mark(1_299, version=3, restated=True)
    assert again is not None
    assert (again.mark, again.version) == (1_199, 3)
    assert time.stamp(1_000) == 1_200, "above the mark, though the clock went back"
    late = OriginTime(EntrySettings(marks_every_us=100, lateness_us=50), 1, OriginMark(0, 1, 1, 0))
    assert late.next_mark(1_249, version=1) == OriginMark(1_099, 1, 1, 0)
    assert (late.is_late(1_099), late.is_late(1_100)) == (True, False)


def test_an_origin_is_unattended_when_its_chain_does_not_grow() -> None:
    watch = AttendedOrigins()
    watch.saw("p", 10, 0.0)
    watch.saw("q", 10, 0.0)
    watch.saw("p", 20, 2.0)
    watch.saw("q", 10, 2.9)
    assert watch.unattended(2.9) == []
    assert watch.unattended(3.0) == ["q"]
    watch.forget("q")
    assert watch.unattended(9.0) == ["p"]


def test_origins_keep_their_numbers_and_settings_never_change() -> None:
    origins = checked_settings(None, EntrySettings(time="when"))
    assert origins.settings.time == "when"
    both = origins.with_origin("p").with_origin("q").with_origin("p")
    assert (both.version, both.number("p"), both.number("q"), both.number("r")) == (2, 1, 2, 0)
    for again in (None, EntrySettings(time="when")):
        assert checked_settings(both, again) is both
    given = {"time": "at", "lateness_us": 7, "marks_every_us": 7}
    assert given.keys() == set(EntrySettings.__struct_fields__)
    for name, value in given.items():
        with pytest.raises(EntryRefusedError, match="this handle is served with"):
            checked_settings(both, msgspec.structs.replace(both.settings, **{name: value}))
    with pytest.raises(BadNameError):
        both.with_origin("p.q")
    full = EntryOrigins(
        settings=EntrySettings(), origins=tuple(f"p{at}" for at in range(limits.entry_origins_max))
    )
    with pytest.raises(EntryRefusedError, match="at most 10000 producer names"):
        full.with_origin("one-more")


def test_the_register_has_the_origins_in_version_3_and_is_as_before_without() -> None:
    assert encode_register(Register()) == b'{"version":1,"consumers":{},"rule":null}'
    register = with_entry(Register(), EntryOrigins(settings=EntrySettings()).with_origin("p"))
    text = encode_register(register)
    assert text == (
        b'{"version":1,"consumers":{},"rule":null,"entry":{"settings":'
        b'{"time":"at","lateness_us":null,"marks_every_us":1000000},"origins":["p"]}}'
    )
    assert decode_register([text], where="d", at=9) == register


# --- the chain of an origin -------------------------------------------------------------------------------


async def pieces_of(store: Store, at: InputPiece | None = None) -> list[InputPiece]:
    position, digest = (0, 0) if at is None else (at.end, at.digest)
    follower = InputFollower(store, "app", "orders", "p1", at=position, digest=digest)
    return [piece async for piece in follower.poll()]


def mark_at(mark: int, version: int = 1) -> OriginMark:
    return OriginMark(mark, version, 1, mark)


@pytest.mark.trio
async def test_a_claimant_finds_the_last_batch_its_time_and_the_last_mark() -> None:
    async with memory_store() as servers, open_store(servers.url) as store:
        log = await InputLog.open(store, "app", "orders", "p1")
        assert (log.origin_mark, log.last_time) == (None, 0)
        await log.append_mark(mark_at(99))
        await log.append([(1, b"a"), (1, b"b")], number=1, mark=b"one", time_us=150, late=b"too late")
        await log.append_mark(mark_at(199))
        await log.append([(1, b"c")], number=2, mark=b"two", time_us=250)
        await log.recorded(2)
        again = await InputLog.open(store, "app", "orders", "p1")
        assert again.origin_mark is not None
        assert (again.origin_mark.mark, again.origin_mark.batch, again.last_time) == (199, 1, 250)
        assert (again.last, again.last_mark) == (2, b"two")
        found = await pieces_of(store)
        assert [(piece.data, piece.late, piece.mark and piece.mark.mark) for piece in found] == [
            (b"", b"", 99),
            (b"a", b"", None),
            (b"b", b"too late", None),
            (b"", b"", 199),
            (b"c", b"", None),
        ]
        for at, piece in enumerate(found):
            assert await pieces_of(store, piece) == found[at + 1 :], "a reader continues at any piece"
        await log.aclose()
        await again.aclose()


@pytest.mark.trio
async def test_marks_alone_let_a_claimant_find_the_last_batch_in_the_newest_segment() -> None:
    async with memory_store() as servers, open_store(servers.url) as store:
        log = await InputLog.open(store, "app", "orders", "p1")
        await log.append_mark(mark_at(9))
        await log.append([(1, b"a")], number=1, mark=b"one", time_us=50)
        await log.recorded(1)
        for number in range(2, 5):  # each claim begins a segment
            log = await InputLog.open(store, "app", "orders", "p1")
            assert (log.last, log.last_mark, log.last_time) == (1, b"one", 50)
            await log.append_mark(log.origin_mark._replace(mark=10 * number, last_time=log.last_time))  # type: ignore[union-attr]
            await log.all_synced()
            await log.aclose()
        assert (await last_recorded(store, "app", "orders", "p1")).batch == 1
        log = await InputLog.open(store, "app", "orders", "p1")
        await log.append([(1, b"b")], number=2, time_us=60)
        await log.recorded(2)
        assert log.origin_mark is not None
        marks = [piece.mark.mark for piece in await pieces_of(store) if piece.mark is not None]
        assert marks == [9, 20, 30, 40, 40], "the last one is repeated where its segment begins"
        await log.aclose()


def test_parts_before_a_mark_that_complete_no_batch_do_not_count() -> None:
    line = InputSequence("p")
    part = InputPart(1, 0, False, 1, 0, 0, b"half")
    assert line.add(part, 0, 10) == []
    assert line.add(OriginMark(5, 1, 1, 0), 10, 20) == [
        InputPiece("p", 10, 20, 0, 0, b"", mark=OriginMark(5, 1, 1, 0))
    ]
    whole = InputPart(1, 0, True, 1, 0, 0, b"whole", time_us=7)
    pieces = line.add(whole, 20, 30)
    assert [one.data for one in pieces if isinstance(one, InputPiece)] == [b"whole"]
    assert line.last_time == 7
    with pytest.raises(CorruptDataError, match="a mark after batch 1"):
        line.add(OriginMark(9, 1, 1, 0), 30, 40)


def test_records_of_entry_points_are_decoded_and_older_ones_too() -> None:
    for part in (
        InputPart(7, 0, True, 3, 1 << 63, 5, b"rows", b"mark"),
        InputPart(7, 0, True, 3, 1 << 63, 5, b"rows", b"mark", 1 << 50, b"late"),
    ):
        arguments = encode_part(part)
        record = Record(Op.INPUT, ints=arguments.ints, strings=arguments.strings)
        assert decode_input(record, where="d", at=9) == part
    assert len(encode_part(InputPart(7, 0, True, 3, 0, 5, b"rows")).ints) == 6, "as before there were any"
    mark = OriginMark(1 << 50, 3, 2, 1 << 49, 7, 1 << 63, 5, b"mark")
    arguments = encode_mark(mark)
    assert decode_mark(*arguments, where="d", at=9) == mark
    for ints in (arguments.ints[:6], (9, 1, 2, 0, 0, 0, 0), (9, 1, 0, 0, 0, 0, 0)):
        with pytest.raises(CorruptDataError, match="a mark of 7 ints"):
            decode_mark(ints, arguments.strings, where="d", at=9)
