"""A raw session over a blocking socket: for tests that speak to a server below any client of ours."""

import socket
from types import TracebackType
from typing import Any

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.frames import Frame, FrameDecoder, encode_frame


class Wire:
    """A connection. `ask` sends a request and returns its answer; `unasked`: all other frames."""

    def __init__(self, address: tuple[str, int], *, hello: m.Hello | None = None, greet: bool = True) -> None:
        self.sock = socket.create_connection(address, timeout=30)
        self.decoder = FrameDecoder()
        self.unasked: list[m.Message] = []
        self.welcome: Any = None
        self._last = 0
        if greet:
            try:
                self.welcome = self.ask(hello or m.Hello(client="test"))
            except BaseException:
                self.close()
                raise

    def send(self, message: m.Message) -> int:
        """Send a request without waiting; its id."""
        self._last += 1
        self.sock.sendall(encode_frame(m.encode(message, self._last)))
        return self._last

    def receive_frame(self) -> Frame:
        """The next frame. Raises EOFError when the server closed."""
        while (frame := self.decoder.next_frame()) is None:
            data = self.sock.recv(1 << 16)
            if not data:
                raise EOFError("closed by the server")
            self.decoder.receive(data)
        return frame

    def receive(self) -> m.Message:
        return m.decode(self.receive_frame())

    def answer(self, request_id: int) -> Any:
        """The answer to a request; everything before it goes to `unasked`."""
        while True:
            frame = self.receive_frame()
            if frame.request_id == request_id:
                return m.decode(frame)
            self.unasked.append(m.decode(frame))

    def ask(self, message: m.Message) -> Any:
        return self.answer(self.send(message))

    def claim(self, directory: str, epoch: int = 1, writer_id: bytes = b"w" * 16) -> Any:
        return self.ask(m.ChangeDirectory(directory, claim=True, epoch=epoch, writer_id=writer_id))

    def append(self, name: str, content: bytes, payload: bytes) -> int:
        """Send an append behind the content so far."""
        return self.send(m.Append(name, len(content), prefix_digest(content), payload))

    def wait_synced(self, name: str, size: int) -> None:
        """Wait for a durability ack of the size. Raises AssertionError for an error before it."""
        while True:
            message = self.unasked.pop(0) if self.unasked else self.receive()
            assert not isinstance(message, m.Error), message
            if isinstance(message, m.DurabilityAck) and message.name == name and message.synced >= size:
                return

    def ends(self) -> bool:
        """Return whether the server ends the connection; frames before that go to `unasked`."""
        try:
            while True:
                self.unasked.append(self.receive())
        except (EOFError, ConnectionError):
            return True
        except TimeoutError:
            return False

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> "Wire":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
