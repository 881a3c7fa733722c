"""The participant: stale orders are refused by name, stale reports never go out, an orphan ends itself."""

import msgspec
import pytest

from checkpoint.core.links.messages import (
    VERSIONS,
    Committed,
    Counters,
    Failed,
    Finished,
    Heartbeat,
    Join,
    Paused,
    Peer,
    Progress,
    RequestCheckpoint,
    Restore,
    Restored,
    Start,
    Stop,
    Vote,
    WantsCheckpoint,
)
from checkpoint.core.links.participation import (
    PARTICIPANT,
    LinkGone,
    MessageIn,
    OrderRefused,
    ParticipantCore,
    ParticipantEnded,
    ParticipantState,
    ParticipantTick,
    ReportWanted,
    SendReport,
)
from checkpoint.core.records.layout import even_layout
from checkpoint.core.records.manifest import WorkerCheckpoint
from checkpoint.errors import OrphanedError, StaleIncarnationError, StoppedError
from dos_protocol.errors import LocalProtocolError
from journal.core.chain import Position

JOB = "region"


def restore(incarnation, checkpoint=0):
    peers = (Peer("h", 1), Peer("h", 2))
    return Restore(
        job=JOB,
        incarnation=incarnation,
        epoch=incarnation,
        checkpoint=checkpoint,
        worker=1,
        restore=None,
        peers=peers,
        layout=even_layout(2),
    )


def vote(checkpoint, epoch, step=5):
    at = Position(epoch, 100, 1)
    return Vote(
        job="", worker=0, checkpoint=checkpoint, step=step, positions=WorkerCheckpoint(state=at, steps=at)
    )


class Worker:
    """A participant with its clock and what it sent."""

    def __init__(self):
        self.now = 0.0
        self.core = ParticipantCore(JOB, 1, now=0.0, orphan_timeout_s=30.0, heartbeat_s=1.0)
        self.sent, self.refused, self.ended = [], [], None

    def take(self, event):
        for effect in self.core.handle(event, self.now):
            if isinstance(effect, SendReport):
                self.sent.append(effect.message)
            elif isinstance(effect, OrderRefused):
                self.refused.append(effect.refusal.name)
            else:
                assert isinstance(effect, ParticipantEnded)
                self.ended = effect.error

    def receive(self, *messages):
        for message in messages:
            self.take(MessageIn(message))

    def report(self, message, of=None):
        self.take(ReportWanted(message, of))

    def orders(self):
        found = list(self.core.orders)
        self.core.orders.clear()
        return found


def message(cls, /, **fields):
    return cls(job=JOB, **fields)


@pytest.fixture
def worker():
    worker = Worker()
    worker.report(
        Join(
            job="", worker=0, attempt=3, pid=1, host="h", exchange_host="h", exchange_port=1, speaks=VERSIONS
        )
    )
    return worker


@pytest.fixture
def running(worker):
    worker.receive(restore(7))
    worker.report(Restored(job="", worker=0, last_step=0), of=7)
    worker.receive(message(Start, incarnation=7, replay_until_step=0))
    worker.orders()
    worker.sent.clear()
    return worker


def test_a_whole_life_from_join_to_finish(worker) -> None:
    worker.receive(restore(7))
    worker.report(Restored(job="", worker=0, last_step=4))
    worker.receive(
        message(Start, incarnation=7, replay_until_step=4),
        message(RequestCheckpoint, incarnation=7, checkpoint=1),
    )
    worker.report(vote(1, 7))
    worker.receive(message(Committed, incarnation=7, checkpoint=1, step=5, final=True))
    worker.report(Finished(job="", worker=0))
    worker.receive(message(Stop, kind="finished", reason="all input is processed"))
    assert [type(order).__name__ for order in worker.orders()] == ["Committed"]
    assert [type(sent).__name__ for sent in worker.sent] == ["Join", "Restored", "Vote", "Finished"]
    assert all(sent.job == JOB and sent.worker == 1 for sent in worker.sent)
    assert [sent.incarnation for sent in worker.sent] == [0, 7, 7, 7]
    assert isinstance(worker.ended, StoppedError)
    assert not worker.refused


def test_orders_of_an_older_incarnation_are_refused_by_name(running) -> None:
    # EVIDENCE-OF: P-4
    running.receive(restore(8))
    assert [order.incarnation for order in running.orders()] == [8]
    running.receive(
        restore(8),
        restore(7),
        message(Start, incarnation=7, replay_until_step=0),
        message(RequestCheckpoint, incarnation=7, checkpoint=1),
        message(Committed, incarnation=7, checkpoint=1, step=3),
        message(RequestCheckpoint, incarnation=9, checkpoint=1),
    )
    assert running.refused == [*["STALE_INCARNATION"] * 5, "FUTURE_INCARNATION"]
    assert running.orders() == []


def test_messages_of_another_region_are_refused_and_prove_no_life(running) -> None:
    running.now = 29.0
    running.receive(
        msgspec.structs.replace(restore(9), job="other"), Stop(job="other", kind="failed", reason="")
    )
    assert running.refused == ["WRONG_JOB", "WRONG_JOB"]
    running.now = 30.5
    running.take(ParticipantTick(due=30.5, counters=Counters()))
    assert isinstance(running.ended, OrphanedError)


def test_a_newer_restore_makes_waiting_orders_void(running) -> None:
    running.receive(message(RequestCheckpoint, incarnation=7, checkpoint=1), restore(9))
    assert [type(order).__name__ for order in running.orders()] == ["Restore"]


