"""The coordinator, story by story: what it orders, waits for and refuses, and when it gives up."""

import pytest

from checkpoint.core.coordinator import Coordinator
from checkpoint.core.coordinator_vocabulary import (
    AppendCut,
    Begin,
    CancelWorker,
    CloseLink,
    ControlReceived,
    CoordinatorTick,
    CutAppended,
    CutWanted,
    End,
    LaunchWorker,
    LinkDown,
    ManifestLost,
    ManifestOpened,
    ManifestSuperseded,
    ManifestTaken,
    ManifestUnreadable,
    MessageRefused,
    NotifyObservers,
    OpenManifest,
    ResetWanted,
    SendControl,
    StopWanted,
    StoreWaiting,
    WorkerEnded,
)
from checkpoint.core.manifest import WorkerCut
from checkpoint.core.messages import (
    Committed,
    Counters,
    Failed,
    Finished,
    Heartbeat,
    Join,
    Prepared,
    Progress,
    RequestCut,
    Restore,
    Restored,
    Start,
    Stop,
    WantsCut,
)
from checkpoint.core.region import CutCommitted, RegionState, ResetReport
from checkpoint.core.region_states import PHASES, VISIBLE_STATES, WORKERS, CoordinatorPhase, WorkerState
from checkpoint.errors import ManifestError, RegionFailedError, RegionFencedError
from journal.core.position import Position
from tests.checkpoint.region_model import spec

BEATS = (Heartbeat,)


class Scene:
    """One coordinator; the test plays everybody else. `out` has the effects since it was last taken."""

    def __init__(self, workers=2, **fields):
        fields.setdefault("operators", {"count": "count(word string)"})
        self.spec = spec(workers, **fields)
        self.core = Coordinator(self.spec)
        self.now = 0.0
        self.out = []
        self.epoch = 0
        self.links = {}
        self.play(Begin())

    def play(self, *events):
        for event in events:
            self.out += self.core.handle(event, self.now)

    def take(self, *kinds):
        """The effects of these kinds so far, and forget all."""
        found = [e for e in self.out if isinstance(e, kinds or object)]
        self.out = []
        return found

    def sent(self, *kinds):
        return [(e.link, e.message) for e in self.take(SendControl) if isinstance(e.message, kinds)]

    def opened(self, cut=None, epoch=None):
        self.epoch = epoch or self.epoch + 1
        self.play(ManifestOpened(self.epoch, cut))

    def join(self, worker, attempt=1, link=None):
        link = 100 * attempt + worker if link is None else link
        self.links[worker] = link
        join = Join(
            job="region",
            worker=worker,
            attempt=attempt,
            pid=1,
            host="h",
            exchange_host="h",
            exchange_port=1 + worker,
        )
        self.play(ControlReceived(link, join))

    def hear(self, worker, cls, link=None, **fields):
        fields = {"job": "region", "incarnation": self.epoch, "epoch": self.epoch, "worker": worker, **fields}
        self.play(ControlReceived(self.links[worker] if link is None else link, cls(**fields)))

    def all_hear(self, cls, **fields):
        for worker in range(self.spec.workers):
            self.hear(worker, cls, **fields)

    def progress(self, worker, **counters):
        self.hear(worker, Progress, counters=Counters(**counters))

    def vote(self, worker, cut, step=5, epoch=None, **fields):
        epoch = epoch or self.epoch
        at = Position(epoch, 100 + cut, worker + 1)
        positions = WorkerCut(state=at, steps=at)
        self.hear(
            worker,
            Prepared,
            cut=cut,
            step=step,
            incarnation=epoch,
            epoch=epoch,
            positions=positions,
            **fields,
        )

    def run_to_start(self):
        """Run until all have received Start."""
        self.opened()
        for worker in range(self.spec.workers):
            self.join(worker)
        self.all_hear(Restored, last_step=0)

    def run(self):
        """Until RUNNING."""
        self.run_to_start()
        assert self.state is RegionState.RUNNING
        self.take()
        return self

    def commit(self, cut=1, step=5):
        """A whole cut, acknowledged. Returns it."""
        self.play(CutWanted())
        for worker in range(self.spec.workers):
            self.vote(worker, cut, step)
        (append,) = self.take(AppendCut)
        self.play(CutAppended(append.cut))
        return append.cut

    def tick(self, seconds, silent=()):
        """Seconds pass, each tick on time; linked workers but the silent ones are heard from."""
        for _ in range(int(seconds)):
            self.now += 1.0
            for worker, link in list(self.core.state.roster.linked()):
                if worker.index not in silent:
                    self.hear(worker.index, Progress, link=link, counters=worker.counters)
            due = self.core.deadline()
            if due is not None and due <= self.now:
                self.play(CoordinatorTick(self.now))

    @property
    def state(self):
        return self.core.status().state

    def die(self, worker, attempt=1):
        self.play(
            LinkDown(self.links[worker], "reset by peer"), WorkerEnded(worker, attempt, "killed by signal 9")
        )


