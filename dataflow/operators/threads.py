"""A user function on several threads: for functions that wait (a service, a disk) or let go of the
interpreter (numpy, Arrow, most models).

Rules of this file: it cuts batches and puts results together again; it calls no user function itself.

Theory. A batch is cut into slices, threads take slice after slice, and the results are given on in the order
of the rows, however the threads were scheduled: so a replay gives the same. `process` returns when its whole
batch is done. Nothing is under way in a thread between two calls, so a drain has nothing to wait for, and a
cut never lies between a row and what became of it ("their threads' work is theirs to drain").
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import pyarrow as pa

from dataflow import limits
from dataflow.operators.base import Operator, UserFault


class ThreadedOperator(Operator):
    """Runs a stateless operator on slices of each batch, on `threads` threads.

    The operator's `process` must be safe to call from several threads at once, as its user was told. Its
    fault is that of the first slice that has one, with the row counted from the beginning of the batch. After
    a fault, slices that were not begun are not; those under way are waited for.
    """

    def __init__(self, inner: Operator, *, name: str, threads: int) -> None:
        self._inner = inner
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"operator {name}")

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        rows = max(1, -(-batch.num_rows // (self._threads * limits.slices_per_thread)))
        begins = range(0, batch.num_rows, rows)
        process: Callable[[pa.RecordBatch], Sequence[pa.RecordBatch]] = self._inner.process
        futures = [self._pool.submit(process, batch.slice(begin, rows)) for begin in begins]
        made: list[pa.RecordBatch] = []
        try:
            for begin, future in zip(begins, futures, strict=True):
                made += _result(future, begin)
        except BaseException:
            for future in futures:
                future.cancel()
            wait(futures)
            raise
        return made

    def reset(self) -> None:
        self._inner.reset()

    def counters(self) -> dict[str, int]:
        return self._inner.counters()

    def close(self) -> None:
        self._pool.shutdown()
        self._inner.close()


def _result(future: "Future[Sequence[pa.RecordBatch]]", begin: int) -> Sequence[pa.RecordBatch]:
    try:
        return future.result()
    except UserFault as fault:
        if fault.row is not None:
            fault.row += begin
        raise
