"""The exchange links of a story of local recovery: real `PeerLinks`, and links on which all arrives at once.

The circuits are a model: a step that arrives is used at once. Each step has one frame for each peer, its end.
"""

from collections.abc import Callable

from checkpoint.core.links.frames import ChannelFrame, FrameType, job_digest
from checkpoint.core.links.handshake import LinkHello
from checkpoint.core.links.messages import Committed, Restore, Suspects, View
from dataflow.core.peer_links import Admission, Held, PeerLinks, Sent
from tests.stories.store.copies import in_words

REGION = "region"
SILENT_S = 0.4
"""What a worker reports: three pings without an answer."""


class StoryEnd:
    """One process, as an end of links."""

    def __init__(self, order: Restore) -> None:
        step = order.restore.step if order.restore else 0
        self.links = PeerLinks(REGION, order.worker, order.terms, after_step=step)
        self.used = dict.fromkeys(self.links.peers, step)
        """Peer -> the last step of it that was used."""
        self.takes_over = order.takes_over
        self.open: set[int] = set()
        """Peers to which it has a link."""


class StoryLinks:
    """The links of all workers. `tell`: called with a worker and what happens to it."""

    def __init__(self, tell: Callable[[int, str], None]) -> None:
        self._tell = tell
        self._ends: dict[int, StoryEnd] = {}

    def ordered(self, worker: int, order: object) -> None:
        """A worker has carried out an order of its coordinator."""
        if isinstance(order, Restore):
            self.gone(worker)
            self._ends[worker] = StoryEnd(order)
        elif isinstance(order, View):
            self._ends[worker].links.view(order.peer, order.term)
            self._ends[worker].open.discard(order.peer)
        elif isinstance(order, Committed):
            self._ends[worker].links.purge(order.step)

    def gone(self, worker: int) -> None:
        self._ends.pop(worker, None)
        for end in self._ends.values():
            end.open.discard(worker)
            end.links.disconnected(worker)

    def stepped(self, worker: int, step: int) -> None:
        """A worker has produced a step, perhaps again."""
        links = self._ends[worker].links
        end = ChannelFrame(FrameType.STEP_END, worker, job_digest(REGION), links.term, step)
        links.add(Sent(step, dict.fromkeys(links.peers, (end,))), {}, produces=True)
        sent = [peer for peer in links.peers if self._send(worker, peer)]
        if self._ends[worker].takes_over and not sent:
            self._tell(worker, f"{{}} makes step {step} again and retains it: all others have used it")

    def advance(self) -> bool:
        """Let one thing happen: a link is opened, or retained steps are sent. False if nothing can."""
        pairs = [(one, other) for one in sorted(self._ends) for other in sorted(self._ends) if one != other]
        return any(self._dial(*pair) for pair in pairs) or any(self._send_retained(*pair) for pair in pairs)

    def _dial(self, worker: int, peer: int) -> bool:
        own, other = self._ends[worker], self._ends[peer]
        hello = LinkHello(
            role="exchange",
            job=REGION,
            worker=worker,
            attempt=1,
            incarnation=own.links.term,
            to_worker=peer,
            to_term=own.links.terms[peer],
        )
        if peer in own.open or other.links.admits(hello) is not Admission.NOW:
            return False
        own.open.add(peer)
        have = other.links.have(worker, Held({0: other.used[worker]}, {}))
        own.links.answered(peer, have)
        if own.takes_over or other.takes_over:
            text = f"worker {peer}, which answers that it has used its steps up to {other.used[worker]}"
            self._tell(worker, f"{{}} opens a link to {text}")
        return True

    def _send_retained(self, worker: int, peer: int) -> bool:
        steps = self._send(worker, peer)
        if steps:
            text = (
                f"sends worker {peer} the retained step{'s' * (len(steps) > 1)} {in_words(map(str, steps))}"
            )
            self._tell(worker, f"{{}} {text}")
        return bool(steps)

    def _send(self, worker: int, peer: int) -> list[int]:
        """Send what may be sent, and use it. Return the steps."""
        if peer not in self._ends:
            return []
        own, other = self._ends[worker], self._ends[peer]
        if peer in own.open and (at := other.links.at(worker)) is not None:
            own.links.answered(peer, at)
        steps = []
        while frames := own.links.next_frames(peer):
            for frame in frames:
                if other.links.take(worker, frame) is not None:
                    assert frame.step == other.used[worker] + 1, "each step is used once, in order"
                    other.used[worker] = frame.step
                    steps.append(frame.step)
        return steps

    def ping(self, worker: int, live: list[int]) -> Suspects | None:
        """A worker pings the next one. Return its report if that one does not answer."""
        own = self._ends[worker].links
        peer = (worker + 1) % len(own.terms)
        if peer not in self._ends[worker].open:
            return None
        if peer in live:
            own.answered(peer, self._ends[peer].links.ping())
            self._tell(worker, f"{{}} pings worker {peer}, which answers")
            return None
        reason = f"it did not answer for {SILENT_S} s"
        self._tell(worker, f"{{}} pings worker {peer}, which does not answer, and reports that")
        return Suspects(job="", worker=worker, peer=peer, term=own.terms[peer], reason=reason)