# --- starting ---------------------------------------------------------------------------------------


def test_no_order_goes_out_before_the_manifest_start_is_acknowledged() -> None:
    # EVIDENCE-OF: P-4
    scene = Scene()
    assert scene.take(OpenManifest) == [OpenManifest(above=0, held=0)]
    scene.join(0)
    scene.join(1)
    assert scene.sent(Restore, Start, RequestCut, Committed) == []
    assert scene.state is RegionState.STARTING
    scene.opened(epoch=7)
    orders = scene.sent(Restore)
    assert [(link, order.incarnation, order.restore) for link, order in orders] == [
        (100, 7, None),
        (101, 7, None),
    ]
    assert [(peer.host, peer.port) for peer in orders[0][1].peers] == [("h", 1), ("h", 2)]


def test_workers_are_launched_while_the_manifest_is_opened() -> None:
    assert Scene().take(LaunchWorker) == [LaunchWorker(0, 1), LaunchWorker(1, 1)]


def test_all_start_together_and_replay_what_all_have_on_record() -> None:
    scene = Scene()
    scene.opened()
    scene.join(0)
    scene.join(1)
    scene.take()
    scene.hear(0, Restored, last_step=9)
    assert scene.sent(Start) == []
    scene.hear(1, Restored, last_step=7)
    assert [order.replay_until_step for _, order in scene.sent(Start)] == [7, 7]


def test_two_coordinators_that_start_together_wait_a_random_doubling_time() -> None:
    scene = Scene()
    scene.take()
    waits = []
    for _ in range(8):
        scene.play(ManifestSuperseded(5, 0.5))
        assert scene.take(OpenManifest) == []
        waits.append(round(scene.core.state.timers._due["open"] - scene.now, 6))
        scene.now = scene.core.state.timers._due["open"]
        scene.play(CoordinatorTick(scene.now))
        assert len(scene.take(OpenManifest)) == 1
    assert waits[:3] == [0.05, 0.1, 0.2]
    assert waits[-1] == 2.5


def test_where_an_attempt_takes_long_the_wait_is_long_beside_it() -> None:
    """On paths of a second each attempt takes some: waits of at most five would meet the others' attempts
    again and again. What an attempt waited for the store beforehand counts no more than its patience."""
    scene = Scene()
    scene.take()
    waits = []
    for _ in range(4):
        scene.play(ManifestSuperseded(5, 1.0, attempt_s=6.0))
        waits.append(round(scene.core.state.timers._due["open"] - scene.now, 6))
        scene.now = scene.core.state.timers._due["open"]
        scene.play(CoordinatorTick(scene.now))
        scene.take()
    assert waits == [12.1, 24.2, 29.0, 29.0]
    scene.play(ManifestSuperseded(5, 1.0, attempt_s=600.0))
    assert scene.core.state.timers._due["open"] - scene.now == pytest.approx(45.0)


def test_workers_that_do_not_come_fail_the_start_by_name() -> None:
    scene = Scene(start_timeout_s=20.0)
    scene.opened()
    scene.join(0)
    scene.tick(21)
    assert "worker 1 did not join within 20 s" in scene.core.state.reason
    assert scene.state is RegionState.STOPPING
    assert [message.kind for _, message in scene.sent(Stop)] == ["failed"]
    assert isinstance(scene.core.state.outcome.error, RegionFailedError)


def test_a_stranger_a_wrong_worker_and_an_old_attempt_are_turned_away() -> None:
    scene = Scene().run()
    scene.join(5, link=1)
    scene.join(1, attempt=1, link=2)
    scene.play(ControlReceived(3, Progress(job="region", worker=0, counters=Counters())))
    scene.play(
        ControlReceived(
            100, Join(job="other", worker=0, attempt=1, pid=1, host="", exchange_host="", exchange_port=1)
        )
    )
    effects = scene.take(SendControl, CloseLink, MessageRefused)
    assert [e.message.kind for e in effects if isinstance(e, SendControl)] == ["refused", "superseded"]
    assert [e.link for e in effects if isinstance(e, CloseLink)] == [1, 2]
    names = [e.refusal.name for e in effects if isinstance(e, MessageRefused)]
    assert names == ["UNKNOWN_WORKER", "STALE_ATTEMPT", "UNKNOWN_WORKER", "WRONG_JOB"]
    assert scene.state is RegionState.RUNNING


def test_an_attempt_that_was_replaced_cannot_join() -> None:
    scene = Scene()
    scene.opened()
    scene.play(WorkerEnded(0, 1, "no slot"))
    assert scene.take(LaunchWorker)[-1] == LaunchWorker(0, 2)
    scene.join(0, attempt=1)
    assert [message.kind for _, message in scene.sent(Stop)] == ["superseded"]
    scene.join(0, attempt=2)
    assert scene.core.state.roster[0].state is WorkerState.JOINED


