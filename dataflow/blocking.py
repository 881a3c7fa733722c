"""Producers, and readers of merged outputs, for plain threads: scripts, notebooks, Spark tasks.

    with open_store("dos://h1,h2,h3") as store:
        with open_producer(store, "shop", "orders", "till-7", schema) as producer:
            producer.wait_recorded(producer.send(rows))

Each call runs on the trio thread of a `dos_client.blocking` store. Names, arguments and errors are those of
`dataflow.producing` and `dataflow.merged`.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from functools import wraps
from typing import Any, ParamSpec, Self, TypeVar

import pyarrow as pa

from checkpoint import InputEnds
from checkpoint.chains import input_log
from dataflow import merged, producing
from dataflow.merged import MergedBatch, MergedOutput
from dataflow.producing import EntryPoints, InputEnd, Producer
from dos_client.blocking import Attribute, BlockingStore, Facade, Portal, calls, calls_plain

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Facade[Any])


class BlockingProducer(Facade[Producer]):
    """A `Producer` with blocking methods."""

    last = Attribute[InputEnd](in_run=True)
    send = calls(Producer.send)
    wait_recorded = calls(Producer.wait_recorded)


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


class BlockingMergedOutput(Facade[MergedOutput]):
    """A `MergedOutput` with blocking methods. An iterator of batches."""

    acknowledge = calls_plain(MergedOutput.acknowledge)
    status = calls_plain(MergedOutput.status)
    missing = calls_plain(MergedOutput.missing)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> MergedBatch:
        batch = self.portal.call(self._next)
        if batch is None:
            raise StopIteration
        return batch

    async def _next(self) -> MergedBatch | None:
        return await anext(self.wrapped, None)


def _held(
    opens: Callable[P, AbstractAsyncContextManager[T]], facade: Callable[[Portal, T], F]
) -> Callable[P, AbstractContextManager[F]]:
    @wraps(opens)
    @contextmanager
    def opened(*args: P.args, **kwargs: P.kwargs) -> Iterator[F]:
        with Portal() as portal, portal.hold(opens(*args, **kwargs)) as held:
            yield facade(portal, held)

    return opened


read_merged = _held(merged.read_merged, BlockingMergedOutput)
