"""The coordinator of operators outside of any region: it asks for no cut, and still resets and ends."""

import pytest

from checkpoint.coordinator.control import RegionControl
from checkpoint.core.coordinator_vocabulary import CutWanted, StopWanted
from checkpoint.core.messages import RequestCut, Restored
from checkpoint.core.region import RegionState
from checkpoint.limits import reset_forgiven_s
from dos_protocol.errors import LocalProtocolError
from tests.checkpoint.region_model import spec
from tests.checkpoint.test_coordinator_core import Scene


def a_scene(**fields: object) -> Scene:
    return Scene(without_cuts=True, **fields).run()


def test_no_checkpoint_is_asked_for_by_time_by_hand_or_at_the_end() -> None:
    scene = a_scene(checkpoint_interval_s=1.0)
    for worker in (0, 1):
        scene.progress(worker, step=7)
    scene.tick(5)
    scene.play(CutWanted())
    assert scene.sent(RequestCut) == []
    scene.play(StopWanted())
    assert scene.core.state.reason == "stopped"
    assert scene.sent(RequestCut) == []


def test_it_is_finished_when_all_input_of_all_workers_is_processed() -> None:
    scene = a_scene()
    scene.progress(0, step=7, exhausted=True)
    assert scene.state is RegionState.RUNNING
    scene.progress(1, step=7, exhausted=True)
    assert scene.core.state.over
    assert scene.core.state.reason == "all input is processed"
    assert scene.sent(RequestCut) == []


def back_again(scene: Scene, attempt: int) -> None:
    scene.die(1, attempt)
    scene.opened()
    scene.tick(1)
    scene.join(1, attempt + 1)
    scene.all_hear(Restored, last_step=0)


@pytest.mark.parametrize("ran_s", [5, int(reset_forgiven_s) + 5])
def test_running_for_a_while_forgives_resets_as_a_checkpoint_does_elsewhere(ran_s: int) -> None:
    scene = a_scene(max_consecutive_reset_attempts=2)
    for attempt in (1, 2):
        back_again(scene, attempt)
    assert scene.core.status().reset_attempts == 2
    scene.tick(ran_s)
    scene.die(1, 3)
    assert scene.core.state.over == (ran_s < reset_forgiven_s)


def test_who_asks_for_a_checkpoint_is_told_that_there_are_none() -> None:
    control = RegionControl(spec(2, without_cuts=True))
    for ask in (control.checkpoint, control.pause):
        with pytest.raises(LocalProtocolError, match="any consistent region and has no checkpoints"):
            ask()
