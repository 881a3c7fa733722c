"""The coordinator's workers: their states (table WORKERS), attempts, links, heartbeats, and hosts. Pure.

*Placement.* A worker that joins from a host that a peer could not reach is rejected and launched again. The
launcher chooses hosts freely, so it may return on the same one (docs/decisions/0229). After
`placement_tries_max` rejections the placement is accepted and kept for `placement_pause_s`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from math import inf
from typing import Final

from msgspec import structs

from checkpoint import limits
from checkpoint.core.coordination.recovery_estimate import StepMeter
from checkpoint.core.links.messages import CompanionReport, Counters, Join, Peer
from checkpoint.core.region import WorkerStatus
from checkpoint.core.state_machines import follow
from dos_protocol.arguments import is_loopback


class WorkerState(Enum):
    """The states of one worker, as the coordinator knows it."""

    ABSENT = auto()
    LAUNCHED = auto()
    """The launcher was ordered to start an attempt, which has no link yet."""
    JOINED = auto()
    """It has a link and belongs to no incarnation."""
    ORDERED = auto()
    """Ordered to restore, in this incarnation."""
    RESTORED = auto()
    RUNNING = auto()
    FINISHED = auto()
    """It published the final checkpoint and waits for the others."""
    DONE = auto()
    """It finished and its link is gone: nothing of it is missing."""
    LOST = auto()
    """Its attempt is over, or counts as over; the next one is not launched yet."""


class WorkerEvent(Enum):
    """The events that change a WorkerState."""

    LAUNCH = auto()
    JOIN = auto()
    ORDER = auto()
    RESTORED = auto()
    START = auto()
    FINISH = auto()
    LEAVE = auto()
    RELEASE = auto()
    """A reset: the orders of the incarnation before no longer count."""
    LOSE = auto()


_LOSABLE: Final = {WorkerEvent.LOSE: WorkerState.LOST}
_RELEASABLE: Final = {WorkerEvent.RELEASE: WorkerState.JOINED, **_LOSABLE}
WORKERS: Final[dict[WorkerState, dict[WorkerEvent, WorkerState]]] = {
    WorkerState.ABSENT: {WorkerEvent.LAUNCH: WorkerState.LAUNCHED},
    WorkerState.LAUNCHED: {WorkerEvent.JOIN: WorkerState.JOINED, **_LOSABLE},
    WorkerState.JOINED: {WorkerEvent.ORDER: WorkerState.ORDERED, **_RELEASABLE},
    WorkerState.ORDERED: {WorkerEvent.RESTORED: WorkerState.RESTORED, **_RELEASABLE},
    WorkerState.RESTORED: {WorkerEvent.START: WorkerState.RUNNING, **_RELEASABLE},
    WorkerState.RUNNING: {WorkerEvent.FINISH: WorkerState.FINISHED, **_RELEASABLE},
    WorkerState.FINISHED: {WorkerEvent.LEAVE: WorkerState.DONE, **_RELEASABLE},
    WorkerState.DONE: {WorkerEvent.LAUNCH: WorkerState.LAUNCHED},
    WorkerState.LOST: {WorkerEvent.LAUNCH: WorkerState.LAUNCHED},
}

LINKED: Final = frozenset(
    {
        WorkerState.JOINED,
        WorkerState.ORDERED,
        WorkerState.RESTORED,
        WorkerState.RUNNING,
        WorkerState.FINISHED,
    }
)
"""The states in which a worker has a control link and must send heartbeats."""

STARTED: Final = frozenset({WorkerState.RUNNING, WorkerState.FINISHED})
"""The states in which a worker takes orders about checkpoints and pauses."""


@dataclass(slots=True, eq=False)
class Worker:
    """One worker. A successor is another object with the same index. `attempt` only rises."""

    index: int
    state: WorkerState = WorkerState.ABSENT
    attempt: int = 0
    link: int | None = None
    join: Join | None = None
    received_at: float = 0.0
    """When its last message arrived, plus the time in which the coordinator's own loop was late. That time
    does not count as silence."""
    ended: bool = True
    """Whether the launcher reported that the current attempt is over, or none was ever started."""
    host: int | None = None
    """The worker in whose process the current attempt runs, None if it has its own process."""
    launch_at: float | None = None
    launch_round: int = 0
    """The round (`coordinator.py`) in which the current attempt was launched."""
    failures: int = 0
    """Attempts lost in a row since the last committed checkpoint."""
    error: str = ""
    counters: Counters = field(default_factory=Counters)
    step: int = 0
    """The last step that it ended in this incarnation."""
    exhausted: bool = False
    wants_checkpoint: int = 0
    """The step at whose end a start operator waits for a checkpoint, 0 for none."""
    paused: int = 0
    """The pause order that it carried out in this incarnation, 0 for none."""
    last_step: int = 0
    replayed_bytes: int = 0
    restore_seconds: float = 0.0
    restore_phases_s: dict[str, float] = field(default_factory=dict)
    launched_at: float = 0.0
    companion: CompanionReport | None = None
    """The last report of the companion of this attempt; None: it has none, or none any more."""
    vouched_at: float = -inf
    """When its companion reported last that its process lives and is not stopped."""
    last_words: str = ""
    """What its companion said when the process had ended."""
    dying: str = ""
    """Why it is lost, as soon as its companion has said what ran; empty if it is not."""
    meter: StepMeter = field(default_factory=StepMeter)

    def move(self, event: WorkerEvent) -> None:
        self.state = follow(WORKERS, self.state, event)

    def note_operators(self, operators: dict[str, dict[str, int]]) -> None:
        """Take operators' counters that are newer than the last heartbeat's. Empty: none were sent."""
        if operators:
            self.counters = structs.replace(self.counters, operators=operators)

    @property
    def running(self) -> tuple[str, float]:
        """The operator that runs, "" if none is known to, and for how many seconds."""
        if self.companion is None:
            return self.counters.operator, 0.0
        return self.companion.operator, self.companion.seconds

    @property
    def waits(self) -> str:
        """What the operator that runs waits for, "" if for nothing that is known."""
        return "" if self.companion is None else self.companion.waits

    def forget_companion(self) -> None:
        """Begin an attempt, whose companion has not reported yet."""
        self.companion, self.vouched_at, self.last_words, self.dying = None, -inf, "", ""

    def status(self, warm_standby: int | None = None) -> WorkerStatus:
        """warm_standby: as `WorkerStatus.warm_standby`."""
        join = self.join
        operator, seconds = self.running if self.link is not None else ("", 0.0)
        return WorkerStatus(
            index=self.index,
            state=self.state.name,
            attempt=self.attempt,
            pid=join.pid if join else 0,
            host=join.host if join else "",
            scratch=join.scratch if join else "",
            version=join.package if join else "",
            hosted_by=self.host,
            warm_standby=warm_standby,
            metrics=join.metrics if join else "",
            counters=structs.replace(self.counters, step=max(self.step, self.counters.step)),
            replayed_bytes=self.replayed_bytes,
            restore_seconds=self.restore_seconds,
            error=self.error,
            operator=operator,
            operator_s=seconds,
            waits=self.waits if self.link is not None else "",
        )


class Roster:
    """All workers of a region, by index and by link, and those that have left and may still run."""

    def __init__(self, workers: int) -> None:
        self._ever = [Worker(index) for index in range(workers)]
        self._workers = list(self._ever)
        self.coming: list[Worker] = []
        """Workers that the next layout has and the present one does not, and successors: they only join."""
        self.standing_by: list[Worker] = []
        """Further processes of workers, which only join: each takes the place of its worker if that is lost
        (`WarmStandbys`).
        """
        self._leaving: list[Worker] = []
        """Replaced workers, and successors that were given up, whose processes have not ended."""
        self._attempts: dict[int, int] = {}
        """Worker -> its highest attempt."""

    def __len__(self) -> int:
        return len(self._workers)

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers)

    def __getitem__(self, index: int) -> Worker:
        """Return a worker of any layout."""
        return self._ever[index]

    def ever(self) -> Iterator[Worker]:
        """Yield the workers of all layouts that this driver had, and all further processes of them."""
        yield from (*self._ever, *self._successors(), *self.standing_by, *self._leaving)

    def find(self, index: int, attempt: int) -> Worker | None:
        """Return the worker of which this is the newest attempt; None if there is no such worker."""
        return next((one for one in self.ever() if one.index == index and one.attempt == attempt), None)

    def _successors(self) -> list[Worker]:
        return [worker for worker in self.coming if worker is not self._ever[worker.index]]

    def is_successor(self, worker: Worker) -> bool:
        """Return whether it has not replaced the worker of its number yet."""
        return self.only_joins(worker) and worker is not self._ever[worker.index]

    def only_joins(self, worker: Worker) -> bool:
        """Return whether it comes or stands by: it takes no part in an incarnation yet."""
        return worker in self.coming or worker in self.standing_by

    def resize(self, workers: int) -> list[Worker]:
        """Have this number of workers, and none that comes. Return those that leave, for `retire`."""
        self._grow(workers)
        further = self._successors() + [one for one in self.standing_by if one.index >= workers]
        leaving = [worker for worker in self._ever[workers:] if self.has(worker)] + further
        self._leaving += further
        self._workers, self.coming = self._ever[:workers], []
        self.standing_by = [one for one in self.standing_by if one.index < workers]
        return leaving

    def succeed(self) -> list[Worker]:
        """Put the successors in place of their predecessors. Return these; the caller ends them."""
        successors, self.coming = self._successors(), []
        return self._replace(successors)

    def take_places(self, standbys: list[Worker]) -> list[Worker]:
        """Put processes that stand by in the places of their workers. Return these; the caller ends them."""
        self.standing_by = [one for one in self.standing_by if one not in standbys]
        for standby in standbys:
            standby.failures = self._ever[standby.index].failures
        return self._replace(standbys)

    def _replace(self, successors: list[Worker]) -> list[Worker]:
        replaced = [self._ever[successor.index] for successor in successors]
        for successor in successors:
            self._ever[successor.index] = successor
        self._leaving += [worker for worker in replaced if not worker.ended]
        self._workers = self._ever[: len(self)]
        return replaced

    def expect(self, workers: int, replaced: Iterable[int] = ()) -> None:
        """Let further workers join, up to this number, that `resize` will add, and another process of each of
        `replaced`, that `succeed` will put in its place. Such a process that comes already is kept.
        """
        self._grow(workers)
        come = {worker.index: worker for worker in self._successors()}
        successors = {index: come.get(index) or Worker(index) for index in replaced}
        self.coming = [*self._ever[len(self) : workers], *{**come, **successors}.values()]

    def stand_by(self, index: int) -> Worker:
        """Let another process of a worker join, that `take_places` may put in its place, and return it."""
        self.standing_by.append(Worker(index))
        return self.standing_by[-1]

    def has(self, worker: Worker) -> bool:
        """Return whether it is a worker of the present layout, or one that comes or stands by."""
        return worker in self._workers or self.only_joins(worker)

    def _grow(self, workers: int) -> None:
        self._ever += [Worker(index) for index in range(len(self._ever), workers)]

    def retire(self, worker: Worker) -> int | None:
        """Note that a worker has left the region. Return its link, which the caller closes."""
        link, worker.link = worker.link, None
        if worker.state not in (WorkerState.ABSENT, WorkerState.LOST, WorkerState.DONE):
            worker.move(WorkerEvent.LOSE)
        worker.launch_at, worker.failures, worker.error = None, 0, ""
        return link

    def ended(self, worker: Worker) -> None:
        """Note that the launcher reported the end of a worker's newest attempt."""
        worker.ended = True
        if worker in self._leaving:
            self._leaving.remove(worker)

    def by_link(self, link: int) -> Worker | None:
        return next((worker for worker in self.ever() if worker.link == link), None)

    def all_in(self, *states: WorkerState) -> bool:
        return all(worker.state in states for worker in self._workers)

    def indices_not_in(self, *states: WorkerState) -> list[int]:
        return [worker.index for worker in self._workers if worker.state not in states]

    def linked(self, *, coming: bool = False) -> Iterator[tuple[Worker, int]]:
        """Yield (worker, its link) of every linked worker; with `coming` also of those that come."""
        for worker in (*self._workers, *(self.coming if coming else ())):
            if worker.link is not None:
                yield worker, worker.link

    def every_link(self) -> Iterator[tuple[Worker, int]]:
        """Yield (worker, its link) of every process that has a link."""
        for worker in self.ever():
            if worker.link is not None:
                yield worker, worker.link

    def peers(self) -> tuple[Peer, ...]:
        """Return where each worker listens, by index. All must have joined."""
        joins = [worker.join for worker in self._workers]
        return tuple(Peer(join.exchange_host, join.exchange_port) for join in joins if join is not None)

    def joined(self, worker: Worker, link: int, join: Join, now: float) -> None:
        worker.move(WorkerEvent.JOIN)
        worker.link, worker.join, worker.received_at = link, join, now

    def lose(self, worker: Worker, reason: str, *, ended: bool) -> int | None:
        """Count the worker's attempt as over. Return its link, which the caller closes."""
        worker.move(WorkerEvent.LOSE)
        link, worker.link = worker.link, None
        worker.error, worker.ended = reason, ended
        worker.exhausted, worker.failures, worker.dying = False, worker.failures + 1, ""
        return link

    def leave(self, worker: Worker, *, ended: bool) -> int | None:
        """Note that a finished worker is gone. Return its link, which the caller closes."""
        worker.move(WorkerEvent.LEAVE)
        link, worker.link = worker.link, None
        worker.ended = ended
        return link

    def release(self) -> None:
        """Detach every linked worker from its incarnation, for a reset."""
        for worker in self._workers:
            if worker.state in LINKED:
                worker.move(WorkerEvent.RELEASE)
            worker.exhausted, worker.step = False, 0

    def forgive(self) -> None:
        """Forget the failures of all workers: a checkpoint was committed after them."""
        for worker in self._workers:
            worker.failures = 0

    def launch(self, worker: Worker, round_number: int, now: float) -> int:
        """Count a new attempt and return its number."""
        worker.move(WorkerEvent.LAUNCH)
        # Never a number twice, also not after a successor that was given up: its process may join late, and
        # would pass for this one.
        worker.attempt = self._attempts[worker.index] = 1 + self._attempts.get(worker.index, 0)
        worker.launched_at = now
        worker.forget_companion()
        worker.ended, worker.launch_at, worker.launch_round = False, None, round_number
        worker.host = None
        return worker.attempt

    def schedule(self, worker: Worker, now: float) -> None:
        """Set when the next attempt is launched: at once after a first failure, later after more in a row."""
        if worker.launch_at is None:
            worker.launch_at = now + launch_delay_s(worker.failures)

    def shift(self, seconds: float) -> None:
        """Add time that does not count as silence of any worker."""
        for worker, _ in self.every_link():
            worker.received_at += seconds
            worker.vouched_at += seconds

    def silent(self, now: float, seconds: float, vouched_s: float) -> Worker | None:
        """Return a worker silent for more than `seconds`, or `vouched_s` if its companion vouches for it."""

        def is_silent(worker: Worker) -> bool:
            limit_s = vouched_s if now - worker.vouched_at <= seconds else seconds
            return now - worker.received_at > limit_s

        return next((worker for worker, _ in self.every_link() if is_silent(worker)), None)


