"""Runs a user function on several threads: for functions that wait (a service, a disk) or release the GIL
(numpy, Arrow, most models).

This file divides batches and combines results; it does not call user functions.

Theory. A batch is divided into slices, threads process slice after slice, and the results are passed on in
the order of the rows, however the threads were scheduled. A replay therefore gives the same output. `process`
returns when the whole batch is done, so no work is in progress between two calls: a drain has nothing to wait
for, and a checkpoint never separates a row from its result ("their threads' work is theirs to drain").
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeAlias

import pyarrow as pa

from dataflow import limits
from dataflow.errors import UserFault
from dataflow.operators.base import Operator
from dataflow.values.python_rows import end_forked_child
from dos_monitoring import adopting_log_fields

_SliceOutput: TypeAlias = "tuple[Sequence[pa.RecordBatch], Mapping[str, Sequence[pa.RecordBatch]]]"
"""The output of a slice, and its side outputs."""


class ThreadedOperator(Operator):
    """Runs a stateless operator on slices of each batch, on `threads` threads.

    The operator's `process` must be safe to call from several threads at once; the documentation
    states this. `process` raises the fault of the first slice that has one, with the row counted from the
    beginning of the batch. After a fault, slices that have not started are cancelled, and running slices are
    waited for.
    """

    def __init__(self, inner: Operator, *, name: str, threads: int, ports: Sequence[str] = ()) -> None:
        """`ports` are the operator's side outputs. `take_side_output` must return what the calling thread has
        emitted there.
        """
        self._inner = inner
        self._name = name
        self._side_outputs: dict[str, list[pa.RecordBatch]] = {port: [] for port in ports}
        self._threads = threads
        self._pool = ThreadPoolExecutor(
            threads, thread_name_prefix=f"operator {name}", initializer=adopting_log_fields()
        )

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        rows = max(1, -(-batch.num_rows // (self._threads * limits.slices_per_thread)))
        begins = range(0, batch.num_rows, rows)
        futures = [self._pool.submit(self._slice, batch.slice(begin, rows)) for begin in begins]
        made: list[pa.RecordBatch] = []
        try:
            for begin, future in zip(begins, futures, strict=True):
                parts, side_outputs = _result(future, begin)
                made += parts
                for port, waiting in self._side_outputs.items():
                    waiting += side_outputs[port]
        except BaseException:
            for future in futures:
                future.cancel()
            wait(futures)
            raise
        return made

    def _slice(self, batch: pa.RecordBatch) -> _SliceOutput:
        process = os.getpid()
        made = self._inner.process(batch)
        if os.getpid() != process:
            end_forked_child(self._name)
        return made, {port: self._inner.take_side_output(port) for port in self._side_outputs}

    def take_side_output(self, port: str) -> Sequence[pa.RecordBatch]:
        made, self._side_outputs[port] = self._side_outputs[port], []
        return made

    def counters(self) -> dict[str, int]:
        return self._inner.counters()

    def close(self) -> None:
        self._pool.shutdown()
        self._inner.close()


def _result(future: "Future[_SliceOutput]", begin: int) -> _SliceOutput:
    try:
        return future.result()
    except UserFault as fault:
        if fault.row is not None:
            fault.row += begin
        raise
