"""One connection: reads frames and feeds them to the core, sends what the core answers; both are bounded.

Reading uses the raw socket. When `readiness` reports it readable, the connection reads as much as it has room
for and passes on all whole frames; the end of the round ends the batch. Back-pressure means not reading:
while the core requires it, while this peer does not take its answers, or while there is no room for the next
frame.

Only the bytes and time-outs of one peer are handled here. The core decides what a frame means.
"""

import logging
from typing import Final

import trio

from dos_protocol.digests import Buffer
from dos_protocol.errors import RemoteProtocolError
from dos_protocol.frames import Frame, frame_head
from dos_protocol.messages import Opcode
from dos_server import sockets
from dos_server.core.requests import version0_wire as wire0
from dos_server.inflow import Inflow
from dos_server.limits import outgoing_bytes_max, shrink_seconds
from dos_server.outflow import Outflow
from dos_server.owner import ConnectionOwner
from dos_server.ports import Socket
from dos_server.reading import Fed, FrameClock, ReadingState
from dos_server.tls_sockets import TlsSocket
from dos_server.turns import ConnectionCost
from dos_tls import TlsError

logger = logging.getLogger("dos.server")

_APPEND: Final = int(Opcode.APPEND)
_LONG_ANSWERS: Final = frozenset({int(Opcode.CHANGE_DIRECTORY), int(Opcode.LIST)})
_RUN_FRAMES_MAX: Final = 256


