"""One checkpoint under way: its votes, whether they agree, and the checkpoint that they form. Pure.

A vote is counted only here, and a checkpoint is built only from the votes of all workers.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from checkpoint.core.links.messages import Refusal, Vote
from checkpoint.core.records.even_layout import Layout
from checkpoint.core.records.manifest import Checkpoint, RetiredWorker, SavepointNote, in_its_version
from checkpoint.core.records.outputs import OUTPUT_CHAIN_PREFIX


@dataclass(slots=True)
class PendingCheckpoint:
    """A checkpoint that is requested and not committed.

    Invariants: every vote belongs to `incarnation`, to the present term of its worker and to `number`;
    `appended` only when all workers have voted.
    """

    number: int
    incarnation: int
    workers: int
    final: bool
    requested_at: float
    terms: dict[int, int] = field(default_factory=dict)
    """Worker -> its term, if it was taken over in this incarnation."""
    votes: dict[int, Vote] = field(default_factory=dict)
    voted_at: dict[int, float] = field(default_factory=dict)
    """Worker -> when its vote arrived."""
    appended: bool = False
    """The record was passed to the manifest and is not acknowledged yet."""

    def vote(self, vote: Vote, now: float = 0.0) -> Refusal | None:
        """Count a vote that arrived `now`, or return why it is refused. Each worker votes once."""
        term = self.terms.get(vote.worker, self.incarnation)
        epochs = (vote.epoch, *sorted(vote.positions.epochs()))
        if vote.incarnation != self.incarnation or set(epochs) != {term}:  # R12: every voted position
            return Refusal(
                "STALE_INCARNATION",
                f"vote of incarnation {vote.incarnation} with epochs {epochs}, current incarnation is"
                f" {self.incarnation}, in which the epoch of the worker is {term}",
            )
        if vote.checkpoint != self.number:
            return Refusal(
                "STALE_CHECKPOINT", f"vote for checkpoint {vote.checkpoint} while {self.number} is under way"
            )
        first = self.votes.get(vote.worker)
        if first is not None:
            return Refusal("UNEXPECTED", f"worker {vote.worker} voted twice for checkpoint {vote.checkpoint}")
        self.votes[vote.worker] = vote
        self.voted_at[vote.worker] = now
        return None

    def taken_over(self, worker: int, term: int) -> None:
        """Note that a worker was lost: what it voted does not count, the vote of the next term does."""
        self.terms[worker] = term
        self.votes.pop(worker, None)

    def missing(self) -> list[int]:
        """Return the workers that have not voted."""
        return [worker for worker in range(self.workers) if worker not in self.votes]

    def disagreement(self) -> str:
        """Return in words how the votes differ about the step of the checkpoint, empty if they agree.

        Votes for different steps form no consistent cut.
        """
        steps = {worker: vote.step for worker, vote in sorted(self.votes.items())}
        if len(set(steps.values())) <= 1:
            return ""
        return f"workers voted for checkpoint {self.number} at different steps: {steps}"

    def build(
        self,
        parent: Checkpoint | None,
        layout: Layout,
        fingerprint: str,
        operators: dict[str, str],
        retained: tuple[int, ...] = (),
        savepoints: dict[str, int] | None = None,
        declared: int = 0,
        notes: dict[str, SavepointNote] | None = None,
        irrevocable: Mapping[str, str] = MappingProxyType({}),
    ) -> Checkpoint:
        """Return the checkpoint of all votes. Call it when no vote is missing and they agree.

        The wall time is filled in when the record is written.
        """
        assert not self.missing()
        assert not self.disagreement()
        workers = {worker: self.votes[worker].positions for worker in range(self.workers)}
        checkpoint = Checkpoint(
            number=self.number,
            step=self.votes[0].step,
            incarnation=self.incarnation,
            final=self.final,
            wall_time_ms=0,
            workers=workers,
            layout=layout,
            fingerprint=fingerprint,
            operators=operators,
            parent=parent.number if parent else 0,
            retained=retained,
            savepoints=savepoints or {},
            phases_s={worker: vote.phases_s for worker, vote in sorted(self.votes.items())},
            retired={} if parent is None else _retired(parent, workers),
            declared=declared if declared != len(workers) else 0,
            notes=notes or {},
            irrevocable=dict(irrevocable),
            line=0 if parent is None else parent.line,
            rewinds=() if parent is None else parent.rewinds,
            origin=None if parent is None else parent.origin,
            identity=None if parent is None else parent.identity,
        )
        return in_its_version(checkpoint)

    def phases_s(self) -> Mapping[str, float]:
        """Return phase -> seconds of the slowest worker."""
        return slowest(vote.phases_s for vote in self.votes.values())


def slowest(phases_s: Iterable[Mapping[str, float]]) -> Mapping[str, float]:
    """Return phase -> seconds of the worker that took longest, {} if there is none.

    A worker's phases follow each other. The longest of each phase, of different workers, would add up to more
    than the checkpoint took.
    """
    return max(phases_s, key=lambda one: sum(one.values()), default={})


def _retired(parent: Checkpoint, workers: Collection[int]) -> dict[int, RetiredWorker]:
    """Return the former workers with output, of a checkpoint of these workers."""
    leaving = {
        worker: RetiredWorker(
            sinks=part.sinks,
            floors={chain: at for chain, at in part.floors.items() if chain.startswith(OUTPUT_CHAIN_PREFIX)},
        )
        for worker, part in parent.workers.items()
        if part.sinks
    }
    return {worker: one for worker, one in {**parent.retired, **leaving}.items() if worker not in workers}
