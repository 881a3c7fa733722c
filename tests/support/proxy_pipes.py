"""A connection through the proxy: one pipe for each direction, which also reads the frames. Part of `proxy`.

It consults the rules before it reads bytes and again before it passes them on.
"""

import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import trio

from dos_protocol.errors import RemoteProtocolError
from dos_protocol.frames import Frame, FrameDecoder
from dos_protocol.limits import frame_header_bytes
from dos_protocol.messages import Append, DurabilityAck, Hello, Opcode, decode
from tests.support.proxy_rules import CutAfter, DropReply, Ending, Passage, Rule, Way

piece_bytes_max: Final = 65_536
held_bytes_max = 16 << 20
"""A partition keeps at most this much each way of each connection; then it is like a stall."""
fin_patience_s: Final = 2.0


class Network(Protocol):
    """The rules of the proxy, as a connection reads them."""

    @property
    def target(self) -> tuple[str, int]: ...

    @property
    def frames(self) -> bool: ...

    @property
    def rules(self) -> Sequence[Rule]: ...


class Connection:
    """One client, one server, a pipe each way. `client`: the name in HELLO. `torn`: bytes were lost."""

    def __init__(self, proxy: Network, client: trio.SocketStream) -> None:
        self.proxy = proxy
        self.client = ""
        self.torn = False
        self.awaited: list[tuple[DropReply, int, str, int]] = []
        self._streams = [client]
        self._pipes: list[_Pipe] = []
        self._scope = trio.CancelScope()
        self._finning = False
        self._dialling = trio.lowlevel.ParkingLot()

    async def run(self) -> None:
        try:
            with self._scope:
                server = await self._dial()
                if server is None:
                    return
                self._streams.append(server)
                client = self._streams[0]
                self._pipes = [
                    _Pipe(self, Way.TO_SERVER, client, server),
                    _Pipe(self, Way.TO_CLIENT, server, client),
                ]
                async with trio.open_nursery() as nursery:
                    for pipe in self._pipes:
                        nursery.start_soon(pipe.read)
                        nursery.start_soon(pipe.write)
            if self._finning:
                await self._say_goodbye()
        finally:
            streams, self._streams = self._streams, []  # from here on a cut finds nothing to cut
            with trio.CancelScope(shield=True):
                for stream in streams:
                    await trio.aclose_forcefully(stream)

    async def _dial(self) -> trio.SocketStream | None:
        """A partition keeps the server from seeing even the connection."""
        while self.passage(Way.TO_SERVER) in (Passage.HOLD, Passage.LOSE):
            await self._dialling.park()
        try:
            return await trio.open_tcp_stream(*self.proxy.target)
        except OSError:
            return None

    async def _say_goodbye(self) -> None:
        """FIN both ways; what still comes is read and thrown away, or the kernel would send RST."""

        async def drain(stream: trio.SocketStream) -> None:
            try:
                await stream.send_eof()
                while await stream.receive_some(piece_bytes_max):
                    pass
            except trio.BrokenResourceError:
                pass

        with trio.move_on_after(fin_patience_s):
            async with trio.open_nursery() as nursery:
                for stream in self._streams:
                    nursery.start_soon(drain, stream)

    def passage(self, way: Way) -> Passage:
        concerned = [rule.passage for rule in self.proxy.rules if rule.concerns(way, self.client)]
        return max(concerned, default=Passage.PASS)

    def cut(self, ending: Ending) -> None:
        if ending is Ending.RST:
            for stream in self._streams:
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._finning = ending is Ending.FIN
        self._scope.cancel()

    def wake(self) -> None:
        self._dialling.unpark_all()
        for pipe in self._pipes:
            pipe.lot.unpark_all()


_CUT = object()


