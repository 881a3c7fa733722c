"""Record what a merge passes, in the store of the region that reads it, before the region does.

The record is an input handle of the region's own, with one producer and its marks. So the region reads it as
any input: a replay finds the same rows between the same marks and asks no other site. The claim of the
producer's chain fences an earlier process that merges for the same source.

The state of the filter follows from the chain: M is the newest mark, and what was passed above M are the rows
above M in the chain. Each batch notes from which position on these are (`Note`).
"""

import struct
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import trio

from checkpoint import InputPiece, OriginMark, input_register
from checkpoint.chains.consumer_register import change_register, settled_register
from checkpoint.chains.input_log import InputFollower, InputLog, close_input, last_recorded
from checkpoint.chains.manifest_log import StoreHost
from checkpoint.errors import InputClosedError
from checkpoint.key_hash import hash_rows
from dataflow import limits
from dataflow.core.duplicate_filter import BEFORE_ALL, DuplicateFilter, FilterState
from dataflow.core.event_time import END
from dataflow.merging.merge import BUCKET_US, Merge, MergeOrder, ReplicaPlace, ReplicaStream
from dataflow.operators.event_time import latest_times
from dataflow.producing import parts_of
from dos_client import Store
from dos_protocol.errors import CorruptDataError

PRODUCER: Final = "merged"
_NOTE: Final = struct.Struct(">BqQQ")
_VERSION: Final = 1
_BEGUN: Final = 0
"""The least mark that is recorded: marks are not negative. Before it, the filter keeps every row."""
_ONLY: Final = "only"


class Note(NamedTuple):
    """M before a batch, and the position, with its digest, after which rows above M may be."""

    mark: int
    at: int
    digest: int


def encode_note(note: Note) -> bytes:
    return _NOTE.pack(_VERSION, *note)


def decode_note(data: bytes, *, where: str) -> Note:
    """Return the note in the producer's mark of a batch. Raises CorruptDataError."""
    if len(data) != _NOTE.size or data[0] != _VERSION:
        raise CorruptDataError(
            where, 0, f"the note of a merged batch, version {_VERSION}", data.hex() or "nothing"
        )
    _, mark, at, digest = _NOTE.unpack(data)
    return Note(mark, at, digest)


