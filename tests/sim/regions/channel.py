"""One end of a link between processes of a region: ordered frames after a handshake.

It does with the connections of a run what `checkpoint.link` does with sockets. The real cores encode and
decode frames and make and verify proofs.
"""

from collections import deque
from random import Random
from typing import Final

from checkpoint import limits
from checkpoint.core.links.frames import ChannelFrame, ChannelFrameDecoder, encode
from checkpoint.core.links.handshake import NONCE_BYTES, Acceptor, Dialler, LinkHello
from checkpoint.errors import ChannelFrameError, HandshakeError, LinkClosedError
from dos_protocol.errors import BrokenConnectionError
from tests.sim.engine.environment import Process, Signal
from tests.sim.engine.network import Network, Wire

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
    wait_s = limits.handshake_timeout_s
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
