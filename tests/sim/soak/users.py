"""Who uses the region of a soak from outside: the producer of its input, a reader of its output, a person."""

from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from checkpoint.chains.consumer_register import change_register
from checkpoint.chains.input_log import InputLog
from checkpoint.chains.output_reading import PublishedOutput, split_of
from checkpoint.core.records.consumers import input_register, with_consumer, without_consumer
from checkpoint.core.records.manifest import Checkpoint, SplitPosition, decode_checkpoint
from checkpoint.core.region import answers_directory, requests_directory
from checkpoint.core.requests import Answer, Request, encode_record
from checkpoint.requests.queue import QueueReader, write_records
from dataflow.schema import parse_schema
from dos_protocol.errors import DosError
from journal import Op
from tests.sim.engine.environment import Process
from tests.sim.history import ViolationError
from tests.sim.regions.claiming import Host
from tests.sim.regions.output import SimLock
from tests.sim.soak.region import HANDLE, PRODUCER, SCHEMA
from tests.sim.soak.store import SoakStore

if TYPE_CHECKING:
    from tests.sim.soak.run import Soak

_SCHEMA: Final = parse_schema(SCHEMA)
WORDS: Final = 7
TRIM_S: Final = 10.0
READ_S: Final = 10.0


def word_of(number: int) -> str:
    return f"w{number % WORDS}"


def batch_of(first: int, count: int) -> bytes:
    """Return the rows of a batch as a producer encodes them."""
    numbers = range(first, first + count)
    columns = [pa.array(map(word_of, numbers), pa.string()), pa.array(numbers, pa.int64())]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA) as writer:
        writer.write_batch(pa.record_batch(columns, schema=_SCHEMA))
    return sink.getvalue().to_pybytes()


class Producer(Process):
    """One process of the producer: sends a batch each `pace_s`, with the numbers after those of the last one,
    and trims. `sent`: rows that are recorded."""

    def __init__(self, soak: "Soak") -> None:
        super().__init__(soak.env, "producer")
        self._soak = soak
        self._region = soak.region
        self.log: InputLog | None = None
        self.start("produce", self._produce())

    def _store(self) -> SoakStore:
        return self._region.store_for(self)

    async def _produce(self) -> None:
        application = self._region.spec.name
        log = self.log = await InputLog.open_even_if_closed(self._store(), application, HANDLE, PRODUCER)  # type: ignore[arg-type]
        lock = SimLock(self)
        log._appending = log._trimmer._appending = lock  # type: ignore[assignment]
        self._soak.produced = log.last * self._soak.batch_rows
        self.start("trim", self._trim(log))
        rows = self._soak.batch_rows
        while not self._soak.finishing:
            number = log.last + 1
            data = batch_of((number - 1) * rows + 1, rows)
            await log.append([(rows, data)], number=number)
            await log.recorded(number)
            self._soak.produced = number * rows
            await self.sleep(self._soak.pace_s)

    async def _trim(self, log: InputLog) -> None:
        while True:
            await self.sleep(TRIM_S)
            try:
                await log.trim()
            except DosError as error:  # what is needed is unknown: nothing is trimmed
                self._region.saw(f"producer: {type(error).__name__}")


class _Published(PublishedOutput):
    """`PublishedOutput`, without trio's clock and lock."""

    async def last_checkpoint(self, *, fresh: bool = False) -> Checkpoint | None:
        del fresh  # it always is
        async with aclosing(self._manifest.poll()) as records:
            async for _, record in records:
                if record.op is Op.CHECKPOINT:
                    self._checkpoint = decode_checkpoint(record.flags, record.ints, record.strings[0])
        self._find(self._checkpoint)
        return self._checkpoint


class LogReader(Process):
    """Follows the output log of every worker. `counts`: the last count of each word."""

    def __init__(self, soak: "Soak") -> None:
        super().__init__(soak.env, "reader")
        self.counts: dict[str, int] = {}
        region = soak.region
        published = _Published(region.store_for(self), region.spec.name, "counts")  # type: ignore[arg-type]
        self._followers = [
            published.follower(split_of(worker), SplitPosition(0)) for worker in range(region.spec.workers)
        ]
        self._region = region
        self.start("read", self._read())

    async def _read(self) -> None:
        while True:
            await self.sleep(READ_S)
            try:
                for follower in self._followers:
                    async with aclosing(follower.poll()) as pieces:
                        async for piece in pieces:
                            self._take(piece.data)
            except DosError as error:
                self._region.saw(f"reader: {type(error).__name__}")

    def _take(self, data: bytes) -> None:
        with pa.ipc.open_stream(data) as stream:
            for batch in stream:
                for word, count in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    if count <= self.counts.get(word, 0):
                        raise ViolationError("O8", f"count {count} of {word} after {self.counts[word]}")
                    self.counts[word] = count


class Person(Process):
    """A person with `dos region` and `dos input`: one command at a time, each a process of its own."""

    def __init__(self, soak: "Soak", number: int) -> None:
        super().__init__(soak.env, "person")  # one name for all: the network keeps names
        self._region = soak.region
        self._rng = soak.rng.stream(f"person {number}")
        self._stores = [self._region.store_for(self) for _ in range(2)]

    def ask(self, what: str, done: Callable[[str], None], *, name: str = "") -> None:
        """Send a request through the store; `done` receives the verdict, "" if there is none in time."""
        self.start("ask", self._ask(what, name, done))

    async def _ask(self, what: str, name: str, done: Callable[[str], None]) -> None:
        region = self._region.spec.name
        verdict = ""
        try:
            queue = QueueReader(self._stores[0], answers_directory(region))  # type: ignore[arg-type]
            await queue.skip_present()
            now_ms = int(self.now * 1000)
            request = Request(
                id=self._rng.randbytes(16).hex(),
                region=region,
                what=what,
                wall_time_ms=now_ms,
                patience_ms=10_000,
                name=name,
            )
            directory = requests_directory(region)
            await write_records(self._stores[1], directory, encode_record(request), roll_bytes=0)  # type: ignore[arg-type]
            for _ in range(40):
                await self.sleep(0.5)
                for answer in await queue.poll():
                    if isinstance(answer, Answer) and request.id in answer.requests:
                        verdict = answer.verdict
                if verdict in ("done", "failed", "refused"):
                    break
        except DosError as error:
            self._region.saw(f"person: {type(error).__name__}")
        self._leave(f"{what} {verdict}", done)

    def register(self, done: Callable[[str], None]) -> None:
        """Register another region as a consumer of the input, and remove it. Meanwhile nothing is trimmed."""
        self.start("register", self._register(done))

    async def _register(self, done: Callable[[str], None]) -> None:
        region = self._region
        host = Host(self, region.network, region.store, region.history, self._rng)
        place = input_register(region.spec.name, HANDLE)
        await change_register(host, place, lambda register: with_consumer(register, "other", "lines", 1))
        await change_register(host, place, lambda register: without_consumer(register, "other"))
        host._store.close()
        self._leave("register", done)

    def _leave(self, what: str, done: Callable[[str], None]) -> None:
        for store in self._stores:
            store.close()
        done(what)
        self.soon(self.kill)