class MergeRecorder:
    """Merges the replicas for one source into the input handle `handle` of `region` in `store`. Run `run` in
    a task. consumer: the name under which it is registered in the stores of the replicas. connect: opens the
    store of a replica. report: gets the status of the streams as counters, every second.
    """

    def __init__(
        self,
        store: Store,
        region: str,
        handle: str,
        order: MergeOrder,
        *,
        consumer: str,
        connect: Callable[[ReplicaPlace], AbstractAsyncContextManager[Store]],
        report: Callable[[Mapping[str, int]], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._region, self._handle = region, handle
        self._order = order
        self._consumer, self._connect = consumer, connect
        self._report = report
        self._above: deque[tuple[int, int, int]] = deque()
        """(latest time so far, end, digest at the end) of each batch that may have rows above M."""
        self._high = BEFORE_ALL
        self._low = Note(BEFORE_ALL, 0, 0)
        self.log: InputLog | None = None
        self._noted_at = 0
        """The position in the note of the last batch."""
        self._register = input_register(region, handle)
        self._difference = ""

    async def run(self) -> None:
        """Record until all streams are at their end; then close the handle. Raises ReplicasDifferError,
        FencedError if another process merges for this source, and what appending to a chain raises.
        """
        # That replicas differ is noted in the register of the handle before the region ends: a merge that is
        # started again must not pass rows of one program and contradicting rows of another.
        try:
            log = await InputLog.open(self._store, self._region, self._handle, PRODUCER)
        except InputClosedError:
            return  # all was recorded
        async with log:
            self.log = log
            self._difference = (await settled_register(self._store, self._register)).difference
            order = replace(self._order, compare=1) if self._difference else self._order
            state = await self._restored(log)
            self.merge = merge = Merge(order, state=state, waits_for_all=bool(self._difference))
            async with trio.open_nursery() as nursery:
                for place in self._order.places:
                    connect = partial(self._connect, place)
                    stream = ReplicaStream(place, merge, connect, consumer=self._consumer)
                    nursery.start_soon(stream.run)
                nursery.start_soon(self._report_all, merge)
                await self._record_all(log, merge)
                nursery.cancel_scope.cancel()
        await close_input(self._store, self._region, self._handle)

    async def _record_all(self, log: InputLog, merge: Merge) -> None:
        while not merge.is_over:
            try:
                rows, mark = await merge.next()
            finally:
                if merge.difference is not None and str(merge.difference) != self._difference:
                    await self._note_difference(str(merge.difference))
            if rows is not None:
                await self._append(log, rows)
            self._rise(mark)
            if _BEGUN <= mark < END and (log.origin_mark is None or mark > log.origin_mark.mark):
                await log.append_mark(OriginMark(mark, 1, 1, max(self._high, 0)))
            await log.all_synced()
            log.keeps_from = self._noted_at  # what the next process reads; the note of before needed more
            merge.recorded(mark)

    async def _note_difference(self, text: str) -> None:
        await change_register(
            StoreHost(self._store),
            self._register,
            lambda register: msgspec.structs.replace(register, difference=text),
        )
        self._difference = text

    async def _report_all(self, merge: Merge) -> None:
        while True:
            now, mark = trio.current_time(), merge.mark
            counters = {} if mark == BEFORE_ALL else {"mark_us": mark}
            for one in merge.observe():
                counters |= one.counters(now)
            if (missing := merge.missing()) is not None:
                counters["missing_up_to_us"] = missing.upto
            self._report(counters)
            await trio.sleep(limits.replica_report_s)

    async def _append(self, log: InputLog, rows: pa.Table) -> None:
        parts = parts_of(rows, self._order.schema)
        await log.append(parts, number=log.last + 1, mark=encode_note(self._low))
        self._noted_at = self._low.at
        self._note(rows, log.last_end, log.last_digest)

    def _note(self, rows: pa.Table, end: int, digest: int) -> None:
        for batch in rows.to_batches():
            if batch.num_rows:
                self._high = max(self._high, int(latest_times(batch, self._order.time).max()))
        self._above.append((self._high, end, digest))

    def _rise(self, mark: int) -> None:
        at, digest = self._low.at, self._low.digest
        while self._above and self._above[0][0] <= mark:
            _, at, digest = self._above.popleft()
        self._low = Note(mark, at, digest)

    async def _restored(self, log: InputLog) -> FilterState | None:
        """Return the state of the filter at the end of the chain; None if there is nothing in it."""
        where = f"input {self._handle!r} of {self._region!r}"
        if log.last:
            self._low = decode_note(log.last_mark, where=where)
        if log.origin_mark is not None:
            self._low = self._low._replace(mark=max(self._low.mark, log.origin_mark.mark))
        self._noted_at = log.keeps_from = self._low.at
        if not log.last and log.origin_mark is None:
            return None
        passed = DuplicateFilter(BUCKET_US, FilterState.at(self._low.mark))
        passed.join(_ONLY, [_ONLY])
        follower = InputFollower(
            self._store, self._region, self._handle, PRODUCER, at=self._low.at, digest=self._low.digest
        )
        async with aclosing(follower.poll()) as pieces:
            async for piece in pieces:
                if piece.mark is None:
                    self._fold(passed, piece)
        follower.close()
        self._rise(self._low.mark)
        return passed.state()

    def _fold(self, passed: DuplicateFilter, piece: InputPiece) -> None:
        with pa.ipc.open_stream(piece.data) as reader:
            table = reader.read_all()
        self._note(table, piece.end, piece.digest)
        for batch in table.to_batches():
            if batch.num_rows:
                passed.take(_ONLY, hash_rows(batch.columns), latest_times(batch, self._order.time))


async def passed_mark(store: Store, region: str, handle: str) -> int:
    """Return the mark up to which all rows are recorded, BEFORE_ALL if none. Raises as reading a chain."""
    newest = (await last_recorded(store, region, handle, PRODUCER)).newest_mark
    return BEFORE_ALL if newest is None else newest.mark
