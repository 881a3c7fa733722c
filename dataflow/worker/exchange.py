"""The links between this worker and its peers in one term, and the steps that are sent on them.

A pair of workers has two links, each dialled by its sender, so a slow receiver does not block frames in the
other direction. The queues need no limit: a sender is at most `steps_ahead` steps ahead of its consumer,
which cannot advance without its peers.

With global recovery, a broken link or a silent peer ends the incarnation. With local recovery the link is
opened again, to the same process or to the one that has taken the peer over, which gets what it has not used.
Steps retained for that move to the disk as Arrow files once they are many.
"""

import logging
import math
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import trio

from checkpoint import ChannelFrame, FrameType, LinkHello, Peer, Restore, View
from checkpoint.errors import HandshakeError
from checkpoint.link import Link, connect_link
from dataflow import limits
from dataflow.core.peer_links import Admission, Held, PeerLinks, Sent
from dataflow.errors import PeerLostError, StepDiffersError, StepsMissingError
from dataflow.graph.plan import GraphPlan
from dataflow.worker.circuit_thread import CircuitIncarnation, Inbox
from dataflow.worker.failures import first_error
from dataflow.worker.layout_change import after_step
from dataflow.worker.messages import PeerHeld, Shared, StageEnded
from dataflow.worker.spec import ADVERTISE_HOST, WorkerSpec
from dos_protocol.errors import BrokenConnectionError, DosError

logger = logging.getLogger("dos.dataflow")


_FOR_A_RESET = (StepsMissingError, StepDiffersError)


class PeerSuspected(NamedTuple):
    """A peer does not answer."""

    peer: int
    term: int
    reason: str


