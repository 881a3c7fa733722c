"""The core of hedged reads: whatever members do, a question ends, nobody is asked twice, and hedging stays
within its budget."""

import heapq
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from dos_client.core.hedging import (
    Budget,
    Candidate,
    DropMember,
    Effect,
    Latencies,
    Pace,
    QueryMember,
    Race,
)
from dos_client.limits import (
    hedge_burst,
    hedge_delay_first_s,
    hedge_delay_max_s,
    hedge_delay_min_s,
    hedge_order_samples,
    hedge_rescue_s,
    hedge_sample_age_s,
    hedge_samples_max,
    hedge_share,
    read_settle_s,
    read_timeout_s,
)

MEMBERS = [bytes([number]) * 16 for number in range(1, 6)]
A, B, C = MEMBERS[:3]


@dataclass(frozen=True)
class Behaviour:
    """What a member does when asked: after so many seconds an answer, an empty one, a refusal; or nothing."""

    seconds: float
    does: str


behaviours = st.builds(
    Behaviour,
    st.sampled_from([0.0, 0.001, 0.01, 0.1, 0.3, 0.9, 2.0, 4.0, 20.0]),
    st.sampled_from(["answer", "empty", "fail", "nothing"]),
)


@dataclass
class Played:
    """A race played to its end on a clock of its own."""

    queried: list[bytes] = field(default_factory=list)
    hedges: int = 0
    ended: dict[bytes, str] = field(default_factory=dict)
    won: bool = False
    seconds: float = 0.0


