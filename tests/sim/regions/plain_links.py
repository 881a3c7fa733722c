"""The links of a worker to its peers with global recovery: the loss of one ends the incarnation.

It does what `dataflow.worker.exchange` does with trio; the real `PeerLinks` decides.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from checkpoint.core.links.frames import FrameType
from checkpoint.core.links.handshake import LinkHello
from checkpoint.core.links.messages import Restore
from dataflow import limits
from dataflow.core.peer_links import Admission, PeerLinks, Sent
from dataflow.errors import PeerLostError
from dataflow.worker.layout_change import after_step
from dataflow.worker.messages import Arrived, StageEnded
from dos_protocol.errors import BrokenConnectionError, DosError
from tests.sim.regions.channel import Channel, dial

if TYPE_CHECKING:
    from tests.sim.regions.worker import Worker


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
                    self._worker.inbox.put(Arrived(self._order.incarnation, arrived))
        except DosError as error:
            channel.close()
            self._fail(PeerLostError(hello.worker, str(error.args[0])))