class Exchange:
    """The links of one term. Tasks in the nursery of `dial_all` raise PeerLostError with global recovery;
    StepsMissingError or StepDiffersError with local recovery, if the region must be reset.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        order: Restore,
        plan: GraphPlan,
        *,
        inbox: Inbox,
        shared: Shared,
        lost: Callable[[PeerLostError], None],
        suspects: Callable[[PeerSuspected], None],
    ) -> None:
        """lost: with global recovery, called when a peer's link has ended. suspects: with local recovery,
        called again and again as long as a peer does not answer.
        """
        self._spec = spec
        self._inbox = inbox
        self._shared = shared
        self._lost = lost
        self._suspects = suspects
        self._local = order.is_local
        self._silent_s_max = limits.peer_silent_s if order.is_local else plan.silence_timeout
        self._suspected: dict[int, float] = {}
        """Peer -> when it was reported last."""
        self._peers = PeerLinks(
            spec.region,
            spec.worker,
            order.terms or (order.incarnation,) * len(order.layout.workers),
            after_step=after_step(order),
            at_most_once=plan.delivery == "at-most-once",
            resumes=order.is_local,
        )
        self._addresses = list(order.peers)
        self._over = trio.Event()
        self._changed = trio.Event()
        """Something may be sent, or a peer has another term."""
        self._outgoing: dict[int, tuple[Link, trio.CancelScope]] = {}
        """The links that this worker dialled, by peer."""
        self._dialling: dict[int, trio.CancelScope] = {}
        """Peer -> the attempt to open a link to it again, or the wait before it."""
        self._incoming: dict[int, int] = {}
        """Peer -> the number of the link on which it sends now."""
        self._numbers = 0
        self._answers: dict[int, trio.MemorySendChannel[Held]] = {}
        """Link number -> where the circuit's answer goes."""
        self._answered_at: dict[int, float] = {}
        self.on_durable: Callable[[int, int], None] | None = None
        """Called as `on_durable(peer, step)` when the divisions of a peer are durable up to a step."""

    def end(self) -> None:
        """Receive nothing more."""
        self._over.set()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    # --- from the coordinator and the circuit --------------------------------------------------------------

    def view(self, order: View) -> None:
        """Connect to the process that has taken a peer over; nothing of the former one counts any more."""
        self._peers.view(order.peer, order.term)
        self._addresses[order.peer] = order.address
        self._incoming.pop(order.peer, None)
        if order.peer in self._outgoing:
            self._outgoing[order.peer][1].cancel()
        elif order.peer in self._dialling:
            self._dialling[order.peer].cancel()  # it dials a process that is lost, or waits to do so
        self._wake()

    def held(self, message: PeerHeld) -> None:
        """Take the circuit's answer to `peer_restarts`."""
        answer = self._answers.pop(message.link, None)
        if answer is not None:
            answer.send_nowait(message.held)

    def purge(self, step: int) -> None:
        """Forget the retained steps that a committed checkpoint covers."""
        self._peers.purge(step)

    # --- out ----------------------------------------------------------------------------------------------

    async def dial_all(self, nursery: trio.Nursery) -> None:
        """Open a link to every peer; senders run in `nursery`. Raises PeerLostError, perhaps in a group."""
        if self._local:
            nursery.start_soon(self._spill_all)
        async with trio.open_nursery() as dialling:
            for peer in self._peers.peers:
                dialling.start_soon(self._first_link, nursery, peer)

    async def _first_link(self, nursery: trio.Nursery, peer: int) -> None:
        nursery.start_soon(self._keep_sending, peer, await self._dial(peer))

    async def _dial(self, peer: int, timeout_s: float = limits.peer_dial_s) -> Link:
        hello = LinkHello(
            role="exchange",
            job=self._spec.region,
            worker=self._spec.worker,
            attempt=self._spec.attempt,
            incarnation=self._peers.term,
            to_worker=peer,
            to_term=self._peers.terms[peer],
        )
        # The kernel asks for acknowledgements in both directions: a host that is silent is silent here too.
        return await dial_peer(self._spec, peer, self._addresses[peer], hello, timeout_s)

    async def _keep_sending(self, peer: int, link: Link) -> None:
        while True:
            reason, term = "its term is over", self._peers.terms[peer]
            try:
                # Inside, because a link may break at the moment in which a view cancels the scope.
                with trio.CancelScope() as scope:
                    self._outgoing[peer] = (link, scope)
                    await self._send_all(peer, link)
            except Exception as error:
                first = first_error(error)
                if isinstance(first, _FOR_A_RESET) or not isinstance(first, DosError):
                    raise first from error
                reason = str(first.args[0])
            finally:
                self._peers.disconnected(peer)
                del self._outgoing[peer]
                await _close(link)
            if not self._local:
                raise PeerLostError(peer, reason)
            logger.info("worker %d opens the link to worker %d again: %s", self._spec.worker, peer, reason)
            link = await self._dial_again(peer, term, reason)

    async def _dial_again(self, peer: int, term: int, reason: str) -> Link:
        """Dial until a process of the peer answers. After a while, report on the one that does not. term: of
        the process whose link has ended.
        """
        since = trio.current_time()
        while True:
            pause_s = limits.peer_redial_s
            if self._peers.terms[peer] != term:  # another process waits for this link
                since, term, pause_s = trio.current_time(), self._peers.terms[peer], 0.0
            link: Link | None = None
            with trio.CancelScope() as scope, suppress(PeerLostError):
                self._dialling[peer] = scope
                await trio.sleep(pause_s)
                link = await self._dial(peer, limits.peer_resume_s)
            if link is not None and not scope.cancel_called:
                return link
            if link is not None:
                await _close(link)
            if trio.current_time() > since + limits.peer_resume_s and self._peers.terms[peer] == term:
                self._suspect(peer, f"the link to it cannot be opened again ({reason})")

    async def _send_all(self, peer: int, link: Link) -> None:
        if self._local:
            self._peers.answered(peer, await link.receive())
            self._shared.peers_at = max(self._shared.peers_at, self._peers.peers_at)
        else:
            self._peers.opened(peer)
        async with trio.open_nursery() as nursery:
            if self._local:
                nursery.start_soon(self._read_answers, peer, link)
            if self._local and peer == (self._spec.worker + 1) % len(self._peers.terms):
                nursery.start_soon(self._ping, peer, link)
            while True:
                if frames := self._peers.next_frames(peer):
                    await link.send_many(frames)
                else:
                    await self._changed.wait()

    async def _read_answers(self, peer: int, link: Link) -> None:
        while True:
            frame = await link.receive()
            self._answered_at[peer] = trio.current_time()
            self._peers.answered(peer, frame)
            if frame.type is FrameType.AT:
                self._wake()

    async def _ping(self, peer: int, link: Link) -> None:
        """Ask the next worker of the ring whether it lives. (DADSTORM, section 4: a ring of pings.)"""
        self._answered_at[peer] = trio.current_time()
        while True:
            await link.send(self._peers.ping())
            due = trio.current_time() + limits.ping_s
            await trio.sleep_until(due)
            now = trio.current_time()
            if now - due > limits.ping_s:
                self._answered_at[peer] = now  # this machine stood still
            silent_s = now - self._answered_at[peer]
            if silent_s > limits.pings_missed_max * limits.ping_s:
                self._suspect(peer, f"it did not answer for {silent_s:.1f} s")

    def _suspect(self, peer: int, reason: str) -> None:
        now = trio.current_time()
        if now > self._suspected.get(peer, -math.inf) + limits.suspects_s:
            self._suspected[peer] = now
            self._suspects(PeerSuspected(peer, self._peers.terms[peer], reason))

    async def watch(self) -> None:
        """End a link once the host of its peer has been silent for too long. Raises PeerLostError."""
        # A connection whose packets are lost ends only with the kernel's own limits, after many minutes.
        while True:
            due = trio.current_time() + limits.peer_silence_poll_s
            await trio.sleep_until(due)
            if trio.current_time() - due > limits.peer_silence_poll_s:
                continue  # this machine stood still: packets that arrived meanwhile are not processed yet
            for peer, (link, scope) in list(self._outgoing.items()):
                if (silent_s := link.silent_s) <= self._silent_s_max:
                    continue
                if not self._local:
                    host, port = link.peer_address
                    raise PeerLostError(
                        peer, f"its host {host} (port {port}) sent nothing for {silent_s:.1f} s"
                    )
                scope.cancel()  # it is opened again

    @property
    def retained_bytes(self) -> int:
        """The bytes that are retained until a checkpoint covers them, in memory and on the disk."""
        return self._peers.retained.bytes if self._local else 0

    async def _spill_all(self) -> None:
        """Move what every peer has got to the disk, once more than the limit is in memory."""
        retained = self._peers.retained
        while True:
            await self._changed.wait()
            while retained.bytes_in_memory > self._spec.limits.retained_bytes_max:
                entries = retained.to_spill(self._peers.sent_until, limits.spill_bytes)
                if not entries:
                    break
                place = retained.memory_begin
                stored = await trio.to_thread.run_sync(spilled, entries, self._spec.scratch_dir)
                retained.spilled(place, stored)

    def send(self, message: StageEnded) -> None:
        """Send what a stage sends, and retain it with local recovery. Raises StepDiffersError."""
        sent = Sent(message.step, message.frames)
        self._peers.add(sent, message.records, produces=message.stage == 0)
        self._wake()

    def announce(self, kind: FrameType, step: int) -> None:
        """Send to every peer that divisions are durable, or that the input is exhausted."""
        if kind is FrameType.DURABLE:
            self._peers.durable = max(self._peers.durable, step)
        else:
            self._peers.exhausted = True
        self._wake()

    # --- in -----------------------------------------------------------------------------------------------

    async def receive_from(self, link: Link) -> None:
        """Receive on a link that a peer dialled, until it breaks, a newer one, or the end."""
        peer, admission = link.hello.worker, Admission.LATER
        with trio.move_on_after(limits.peer_wait_s):
            while (admission := self._peers.admits(link.hello)) is Admission.LATER:
                await self._changed.wait()
        if admission is not Admission.NOW or self._over.is_set():
            logger.info("refused an exchange link of worker %d: a second one, or of another term", peer)
            return
        self._numbers += 1
        number = self._incoming[peer] = self._numbers
        try:
            await self._receive(peer, link, number)
        except Exception as error:
            if not isinstance(first := first_error(error), DosError):
                raise
            if self._local:
                logger.info("the link of worker %d ended: %s", peer, first)
            else:
                self._lost(PeerLostError(peer, str(first.args[0])))
        finally:
            self._answers.pop(number, None)

    async def _receive(self, peer: int, link: Link, number: int) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._until_over, nursery.cancel_scope)
            if self._local:
                await self._answer_have(peer, link, number)
                nursery.start_soon(self._return_at, peer, link)
            while True:
                frame = await link.receive()
                if self._incoming.get(peer) != number or self._over.is_set():
                    break  # the peer has a newer link, or another process
                if frame.type is FrameType.PING:
                    await link.send(self._peers.ping())
                else:
                    self._take(peer, frame)
            nursery.cancel_scope.cancel()

    async def _until_over(self, scope: trio.CancelScope) -> None:
        await self._over.wait()
        scope.cancel()

    async def _answer_have(self, peer: int, link: Link, number: int) -> None:
        """Tell the dialler what the circuit has used of it. The circuit forgets the rest: it comes again."""
        to_here, answer = trio.open_memory_channel[Held](1)
        self._answers[number] = to_here
        self._inbox.call(self._peers.term, CircuitIncarnation.peer_restarts, peer, number)
        await link.send(self._peers.have(peer, await answer.receive()))

    async def _return_at(self, peer: int, link: Link) -> None:
        """Tell a peer that sends retained steps how far this worker is."""
        while True:
            if (at := self._peers.at(peer)) is not None:
                await link.send(at)
            else:
                await self._changed.wait()

    def _take(self, peer: int, frame: ChannelFrame) -> None:
        for_circuit = self._peers.take(peer, frame)
        if frame.type is FrameType.DURABLE and self.on_durable is not None:
            self.on_durable(peer, frame.step)
        elif frame.type is FrameType.RESET:
            self._wake()  # AT is due for what was produced since HAVE; perhaps no later step follows
        self._shared.peers_at = max(self._shared.peers_at, self._peers.peers_at)
        if for_circuit is not None:
            self._inbox.call(self._peers.term, CircuitIncarnation.arrived, for_circuit)


