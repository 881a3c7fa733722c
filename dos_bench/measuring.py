"""The measurements of a bench, and the comparison of everything that it wrote.

Times are of a monotonic clock, in this process. Each row has a warm-up before it, which does not count. At
the end every byte is read back from the store and compared with its records, made again: figures of wrong
bytes are never returned.
"""

import os
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import trio
import xxhash

from dos_bench.core.figures import (
    LINK_BYTES,
    WARM_UP,
    AppendMeter,
    BenchBudget,
    BenchRow,
    Comparison,
    RecordChain,
    check_equal,
    percentile,
    row_of_times,
)
from dos_bench.visiting import AT_ONCE, claimed, directory_of
from dos_client import Claim, ObjectWriter, QuorumUnavailableError, Store
from dos_protocol.limits import KIB, MIB
from dos_tls import tls_of_environment
from journal import ChainWriter, Op, Position, Record, read_records, take_over

CHAIN: Final = "bench"
STREAM_BYTES: Final = 256 * KIB
JOURNAL_BYTES: Final = 4 * KIB
GET_BYTES: Final = 64 * KIB
IN_FLIGHT_BYTES: Final = 8 * MIB
"""A stream waits when so much of it is not durable."""
PINGS: Final = 20
RECOVERIES_MAX: Final = 5
WATCH_S: Final = 0.25
STALLED_S: Final = 10.0
"""A writer that has waited for the store for so long ends the run."""
APPENDS, STREAM, READS, RECOVERY = 0.55, 0.15, 0.1, 0.2
"""The parts of the time."""
APPENDED, STREAMED, JOURNALED = 0.5, 0.25, 0.24
"""The parts of the bytes. The rest is for the records that recoveries append."""


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """What is measured. seconds: of all measurements together; size: bytes that are appended at most."""

    prefix: str
    sizes: Sequence[int]
    writers: Sequence[int]
    seconds: float
    size: int


@dataclass(slots=True)
class BenchResult:
    """The rows, and the conditions in which they were measured. digest: of all that was compared."""

    conditions: dict[str, Any]
    rows: list[BenchRow] = field(default_factory=list)
    records: int = 0
    bytes: int = 0
    digest: str = ""

    def as_json(self) -> dict[str, Any]:
        verified = {"records": self.records, "bytes": self.bytes, "digest": self.digest}
        return {
            "conditions": self.conditions,
            "rows": [row.as_json() for row in self.rows],
            "verified": verified,
        }