# --- cuts -------------------------------------------------------------------------------------------


def test_a_checkpoint_commits_only_by_the_acknowledged_append_after_every_vote() -> None:
    # EVIDENCE-OF: P-6
    scene = Scene().run()
    scene.progress(0, step=3)
    scene.tick(1)
    assert [order.cut for _, order in scene.sent(RequestCut)] == [1, 1]
    scene.vote(0, 1)
    assert scene.take(AppendCut, SendControl) == []
    scene.vote(1, 1)
    (append,) = scene.take()
    assert isinstance(append, AppendCut)
    cut = append.cut
    assert (cut.cut, cut.step, cut.incarnation, cut.parent, sorted(cut.workers)) == (1, 5, 1, 0, [0, 1])
    assert scene.core.status().last_cut == 0
    scene.play(CutAppended(cut))
    assert [(order.cut, order.step) for _, order in scene.sent(Committed)] == [(1, 5), (1, 5)]
    assert scene.core.status().last_cut == 1


def test_checkpoints_follow_one_another_never_two_at_a_time() -> None:
    scene = Scene().run()
    scene.progress(0, step=3)
    scene.tick(1)
    scene.tick(3)
    assert [order.cut for _, order in scene.sent(RequestCut)] == [1, 1]
    scene.progress(0, step=9)
    for worker in (0, 1):
        scene.vote(worker, 1, step=5)
    (append,) = scene.take(AppendCut)
    scene.tick(2)
    scene.play(CutWanted())
    assert scene.sent(RequestCut) == []
    scene.play(CutAppended(append.cut))
    assert [order.cut for _, order in scene.sent(RequestCut)] == [2, 2]  # the time had come meanwhile


def test_an_idle_region_makes_no_checkpoints_but_a_user_can_have_one() -> None:
    scene = Scene().run()
    scene.tick(10)
    assert scene.sent(RequestCut) == []
    scene.play(CutWanted())
    assert [order.cut for _, order in scene.sent(RequestCut)] == [1, 1]


def test_where_operators_trigger_checkpoints_time_does_not_and_each_place_gets_one() -> None:
    scene = Scene(trigger="operator").run()
    scene.progress(0, step=3)
    scene.tick(5)
    assert scene.sent(RequestCut) == []
    scene.hear(0, WantsCut, step=3)
    assert [order.cut for _, order in scene.sent(RequestCut)] == [1, 1]
    scene.hear(1, WantsCut, step=6)
    assert scene.sent(RequestCut) == [], "one at a time"
    for worker in (0, 1):
        scene.vote(worker, 1, step=5)
    (append,) = scene.take(AppendCut)
    scene.play(CutAppended(append.cut))
    assert [order.cut for _, order in scene.sent(RequestCut)] == [2, 2], "cut 1 does not hold step 6"
    for worker in (0, 1):
        scene.vote(worker, 2, step=7)
    (append,) = scene.take(AppendCut)
    scene.play(CutAppended(append.cut))
    scene.tick(5)
    assert scene.sent(RequestCut) == []


def test_where_time_triggers_checkpoints_operators_do_not() -> None:
    scene = Scene(checkpoint_interval_s=100.0).run()
    scene.hear(0, WantsCut, step=3)
    scene.tick(5)
    assert scene.sent(RequestCut) == []


def test_the_first_step_after_a_pause_is_cut_at_once() -> None:
    scene = Scene().run()
    scene.tick(10)
    scene.take()
    scene.progress(0, step=1)
    assert [order.cut for _, order in scene.sent(RequestCut)] == [1, 1]
    for worker in (0, 1):
        scene.vote(worker, 1, step=2)
    (append,) = scene.take(AppendCut)
    scene.play(CutAppended(append.cut))
    scene.progress(0, step=3)
    assert scene.sent(RequestCut) == []  # its time has not come yet


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"cut": 1, "epoch": 3}, "STALE_INCARNATION"),
        ({"cut": 1, "epoch": 5}, "FUTURE_INCARNATION"),
        ({"cut": 2}, "STALE_CUT"),
    ],
)
def test_a_vote_of_another_life_or_number_is_refused_by_name(fields, name) -> None:
    # EVIDENCE-OF: P-4
    scene = Scene()
    scene.epoch = 3
    scene.run()
    assert scene.epoch == 4
    scene.play(CutWanted())
    scene.take()
    scene.vote(0, **fields)
    scene.vote(1, 1)
    effects = scene.take()
    assert [effect.refusal.name for effect in effects] == [name]
    scene.vote(0, 1)
    assert len(scene.take(AppendCut)) == 1


def test_a_vote_whose_positions_are_of_another_epoch_is_refused() -> None:
    scene = Scene().run()
    scene.play(CutWanted())
    scene.take()
    positions = WorkerCut(state=Position(9, 1, 1), steps=Position(1, 1, 1))
    scene.hear(0, Prepared, cut=1, step=5, positions=positions)
    scene.vote(1, 1)
    assert [effect.refusal.name for effect in scene.take()] == ["STALE_INCARNATION"]


