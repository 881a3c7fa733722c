"""One cut under way: who has voted, whether the votes agree, and the cut they make.

Rules of this file: one number, one incarnation. A vote is counted only here; a cut is built only from all
of them.
"""

from dataclasses import dataclass, field

from checkpoint.core.layout import Layout
from checkpoint.core.manifest import Cut, version_with
from checkpoint.core.messages import Prepared, Refusal


@dataclass(slots=True)
class PendingCut:
    """A cut that was asked for and is not committed.

    Invariants: every vote is of `incarnation` and for `number`; `appended` only when all workers have voted.
    """

    number: int
    incarnation: int
    workers: int
    final: bool
    requested_at: float
    votes: dict[int, Prepared] = field(default_factory=dict)
    appended: bool = False
    """The record was handed to the manifest; its acknowledgement is awaited."""

    def vote(self, vote: Prepared) -> Refusal | None:
        """Count a vote, or say why not; each worker votes once."""
        epochs = (vote.incarnation, vote.epoch, *sorted(vote.positions.epochs()))
        if set(epochs) != {self.incarnation}:  # R12: the epoch voted must be the incarnation
            return Refusal(
                "STALE_INCARNATION",
                f"a vote of epochs {epochs}; incarnation {self.incarnation} is running",
            )
        if vote.cut != self.number:
            return Refusal("STALE_CUT", f"a vote for cut {vote.cut}, while {self.number} is under way")
        first = self.votes.get(vote.worker)
        if first is not None:
            return Refusal("UNEXPECTED", f"worker {vote.worker} voted twice for cut {vote.cut}")
        self.votes[vote.worker] = vote
        return None

    def missing(self) -> list[int]:
        """Workers that have not voted."""
        return [worker for worker in range(self.workers) if worker not in self.votes]

    def disagreement(self) -> str:
        """'' or in words how the votes differ about where the cut lies: then it is no cut."""
        steps = {worker: vote.step for worker, vote in sorted(self.votes.items())}
        if len(set(steps.values())) <= 1:
            return ""
        return f"workers put cut {self.number} at different steps: {steps}"

    def build(
        self,
        parent: Cut | None,
        layout: Layout,
        fingerprint: str,
        operators: dict[str, str],
        retained: tuple[int, ...] = (),
        savepoints: dict[str, int] | None = None,
    ) -> Cut:
        """The cut of all votes. Call when none is missing and they agree; wall time is put in when it is
        written.
        """
        assert not self.missing()
        assert not self.disagreement()
        workers = {worker: self.votes[worker].positions for worker in range(self.workers)}
        return Cut(
            cut=self.number,
            step=self.votes[0].step,
            incarnation=self.incarnation,
            final=self.final,
            wall_time_ms=0,
            workers=workers,
            layout=layout,
            fingerprint=fingerprint,
            operators=operators,
            parent=parent.cut if parent else 0,
            retained=retained,
            savepoints=savepoints or {},
            version=version_with(savepoints or {}, workers),
            phases_s={worker: vote.phases_s for worker, vote in sorted(self.votes.items())},
        )

    def phases_s(self) -> dict[str, float]:
        """For each phase the time of the slowest worker."""
        longest: dict[str, float] = {}
        for vote in self.votes.values():
            for phase, seconds in vote.phases_s.items():
                longest[phase] = max(longest.get(phase, 0.0), seconds)
        return longest
