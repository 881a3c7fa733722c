"""Pausing a region, as its coordinator and its participants see it."""

import pytest

from checkpoint.core.coordinator_vocabulary import (
    AppendCut,
    CutAppended,
    CutWanted,
    MessageRefused,
    PauseWanted,
    ResetWanted,
    StopWanted,
)
from checkpoint.core.messages import Counters, Pause, Paused, RequestCut, Restored
from checkpoint.core.region import RegionState
from checkpoint.core.request_handling import CommandRegion, QueueRead
from tests.checkpoint.test_coordinator_core import Scene
from tests.checkpoint.test_request_desk import Desk, in_state


def committed(scene: Scene, cut: int, step: int) -> None:
    for worker in range(scene.spec.workers):
        scene.vote(worker, cut, step)
    (append,) = scene.take(AppendCut)
    scene.play(CutAppended(append.cut))


def paused(scene: Scene) -> Scene:
    """Both workers stand at step 4, and cut 1 is of step 5."""
    scene.play(PauseWanted(on=True))
    scene.all_hear(Paused, pause=scene.core.state.pause, step=4, counters=Counters(step=4))
    committed(scene, 1, step=5)
    assert scene.state is RegionState.PAUSED
    scene.take()
    return scene


def test_all_are_notified_and_when_all_stand_a_checkpoint_is_asked_for_and_then_it_is_paused() -> None:
    scene = Scene().run()
    scene.play(PauseWanted(on=True))
    assert [order.pause for _, order in scene.sent(Pause)] == [1, 1]
    scene.hear(0, Paused, pause=1, step=4, counters=Counters(step=4))
    assert scene.sent(RequestCut) == []
    scene.hear(1, Paused, pause=1, step=3, counters=Counters(step=3))
    assert [order.cut for _, order in scene.sent(RequestCut)] == [1, 1]
    assert scene.state is RegionState.RUNNING
    committed(scene, 1, step=5)
    assert scene.state is RegionState.PAUSED
    assert scene.sent(RequestCut) == []


def test_where_a_checkpoint_came_before_a_step_that_was_made_another_one_follows() -> None:
    """Worker 1 was behind, and flagged its step 3; worker 0 had ended step 4 by then."""
    scene = Scene().run()
    scene.play(PauseWanted(on=True))
    scene.hear(0, Paused, pause=1, step=4, counters=Counters(step=4))
    scene.hear(1, Paused, pause=1, step=2, counters=Counters(step=2))
    scene.take()
    for worker in (0, 1):
        scene.vote(worker, 1, step=3)
    (append,) = scene.take(AppendCut)
    scene.play(CutAppended(append.cut))
    assert scene.state is RegionState.RUNNING, "what is of step 4 is in no cut"
    assert [order.cut for _, order in scene.sent(RequestCut)] == [2, 2]
    committed(scene, 2, step=5)
    assert scene.state is RegionState.PAUSED


def test_where_a_worker_flagged_one_step_more_than_the_checkpoint_is_of_another_one_follows() -> None:
    """The request for cut 1 met worker 1 after step 4, which worker 0 had flagged: it began step 5 for it."""
    scene = Scene().run()
    scene.play(PauseWanted(on=True))
    scene.all_hear(Paused, pause=1, step=4, counters=Counters(step=4))
    scene.take()
    scene.vote(0, 1, step=4)
    scene.vote(1, 1, step=4, produced=5)
    (append,) = scene.take(AppendCut)
    scene.play(CutAppended(append.cut))
    assert scene.state is RegionState.RUNNING, "not all stand at the cut's step"
    assert [order.cut for _, order in scene.sent(RequestCut)] == [2, 2]
    committed(scene, 2, step=6)
    assert scene.state is RegionState.PAUSED


def test_a_region_that_has_taken_nothing_since_its_last_checkpoint_is_paused_without_another() -> None:
    scene = Scene().run()
    scene.play(PauseWanted(on=True))
    scene.all_hear(Paused, pause=1, step=0, counters=Counters(step=0))
    assert scene.state is RegionState.PAUSED
    assert scene.sent(RequestCut) == []


def test_time_makes_no_checkpoints_while_it_is_paused_and_one_that_is_asked_for_changes_nothing() -> None:
    scene = paused(Scene().run())
    scene.tick(30)
    assert scene.sent(RequestCut) == []
    scene.play(CutWanted())
    assert scene.state is RegionState.PAUSED
    committed(scene, 2, step=6)
    assert scene.state is RegionState.PAUSED


def test_it_continues_when_it_is_told_to_and_an_answer_to_the_order_before_counts_for_nothing() -> None:
    scene = paused(Scene().run())
    scene.play(PauseWanted(on=False))
    assert [order.pause for _, order in scene.sent(Pause)] == [0, 0]
    assert scene.state is RegionState.RUNNING
    scene.play(PauseWanted(on=True))
    assert [order.pause for _, order in scene.sent(Pause)] == [2, 2]
    scene.all_hear(Paused, pause=1, step=9, counters=Counters(step=9))
    assert len(scene.take(MessageRefused)) == 2
    assert scene.state is RegionState.RUNNING


def test_a_wish_that_is_in_force_changes_nothing() -> None:
    scene = Scene().run()
    scene.play(PauseWanted(on=False))
    assert scene.sent(Pause) == []
    paused(scene).play(PauseWanted(on=True))
    assert scene.sent(Pause) == []
    assert scene.state is RegionState.PAUSED


def test_after_a_reset_workers_are_notified_again_behind_their_start() -> None:
    scene = paused(Scene().run())
    scene.play(ResetWanted())
    assert scene.state is RegionState.RESTORING
    scene.opened(cut=scene.core.state.last_cut)
    scene.all_hear(Restored, last_step=5)
    orders = [type(message).__name__ for link, message in scene.sent(object) if link == scene.links[0]]
    assert orders[-2:] == ["Start", "Pause"]
    assert scene.state is RegionState.RUNNING
    scene.all_hear(Paused, pause=1, step=5, counters=Counters(step=5))
    assert scene.state is RegionState.PAUSED


def test_a_wish_that_comes_before_it_runs_is_told_with_the_start() -> None:
    scene = Scene()
    scene.play(PauseWanted(on=True))
    assert scene.sent(Pause) == []
    scene.run_to_start()
    assert [order.pause for _, order in scene.sent(Pause)] == [1, 1]


def test_a_paused_region_stops_without_another_checkpoint() -> None:
    scene = paused(Scene().run())
    scene.play(StopWanted())
    assert scene.sent(RequestCut) == []
    assert scene.core.state.reason == "stopped"


# --- asked through the store --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "on", "before", "after"),
    [
        ("pause", True, RegionState.RUNNING, RegionState.PAUSED),
        ("resume", False, RegionState.PAUSED, RegionState.RUNNING),
    ],
)
def test_a_request_is_done_when_the_region_is_seen_to_be_as_wished(what, on, before, after) -> None:
    desk = Desk()
    desk.status = in_state(before)
    desk.ask(1, what)
    assert desk.orders() == [PauseWanted(on=on)]
    assert desk.do(QueueRead()) == []
    desk.status = in_state(after)
    (said,) = desk.do(QueueRead())
    assert (said.verdict, said.result["state"]) == ("done", after.value)


def test_a_checkpoint_can_be_asked_for_while_it_is_paused() -> None:
    desk = Desk()
    desk.status = in_state(RegionState.PAUSED)
    desk.ask(1, "checkpoint")
    assert desk.effects[-1] == CommandRegion(CutWanted())
