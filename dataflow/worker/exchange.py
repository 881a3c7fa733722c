"""The links between this worker and its peers in one term, with local recovery.

It does what `global_exchange.py` does for global recovery, except that a broken link or a lost peer ends nothing:
the link is opened again, to the same process or to the one that has taken the peer over. `core/peer_links.py`
decides what is sent and accepted.
"""

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import trio

from checkpoint import ChannelFrame, FrameType, LinkHello, Peer, Restore, View
from checkpoint.link import Link
from dataflow import limits
from dataflow.core.peer_links import Admission, PeerLinks
from dataflow.core.retained_steps import Held, Sent
from dataflow.errors import PeerLostError, StepDiffersError, StepsMissingError
from dataflow.worker.failures import first_error
from dataflow.worker.global_exchange import dial_peer
from dataflow.worker.messages import Arrived, Inbox, PeerHeld, PeerRestarts, Shared, StageEnded
from dataflow.worker.spec import WorkerSpec
from dataflow.worker.spilling import spilled
from dos_protocol.errors import DosError

logger = logging.getLogger("dos.dataflow")


_FOR_A_RESET = (StepsMissingError, StepDiffersError)


class PeerSuspected(NamedTuple):
    """A peer does not answer."""

    peer: int
    term: int
    reason: str


class ResumedExchange:
    """The links of one term.

    `suspects` is called, again and again, as long as a peer does not answer. The tasks in
    the nursery of `dial_all` raise StepsMissingError or StepDiffersError if the region must be reset.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        order: Restore,
        *,
        at_most_once: bool,
        after_step: int,
        inbox: Inbox,
        shared: Shared,
        suspects: Callable[[PeerSuspected], None],
    ) -> None:
        self._spec = spec
        self._inbox = inbox
        self._shared = shared
        self._suspects = suspects
        self._suspected: dict[int, float] = {}
        """Peer -> when it was reported last."""
        self._peers = PeerLinks(
            spec.region, spec.worker, order.terms, after_step=after_step, at_most_once=at_most_once
        )
        self._addresses = list(order.peers)
        self._over = trio.Event()
        self._changed = trio.Event()
        """Something may be sent, or a peer has another term."""
        self._outgoing: dict[int, tuple[Link, trio.CancelScope]] = {}
        """The links that this worker dialled, by peer."""
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
        self._wake()

    def held(self, message: PeerHeld) -> None:
        """Take the circuit's answer to `PeerRestarts`."""
        answer = self._answers.pop(message.link, None)
        if answer is not None:
            answer.send_nowait(message.held)

    def purge(self, step: int) -> None:
        """Forget the retained steps that a committed checkpoint covers."""
        self._peers.purge(step)

    # --- out ----------------------------------------------------------------------------------------------

    async def dial_all(self, nursery: trio.Nursery, peers: Sequence[Peer], *, step: int) -> None:
        """Open a link to every peer; senders run in `nursery`. Raises PeerLostError, perhaps in a group."""
        del peers, step
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
        return await dial_peer(self._spec, peer, self._addresses[peer], hello, timeout_s)

    async def _keep_sending(self, peer: int, link: Link) -> None:
        """Send to a peer, to whichever process is it now, until this term is over."""
        while True:
            reason = "its term is over"
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
                with trio.CancelScope(shield=True), trio.move_on_after(1):
                    await link.aclose()
            logger.info("worker %d opens the link to worker %d again: %s", self._spec.worker, peer, reason)
            link = await self._dial_again(peer, reason)

    async def _dial_again(self, peer: int, reason: str) -> Link:
        """Dial until a process of the peer answers. After a while, report on the one that does not."""
        since, term = trio.current_time(), self._peers.terms[peer]
        while True:
            if self._peers.terms[peer] == term:
                await trio.sleep(limits.peer_redial_s)
            else:
                since, term = trio.current_time(), self._peers.terms[peer]
            with suppress(PeerLostError):
                return await self._dial(peer, limits.peer_resume_s)
            if trio.current_time() > since + limits.peer_resume_s and self._peers.terms[peer] == term:
                self._suspect(peer, f"the link to it cannot be opened again ({reason})")

    async def _send_all(self, peer: int, link: Link) -> None:
        self._peers.answered(peer, await link.receive())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read_answers, peer, link)
            if peer == (self._spec.worker + 1) % len(self._peers.terms):
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
        """Report that a peer does not answer, not too often."""
        now = trio.current_time()
        if now > self._suspected.get(peer, -math.inf) + limits.suspects_s:
            self._suspected[peer] = now
            self._suspects(PeerSuspected(peer, self._peers.terms[peer], reason))

    async def watch(self) -> None:
        """Open a link again once the host of a peer has been silent for too long. See `Exchange.watch`."""
        while True:
            due = trio.current_time() + limits.peer_silence_poll_s
            await trio.sleep_until(due)
            if trio.current_time() - due > limits.peer_silence_poll_s:
                continue  # this machine stood still: packets that arrived meanwhile are not processed yet
            for link, scope in list(self._outgoing.values()):
                if link.silent_s > limits.peer_silent_s:
                    scope.cancel()

    @property
    def retained_bytes(self) -> int:
        """The bytes that are retained for peers, in memory and on the disk."""
        return self._peers.retained.bytes

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
        """Retain what a stage sends, and send it. Raises StepDiffersError."""
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
        """Receive what a peer sends on a link that it dialled, until that breaks or there is a newer one."""
        peer = link.hello.worker
        with trio.move_on_after(limits.peer_wait_s):
            while self._peers.admits(link.hello) is Admission.LATER:
                await self._changed.wait()
        if self._peers.admits(link.hello) is not Admission.NOW or self._over.is_set():
            logger.info("refused an exchange link of worker %d: it is of another term", peer)
            return
        self._numbers += 1
        number = self._incoming[peer] = self._numbers
        try:
            await self._receive(peer, link, number)
        except Exception as error:
            if not isinstance(first := first_error(error), DosError):
                raise
            logger.info("the link of worker %d ended: %s", peer, first)
        finally:
            self._answers.pop(number, None)

    async def _receive(self, peer: int, link: Link, number: int) -> None:
        to_here, answer = trio.open_memory_channel[Held](1)
        self._answers[number] = to_here
        self._inbox.put(PeerRestarts(self._peers.term, peer, number))
        held = await answer.receive()
        await link.send(self._peers.have(peer, held))
        async with trio.open_nursery() as nursery:
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
            self._inbox.put(Arrived(self._peers.term, for_circuit))
