"""A link: one TCP connection of channel frames between two ends that proved the job's key to each other.

This file transfers frames; `core/` defines their meaning. No user code runs here. A stand-by is a process
that has imported everything and waits to become a worker: after the handshake of any link, with the role
"standby",

    stand-by                       coordinator
                              <-   Assigned(w, a)       attempt a of worker w is to be started
    Assigned(w, a)            ->                        it accepts
                              <-   Assigned(w, a)       confirmed: it becomes that attempt

Then both close the link, and the worker joins with a control link like any other.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from importlib import metadata
from typing import Any, Final

import trio

from checkpoint import limits
from checkpoint.core.links.frames import ChannelFrame, ChannelFrameDecoder, encode, encode_header
from checkpoint.core.links.handshake import (
    NONCE_BYTES,
    Acceptor,
    Dialler,
    LinkAssigned,
    LinkHello,
    Party,
    assignment,
    read_assignment,
)
from checkpoint.core.links.messages import VERSIONS
from checkpoint.errors import ChannelFrameError, HandshakeError, LinkClosedError
from checkpoint.runtime import DISTRIBUTION, LinkStream, package_version, runtime
from dos_client import runtime as client_runtime
from dos_protocol.arguments import address_text
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

    hello: the authenticated dialler. local_address, peer_address: (host, port), also after closing.
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
                raise BrokenConnectionError(
                    f"the link to {address_text(*self.peer_address)} broke within a frame"
                )
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

    # Cancelling loses nothing: the received part of a frame is kept for the next call.
    async def receive(self) -> ChannelFrame:
        """Return the next frame. Raises LinkClosedError, BrokenConnectionError, ChannelFrameError,
        ClosedError.
        """
        while (frame := self._decoder.next_frame()) is None:
            with _translated(self.peer_address):
                data = await self._stream.receive_some(_receive_bytes)
            if not data:
                if self._decoder.mid_frame:
                    raise BrokenConnectionError(
                        f"the link to {address_text(*self.peer_address)} ended within a frame"
                    )
                raise LinkClosedError(
                    f"the link to {address_text(*self.peer_address)} was closed by the other end"
                )
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
                f"the link to {address_text(*self._peer)} broke: {error.__cause__ or error}"
            ) from error
        if isinstance(error, trio.ClosedResourceError):
            raise ClosedError(f"the link to {address_text(*self._peer)} was closed here") from error


async def connect_link(
    host: str,
    port: int,
    *,
    key: bytes,
    hello: LinkHello,
    timeout_s: float = limits.handshake_timeout_s,
    patient: bool = False,
) -> Link:
    """Connect and authenticate. Raises BrokenConnectionError (also if silent for `timeout_s`),
    HandshakeError. patient: try again until the time limit if no connection can be opened.
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
    """Open a connection, and try again while that fails. Raises OSError just before the limit."""
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
    """Authenticate as the acceptor. Raises HandshakeError, BrokenConnectionError; the stream is closed."""
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
    """Refuse a dialler of which one end speaks TLS, with an answer from which both can tell the reason."""
    send = stream.answer_plain if isinstance(stream, TlsStream) else stream.send_all
    with suppress(OSError, trio.BrokenResourceError):
        await send(encode(refusal))


def ports_of(port_range: tuple[int, int] | None) -> Sequence[int]:
    """Return the ports to try for a listener, in order; 0 for any port."""
    return (0,) if port_range is None else range(port_range[0], port_range[1] + 1)


async def serve_links(
    handler: Callable[[Link], Awaitable[None]],
    *,
    job: str,
    key: bytes,
    host: str = "127.0.0.1",
    ports: Iterable[int] = (0,),
    task_status: "trio.TaskStatus[tuple[str, int]]" = trio.TASK_STATUS_IGNORED,
) -> None:
    """Accept links until cancelled, on the first free port of `ports`, each in a separate task that closes
    it.

    `address = await nursery.start(partial(serve_links, handler, job=..., key=...))`. Raises
    BrokenConnectionError if no port is free, and what `handler` raises; links that are refused are logged.
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


_ENDS: Final = (LinkClosedError, BrokenConnectionError, ClosedError, ChannelFrameError, HandshakeError)


class _Waiting:
    """A stand-by that waits."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.answer: LinkAssigned | None = None
        self.answered = trio.Event()
        """It has sent its answer, or its link has ended."""
        self.settled = trio.Event()
        """The assignment was confirmed or given up."""


