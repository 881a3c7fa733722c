"""The output of batches in a worker's log, as one reader finds it that is kept from batch to batch: the same
as a new reader of each batch finds, whatever became of the log in between.
"""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint import BatchProcessed
from checkpoint.chains.visible_log import BatchOutputReader
from checkpoint.core.records.manifest import BatchNote
from checkpoint.core.records.outputs import Output, OutputHead, Publish, encode_output, output_chain
from checkpoint.core.region import worker_directory
from checkpoint.errors import GraphChangeRefusedError
from journal import ORIGIN, ChainState, ChainWriter, Op, Position, Record, take_over
from tests.journal.memory_store import DIRECTORY, MemoryStore

pytestmark = pytest.mark.trio

REGION, SINK = "app", "out"
assert worker_directory(REGION, 0) == DIRECTORY
CHAIN = output_chain(SINK)
HEAD = OutputHead(sink=SINK, publish=Publish.CHECKPOINT, workers=1)


class Log:
    """The log of one worker, with a batch for each number, and what the coordinator says of the batches."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.requests = 0
        """Reads of any kind."""
        self.written: list[tuple[BatchProcessed, list[bytes]]] = []
        """The answer for each batch on the present line, and its rows."""
        self.incarnation = 0
        self._step = 0
        self._writer: ChainWriter | None = None
        self._count("read")
        self._count("inspect")

    def _count(self, name: str) -> None:
        method = getattr(self.store, name)

        def counted(*arguments: Any, **named: Any) -> Any:
            self.requests += 1
            return method(*arguments, **named)

        setattr(self.store, name, counted)

    @property
    def end(self) -> Position:
        if not self.written:
            return ORIGIN
        return msgspec.convert(self.written[-1][0].logs[0][SINK], Position)

    async def begin(self, batches: int) -> None:
        """Begin an incarnation: the worker takes its log over at the end of the first `batches`."""
        await self.close()
        del self.written[batches:]
        self.incarnation += 1
        claim = self.store.claim(self.incarnation)
        state: ChainState | None = None
        if self.incarnation > 1:
            state = await take_over(claim, CHAIN, at=self.end, generation=1)
        self._writer = await ChainWriter.open(claim, CHAIN, state, 1)

    async def add(self, *steps: bytes) -> None:
        """Process a batch with these rows in its steps."""
        assert self._writer is not None
        before = self.end.size
        for data in steps:
            self._step += 1
            record = encode_output(Output(self._step, 0, 1, 0, HEAD, data))
            self._writer.append(Record(Op.OUTPUT, ints=record.ints, strings=record.strings))
        await self._writer.wait_synced()
        end = self._writer.end
        note = BatchNote(
            query="q",
            number=len(self.written),
            time_us=self._step,
            rows=len(steps),
            begins={0: {SINK: before}},
            ends={0: {SINK: end.size}},
        )
        logs = {0: {SINK: msgspec.to_builtins(end)}}
        answer = BatchProcessed(job=REGION, incarnation=self.incarnation, batch=note, line=0, logs=logs)
        self.written.append((answer, list(steps)))

    async def roll(self) -> None:
        assert self._writer is not None
        await self._writer.roll()

    async def close(self) -> None:
        if self._writer is not None:
            await self._writer.aclose()

    def reader(self) -> BatchOutputReader:
        return BatchOutputReader(self.store, REGION, 0, SINK)

    async def check(self, reader: BatchOutputReader, number: int = -1) -> int:
        """Check what a reader finds of a batch; return its requests."""
        answer, rows = self.written[number]
        before = self.requests
        assert [output.data async for output in reader.read(answer)] == rows
        return self.requests - before


async def test_a_kept_reader_finds_the_next_batch_without_reading_its_segment_again() -> None:
    log = Log()
    await log.begin(0)
    await log.add(b"a", b"b")
    kept = log.reader()
    new = await log.check(kept)
    for number in range(3):
        await log.add(b"c%d" % number)
        assert await log.check(kept) == 2 < new, "a list of the segments, and the bytes"
        assert await log.check(log.reader()) == new
    await log.close()


async def test_a_batch_has_no_output_in_the_log_of_a_sink_that_came_after_it() -> None:
    """Without an error Spark would commit the batch without rows."""
    log = Log()
    await log.begin(0)
    await log.add(b"one")
    (answer, _), reader = log.written[0], log.reader()
    later = msgspec.structs.replace(answer, uids={SINK: f"_0a-{SINK}"})
    with pytest.raises(GraphChangeRefusedError, match=f"had no sink {SINK!r}") as refusal:
        assert [output async for output in reader.read(later)]
    assert "start the program that made it" in refusal.value.remedy
    await log.close()


async def rolled_back(old: bytes) -> tuple[Log, BatchOutputReader, int]:
    """Return a log that was rolled back behind its second batch, which a reader has read, and written anew;
    and the size at which the second batch ended.
    """
    log = Log()
    await log.begin(0)
    await log.add(b"one")
    await log.add(old)
    kept, end = log.reader(), log.end.size
    await log.check(kept)
    await log.begin(1)
    await log.add(b"new")
    return log, kept, end


async def test_after_a_rollback_to_the_same_size_a_kept_reader_has_the_rows_of_the_new_incarnation() -> None:
    log, _, end = await rolled_back(b"x" * 200)
    missing = log.end.size - end
    await log.close()
    log, kept, end = await rolled_back(b"x" * (200 + missing))
    assert end == log.end.size, "the next batch begins where the kept reader ended on the old line"
    await log.add(b"two")
    await log.check(kept)
    await log.check(kept, 1)
    await log.close()


async def test_a_reader_whose_caller_stops_in_a_batch_reads_all_of_it_the_next_time() -> None:
    log = Log()
    await log.begin(0)
    await log.add(b"a")
    kept = log.reader()
    await log.check(kept)
    await log.add(b"b", b"c")
    reading = kept.read(log.written[-1][0])
    assert (await anext(reading)).data == b"b"
    await reading.aclose()
    await log.check(kept)
    await log.close()


EVENTS = st.one_of(
    st.tuples(st.just("batch"), st.lists(st.sampled_from([b"a", b"b", b"long" * 20]), max_size=3)),
    st.tuples(st.just("incarnation"), st.integers(0, 3)),
    st.tuples(st.just("segment"), st.just(0)),
    st.tuples(st.just("read"), st.integers(1, 3)),
)


@given(st.lists(EVENTS, max_size=12))
async def test_a_kept_reader_finds_what_was_written_whatever_became_of_the_log(
    events: list[tuple[str, Any]],
) -> None:
    log = Log()
    await log.begin(0)
    kept = log.reader()
    for event, value in events:
        if event == "batch":
            await log.add(*(row + b"%d" % (log.incarnation % 2) for row in value))
            await log.check(kept)
        elif event == "segment":
            await log.roll()
        elif event == "incarnation":
            await log.begin(max(len(log.written) - value, 0))
        elif value <= len(log.written):
            await log.check(kept, -value)
    await log.close()
