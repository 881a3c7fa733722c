"""A link: one TCP connection of channel frames between two ends that proved the job's key to each other.

Links are used for control (worker to coordinator) and exchange (worker to worker). This file transfers
frames; `core/` defines their meaning. Everything here runs on trio; no user code runs here.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

import trio

from checkpoint import limits
from checkpoint.core.channel_frames import ChannelFrame, ChannelFrameDecoder, encode, encode_header
from checkpoint.core.handshake import NONCE_BYTES, Acceptor, Dialler, LinkHello, Party
from checkpoint.core.versions import VERSIONS
from checkpoint.errors import ChannelFrameError, HandshakeError, LinkClosedError
from checkpoint.runtime import LinkStream, package_version, runtime
from dos_client import runtime as client_runtime
from dos_protocol.errors import BrokenConnectionError, ClosedError
from dos_tls import PlainTextPeerError, TlsStream

logger = logging.getLogger("dos.checkpoint")
_receive_bytes = 256 * 1024
_join_bytes_max = 16 * 1024
_ONE_SIDE = "one end of this link uses TLS and the other does not"
_BOTH_SIDES = "set DOS_TLS for the driver, all workers and all entry points, or for none of them"
_backlog = 512


class Link:
    """Frames over one stream. One task may send while another receives; concurrent sends queue up.

    `hello`: the authenticated identity of the dialler. `local_address`, `peer_address`: (host, port) of this
    connection, also after closing.
    """

    def __init__(self, stream: LinkStream, hello: LinkHello) -> None:
        self.hello = hello
        self.local_address: tuple[str, int] = stream.socket.getsockname()[:2]
        self.peer_address: tuple[str, int] = stream.socket.getpeername()[:2]
        self._stream = stream
        self._decoder = ChannelFrameDecoder(handshake=True)
        self._send_lock = trio.Lock()
        self._mid_send = False

    @property
    def silent_s(self) -> float:
        """The seconds since the peer's host last sent a packet, if only an acknowledgement by its kernel."""
        return runtime().silent_s(self._stream)

    def proved(self, hello: LinkHello) -> None:
        """Mark the link as authenticated: from now on any frame is accepted. For this module's handshakes."""
        self.hello = hello
        self._decoder.handshake = False

    async def send(self, frame: ChannelFrame) -> None:
        """Send one frame. Raises BrokenConnectionError, ClosedError. Cancelling it midway breaks the link."""
        await self.send_many((frame,))

    async def send_many(self, frames: Iterable[ChannelFrame]) -> None:
        """Send frames in order, without frames of other tasks between them. Otherwise like `send`."""
        async with self._send_lock:
            if self._mid_send:
                raise BrokenConnectionError(f"the link to {self.peer_address} broke within a frame")
            # stays True if cancelled or failed, because half a frame may have been sent
            self._mid_send = True
            with _translated(self.peer_address):
                for frame in frames:
                    await self._send_one(frame)
            self._mid_send = False

    async def _send_one(self, frame: ChannelFrame) -> None:
        if len(frame.payload) <= _join_bytes_max:
            await self._stream.send_all(encode(frame))
        else:
            await self._stream.send_all(encode_header(frame))
            await self._stream.send_all(frame.payload)

    async def receive(self) -> ChannelFrame:
        """Return the next frame. Raises LinkClosedError (orderly end), BrokenConnectionError,
        ChannelFrameError, ClosedError.

        Cancelling loses nothing: the received part of a frame is kept for the next call.
        """
        while (frame := self._decoder.next_frame()) is None:
            with _translated(self.peer_address):
                data = await self._stream.receive_some(_receive_bytes)
            if not data:
                if self._decoder.mid_frame:
                    raise BrokenConnectionError(f"the link to {self.peer_address} ended within a frame")
                raise LinkClosedError(f"the link to {self.peer_address} was closed by the other end")
            self._decoder.receive_data(data)
        return frame

    async def aclose(self) -> None:
        """Close the link. The other end sees an orderly end if no frame was being sent."""
        await self._stream.aclose()


class _translated:  # noqa: N801  (reads as a word at its uses)
    """Converts OSErrors and trio's resource errors to this package's errors."""

    def __init__(self, peer: tuple[str, int]) -> None:
        self._peer = peer

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, trio.BrokenResourceError | OSError):
            raise BrokenConnectionError(
                f"the link to {self._peer} broke: {error.__cause__ or error}"
            ) from error
        if isinstance(error, trio.ClosedResourceError):
            raise ClosedError(f"the link to {self._peer} was closed here") from error


async def connect_link(
    host: str,
    port: int,
    *,
    key: bytes,
    hello: LinkHello,
    timeout_s: float = limits.handshake_timeout_s,
    patient: bool = False,
) -> Link:
    """Connect and authenticate. Raises BrokenConnectionError (not reachable, or silent for `timeout_s`) or
    HandshakeError.

    `patient`: until the time limit, try again if no connection can be opened.
    """
    try:
        with trio.fail_after(timeout_s):
            connect = _connect_patiently if patient else runtime().connect
            stream = await connect(host, port)
            try:
                return await _dial(stream, key, hello)
            except BaseException:
                await _drop(stream)
                raise
    except trio.TooSlowError as error:
        raise BrokenConnectionError(f"{host}:{port} did not answer within {timeout_s:g} s") from error
    except LinkClosedError as error:
        raise HandshakeError(f"{host}:{port} closed the link during the handshake") from error
    except ChannelFrameError as error:
        raise HandshakeError(f"{host}:{port} is not an end of a region's link: {error.args[0]}") from error
    except OSError as error:
        raise BrokenConnectionError(f"{host}:{port} cannot be reached: {error}") from error


