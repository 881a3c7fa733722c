"""Links between the processes of a region: one end with its handshake, and the links of an exchange, plain or
resumed.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Final

from checkpoint.core.links.frames import ChannelFrame, ChannelFrameDecoder, FrameType, encode
from checkpoint.core.links.handshake import NONCE_BYTES, Acceptor, Dialler, LinkHello
from checkpoint.core.links.messages import Restore, Suspects, View
from checkpoint.errors import ChannelFrameError, HandshakeError, LinkClosedError
from checkpoint.limits import handshake_timeout_s
from dataflow import limits
from dataflow.core.peer_links import Admission, Held, PeerLinks, Sent
from dataflow.core.schedule import DurableSteps
from dataflow.errors import PeerLostError, StepDiffersError, StepsMissingError
from dataflow.worker.circuit_thread import CircuitIncarnation
from dataflow.worker.journals import Journals
from dataflow.worker.layout_change import after_step
from dataflow.worker.messages import PeerHeld, StageEnded
from dos_protocol.errors import BrokenConnectionError, DosError
from tests.sim.engine.environment import Process, Signal, Task
from tests.sim.engine.network import Network, Wire

if TYPE_CHECKING:
    from tests.sim.regions.worker import Worker


KEY: Final = b"the key of the job, of this run!"


class Channel:
    """One end of a link. `over`: why nothing more arrives, '' while something may. `hello`: the identity of
    the peer that dialed, after it is verified.
    """

    def __init__(self, process: Process, wire: Wire, *, dialler: bool) -> None:
        self.process = process
        self.over = ""
        self.hello: LinkHello | None = None
        self._dialler = dialler
        self._wire = wire
        self._decoder = ChannelFrameDecoder(handshake=True)
        self._frames: deque[ChannelFrame] = deque()
        self._changed = Signal()

    def proved(self, hello: LinkHello) -> None:
        """Accept all frames from now on: the peer is verified."""
        self.hello = hello
        self._decoder.handshake = False

    def received(self, data: bytes) -> None:
        """Bytes arrived."""
        if not self.over:
            self._decoder.receive_data(data)
            self._changed.set()

    def ended(self) -> None:
        """The other end closed the link, or the connection ended."""
        self._end("the other end closed the link")

    def _end(self, why: str) -> None:
        self.over = self.over or why
        self._changed.set()

    def send(self, frame: ChannelFrame) -> None:
        """Send a frame. Raises BrokenConnectionError if the link has ended."""
        if self.over:
            raise BrokenConnectionError(f"the link broke: {self.over}")
        self._wire.send(encode(frame), dialler=self._dialler)

    async def receive(self, timeout_s: float | None = None) -> ChannelFrame:
        """Return the next frame. Raises LinkClosedError, ChannelFrameError, BrokenConnectionError
        (silence)."""
        deadline = None if timeout_s is None else self.process.now + timeout_s
        while True:
            frame = self._decoder.next_frame()
            if frame is not None:
                return frame
            if self.over:
                raise LinkClosedError(self.over)
            left = None if deadline is None else deadline - self.process.now
            if left is not None and left <= 0:
                raise BrokenConnectionError(f"nothing arrived within {timeout_s:g} s")
            await self.process.wait(self._changed, left)

    def close(self) -> None:
        """Close this end."""
        if not self.over:
            self._wire.close(dialler=self._dialler)
        self._end("closed here")


async def dial(
    process: Process, network: Network, address: str, hello: LinkHello, rng: Random, timeout_s: float
) -> Channel:
    """Connect and perform the handshake. Raises BrokenConnectionError, HandshakeError."""
    answered: list[Wire | None] = []
    changed = Signal()
    given_up = False

    def done(wire: Wire | None) -> None:
        if given_up and wire is not None:
            wire.reset()
            return
        answered.append(wire)
        changed.set()

    network.dial(process, address, done)
    try:
        await process.wait(changed, timeout_s)
    finally:
        given_up = not answered
    if not answered or answered[0] is None:
        raise BrokenConnectionError(f"{address} cannot be reached")
    channel = Channel(process, answered[0], dialler=True)
    answered[0].attach(channel, dialler=True)
    try:
        dialler = Dialler(hello, key=KEY, nonce=rng.randbytes(NONCE_BYTES))
        channel.send(dialler.hello())
        channel.send(dialler.challenged(await channel.receive(timeout_s)))
        dialler.accepted(await channel.receive(timeout_s))
    except (LinkClosedError, ChannelFrameError) as error:
        channel.close()
        raise HandshakeError(f"{address}: {error.args[0]}") from error
    except BaseException:
        channel.close()
        raise
    channel.proved(hello)
    return channel


async def accept(channel: Channel, job: str, rng: Random) -> LinkHello:
    """Perform the acceptor's part of the handshake. Raises HandshakeError, BrokenConnectionError after
    closing the channel."""
    acceptor = Acceptor(job=job, key=KEY, nonce=rng.randbytes(NONCE_BYTES))
    wait_s = handshake_timeout_s
    try:
        channel.send(acceptor.received(await channel.receive(wait_s)))
        hello, accepted = acceptor.proved(await channel.receive(wait_s))
        channel.proved(hello)
        channel.send(accepted)
    except (LinkClosedError, ChannelFrameError) as error:
        channel.close()
        raise HandshakeError(str(error.args[0])) from error
    except BaseException:
        channel.close()
        raise
    return hello


# --- plain links ------------------------------------------------------------------------------------------


class PlainLinks:
    """The links of one incarnation. `fail` is called with the error that ends it."""

    def __init__(self, worker: "Worker", order: Restore, fail: Callable[[DosError], None]) -> None:
        self._worker = worker
        self._order = order
        self._fail = fail
        self._over = False
        terms = (order.incarnation,) * len(order.layout.workers)
        name, after = worker.region.spec.name, after_step(order)
        self._peers = PeerLinks(name, worker.index, terms, after_step=after, resumes=False)
        self._outgoing: dict[int, Channel] = {}
        self._incoming: list[Channel] = []

    def close(self) -> None:
        """Close all of them."""
        self._over = True
        for channel in (*self._outgoing.values(), *self._incoming):
            channel.close()

    def purge(self, step: int) -> None:
        """Do nothing: nothing is retained."""

    async def dial_all(self) -> None:
        """Open a link to every peer. Raises PeerLostError."""
        for index, peer in enumerate(self._order.peers):
            if index != self._worker.index:
                await self._dial(index, peer.host)

    async def _dial(self, peer: int, address: str) -> None:
        worker, number = self._worker, self._order.incarnation
        hello = LinkHello(
            role="exchange",
            job=worker.region.spec.name,
            worker=worker.index,
            attempt=worker.attempt,
            incarnation=number,
            to_worker=peer,
            to_term=number,
        )
        try:
            channel = await dial(
                worker, worker.region.network, address, hello, worker.rng, limits.peer_dial_s
            )
        except DosError as error:
            raise PeerLostError(peer, str(error.args[0])) from error
        self._outgoing[peer] = channel
        self._peers.opened(peer)
        self._send(peer)

    def send(self, message: StageEnded) -> None:
        """Send what a stage sends. Raises PeerLostError."""
        self._peers.add(Sent(message.step, message.frames), message.records, produces=message.stage == 0)
        self._send_all()

    def _send_all(self) -> None:
        for peer in self._outgoing:
            self._send(peer)

    def _send(self, peer: int) -> None:
        channel = self._outgoing[peer]
        try:
            while frames := self._peers.next_frames(peer):
                for frame in frames:
                    channel.send(frame)
        except BrokenConnectionError as error:
            raise PeerLostError(peer, str(error.args[0])) from error

    def announce(self, kind: FrameType, step: int) -> None:
        """Send that divisions are durable, or that the input is exhausted. Raises PeerLostError."""
        if kind is FrameType.DURABLE:
            self._peers.durable = max(self._peers.durable, step)
        else:
            self._peers.exhausted = True
        self._send_all()

    async def serve(self, channel: Channel, hello: LinkHello) -> None:
        """Receive frames from a peer, on the link that it dialed."""
        if self._peers.admits(hello) is not Admission.NOW:
            self._worker.region.saw("a peer's link was refused")
            channel.close()
            return
        self._incoming.append(channel)
        shared = self._worker.shared
        try:
            while True:
                frame = await channel.receive()
                if self._over:
                    return
                arrived = self._peers.take(hello.worker, frame)
                shared.peers_at = max(shared.peers_at, self._peers.peers_at)
                if arrived is not None:
                    self._worker.inbox.call(self._order.incarnation, CircuitIncarnation.arrived, arrived)
        except DosError as error:
            channel.close()
            self._fail(PeerLostError(hello.worker, str(error.args[0])))


# --- resumed links ----------------------------------------------------------------------------------------


class ResumedLinks:
    """The links of one term. `start(name, task)` runs a task until the term is over."""

    def __init__(
        self, worker: "Worker", order: Restore, start: Callable[[str, Callable[[], object]], Task]
    ) -> None:
        self._worker = worker
        self._start = start
        after = after_step(order)
        name = worker.region.spec.name
        self._peers = PeerLinks(name, worker.index, order.terms, after_step=after)
        self._addresses = [peer.host for peer in order.peers]
        self._changed = Signal()
        self._durable = DurableSteps(len(self._peers.peers))
        self._recorded = 0
        self._senders: dict[int, Task] = {}
        self._outgoing: dict[int, Channel] = {}
        self._incoming: dict[int, Channel] = {}
        self._answers: dict[int, Held] = {}
        self._numbers = 0
        self._answered_at: dict[int, float] = {}
        self._over = False

    # Calls of the incarnation

    def view(self, order: View) -> None:
        """Connect to the process that has taken a peer over."""
        self._worker.region.saw("a worker gets a view")
        self._peers.view(order.peer, order.term)
        self._addresses[order.peer] = order.address.host
        old = self._incoming.pop(order.peer, None)
        if old is not None:
            old.close()
        self._senders[order.peer].stop()
        self._disconnect(order.peer)
        self._senders[order.peer] = self._start("sender", lambda: self._keep_sending(order.peer, None))
        self._changed.set()

    def held(self, message: PeerHeld) -> None:
        self._answers[message.link] = message.held
        self._changed.set()

    def purge(self, step: int) -> None:
        self._peers.purge(step)

    def started(self, step: int, *, everywhere: bool) -> None:
        """The divisions up to a step are durable: of this worker, or everywhere."""
        if everywhere:
            self._durable.floor(step)
        self._durable.own(step)
        self._peers.durable = max(self._peers.durable, step)
        self._note_durable()
        self._changed.set()

    def send(self, message: StageEnded) -> None:
        """Retain what a stage sends, and send it."""
        self._peers.add(Sent(message.step, message.frames), message.records, produces=message.stage == 0)
        if message.sources is not None:
            self._recorded = max(self._recorded, message.step)
        self._changed.set()

    def announce(self, kind: FrameType, step: int) -> None:
        """Send to all peers that divisions are durable, or that the input is exhausted."""
        if kind is FrameType.DURABLE:
            self._peers.durable = max(self._peers.durable, step)
        else:
            self._peers.exhausted = True
        self._changed.set()

    def close(self) -> None:
        self._over = True
        for channel in (*self._outgoing.values(), *self._incoming.values()):
            channel.close()

    def _note_durable(self) -> None:
        everywhere = self._durable.everywhere
        self._worker.inbox.call(self._peers.term, CircuitIncarnation.divisions_durable, everywhere)

    # Tasks

    async def announce_divisions(self, journals: Journals) -> None:
        """Announce how far this worker's divisions are durable."""
        announced = 0
        while True:
            while self._recorded <= announced:
                await self._worker.wait(self._changed)
            announced = self._recorded
            await journals.division_synced(announced)
            self._durable.own(announced)
            self.announce(FrameType.DURABLE, announced)
            self._note_durable()

    async def dial_all(self) -> None:
        for peer in self._peers.peers:
            channel = await self._dial(peer, limits.peer_dial_s)
            self._senders[peer] = self._start(
                "sender", lambda peer=peer, channel=channel: self._keep_sending(peer, channel)
            )

    async def _dial(self, peer: int, timeout_s: float) -> Channel:
        worker = self._worker
        hello = LinkHello(
            role="exchange",
            job=worker.region.spec.name,
            worker=worker.index,
            attempt=worker.attempt,
            incarnation=self._peers.term,
            to_worker=peer,
            to_term=self._peers.terms[peer],
        )
        address = self._addresses[peer]
        return await dial(worker, worker.region.network, address, hello, worker.rng, timeout_s)

    def _disconnect(self, peer: int) -> None:
        self._peers.disconnected(peer)
        channel = self._outgoing.pop(peer, None)
        if channel is not None:
            channel.close()

    async def _keep_sending(self, peer: int, channel: Channel | None) -> None:
        worker, since, reason = self._worker, self._worker.now, "it is another process"
        while True:
            if channel is not None:
                self._outgoing[peer] = channel
                try:
                    await self._send_all(peer, channel)
                except (StepsMissingError, StepDiffersError):
                    raise
                except DosError as error:
                    reason = str(error.args[0])
                worker.region.saw("an exchange link is opened again")
                self._disconnect(peer)
                channel, since = None, worker.now
            await worker.sleep(limits.peer_redial_s)
            with suppress(DosError):
                channel = await self._dial(peer, limits.peer_resume_s)
            if channel is None and worker.now > since + limits.peer_resume_s:
                self._suspect(peer, f"the link to it cannot be opened again ({reason})")

    def _suspect(self, peer: int, reason: str) -> None:
        worker, term = self._worker, self._peers.terms[peer]
        worker.region.saw("a worker suspects another")
        worker.report(Suspects(job="", worker=worker.index, peer=peer, term=term, reason=reason))

    async def _send_all(self, peer: int, channel: Channel) -> None:
        self._peers.answered(peer, await channel.receive())
        tasks = [self._start("answers", lambda: self._quietly(self._read_answers(peer, channel), channel))]
        if peer == (self._worker.index + 1) % len(self._peers.terms):
            tasks.append(self._start("pings", lambda: self._quietly(self._ping(peer, channel), channel)))
        try:
            while not channel.over:
                frames = self._peers.next_frames(peer)
                for frame in frames:
                    channel.send(frame)
                if not frames:
                    await self._worker.wait(self._changed)
        finally:
            for task in tasks:
                task.stop()

    async def _quietly(self, work: object, channel: Channel) -> None:
        try:
            await work  # type: ignore[misc]
        except (StepsMissingError, StepDiffersError):
            raise
        except DosError:  # the link broke: its sender opens it again
            channel.close()
            self._changed.set()

    async def _read_answers(self, peer: int, channel: Channel) -> None:
        while True:
            frame = await channel.receive()
            self._answered_at[peer] = self._worker.now
            self._peers.answered(peer, frame)
            self._changed.set()

    async def _ping(self, peer: int, channel: Channel) -> None:
        worker = self._worker
        self._answered_at[peer] = worker.now
        while True:
            channel.send(self._peers.ping())
            due = worker.now + 5 * limits.ping_s
            await worker.sleep(5 * limits.ping_s)
            if worker.now > due + limits.ping_s:
                self._answered_at[peer] = worker.now
            if worker.now - self._answered_at[peer] > 5 * limits.pings_missed_max * limits.ping_s:
                self._suspect(peer, "it did not answer")

    # In

    async def serve(self, channel: Channel, hello: LinkHello) -> None:
        """Receive frames from a peer on a link that it dialled, until it breaks: the peer opens it again."""
        try:
            await self._serve(channel, hello)
        except DosError:
            channel.close()

    async def _serve(self, channel: Channel, hello: LinkHello) -> None:
        worker, peer = self._worker, hello.worker
        deadline = worker.now + limits.peer_wait_s
        while self._peers.admits(hello) is Admission.LATER and worker.now < deadline:
            worker.region.saw("a link waits for a view")
            await worker.wait(self._changed, deadline - worker.now)
        if self._over or self._peers.admits(hello) is not Admission.NOW:
            worker.region.saw("a peer's link was refused")
            channel.close()
            return
        old = self._incoming.get(peer)
        if old is not None:
            old.close()
        self._incoming[peer] = channel
        self._numbers += 1
        number = self._numbers
        worker.inbox.call(self._peers.term, CircuitIncarnation.peer_restarts, peer, number)
        while number not in self._answers:
            await worker.wait(self._changed)
        channel.send(self._peers.have(peer, self._answers.pop(number)))
        while True:
            frame = await channel.receive()
            if self._over or self._incoming.get(peer) is not channel:
                return
            if frame.type is FrameType.PING:
                channel.send(self._peers.ping())
            else:
                self._take(peer, frame)
            if (at := self._peers.at(peer)) is not None:
                channel.send(at)

    def _take(self, peer: int, frame: object) -> None:
        worker = self._worker
        for_circuit = self._peers.take(peer, frame)  # type: ignore[arg-type]
        if frame.type is FrameType.DURABLE:  # type: ignore[attr-defined]
            self._durable.of_peer(peer, frame.step)  # type: ignore[attr-defined]
            self._note_durable()
        worker.shared.peers_at = max(worker.shared.peers_at, self._peers.peers_at)
        if for_circuit is not None:
            worker.inbox.call(self._peers.term, CircuitIncarnation.arrived, for_circuit)
