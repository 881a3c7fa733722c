"""How far input divisions are durable on all workers: which output may be published by step. Pure."""


class DurableSteps:
    """The durable steps of all workers. Numbers never decrease. `peers`: the number of other workers."""

    def __init__(self, peers: int) -> None:
        self._peers = peers
        self._floor = 0
        self._own = 0
        self._steps_of_peers: dict[int, int] = {}

    def floor(self, step: int) -> None:
        """Note that all workers' divisions up to this step were durable when the incarnation began."""
        self._floor = max(self._floor, step)

    def own(self, step: int) -> None:
        """Note that this worker's divisions are durable up to this step."""
        self._own = max(self._own, step)

    def of_peer(self, peer: int, step: int) -> None:
        """Note that a peer's divisions are durable up to this step."""
        self._steps_of_peers[peer] = max(self._steps_of_peers.get(peer, 0), step)

    @property
    def everywhere(self) -> int:
        """The step up to which the divisions of all workers are durable."""
        if len(self._steps_of_peers) < self._peers:
            return self._floor  # of some peer nothing beyond the floor is known
        return max(self._floor, min([self._own, *self._steps_of_peers.values()]))
