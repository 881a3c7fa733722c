"""Random interleavings of votes, losses, late messages and duelling coordinators: whatever happens, the
oracles of `region_model.py` hold, and once the faults end a checkpoint is committed again without a
person.
"""

import random
from collections import Counter
from collections.abc import Callable
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from checkpoint.core.coordination.checkpoints import PendingCheckpoint
from checkpoint.core.coordination.rounds import TakeOvers
from checkpoint.core.region import RegionState
from tests.checkpoint.region_model import RegionModel

choices = st.lists(st.tuples(st.integers(0, 19), st.integers(0, 2**16)), max_size=400)

WALKS = 25
FAULTS = ("kill", "kill driver", "append and die", "new driver", "stale vote", "checkpoint link")


def run(model: RegionModel, moves: list[tuple[int, int]]) -> list[str]:
    """Play the moves: mostly what can happen, sometimes time, sometimes a fault. Returns what happened."""
    played: list[str] = []
    for kind, number in moves:
        actions = model.faults() if kind == 0 else model.actions()
        if kind == 1 or not actions:
            played.append("time")
            model.pass_time(1 + number % 12)
            continue
        name, action = actions[number % len(actions)]
        played.append(name)
        action()
    return played


def heal(model: RegionModel, done: Callable[[], bool]) -> None:
    """Faults are over. A driver is started when none is left: the last may be fenced by one that died."""

    def live() -> bool:
        return any(driver.alive and driver.end is None for driver in model.drivers)

    for _ in range(3):
        if not live():
            model.start_driver()
        model.settle(200, until=lambda: done() or not live())
        if done():
            return
    raise AssertionError([driver.core.status() for driver in model.drivers])


def commits_two_more(model: RegionModel) -> Callable[[], bool]:
    """Two more checkpoints than there are now, or a clear failure for want of attempts."""
    before = model.manifest.last.number if model.manifest.last else 0

    def done() -> bool:
        ends = [driver.end for driver in model.drivers if driver.end is not None]
        failed = [end for end in ends if end.state is RegionState.FAILED]
        assert all("consecutive resets" in end.reason for end in failed)
        return bool(failed) or (model.manifest.last is not None and model.manifest.last.number >= before + 2)

    return done


@given(choices, st.integers(1, 3))
@example([], 1)
@settings(max_examples=150)
def test_no_interleaving_breaks_a_checkpoint_and_progress_returns(moves, workers) -> None:
    # EVIDENCE-OF: P-4, P-6, P-10
    model = RegionModel(workers, max_consecutive_reset_attempts=50)
    model.start_driver()
    run(model, moves)
    heal(model, commits_two_more(model))


@pytest.mark.parametrize("seed", range(8))
def test_long_random_walks_keep_the_oracles(seed) -> None:
    # EVIDENCE-OF: P-4, P-6, P-10
    for number in range(WALKS):
        walk = f"seed {seed}.{number}"
        model = random_walk(random.Random(walk))
        try:
            heal(model, commits_two_more(model))
        except AssertionError as error:
            raise AssertionError(f"{walk}: {error}") from error


def random_walk(rng: random.Random) -> RegionModel:
    """Some hundred moves; how often faults and pauses come, and which faults, differs from walk to walk."""
    model = RegionModel(rng.randint(1, 3), max_consecutive_reset_attempts=rng.choice([3, 100]))
    model.input_steps = rng.choice([10**9, 10**9, 30])
    model.start_driver()
    faults, pauses = rng.choice([0.01, 0.03, 0.1]), rng.choice([0.02, 0.1, 0.3])
    kinds = [kind for kind in FAULTS if rng.random() < 0.6]
    for _ in range(rng.choice([60, 200, 500])):
        dice = rng.random()
        actions = model.actions()
        if dice < faults:
            actions = [fault for fault in model.faults() if fault[0].startswith(tuple(kinds))]
        if not actions or faults < dice < faults + pauses:
            model.pass_time(rng.choice([1, 1, 1, 1, 3, 15]))
        else:
            rng.choice(actions)[1]()
    return model


@given(choices)
@settings(max_examples=100)
def test_with_few_attempts_a_region_stops_clearly_or_continues(moves) -> None:
    # EVIDENCE-OF: P-10
    model = RegionModel(2, max_consecutive_reset_attempts=1)
    model.start_driver()
    run(model, moves)
    heal(model, commits_two_more(model))


@given(choices, st.integers(1, 60))
@settings(max_examples=100)
def test_a_bounded_input_is_finished_by_the_last_driver(moves, steps) -> None:
    model = RegionModel(2, max_consecutive_reset_attempts=50)
    model.input_steps = steps
    model.start_driver()
    run(model, moves)
    heal(model, lambda: any(d.end and d.end.state is RegionState.FINISHED for d in model.drivers))
    assert model.manifest.last is not None
    assert model.manifest.last.final


def local_walk(rng: random.Random) -> RegionModel:
    """Three workers with local recovery: some are killed, at most one of them at a time if they are lucky."""
    model = RegionModel(3, recovery="local", max_consecutive_reset_attempts=100)
    model.start_driver()
    for _ in range(6):
        for _ in range(rng.choice([10, 60, 200])):
            actions = model.actions()
            if actions and rng.random() < 0.95:
                rng.choice(actions)[1]()
            else:
                model.pass_time(1)
        kinds = rng.choice([("kill 0", "kill 1", "kill 2"), ("checkpoint link",), ("stale vote",)])
        faults = [act for name, act in model.faults() if name.startswith(kinds)]
        if faults:
            rng.choice(faults)()
    return model


def local_walks(count: int) -> Counter[str]:
    """Some of these walks. Return how often a worker was taken over, and how often all were reset."""
    seen: Counter[str] = Counter()
    for seed in range(count):
        model = local_walk(random.Random(seed))
        seen.update("local" if reset.term else "all" for reset in model.drivers[0].core.status().resets)
        heal(model, commits_two_more(model))
    return seen


def test_walks_with_local_recovery_keep_the_oracles_and_take_workers_over() -> None:
    # EVIDENCE-OF: P-6, P-10
    seen = local_walks(60)
    assert seen["local"] > 30
    assert seen["all"] > 10


@pytest.mark.parametrize(
    ("owner", "name", "wrong"),
    [
        (PendingCheckpoint, "taken_over", lambda self, worker, term: self.terms.update({worker: term})),
        (TakeOvers, "_is_settled", lambda self: True),
    ],
    ids=["the vote of a lost worker counts", "an append is not settled first"],
)
def test_walks_with_local_recovery_find_a_planted_bug(owner: type, name: str, wrong: object) -> None:
    with mock.patch.object(owner, name, wrong), pytest.raises(AssertionError):
        local_walks(200)