def launch_delay_s(failures: int) -> float:
    """Return the seconds to wait before the next attempt after this many failures in a row."""
    if failures <= 1:
        return 0.0
    return min(limits.launch_backoff_s * 2.0 ** (failures - 2), limits.launch_backoff_max_s)


class Placement:
    """The pairs of hosts of one region that cannot reach each other, as far as its workers reported it."""

    def __init__(self) -> None:
        self._pairs: dict[frozenset[str], float] = {}
        """Pair of hosts -> until when it counts."""
        self._rejections = 0
        self._kept_until = -inf
        self._since = inf

    def report(self, worker: Worker, peer: Worker, now: float) -> float:
        """Note that a worker could not connect to a peer. Return for how many seconds some pair could not."""
        self._since = min(self._since, now)
        hosts = frozenset((host_of(worker), host_of(peer)))
        if len(hosts) == 2 and "" not in hosts:
            self._pairs[hosts] = now + limits.unreachable_counts_s
        return now - self._since

    def worker_to_move(self, worker: Worker, peer: Worker, now: float) -> Worker | None:
        """Return which of a pair should run on another host, None for neither."""
        if now < self._kept_until or not self._separated(host_of(worker), host_of(peer), now):
            return None
        return max((peer, worker), key=lambda one: self._failing(host_of(one), now))

    def rejects(self, host: str, others: Iterable[Worker], now: float) -> Worker | None:
        """Return the worker that a new worker on `host` could not connect to; None: it may run there."""
        if now < self._kept_until:
            return None
        blocked = next((one for one in others if self._separated(host, host_of(one), now)), None)
        if blocked is None:
            self._rejections = 0
            return None
        self._rejections += 1
        if self._rejections > limits.placement_tries_max:
            self._rejections, self._kept_until = 0, now + limits.placement_pause_s
            return None
        return blocked

    def forgive(self) -> None:
        """Note that a checkpoint was committed: all workers reached each other."""
        self._since, self._rejections = inf, 0

    def _separated(self, one: str, other: str, now: float) -> bool:
        return self._pairs.get(frozenset((one, other)), -inf) > now

    def _failing(self, host: str, now: float) -> int:
        return sum(1 for pair, until in self._pairs.items() if host in pair and until > now)


def worker_on_loopback(workers: Iterable[Worker]) -> Worker | None:
    """Return a worker whose address for its peers only its own machine reaches, if a peer is on another."""
    joined = [worker for worker in workers if worker.join is not None]
    if len({host_of(worker) for worker in joined}) < 2:
        return None
    return next((one for one in joined if one.join is not None and is_loopback(one.join.exchange_host)), None)


def host_of(worker: Worker) -> str:
    """Return the host of a worker's newest attempt that joined, "" before the first one."""
    return worker.join.host if worker.join is not None else ""
