"""Read the output of a region that has replicas at several sites, in an application outside of any region.

    sites = {"purdue": "dos://p1,p2,p3", "osu": "dos://o1,o2,o3"}
    async with read_merged(sites, "board.joined", "out", "at timestamp, load double", after=token) as merged:
        async for batch in merged:
            ...  # commit the effects of batch.table together with batch.token

Each row comes once, from the replica that is first. A reader that continues `after` a token gets what
follows, exactly once. `MergedLogSource` is the same for a region.
"""

import struct
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, Self

import pyarrow as pa

from dataflow.core.duplicate_filter import FilterState, Missing, decode_filter, encode_filter
from dataflow.errors import TokenMismatchError
from dataflow.merging.merge import Merge, MergeOrder, ReplicaPlace, ReplicaStream, StreamStatus, merge_order
from dataflow.schema import schema_text
from dos_client import Store, open_store
from dos_client.tasks import background_tasks
from dos_protocol.digests import digest64
from dos_protocol.errors import CorruptDataError

_OF: Final = struct.Struct(">Q")
"""The first bytes of a token: the digest of the region, the sink and the columns."""
_WHERE: Final = "the token of a merged output"


@dataclass(frozen=True, slots=True)
class MergedBatch:
    """Rows that were passed (table: None without), and what to commit with them. mark_us: every later row has
    a later time, in microseconds since 1970; 2^63 - 1 after the last row, -2^63 before anything is known.
    token: where a reader continues; about 40 bytes, and 32 for each different row above the mark.
    """

    table: pa.Table | None
    mark_us: int
    token: bytes


class MergedOutput:
    """The merged output of replicas, as an iterator of batches. `read_merged` opens it; used by one task."""

    def __init__(self, merge: Merge, order: MergeOrder) -> None:
        self._merge = merge
        self._of = _digest_of(order)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> MergedBatch:
        """Wait for rows or a higher mark. Ends when all rows were returned and no replica has more. Raises
        ReplicasDifferError, ConsumerTakenError if another reader registered under the name of this one, and
        the reason if no stream can be read because of what it contains.
        """
        if self._merge.is_over:
            raise StopAsyncIteration
        table, mark = await self._merge.next()
        return MergedBatch(table, mark, _OF.pack(self._of) + encode_filter(self._merge.state()))

    def acknowledge(self, upto: "bytes | int") -> None:
        """Note that everything up to the batch with this token, or up to this mark, is committed. With a
        `consumer`, what no reader needs can then be deleted. Raises TokenMismatchError, CorruptDataError.
        """
        self._merge.recorded(_state_after(upto, self._of).mark)

    async def wait_caught_up(self) -> int:
        """Wait until each replica was read to its present end, or has a reason in its status, and at least
        one was read; return the mark. Another task must take the batches meanwhile. Raises as the iteration.
        """
        return await self._merge.wait_caught_up()

    def status(self) -> list[StreamStatus]:
        """Return the status of each stream, in the order of sites."""
        return self._merge.observe()

    def missing(self) -> Missing | None:
        """Return the range of time of which no stream that is read has all rows; None if there is none."""
        return self._merge.missing()


@asynccontextmanager
async def read_merged(
    sites: Mapping[str, str],
    region: str,
    sink: str,
    schema: "str | pa.Schema",
    *,
    time: "str | Sequence[str]" = "at",
    after: "bytes | int | None" = None,
    compare: "str | int" = 16,
    on_missing: str = "wait",
    on_difference: str = "stop",
    consumer: str = "",
    consumer_retain_s: float = 0,
    token: bytes = b"",
) -> AsyncGenerator[MergedOutput]:
    """Open the output of the `LogSink` named `sink` of a region that has a replica at each site.

    sites: site -> URL of its store. schema, time, compare, on_missing, on_difference: as for
    `MergedLogSource`. after: the token of the last batch that was committed, or a mark, if all rows up to it
    were committed and none after it; None: from the beginning. consumer: a name of this reader, registered at
    the sites: what lies above the last acknowledged token is not deleted, and for consumer_retain_s nor is
    what was acknowledged, in case that the reader continues after an older token. If another reader of that
    name registers, this one ends with ConsumerTakenError. token: of the servers.

    A replica that cannot be reached delays nothing; its status has the reason. Raises BadNameError,
    SchemaError, BadUrlError, TokenMismatchError if `after` is of another output, CorruptDataError if it is
    damaged.
    """
    order = merge_order(
        sites,
        region,
        sink,
        schema,
        time=time,
        compare=compare,
        on_missing=on_missing,
        on_difference=on_difference,
    )
    client = consumer or f"merged output of {region}"

    def connect(place: ReplicaPlace) -> AbstractAsyncContextManager[Store]:
        return open_store(place.url, token=token, client=client)

    async with open_merged(
        order, connect, after=after, consumer=consumer, consumer_retain_s=consumer_retain_s
    ) as merged:
        yield merged


@asynccontextmanager
async def open_merged(
    order: MergeOrder,
    connect: Callable[[ReplicaPlace], AbstractAsyncContextManager[Store]],
    *,
    after: "bytes | int | None" = None,
    consumer: str = "",
    consumer_retain_s: float = 0,
) -> AsyncGenerator[MergedOutput]:
    """Open what `read_merged` opens. connect: opens the store of a replica."""
    state = None if after is None else _state_after(after, _digest_of(order))
    merge = Merge(order, state=state)
    async with background_tasks() as nursery:
        for place in order.places:
            stream = ReplicaStream(
                place, merge, partial(connect, place), consumer=consumer, retain_s=consumer_retain_s
            )
            nursery.start_soon(stream.run)
        yield MergedOutput(merge, order)


def _digest_of(order: MergeOrder) -> int:
    """Return what a token is of. The sites may change between two readers."""
    _, _, region, sink = order.places[0]
    return digest64("\n".join([region, sink, schema_text(order.schema), *order.time]).encode())


def _state_after(token: "bytes | int", of: int) -> FilterState:
    if isinstance(token, int):
        return FilterState.at(token)
    if len(token) < _OF.size:
        raise CorruptDataError(_WHERE, 0, f"at least {_OF.size} bytes", f"{len(token)} bytes")
    state = decode_filter(token[_OF.size :], where=_WHERE)
    if _OF.unpack_from(token)[0] != of:
        raise TokenMismatchError("the token is of another region, sink, schema or time column")
    return state
