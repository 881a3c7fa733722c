"""How old what a member lacks is, and the digests kept of what is no longer in memory."""

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from dos_client import init_store
from dos_client.core.window import AppendTimes, Milestones, milestone_range
from dos_client.limits import append_times_max, append_times_step_s, milestone_bytes
from tests.dos_client.support import ThreadServer, claimed, off, on, until, url_of

steps = st.lists(st.tuples(st.integers(0, 9), st.floats(0, 3)), max_size=60)


@given(steps, st.integers(0, 300))
def test_an_age_is_never_too_young_and_never_older_than_the_sample_before(
    appends: list[tuple[int, float]], offset: int
) -> None:
    times, size, now, appended_at = AppendTimes(0.0), 0, 0.0, []
    for count, seconds in appends:
        now += seconds
        times.note(size, now)  # bytes are about to be appended
        appended_at += [now] * count
        size += count
    if offset < size:
        age = times.age(offset, now)
        assert age >= now - appended_at[offset] - 1e-9
        longest = max((seconds for _, seconds in appends), default=0)
        assert age <= now - appended_at[offset] + longest + append_times_step_s + 1e-9


def test_times_are_kept_in_bounded_memory_and_the_newest_exactly() -> None:
    # EVIDENCE-OF: P-9
    times = AppendTimes(0.0)
    for second in range(1, 100_000):
        times.note(second * 10, float(second))
    assert len(times) <= append_times_max + 1
    assert times.age(999_990, 100_000.0) == 1.0
    assert times.age(999_900, 100_000.0) == 10.0
    assert 100_000.0 - 10 <= times.age(5, 100_000.0) <= 100_000.0, "what is old is known roughly"


def test_milestones_follow_each_other_without_a_gap() -> None:
    found = Milestones()
    found.note(3 * milestone_bytes, 30)
    found.note(5 * milestone_bytes, 50)
    found.note(4 * milestone_bytes, 40)
    found.note(4 * milestone_bytes, 41)
    assert [found.at(place * milestone_bytes) for place in range(2, 6)] == [None, 30, 40, None]
    assert found.at(3 * milestone_bytes + 1) is None
    with pytest.raises(ValueError, match="a milestone must be at a multiple of"):
        found.note(7, 7)


@given(st.integers(0, 1 << 30), st.integers(0, 1 << 30))
def test_a_stretch_goes_from_one_milestone_to_the_next_or_to_the_limit(offset: int, more: int) -> None:
    begin, end = milestone_range(offset, offset + more)
    assert begin % milestone_bytes == 0
    assert begin <= offset <= end <= begin + milestone_bytes
    assert end in (begin + milestone_bytes, offset + more)


@pytest.mark.trio
async def test_a_members_lag_is_told_in_bytes_and_seconds_and_disappears(three: list[ThreadServer]) -> None:
    # EVIDENCE-OF: P-10
    await init_store(url_of(three))
    async with claimed(three) as (store, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"seen by all"))
        await until(lambda: not any(one.lag_bytes for one in store.members()), "all have it")
        assert [one.lag_s for one in store.members()] == [0.0] * 3
        await off(three[2])
        begin = trio.current_time()
        await writer.wait_synced(writer.append(b"first missing"))

        def lagging() -> tuple[int, float, str]:
            one = next(one for one in store.members() if one.address == three[2].location)
            return one.lag_bytes, one.lag_s, one.state

        await until(lambda: lagging()[1] > 0.3, "it grows")
        await writer.wait_synced(writer.append(b"second"))
        lag_bytes, lag_s, state = lagging()
        assert (lag_bytes, state) == (len(b"first missingsecond"), "unavailable")
        assert 0.3 < lag_s <= trio.current_time() - begin + append_times_step_s, (
            "the age of the first byte, not of the last"
        )
        await on(three[2])
        await until(lambda: lagging() == (0, 0.0, "in sync"), "it has caught up")