async def _connect_patiently(host: str, port: int) -> LinkStream:
    """Open a connection, and try again while that fails, until the surrounding time limit. Raises OSError
    shortly before the limit, so that the error states why.
    """
    while True:
        error: OSError = TimeoutError("no answer")
        # The kernel repeats a lost request ever more rarely, and would notice late that packets arrive.
        with trio.move_on_after(limits.connect_attempt_s):
            try:
                return await runtime().connect(host, port)
            except OSError as refused:
                error = refused
                await trio.sleep(limits.connect_pause_s)
        if trio.current_time() + limits.connect_attempt_s >= trio.current_effective_deadline():
            raise error


async def _drop(stream: LinkStream) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()  # skips the orderly shutdown
        await stream.aclose()


def _nonce() -> bytes:
    return client_runtime.runtime().fresh_id(NONCE_BYTES)


def _this_end() -> Party:
    return Party(VERSIONS, package_version())


async def _dial(stream: LinkStream, key: bytes, hello: LinkHello) -> Link:
    link = Link(stream, hello)
    dialler = Dialler(hello, key=key, nonce=_nonce(), party=_this_end())
    await link.send(dialler.hello())
    await link.send(dialler.challenged(await link.receive()))
    dialler.accepted(await link.receive())
    link.proved(hello)
    return link


async def accept_link(
    stream: LinkStream, *, job: str, key: bytes, timeout_s: float = limits.handshake_timeout_s
) -> Link:
    """Authenticate a new connection as the acceptor. Raises HandshakeError, BrokenConnectionError; the stream
    is closed then.
    """
    try:
        with trio.fail_after(timeout_s):
            return await _accept(stream, job, key)
    except BaseException as error:
        await _drop(stream)
        if isinstance(error, trio.TooSlowError):
            raise HandshakeError(f"the dialler did not prove itself within {timeout_s:g} s") from error
        if isinstance(error, LinkClosedError | ChannelFrameError):
            raise HandshakeError(
                f"the dialler is not an end of this region's links: {error.args[0]}"
            ) from error
        raise


async def _accept(stream: LinkStream, job: str, key: bytes) -> Link:
    acceptor = Acceptor(job=job, key=key, nonce=_nonce(), party=_this_end())
    link = Link(stream, LinkHello(role="control", job=job, worker=-1, attempt=-1))
    try:
        try:
            first = await link.receive()
        except (PlainTextPeerError, ChannelFrameError):
            await _refuse_plain(stream, acceptor.refusal(HandshakeError(_ONE_SIDE, remedy=_BOTH_SIDES)))
            raise
        await link.send(acceptor.received(first))
        proved, accepted = acceptor.proved(await link.receive())
    except HandshakeError as error:
        with suppress(BrokenConnectionError):
            await link.send(acceptor.refusal(error))
        raise
    link.proved(proved)
    await link.send(accepted)
    return link


async def _refuse_plain(stream: LinkStream, refusal: ChannelFrame) -> None:
    """Refuse a dialler without encryption: it speaks plain text, or it speaks TLS and this end does not. From
    the answer both can tell the reason.
    """
    send = stream.answer_plain if isinstance(stream, TlsStream) else stream.send_all
    with suppress(OSError, trio.BrokenResourceError):
        await send(encode(refusal))


async def serve_links(
    handler: Callable[[Link], Awaitable[None]],
    *,
    job: str,
    key: bytes,
    host: str = "127.0.0.1",
    ports: Iterable[int] = (0,),
    task_status: "trio.TaskStatus[tuple[str, int]]" = trio.TASK_STATUS_IGNORED,
) -> None:
    """Accept links until cancelled: `address = await nursery.start(partial(serve_links, handler, job=...,
    key=...))`.

    Listens on the first free port of `ports`. Each authenticated link is handled in a separate task and
    closed afterwards; others are logged and dropped. Raises BrokenConnectionError if no port is free, and
    what `handler` raises.
    """

    async def accepted(stream: Any) -> None:
        try:
            link = await accept_link(stream, job=job, key=key)
        except (HandshakeError, BrokenConnectionError) as error:
            logger.warning("refused a link of region %s: %s", job, error.args[0])
            return
        try:
            await handler(link)
        finally:
            await link.aclose()

    listeners = await _listen(host, ports)
    address: tuple[str, int] = listeners[0].socket.getsockname()[:2]
    task_status.started(address)
    await trio.serve_listeners(accepted, listeners)


async def _listen(host: str, ports: Iterable[int]) -> list[Any]:
    tried: list[str] = []
    for port in ports:
        try:
            return await runtime().listen(host, port, _backlog)
        except OSError as error:
            tried.append(f"{port}: {error.strerror}")
    raise BrokenConnectionError(
        f"no port of {host} is free to listen on ({'; '.join(tried) or 'none given'})"
    )