async def _close(link: Link) -> None:
    with trio.CancelScope(shield=True), trio.move_on_after(1):
        await link.aclose()


async def dial_peer(spec: WorkerSpec, worker: int, peer: Peer, hello: LinkHello, timeout_s: float) -> Link:
    """Open a link to a peer; try again until the time limit. Raises PeerLostError."""
    try:
        return await connect_link(
            peer.host, peer.port, key=spec.job_key, hello=hello, timeout_s=timeout_s, patient=True
        )
    except (BrokenConnectionError, HandshakeError) as error:
        raise PeerLostError(
            worker,
            f"worker {spec.worker} cannot connect to it at {peer.host}:{peer.port}: {error.args[0]}",
            remedy=f"if {peer.host} is not the address at which other hosts reach that worker, set "
            f"{ADVERTISE_HOST} on its host; if a firewall is between them, open the ports of the workers",
            unreachable=True,
        ) from error


# --- retained steps on the disk -----------------------------------------------------------------------------

_SPILLED: Final = pa.schema(
    [
        ("entry", pa.int32()),
        ("peer", pa.int32()),
        ("type", pa.uint8()),
        ("sender", pa.uint16()),
        ("job", pa.uint64()),
        ("sender_epoch", pa.uint64()),
        ("step", pa.uint64()),
        ("checkpoint", pa.uint64()),
        ("seq", pa.uint32()),
        ("channel", pa.uint32()),
        ("flags", pa.uint16()),
        ("payload", pa.large_binary()),
    ]
)


