"""What of a checkpoint is damaged, and what the examination of a region's checkpoints found. Plain values."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

OnDamaged: TypeAlias = Literal["fail", "previous"]
"""What follows if the last checkpoint is damaged: the region fails, or goes back to the newest older one that
is whole. As for the files of a journal.
"""


@dataclass(frozen=True, slots=True)
class ChainDamage:
    """A chain of a worker that does not read whole up to a position."""

    worker: int
    chain: str
    position: str
    why: str

    def __str__(self) -> str:
        return f"chain {self.chain} of worker {self.worker} up to position {self.position}: {self.why}"


@dataclass(frozen=True, slots=True)
class CheckpointDamage:
    """A checkpoint that cannot be restored. chains: those that are damaged."""

    checkpoint: int
    chains: tuple[ChainDamage, ...]

    def __str__(self) -> str:
        return f"checkpoint {self.checkpoint} is damaged: {'; '.join(map(str, self.chains))}"


@dataclass(frozen=True, slots=True)
class Examination:
    """The retained checkpoints, as far as they were read, newest first.

    damaged: those that do not read whole; empty if the last one does. whole: the newest one that reads whole,
    0 if none does. If the last one is in `damaged` and is also `whole`, only the steps that were recorded
    after it are damaged.
    """

    damaged: tuple[CheckpointDamage, ...]
    whole: int

    @property
    def text(self) -> str:
        """Return every damaged checkpoint with its chains, in words."""
        return "; ".join(map(str, self.damaged))
