"""A client's session with one server: requests and answers, durability acks, detection of silence.

The sessions of `dos_client`, without a socket: the same requests, the same rules of silence and of late
answers.
"""

from collections.abc import Callable
from enum import Enum
from typing import Final

from dos_client.core.window import tag_of
from dos_client.limits import connect_timeout_s, silence_broken_s, silence_ping_s
from dos_client.sessions.connection import Requests
from dos_protocol.errors import BrokenConnectionError, DosError, RefusedError, RemoteProtocolError
from dos_protocol.frames import Frame
from dos_protocol.messages import (
    Append,
    DurabilityAck,
    Error,
    Hello,
    Message,
    Opcode,
    Ping,
    Welcome,
    decode,
    encode,
    refused,
)
from dos_protocol.names import NO_ID
from tests.sim.engine.environment import Process, Signal
from tests.sim.engine.network import Network, Wire

_DURABILITY_ACK: Final = int(Opcode.DURABILITY_ACK)
_ERROR: Final = int(Opcode.ERROR)


class Ending(Enum):
    """How a session ends, as its client sees it."""

    REFUSED = "no server listens there"
    NO_ANSWER = "the dial is not answered"
    SILENT = "the other end is silent"
    CLOSED = "the other end closed it, or the connection was reset"
    BROKEN = "the received data is invalid, or a refusal of the session"
    GIVEN_UP = "its owner does not need it any more"


def _no_durability_ack(_: DurabilityAck) -> None:
    """Ignore durability acks, for a session that appends nothing."""


def _no_refusal(tag: int, error: RefusedError) -> None:
    raise AssertionError(f"an append was refused that this session never sent (tag {tag}): {error}")


class Session(Requests):
    """One session. `failure`: why it ended, None while it is open. `changed`: an answer arrived, or the
    session ended.
    """

    def __init__(self, process: Process, network: Network, address: str) -> None:
        self.process = process
        self.address = address
        self.welcome: Welcome
        self.failure: DosError | None = None
        self.changed = Signal()
        self.on_durability_ack: Callable[[DurabilityAck], None] = _no_durability_ack
        self.on_append_refused: Callable[[int, RefusedError], None] = _no_refusal
        self._network = network
        self._wire: Wire | None = None
        self._answers: dict[int, Message] = {}
        self._pending: set[int] = set()
        self._next_id = 1
        self._received_at = 0.0

    @property
    def server_id(self) -> bytes:
        return self.welcome.server_id

    async def open(self, store_id: bytes = NO_ID, generation: int = 0) -> None:
        """Dial and send HELLO. Raises BrokenConnectionError, or the refusal of the server."""
        answered: list[Wire | None] = []

        def done(wire: Wire | None) -> None:
            if self.failure is not None:
                if wire is not None:
                    wire.reset()
                return
            answered.append(wire)
            if wire is not None:
                wire.attach(self, dialler=True)
            self.changed.set()

        self._network.dial(self.process, self.address, done)
        deadline = self.process.now + connect_timeout_s
        while not answered and self.process.now < deadline:
            await self.process.wait(self.changed, deadline - self.process.now)
        if not answered or answered[0] is None:
            why = "refused" if answered else f"no answer within {connect_timeout_s:g} s"
            ending = Ending.REFUSED if answered else Ending.NO_ANSWER
            self.fail(BrokenConnectionError(f"cannot connect to {self.address}: {why}"), ending)
            raise BrokenConnectionError(f"cannot connect to {self.address}: {why}")
        self._wire = answered[0]
        self._received_at = self.process.now
        self._watch()
        hello = Hello(store_id=store_id, generation=generation, client=self.process.name)
        self.welcome = await self.call(hello, Welcome, connect_timeout_s)

    def _watch(self) -> None:
        """Send PING if the other end is silent; end the session if it stays silent."""
        if self.failure is not None:
            return
        silent = self.process.now - self._received_at
        if silent >= silence_broken_s:
            self.fail(BrokenConnectionError(f"{self.address} was silent for {silent:.0f} s"), Ending.SILENT)
            return
        if silent >= silence_ping_s:
            self._post(Ping(), self._take_id())
        self.process.after(silence_ping_s, self._watch)

    def _take_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def _post(self, message: Message, request_id: int) -> None:
        if self._wire is not None:
            self._wire.send(encode(message, request_id), dialler=True)

    async def request(self, message: Message, timeout_s: float | None = None) -> Message:
        if self.failure is not None:
            raise _again(self.failure)
        request_id = self._take_id()
        self._pending.add(request_id)
        self._post(message, request_id)
        deadline = self.process.now + (self.answer_timeout_s if timeout_s is None else timeout_s)
        try:
            while request_id not in self._answers and self.failure is None and self.process.now < deadline:
                await self.process.wait(self.changed, deadline - self.process.now)
        finally:
            self._pending.discard(request_id)
        answer = self._answers.pop(request_id, None)
        if answer is None:
            if self.failure is not None:
                raise _again(self.failure)
            raise BrokenConnectionError(f"{self.address} did not answer {type(message).__name__}")
        if isinstance(answer, Error):
            raise refused(answer)
        return answer

    def post(self, message: Message) -> None:
        """Send a request and drop its answer."""
        if self.failure is None:
            self._post(message, self._take_id())

    def append(self, message: Append, request_id: int) -> None:
        """Send an append; durability acks and refusals report the result."""
        if self.failure is None:
            self._post(message, request_id)

    def fail(self, error: DosError, ending: Ending = Ending.GIVEN_UP) -> None:
        """End the session. Only the first error is kept."""
        if self.failure is None:
            self.failure = error
            self.process.env.sometimes[f"session: {ending.name}"] += 1
            if self._wire is not None:
                self._wire.close(dialler=True)
            self.changed.set()

    def ended(self) -> None:
        self.fail(BrokenConnectionError(f"{self.address} closed the connection"), Ending.CLOSED)

    def received(self, frame: Frame) -> None:
        if self.failure is not None:
            return
        self._received_at = self.process.now
        try:
            self._take(frame)
        except DosError as error:
            self.fail(error, Ending.BROKEN)

    def _take(self, frame: Frame) -> None:
        if frame.opcode == _DURABILITY_ACK:
            watermark = decode(frame)
            assert isinstance(watermark, DurabilityAck)
            self.on_durability_ack(watermark)
        elif frame.request_id in self._pending:
            self._answers[frame.request_id] = decode(frame)
            self.changed.set()
        elif frame.opcode == _ERROR:
            error = decode(frame)
            assert isinstance(error, Error)
            tag = tag_of(frame.request_id)
            if tag is not None:
                self.on_append_refused(tag, refused(error))
            elif frame.request_id == 0:
                raise refused(error)
        elif frame.request_id == 0 or frame.request_id >= self._next_id:
            raise RemoteProtocolError(f"{self.address} answered request {frame.request_id}, never sent")


def _again(failure: DosError) -> DosError:
    """Return the error for another waiting task. A refusal is raised unchanged."""
    return failure if isinstance(failure, RefusedError) else BrokenConnectionError(str(failure.args[0]))
