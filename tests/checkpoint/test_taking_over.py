"""A lost worker is taken over while the others continue, what resets all workers instead, and when reports of
peers make a worker lost, as the coordinator decides it.
"""

from collections.abc import Callable
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
    PauseWanted,
    ReplaceWanted,
    ResetWanted,
    ScaleWanted,
    SendControl,
    StopWanted,
    WorkerEnded,
    WorkerHosted,
)
from checkpoint.core.coordination.workers import WorkerState
from checkpoint.core.links.messages import (
    Committed,
    CompanionReport,
    CopiedAhead,
    CopyAhead,
    Counters,
    Failed,
    Finished,
    Pause,
    Paused,
    Peer,
    RequestCheckpoint,
    Restore,
    Restored,
    Start,
    Stop,
    Suspects,
    View,
    Vote,
)
from checkpoint.core.records.manifest import Checkpoint, WorkerCheckpoint
from checkpoint.core.region import RegionState, ReplaceSettled, ResetReport, ScaleSettled, WorkerLost
from journal.core.chain import Position
from tests.checkpoint.coordinator_harness import CoordinatorHarness
from tests.checkpoint.region_model import spec

FIRST = limits.terms_per_incarnation
"""The first incarnation."""
KILLED = "worker 1 was lost: its control link is gone: reset by peer"
CAUSE = "worker 1 was lost: killed by signal 9"
"""A reset has the cause that the launcher reports."""


def joins(region: CoordinatorHarness, worker: int, attempt: int = 2, **fields: Any) -> None:
    region.join(worker, attempt=attempt, **fields)


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
    return region.events(kind)


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


# --- a take-over -------------------------------------------------------------------------------------


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


# --- checkpoints ---------------------------------------------------------------------------------------


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
    assert (checkpoint.number, checkpoint.incarnation) == (2, FIRST)
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


# --- versions and specifications -----------------------------------------------------------------------


def test_a_process_that_shares_no_version_with_the_others_is_refused_by_name() -> None:
    region = running()
    region.die(1)
    region.take()
    joins(region, 1, speaks=(2, 3), host="later")
    effects = region.take()
    (refused,) = [one.refusal.text for one in effects if isinstance(one, MessageRefused)]
    assert refused.startswith(
        "worker 1 on later speaks versions 2 to 3 of the messages between workers, and worker 0 on "
    )
    assert "version 1: install a version on one of these hosts that fits the other" in refused
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


def with_a_hosted_worker(worker: int = 1, workers: int = 3) -> CoordinatorHarness:
    """A worker runs in the process of its predecessor, and one of its own is launched."""
    region = running(workers)
    region.die(worker)
    region.take()
    region.play(WorkerHosted(worker, 2, host=(worker - 1) % workers))
    joins(region, worker)
    restored(region, worker)
    assert LaunchWorker(worker, 3, beside=True) in region.take()
    return region


def paused_at(region: CoordinatorHarness, hosted: int) -> None:
    """All workers have stopped after a step; the checkpoint that follows is committed."""
    workers = len(region.core.run.roster)
    terms = [FIRST + (worker == hosted) for worker in range(workers)]
    for worker, term in enumerate(terms):
        at = {"pause": region.core.checkpoints.pause, "step": 8, "counters": Counters(step=8)}
        region.receive(worker, Paused, epoch=term, **at)
    for worker, term in enumerate(terms):
        voted(region, worker, term, checkpoint=2, step=9)
    appended(region)
    region.opened(region.core.run.last_checkpoint, epoch=region.epoch + FIRST)