def test_a_vote_of_an_earlier_incarnation_does_not_complete_the_same_number_in_this_one() -> None:
    # EVIDENCE-OF: P-6
    # worker 0 voted for cut 1 in incarnation 1, worker 1 died before it did; cut 1 is asked for again
    scene = Scene().run()
    scene.play(CutWanted())
    scene.vote(0, 1, epoch=1)
    scene.die(1)
    scene.opened()
    scene.join(1, attempt=2)
    scene.all_hear(Restored, last_step=0)
    scene.play(CutWanted())
    scene.take()
    scene.vote(1, 1)
    scene.vote(0, 1, epoch=1)  # once more, late
    assert scene.take(AppendCut) == []
    scene.vote(0, 1)
    (append,) = scene.take(AppendCut)
    assert {part.state.epoch for part in append.cut.workers.values()} == {2}


def test_a_worker_votes_once() -> None:
    scene = Scene().run()
    scene.play(CutWanted())
    scene.take()
    scene.vote(0, 1, step=5)
    scene.vote(0, 1, step=6)
    assert [effect.refusal.name for effect in scene.take()] == ["UNEXPECTED"]


def test_votes_for_different_steps_make_no_checkpoint_and_stop_the_region() -> None:
    scene = Scene().run()
    scene.play(CutWanted())
    scene.vote(0, 1, step=5)
    scene.vote(1, 1, step=6)
    assert scene.take(AppendCut) == []
    assert "different steps: {0: 5, 1: 6}" in scene.core.state.reason


def test_an_acknowledgement_of_an_earlier_incarnation_commits_nothing() -> None:
    scene = Scene().run()
    scene.play(CutWanted())
    for worker in (0, 1):
        scene.vote(worker, 1)
    (append,) = scene.take(AppendCut)
    scene.die(1)
    scene.play(CutAppended(append.cut))
    assert scene.sent(Committed) == []
    scene.opened()
    scene.join(1, attempt=2)
    scene.all_hear(Restored, last_step=0)
    scene.play(CutWanted())
    for worker in (0, 1):
        scene.vote(worker, 1)
    scene.play(CutAppended(append.cut))  # of incarnation 1, while the same number is out in 2
    assert scene.sent(Committed) == []
    assert scene.core.status().last_cut == 0


def test_a_cut_in_doubt_that_is_in_the_manifest_is_restored_and_forgives() -> None:
    # EVIDENCE-OF: P-6
    scene = Scene().run()
    scene.play(CutWanted())
    for worker in (0, 1):
        scene.vote(worker, 1)
    (append,) = scene.take(AppendCut)
    scene.die(1)
    scene.take()
    scene.opened(append.cut)
    assert [e.event for e in scene.take(NotifyObservers) if isinstance(e.event, CutCommitted)] != []
    assert scene.core.status().reset_attempts == 0
    scene.join(1, attempt=2)
    assert [order.restore for _, order in scene.sent(Restore)] == [append.cut, append.cut]
    scene.all_hear(Restored, last_step=5)
    scene.play(CutWanted())
    assert [order.cut for _, order in scene.sent(RequestCut)] == [2, 2]


# --- losses and resets ------------------------------------------------------------------------------


def test_a_reset_takes_the_manifest_first_and_orders_after() -> None:
    # EVIDENCE-OF: P-4, P-6
    scene = Scene().run()
    cut = scene.commit()
    scene.take()
    scene.play(LinkDown(100, "reset by peer"))
    effects = scene.take()
    assert [e for e in effects if isinstance(e, OpenManifest)] == [OpenManifest(above=0, held=1)]
    assert not any(isinstance(e, SendControl | CancelWorker | LaunchWorker) for e in effects)
    scene.opened(cut)
    assert scene.take(CancelWorker, LaunchWorker) == [CancelWorker(0), LaunchWorker(0, 2)]
    scene.join(0, attempt=2)
    orders = scene.sent(Restore)
    assert [(order.incarnation, order.cut, order.restore) for _, order in orders] == [
        (2, 1, cut),
        (2, 1, cut),
    ]


def test_a_worker_known_dead_is_launched_again_at_once() -> None:
    scene = Scene().run()
    scene.die(0)
    assert scene.take(LaunchWorker, CancelWorker) == [LaunchWorker(0, 2)]


def test_a_hung_worker_is_fenced_first_then_cancelled() -> None:
    scene = Scene().run()
    scene.tick(10, silent=(1,))
    assert scene.state is RegionState.RUNNING
    scene.tick(1, silent=(1,))
    effects = scene.take()
    assert any(isinstance(e, OpenManifest) for e in effects)
    assert not any(isinstance(e, CancelWorker) for e in effects)
    assert "nothing was received from it for" in scene.core.state.reason
    scene.opened()
    assert scene.take(CancelWorker, LaunchWorker) == [CancelWorker(1), LaunchWorker(1, 2)]