class Bench:
    """One run on an open store. phase: what is done now; done, total: its bytes, for people."""

    def __init__(self, store: Store, request: BenchRequest) -> None:
        self._store, self._request = store, request
        self._body = os.urandom(max(*request.sizes, STREAM_BYTES, JOURNAL_BYTES))
        self._written: list[tuple[str, str, RecordChain]] = []
        self._journal = RecordChain(self._body, JOURNAL_BYTES)
        self._journal_directory = directory_of(request.prefix, None)
        self.phase, self.done, self.total = "measuring round trips", 0, request.size

    async def run(self) -> BenchResult:
        """Measure, and compare everything. Raises CorruptDataError for wrong bytes, QuorumUnavailableError if
        the store stalls, and what the store raises.
        """
        store, request = self._store, self._request
        result = BenchResult(await _conditions(store))
        away = set[str]()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_watch, store, away)
            async with AsyncExitStack() as stack:
                # First, while all members are there: a journal begins with the answers of all (R16).
                await self._write_journal(WARM_UP, WARM_UP * request.seconds)
                writers = await self._writers(stack, max(request.writers))
                await self._appends(writers, result.rows)
                await self._stream(writers[0], result.rows)
                await self._recoveries(result.rows)
            await self._compare(result)
            nursery.cancel_scope.cancel()
        result.conditions["journal_bytes"] = self._journal.size
        result.conditions["unavailable_meanwhile"] = sorted(away)
        return result

    async def _writers(self, stack: AsyncExitStack, count: int) -> list["_Writer"]:
        self.phase = f"claiming {count} directories"
        writers = list[_Writer]()

        limit = trio.CapacityLimiter(AT_ONCE)

        async def claim(directory: str) -> None:
            async with limit:
                held = await stack.enter_async_context(await claimed(self._store, directory))
                writers.append(_Writer(self, directory, held))

        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(claim, directory_of(self._request.prefix, number))
        return writers

    def began(self, directory: str, name: str, record_bytes: int) -> RecordChain:
        """Note an object, which is compared at the end, and return its records."""
        chain = RecordChain(self._body, record_bytes)
        self._written.append((directory, name, chain))
        return chain

    async def _appends(self, writers: "list[_Writer]", rows: list[BenchRow]) -> None:
        request = self._request
        cells = [(size, count) for size in request.sizes for count in request.writers]
        budget = BenchBudget(APPENDS * request.seconds, int(APPENDED * request.size), len(cells))
        for size, count in cells:
            text = f"{count} {'writer' if count == 1 else 'writers'} of {size} B"
            self.phase = f"measuring appends, {text}"
            for one in writers[:count]:
                one.begin(size)
            begun, (seconds, limit) = time.perf_counter(), budget.share()
            meter = AppendMeter(begun, seconds, limit)
            async with trio.open_nursery() as nursery:
                for one in writers[:count]:
                    nursery.start_soon(one.append_each, meter)
            budget.spend(time.perf_counter() - begun, meter.spent)
            rows.append(row_of_times("append, wait", meter, record_bytes=size, writers=count))

    async def _stream(self, writer: "_Writer", rows: list[BenchRow]) -> None:
        """Append without waiting for each record, then read at random, then as a whole."""
        request = self._request
        writer.begin(STREAM_BYTES)
        total, links = max(2 * STREAM_BYTES, int(STREAMED * request.size)), list[bytes]()
        target, chain = writer.object, writer.chain
        self.phase = "measuring a stream of appends"

        async def append(until_bytes: float, until_s: float) -> None:
            while chain.size + STREAM_BYTES <= until_bytes and time.perf_counter() < until_s:
                links.append(chain.digest)
                target.append(chain.next())
                self.done += STREAM_BYTES
                await target.wait_synced(max(0, target.size - IN_FLIGHT_BYTES))
            await target.wait_synced(target.size)

        begun = time.perf_counter()
        await append(max(STREAM_BYTES, WARM_UP * total), begun + request.seconds)
        warm_bytes, begun = chain.size, time.perf_counter()
        await append(total, begun + STREAM * request.seconds)
        rows.append(
            _rate("append, as a stream", chain.size - warm_bytes, STREAM_BYTES, time.perf_counter() - begun)
        )
        rows.append(await self._gets(writer, links))
        self.phase, begun = "measuring a stream that is read", time.perf_counter()
        await self._compare_object(writer.directory, target.name, chain)
        rows.append(_rate("read, as a stream", chain.size, STREAM_BYTES, time.perf_counter() - begun))

    async def _gets(self, writer: "_Writer", links: list[bytes]) -> BenchRow:
        """Read single pieces of the stream, and compare each."""
        rng, name = random.Random(self._body[:16]), writer.object.name  # noqa: S311 - no secret
        self.phase = "measuring reads at random"
        meter = AppendMeter(time.perf_counter(), READS * self._request.seconds, 1 << 62)
        while meter.take(GET_BYTES):
            number, piece = rng.randrange(len(links)), rng.randrange(STREAM_BYTES // GET_BYTES) * GET_BYTES
            at = number * STREAM_BYTES + piece
            begin = time.perf_counter()
            data = await self._store.read(writer.directory, name, at, GET_BYTES, committed=True)
            meter.note(begin, time.perf_counter())
            record = links[number] + self._body[: STREAM_BYTES - LINK_BYTES]
            check_equal(f"{writer.directory}/{name}", at, record[piece : piece + GET_BYTES], data)
        return row_of_times("read, at random", meter, record_bytes=GET_BYTES, writers=1)

    @asynccontextmanager
    async def _taken_journal(self, times: list[float]) -> AsyncIterator[ChainWriter]:
        """Claim the journal, take it over, replay it, and continue it. times: takes the clock after the
        take-over and after the replay.
        """
        store = self._store
        async with await claimed(store, self._journal_directory) as claim:
            generation = store.record.generation
            state = await take_over(claim, CHAIN, generation=generation)
            times.append(time.perf_counter())
            if state.end is not None:
                await self._compare_journal(read_records(claim, state))
            times.append(time.perf_counter())
            async with await ChainWriter.open(claim, CHAIN, state, generation) as writer:
                yield writer

    async def _write_journal(self, part: float, seconds: float) -> None:
        """Append to the journal until it has this part of its bytes, or for so long."""
        self.phase = "writing a journal"
        until_s, until_bytes = time.perf_counter() + seconds, part * JOURNALED * self._request.size
        async with self._taken_journal([]) as writer:
            while self._journal.size < until_bytes and time.perf_counter() < until_s:
                position = self._append_record(writer)
                if position.size - writer.synced >= IN_FLIGHT_BYTES:
                    await writer.wait_synced()
                await writer.wait_room()
            await writer.wait_synced()

    def _append_record(self, writer: ChainWriter) -> Position:
        chain = self._journal
        self.done += JOURNAL_BYTES
        return writer.append(Record(Op.STATE_BLOCK, ints=(chain.count,), strings=(chain.next(),)))

    async def _recoveries(self, rows: list[BenchRow]) -> None:
        """Recover a journal as the next process would: claim, take over, replay, append."""
        chain, seconds = self._journal, RECOVERY * self._request.seconds
        await self._write_journal(1.0, seconds / 2)
        until_s = time.perf_counter() + seconds / 2
        found, replayed = list[list[float]](), 0
        # The first one is the warm-up.
        while len(found) < 2 or (len(found) <= RECOVERIES_MAX and time.perf_counter() < until_s):
            self.phase = f"measuring recoveries of a journal, {len(found)} so far"
            replayed += chain.count if found else 0
            times = [time.perf_counter()]
            async with self._taken_journal(times) as writer:
                await writer.wait_synced(self._append_record(writer))
                times.append(time.perf_counter())
            found.append(times)
        for what, first, last in (
            ("take-over", 0, 1),
            ("replay", 1, 2),
            ("first append", 2, 3),
            ("in all", 0, 3),
        ):
            spans = [one[last] - one[first] for one in found[1:]]
            meter = AppendMeter.of(spans, replayed if what == "replay" else 0)
            size = JOURNAL_BYTES if what == "replay" else None
            rows.append(row_of_times(f"recovery: {what}", meter, record_bytes=size))

    async def _compare(self, result: BenchResult) -> None:
        """Read everything back, and compare it with the records, made again."""
        digest, chains = xxhash.xxh3_128(), [*(one for _, _, one in self._written), self._journal]
        self.phase = "comparing everything with what was written"
        self.done, self.total = 0, sum(one.size for one in chains)
        for directory, name, chain in filter(lambda one: one[2].size, self._written):
            await self._compare_object(directory, name, chain)
            self.done += chain.size
        async with self._taken_journal([]):
            self.done += self._journal.size
        for chain in chains:
            digest.update(chain.digest)
            result.records += chain.count
            result.bytes += chain.size
        result.digest = digest.hexdigest()

    async def _compare_object(self, directory: str, name: str, written: RecordChain) -> None:
        comparison = Comparison(f"{directory}/{name}", self._body, written)
        async with aclosing(self._store.stream(directory, name)) as stream:
            async for data in stream:
                comparison.feed(data)
        comparison.finish()

    async def _compare_journal(self, records: AsyncGenerator[tuple[Position, Record]]) -> None:
        comparison = Comparison(f"journal {self._journal_directory}/{CHAIN}", self._body, self._journal)
        async with aclosing(records) as steps:
            async for _, record in steps:
                if record.op is Op.STATE_BLOCK:
                    comparison.feed(bytes(record.strings[0]))
        comparison.finish()


class _Writer:
    """A writer with a directory of its own. `begin` gives it a new object, to which it appends."""

    object: ObjectWriter
    chain: RecordChain

    def __init__(self, bench: Bench, directory: str, claim: Claim) -> None:
        self._bench, self.directory, self._claim = bench, directory, claim
        self._objects = 0

    def begin(self, record_bytes: int) -> None:
        if self._objects:
            self.object.seal()
        self._objects += 1
        # Names are never used twice: of a member that was away, an older copy may return.
        name = f"records-{self._claim.epoch}-{self._objects}"
        self.object = self._claim.open_object(name)
        self.chain = self._bench.began(self.directory, name, record_bytes)

    async def append_each(self, meter: AppendMeter) -> None:
        """Append and wait until it is durable, again and again."""
        target, chain, bench, clock = self.object, self.chain, self._bench, time.perf_counter
        size = chain.record_bytes
        while meter.take(size):
            data = chain.next()
            bench.done += size
            begin = clock()
            await target.wait_synced(target.append(data))
            meter.note(begin, clock())


def _rate(what: str, size: int, record_bytes: int, seconds: float) -> BenchRow:
    count = size // record_bytes
    return BenchRow(
        what,
        count,
        record_bytes,
        1,
        per_s=count / seconds if count else None,
        bytes_per_s=size / seconds if count else None,
    )


async def _watch(store: Store, away: set[str]) -> None:
    """Note which members are unavailable meanwhile. Raises QuorumUnavailableError if a writer has waited for
    `STALLED_S`.
    """
    while True:
        away.update(one.address for one in store.members() if not one.connected)
        for claim in store.claims():
            status = claim.status()
            if status.waiting and status.waiting_s >= STALLED_S:
                raise QuorumUnavailableError(
                    f"no append of {status.directory} was acknowledged for {status.waiting_s:.0f} s:"
                    f" {status.waiting}",
                    remedy="start the missing members, free space, or raise the quota; or pass fewer --bytes",
                )
        await trio.sleep(WATCH_S)


async def _conditions(store: Store) -> dict[str, Any]:
    """Return what the figures depend on: members and their round trips, how many acknowledge, TLS."""
    trips: dict[str, list[float]] = {}
    for _ in range(PINGS + 1):
        for address, found in (await store.ping()).items():
            if isinstance(found, str):
                raise QuorumUnavailableError(
                    f"member {address} does not answer: {found}",
                    remedy="start it, or replace it: a bench begins with all members of the store",
                )
            trips.setdefault(address, []).append(1_000 * found)
    members = [
        {
            "address": address,
            "round_trips": PINGS,
            "round_trip_min_ms": min(times[1:]),
            "round_trip_p50_ms": percentile(sorted(times[1:]), 0.5),
        }
        for address, times in sorted(trips.items())
    ]
    return {
        "members": members,
        "acknowledging": store.record.ack_quorum,
        "in_store": not store.of_one_server,
        "tls": tls_of_environment() is not None,
        "token": bool(store.access.token),
    }