@pytest.mark.parametrize("joined", [False, True], ids=["launched", "joined"])
@pytest.mark.parametrize(
    ("hosted", "workers"), [(1, 4), (0, 2), (2, 2)], ids=["more", "without-its-host", "without-it"]
)
def test_with_another_number_of_workers_a_hosted_one_gets_its_own_process(
    hosted: int, workers: int, joined: bool
) -> None:
    """The process that runs it may be that of a worker that leaves."""
    region = with_a_hosted_worker(hosted)
    link = region.links[hosted]
    if joined:
        joins(region, hosted, attempt=3)
    region.play(ScaleWanted(workers))
    launched = [one for one in region.out if isinstance(one, LaunchWorker)]
    assert launched == [LaunchWorker(new, 1) for new in range(3, workers)]
    for new in range(3, workers):
        joins(region, new, attempt=1)
    if not joined:
        joins(region, hosted, attempt=3)
    own, region.links[hosted] = region.links[hosted], link
    copying = [to for to, _ in region.sent(CopyAhead)]
    assert copying == [region.links[one] for one in range(workers) if one != hosted], "these have state"
    for one in range(workers):
        if one != hosted:
            number = 0 if one >= 3 else FIRST
            done = {"copied_bytes": 7, "total_bytes": 7, "done": True, "incarnation": number}
            region.receive(one, CopiedAhead, **done, epoch=number)
    assert sorted(to for to, _ in region.sent(Pause)) == sorted(region.links[one] for one in range(3))
    paused_at(region, hosted)
    ended = [to for to, _ in region.sent(Stop)]
    assert link in ended
    assert (own in ended) == (hosted >= workers)
    region.links[hosted] = own
    for one in range(workers):
        restored(region, one, term=region.epoch, last_step=9)
    for one in range(workers):
        voted(region, one, region.epoch, checkpoint=3, step=9)
    assert len(appended(region).workers) == workers
    assert [one.error for one in reports(region, ScaleSettled)] == [""]
    assert [one.hosted_by for one in region.core.status().workers] == [None] * workers
    assert region.state is RegionState.RUNNING


def test_each_hosted_worker_gets_its_own_process_with_a_change() -> None:
    """They return one after the other, so only the first one's process is launched before."""
    region = with_a_hosted_worker(1, workers=4)
    region.die(3)
    region.take()
    region.play(WorkerHosted(3, 2, host=2))
    joins(region, 3)
    restored(region, 3, term=FIRST + 2)
    assert [one.hosted_by for one in region.core.status().workers] == [None, 0, None, 2]
    region.take()
    region.play(ScaleWanted(5))
    assert set(region.take(LaunchWorker)) == {LaunchWorker(4, 1), LaunchWorker(3, 3, beside=True)}


@pytest.mark.parametrize("replaced", [1, 0], ids=["itself", "its-host"])
def test_a_hosted_worker_gets_its_own_process_when_one_is_replaced(replaced: int) -> None:
    region = with_a_hosted_worker()
    link = region.links[1]
    joins(region, 1, attempt=3)
    region.take()
    region.play(ReplaceWanted((replaced,)))
    own, region.links[1] = region.links[1], link
    if replaced == 0:
        assert region.take(LaunchWorker) == [LaunchWorker(0, 2, beside=True)]
        host = region.links[0]
        joins(region, 0)
        new, region.links[0] = region.links[0], host
    assert region.sent(CopyAhead) == [], "another process restores from the journals"
    paused_at(region, hosted=1)
    assert link in [to for to, _ in region.sent(Stop)]
    region.links[1] = own
    if replaced == 0:
        region.links[0] = new
    for one in range(3):
        restored(region, one, term=region.epoch, last_step=9)
    assert [(one.replaced, one.error) for one in reports(region, ReplaceSettled)] == [((replaced,), "")]
    assert [one.hosted_by for one in region.core.status().workers] == [None] * 3


def test_a_change_that_is_given_up_leaves_a_hosted_worker_and_its_process_is_launched_again() -> None:
    region = with_a_hosted_worker()
    link = region.links[1]
    joins(region, 1, attempt=3)
    region.play(ScaleWanted(4), ScaleWanted(None))
    effects = region.take()
    stopped = [one.link for one in effects if isinstance(one, SendControl) and isinstance(one.message, Stop)]
    assert stopped == [region.links[1]]
    assert [one for one in effects if isinstance(one, LaunchWorker)][-1] == LaunchWorker(1, 4, beside=True)
    region.links[1] = link
    assert [one.hosted_by for one in region.core.status().workers] == [None, 0, None]
    region.play(CheckpointWanted())
    for worker, term in ((0, FIRST), (1, FIRST + 1), (2, FIRST)):
        voted(region, worker, term, checkpoint=2, step=9)
    assert appended(region).number == 2


