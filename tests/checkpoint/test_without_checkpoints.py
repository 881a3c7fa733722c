"""The coordinator of operators outside of any region: it asks for no checkpoint, and still resets and
ends.
"""

import pytest

from checkpoint.coordinator.control import RegionControl
from checkpoint.core.coordination.vocabulary import CheckpointWanted, StopWanted
from checkpoint.core.links.messages import RequestCheckpoint, Restored
from checkpoint.core.region import RegionState
from checkpoint.limits import reset_forgiven_s
from dos_protocol.errors import LocalProtocolError
from tests.checkpoint.coordinator_harness import CoordinatorHarness
from tests.checkpoint.region_model_state import spec


def region_without_checkpoints(**fields: object) -> CoordinatorHarness:
    return CoordinatorHarness(without_checkpoints=True, **fields).run()


def test_no_checkpoint_is_asked_for_by_time_by_hand_or_at_the_end() -> None:
    region = region_without_checkpoints(checkpoint_interval_s=1.0)
    for worker in (0, 1):
        region.progress(worker, step=7)
    region.tick(5)
    region.play(CheckpointWanted())
    assert region.sent(RequestCheckpoint) == []
    region.play(StopWanted())
    assert region.core.run.reason == "stopped"
    assert region.sent(RequestCheckpoint) == []


def test_it_is_finished_when_all_input_of_all_workers_is_processed() -> None:
    region = region_without_checkpoints()
    region.progress(0, step=7, exhausted=True)
    assert region.state is RegionState.RUNNING
    region.progress(1, step=7, exhausted=True)
    assert region.core.run.over
    assert region.core.run.reason == "all input is processed"
    assert region.sent(RequestCheckpoint) == []


def restarted(region: CoordinatorHarness, attempt: int) -> None:
    region.die(1, attempt)
    region.opened()
    region.tick(1)
    region.join(1, attempt + 1)
    region.receive_from_all(Restored, last_step=0)


@pytest.mark.parametrize("ran_s", [5, int(reset_forgiven_s) + 5])
def test_running_for_a_while_forgives_resets_as_a_checkpoint_does_elsewhere(ran_s: int) -> None:
    region = region_without_checkpoints(max_consecutive_reset_attempts=2)
    for attempt in (1, 2):
        restarted(region, attempt)
    assert region.core.status().reset_attempts == 2
    region.tick(ran_s)
    region.die(1, 3)
    assert region.core.run.over == (ran_s < reset_forgiven_s)


def test_who_asks_for_a_checkpoint_is_told_that_there_are_none() -> None:
    control = RegionControl(spec(2, without_checkpoints=True))
    for request in (control.checkpoint, control.pause):
        with pytest.raises(LocalProtocolError, match="any consistent region and has no checkpoints"):
            request()
