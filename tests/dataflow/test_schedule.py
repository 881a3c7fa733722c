"""What a worker does next, by the numbers of its steps alone."""

from dataflow.core.plan import NodeSpec, OperatorKind, make_plan
from dataflow.core.schedule import Barrier, Produce, RunStage, Schedule, Wait

PLAN = make_plan(
    [
        NodeSpec("lines", OperatorKind.SOURCE),
        NodeSpec("k1", OperatorKind.KEY_BY, (0,)),
        NodeSpec("c1", OperatorKind.COUNT, (1,)),
        NodeSpec("k2", OperatorKind.KEY_BY, (2,)),
        NodeSpec("c2", OperatorKind.COUNT, (3,)),
        NodeSpec("out", OperatorKind.SINK, (4,)),
    ]
)


def schedule(*, first: int = 1, replay_until: int = 0) -> Schedule:
    return Schedule(PLAN, first, 0, replay_until, 2)


def following(
    one: Schedule,
    complete: set[tuple[int, int]] | None = None,
    *,
    input_waits: bool = True,
    room: bool = True,
    peers_at: int = 0,
) -> Produce | RunStage | Wait:
    done = complete or set()
    return one.next_action(
        lambda channel, step: (channel, step) in done, input_waits=input_waits, room=room, peers_at=peers_at
    )


def test_sources_run_ahead_by_two_steps_and_then_wait() -> None:
    one = schedule()
    assert following(one) == Produce(1, replay=False)
    one.step_produced()
    assert following(one) == Produce(2, replay=False)
    one.step_produced()
    assert following(one) == Wait("step 1 is not complete")


def test_the_highest_stage_that_can_run_runs_first() -> None:
    one = schedule()
    one.step_produced()
    assert following(one, {(0, 1)}) == RunStage(1, 1)
    one.step_aligned(1, Barrier())
    assert not one.stage_done(1, 1)
    one.step_produced()
    assert following(one, {(0, 2), (1, 1)}) == RunStage(2, 1)
    assert one.stage_done(2, 1)
    assert following(one, {(0, 2)}) == RunStage(1, 2)


def test_an_idle_worker_makes_a_step_only_for_a_peer_or_a_checkpoint() -> None:
    one = schedule()
    assert following(one, input_waits=False) == Wait("there is no input")
    assert following(one, input_waits=False, peers_at=1) == Produce(1, replay=False)
    one.request_checkpoint(1, final=False)
    assert following(one, input_waits=False) == Produce(1, replay=False)
    assert one.step_produced() == Barrier(1, final=False)
    assert following(one, input_waits=False) == Wait("there is no input")


def test_sources_stop_while_the_store_has_no_room_but_peers_are_not_held_up() -> None:
    one = schedule()
    assert following(one, room=False) == Wait("the store has no room")
    assert following(one, room=False, peers_at=1) == Produce(1, replay=False)


def test_recorded_steps_are_replayed_even_without_room() -> None:
    one = schedule(first=5, replay_until=5)
    assert following(one, room=False) == Produce(5, replay=True)
    one.step_produced()
    assert following(one) == Produce(6, replay=False)


def test_a_checkpoint_that_a_peer_asked_for_first_is_not_asked_for_again() -> None:
    one = schedule()
    one.step_produced()
    one.request_checkpoint(1, final=False)
    one.step_aligned(1, Barrier(1))
    assert one.checkpoint_at(1) == Barrier(1)
    assert one.step_produced() == Barrier()
    one.request_checkpoint(1, final=False)
    assert one.step_produced() == Barrier(), "a request for a checkpoint that has happened"


def test_after_the_final_checkpoint_nothing_is_produced() -> None:
    one = schedule()
    one.request_checkpoint(3, final=True)
    assert one.step_produced() == Barrier(3, final=True)
    one.step_aligned(1, Barrier(3, final=True))
    one.stage_done(1, 1)
    one.stage_done(2, 1)
    assert one.forget(1) == Barrier(3, final=True)
    assert following(one, peers_at=9) == Wait("the final checkpoint is taken")
