"""One connection: reads frames and feeds them to the core, sends what the core answers; both are bounded.

Back-pressure means not reading: while the core requires it, while this peer does not take its answers, or
while there is no room for the next frame. The core decides what a frame means.
"""

import contextlib
import logging
import resource
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol

import trio

from dos_protocol import messages as m
from dos_protocol.digests import Buffer
from dos_protocol.errors import VERDICTS, ErrorCode, RemoteProtocolError
from dos_protocol.frames import Frame, encode_frame, frame_head
from dos_protocol.messages import Opcode
from dos_server.buffers import BufferAccount, Inflow, Outflow, OutgoingAccount
from dos_server.core.requests import version0_wire as wire0
from dos_server.limits import (
    accepts_of_round_max,
    descriptors_reserved,
    directories_loaded_max,
    frame_seconds_max,
    hello_seconds_max,
    linger_seconds,
    open_files_max,
    outgoing_bytes_max,
    shrink_seconds,
    slow_frame_seconds_max,
    stalled_seconds_max,
    version0_silence_seconds_max,
)
from dos_server.ports import Listener
from dos_server.tls_sockets import TlsSocket
from dos_server.turns import ConnectionCost, Turns
from dos_tls import TlsError
from dos_tls.readiness import Rounds, Socket

# --- Sockets -----------------------------------------------------------------------------------------------


logger = logging.getLogger("dos.server")
_SCRATCH_BYTES: Final = 16 * 1024
_INTERNET = (socket.AF_INET, socket.AF_INET6)


def descriptors_for_connections() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    reserved = open_files_max + directories_loaded_max + descriptors_reserved
    return max(soft - reserved, soft // 4)


def accept_some(listener: Listener) -> Iterator[Socket]:
    """Yield waiting connections, at most as many as one round accepts. Raises OSError."""
    for _ in range(accepts_of_round_max):
        try:
            sock, _ = listener.accept()
        except BlockingIOError:
            return
        prepare_socket(sock)
        yield sock


def prepare_socket(sock: Socket) -> None:
    sock.setblocking(False)  # noqa: FBT003
    if sock.family in _INTERNET:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def notice_silence(sock: Socket) -> None:
    """Set keep-alive for version 0: nothing else releases the lock of a client whose machine is gone."""
    if sock.family in _INTERNET:
        pause = version0_silence_seconds_max // 4
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, pause)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, pause)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        milliseconds = 1000 * version0_silence_seconds_max
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


def reject(sock: Socket, open_now: int) -> None:
    report_busy(sock, open_now)
    sock.close()


def report_busy(sock: Socket, open_now: int) -> None:
    text = f"{open_now} connections are open"
    busy = m.Error(int(ErrorCode.BUSY), text, VERDICTS[ErrorCode.BUSY].remedy)
    try:
        sock.send(encode_frame(m.encode(busy)))
    except OSError:
        logger.debug("a rejected peer was already gone")


async def linger(sock: Socket, readiness: Rounds) -> None:
    """Read and discard what the peer still sends, for at most `linger_seconds`."""
    with contextlib.suppress(OSError), trio.move_on_after(linger_seconds):
        sock.shutdown(socket.SHUT_WR)
        scratch = bytearray(_SCRATCH_BYTES)
        # Closing with unread bytes resets the connection, and the reset can overtake the error that was sent.
        while True:
            await readiness.wait_readable(sock)
            if not sock.recv_into(scratch):
                return


def peer_of(sock: Socket) -> str:
    try:
        name = sock.getpeername()
    except OSError:
        return "a disconnected peer"
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name)


# --- The server, as a connection sees it -------------------------------------------------------------------


class ConnectionOwner(Protocol):
    def received(self, session: int, frame: Frame) -> None:
        """Accept a whole frame."""

    def received_appends(self, session: int, frames: list[Frame]) -> None:
        """Accept whole frames, all of them APPEND."""

    readiness: Rounds
    buffers: BufferAccount
    outgoing: OutgoingAccount
    turns: Turns
    rounds_ended: int
    """At the end of a round, what its reads have left in the buffers is written."""

    def requested(self, session: int, body: bytes) -> None:
        """Accept a whole request of version 0."""

    def streamed(self, session: int, data: memoryview) -> None:
        """Accept bytes to append, of version 0. The view is valid only during the call."""

    def is_streaming(self, session: int) -> bool:
        """Whether the next bytes, in version 0, are bytes to append."""

    def half_closed(self, session: int) -> None:
        """Note that the peer sends no more; it may still read."""

    def stalled(self, connection: "ServerConnection") -> None:
        """Call `resume` of the connection when it may continue."""

    def has_sent(self, session: int) -> None:
        """Note that the peer has taken answers."""

    def bad_frame(self, session: int, error: RemoteProtocolError) -> None:
        """Report the error and close: nothing more can be framed on this connection."""

    def bad_request(self, session: int, error: wire0.RequestTooLongError) -> None:
        """Do the same as `bad_frame`, for version 0."""

    def tls_failed(self, error: TlsError) -> None:
        """Log why TLS failed on a connection, which closes."""

    def may_read(self, session: int) -> bool:
        """Whether the core accepts more input."""

    def may_answer(self, session: int, request: Frame | bytes) -> bool:
        """Whether there is memory for the answer of LIST or CWD (up to 1 MiB), or of a version 0 request."""

    def is_welcome(self, session: int) -> bool:
        """Whether HELLO was answered."""


