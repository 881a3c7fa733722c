"""A lost worker is taken over while the others continue, as the coordinator decides it.

What resets all workers instead is in `test_take_over_fallbacks.py`, requests meanwhile and timers in
`test_requests_during_take_overs.py`, suspected workers in `test_suspects.py`.
"""

from typing import Any

import pytest

from checkpoint import limits
from checkpoint.core.coordination.vocabulary import (
    AppendCheckpoint,
    CancelWorker,
    CheckpointAppended,
    CheckpointWanted,
    End,
    LaunchWorker,
    LinkDown,
    MessageRefused,
    NotifyObservers,
    OpenManifest,
    ScaleWanted,
    SendControl,
    WorkerEnded,
    WorkerHosted,
)
from checkpoint.core.coordination.workers import WorkerState
from checkpoint.core.links.messages import (
    Committed,
    Finished,
    Peer,
    RequestCheckpoint,
    Restore,
    Restored,
    Start,
    Stop,
    View,
    Vote,
)
from checkpoint.core.records.manifest import TERMS_VERSION, Checkpoint, WorkerCheckpoint
from checkpoint.core.region import RegionState, ResetReport, ScaleSettled
from journal.core.chain import Position
from tests.checkpoint.coordinator_harness import CoordinatorHarness
from tests.checkpoint.region_model_state import spec

FIRST = limits.terms_per_incarnation
"""The first incarnation."""
LOCAL = (1, 2)
"""What a worker speaks that knows local recovery."""
KILLED = "worker 1 was lost: its control link is gone: reset by peer"


def joins(region: CoordinatorHarness, worker: int, attempt: int = 2, **fields: Any) -> None:
    region.join(worker, attempt=attempt, **{"speaks": LOCAL, **fields})


def started(workers: int = 3, **fields: Any) -> CoordinatorHarness:
    """All workers run in the first incarnation; no checkpoint is committed."""
    region = CoordinatorHarness(workers, recovery="local", **fields)
    region.opened(epoch=FIRST)
    for worker in range(workers):
        joins(region, worker, attempt=1)
    region.receive_from_all(Restored, last_step=0)
    assert region.state is RegionState.RUNNING
    return region


def running(workers: int = 3, **fields: Any) -> CoordinatorHarness:
    """The same, after checkpoint 1 of step 5."""
    region = started(workers, **fields)
    region.commit(1, step=5)
    region.take()
    return region


def restored(region: CoordinatorHarness, worker: int = 1, term: int = FIRST + 1, **fields: Any) -> None:
    region.receive(worker, Restored, epoch=term, **{"last_step": 7, **fields})


def voted(region: CoordinatorHarness, worker: int, term: int, checkpoint: int, step: int) -> None:
    """A worker votes in a term."""
    at = Position(term, 100 + checkpoint, worker + 1)
    positions = WorkerCheckpoint(state=at, steps=at)
    region.receive(worker, Vote, checkpoint=checkpoint, step=step, epoch=term, positions=positions)


def appended(region: CoordinatorHarness) -> Checkpoint:
    (append,) = region.take(AppendCheckpoint)
    region.play(CheckpointAppended(append.checkpoint))
    return append.checkpoint


def reports(region: CoordinatorHarness, kind: type) -> list[Any]:
    return [one.event for one in region.take(NotifyObservers) if isinstance(one.event, kind)]


def reset_of_all(region: CoordinatorHarness) -> ResetReport:
    """The manifest is opened again, and all workers are reset. Return the report."""
    assert [order.step for order in region.take(OpenManifest)] == [FIRST], "all workers are reset"
    region.opened(region.core.run.last_checkpoint, epoch=region.epoch + FIRST)
    region.tick(1)  # a worker that was lost twice is launched with a delay
    roster = region.core.run.roster
    for worker in roster:
        if worker.state is WorkerState.LAUNCHED:
            joins(region, worker.index, worker.attempt)
    orders = region.sent(Restore)
    assert [order.terms for _, order in orders] == [(region.epoch,) * len(roster)] * len(roster)
    region.receive_from_all(Restored, last_step=0)
    assert region.state is RegionState.RUNNING
    (report,) = reports(region, ResetReport)
    assert (report.term, report.incarnation) == (0, region.epoch)
    return report