def test_time_in_which_the_own_loop_was_late_counts_against_nobody() -> None:
    scene = Scene().run()
    scene.tick(5)
    scene.now += 60.0
    scene.play(CoordinatorTick(scene.now - 59.0))
    assert scene.state is RegionState.RUNNING
    assert scene.take(OpenManifest) == []


def test_two_workers_lost_at_one_time_are_one_attempt() -> None:
    scene = Scene(max_consecutive_reset_attempts=1).run()
    scene.die(0)
    scene.die(1)
    assert scene.core.status().reset_attempts == 1
    scene.opened()
    scene.join(0, 2)
    scene.join(1, 2)
    scene.all_hear(Restored, last_step=0, replayed_bytes=10)
    assert scene.state is RegionState.RUNNING
    (report,) = [e.event for e in scene.take(NotifyObservers) if isinstance(e.event, ResetReport)]
    assert (report.worker, report.bytes, report.incarnation) == (0, 20, 2)
    assert report.reason.startswith("worker 0 was lost: its control link is gone")


def test_a_reset_names_the_place_its_time_went() -> None:
    """One after the other, so that the sum is the whole; of the workers the slowest one counts."""
    scene = Scene().run()
    scene.die(1)
    scene.now += 1.0
    scene.opened()
    scene.now += 2.0
    scene.join(1, 2)
    scene.now += 4.0
    quick, slow = {"claim": 0.25, "load": 0.25}, {"claim": 0.5, "load": 3.0}
    scene.hear(0, Restored, last_step=0, seconds=0.5, phases_s=quick)
    scene.hear(1, Restored, last_step=0, seconds=3.5, phases_s=slow)
    (report,) = [e.event for e in scene.take(NotifyObservers) if isinstance(e.event, ResetReport)]
    assert report.phases_s == {"manifest": 1.0, "gather": 2.0, "claim": 0.5, "load": 3.0, "start": 0.5}
    assert report.seconds == sum(report.phases_s.values())


def test_attempts_run_out_clearly_and_a_committed_checkpoint_forgives_them() -> None:
    # EVIDENCE-OF: P-10
    scene = Scene(max_consecutive_reset_attempts=2).run()
    attempt = 1
    for _ in range(2):
        scene.die(1, attempt)
        attempt += 1
        scene.opened(scene.core.state.last_cut)
        scene.tick(1)
        scene.join(1, attempt)
        scene.all_hear(Restored, last_step=0)
    assert scene.core.status().reset_attempts == 2
    scene.commit()
    assert scene.core.status().reset_attempts == 0
    for _ in range(2):
        scene.die(1, attempt)
        attempt += 1
        scene.opened(scene.core.state.last_cut)
        scene.tick(1)
        scene.join(1, attempt)
        scene.all_hear(Restored, last_step=0)
    scene.take()
    scene.die(1, attempt)
    assert "no checkpoint was committed after 2 consecutive resets" in scene.core.state.reason
    assert "worker 1" in scene.core.state.reason
    assert scene.take(OpenManifest, LaunchWorker) == []


def test_a_worker_that_cannot_start_is_tried_again_more_and_more_slowly_then_it_fails() -> None:
    scene = Scene(max_consecutive_reset_attempts=5)
    scene.opened()
    scene.join(0)
    launched = []
    for attempt in range(1, 7):
        assert not scene.core.state.over
        scene.take()
        scene.play(WorkerEnded(1, attempt, "ImportError: no module named x"))
        began = scene.now
        while not scene.core.state.over and scene.core.state.roster[1].attempt == attempt:
            scene.now = scene.core.deadline()
            scene.hear(0, Progress, counters=Counters())
            scene.play(CoordinatorTick(scene.now))
        launched.append(round(scene.now - began, 3))
    assert launched[:5] == [0.0, 0.5, 1.0, 2.0, 4.0]
    assert scene.core.state.over
    assert "ImportError" in scene.core.state.reason


def test_a_fenced_worker_lets_the_next_incarnation_go_above_what_it_met() -> None:
    scene = Scene().run()
    scene.hear(0, Failed, kind="fenced", message="its directory is claimed with epoch 41", epoch_held=41)
    assert scene.take(OpenManifest) == [OpenManifest(above=41, held=1)]
    assert scene.core.state.roster[0].state is WorkerState.JOINED


def test_a_broken_link_between_workers_resets_without_ending_anyone() -> None:
    scene = Scene().run()
    scene.hear(0, Failed, kind="peer", peer=1, message="worker 1 cannot be reached at h:2")
    scene.opened()
    assert [order.incarnation for _, order in scene.sent(Restore)] == [2, 2]
    assert scene.take(CancelWorker, LaunchWorker) == []


