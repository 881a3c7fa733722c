"""Workers with real `PeerLinks` and `Alignment`s, and links between them that break, one event at a time.

A circuit of three stages without operators: stage 0 produces a step and sends it on channel 0, stage 1 sends
on channel 1, stage 2 is the last one. What a worker sends is a function of its index, the receiver, the
channel and the step, as if its input divisions were durable from the beginning. So the test can state what
every receiver must get.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from checkpoint import ChannelFrame, FrameType, LinkHello, job_digest
from checkpoint.core.links.barrier import Alignment
from dataflow.core.peer_links import Admission, Held, PeerLinks, RowsRecord, Sent
from dataflow.limits import steps_ahead

REGION = "r"
JOB = job_digest(REGION)
CHANNELS = (0, 1)
INCARNATION = 1 << 16

Happening = tuple[str, Callable[[], None]]
"""What can happen next: its name, and the function that performs it."""


def items_of(sender: int, receiver: int, channel: int, step: int) -> list[bytes]:
    """What a worker sends another one in one step on one channel: none to three items."""
    count = (sender + 2 * receiver + 3 * channel + step) % 4
    return [f"{sender} to {receiver}, channel {channel}, step {step}, {i}".encode() for i in range(count)]


def record_of(items: list[bytes]) -> RowsRecord:
    return RowsRecord(len(items), sum(map(len, items)) % (1 << 64))


def frames_for(sender: int, receiver: int, channel: int, step: int, term: int) -> tuple[ChannelFrame, ...]:
    data = [(FrameType.DATA, item) for item in items_of(sender, receiver, channel, step)]
    return tuple(
        ChannelFrame(kind, sender, JOB, term, step, seq=seq, channel=channel, payload=payload)
        for seq, (kind, payload) in enumerate([*data, (FrameType.STEP_END, b"")])
    )


@dataclass(eq=False)
class ToyLink:
    """An exchange link. What is in flight may arrive after its dialler has given it up."""

    hello: LinkHello
    frames: deque[ChannelFrame] = field(default_factory=deque)
    answers: deque[ChannelFrame] = field(default_factory=deque)
    accepted: bool = False
    refused: bool = False


class ToyWorker:
    """One process of one worker, from the committed step that it begins at."""

    def __init__(self, index: int, terms: list[int], after: int) -> None:
        self.index = index
        self.links = PeerLinks(REGION, index, terms, after_step=after)
        self.aligned = {
            channel: Alignment[bytes](len(terms), first_step=after + 1, last_checkpoint=0)
            for channel in CHANNELS
        }
        self.done = [after] * 3
        """Stage -> the last step that it has run."""
        self.outgoing: dict[int, ToyLink] = {}
        self.incoming: dict[int, ToyLink] = {}
        self.used: dict[int, dict[tuple[int, int], RowsRecord]] = {peer: {} for peer in self.links.peers}

    # --- the circuit ---------------------------------------------------------------------------------

    def can_produce(self, last: int) -> bool:
        return self.done[0] < last and self.done[0] - self.done[2] < steps_ahead

    def can_run(self, stage: int) -> bool:
        alignment = self.aligned[stage - 1]
        return alignment.step <= self.done[stage - 1] and not alignment.missing()

    def produce(self) -> None:
        self._send(0, self.done[0] + 1)
        self.links.durable = self.done[0]

    def run(self, stage: int) -> None:
        """Take a step of the channel, which must have what all workers sent, and nothing else."""
        channel, me = stage - 1, self.index
        complete = self.aligned[channel].take()
        assert complete is not None
        assert complete.step == self.done[stage] + 1
        expected = {one: items_of(one, me, channel, complete.step) for one in range(len(self.links.terms))}
        assert list(complete.items) == [item for items in expected.values() for item in items]
        for peer in self.links.peers:
            self.used[peer][channel, complete.step] = record_of(expected[peer])
        if stage == 1:
            self._send(1, complete.step)
        else:
            self.done[2] = complete.step

    def _send(self, stage: int, step: int) -> None:
        me, term, channel = self.index, self.links.term, stage
        self.done[stage] = step
        frames = {peer: frames_for(me, peer, channel, step, term) for peer in self.links.peers}
        records = {(peer, channel): record_of(items_of(me, peer, channel, step)) for peer in frames}
        self.links.add(Sent(step, frames), records, produces=stage == 0)
        for frame in frames_for(me, me, channel, step, term):
            self.arrived(frame)

    def arrived(self, frame: ChannelFrame) -> None:
        alignment = self.aligned[frame.channel]
        if frame.type is FrameType.DATA:
            alignment.data(frame.sender, frame.step, frame.seq, bytes(frame.payload))
        else:
            alignment.step_end(frame.sender, frame.step, frame.seq)

    def committed(self, step: int) -> None:
        self.links.purge(step)
        for peer, records in self.used.items():
            self.used[peer] = {key: one for key, one in records.items() if key[1] > step}

    # --- its links -----------------------------------------------------------------------------------

    def hello(self, peer: int) -> LinkHello:
        terms = self.links.terms
        return LinkHello(
            role="exchange",
            job=REGION,
            worker=self.index,
            attempt=1,
            incarnation=self.links.term,
            to_worker=peer,
            to_term=terms[peer],
        )

    def disconnect(self, peer: int) -> None:
        """The dialler notices that the link is over. One that was not accepted yet never will be."""
        link = self.outgoing.pop(peer, None)
        if link is not None:
            link.refused = not link.accepted
            self.links.disconnected(peer)

    def accept(self, link: ToyLink) -> None:
        """Decide on a link that a peer has dialled. One that is decided later stays as it is."""
        peer, admission = link.hello.worker, self.links.admits(link.hello)
        if admission is Admission.NEVER:
            link.refused = True
        elif admission is Admission.NOW:
            link.accepted = True
            self.incoming[peer] = link
            used = {channel: alignment.restart(peer) for channel, alignment in self.aligned.items()}
            link.answers.append(self.links.have(peer, Held(used, self.used[peer])))

    def receive(self, link: ToyLink) -> None:
        """Take the next frame of a link, unless the peer has a newer one."""
        frame, peer = link.frames.popleft(), link.hello.worker
        if self.incoming.get(peer) is link:
            for_circuit = self.links.take(peer, frame)
            if for_circuit is not None:
                self.arrived(for_circuit)

    def view(self, peer: int, term: int) -> None:
        self.links.view(peer, term)
        self.incoming.pop(peer, None)
        self.disconnect(peer)


class ToyRegion:
    """The workers of a region, its coordinator's messages, and all links that ever were."""

    def __init__(self, workers: int, last: int) -> None:
        self.terms = [INCARNATION] * workers
        self.committed = 0
        self.last = last
        """Nobody produces a step above this one."""
        self.workers = [ToyWorker(index, self.terms, 0) for index in range(workers)]
        self.links: list[ToyLink] = []
        self._messages: dict[int, deque[Happening]] = {index: deque() for index in range(workers)}
        """Worker -> what the coordinator has sent to it."""

    def happenings(self) -> Iterator[Happening]:
        """Everything that can happen now without a fault. What a coordinator has sent comes first, because
        a worker that waits for it may dial in vain.
        """
        for worker in self.workers:
            me = f"worker {worker.index}"
            if messages := self._messages[worker.index]:
                yield f"{me} gets {messages[0][0]}", lambda m=messages: m.popleft()[1]()
            if worker.can_produce(self.last):
                yield f"{me} produces a step", worker.produce
            for stage in (1, 2):
                if worker.can_run(stage):
                    yield f"{me} runs stage {stage}", lambda w=worker, s=stage: w.run(s)
            for peer in worker.links.peers:
                yield from self._of_link(worker, peer)
        for link in self.links:
            to = self.workers[link.hello.to_worker]
            if link.accepted and link.frames:
                yield f"worker {to.index} receives a frame", lambda to=to, link=link: to.receive(link)
            elif (
                not link.accepted and not link.refused and to.links.admits(link.hello) is not Admission.LATER
            ):
                yield f"worker {to.index} decides on a link", lambda to=to, link=link: to.accept(link)

    def _of_link(self, worker: ToyWorker, peer: int) -> Iterator[Happening]:
        """What can happen at the end of the dialler."""
        link, name = worker.outgoing.get(peer), f"worker {worker.index} to worker {peer}"
        if link is None:
            yield f"{name}: dials", lambda: self._dial(worker, peer)
        elif link.refused:
            yield f"{name}: is refused", lambda: worker.disconnect(peer)
        elif link.answers:
            answer = link.answers
            yield f"{name}: is answered", lambda: worker.links.answered(peer, answer.popleft())

    def perform(self, act: Callable[[], None]) -> None:
        """Let one thing happen. Then all workers send what they may."""
        act()
        for worker in self.workers:
            for peer, link in worker.outgoing.items():
                while frames := worker.links.next_frames(peer):
                    link.frames.extend(frames)
            for peer, link in worker.incoming.items():
                if (at := worker.links.at(peer)) is not None:
                    link.answers.append(at)

    def _dial(self, worker: ToyWorker, peer: int) -> None:
        """Reach whichever process is at the address of a peer, by the term that the dialler knows."""
        link = worker.outgoing[peer] = ToyLink(worker.hello(peer))
        self.links.append(link)

    # --- the coordinator -------------------------------------------------------------------------------

    def commit(self) -> None:
        """Commit the last step that all workers have ended. The messages arrive later."""
        step = min(worker.done[2] for worker in self.workers)
        if step > self.committed:
            self.committed = step
            for worker in self.workers:
                self._send(worker, "Committed", lambda w=worker: w.committed(step))

    def take_over(self, index: int) -> None:
        """Another process takes a worker over. What the former one has sent is still in flight, also links
        that it has dialled.
        """
        self.terms[index] = term = max(self.terms) + 1
        for other in self.workers:
            other.disconnect(index)
        self.workers[index] = ToyWorker(index, self.terms, self.committed)
        self._messages[index].clear()
        for other in self.workers:
            if other.index != index:
                self._send(other, f"View of worker {index}", lambda w=other: w.view(index, term))
        for link in self.links:  # of the lost process, as an acceptor
            if link.hello.to_worker == index:
                link.frames.clear()

    def break_link(self, dialler: int, peer: int) -> None:
        self.workers[dialler].disconnect(peer)

    def deliver_messages(self, index: int) -> None:
        while self._messages[index]:
            self._messages[index].popleft()[1]()

    def _send(self, worker: ToyWorker, name: str, act: Callable[[], None]) -> None:
        self._messages[worker.index].append((name, act))

    # --- the end ---------------------------------------------------------------------------------------

    def is_done(self) -> bool:
        return all(worker.done[2] == self.last for worker in self.workers)

    def finish(self) -> None:
        """Let everything happen without further faults. Raises AssertionError if nothing can happen before
        every worker has ended the last step.
        """
        while not self.is_done():
            happenings = list(self.happenings())
            assert happenings, "nothing can happen, and not all steps are ended"
            _, act = happenings[0]
            self.perform(act)