# --- a take-over ----------------------------------------------------------------------------------------


def test_incarnations_are_multiples_so_that_terms_lie_between_them() -> None:
    region = CoordinatorHarness(2, recovery="local")
    assert region.take(OpenManifest) == [OpenManifest(above=0, held=0, step=FIRST)]
    assert CoordinatorHarness(2).take(OpenManifest) == [OpenManifest(above=0, held=0, step=1)]


def test_a_region_that_starts_states_the_terms_which_are_its_incarnation() -> None:
    orders = started(2).sent(Restore)
    assert [(order.epoch, order.terms, order.takes_over) for _, order in orders] == [
        (FIRST, (FIRST, FIRST), False)
    ] * 2


def test_a_lost_worker_is_replaced_and_only_its_new_process_is_ordered() -> None:
    region = running()
    region.die(1)
    assert region.state is RegionState.RUNNING
    effects = region.take()
    assert [one for one in effects if isinstance(one, OpenManifest | CancelWorker | LaunchWorker)] == [
        CancelWorker(1, 1),
        LaunchWorker(1, 2, host=0, host_link=100),
    ]
    region.now = 2.0
    joins(region, 1, host="other")
    orders = region.sent(Restore, View)
    restores = [(link, order) for link, order in orders if isinstance(order, Restore)]
    assert [link for link, _ in restores] == [region.links[1]]
    order = restores[0][1]
    assert (order.takes_over, order.incarnation, order.epoch) == (True, FIRST, FIRST + 1)
    assert order.terms == (FIRST, FIRST + 1, FIRST)
    assert (order.checkpoint, order.restore) == (1, region.core.run.last_checkpoint)
    views = [(link, order) for link, order in orders if isinstance(order, View)]
    assert [link for link, _ in views] == [region.links[0], region.links[2]]
    for _, view in views:
        assert (view.peer, view.term, view.incarnation, view.step) == (1, FIRST + 1, FIRST, 5)
        assert view.address == Peer("other", 2)
    restored(region, replayed_bytes=9, phases_s={"claim": 0.5, "load": 1.0})
    assert [(link, order.replay_until_step) for link, order in region.sent(Start)] == [(region.links[1], 7)]


def test_the_report_of_a_take_over_has_its_term_and_where_its_time_was_spent() -> None:
    region = running()
    region.die(1)
    assert region.core.status().reason == KILLED
    region.now = 2.0
    joins(region, 1)
    region.now = 4.0
    restored(region, replayed_bytes=9, phases_s={"claim": 0.5, "load": 1.0})
    (report,) = reports(region, ResetReport)
    assert region.core.status().resets == (report,)
    assert (report.worker, report.reason, report.term, report.incarnation) == (1, KILLED, FIRST + 1, FIRST)
    assert (report.seconds, report.bytes, report.checkpoint) == (4.0, 9, 1)
    assert report.phases_s == {"gather": 2.0, "claim": 0.5, "load": 1.0, "start": 0.5}
    assert region.core.status().reason == ""
    assert region.core.status().reset_attempts == 0, "the others were not reset"


def test_each_take_over_has_a_term_above_all_before_it() -> None:
    region = running()
    for worker, term in ((1, FIRST + 1), (0, FIRST + 2), (1, FIRST + 3)):
        region.die(worker, region.core.run.roster[worker].attempt)
        joins(region, worker, region.core.run.roster[worker].attempt)
        restored(region, worker, term)
        checkpoint = region.core.run.last_number + 1
        region.play(CheckpointWanted())
        for one in range(3):
            voted(region, one, region.core.run.terms.get(one, FIRST), checkpoint, step=5 + checkpoint)
        committed = appended(region)
        assert committed.version == TERMS_VERSION
        assert committed.workers[worker].epochs() == {term}
    assert [report.term for report in region.core.status().resets] == [FIRST + 1, FIRST + 2, FIRST + 3]
    assert region.core.status().incarnation == FIRST


