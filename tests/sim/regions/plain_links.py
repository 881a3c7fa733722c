"""The links of a worker to its peers with global recovery: the loss of one ends the incarnation.

It does what `dataflow.worker.global_exchange` does with trio; the real `IncomingFrames` decides which frames of a
peer are accepted.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from checkpoint.core.channel_frames import ChannelFrame, FrameType
from checkpoint.core.handshake import LinkHello
from checkpoint.core.messages import Restore
from dataflow import limits
from dataflow.core.incoming_frames import IncomingFrames
from dataflow.errors import PeerLostError
from dataflow.worker.journals import after_step
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
        workers = len(order.layout.workers)
        self._channels = IncomingFrames(worker.region.spec.name, worker.index, workers, order.incarnation)
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
        )
        try:
            channel = await dial(
                worker, worker.region.network, address, hello, worker.rng, limits.peer_dial_s
            )
        except DosError as error:
            raise PeerLostError(peer, str(error.args[0])) from error
        self._outgoing[peer] = channel
        self._send(peer, self._channels.marker(FrameType.RESET, after_step(self._order)))

    def send(self, message: StageEnded) -> None:
        """Send what a stage sends. Raises PeerLostError."""
        for peer, frames in message.frames.items():
            self._send(peer, *frames)

    def _send(self, peer: int, *frames: ChannelFrame) -> None:
        channel = self._outgoing[peer]
        try:
            for frame in frames:
                channel.send(frame)
        except BrokenConnectionError as error:
            raise PeerLostError(peer, str(error.args[0])) from error

    def announce(self, kind: FrameType, step: int) -> None:
        """Send a frame without payload to all peers. Raises PeerLostError."""
        for peer in self._outgoing:
            self._send(peer, self._channels.marker(kind, step))

    async def serve(self, channel: Channel, hello: LinkHello) -> None:
        """Receive frames from a peer, on the link that it dialed."""
        if not self._channels.admits(hello.worker, hello.incarnation):
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
                arrived = self._channels.take(hello.worker, frame)
                shared.peers_at = max(shared.peers_at, self._channels.peers_at)
                if arrived is not None:
                    self._worker.inbox.put(Arrived(self._order.incarnation, arrived))
        except DosError as error:
            channel.close()
            self._fail(PeerLostError(hello.worker, str(error.args[0])))
