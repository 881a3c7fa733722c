"""A client of the original service, for tests: written from the description of its wire and its habits, and
knowing nothing of this project.

A frame is a 4-byte big-endian length and that many bytes. The client

    sends `u` DIR, then `l` to learn the remote size; while the file is being appended it waits and asks
        again, doubling from 1 ms to 1 s
    sends `a` FILE TAB SIZE, catches up from its own journal, then streams what is written, live
    connects again after 0.5 s when the server cannot be reached, or the connection is lost
    gives a reply 2 s, and takes TCP back-pressure of more than 2 s for a lost connection
    buffers at most 1 MiB while it catches up; beyond that it reads its journal again
"""

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from types import TracebackType

REPLY_SECONDS_MAX = 2.0
RECONNECT_SECONDS = 0.5
BUFFER_BYTES_MAX = 1 << 20
PIECE_BYTES = 64 * 1024


class LostError(Exception):
    """The connection has ended, or does not answer."""


class RefusedError(Exception):
    """The server answered ERROR."""


class V0Connection:
    """One connection, a request at a time, as a tool would use it. `reply_seconds`: for slow machines."""

    def __init__(self, address: tuple[str, int], *, reply_seconds: float = REPLY_SECONDS_MAX) -> None:
        try:
            self.sock = socket.create_connection(address, timeout=reply_seconds)
        except OSError as error:
            raise LostError(f"cannot connect: {error}") from error

    def ask(self, body: bytes) -> bytes:
        """Send a request, wait for its reply. Raises LostError, RefusedError."""
        self.send_frame(body)
        reply = self.receive_frame()
        if reply.startswith(b"ERROR"):
            raise RefusedError(reply.decode("ascii"))
        return reply

    def send_frame(self, body: bytes) -> None:
        assert len(body) <= 255, "a client of the original sends at most 255 bytes"
        self.send(struct.pack(">I", len(body)) + body)

    def send(self, data: bytes) -> None:
        try:
            self.sock.sendall(data)
        except OSError as error:
            raise LostError(f"cannot send: {error}") from error

    def receive_frame(self) -> bytes:
        (count,) = struct.unpack(">I", self._receive(4))
        return self._receive(count)

    def _receive(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            try:
                part = self.sock.recv(min(count - len(data), 1 << 20))
            except OSError as error:
                raise LostError(f"no reply: {error}") from error
            if not part:
                raise LostError(f"closed by the server with {len(data)} of {count} bytes")
            data += part
        return bytes(data)

    def use(self, directory: str) -> None:
        assert self.ask(f"u{directory}".encode()) == b"ok"

    def files(self) -> dict[str, tuple[int, bool]]:
        """Sizes, and whether each is being appended, in the order of the reply."""
        found = {}
        for line in self.ask(b"l").decode("ascii").splitlines():
            name, size, appending = line.split("\t")
            found[name] = (int(size), {"yes": True, "no": False}[appending])
        return found

    def get(self, name: str, offset: int = 0, count: int = 0) -> bytes:
        """Return the bytes. ERROR is not detected, because it may be content."""
        self.send_frame(f"g{name}\t{offset}\t{count}".encode())
        return self.receive_frame()

    def sync(self, name: str) -> int:
        written, synced = self.ask(f"s{name}".encode()).split(b"\t")
        assert written == synced
        return int(synced)

    def delete(self, name: str) -> None:
        assert self.ask(f"d{name}".encode()) == b"ok"

    def append(self, name: str, offset: int) -> None:
        """From here on the connection is a stream."""
        assert self.ask(f"a{name}\t{offset}".encode()) == b"ok"

    def finish(self) -> list[tuple[int, int]]:
        """End the stream; the status frames until the server closes."""
        self.sock.shutdown(socket.SHUT_WR)
        statuses = []
        with contextlib.suppress(LostError):
            while True:
                statuses.append(read_status(self.receive_frame()))
        return statuses

    def closed_by_server(self) -> bool:
        """Whether the server ends the connection without another word."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> "V0Connection":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_status(body: bytes) -> tuple[int, int]:
    written, _, synced = body.partition(b"\t")
    return int(written), int(synced)


class V0Replicator(threading.Thread):
    """The original's journal replicator: what is written to the local journal goes to the server, whatever
    happens to the connection, until `stop`.

    `synced`: the highest size that a status frame reported as synced; `sessions`: streams that were begun;
    `waits`: how often the file was being appended, still or by another client.
    """

    def __init__(self, address: tuple[str, int], directory: str, name: str) -> None:
        super().__init__(daemon=True)
        self.address, self.directory, self.name = address, directory, name
        self.journal = bytearray()
        self.synced = 0
        self.sessions = 0
        self.waits = 0
        self.problems: list[str] = []
        self.failure: BaseException | None = None
        self.statuses: list[tuple[int, int]] = []
        self._changed = threading.Condition()
        self._stopping = False
        self._lost = False

    def write(self, data: bytes) -> None:
        """To the local journal first; the stream takes it from there."""
        with self._changed:
            self.journal += data
            self._changed.notify_all()

    def stop(self) -> None:
        """End the stream when everything is sent, and wait for the server to close it."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self.join()
        assert self.failure is None, self.failure

    def wait_until(
        self, condition: Callable[["V0Replicator"], bool], seconds: float = 60.0, *, demand: bool = True
    ) -> None:
        """Until something holds of this replicator. After a while AssertionError, if it is demanded."""
        with self._changed:
            done = self._changed.wait_for(lambda: condition(self) or self.failure is not None, seconds)
        assert self.failure is None, self.failure
        assert done or not demand, (self.synced, self.problems)

    def run(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self.failure = error
            with self._changed:
                self._changed.notify_all()

    def _run(self) -> None:
        while True:
            try:
                with V0Connection(self.address) as connection:
                    self._session(connection)
                    return
            except (LostError, RefusedError) as error:
                with self._changed:
                    self.problems.append(str(error))
                    self._changed.notify_all()
            time.sleep(RECONNECT_SECONDS)

    def _session(self, connection: V0Connection) -> None:
        connection.use(self.directory)
        size = self._remote_size(connection)
        assert self.synced <= size <= len(self.journal), (self.synced, size, len(self.journal))
        connection.append(self.name, size)
        with self._changed:
            self.sessions += 1
            self._lost = False
            self._changed.notify_all()
        reader = threading.Thread(target=self._read_statuses, args=(connection,), daemon=True)
        reader.start()
        try:
            self._send_from(connection, size)
            connection.sock.shutdown(socket.SHUT_WR)
            reader.join()
        finally:
            connection.close()
            reader.join()
        if self.synced < len(self.journal):
            raise LostError("the stream ended before everything was synced")

    def _remote_size(self, connection: V0Connection) -> int:
        pause = 0.001
        while True:
            size, appending = connection.files().get(self.name, (0, False))
            if not appending:
                return size
            self.waits += 1
            time.sleep(pause)
            pause = min(2 * pause, 1.0)

    def _send_from(self, connection: V0Connection, position: int) -> None:
        """Catch up from the journal, then live: here both are reading on from where the stream is."""
        while piece := self._next_piece(position):
            connection.send(piece)
            position += len(piece)

    def _next_piece(self, position: int) -> bytes:
        """Return the bytes after the position; b'' at the end."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.journal) > position or self._stopping or self._lost)
            if self._lost:
                raise LostError("the server closed the stream")
            return bytes(self.journal[position : position + min(PIECE_BYTES, BUFFER_BYTES_MAX)])

    def _read_statuses(self, connection: V0Connection) -> None:
        with contextlib.suppress(LostError, OSError, ValueError):
            while True:
                while not select.select([connection.sock], [], [], 0.1)[0]:
                    pass
                status = read_status(connection.receive_frame())
                with self._changed:
                    self.statuses.append(status)
                    self.synced = max(self.synced, status[1])
                    self._changed.notify_all()
        with self._changed:
            self._lost = True
            self._changed.notify_all()
