"""The estimate of a recovery: what it is computed from, and what the coordinator notes for it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.core.coordination.recovery_estimate import (
    RecoveryInputs,
    RestoreSample,
    StepMeter,
    bytes_to_restore,
    estimate,
    restore_bytes_per_s,
    restore_seconds,
)
from checkpoint.core.coordination.vocabulary import WorkerEnded
from checkpoint.core.links.messages import Counters, Progress, Restored
from checkpoint.core.progress import recovery_json, recovery_text
from checkpoint.core.records.manifest import WorkerCheckpoint
from journal.core.chain import Position
from tests.checkpoint.coordinator_harness import CoordinatorHarness
from tests.checkpoint.manifest_samples import a_checkpoint, worker_checkpoint

MB = 1_000_000
_samples = st.lists(
    st.builds(RestoreSample, st.integers(0, 2_000 * MB), st.floats(0.0, 100.0)), min_size=1, max_size=5
)


@given(_samples, st.integers(0, 4_000 * MB), st.integers(0, 4_000 * MB))
def test_more_bytes_never_take_less_time(samples: list[RestoreSample], one: int, other: int) -> None:
    less, more = sorted((one, other))
    assert 0.0 <= restore_seconds(samples, less) <= restore_seconds(samples, more)


@given(st.integers(0, 2_000 * MB), st.floats(0.0, 100.0), st.integers(1, 5))
def test_a_restore_of_the_measured_size_is_estimated_as_measured(size: int, taken_s: float, n: int) -> None:
    assert restore_seconds([RestoreSample(size, taken_s)] * n, size) == pytest.approx(taken_s, abs=1e-6)


def test_the_time_for_a_byte_is_measured_if_sizes_differ_and_assumed_otherwise() -> None:
    start, reset = RestoreSample(0, 0.2), RestoreSample(100 * MB, 1.2)
    assert restore_seconds([start, reset], 50 * MB) == pytest.approx(0.7)
    assert restore_seconds([start, reset], 300 * MB) == pytest.approx(3.2)
    assumed = 0.2 + 50 * MB / restore_bytes_per_s
    assert restore_seconds([start], 50 * MB) == pytest.approx(assumed)
    near = RestoreSample(1 * MB, 0.9)
    assert restore_seconds([start, near], 0) < 1.0, "the difference of two small restores is not the bytes"
    assert restore_seconds([start, near], 100 * MB) < 4.0


def test_the_parts_add_up_and_nothing_is_estimated_before_anything_was_measured() -> None:
    assert estimate(RecoveryInputs(launch_s=1.0, steps=5, step_s=1.0)) is None
    found = estimate(
        RecoveryInputs(
            launch_s=1.1,
            manifests_s=(0.2, 0.4, 9.0),
            claims_s=(0.3, 0.1, 9.0),
            restores=(RestoreSample(100 * MB, 0.75),) * 3,
            state_bytes=120 * MB,
            steps=12,
            step_s=0.04,
        )
    )
    assert found is not None
    assert (found.launch_s, found.claim_s, found.state_s) == (1.1, 0.3, pytest.approx(1.15))
    assert found.replay_s == pytest.approx(0.48)
    assert found.seconds == pytest.approx(3.03)
    assert recovery_text(recovery_json(found) or {}) == (
        "recovery: about 3.0 s (launch 1.1, claim 0.3, state 1.1 for 120 MB, replay 0.5 for 12 steps)"
    )


def test_the_bytes_are_those_above_the_floors_of_the_worker_with_most() -> None:
    part = WorkerCheckpoint(
        state=Position(3, 900, 0),
        steps=Position(3, 70, 0),
        directories={"own": Position(3, 500, 0), "other": Position(3, 40, 0)},
        floors={"state": (2, 600), "steps": (1, 0), "files-own": (3, 480)},
    )
    assert bytes_to_restore(a_checkpoint(workers={0: worker_checkpoint(), 1: part})) == 300 + 70 + 20 + 40
    assert bytes_to_restore(None) == 0


def test_a_step_takes_the_time_that_the_worker_was_busy_in_recent_ones() -> None:
    meter = StepMeter()
    assert meter.step_s == 0.0
    meter.note(10, 5.0)
    meter.note(20, 6.0)
    assert meter.step_s == pytest.approx(6.0 / 20)
    meter.note(15, 6.5)
    assert meter.step_s == pytest.approx(6.0 / 20), "steps that went back belong to another incarnation"
    meter.note(25, 0.5)
    assert meter.step_s == pytest.approx(6.0 / 20), "a counter that went back belongs to another process"
    for number in range(1_000):
        meter.note(26 + number, 0.5 + 0.01 * number)
    assert meter.step_s == pytest.approx(0.01, rel=0.05), "old steps are forgotten"


def test_the_coordinator_notes_every_round() -> None:
    region = CoordinatorHarness()
    assert region.core.status().recovery is None
    region.now += 1.0
    region.opened()
    region.now += 2.0
    region.join(0)
    region.join(1)
    region.now += 0.5
    region.receive_from_all(Restored, last_step=0, seconds=0.5, phases_s={"claim": 0.1, "open": 0.4})
    started = region.core.status().recovery
    assert started is not None
    assert (started.launch_s, started.claim_s, started.rounds) == (3.0, pytest.approx(0.1), 1)
    assert (started.state_s, started.steps, started.replay_s) == (0.4, 0, 0.0)

    region.receive(0, Progress, counters=Counters(step=8, busy_s=2.0))
    region.receive(1, Progress, counters=Counters(step=6, busy_s=3.0))
    running = region.core.status().recovery
    assert running is not None
    assert (running.steps, running.replay_s) == (8, 4.0), "the slowest worker determines the time of a step"

    region.die(1)
    region.now += 0.25
    region.opened()
    region.play(WorkerEnded(1, 1, None))
    region.now += 0.5
    region.join(1, 2)
    big = {"claim": 0.1, "open": 0.4, "load": 2.0}
    region.receive(0, Restored, last_step=0, seconds=2.5, replayed_bytes=80 * MB, phases_s=big)
    region.receive(1, Restored, last_step=0, seconds=0.2, replayed_bytes=90 * MB, phases_s={"claim": 0.2})
    after = region.core.status().recovery
    assert after is not None
    assert (after.launch_s, after.rounds) == (0.75, 2), "it was launched while the manifest was claimed"
    assert list(region.core.rounds.history.manifests_s) == [1.0, 0.25]
    restores = region.core.rounds.history.restores
    assert list(restores) == [RestoreSample(0, 0.4), RestoreSample(80 * MB, pytest.approx(2.4))]