def test_the_worker_that_was_lost_is_the_reason_not_the_one_that_noticed() -> None:
    scene = Scene().run()
    scene.hear(0, Failed, kind="peer", peer=1, message="its link to worker 1 broke")
    scene.die(1)
    scene.opened()
    scene.join(1, attempt=2)
    scene.all_hear(Restored, last_step=0)
    (report,) = [e.event for e in scene.take(NotifyObservers) if isinstance(e.event, ResetReport)]
    assert report.worker == 1
    assert report.reason.startswith("worker 1 was lost")


def test_a_failure_of_a_life_that_is_over_changes_nothing() -> None:
    scene = Scene().run()
    scene.hear(0, Failed, kind="peer", message="x", incarnation=0)
    scene.hear(0, Failed, kind="operator", message="x", incarnation=0)
    assert scene.state is RegionState.RUNNING
    assert [e.refusal.name for e in scene.take(MessageRefused)] == ["STALE_INCARNATION"] * 2


def test_a_report_restored_of_an_earlier_incarnation_starts_nobody() -> None:
    scene = Scene().run()
    scene.hear(0, Failed, kind="peer", message="x")
    scene.opened()
    scene.take()
    scene.all_hear(Restored, last_step=0, incarnation=1)
    assert scene.sent(Start) == []
    assert scene.state is RegionState.RESTORING


def test_user_code_that_raises_stops_the_region_with_name_position_and_traceback() -> None:
    scene = Scene().run()
    scene.hear(
        0,
        Failed,
        kind="operator",
        operator="words",
        position="lines[3] byte 42",
        message="ValueError: x",
        traceback="tb",
    )
    error = scene.core.state.outcome.error
    assert isinstance(error, RegionFailedError)
    assert "operator 'words' failed in worker 0 at lines[3] byte 42: ValueError: x" in str(error)
    assert error.traceback_text == "tb"
    scene.play(WorkerEnded(0, 1, None), WorkerEnded(1, 1, None))
    assert [(e.state, e.error) for e in scene.take(End)] == [(RegionState.FAILED, error)]


def test_user_code_that_reports_a_failure_resets_the_region_and_spends_an_attempt() -> None:
    scene = Scene(max_consecutive_reset_attempts=1).run()
    said = {"operator": "words", "position": "byte 42", "message": "away", "traceback": "tb"}
    scene.hear(0, Failed, kind="reset", **said)
    assert scene.core.state.attempts == 1
    assert scene.core.state.reason == "operator 'words' failed in worker 0 at byte 42: away"
    scene.opened()
    assert [order.incarnation for _, order in scene.sent(Restore)] == [2, 2]
    assert scene.take(CancelWorker, LaunchWorker) == [], "nobody is ended"
    scene.hear(0, Failed, kind="reset", incarnation=2, **said)
    error = scene.core.state.outcome.error
    assert isinstance(error, RegionFailedError)
    assert (
        "no checkpoint was committed after 1 consecutive resets; last reason: operator 'words' failed"
        in str(error)
    )
    assert error.traceback_text == "tb"


def test_a_worker_that_does_not_vote_in_time_is_lost_and_cancelled() -> None:
    scene = Scene(drain_timeout_s=30.0).run()
    scene.play(CutWanted())
    scene.vote(0, 1)
    scene.tick(31)
    assert "worker 1 was lost: no vote for checkpoint 1 within drain_timeout 30 s" in scene.core.state.reason
    scene.opened()
    assert CancelWorker(1) in scene.take()
    assert scene.core.state.roster[0].state is WorkerState.JOINED


def test_a_worker_that_does_not_restore_in_time_is_lost() -> None:
    scene = Scene(reset_timeout_s=30.0)
    scene.opened()
    scene.join(0)
    scene.join(1)
    scene.hear(1, Restored, last_step=0)
    scene.tick(31)
    assert "worker 0 was lost: it did not restore within reset_timeout 30 s" in scene.core.state.reason


def test_a_reset_by_hand_spends_no_attempt() -> None:
    scene = Scene(max_consecutive_reset_attempts=0).run()
    scene.play(ResetWanted())
    assert scene.take(OpenManifest) == [OpenManifest(above=0, held=1)]
    scene.opened()
    scene.all_hear(Restored, last_step=0)
    assert scene.state is RegionState.RUNNING
    assert scene.core.status().reset_attempts == 0


# --- the store --------------------------------------------------------------------------------------


def test_without_a_quorum_the_region_waits_kills_nobody_and_spends_nothing() -> None:
    # EVIDENCE-OF: P-10
    scene = Scene(drain_timeout_s=30.0).run()
    scene.play(CutWanted())
    scene.take()
    scene.progress(0, waiting_for_store=True)
    scene.play(StoreWaiting("2 of 3 members cannot be reached"))
    assert scene.state is RegionState.WAITING_FOR_STORE
    scene.tick(600)
    assert scene.take(OpenManifest, CancelWorker, LaunchWorker) == []
    assert scene.core.status().reset_attempts == 0
    scene.progress(0, waiting_for_store=False)
    scene.play(StoreWaiting(""))
    assert scene.state is RegionState.RUNNING
    scene.tick(29)
    assert scene.state is RegionState.RUNNING
    for worker in (0, 1):
        scene.vote(worker, 1)
    assert len(scene.take(AppendCut)) == 1