# --- The state of reading, and the clock of frames ---------------------------------------------------------


class Fed(Enum):
    """How much of the buffered input was passed on."""

    ALL = auto()
    STALLED = auto()
    """Back-pressure stopped it."""
    YIELDED = auto()
    """The time slice of the connection ended."""


class ReadingState(Enum):
    ON = auto()
    PAUSED = auto()
    ENDED = auto()


@dataclass
class FrameClock:
    """The times at which the peer connected, last sent bytes, and began the incomplete frame, if any."""

    connected: float
    last_bytes_at: float = 0.0
    began: float | None = None

    def watch(self, now: float, *, begun: bool, anew: bool) -> None:
        """Update the clock of the current frame: it runs while the frame waits for buffer space, but not
        while the server does not read for another reason. `anew`: it is another frame than before.
        """
        if not begun:
            self.began = None
        elif anew or self.began is None:
            self.began = now

    def is_late(self, now: float, *, welcome: bool) -> bool:
        """Whether HELLO, or a frame that has begun, was not completed in time."""
        if self.began is not None and now > self.began + frame_seconds_max:
            return True
        return not welcome and now > self.connected + hello_seconds_max

    def blocks_others(self, now: float) -> bool:
        """Whether the frame makes too little progress to keep buffer space that others wait for."""
        began = now if self.began is None else self.began
        return now > self.last_bytes_at + stalled_seconds_max or now > began + slow_frame_seconds_max


# --- The connection ----------------------------------------------------------------------------------------


_APPEND: Final = int(Opcode.APPEND)
_LONG_ANSWERS: Final = frozenset({int(Opcode.CHANGE_DIRECTORY), int(Opcode.LIST)})
_RUN_FRAMES_MAX: Final = 256