# --- what resets all workers instead ----------------------------------------------------------------------


INSTEAD = "; all workers are reset: "


def killed(region: CoordinatorHarness, worker: int = 1) -> None:
    region.die(worker, region.core.run.roster[worker].attempt)


def of_a_graph_that_is_not_deterministic() -> CoordinatorHarness:
    return running(resets_because="operator 'words' is not deterministic")


def being_changed() -> CoordinatorHarness:
    region = running()
    region.play(ScaleWanted(4))
    region.take()
    return region


def another_one_being_taken_over() -> CoordinatorHarness:
    region = running()
    killed(region, 2)
    joins(region, 2)
    region.take()
    return region


def the_same_one_being_taken_over() -> CoordinatorHarness:
    region = running()
    killed(region)
    joins(region, 1)
    region.take()
    return region


def lost_before_without_a_checkpoint_since() -> CoordinatorHarness:
    region = the_same_one_being_taken_over()
    restored(region)
    region.take()
    return region


def at_its_end() -> CoordinatorHarness:
    """The final checkpoint is committed."""
    region = running()
    for worker in range(3):
        region.progress(worker, step=8, exhausted=True)
    for worker in range(3):
        voted(region, worker, FIRST, checkpoint=2, step=9)
    assert appended(region).final
    region.take()
    return region