def test_without_a_checkpoint_the_new_process_begins_at_the_beginning() -> None:
    region = started()
    region.die(1)
    region.take()
    joins(region, 1)
    orders = region.sent(Restore, View)
    assert [order.restore for _, order in orders if isinstance(order, Restore)] == [None]
    assert [order.step for _, order in orders if isinstance(order, View)] == [0, 0]


# --- checkpoints ------------------------------------------------------------------------------------------


def taken_over_with_checkpoint_2(votes: tuple[int, ...]) -> CoordinatorHarness:
    """Checkpoint 2 is under way, some have voted for it, and worker 1 is lost, replaced and started."""
    region = running()
    region.play(CheckpointWanted())
    for worker in votes:
        voted(region, worker, FIRST, checkpoint=2, step=9)
    region.die(1)
    region.take()
    joins(region, 1)
    restored(region)
    return region


def test_the_vote_of_a_lost_worker_is_void_and_that_of_its_new_process_counts() -> None:
    region = taken_over_with_checkpoint_2(votes=(0, 1))
    assert [(link, order.checkpoint) for link, order in region.sent(RequestCheckpoint)] == [
        (region.links[1], 2)
    ]
    voted(region, 2, FIRST, checkpoint=2, step=9)
    assert region.take(AppendCheckpoint) == [], "the vote of worker 1 came from the lost process"
    voted(region, 1, FIRST + 1, checkpoint=2, step=9)
    checkpoint = appended(region)
    assert (checkpoint.number, checkpoint.version, checkpoint.incarnation) == (2, TERMS_VERSION, FIRST)
    assert [checkpoint.workers[worker].epochs() for worker in range(3)] == [{FIRST}, {FIRST + 1}, {FIRST}]
    assert [order.checkpoint for _, order in region.sent(Committed)] == [2, 2, 2]


def test_a_vote_of_the_former_term_is_refused() -> None:
    region = taken_over_with_checkpoint_2(votes=(0, 2))
    region.take()
    voted(region, 1, FIRST, checkpoint=2, step=9)
    effects = region.take()
    assert [one.refusal.name for one in effects if isinstance(one, MessageRefused)] == ["STALE_INCARNATION"]
    assert not [one for one in effects if isinstance(one, AppendCheckpoint)]
    voted(region, 1, FIRST + 1, checkpoint=2, step=9)
    assert appended(region).number == 2


def test_a_checkpoint_that_is_requested_meanwhile_waits_for_the_new_process() -> None:
    region = running()
    region.die(1)
    region.take()
    region.play(CheckpointWanted())
    assert [link for link, _ in region.sent(RequestCheckpoint)] == [region.links[0], region.links[2]]
    voted(region, 0, FIRST, checkpoint=2, step=9)
    voted(region, 2, FIRST, checkpoint=2, step=9)
    joins(region, 1)
    restored(region)
    assert [link for link, _ in region.sent(RequestCheckpoint)] == [region.links[1]]
    voted(region, 1, FIRST + 1, checkpoint=2, step=9)
    assert appended(region).number == 2


def test_an_append_under_way_is_settled_before_a_checkpoint_is_chosen_to_begin_at() -> None:
    region = running()
    region.play(CheckpointWanted())
    for worker in range(3):
        voted(region, worker, FIRST, checkpoint=2, step=9)
    (append,) = region.take(AppendCheckpoint)
    region.die(1)
    joins(region, 1)
    assert region.sent(Restore, View) == []
    region.play(CheckpointAppended(append.checkpoint))
    orders = region.sent(Committed, Restore, View)
    assert [link for link, order in orders if isinstance(order, Committed)] == [
        region.links[0],
        region.links[2],
    ]
    assert [order.checkpoint for _, order in orders if isinstance(order, Restore)] == [2]
    assert [order.step for _, order in orders if isinstance(order, View)] == [9, 9]