class ServerConnection:
    """One connection of one peer. `reserved_bytes`: answers that are being read from disk. `use`, `has_more`:
    for `turns`.
    """

    def __init__(self, session: int, sock: Socket, owner: ConnectionOwner) -> None:
        self.session = session
        self.host = peer_of(sock).rpartition(":")[0]
        self.reserved_bytes = 0
        self.closing = self.has_more = False
        self._sock = sock
        self._tls = sock if isinstance(sock, TlsSocket) else None
        self._owner = owner
        self._outflow = Outflow(owner.outgoing)
        self._blocked_since: float | None = None
        self._inflow = Inflow(owner.buffers, self.resume)
        self._deferred: Frame | bytes | None = None
        self._reading = ReadingState.PAUSED
        self._now = owner.turns.clock
        self._clock = FrameClock(self._now())
        self._peer_gone = self._welcome = False
        self._lacks_room = self._unread = False
        self._scope = trio.CancelScope()
        self._all_read, self._all_sent = trio.Event(), trio.Event()
        self.use = ConnectionCost()
        self._last_read = 0.0
        self._read_in = -1

    @property
    def outgoing_bytes(self) -> int:
        return self._outflow.bytes

    @property
    def peer(self) -> str:
        return peer_of(self._sock)

    async def run(self) -> None:
        """Serve the peer until it leaves, violates the protocol, or `close` is called. Closes the socket."""
        try:
            with self._scope:
                self._read_on()
                await self._all_read.wait()
                await self._all_sent.wait()
                self._stop_watching()
                await linger(self._sock, self._owner.readiness)
        finally:
            self.closing = True
            self._end_reading()
            self._stop_watching()
            self._inflow.close()
            self._outflow.clear()
            self._sock.close()

    def close(self) -> None:
        """Close the connection after everything queued has been sent, or at the send time-out."""
        self.closing = True
        self._end_reading()
        if not self._outflow.bytes:
            self._all_sent.set()

    def abort(self) -> None:
        self.closing = True
        self._end_reading()
        self._stop_watching()
        self._scope.cancel()

    @property
    def has_greeted(self) -> bool:
        return self._owner.is_welcome(self.session)

    @property
    def in_handshake(self) -> bool:
        return self._tls is not None and self._tls.in_handshake

    def give_way(self, open_now: int) -> None:
        if self._tls is not None and self._tls.in_handshake:
            self._tls.alert_busy()
        else:
            report_busy(self._sock, open_now)
        self.abort()

    # Reading

    def _read_on(self) -> None:
        if self._reading is ReadingState.PAUSED:
            self._reading = ReadingState.ON
            self._watch()
        if self._tls is not None and self._tls.holds_input:
            self._owner.readiness.soon(self._read_held)

    def _read_held(self) -> None:
        if self._reading is ReadingState.ON:
            self._ready(readable=True)

    def _pause(self) -> None:
        if self._reading is ReadingState.ON:
            self._reading = ReadingState.PAUSED
            self._watch()

    def _end_reading(self) -> None:
        self._pause()
        self._owner.turns.leave(self)
        self._reading = ReadingState.ENDED
        self._all_read.set()

    def _watch(self) -> None:
        reading, writing = self._reading is ReadingState.ON, self._blocked_since is not None
        self._owner.readiness.watch(self._sock, self._ready, reading=reading, writing=writing)

    def _stop_watching(self) -> None:
        self._blocked_since = None
        self._watch()

    def _ready(self, *, readable: bool) -> None:
        """Handle readiness: data to read or room to write. A lost peer shows up as an error of either."""
        if self._blocked_since is not None:
            self.flush()
        if readable and self._reading is ReadingState.ON:
            if self._owner.turns.may_begin(self):
                self._read()
            else:  # it stays registered: two system calls cost more than the reports until its turn
                self._unread = True

    def _read(self) -> None:
        self._unread = False
        if self._tls is not None:
            if self._read_in == self._owner.rounds_ended:  # the round still needs what it has read
                self._owner.readiness.soon(self._read_held)
                return
            self._read_in = self._owner.rounds_ended
        try:
            count = self._sock.recv_into(self._inflow.writable())
        except BlockingIOError:
            self._read_on()
            return
        except TlsError as error:
            self._owner.tls_failed(error)
            self.close()
            return
        except OSError as error:
            logger.debug("session %d: %s", self.session, error)
            self.abort()
            return
        if count == 0:
            self._end_reading()
            self._owner.half_closed(self.session)
            return
        self._clock.last_bytes_at = self._now()
        if self._inflow.wrote(count):
            notice_silence(self._sock)
        self._process_input()

    def _process_input(self) -> None:
        turns, self._lacks_room = self._owner.turns, False
        began = self._now()
        fed = self._feed(began, began + turns.slice_seconds)
        self.use.add(began, self._now())
        self.has_more = fed is not Fed.ALL
        if fed is Fed.STALLED:
            self._pause()
            self._owner.stalled(self)
        elif fed is Fed.YIELDED:
            self._pause()
            turns.wait(self)
        elif self._inflow.make_room():
            self._read_on()
        else:
            self._pause()
            self._lacks_room = True

    def resume(self) -> None:
        """Check at the end of the round whether a paused connection can continue."""
        if self._reading is ReadingState.PAUSED:
            self._owner.readiness.soon(self._continue)

    def _continue(self) -> None:
        if self._reading is ReadingState.PAUSED and self._owner.turns.may_begin(self):
            self._process_input()

    def take_turn(self) -> None:
        if self._unread and self._reading is not ReadingState.ENDED:
            self._read()
        elif self._reading is ReadingState.PAUSED:
            self._process_input()

    def enforce_timeouts(self, now: float) -> None:
        """Enforce the limits of `limits` for HELLO, a frame, and sending. An idle session has no time-out."""
        reads, owner = self._reading is ReadingState.ON, self._owner
        if (reads or self._lacks_room) and self._clock.is_late(now, welcome=owner.is_welcome(self.session)):
            self._abort_because("no complete frame in time")
        elif (
            owner.buffers.wanted
            and reads
            and self._inflow.holds_large_buffer
            and self._clock.blocks_others(now)
        ):
            self._abort_because("other connections need the buffer of its incomplete frame")
        elif (
            self._blocked_since is not None and now > self._blocked_since + owner.outgoing.read_within_seconds
        ):
            self._abort_because(f"the peer read nothing for {owner.outgoing.read_within_seconds:g} s")
        elif now - self._last_read > shrink_seconds or self._owner.buffers.wanted:
            self._inflow.release()

    def _abort_because(self, why: str) -> None:
        logger.info("session %d of %s: %s; closed", self.session, self.peer, why)
        self.abort()

    def wanted(self) -> bool:
        """Whether more input is accepted; not if the core is busy, or the peer does not take its answers."""
        if self._deferred is not None and not self._owner.may_answer(self.session, self._deferred):
            return False
        return self._outflow.bytes <= self._owner.outgoing.per_peer_max and self._owner.may_read(self.session)

    def _feed(self, now: float, until: float) -> Fed:
        if self._inflow.inlet is not None:
            return self._feed_version0(self._inflow.inlet, now, until)
        clock, over = self._now, False
        decoder, owner, session = self._inflow.decoder, self._owner, self.session
        before = decoder.buffered
        try:
            while wanted := self.wanted():
                if self._deferred is None and (run := decoder.next_run(_APPEND, _RUN_FRAMES_MAX)):
                    owner.received_appends(session, run)
                    if not decoder.buffered:  # the usual small append: whether more is wanted is asked later
                        break
                elif (frame := self._next_frame()) is None:
                    break
                elif frame.opcode in _LONG_ANSWERS and not owner.may_answer(session, frame):
                    self._deferred, wanted = frame._replace(payload=bytes(frame.payload)), False
                    break
                else:
                    owner.received(session, frame)
                    if not self._welcome and owner.is_welcome(session):
                        self._welcome = True
                        self._inflow.welcome()
                if decoder.buffered and clock() >= until:
                    over = True
                    break
        except RemoteProtocolError as error:
            owner.bad_frame(session, error)
            return Fed.ALL
        left = decoder.buffered
        owner.turns.took(before - left)
        anew = left < before
        if anew:
            self._last_read = now
        begun = wanted and not over and bool(left)
        self._clock.watch(now, begun=begun, anew=anew)
        if over:
            return Fed.YIELDED
        return Fed.ALL if wanted else Fed.STALLED

    def _next_frame(self) -> Frame | None:
        held, self._deferred = self._deferred, None
        return held if isinstance(held, Frame) else self._inflow.decoder.next_frame()

    def _feed_version0(self, inlet: wire0.Inlet, now: float, until: float) -> Fed:
        owner, session = self._owner, self.session
        clock, over = self._now, False
        requests, before = 0, inlet.buffered
        if before:
            self._last_read = now
        try:
            while wanted := self.wanted():
                if owner.is_streaming(session):
                    if not inlet.buffered:
                        break
                    owner.streamed(session, inlet.take())
                elif (body := self._next_request(inlet)) is not None:
                    if not owner.may_answer(session, body):
                        self._deferred, wanted = body, False
                        break
                    owner.requested(session, body)
                    requests += 1
                else:
                    break
                if inlet.buffered and clock() >= until:
                    over = True
                    break
        except wire0.RequestTooLongError as error:
            owner.bad_request(session, error)
            return Fed.ALL
        owner.turns.took(before - inlet.buffered)
        begun = wanted and not over and bool(inlet.buffered)
        self._clock.watch(now, begun=begun, anew=bool(requests))
        if over:
            return Fed.YIELDED
        return Fed.ALL if wanted else Fed.STALLED

    def _next_request(self, inlet: wire0.Inlet) -> bytes | None:
        held, self._deferred = self._deferred, None
        return held if isinstance(held, bytes) else inlet.next_request()

    # Writing

    def send(self, frame: Frame, rest: Sequence[Buffer] = ()) -> None:
        """Queue a frame whose payload `rest` continues."""
        self._outflow.add(frame_head(frame, rest))
        if frame.payload:
            self._outflow.add(frame.payload)
        for part in rest:
            self._outflow.add(part)

    def send_bytes(self, data: Buffer) -> None:
        if data and not self._peer_gone:
            self._outflow.add(data)

    def flush(self) -> None:
        was_blocked = self._blocked_since is not None
        try:
            while self._outflow.bytes and self._send_some():
                pass
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._cannot_send()
            if not self._peer_gone:
                return
        if not self._outflow.bytes:
            self._blocked_since = None
        elif not was_blocked:
            self._blocked_since = self._now()
        if was_blocked is not (self._blocked_since is not None):
            self._watch()
        if self.closing and not self._outflow.bytes:
            self._all_sent.set()

    def _cannot_send(self) -> None:
        if self._inflow.inlet is None or self.closing or not self._owner.is_streaming(self.session):
            self.abort()
            return
        # A client of version 0 that closes with unread status frames resets the connection, and bytes that it
        # sent earlier may still be in the socket. Those are read to the end, because it does not send them
        # again.
        self._peer_gone = True
        self._outflow.clear()
        self.resume()

    def _send_some(self) -> bool:
        complete = self._outflow.send_some(self._sock)
        if self._blocked_since is not None:
            self._blocked_since = self._now()
        if self._outflow.bytes <= outgoing_bytes_max:
            self.resume()
            self._owner.has_sent(self.session)
        return complete
