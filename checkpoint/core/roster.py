"""The coordinator's workers: attempts, links, heartbeats, and when the next attempt may be launched.

Rules of this file: bookkeeping of each worker by the table WORKERS. When to reset and what to order is
decided in `coordinator.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec import structs

from checkpoint import limits
from checkpoint.core.messages import Counters, Join, Peer
from checkpoint.core.region import WorkerStatus
from checkpoint.core.region_states import LINKED, WORKERS, WorkerEvent, WorkerState, follow


@dataclass(slots=True)
class Worker:
    """One worker. Invariants: `link` is set if and only if the state is one of LINKED; `attempt` only
    rises.
    """

    index: int
    state: WorkerState = WorkerState.ABSENT
    attempt: int = 0
    link: int | None = None
    join: Join | None = None
    heard: float = 0.0
    """When it was last heard from, on our clock, less the time in which our own loop was late."""
    ended: bool = True
    """Whether the launcher said that the present attempt is over (or none was ever started)."""
    launch_at: float | None = None
    launch_round: int = 0
    """The round (see coordinator.py) in which the present attempt was launched."""
    failures: int = 0
    """Attempts lost in a row, forgiven by a committed cut."""
    error: str = ""
    counters: Counters = field(default_factory=Counters)
    step: int = 0
    """The last step ended in this incarnation."""
    exhausted: bool = False
    wants_cut: int = 0
    """The step at whose end a start operator waits for a cut, 0 for none."""
    paused: int = 0
    """The order to pause that it has carried out in this incarnation, 0 for none."""
    last_step: int = 0
    replayed_bytes: int = 0
    restore_seconds: float = 0.0
    restore_phases_s: dict[str, float] = field(default_factory=dict)

    def move(self, event: WorkerEvent) -> None:
        self.state = follow(WORKERS, self.state, event)

    def note_operators(self, operators: dict[str, dict[str, int]]) -> None:
        """What its operators count, newer than the last heartbeat; empty: nothing was said."""
        if operators:
            self.counters = structs.replace(self.counters, operators=operators)

    def status(self) -> WorkerStatus:
        join = self.join
        return WorkerStatus(
            index=self.index,
            state=self.state.name,
            attempt=self.attempt,
            pid=join.pid if join else 0,
            host=join.host if join else "",
            scratch=join.scratch if join else "",
            counters=structs.replace(self.counters, step=max(self.step, self.counters.step)),
            replayed_bytes=self.replayed_bytes,
            restore_seconds=self.restore_seconds,
            error=self.error,
        )


class Roster:
    """All workers of a region, by index and by link."""

    def __init__(self, workers: int) -> None:
        self._workers = [Worker(index) for index in range(workers)]

    def __len__(self) -> int:
        return len(self._workers)

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers)

    def __getitem__(self, index: int) -> Worker:
        return self._workers[index]

    def by_link(self, link: int) -> Worker | None:
        return next((worker for worker in self._workers if worker.link == link), None)

    def all_in(self, *states: WorkerState) -> bool:
        return all(worker.state in states for worker in self._workers)

    def indices_not_in(self, *states: WorkerState) -> list[int]:
        return [worker.index for worker in self._workers if worker.state not in states]

    def linked(self) -> Iterator[tuple[Worker, int]]:
        """(worker, its link) of every linked worker."""
        for worker in self._workers:
            if worker.link is not None:
                yield worker, worker.link

    def peers(self) -> tuple[Peer, ...]:
        """Where each worker listens, by index. All must have joined."""
        joins = [worker.join for worker in self._workers]
        return tuple(Peer(join.exchange_host, join.exchange_port) for join in joins if join is not None)

    def joined(self, worker: Worker, link: int, join: Join, now: float) -> None:
        worker.move(WorkerEvent.JOIN)
        worker.link, worker.join, worker.heard = link, join, now

    def lose(self, worker: Worker, reason: str, *, ended: bool) -> int | None:
        """The worker's attempt counts as over. Returns its link, to be closed."""
        worker.move(WorkerEvent.LOSE)
        link, worker.link = worker.link, None
        worker.error, worker.ended = reason, ended
        worker.exhausted, worker.failures = False, worker.failures + 1
        return link

    def leave(self, worker: Worker, *, ended: bool) -> int | None:
        """A worker that has finished is gone before the others are. Returns its link, to be closed."""
        worker.move(WorkerEvent.LEAVE)
        link, worker.link = worker.link, None
        worker.ended = ended
        return link

    def release(self) -> None:
        """A reset: every linked worker is bound to no incarnation any more."""
        for worker in self._workers:
            if worker.state in LINKED:
                worker.move(WorkerEvent.RELEASE)
            worker.exhausted, worker.step = False, 0

    def forgive(self) -> None:
        """A cut was committed: failures before it do not count any more."""
        for worker in self._workers:
            worker.failures = 0

    def launch(self, worker: Worker, round_number: int) -> int:
        """Count a new attempt; returns its number."""
        worker.move(WorkerEvent.LAUNCH)
        worker.attempt += 1
        worker.ended, worker.launch_at, worker.launch_round = False, None, round_number
        return worker.attempt

    def schedule(self, worker: Worker, now: float) -> None:
        """The next attempt, at once after a first failure, later after more in a row."""
        if worker.launch_at is None:
            worker.launch_at = now + launch_delay_s(worker.failures)

    def shift(self, seconds: float) -> None:
        """Time that does not count against anyone."""
        for worker in self._workers:
            worker.heard += seconds

    def silent(self, now: float, seconds: float) -> Worker | None:
        """A linked worker that was not heard from for longer than that."""
        return next((w for w, _ in self.linked() if now - w.heard > seconds), None)


def launch_delay_s(failures: int) -> float:
    """How long to wait before the next attempt, after that many failures in a row."""
    if failures <= 1:
        return 0.0
    return min(limits.launch_backoff_s * 2.0 ** (failures - 2), limits.launch_backoff_max_s)
