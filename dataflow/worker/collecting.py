"""What one worker deletes in its directory: what committed checkpoints have released: below the floors of its
chains, and in their gaps.

Chains of state are deleted as soon as the release is known. An output log is also read by others, so its
trimmer (`checkpoint/chains/trimming.py`) permits the deletion after it has read the register again.
"""

from collections.abc import Mapping

from checkpoint import OUTPUT_CHAIN_PREFIX
from journal import Floor, Gaps, below_or_within
from journal.ports import ClaimPort


class FloorCollector:
    """The floors under one claim. `released`: of output logs, as the last checkpoint has released them."""

    def __init__(self, claim: ClaimPort) -> None:
        self._claim = claim
        self._floors: dict[str, Floor] = {}
        self._gaps: Gaps = {}
        self.released: dict[str, Floor] = {}

    def release(self, floors: Mapping[str, Floor], gaps: Gaps) -> None:
        """Take what the retained checkpoints do not need. Its release is acknowledged (R14)."""
        for chain, floor in floors.items():
            (self.released if chain.startswith(OUTPUT_CHAIN_PREFIX) else self._floors)[chain] = floor
        self._gaps = gaps
        self._collect()

    def permit(self, chain: str, floor: Floor) -> None:
        """Delete an output log below a floor, too, which must be released. Raises FencedError."""
        self._floors[chain] = floor
        self._collect()

    def _collect(self) -> None:
        self._claim.collect(below_or_within(dict(self._floors), self._gaps))
