"""A writer that sends every kind of request to one server and records the answers in `history`.

Pipelined appends to several objects, reads behind them, claims after claims, objects that are new; DELETE as
long as the server is in no store, REPAIR once it is in one. What it does next comes from a seed; how it falls
together with the disk, the machine decides.

Blocking, in one thread. When the power fails it stops with OSError or EOFError, after it has read what was
still in transit; `until_dark` turns that into a normal end.
"""

import contextlib
import random
from collections.abc import Callable, Iterator

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.names import parse_id
from dos_protocol.store_record import Member, StoreRecord, encode_store_record
from tests.power.history import History
from tests.support.servers import ServerProcess
from tests.support.wire import Wire

STORE = m.Hello(store_id=b"s" * 16, generation=1, client="power")
IN_FLIGHT_MAX = 40
OBJECTS = ("a", "b", "c", "deleted", "repaired")


def make_store_of_one(server: ServerProcess) -> None:
    """From now on sessions say `STORE`."""
    record = StoreRecord(STORE.store_id, 1, 1, (Member(parse_id(server.server_id), server.location),))
    with Wire(server.address) as wire:
        answer = wire.ask(m.Configure(encode_store_record(record)))
        assert answer == m.Configured(1), answer


@contextlib.contextmanager
def until_dark() -> Iterator[None]:
    """The server dies in this block, and its connections with it. No answer is a failure."""
    with contextlib.suppress(ConnectionError, EOFError):
        yield


class Writer:
    """One directory's writer, over several sessions, one at a time."""

    def __init__(self, server: ServerProcess, history: History, directory: str, seed: int) -> None:
        self._address = server.address
        self._history = history
        self._rng = random.Random(seed)
        self._in_flight = 0
        self._wire: Wire | None = None
        self.directory = directory
        self.hello = m.Hello(client="power")

    @property
    def wire(self) -> Wire:
        assert self._wire is not None
        return self._wire

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()

    def claim(self) -> None:
        """A new session with a higher epoch; what the claim's answer says is durable, and all there is."""
        self.close()
        self._wire = Wire(self._address, hello=self.hello)
        epochs = self._history.epochs.get(self.directory, [(0.0, 0)])
        epoch = max(epoch for _, epoch in epochs) + 1
        opened = self.wire.claim(self.directory, epoch, self._rng.randbytes(16))
        assert isinstance(opened, m.DirectoryOpened), opened
        self._history.claimed(self.directory, epoch)
        self._in_flight = 0
        for info in opened.entries:
            one = self._history.of(self.directory, info.name)
            one.shrink(info.synced)
            one.acknowledged(info.synced)
        there = {info.name for info in opened.entries}
        for (directory, name), one in self._history.objects.items():
            if directory == self.directory and name not in there and one.versions[-1] is not None:
                one.shrink(0)

    def append(self, name: str, payload: bytes) -> None:
        """Without waiting, unless much is under way."""
        one = self._history.of(self.directory, name)
        if one.versions[-1] is None:
            one.replace(b"")
        request = m.Append(name, one.fold.size, one.fold.value, payload)
        one.grow(payload)
        self.wire.send(request)
        self._in_flight += 1
        while self._in_flight > IN_FLIGHT_MAX:
            self.hear()

    def hear(self) -> None:
        """The next watermark."""
        message = self.wire.unasked.pop(0) if self.wire.unasked else self.wire.receive()
        assert isinstance(message, m.DurabilityAck), message
        self._told(message)
        self._in_flight = max(0, self._in_flight - 8)

    def _told(self, message: m.DurabilityAck) -> None:
        one = self._history.of(self.directory, message.name)
        if one.versions[-1] is not None:
            one.acknowledged(message.synced)

    def drain(self) -> None:
        """Read the answers that were sent before the power failure."""
        with until_dark():
            while True:
                message = self.wire.unasked.pop(0) if self.wire.unasked else self.wire.receive()
                if isinstance(message, m.DurabilityAck):
                    self._told(message)

    def settle(self, name: str) -> None:
        """Until all of the object is acknowledged."""
        one = self._history.of(self.directory, name)
        while one.required(float("inf")).size < len(one.content):
            self.hear()

    def read(self, name: str) -> None:
        """What a read shows may not vanish either."""
        with Wire(self._address, hello=self.hello) as wire:
            wire.ask(m.ChangeDirectory(self.directory))
            data = wire.ask(m.Get(name, 0, 1 << 20))
            if isinstance(data, m.Data):
                one = self._history.of(self.directory, name)
                assert one.content.startswith(data.payload)
                one.acknowledged(len(data.payload))

    def delete(self, name: str) -> None:
        one = self._history.of(self.directory, name)
        if one.versions[-1] is None:
            return
        self.append(name, b"the last one")
        self.settle(name)
        one.replace(None)
        answer = self.wire.ask(m.Delete(name))
        assert isinstance(answer, m.Deleted), answer
        one.acknowledged()
        self.wire.unasked.clear()

    def repair(self, name: str) -> None:
        """Another copy takes the place of the object's, in two pieces; the writer claims again after it."""
        one = self._history.of(self.directory, name)
        self.append(name, b"before")
        self.settle(name)
        old, content = bytes(one.content), self._rng.randbytes(self._rng.randrange(20, 9_000))
        one.replace(content, repair=True)
        with Wire(self._address, hello=self.hello) as wire:
            wire.ask(m.ChangeDirectory(self.directory))
            half = len(content) // 2
            for offset, part in ((0, content[:half]), (half, content[half:])):
                request = m.RepairChunk(
                    name, offset, len(content), prefix_digest(content), len(old), prefix_digest(old),
                    overwrite=True, payload=part,
                )  # fmt: skip
                answer = wire.ask(request)
                assert isinstance(answer, m.RepairAck), answer
        one.acknowledged(len(content))
        self.claim()

    def step(self) -> None:
        """One thing or another."""
        rng = self._rng
        choice = rng.random()
        if choice < 0.86:
            for _ in range(rng.randrange(1, 8)):
                size = rng.choice((1, 60, 400, 700, 3_000, 5_000))
                self.append(rng.choice(OBJECTS[:3]), rng.randbytes(size))
        elif choice < 0.90:
            self.append(f"new{rng.randrange(1000)}", rng.randbytes(rng.choice((10, 5_000))))
        elif choice < 0.93:
            self.read(rng.choice(OBJECTS[:3]))
        elif choice < 0.95:
            self.claim()
        elif self.hello is not STORE:
            self.append("deleted", rng.randbytes(3_000))
            self.delete("deleted")
        else:
            self.append("repaired", rng.randbytes(2_000))
            self.repair("repaired")


def work(
    writers: list[Writer], steps: int, seed: int, *, at_step: Callable[[int], None] = lambda _: None
) -> None:
    """Steps of the writers in turns by chance."""
    rng = random.Random(seed)
    for number in range(steps):
        at_step(number)
        rng.choice(writers).step()