@pytest.mark.parametrize(
    ("kind", "left"), [("stopped", [1]), ("failed", [1]), ("superseded", []), ("fenced", [])]
)
def test_a_worker_that_is_ended_still_publishes_what_its_own_driver_committed(running, kind, left) -> None:
    running.report(vote(1, 7))
    running.receive(
        message(Committed, incarnation=7, checkpoint=1, step=5),
        message(RequestCheckpoint, incarnation=7, checkpoint=2),
        message(Stop, kind=kind, reason=""),
    )
    assert [order.checkpoint for order in running.orders()] == left
    assert isinstance(running.ended, StoppedError)


def test_reports_of_a_life_that_is_over_do_not_go_out(running) -> None:
    # EVIDENCE-OF: P-4
    running.receive(restore(8))
    for report in (
        vote(1, 7),
        Failed(job="", worker=0, kind="peer"),
        Restored(job="", worker=0, last_step=0),
    ):
        with pytest.raises(StaleIncarnationError):
            running.report(report, of=7)
    with pytest.raises(StaleIncarnationError, match="positions of epochs"):
        running.report(vote(1, 7))
    assert running.sent == []


def test_a_vote_before_start_or_twice_or_for_a_past_checkpoint_is_a_bug_that_raises(worker) -> None:
    worker.receive(restore(7, checkpoint=4))
    with pytest.raises(LocalProtocolError, match="in state RESTORING"):
        worker.report(vote(5, 7))
    worker.report(Restored(job="", worker=0, last_step=0))
    worker.receive(message(Start, incarnation=7, replay_until_step=0))
    with pytest.raises(LocalProtocolError, match="vote for checkpoint 4"):
        worker.report(vote(4, 7))
    worker.report(vote(5, 7))
    with pytest.raises(LocalProtocolError, match="vote for checkpoint 5"):
        worker.report(vote(5, 7))


def test_a_request_for_a_checkpoint_that_a_peer_told_of_earlier_is_passed_over(running) -> None:
    running.report(vote(1, 7))
    running.receive(message(RequestCheckpoint, incarnation=7, checkpoint=1))
    assert running.orders() == []
    running.receive(
        message(Committed, incarnation=7, checkpoint=1, step=5),
        message(RequestCheckpoint, incarnation=7, checkpoint=2),
    )
    assert [order.checkpoint for order in running.orders()] == [1, 2]


def test_a_commit_of_what_was_not_voted_for_is_refused(running) -> None:
    running.receive(message(Committed, incarnation=7, checkpoint=3, step=5))
    assert running.refused == ["STALE_CHECKPOINT"]


def test_only_the_first_failure_of_an_incarnation_is_reported(running) -> None:
    running.report(Failed(job="", worker=0, kind="peer"))
    running.report(Failed(job="", worker=0, kind="internal"))
    assert [sent.kind for sent in running.sent] == ["peer"]
    running.receive(restore(8))
    running.report(Failed(job="", worker=0, kind="fenced", epoch_held=12))
    assert [sent.kind for sent in running.sent] == ["peer", "fenced"]


@pytest.mark.parametrize(
    "late",
    [
        vote(1, 7),
        WantsCheckpoint(job="", worker=0, step=4),
        Paused(job="", worker=0, pause=1, step=4, counters=Counters()),
        Finished(job="", worker=0),
    ],
    ids=lambda message: type(message).__name__,
)
def test_what_was_under_way_when_an_incarnation_failed_is_told_to_nobody(running, late) -> None:
    running.report(Failed(job="", worker=0, kind="operator"), of=7)
    running.sent.clear()
    running.report(late, of=7)
    assert running.sent == []
    assert running.core.voted < 1


def test_heartbeats_go_out_each_second_and_claim_exhaustion_only_while_running(worker) -> None:
    counters = Counters(exhausted=True, step=9)
    for second in (1, 2):
        worker.now = float(second)
        worker.take(ParticipantTick(due=worker.now, counters=counters))
    progress = [sent for sent in worker.sent if isinstance(sent, Progress)]
    assert [sent.counters.exhausted for sent in progress] == [False, False]
    worker.receive(restore(7))
    worker.report(Restored(job="", worker=0, last_step=0))
    worker.receive(message(Start, incarnation=7, replay_until_step=0))
    worker.now = 3.0
    worker.take(ParticipantTick(due=3.0, counters=counters))
    assert worker.sent[-1].counters.exhausted
    assert worker.sent[-1].incarnation == 7


def test_time_in_which_the_own_loop_was_late_does_not_count(running) -> None:
    running.now = 100.0  # the process was stopped for 99 seconds
    running.take(ParticipantTick(due=1.0, counters=Counters()))
    assert running.ended is None
    running.receive(message(Heartbeat))
    for second in range(101, 131):
        running.now = float(second)
        running.take(ParticipantTick(due=running.now, counters=Counters()))
    assert running.ended is None
    running.now = 131.0
    running.take(ParticipantTick(due=131.0, counters=Counters()))
    assert isinstance(running.ended, OrphanedError)


def test_a_link_that_is_gone_ends_the_worker(running) -> None:
    running.take(LinkGone("reset by peer"))
    assert isinstance(running.ended, OrphanedError)
    assert running.core.deadline() is None
    with pytest.raises(StaleIncarnationError, match="that has ended"):
        running.report(vote(1, 7))


def test_every_state_can_end_and_no_row_is_missing() -> None:
    assert set(PARTICIPANT) == set(ParticipantState)
    for state, row in PARTICIPANT.items():
        if state is not ParticipantState.ENDED:
            assert ParticipantState.ENDED in row.values()