class StandbyLinks:
    """The links of the stand-bys of one region that wait for a worker to become, at its coordinator."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._token: trio.lowlevel.TrioToken | None = None
        self._waiting: dict[int, _Waiting] = {}

    def numbers(self) -> list[int]:
        """Return the numbers of the stand-bys that wait, longest first. May be called from any thread."""
        return list(self._waiting)

    async def serve(self, link: Link) -> None:
        """Keep the link of a stand-by until it ends, or its assignment is settled."""
        self._token = trio.lowlevel.current_trio_token()
        number, one = link.hello.attempt, _Waiting(link)
        self._waiting[number] = one
        try:
            one.answer = read_assignment(await link.receive())  # before an assignment it sends nothing
            one.answered.set()
            await one.settled.wait()
        except _ENDS as error:
            logger.info("region %s: stand-by %d is gone: %s", self._job, number, error.args[0])
        finally:
            one.answered.set()
            if self._waiting.get(number) is one:
                del self._waiting[number]

    def assign(self, number: int, worker: int, attempt: int) -> bool:
        """Let a stand-by become this attempt. Return whether it does. Blocks for up to `standby_answer_s`."""
        if self._token is None:
            return False
        assigned = LinkAssigned(worker=worker, attempt=attempt)
        try:
            return trio.from_thread.run(self._assign, number, assigned, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled):  # the region has ended
            return False

    async def _assign(self, number: int, assigned: LinkAssigned) -> bool:
        one = self._waiting.pop(number, None)
        if one is None:
            return False
        try:
            if one.link.silent_s > limits.standby_silent_s:
                raise BrokenConnectionError(f"its host sent nothing for {one.link.silent_s:.1f} s")
            with trio.fail_after(limits.standby_answer_s):
                await one.link.send(assignment(self._job, assigned))
                await one.answered.wait()
            if one.answer != assigned:
                raise HandshakeError("it did not accept")
            await one.link.send(assignment(self._job, assigned))
        except (*_ENDS, trio.TooSlowError) as error:
            reason = error.args[0] if error.args else f"no answer in {limits.standby_answer_s:g} s"
            logger.warning("region %s: stand-by %d is not used: %s", self._job, number, reason)
            await one.link.aclose()
            return False
        finally:
            one.settled.set()
        return True


async def wait_for_assignment(
    coordinator: tuple[str, int], *, job: str, key: bytes, number: int, orphan_timeout_s: float
) -> LinkAssigned | None:
    """Connect as a stand-by, and wait until this process is to become a worker. Returns None if it is not
    needed.

    That is: the link has ended, the coordinator's host has sent no packet for `orphan_timeout_s` seconds, or
    another version of this package was installed. Raises BrokenConnectionError, HandshakeError.
    """
    hello = LinkHello(role="standby", job=job, worker=-1, attempt=number)
    link = await connect_link(*coordinator, key=key, hello=hello)
    try:
        offered = read_assignment(await _receive_from_host(link, orphan_timeout_s))
        if _is_replaced():
            logger.warning("stand-by %d ends: another version of %s was installed", number, DISTRIBUTION)
            return None
        await link.send(assignment(job, offered))
        return read_assignment(await _receive_from_host(link, orphan_timeout_s))
    except _ENDS as error:
        logger.info("stand-by %d ends: %s", number, error.args[0])
        return None
    finally:
        await link.aclose()


async def _receive_from_host(link: Link, silent_s: float) -> ChannelFrame:
    while True:
        with trio.move_on_after(limits.heartbeat_s):
            return await link.receive()
        if link.silent_s > silent_s:
            raise BrokenConnectionError(f"the coordinator's host sent nothing for {link.silent_s:.0f} s")


def _is_replaced() -> bool:
    """Return whether this process runs another version of the package than the one that is installed."""
    try:
        return metadata.version(DISTRIBUTION) != package_version()
    except metadata.PackageNotFoundError:  # it is being replaced now
        return True