class _Pipe:
    """One way of one connection: a reader that applies the rules, a queue, a writer that applies them
    again."""

    def __init__(
        self, connection: Connection, way: Way, source: trio.SocketStream, sink: trio.SocketStream
    ) -> None:
        self.lot = trio.lowlevel.ParkingLot()
        self._connection = connection
        self._way = way
        self._source = source
        self._sink = sink
        self._queue: deque[bytes | object] = deque()
        self._queued = 0
        self._ended: Ending | None = None
        self._framing = _Framing(connection, way) if connection.proxy.frames else None

    @property
    def _passage(self) -> Passage:
        return self._connection.passage(self._way)

    def _may_read(self) -> bool:
        return self._queued < (held_bytes_max if self._passage is Passage.HOLD else piece_bytes_max)

    def _may_write(self) -> bool:
        if self._queue:
            return True
        return self._ended is not None and self._passage is Passage.PASS and not self._connection.torn

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self.lot.park()

    async def read(self) -> None:
        while self._ended is None:
            await self._until(self._may_read)
            try:
                data = bytes(await self._source.receive_some(piece_bytes_max))
            except trio.BrokenResourceError:
                self._ended = Ending.RST
            else:
                if not data:
                    self._ended = Ending.FIN
                pieces = self._framing.take(data) if self._framing is not None else [data]
                if self._passage is Passage.LOSE:
                    self._connection.torn = self._connection.torn or bool(data)
                    continue
                for piece in pieces:
                    self._put(piece)
            self.lot.unpark_all()

    def _put(self, piece: bytes | object) -> None:
        if piece:
            self._queue.append(piece)
            self._queued += len(piece) if isinstance(piece, bytes) else 0

    async def write(self) -> None:
        while True:
            await self._until(self._may_write)
            if not self._queue:
                break
            piece = self._queue.popleft()
            if not isinstance(piece, bytes):
                self._connection.cut(Ending.RST)
                return
            self._queued -= len(piece)
            self.lot.unpark_all()
            await self._dawdle(len(piece))
            await self._until(lambda: self._passage not in (Passage.HOLD, Passage.STALL))
            if self._passage is Passage.LOSE:
                self._connection.torn = True
            elif not await self._send(piece):
                return
        if self._ended is Ending.RST:
            self._connection.cut(Ending.RST)
        else:
            try:
                await self._sink.send_eof()
            except trio.BrokenResourceError:
                self._connection.cut(Ending.RST)

    async def _send(self, piece: bytes) -> bool:
        """False: the connection is over."""
        cutting = self._cutting()
        if cutting is not None and cutting.left <= len(piece):
            piece = piece[: cutting.left]
        elif cutting is not None:
            cutting.left -= len(piece)
            cutting = None
        try:
            if piece:
                await self._sink.send_all(piece)
        except trio.BrokenResourceError:
            self._connection.cut(Ending.RST)
            return False
        if cutting is not None:
            cutting.end()
            cutting.done.set()
            self._connection.cut(cutting.ending)
            return False
        return True

    def _concerning(self) -> list[Rule]:
        connection = self._connection
        return [one for one in connection.proxy.rules if one.concerns(self._way, connection.client)]

    def _cutting(self) -> CutAfter | None:
        return next((one for one in self._concerning() if isinstance(one, CutAfter)), None)

    async def _dawdle(self, count: int) -> None:
        slowest = max(
            (
                one.delay_s + (count / one.bytes_per_s if one.bytes_per_s else 0.0)
                for one in self._concerning()
            ),
            default=0.0,
        )
        if slowest:
            await trio.sleep(slowest)


class _Framing:
    """Reads along: the client's name, and the frames that a `drop_reply` waits for. Whole frames are handed
    on; bytes that are no frames are handed on as they come."""

    def __init__(self, connection: Connection, way: Way) -> None:
        self._connection = connection
        self._way = way
        self._decoder: FrameDecoder | None = FrameDecoder()
        self._raw = bytearray()

    def take(self, data: bytes) -> list[bytes | object]:
        if self._decoder is None or not data:
            rest, self._raw = bytes(self._raw) + data, bytearray()
            return [rest]
        self._raw += data
        self._decoder.receive(data)
        out: list[bytes | object] = []
        done = begin = 0
        try:
            while (frame := self._decoder.next_frame()) is not None:
                end = done + frame_header_bytes + len(frame.meta) + len(frame.payload)
                rule = self._look(frame)
                if rule is not None:
                    out += [bytes(self._raw[begin:done])] if done > begin else []
                    out += [_CUT] if rule.then_cut else []
                    begin = end
                done = end
        except RemoteProtocolError:
            self._decoder = None
            done = len(self._raw)
        out += [bytes(self._raw[begin:done])] if done > begin else []
        del self._raw[:done]
        return out

    def _look(self, frame: Frame) -> DropReply | None:
        """The rule that drops this frame, if one does."""
        if self._way is Way.TO_CLIENT:
            return self._awaited(frame) if self._connection.awaited else None
        if frame.opcode == Opcode.HELLO and not self._connection.client:
            hello = decode(frame)
            self._connection.client = hello.client if isinstance(hello, Hello) else ""
        for rule in self._connection.proxy.rules:
            if isinstance(rule, DropReply) and rule.opcode == frame.opcode and rule.left:
                if not rule.concerns(self._way, self._connection.client):
                    continue
                rule.left -= 1
                if not rule.left:
                    self._connection.awaited.append((rule, *_answer_of(frame)))
        return None

    def _awaited(self, frame: Frame) -> DropReply | None:
        for one in self._connection.awaited:
            rule, request_id, name, size = one
            if rule not in self._connection.proxy.rules:
                continue
            if name:
                message = decode(frame) if frame.opcode == Opcode.DURABILITY_ACK else None
                found = isinstance(message, DurabilityAck) and message.name == name and message.synced >= size
            else:
                found = frame.request_id == request_id
            if found:
                self._connection.awaited.remove(one)
                rule.end()
                rule.done.set()
                return rule
        return None


def _answer_of(request: Frame) -> tuple[int, str, int]:
    """(request id, object, size): an append is answered by a watermark of its object from that size on."""
    message = decode(request) if request.opcode == Opcode.APPEND else None
    if isinstance(message, Append):
        return 0, message.name, message.expected_size + len(message.payload)
    return request.request_id, "", 0
