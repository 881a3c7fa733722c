"""The server's end of a connection, of either version, with the received data that is not processed yet.

As `dos_server.connection`, without sockets: frames of version 1, or the bytes of version 0, are passed to the
core as far as it accepts them now. Requests and answers about unclaimed files are reported to
`visitors.files`.
"""

import re
from collections import deque
from typing import TYPE_CHECKING, Final

from dos_protocol import messages as m
from dos_protocol.frames import Frame
from dos_protocol.limits import KIB
from dos_protocol.messages import Opcode
from dos_server.core import vocabulary as v
from dos_server.core.requests.version0_wire import LENGTH_BYTES, Inlet
from tests.sim.engine.network import Wire
from tests.sim.visitors import LOOSE

if TYPE_CHECKING:
    from tests.sim.store.server import Server

_APPEND: Final = int(Opcode.APPEND)
_SIZES: Final = re.compile(rb"(\d+)\t(\d+)")


class ServerSession:
    """One connection. In version 0 the received items are `bytes`; b'' means that no more follow."""

    def __init__(self, server: "Server", number: int, wire: Wire) -> None:
        self.server = server
        self.number = number
        self.wire = wire
        self.inbox: deque[Frame] = deque()
        self.refused: set[int] = set()
        """Requests answered with an error."""
        self._inlet: Inlet | None = None
        self._over = False
        self._directory = ""
        self._request: list[str] = []
        """The last request of version 0: command and arguments."""
        self._replies = bytearray()

    @property
    def is_served(self) -> bool:
        """Return whether the server still serves it."""
        return self.server.alive and self.number in self.server.sessions

    @property
    def waits(self) -> bool:
        """Return whether there is data that the core has not accepted yet."""
        return bool(self.inbox) or (self._inlet is not None and bool(self._inlet.buffered or self._over))

    def received(self, item: Frame | bytes) -> None:
        if isinstance(item, bytes):
            self._inlet = self._inlet or Inlet(64 * KIB)
            self._inlet.receive(item)
            self._over |= not item
        else:
            self.inbox.append(item)
        self.server.drain(self)

    def ended(self) -> None:
        self.server.session_ended(self.number)

    def take(self) -> bool:
        """Pass to the core what it accepts now. Return whether that was anything."""
        return self._take_bytes(self._inlet) if self._inlet is not None else self._take_frames()

    def _take_frames(self) -> bool:
        server, took = self.server, False
        while self.inbox and self.is_served and server.core.may_read(self.number):
            frame = self.inbox.popleft()
            directory = server.core._tables.sessions[self.number].directory
            server.machine.bench.request_received(server.machine, self.number, directory, frame)
            self.refused.discard(frame.request_id)
            server.feed(v.Received(self.number, frame))
            if directory == LOOSE and frame.opcode == _APPEND and frame.request_id not in self.refused:
                append = m.decode(frame)
                assert isinstance(append, m.Append), "the opcode is that of APPEND"
                self._appended(append)
            took = True
        return took

    def _appended(self, append: m.Append) -> None:
        """An append was not refused; or the power failed during it."""
        file, data = self.server.machine.loose[append.name], bytes(append.payload)
        if self.is_served:
            file.appended(self, append.expected_size, append.prefix_digest, data)
        elif append.expected_size == len(file.content):
            file.streamed(data)

    # Version 0

    def _take_bytes(self, inlet: Inlet) -> bool:
        server, took = self.server, False
        while self.is_served and server.core.may_read(self.number):
            if server.core.is_streaming(self.number):
                if not inlet.buffered:
                    break
                data = inlet.take()
                if self._directory == LOOSE:
                    server.machine.loose[self._request[1]].streamed(bytes(data))
                server.feed(v.Streamed(self.number, data))
            elif (body := inlet.next_request()) is not None:
                self._remember(body)
                server.feed(v.Requested(self.number, body))
            else:
                break
            took = True
        if self._over and not inlet.buffered and self.is_served:
            self._over = False
            server.feed(v.HalfClosed(self.number))
        return took

    def _remember(self, body: bytes) -> None:
        text = body.decode("ascii")
        self._request = [text[:1], *text[1:].split("\t")]
        if self._request[0] == "u":
            self._directory = self._request[1]
        elif self._request[0] == "d" and self._directory == LOOSE:
            self.server.machine.loose.removal_requested(self._request[1])

    def send_bytes(self, data: bytes) -> None:
        """Send bytes of the core, and record each whole reply."""
        self.wire.send(data, dialler=False)
        self._replies += data
        while len(self._replies) >= LENGTH_BYTES:
            end = LENGTH_BYTES + int.from_bytes(self._replies[:LENGTH_BYTES], "big")
            if len(self._replies) < end:
                return
            body = bytes(self._replies[LENGTH_BYTES:end])
            del self._replies[:end]
            self._replied(body)

    def _replied(self, body: bytes) -> None:
        command, *arguments = self._request
        sometimes = self.server.env.sometimes
        sometimes[f"version 0: {command}{' refused' if body.startswith(b'ERROR') else ''}"] += 1
        if body.startswith(b"ERROR") or self._directory != LOOSE:
            return
        loose, sizes = self.server.machine.loose, _SIZES.fullmatch(body)
        if command == "a" and body == b"ok":
            loose[arguments[0]].begins(self, int(arguments[1]))
        elif command in "as" and sizes is not None:
            loose[arguments[0]].reported(int(sizes[1]), int(sizes[2]))
        elif command == "g":
            loose[arguments[0]].returned(max(int(arguments[1]), 0), body)
        elif command == "l":
            for line in body.decode("ascii").splitlines():
                name, size, _ = line.split("\t")
                loose[name].listed(int(size))
