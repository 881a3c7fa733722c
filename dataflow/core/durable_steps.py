"""How far the divisions of steps are durable at all workers: what output by step may be shown.

Rules of this file: numbers of steps.
"""


class DurableSteps:
    """Every number only rises: durable stays durable. `peers`: how many other workers there are."""

    def __init__(self, peers: int) -> None:
        self._peers = peers
        self._floor = 0
        self._own = 0
        self._told: dict[int, int] = {}

    def floor(self, step: int) -> None:
        """All workers' divisions up to this step were found durable when the incarnation began."""
        self._floor = max(self._floor, step)

    def own(self, step: int) -> None:
        """Our own divisions up to this step are durable."""
        self._own = max(self._own, step)

    def of_peer(self, peer: int, step: int) -> None:
        """A peer's divisions up to this step are durable."""
        self._told[peer] = max(self._told.get(peer, 0), step)

    @property
    def everywhere(self) -> int:
        """Up to here, at all workers."""
        if len(self._told) < self._peers:
            return self._floor
        return max(self._floor, min([self._own, *self._told.values()]))