class ServerConnection:
    """One connection of one peer.

    `reserved_bytes`: answers that are being read from disk. `use`, `has_more`: for the scheduling of `turns`.
    """

    def __init__(self, session: int, sock: Socket, owner: ConnectionOwner) -> None:
        self.session = session
        self.host = sockets.peer_of(sock).rpartition(":")[0]
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
        """Bytes that are queued for the peer and not sent."""
        return self._outflow.bytes

    @property
    def peer(self) -> str:
        """The peer's address, for the log."""
        return sockets.peer_of(self._sock)

    async def run(self) -> None:
        """Serve the peer until it leaves, violates the protocol, or `close` is called. Closes the socket."""
        try:
            with self._scope:
                self._read_on()
                await self._all_read.wait()
                await self._all_sent.wait()
                self._stop_watching()
                await sockets.linger(self._sock, self._owner.readiness)
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
        """Close the connection now."""
        self.closing = True
        self._end_reading()
        self._stop_watching()
        self._scope.cancel()

    @property
    def has_greeted(self) -> bool:
        """Whether HELLO was answered, or a first request of version 0."""
        return self._owner.is_welcome(self.session)

    @property
    def in_handshake(self) -> bool:
        """Whether the handshake of TLS is not complete."""
        return self._tls is not None and self._tls.in_handshake

    def give_way(self, open_now: int) -> None:
        """End, because a new connection needs the place; the peer may try again."""
        if self._tls is not None and self._tls.in_handshake:
            self._tls.alert_busy()
        else:
            sockets.report_busy(self._sock, open_now)
        self.abort()

    # Reading

    def _read_on(self) -> None:
        """Start or resume reading, unless the connection is ending."""
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
        """Register for the socket events that are currently needed."""
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
            sockets.notice_silence(self._sock)
        self._process_input()

    def _process_input(self) -> None:
        """Pass on the buffered input, then keep reading or pause because of back-pressure."""
        turns, self._lacks_room = self._owner.turns, False
        began, before = self._now(), self._inflow.buffered
        fed = self._feed(began, began + turns.slice_seconds)
        self.use.add(began, self._now())
        turns.took(before - self._inflow.buffered)
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
        """Continue when its turn has come: read the socket, or process what is already in the buffer."""
        if self._unread and self._reading is not ReadingState.ENDED:
            self._read()
        elif self._reading is ReadingState.PAUSED:
            self._process_input()

    def enforce_timeouts(self, now: float) -> None:
        """Enforce the time-outs: HELLO, or the first request of version 0, within 5 s; a frame within 30 s.

        An idle session has no time-out; there may be many, so they return their large buffers.
        """
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
        """Pass on the buffered frames until the time slice ends."""
        if self._inflow.inlet is not None:
            return self._feed_version0(self._inflow.inlet, now, until)
        clock, over = self._now, False
        decoder, owner, session = self._inflow.decoder, self._owner, self.session
        before = decoder.buffered
        try:
            while (wanted := self.wanted()) and (frame := self._next_frame()) is not None:
                if frame.opcode in _LONG_ANSWERS and not owner.may_answer(session, frame):
                    self._deferred, wanted = frame._replace(payload=bytes(frame.payload)), False
                    break
                if frame.opcode != _APPEND:
                    owner.received(session, frame)
                    if not self._welcome and owner.is_welcome(session):
                        self._welcome = True
                        self._inflow.welcome()
                else:
                    self._pass_appends(frame)
                    if not decoder.buffered:  # the usual small append: whether more is wanted is asked later
                        break
                if decoder.buffered and clock() >= until:
                    over = True
                    break
        except RemoteProtocolError as error:
            owner.bad_frame(session, error)
            return Fed.ALL
        anew = decoder.buffered < before
        if anew:
            self._last_read = now
        begun = wanted and not over and bool(decoder.buffered)
        self._clock.watch(now, begun=begun, anew=anew)
        if over:
            return Fed.YIELDED
        return Fed.ALL if wanted else Fed.STALLED

    def _next_frame(self) -> Frame | None:
        """Return the frame that was held back, or the next one from the buffer."""
        held, self._deferred = self._deferred, None
        return held if isinstance(held, Frame) else self._inflow.decoder.next_frame()

    def _pass_appends(self, frame: Frame) -> None:
        """Pass on a run of consecutive appends in one call, then the frame that follows it.

        Raises what decoding raises, after every frame before the bad one was passed on.
        """
        decoder, owner, session = self._inflow.decoder, self._owner, self.session
        run: list[Frame] = []
        following: Frame | None = frame
        try:
            while following is not None and following.opcode == _APPEND:
                run.append(following)
                more = decoder.buffered and len(run) < _RUN_FRAMES_MAX
                following = decoder.next_frame() if more else None
        finally:
            owner.received_appends(session, run)
        if following is not None:
            owner.received(session, following)

    def _feed_version0(self, inlet: wire0.Inlet, now: float, until: float) -> Fed:
        """Do the same as `_feed`, for version 0: single requests, or the raw bytes of a stream."""
        owner, session = self._owner, self.session
        clock, over = self._now, False
        requests = 0
        if inlet.buffered:
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
        begun = wanted and not over and bool(inlet.buffered)
        self._clock.watch(now, begun=begun, anew=bool(requests))
        if over:
            return Fed.YIELDED
        return Fed.ALL if wanted else Fed.STALLED

    def _next_request(self, inlet: wire0.Inlet) -> bytes | None:
        held, self._deferred = self._deferred, None
        return held if isinstance(held, bytes) else inlet.next_request()

    # Writing

    def send(self, frame: Frame) -> None:
        """Queue a frame; `flush` sends it."""
        self._outflow.add(frame_head(frame))
        if frame.payload:
            self._outflow.add(frame.payload)

    def send_bytes(self, data: Buffer) -> None:
        """Queue raw bytes, for version 0."""
        if data and not self._peer_gone:
            self._outflow.add(data)

    def flush(self) -> None:
        """Send what the socket accepts now; the rest follows when it is writable again."""
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
        """Handle a failed send: the peer is gone.

        A client of version 0 that closes with unread status frames resets the connection, and bytes that it
        sent earlier may still be in the socket. Those are read to the end before the connection closes.
        """
        if self._inflow.inlet is None or self.closing or not self._owner.is_streaming(self.session):
            self.abort()
            return
        self._peer_gone = True
        self._outflow.clear()
        self.resume()

    def _send_some(self) -> bool:
        """Send one group of buffers. False: the socket accepted only a part."""
        complete = self._outflow.send_some(self._sock)
        if self._blocked_since is not None:
            self._blocked_since = self._now()
        if self._outflow.bytes <= outgoing_bytes_max:
            self.resume()
            self._owner.has_sent(self.session)
        return complete
