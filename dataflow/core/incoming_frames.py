"""Frames from and to the peers of a worker in one incarnation. Pure: frames and numbers; no links.

1. A frame whose sender, region or incarnation differs from that of its link ends the link.
2. The first frame of a link is RESET: nothing sent in an earlier incarnation counts.
3. EOF means that the sender's sources are exhausted. DURABLE(n) means that its input division of step n is
   synced on the quorum. Neither is passed to the circuit.
"""

from checkpoint import ChannelFrame, FrameType, job_digest
from checkpoint.errors import ChannelFrameError


class IncomingFrames:
    """The checks of incoming frames, and the frames without payload that this worker sends."""

    def __init__(self, region: str, worker: int, workers: int, incarnation: int) -> None:
        self.incarnation = incarnation
        self.peers_at = 0
        """The highest step that any peer has ended."""
        self._worker = worker
        self._workers = workers
        self._job = job_digest(region)
        self._links: set[int] = set()

    def admits(self, peer: int, incarnation: int) -> bool:
        """Whether to accept a link of that worker, dialled in that incarnation.

        Accepts one link of each peer.
        """
        if incarnation != self.incarnation or peer in self._links or peer == self._worker:
            return False
        if not 0 <= peer < self._workers:
            return False
        self._links.add(peer)
        return True

    def take(self, peer: int, frame: ChannelFrame) -> ChannelFrame | None:
        """Return the frame if it is for the circuit, otherwise None. Raises ChannelFrameError."""
        stated = (frame.sender, frame.job, frame.sender_epoch)
        if stated != (peer, self._job, self.incarnation):
            raise ChannelFrameError(f"worker {peer} sent a frame with (sender, job, incarnation) {stated}")
        if frame.type in (FrameType.DURABLE, FrameType.EOF, FrameType.RESET):
            return None
        if frame.type is FrameType.STEP_END:
            self.peers_at = max(self.peers_at, frame.step)
        return frame

    def marker(self, kind: FrameType, step: int) -> ChannelFrame:
        """Return a frame of this worker without payload."""
        return ChannelFrame(kind, self._worker, self._job, self.incarnation, step)