def spilled(entries: Sequence[Sent], folder: str) -> list[Sent]:
    """Return the entries with payloads on the disk, in a directory ('': for temporary files). It blocks.
    Raises OSError: nothing remains on the disk.
    """
    rows = [
        (index, peer, *frame[:-1], bytes(frame.payload))
        for index, entry in enumerate(entries)
        for peer, frames in entry.frames.items()
        for frame in frames
    ]
    columns = [
        pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), _SPILLED, strict=True)
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=_SPILLED)
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(prefix="dos-retained-", suffix=".arrow", dir=folder or None) as file:
        with pa.ipc.new_file(file, _SPILLED) as writer:
            writer.write_batch(batch)
        file.flush()
        stored = pa.ipc.open_file(pa.memory_map(file.name)).get_batch(0)
    return _spilled_entries(entries, stored)


def _spilled_entries(entries: Sequence[Sent], stored: pa.RecordBatch) -> list[Sent]:
    numbers = [stored.column(index).to_pylist() for index in range(len(_SPILLED) - 1)]
    # Slices of the mapped file: a scalar of a binary column would be a copy in memory.
    _, offsets, values = stored.column(len(_SPILLED) - 1).buffers()
    ends = memoryview(offsets).cast("b").cast("q")
    payloads = memoryview(values).cast("B") if values is not None else memoryview(b"")
    found: list[dict[int, list[ChannelFrame]]] = [{peer: [] for peer in one.frames} for one in entries]
    for row, (index, peer, kind, *fields) in enumerate(zip(*numbers, strict=True)):
        head = ChannelFrame(FrameType(kind), *fields)
        found[index][peer].append(head._replace(payload=payloads[ends[row] : ends[row + 1]]))
    return [
        Sent(entry.step, {peer: tuple(frames) for peer, frames in one.items()})
        for entry, one in zip(entries, found, strict=True)
    ]