@pytest.mark.parametrize(
    ("prepared", "reason"),
    [
        (of_a_graph_that_is_not_deterministic, f"{CAUSE}{INSTEAD}operator 'words' is not deterministic"),
        (being_changed, f"{CAUSE}{INSTEAD}the workers of the region are being changed"),
        (another_one_being_taken_over, f"{CAUSE}{INSTEAD}worker 2 was being taken over"),
        (
            the_same_one_being_taken_over,
            f"{CAUSE}{INSTEAD}it was lost before, and no checkpoint was committed since",
        ),
        (
            lost_before_without_a_checkpoint_since,
            f"{CAUSE}{INSTEAD}it was lost before, and no checkpoint was committed since",
        ),
        (at_its_end, f"{CAUSE}{INSTEAD}the region has processed all of its input"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_loss_resets_all_workers_and_the_reset_names_the_reason(
    prepared: Callable[[], CoordinatorHarness], reason: str
) -> None:
    region = prepared()
    killed(region)
    assert region.core.status().reason == reason
    report = reset_of_all(region)
    assert (report.worker, report.reason) == (1, reason)


def test_the_loss_of_the_only_worker_is_a_reset() -> None:
    region = running(workers=1)
    killed(region, 0)
    assert reset_of_all(region).reason == f"{CAUSE.replace('1', '0')}{INSTEAD}it is the only worker"


def test_a_loss_before_all_have_started_is_a_reset() -> None:
    region = running()
    region.receive(0, Failed, kind="peer", peer=1, message="x")
    region.opened(region.core.run.last_checkpoint, epoch=2 * FIRST)
    region.receive(0, Restored, last_step=5)
    region.take()
    killed(region)
    assert region.core.status().reason == f"{KILLED}{INSTEAD}the region does not run"
    region.tick(1)  # the second reset in a row begins with a delay
    assert [order.step for order in region.take(OpenManifest)] == [FIRST]


def test_a_committed_checkpoint_lets_the_same_worker_be_taken_over_again() -> None:
    region = lost_before_without_a_checkpoint_since()
    region.play(CheckpointWanted())
    for worker, term in ((0, FIRST), (1, FIRST + 1), (2, FIRST)):
        voted(region, worker, term, checkpoint=2, step=9)
    appended(region)
    killed(region)
    assert region.take(OpenManifest) == []
    joins(region, 1, attempt=3)
    assert [order.epoch for _, order in region.sent(Restore)] == [FIRST + 2]


def test_a_process_that_ends_before_it_joins_is_a_second_loss() -> None:
    region = running()
    killed(region)
    region.take()
    region.play(WorkerEnded(1, 2, "ImportError: no module named x"))
    report = reset_of_all(region)
    assert report.reason == (
        f"worker 1 was lost: ImportError: no module named x{INSTEAD}it was lost before, and no checkpoint was"
        " committed since"
    )


@pytest.mark.parametrize("noted_after", [False, True], ids=["hosted", "hosted-after-the-loss"])
def test_a_worker_whose_host_is_lost_before_it_joined_gets_a_process_of_its_own(noted_after: bool) -> None:
    """Nobody reports its end: the launcher knows nothing of it, and it has no link."""
    region = running()
    killed(region)
    assert [(order.host, order.attempt) for order in region.take(LaunchWorker)] == [(0, 2)]
    hosted = WorkerHosted(1, 2, host=0)
    if noted_after:
        killed(region, 0)
        region.play(hosted)
    else:
        region.play(hosted)
        killed(region, 0)
    assert [order.step for order in region.take(OpenManifest)] == [FIRST]
    region.opened(region.core.run.last_checkpoint, epoch=region.epoch + FIRST)
    region.tick(1)
    launched = [order for order in region.take(LaunchWorker) if order.worker == 1]
    assert [(order.host, order.attempt) for order in launched] == [(None, 3)]


def test_a_region_whose_last_checkpoint_is_committed_meanwhile_is_reset() -> None:
    region = running()
    for worker in range(3):
        region.progress(worker, step=8, exhausted=True)
    for worker in range(3):
        voted(region, worker, FIRST, checkpoint=2, step=9)
    (append,) = region.take(AppendCheckpoint)
    killed(region)
    joins(region, 1)
    assert region.sent(Restore, View) == []
    region.play(CheckpointAppended(append.checkpoint))
    reason = f"{KILLED}{INSTEAD}meanwhile the region has processed all of its input"
    assert reset_of_all(region).reason == reason


def test_a_take_over_that_takes_too_long_is_given_up() -> None:
    region = running(reset_timeout_s=30.0)
    killed(region)
    region.tick(20)
    joins(region, 1)
    region.tick(9)
    assert region.take(OpenManifest) == []
    region.tick(2)
    report = reset_of_all(region)
    assert report.reason == f"{KILLED}; it was not taken over within reset_timeout 30 s"


def test_the_timer_of_a_take_over_ends_with_it() -> None:
    region = running(reset_timeout_s=30.0)
    killed(region)
    joins(region, 1)
    restored(region)
    region.take()
    region.tick(60)
    assert region.take(OpenManifest) == []


@pytest.mark.parametrize("kind", ["peer", "reset", "fenced"])
def test_a_failure_that_a_survivor_reports_meanwhile_resets_all(kind: str) -> None:
    region = running()
    killed(region)
    joins(region, 1)
    region.take()
    text = "it needs the steps after 5, and those up to 7 are not retained any more"
    region.receive(0, Failed, kind=kind, message=text)
    report = reset_of_all(region)
    assert report.reason.endswith(text)
    assert report.worker == 0


def test_a_survivor_that_fails_for_an_unknown_reason_is_a_second_loss() -> None:
    region = running()
    killed(region)
    joins(region, 1)
    region.take()
    region.receive(0, Failed, kind="internal", message="MemoryError", traceback="tb")
    report = reset_of_all(region)
    assert report.reason == f"worker 0 was lost: MemoryError{INSTEAD}worker 1 was being taken over"


def test_a_new_process_that_fails_is_a_second_loss_without_an_order_of_its_own() -> None:
    region = the_same_one_being_taken_over()
    region.receive(1, Failed, epoch=FIRST + 1, kind="internal", message="MemoryError")
    assert "it was lost before" in reset_of_all(region).reason


def test_terms_of_one_incarnation_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two terms fit between two incarnations of this test: the incarnation itself, and one more."""
    monkeypatch.setattr(limits, "terms_per_incarnation", 2)
    region = running()
    killed(region)
    joins(region, 1)
    restored(region)
    killed(region, 2)
    assert region.core.status().reason == (
        f"{CAUSE.replace('1', '2')}{INSTEAD}workers were taken over too often since the last reset"
    )


def test_with_global_recovery_the_reason_is_the_loss_alone() -> None:
    region = CoordinatorHarness(3).run()
    killed(region)
    assert region.core.status().reason == CAUSE
    assert region.core.run.roster[1].state is WorkerState.LAUNCHED
    assert region.take(LaunchWorker) == [LaunchWorker(1, 2)]


# --- requests and timers meanwhile ------------------------------------------------------------------------


def test_the_drain_clock_stands_still_until_the_worker_is_back() -> None:
    region = running(drain_timeout_s=30.0)
    region.play(CheckpointWanted())
    for worker in (0, 2):
        voted(region, worker, FIRST, checkpoint=2, step=9)
    region.tick(20)
    region.die(1)
    region.tick(20)
    joins(region, 1)
    region.tick(20)
    restored(region)
    region.tick(29)
    assert region.take(OpenManifest) == []
    assert region.state is RegionState.RUNNING
    region.tick(2)
    report = reset_of_all(region)
    assert report.reason.startswith("worker 1 was lost: no vote for checkpoint 2 within drain_timeout 30 s")


def test_the_drain_clock_of_a_checkpoint_that_is_requested_meanwhile_begins_with_the_worker() -> None:
    """No step can end without it, so nobody could vote."""
    region = running(drain_timeout_s=30.0)
    region.die(1)
    region.play(CheckpointWanted())
    region.tick(40)
    assert region.take(OpenManifest) == []
    joins(region, 1)
    restored(region)
    region.tick(29)
    assert region.take(OpenManifest) == []
    region.tick(2)
    assert "no vote for checkpoint 2 within drain_timeout 30 s" in reset_of_all(region).reason


def test_a_pause_in_force_is_sent_to_the_new_process() -> None:
    region = running()
    region.play(PauseWanted(on=True))
    region.receive_from_all(Paused, pause=1, step=5, counters=Counters(step=5))
    assert region.state is RegionState.PAUSED
    region.die(1)
    assert region.state is RegionState.RUNNING, "it is not known whether the new process stands still"
    region.take()
    joins(region, 1)
    restored(region)
    orders = [(link, type(order)) for link, order in region.sent(Start, Pause)]
    assert orders == [(region.links[1], Start), (region.links[1], Pause)]
    region.receive(1, Paused, epoch=FIRST + 1, pause=1, step=5, counters=Counters(step=5))
    assert region.state is RegionState.PAUSED


@pytest.mark.parametrize(("orders", "expected"), [((True,), [1]), ((True, False), [])])
def test_the_new_process_gets_the_pause_order_that_is_in_force_when_it_starts(
    orders: tuple[bool, ...], expected: list[int]
) -> None:
    region = running()
    region.die(1)
    joins(region, 1)
    for on in orders:
        region.play(PauseWanted(on=on))
    region.take()
    restored(region)
    assert [order.pause for _, order in region.sent(Pause)] == expected


def test_a_stop_waits_for_the_new_process_and_its_vote() -> None:
    region = running()
    region.progress(0, step=8)
    region.die(1)
    region.take()
    region.play(StopWanted())
    assert region.state is RegionState.STOPPING
    joins(region, 1)
    restored(region)
    for worker, term in ((0, FIRST), (1, FIRST + 1), (2, FIRST)):
        region.receive(worker, Paused, epoch=term, pause=1, step=9, counters=Counters(step=9))
    for worker, term in ((0, FIRST), (1, FIRST + 1), (2, FIRST)):
        voted(region, worker, term, checkpoint=2, step=9)
    assert appended(region).number == 2
    assert [order.kind for _, order in region.sent(Stop)] == ["stopped"] * 3
    assert region.core.status().reason == "stopped"


def test_a_stop_during_a_take_over_that_takes_too_long_ends_without_the_last_checkpoint() -> None:
    region = running(reset_timeout_s=10.0)
    region.progress(0, step=8)
    region.die(1)
    region.play(StopWanted())
    region.tick(20)
    assert region.state is RegionState.STOPPING
    region.tick(11)
    region.play(*(WorkerEnded(worker, 1, None) for worker in (0, 2)), WorkerEnded(1, 2, None))
    assert region.state is RegionState.STOPPED
    assert "without a last checkpoint" in region.core.status().reason


def test_the_workers_cannot_be_changed_during_a_take_over() -> None:
    region = running()
    region.die(1)
    region.take()
    region.play(ScaleWanted(4), ReplaceWanted((0,)))
    effects = region.take()
    events = [one.event for one in effects if isinstance(one, NotifyObservers)]
    errors = [one.error for one in events if isinstance(one, ScaleSettled | ReplaceSettled)]
    assert errors == ["a worker is being taken over: try again when it runs"] * 2
    assert not [one for one in effects if isinstance(one, LaunchWorker)]
    joins(region, 1)
    restored(region)
    region.play(ScaleWanted(4))
    assert LaunchWorker(3, 1) in region.take()


def test_a_reset_by_hand_ends_a_take_over() -> None:
    region = running()
    region.die(1)
    joins(region, 1)
    region.take()
    region.play(ResetWanted())
    assert reset_of_all(region).reason == "a reset was requested"
    region.die(2)
    joins(region, 2)
    assert [order.epoch for _, order in region.sent(Restore)] == [2 * FIRST + 1], "terms begin again"


# --- suspected workers ------------------------------------------------------------------------------------


SILENT = "it did not answer for 0.4 s"


def suspects(region: CoordinatorHarness, by: int, peer: int = 1, term: int = FIRST, **fields: Any) -> None:
    region.receive(by, Suspects, peer=peer, term=term, **{"reason": SILENT, **fields})


def lost(region: CoordinatorHarness) -> list[str]:
    """The reasons of the losses since the last call."""
    return [event.reason for event in reports(region, WorkerLost)]


def test_one_report_about_a_worker_that_lives_does_nothing() -> None:
    region = running()
    suspects(region, by=0)
    effects = region.take()
    assert not [one for one in effects if isinstance(one, CancelWorker | LaunchWorker | MessageRefused)]
    region.tick(1)
    suspects(region, by=0)
    assert lost(region) == []


def test_two_workers_that_report_a_third_one_make_it_lost() -> None:
    region = running()
    suspects(region, by=2)
    region.now += 1.0
    suspects(region, by=0)
    effects = region.take()
    assert [one for one in effects if isinstance(one, CancelWorker | LaunchWorker)] == [
        CancelWorker(1, 1),
        LaunchWorker(1, 2, host=0, host_link=100),
    ]
    events = [one.event for one in effects if isinstance(one, NotifyObservers)]
    assert [one.reason for one in events if isinstance(one, WorkerLost)] == [
        f"workers 0, 2 report that {SILENT}"
    ]
    joins(region, 1)
    restored(region)
    (report,) = region.core.status().resets
    assert (report.reason, report.term) == (
        f"worker 1 was lost: workers 0, 2 report that {SILENT}",
        FIRST + 1,
    )


def test_a_report_about_a_worker_that_is_silent_here_too_makes_it_lost() -> None:
    region = running()
    region.tick(1, silent=(1,))
    suspects(region, by=0)
    assert lost(region) == []
    region.now += limits.suspected_silent_s - 1.0 + 0.1
    suspects(region, by=0)
    (reason,) = lost(region)
    assert reason == f"worker 0 reports that {SILENT}, and it sent nothing for 1.6 s"
    assert region.state is RegionState.RUNNING


def test_one_worker_that_cannot_reach_another_one_for_long_has_it_replaced() -> None:
    """No step can end without the link between them."""
    region = running()
    found: list[str] = []
    while not found and region.now < 60.0:
        suspects(region, by=0)
        found = lost(region)
        region.tick(1)
    assert found == [f"worker 0 cannot reach it, although it lives: {SILENT}"]
    assert limits.suspects_alone_s < region.now <= limits.suspects_alone_s + 2.0


def test_reports_with_a_pause_between_them_are_counted_from_the_last_pause_on() -> None:
    region = running()
    for _ in range(4):
        suspects(region, by=0)
        region.tick(1)
    region.tick(2)  # the link is well again
    for _ in range(4):
        suspects(region, by=0)
        region.tick(1)
    assert lost(region) == [], "four seconds each"


def test_reports_of_two_workers_at_different_times_are_no_agreement() -> None:
    region = running()
    suspects(region, by=0)
    region.tick(2)
    suspects(region, by=2)
    assert lost(region) == []


def test_a_worker_that_reports_twice_is_no_second_reporter() -> None:
    region = running()
    suspects(region, by=0)
    suspects(region, by=0)
    assert lost(region) == []


def test_a_report_about_a_former_term_is_ignored() -> None:
    region = running()
    region.die(1)
    joins(region, 1)
    restored(region)
    region.take()
    for by in (0, 2):
        suspects(region, by=by, term=FIRST)
    assert lost(region) == []
    for by in (0, 2):
        suspects(region, by=by, term=FIRST + 1)
    assert lost(region) == [f"workers 0, 2 report that {SILENT}"], "of the present term it counts"


def test_a_report_about_a_worker_that_is_known_to_be_lost_is_ignored() -> None:
    region = running()
    region.die(1)
    region.take()
    for by in (0, 2):
        suspects(region, by=by, term=FIRST + 1)
    assert lost(region) == []
    joins(region, 1)
    assert region.state is RegionState.RUNNING


@pytest.mark.parametrize("peer", [-1, 3, 9])
def test_a_report_about_no_worker_is_refused(peer: int) -> None:
    region = running()
    suspects(region, by=0, peer=peer)
    (refused,) = region.take(MessageRefused)
    assert (refused.refusal.name, refused.refusal.text) == ("UNEXPECTED", f"worker 0 suspects worker {peer}")


def test_with_global_recovery_such_a_report_is_refused() -> None:
    region = CoordinatorHarness(3).run()
    for by in (0, 2):
        suspects(region, by=by, term=1)
    assert [one.refusal.name for one in region.take(MessageRefused)] == ["UNEXPECTED"] * 2
    assert region.state is RegionState.RUNNING


def test_a_report_of_an_earlier_incarnation_is_refused() -> None:
    region = running()
    suspects(region, by=0, incarnation=0)
    suspects(region, by=2, incarnation=0)
    assert [one.refusal.name for one in region.take(MessageRefused)] == ["STALE_INCARNATION"] * 2


@pytest.mark.parametrize("stopped", [False, True])
def test_a_worker_in_user_code_is_no_lost_one_if_its_companion_says_that_it_runs(stopped: bool) -> None:
    region = running()
    for _ in range(8):
        region.receive(1, CompanionReport, attempt=1, operator="regex", stopped=stopped)
        suspects(region, by=0)
        suspects(region, by=2)
        region.tick(1, silent=(1,))
    assert bool(lost(region)) == stopped


def test_a_worker_that_lives_and_that_nobody_reaches_is_replaced_although_its_companion_reports() -> None:
    region = running()
    for _ in range(8):
        region.receive(1, CompanionReport, attempt=1, operator="regex")
        suspects(region, by=0)
        suspects(region, by=2)
        region.tick(1)
    assert lost(region)
