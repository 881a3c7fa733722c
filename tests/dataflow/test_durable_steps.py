"""Output by step waits until the division of its input is durable at every worker."""

from hypothesis import given
from hypothesis import strategies as st

from dataflow.core.schedule import DurableSteps


def test_a_worker_alone_waits_for_itself() -> None:
    steps = DurableSteps(peers=0)
    assert steps.everywhere == 0
    steps.own(3)
    assert steps.everywhere == 3


def test_a_peer_that_has_said_nothing_holds_everything_up() -> None:
    steps = DurableSteps(peers=2)
    steps.own(9)
    steps.of_peer(0, 9)
    assert steps.everywhere == 0
    steps.floor(4)
    assert steps.everywhere == 4, "what the coordinator found durable when the incarnation began"
    steps.of_peer(2, 6)
    assert steps.everywhere == 6


@given(st.lists(st.tuples(st.sampled_from(["own", "floor", 1, 2]), st.integers(0, 20))))
def test_it_is_the_least_of_all_and_only_rises(events: list[tuple[str | int, int]]) -> None:
    steps = DurableSteps(peers=2)
    said: dict[str | int, int] = {"own": 0, "floor": 0, 1: 0, 2: 0}
    before = 0
    for who, step in events:
        said[who] = max(said[who], step)
        if who == "own":
            steps.own(step)
        elif who == "floor":
            steps.floor(step)
        else:
            assert isinstance(who, int)
            steps.of_peer(who, step)
        assert before <= steps.everywhere == max(said["floor"], min(said["own"], said[1], said[2]))
        before = steps.everywhere