def play(does: dict[bytes, Behaviour], race: Race, lacking: int = 1) -> Played:
    played, now = Played(), 0.0
    coming: list[tuple[float, bytes]] = []
    lacks = lacking

    def perform(effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case QueryMember(server_id, hedge):
                    assert server_id not in played.queried, "asked twice"
                    played.queried.append(server_id)
                    played.hedges += hedge
                    if does[server_id].does != "nothing":
                        heapq.heappush(coming, (now + does[server_id].seconds, server_id))
                case DropMember(server_id, seconds):
                    assert server_id not in played.ended
                    assert seconds >= 0
                    played.ended[server_id] = "dropped"

    perform(race.begin(now))
    for _ in range(1_000):
        if race.over:
            break
        if coming and coming[0][0] < race.deadline:
            now, server_id = heapq.heappop(coming)
            late = server_id in played.ended
            if does[server_id].does == "fail":
                effects = race.failed(server_id, now)
            else:
                lacks -= not late and does[server_id].does == "answer"
                effects = race.answered(
                    server_id, now, lacking=lacks, settled=does[server_id].does == "empty"
                )
            assert not (late and effects), "a late answer does nothing"
            played.ended.setdefault(server_id, does[server_id].does)
        else:
            now = race.deadline
            effects = race.time_is_up(now)
        perform(effects)
    assert race.over, "a race without an end"
    played.seconds, played.won = now, race.won
    return played


@given(st.dictionaries(st.sampled_from(MEMBERS), behaviours), st.integers(1, 3), st.floats(0.002, 0.25))
def test_every_race_ends_and_nobody_is_asked_twice_or_left_behind(
    does: dict[bytes, Behaviour], lacking: int, delay_s: float
) -> None:
    # EVIDENCE-OF: P-10
    played = play(does, Race(list(does), delay_s, Budget(), lacking=lacking), lacking)
    assert played.queried == list(does)[: len(played.queried)], "in the order given"
    assert set(played.ended) == set(played.queried), "each is answered, refused or dropped"
    assert played.seconds <= (read_timeout_s + hedge_rescue_s) * (len(does) + 1)
    good = [server_id for server_id, how in played.ended.items() if how == "answer"]
    assert played.won == (len(good) == lacking)


@given(st.dictionaries(st.sampled_from(MEMBERS), behaviours, min_size=1), st.floats(0.002, 0.25))
def test_one_good_member_is_enough_whatever_the_others_do(
    does: dict[bytes, Behaviour], delay_s: float
) -> None:
    # It may be asked last, and answers within `read_settle_s` of the first member that has nothing.
    late_s = delay_s * (len(does) - 1)
    quick = [one for one in does.values() if one.does == "answer" and late_s + one.seconds < read_settle_s]
    played = play(does, Race(list(does), delay_s, Budget()))
    if quick:
        assert played.won
        assert played.seconds <= hedge_rescue_s * len(does) + min(one.seconds for one in quick)


def test_a_stopped_member_costs_the_delay_and_no_more() -> None:
    does = {A: Behaviour(0, "nothing"), B: Behaviour(0.001, "answer"), C: Behaviour(0, "answer")}
    played = play(does, Race([A, B, C], 0.005, Budget()))
    assert (played.won, played.queried, played.hedges) == (True, [A, B], 1)
    assert played.seconds == 0.006
    assert played.ended == {A: "dropped", B: "answer"}


def test_a_refusal_is_no_reason_to_wait_and_costs_no_budget() -> None:
    does = {A: Behaviour(0.001, "fail"), B: Behaviour(0.001, "answer")}
    played = play(does, Race([A, B], 0.1, Budget()))
    assert (played.seconds, played.hedges) == (0.002, 0)


def test_ends_of_f_members_are_believed_after_a_moment() -> None:
    does = {A: Behaviour(0.001, "empty"), B: Behaviour(0.001, "empty"), C: Behaviour(0, "nothing")}
    race = Race([A, B, C], 0.1, Budget())
    played = play(does, race)
    assert not played.won
    assert played.seconds == 0.001 + read_settle_s


@given(st.lists(st.booleans(), max_size=400))
def test_the_budget_is_kept_over_any_number_of_questions(slow: list[bool]) -> None:
    budget = Budget()
    hedges = 0
    for is_slow in slow:
        does = {A: Behaviour(0.1 if is_slow else 0.0, "answer"), B: Behaviour(0.0, "answer")}
        hedges += play(does, Race([A, B], 0.01, budget)).hedges
    assert hedges <= hedge_burst + hedge_share * len(slow)


def test_without_budget_a_member_that_says_nothing_is_still_given_up() -> None:
    budget = Budget()
    while budget.take():
        pass
    played = play({A: Behaviour(0, "nothing"), B: Behaviour(0, "answer")}, Race([A, B], 0.01, budget))
    assert (played.won, played.seconds) == (True, hedge_rescue_s)


@given(
    st.lists(st.tuples(st.floats(0, 10), st.floats(0, 20)), max_size=150),
    st.floats(0, 0.99),
    st.floats(0, 40),
)
def test_quantiles_are_those_of_the_last_answers(
    answers: list[tuple[float, float]], share: float, later: float
) -> None:
    times, now, observed = Latencies(), 0.0, []
    for seconds, pause in answers:
        now += pause
        times.add(seconds, now)
        observed.append((now, seconds))
    now += later
    last = [one for one in observed[-hedge_samples_max:] if one[0] >= now - hedge_sample_age_s]
    found = times.quantile(share, now)
    if not last:
        assert found is None
    else:
        assert found == sorted(seconds for _, seconds in last)[int(share * len(last))]


def test_the_delay_is_what_is_usual_within_its_limits() -> None:
    pace = Pace()
    assert pace.delay_s(A, 65_536, 0.0) == hedge_delay_first_s
    for number in range(40):
        pace.note(A, 65_536, 0.004 + number / 100_000, 0.0)
        pace.note(B, 65_536, 0.0001, 0.0)
        pace.note(C, 65_536, 3.0, 0.0)
    assert 0.0043 < pace.delay_s(A, 65_536, 0.0) < 0.0044
    assert pace.delay_s(B, 65_536, 0.0) == hedge_delay_min_s
    assert pace.delay_s(C, 65_536, 0.0) == hedge_delay_max_s
    assert pace.delay_s(A, 1 << 20, 0.0) == hedge_delay_first_s, "of another size nothing is known"


def test_the_slow_the_absent_and_the_wrong_are_asked_last_and_equals_share() -> None:
    pace = Pace()
    for _ in range(20):
        pace.note(A, 1_000, 0.0012, 0.0)
        pace.note(B, 1_000, 0.0010, 0.0)
        pace.note(C, 1_000, 0.0500, 0.0)
    everyone = [Candidate(one) for one in (A, B, C)]
    firsts = [pace.order(everyone, 1_000, 0.0, rng / 30)[0] for rng in range(30)]
    assert firsts.count(A) == firsts.count(B) == 15
    assert C not in firsts
    for hindered in (Candidate(A, connected=False), Candidate(A, avoided=True), Candidate(A, owed=1)):
        assert pace.order([hindered, Candidate(B), Candidate(C)], 1_000, 0.0, 0.0) == [B, C, A]
    later = hedge_sample_age_s + 1
    assert C in [pace.order(everyone, 1_000, later, rng / 30)[0] for rng in range(30)], "tried again"


def test_half_of_the_last_answers_decide_who_is_asked_last_however_many_were_fast_before() -> None:
    pace, everyone = Pace(), [Candidate(one) for one in (A, B, C)]

    def first() -> set[bytes]:
        return {pace.order(everyone, 1_000, 0.0, rng / 30)[0] for rng in range(30)}

    for _ in range(hedge_samples_max):
        for one in (A, B, C):
            pace.note(one, 1_000, 0.001, 0.0)
    for _ in range(hedge_order_samples // 2 - 1):
        pace.note(C, 1_000, 0.25, 0.0)
    assert first() == {A, B, C}
    pace.note(C, 1_000, 0.25, 0.0)
    assert first() == {A, B}
    for _ in range(hedge_order_samples // 2 + 1):
        pace.note(C, 1_000, 0.001, 0.0)
    assert first() == {A, B, C}, "asked as a hedge, it was fast again"