# --- versions and specifications --------------------------------------------------------------------------


def test_a_process_that_does_not_know_local_recovery_is_refused_by_name() -> None:
    region = running()
    region.die(1)
    region.take()
    joins(region, 1, speaks=(1, 1), host="old")
    effects = region.take()
    (refused,) = [one.refusal.text for one in effects if isinstance(one, MessageRefused)]
    assert refused == (
        "worker 1 on old speaks version 1 of the messages between workers, and local recovery needs version"
        ' 2: install a newer version there, or run the region with recovery="global"'
    )
    assert not [one for one in effects if isinstance(getattr(one, "message", None), Restore | View)]
    region.play(WorkerEnded(1, 2, "refused"))
    region.tick(1)
    joins(region, 1, attempt=3)
    assert [order.takes_over for _, order in region.sent(Restore)] == [True]


def test_local_recovery_needs_checkpoints() -> None:
    with pytest.raises(ValueError, match="local recovery needs checkpoints"):
        spec(recovery="local", without_checkpoints=True)
    with pytest.raises(ValueError, match="recovery must be 'global' or 'local', got 'ring'"):
        spec(recovery="ring")
    assert spec(without_checkpoints=True).recovery == "global"


def test_a_region_with_a_hosted_worker_ends_when_its_processes_have() -> None:
    """The launcher reports the end of processes, and a hosted worker is none."""
    region = running(workers=2)
    region.die(1)
    region.play(WorkerHosted(1, 2, host=0))
    joins(region, 1)
    restored(region)
    for worker in range(2):
        region.progress(worker, step=8, exhausted=True)
    for worker, term in ((0, FIRST), (1, FIRST + 1)):
        voted(region, worker, term, checkpoint=2, step=9)
    assert appended(region).final
    for worker in range(2):
        region.receive(worker, Finished)
    region.take()
    region.play(LinkDown(region.links[1], "closed"), WorkerEnded(1, 3, None), WorkerEnded(0, 1, None))
    assert [end.state for end in region.take(End)] == [RegionState.FINISHED]


def test_a_worker_on_a_host_gets_its_own_process_and_moves_there_after_a_commit() -> None:
    region = running()
    region.die(1)
    region.take()
    region.play(WorkerHosted(1, 2, host=0))
    joins(region, 1)
    assert region.core.status().workers[1].hosted_by == 0
    restored(region)
    assert LaunchWorker(1, 3, beside=True) in region.take()
    region.play(ScaleWanted(4))
    (refused,) = reports(region, ScaleSettled)
    assert refused.error.startswith("worker 0 runs worker 1 as well, until")
    hosted = region.links[1]
    joins(region, 1, attempt=3)
    assert not region.sent(Restore), "just after a commit there is least to make again"
    returning, region.links[1] = region.links[1], hosted
    region.play(CheckpointWanted())
    for worker, term in ((0, FIRST), (1, FIRST + 1), (2, FIRST)):
        voted(region, worker, term, checkpoint=2, step=9)
    appended(region)
    region.links[1] = returning
    effects = [one for one in region.take(SendControl) if isinstance(one.message, Stop | Restore | View)]
    assert [(one.link, type(one.message)) for one in effects] == [
        (hosted, Stop),
        (region.links[1], Restore),
        (region.links[0], View),
        (region.links[2], View),
    ]
    assert (effects[1].message.epoch, effects[1].message.checkpoint) == (FIRST + 2, 2)
    restored(region, term=FIRST + 2, last_step=9)
    assert region.core.status().workers[1].hosted_by is None
    assert [report.term for report in reports(region, ResetReport)] == [FIRST + 2]
