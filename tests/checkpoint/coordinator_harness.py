"""One coordinator core, with the test in the role of its workers, its manifest and its launcher."""

from checkpoint.core.coordination.coordinator import Coordinator
from checkpoint.core.coordination.vocabulary import (
    AppendCheckpoint,
    Begin,
    CancelWorker,
    CheckpointAppended,
    CheckpointWanted,
    ControlReceived,
    CoordinatorTick,
    LinkDown,
    ManifestOpened,
    ManifestUnreadable,
    NotifyObservers,
    SendControl,
    WorkerEnded,
)
from checkpoint.core.links.messages import (
    VERSIONS,
    Counters,
    Join,
    Progress,
    RequestCheckpoint,
    Restored,
    Vote,
)
from checkpoint.core.records.manifest import WorkerCheckpoint
from checkpoint.core.region import RegionState
from dos_protocol.errors import DosError
from journal.core.chain import Position
from tests.checkpoint.manifest_samples import notes
from tests.checkpoint.region_model import spec


class CoordinatorHarness:
    """One coordinator; the test plays everybody else. `out` has the effects since it was last taken."""

    def __init__(self, workers=2, seen=None, *, unread=False, **fields):
        fields.setdefault("operators", notes(count="count"))
        self.spec = spec(workers, **fields)
        self.core = Coordinator(self.spec)
        self.now = 0.0
        self.out = []
        self.ended = set()
        """The attempts whose end the launcher reported: the coordinator never cancels one of them."""
        self.epoch = 0
        self.links = {}
        self.play(Begin(seen, unread))

    def play(self, *events):
        for event in events:
            if isinstance(event, WorkerEnded):
                self.ended.add((event.worker, event.attempt))
            effects = self.core.handle(self.decided(event), self.now)
            cancelled = {(one.worker, one.attempt) for one in effects if isinstance(one, CancelWorker)}
            assert not cancelled & self.ended, "cancelled after its end was reported"
            self.out += effects

    def decided(self, event):
        """The event, or that the core refuses under the claim what it opens: ManifestLog asks it first."""
        if isinstance(event, ManifestOpened):
            try:
                self.core.run.decide_claimed(event.last_checkpoint)
            except DosError as error:
                return ManifestUnreadable(error)
        return event

    def take(self, *kinds):
        """The effects of these kinds so far, and forget all."""
        found = [e for e in self.out if isinstance(e, kinds or object)]
        self.out = []
        return found

    def sent(self, *kinds):
        return [(e.link, e.message) for e in self.take(SendControl) if isinstance(e.message, kinds)]

    def events(self, kind):
        """The events of this kind that observers were notified of; forgets all effects."""
        return [e.event for e in self.take(NotifyObservers) if isinstance(e.event, kind)]

    def requested(self):
        """The checkpoints that were requested, once for each worker."""
        return [order.checkpoint for _, order in self.sent(RequestCheckpoint)]

    def opened(self, checkpoint=None, epoch=None):
        self.epoch = epoch or self.epoch + 1
        self.play(ManifestOpened(self.epoch, checkpoint))

    def join(self, worker, attempt=1, link=None, host="h", address=None, **fields):
        link = 100 * attempt + worker if link is None else link
        self.links[worker] = link
        join = Join(
            job="region",
            worker=worker,
            attempt=attempt,
            pid=1,
            host=host,
            exchange_host=host if address is None else address,
            exchange_port=1 + worker,
            **{"speaks": VERSIONS, **fields},
        )
        self.play(ControlReceived(link, join))

    def receive(self, worker, cls, link=None, **fields):
        fields = {"job": "region", "incarnation": self.epoch, "epoch": self.epoch, "worker": worker, **fields}
        self.play(ControlReceived(self.links[worker] if link is None else link, cls(**fields)))

    def receive_from_all(self, cls, **fields):
        for worker in range(self.spec.workers):
            self.receive(worker, cls, **fields)

    def progress(self, worker, **counters):
        self.receive(worker, Progress, counters=Counters(**counters))

    def vote(self, worker, checkpoint, step=5, epoch=None, **fields):
        epoch = epoch or self.epoch
        at = Position(epoch, 100 + checkpoint, worker + 1)
        positions = WorkerCheckpoint(state=at, steps=at)
        self.receive(
            worker,
            Vote,
            checkpoint=checkpoint,
            step=step,
            incarnation=epoch,
            epoch=epoch,
            positions=positions,
            **fields,
        )

    def votes(self, checkpoint, step=5, **fields):
        """All workers vote."""
        for worker in range(len(self.core.run.roster)):
            self.vote(worker, checkpoint, step, **fields)

    def appended(self):
        """The one checkpoint that is being appended is acknowledged. Returns it."""
        (append,) = self.take(AppendCheckpoint)
        self.play(CheckpointAppended(append.checkpoint))
        return append.checkpoint

    def run_to_start(self):
        """Run until all have received Start."""
        self.opened()
        for worker in range(self.spec.workers):
            self.join(worker)
        self.receive_from_all(Restored, last_step=0)

    def run(self):
        """Until RUNNING."""
        self.run_to_start()
        assert self.state is RegionState.RUNNING
        self.take()
        return self

    def commit(self, checkpoint=1, step=5):
        """A whole checkpoint, acknowledged. Returns it."""
        self.play(CheckpointWanted())
        self.votes(checkpoint, step)
        return self.appended()

    def tick(self, seconds, silent=()):
        """Seconds pass, each tick on time; all processes but those of silent workers or links are heard
        from.
        """
        for _ in range(int(seconds)):
            self.now += 1.0
            for worker, link in list(self.core.run.roster.every_link()):
                if not {worker.index, link} & set(silent):
                    self.receive(worker.index, Progress, link=link, counters=worker.counters)
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
