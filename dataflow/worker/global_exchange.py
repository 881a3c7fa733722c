"""The links between this worker and its peers in one incarnation.

It handles links and lost peers; `core/incoming_frames.py` interprets frames. A pair of workers has two
links, each dialled by its sender, so a slow receiver does not block frames in the other direction. The queues
need no limit of their own: a sender is at most `steps_ahead` steps ahead of its consumer, which cannot
advance without its peers.
"""

import logging
import math
from collections.abc import Callable, Sequence
from typing import Final

import trio

from checkpoint import ChannelFrame, FrameType, LinkHello, Peer
from checkpoint.errors import ChannelFrameError, HandshakeError, LinkClosedError
from checkpoint.link import Link, connect_link
from dataflow import limits
from dataflow.core.incoming_frames import IncomingFrames
from dataflow.errors import PeerLostError
from dataflow.worker.messages import Arrived, Inbox, Shared, StageEnded
from dataflow.worker.spec import ADVERTISE_HOST, WorkerSpec
from dos_protocol.errors import BrokenConnectionError, ClosedError

logger = logging.getLogger("dos.dataflow")

Frames = tuple[ChannelFrame, ...]


class Exchange:
    """The links of one incarnation. `lost` is called with a PeerLostError; call `end` after that."""

    def __init__(
        self,
        spec: WorkerSpec,
        incarnation: int,
        workers: int,
        *,
        inbox: Inbox,
        shared: Shared,
        lost: Callable[[PeerLostError], None],
        silence_timeout_s: float = limits.peer_silent_s,
    ) -> None:
        self._silence_timeout_s = silence_timeout_s
        self._spec = spec
        self._incarnation = incarnation
        self._inbox = inbox
        self._shared = shared
        self._lost = lost
        self._outgoing: dict[int, trio.MemorySendChannel[Frames]] = {}
        self._channels = IncomingFrames(spec.region, spec.worker, workers, incarnation)
        self._over = trio.Event()
        self._links: dict[int, Link] = {}
        """The links that this worker dialled, by peer. A pair of hosts that is silent is silent on these too:
        the kernel asks for acknowledgements in both directions.
        """
        self.on_durable: Callable[[int, int], None] | None = None
        """Called as `on_durable(peer, step)` when the divisions of a peer are durable up to a step."""

    def end(self) -> None:
        """Receive nothing more."""
        self._over.set()

    # --- out ----------------------------------------------------------------------------------------------

    async def dial_all(self, nursery: trio.Nursery, peers: Sequence[Peer], *, step: int) -> None:
        """Open a link to every peer; senders run in `nursery`. Raises PeerLostError, perhaps in a group."""
        async with trio.open_nursery() as dialling:
            for worker, peer in enumerate(peers):
                if worker != self._spec.worker:
                    dialling.start_soon(self._dial, nursery, worker, peer, step)

    async def _dial(self, nursery: trio.Nursery, worker: int, peer: Peer, step: int) -> None:
        spec = self._spec
        hello = LinkHello(
            role="exchange",
            job=spec.region,
            worker=spec.worker,
            attempt=spec.attempt,
            incarnation=self._incarnation,
        )
        link = await dial_peer(spec, worker, peer, hello, limits.peer_dial_s)
        self._links[worker] = link
        outgoing, queue = trio.open_memory_channel[Frames](math.inf)
        self._outgoing[worker] = outgoing
        outgoing.send_nowait((self._channels.marker(FrameType.RESET, step),))
        nursery.start_soon(self._send_all, worker, link, queue)

    async def _send_all(self, worker: int, link: Link, queue: "trio.MemoryReceiveChannel[Frames]") -> None:
        try:
            async for frames in queue:
                await link.send_many(frames)
        except (BrokenConnectionError, ClosedError) as error:
            raise PeerLostError(worker, str(error.args[0])) from error
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(1):
                await link.aclose()

    async def watch(self) -> None:
        """Raise PeerLostError once the host of a peer has been silent for too long.

        Without this, a connection whose packets are lost ends only with the kernel's own limits, after many
        minutes.
        """
        while True:
            due = trio.current_time() + limits.peer_silence_poll_s
            await trio.sleep_until(due)
            if trio.current_time() - due > limits.peer_silence_poll_s:
                continue  # this machine stood still: packets that arrived meanwhile are not processed yet
            for worker, link in self._links.items():
                silent_s = link.silent_s
                if silent_s > self._silence_timeout_s:
                    host, port = link.peer_address
                    raise PeerLostError(
                        worker, f"its host {host} (port {port}) sent nothing for {silent_s:.1f} s"
                    )

    def send(self, message: StageEnded) -> None:
        """Queue what a stage sends to the peers."""
        for worker, batch in message.frames.items():
            self._outgoing[worker].send_nowait(batch)

    retained_bytes: Final = 0
    """Nothing is retained for peers."""

    def purge(self, step: int) -> None:
        """Do nothing: nothing is retained."""

    def announce(self, kind: FrameType, step: int) -> None:
        """Queue a frame without payload for every peer."""
        for outgoing in self._outgoing.values():
            outgoing.send_nowait((self._channels.marker(kind, step),))

    # --- in -----------------------------------------------------------------------------------------------

    async def receive_from(self, link: Link) -> None:
        """Receive everything that a peer sends on the link that it dialled, until the exchange ends."""
        peer = link.hello.worker
        if not self._channels.admits(peer, link.hello.incarnation):
            logger.warning("refused an exchange link of worker %d: duplicate or unexpected", peer)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._until_over, nursery.cancel_scope)
            try:
                while True:
                    self._take(peer, await link.receive())
            except (LinkClosedError, BrokenConnectionError, ChannelFrameError, ClosedError) as error:
                self._lost(PeerLostError(peer, str(error.args[0])))
            nursery.cancel_scope.cancel()

    async def _until_over(self, scope: trio.CancelScope) -> None:
        await self._over.wait()
        scope.cancel()

    def _take(self, peer: int, frame: ChannelFrame) -> None:
        if self._over.is_set():
            return  # received before the exchange ended, read after it
        for_circuit = self._channels.take(peer, frame)
        if frame.type is FrameType.DURABLE and self.on_durable is not None:
            self.on_durable(peer, frame.step)
        self._shared.peers_at = max(self._shared.peers_at, self._channels.peers_at)
        if for_circuit is not None:
            self._inbox.put(Arrived(self._incarnation, for_circuit))


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
