"""What is taken of the frames that peers send in one incarnation, and what is told to them.

Rules of this file: frames, numbers of peers and of incarnations; no links. A frame of another sender, region
or incarnation than its link's ends the link. The first frame of a link is RESET: nothing sent in an earlier
incarnation counts. EOF says that the sender's sources are exhausted, DURABLE(n) that its division of step n
is synced on the quorum; they tell the circuit nothing.
"""

from checkpoint import ChannelFrame, FrameType, job_digest
from checkpoint.errors import ChannelFrameError


class IncomingFrames:
    """See the module."""

    def __init__(self, region: str, worker: int, workers: int, incarnation: int) -> None:
        self.incarnation = incarnation
        self.peers_at = 0
        """The highest step that any peer has ended."""
        self._worker = worker
        self._workers = workers
        self._job = job_digest(region)
        self._links: set[int] = set()

    def admits(self, peer: int, incarnation: int) -> bool:
        """Whether a link of that worker, dialled in that incarnation, is taken: one of each peer."""
        if incarnation != self.incarnation or peer in self._links or peer == self._worker:
            return False
        if not 0 <= peer < self._workers:
            return False
        self._links.add(peer)
        return True

    def take(self, peer: int, frame: ChannelFrame) -> ChannelFrame | None:
        """What the circuit is to see of it, None: nothing. Raises ChannelFrameError."""
        stated = (frame.sender, frame.job, frame.sender_epoch)
        if stated != (peer, self._job, self.incarnation):
            raise ChannelFrameError(f"worker {peer} sends frames of sender, job, incarnation {stated}")
        if frame.type in (FrameType.DURABLE, FrameType.EOF, FrameType.RESET):
            return None
        if frame.type is FrameType.STEP_END:
            self.peers_at = max(self.peers_at, frame.step)
        return frame

    def marker(self, kind: FrameType, step: int) -> ChannelFrame:
        """A frame of ours without content."""
        return ChannelFrame(kind, self._worker, self._job, self.incarnation, step)