def test_what_the_region_waits_for_is_told_with_the_time_and_the_bytes_that_wait() -> None:
    # EVIDENCE-OF: P-10
    scene = Scene().run()
    assert (scene.core.status().waiting_s, scene.core.status().waiting_bytes) == (0, 0)
    scene.progress(
        1, waiting_for_store=True, waiting_reason="h2:1 is unavailable: cannot connect", lag_bytes=700
    )
    scene.tick(5)
    scene.progress(0, lag_bytes=30)
    status = scene.core.status()
    assert status.reason == "worker 1 waits for a quorum of the store: h2:1 is unavailable: cannot connect"
    assert (status.waiting_s, status.waiting_bytes) == (5, 700), "of those that wait"
    scene.play(StoreWaiting("the manifest waits for the store: 2 members are needed"))
    assert scene.core.status().reason == "the manifest waits for the store: 2 members are needed"
    assert scene.core.status().waiting_s == 5, "it is one waiting"
    scene.play(StoreWaiting(""))
    scene.progress(1)
    assert (scene.core.status().waiting_s, scene.core.status().reason) == (0, "")


def test_a_worker_that_cannot_restore_for_want_of_the_store_spends_no_attempt() -> None:
    scene = Scene(max_consecutive_reset_attempts=0).run()
    scene.hear(0, Failed, kind="store", message="1 of 2 members needed answered")
    assert scene.take(OpenManifest) == []
    scene.tick(1)
    assert len(scene.take(OpenManifest)) == 1
    assert not scene.core.state.over


def test_stop_ends_a_region_that_waits_for_its_store() -> None:
    scene = Scene().run()
    scene.play(CutWanted(), StoreWaiting("2 of 3 members cannot be reached"))
    assert scene.state is RegionState.WAITING_FOR_STORE
    scene.play(StopWanted())
    assert scene.state is RegionState.STOPPING
    scene.tick(31)
    assert [message.kind for _, message in scene.sent(Stop)] == ["stopped", "stopped"]


def test_attempts_in_a_row_are_spread_so_that_they_outlast_a_short_trouble() -> None:
    # EVIDENCE-OF: P-10
    scene = Scene().run()
    waits = []
    for _ in range(5):
        scene.hear(0, Failed, kind="peer", peer=1, message="worker 1 refused the connection")
        began = scene.now
        while not scene.take(OpenManifest):
            scene.now = scene.core.deadline()
            for worker in (0, 1):
                scene.hear(worker, Progress, counters=Counters())
            scene.play(CoordinatorTick(scene.now))
        waits.append(round(scene.now - began, 3))
        scene.opened()
    assert waits == [0.0, 0.5, 1.0, 2.0, 4.0]


def test_a_newer_driver_fences_this_one() -> None:
    # EVIDENCE-OF: P-4
    scene = Scene().run()
    scene.play(CutWanted())
    for worker in (0, 1):
        scene.vote(worker, 1)
    scene.take()
    scene.play(ManifestLost(1, 9))
    assert scene.take(OpenManifest) == [OpenManifest(above=0, held=1)]
    scene.play(ManifestTaken(9))
    assert [message.kind for _, message in scene.sent(Stop)] == ["fenced", "fenced"]
    scene.play(WorkerEnded(0, 1, None), WorkerEnded(1, 1, None))
    (end,) = scene.take(End)
    assert end.state is RegionState.FENCED
    assert isinstance(end.error, RegionFencedError)
    assert end.error.epoch_held == 9


def test_a_manifest_that_cannot_be_read_fails_with_the_reason() -> None:
    scene = Scene()
    error = ManifestError("its record does not decode", cut=4)
    scene.play(ManifestUnreadable(error))
    assert scene.core.state.outcome.error is error


def test_a_checkpoint_of_another_graph_or_size_is_refused_before_anything_starts() -> None:
    scene = Scene().run()
    cut = scene.commit()
    other = Scene(operators={"count": "count(word binary)"})
    other.opened(cut)
    assert "operator 'count' was count(word string), is count(word binary)" in other.core.state.reason
    assert other.sent(Restore) == []
    smaller = Scene(1)
    smaller.opened(cut)
    assert "it was made by 2 workers, the region has 1 worker" in smaller.core.state.reason


# --- ends -------------------------------------------------------------------------------------------


