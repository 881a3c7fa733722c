"""Producers, and readers of merged outputs, for plain threads: scripts, notebooks, Spark tasks.

    with open_store("dos://h1,h2,h3") as store:
        with open_producer(store, "shop", "orders", "till-7", schema) as producer:
            producer.wait_recorded(producer.send(rows))

Each call runs on the trio thread of a `dos_client.blocking` store. Names, arguments and errors are those of
`dataflow.producing` and `dataflow.merged`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Self

import pyarrow as pa

from checkpoint import InputEnds
from checkpoint.chains import input_log
from dataflow import merged, producing
from dataflow.core.duplicate_filter import Missing
from dataflow.merged import MergedBatch, MergedOutput
from dataflow.merging.merge import StreamStatus
from dataflow.producing import EntryPoints, InputEnd, Producer, Rows
from dos_client.blocking import BlockingStore, Portal


class BlockingProducer:
    """A `Producer` with blocking methods."""

    def __init__(self, portal: Portal, producer: Producer) -> None:
        self._portal = portal
        self._producer = producer

    @property
    def last(self) -> InputEnd:
        return self._portal.call_sync(lambda: self._producer.last)

    def send(self, rows: Rows, *, batch: int | None = None, mark: bytes = b"") -> int:
        return self._portal.call(partial(self._producer.send, batch=batch, mark=mark), rows)

    def wait_recorded(self, batch: int | None = None) -> int:
        return self._portal.call(self._producer.wait_recorded, batch)


@contextmanager
def open_producer(
    store: BlockingStore | EntryPoints,
    application: str,
    handle: str,
    producer: str,
    schema: "str | pa.Schema",
) -> Iterator[BlockingProducer]:
    """Open a producer as `producing.open_producer` does, from a thread."""
    if isinstance(store, EntryPoints):
        opened = producing.open_producer(store, application, handle, producer, schema)
        with Portal() as portal, portal.hold(opened) as sending:
            yield BlockingProducer(portal, sending)
        return
    manager = producing.open_producer(store.store, application, handle, producer, schema)
    with store.portal.hold(manager) as held:
        yield BlockingProducer(store.portal, held)


def close_input(store: BlockingStore, application: str, handle: str) -> InputEnds:
    """Close an input as `close_input` of `checkpoint.chains.input_log` does, from a thread."""
    return store.portal.call(input_log.close_input, store.store, application, handle)


class BlockingMergedOutput:
    """A `MergedOutput` with blocking methods. An iterator of batches."""

    def __init__(self, portal: Portal, output: MergedOutput) -> None:
        self._portal = portal
        self._output = output

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> MergedBatch:
        batch = self._portal.call(self._next)
        if batch is None:
            raise StopIteration
        return batch

    async def _next(self) -> MergedBatch | None:
        return await anext(self._output, None)

    def acknowledge(self, upto: "bytes | int") -> None:
        self._portal.call_sync(self._output.acknowledge, upto)

    def status(self) -> list[StreamStatus]:
        return self._portal.call_sync(self._output.status)

    def missing(self) -> Missing | None:
        return self._portal.call_sync(self._output.missing)


@contextmanager
def read_merged(
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
) -> Iterator[BlockingMergedOutput]:
    """Open a merged output as `read_merged` of `dataflow.merged` does, from a thread."""
    opened = merged.read_merged(
        sites,
        region,
        sink,
        schema,
        time=time,
        after=after,
        compare=compare,
        on_missing=on_missing,
        on_difference=on_difference,
        consumer=consumer,
        consumer_retain_s=consumer_retain_s,
        token=token,
    )
    with Portal() as portal, portal.hold(opened) as output:
        yield BlockingMergedOutput(portal, output)