def test_exhausted_sources_lead_to_one_final_checkpoint_and_the_end() -> None:
    scene = Scene().run()
    scene.progress(0, step=4, exhausted=True)
    assert scene.sent(RequestCut) == []
    scene.progress(1, step=4, exhausted=True)
    assert [(order.cut, order.final) for _, order in scene.sent(RequestCut)] == [(1, True), (1, True)]
    for worker in (0, 1):
        scene.vote(worker, 1)
    (append,) = scene.take(AppendCut)
    assert append.cut.final
    scene.play(CutAppended(append.cut))
    assert [order.final for _, order in scene.sent(Committed)] == [True, True]
    scene.hear(0, Finished)
    scene.die(0)  # gone early, with all its work done
    assert scene.take(OpenManifest) == []
    scene.hear(1, Finished)
    assert [message.kind for _, message in scene.sent(Stop)] == ["finished"]
    scene.play(WorkerEnded(1, 1, None))
    assert [end.state for end in scene.take(End)] == [RegionState.FINISHED]
    assert scene.core.deadline() is None


def test_a_worker_lost_before_it_published_the_final_checkpoint_is_restored_to_it() -> None:
    scene = Scene().run()
    for worker in (0, 1):
        scene.progress(worker, step=4, exhausted=True)
    for worker in (0, 1):
        scene.vote(worker, 1)
    (append,) = scene.take(AppendCut)
    scene.play(CutAppended(append.cut))
    scene.hear(0, Finished)
    scene.die(0)
    scene.die(1)
    scene.opened(append.cut)
    assert scene.take(LaunchWorker) == [LaunchWorker(0, 2), LaunchWorker(1, 2)]
    scene.join(0, 2)
    scene.join(1, 2)
    assert [order.restore.final for _, order in scene.sent(Restore)] == [True, True]
    scene.all_hear(Restored, last_step=5)
    scene.take()
    scene.hear(0, Finished)  # of this incarnation nothing is committed: it cannot have published
    assert [effect.refusal.name for effect in scene.take()] == ["UNEXPECTED"]
    for worker in (0, 1):
        scene.progress(worker, step=5, exhausted=True)
    assert [(order.cut, order.final) for _, order in scene.sent(RequestCut)] == [(2, True), (2, True)]


def test_stop_takes_a_last_checkpoint_if_there_is_anything_to_checkpoint() -> None:
    scene = Scene().run()
    scene.progress(0, step=4)
    scene.play(StopWanted())
    assert [order.cut for _, order in scene.sent(RequestCut)] == [1, 1]
    assert scene.state is RegionState.STOPPING
    for worker in (0, 1):
        scene.vote(worker, 1)
    (append,) = scene.take(AppendCut)
    scene.play(CutAppended(append.cut))
    effects = scene.take(SendControl)
    assert [type(e.message).__name__ for e in effects] == ["Committed", "Committed", "Stop", "Stop"]
    scene.play(WorkerEnded(0, 1, None), WorkerEnded(1, 1, None))
    assert [end.state for end in scene.take(End)] == [RegionState.STOPPED]


def test_stop_of_an_idle_or_starting_region_is_immediate() -> None:
    idle = Scene().run()
    idle.play(StopWanted())
    assert [message.kind for _, message in idle.sent(Stop)] == ["stopped", "stopped"]
    starting = Scene()
    starting.take()
    starting.play(StopWanted())
    assert starting.take(CancelWorker) == [CancelWorker(0), CancelWorker(1)]
    starting.opened()
    assert starting.sent(Restore) == []


def test_stop_does_not_wait_for_ever_neither_for_a_checkpoint_nor_for_workers() -> None:
    scene = Scene().run()
    scene.progress(0, step=4)
    scene.play(StopWanted())
    scene.tick(31)
    assert scene.core.state.reason == "stopped without a last checkpoint: it took too long"
    scene.take()
    scene.tick(11)
    assert scene.take(CancelWorker) == [CancelWorker(0), CancelWorker(1)]
    scene.tick(11)
    assert [end.state for end in scene.take(End)] == [RegionState.STOPPED]
    scene.play(StopWanted(), CutWanted(), CoordinatorTick(scene.now))
    assert scene.take() == []


def test_heartbeats_go_to_every_linked_worker_each_second() -> None:
    scene = Scene().run()
    scene.tick(3)
    assert [link for link, _ in scene.sent(Heartbeat)] == [100, 101] * 3


# --- tables -----------------------------------------------------------------------------------------


def test_the_tables_have_a_row_for_every_state_and_every_state_can_be_reached() -> None:
    assert set(PHASES) == set(CoordinatorPhase)
    assert set(WORKERS) == set(WorkerState)
    assert {state for row in PHASES.values() for state in row.values()} == set(CoordinatorPhase) - {
        CoordinatorPhase.NEW
    }
    assert {state for row in WORKERS.values() for state in row.values()} == set(WorkerState) - {
        WorkerState.ABSENT
    }
    assert set(VISIBLE_STATES) == set(CoordinatorPhase) - {CoordinatorPhase.ENDED}
