"""The base class of user-defined sinks that make each row visible exactly once, by staging and committing.

A sink is a `TwoPhaseSink`, which opens a `TwoPhaseOutput` on each worker; docs/sources-and-sinks.md has an
example. This file decides when each method is called, one at a time, and converts exceptions.
`core/transactions.py` decides the names, and which transactions to commit or abort.
`dataflow.testing.sink_check.check_sink` tests an implementation.
"""

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import methodcaller
from typing import Any, ClassVar, Final

import msgspec
import pyarrow as pa

from dataflow.core.regions import Delivery
from dataflow.core.transactions import Transactions
from dataflow.errors import SinkOwnedError, SinkRefusedError, SinkWriteError, UserFault
from dataflow.operators.base import OperatorContext
from dataflow.sinks.base import SinkSpec, SinkWriter, owner_of, write_error
from dos_protocol.errors import CorruptDataError, DosError, text_of


class TwoPhaseOutput(ABC):
    """One worker's connection to the destination. Two threads call it, never both at once. A transaction is a
    name of letters, digits and `-`, at most 80 characters, never used twice; names sort in the order of their
    commits. Several regions and workers may share a destination.

    An exception from any method resets the region, which continues from its last committed checkpoint:
    `staged`, `abort` and `commit` are called again. One that a value or the code itself causes (ValueError,
    TypeError, KeyError, AttributeError, ArithmeticError and the like) stops the region at once; raise
    ConnectionError instead if another attempt may avoid it.
    """

    @abstractmethod
    def stage(self, transaction: str, batch: pa.RecordBatch) -> None:
        """Write rows. Readers must not see them yet; a crash may lose them."""

    @abstractmethod
    def prepare(self, transaction: str) -> Any:
        """Make all rows of the transaction durable, and reachable from any machine where the worker may be
        restarted. No rows follow. May return a *receipt*, as JSON: what a commit needs besides the name. The
        checkpoint stores it, and `restore` receives it.
        """

    def restore(self, transaction: str, receipt: Any) -> None:  # noqa: B027 - most have no receipts
        """Receive the receipt of a prepared transaction, after a failure and before its `commit`."""

    @abstractmethod
    def commit(self, transaction: str) -> None:
        """Make all rows of a prepared transaction visible; no effect if they are. May be called again after a
        failure, also from another process. Must raise if the transaction is neither staged nor visible.

        Must not refuse a row: `stage` or `prepare` refuses what the destination would. Otherwise the region
        has a checkpoint that nothing can make visible, and cannot run again.
        """

    @abstractmethod
    def staged(self) -> Iterable[str]:
        """Return the names of all transactions that are staged here and not visible, of any writer."""

    @abstractmethod
    def abort(self, transaction: str) -> None:
        """Delete what is staged under that name; it will never become visible."""

    def published(self, newest: str) -> Iterable[str]:
        """Return the names of this worker's transactions that are visible and sort after `newest` ("" for
        all), for a destination that can take rows back. Default: none. If there are any before the first
        checkpoint of a region, its start is refused.
        """
        del newest
        return ()

    def take_back(self, transaction: str) -> None:
        """Remove the rows of a transaction in `published`: the region was reset to a checkpoint before it."""
        raise NotImplementedError(f"{type(self).__name__} has no take_back for {transaction}")

    def close(self) -> None:  # noqa: B027 - most have nothing to release
        """Release files and connections. Makes nothing durable or visible."""


class TwoPhaseSink(SinkSpec):
    """The description of such a sink: immutable, and pickled when it is sent to the workers."""

    @abstractmethod
    def open_output(self, context: OperatorContext) -> TwoPhaseOutput:
        """Return this worker's connection to the destination."""

    takes_back: ClassVar[bool] = False
    """Whether its output has `published` and `take_back`."""

    def irrevocable(self, wanted: Delivery | None) -> str:
        del wanted
        return "" if self.takes_back else "the transactions of committed checkpoints stay"

    def check_input(self, schema: pa.Schema) -> None:
        """Accept any schema. Override it to raise SchemaError for columns that do not fit."""

    def open(self, context: OperatorContext) -> "TwoPhaseWriter":
        return TwoPhaseWriter(lambda: self.open_output(context), context)


_OF_ROWS: Final = (
    *(ValueError, TypeError, ArithmeticError, LookupError, AttributeError, NameError, AssertionError),
    *(NotImplementedError, MemoryError, RecursionError, pa.ArrowException),
)
"""Exceptions that rows or the code of the sink cause, not the destination: they stop the region."""


class _Vote(msgspec.Struct, frozen=True):
    """The transactions of one worker in a checkpoint."""

    pending: dict[str, Any]
    """Transaction -> its receipt, oldest first."""
    newest: str


_BEGINNING: Final = _Vote({}, "")


class TwoPhaseWriter(SinkWriter):
    """Runs a two-phase sink. `_lock` is held during calls of the output, `_names` for the names."""

    # Two locks, because `sync` runs on another thread, and may take long.
    def __init__(self, open_output: Callable[[], TwoPhaseOutput], context: OperatorContext) -> None:
        owner = owner_of(context).digest
        self._open_output = open_output
        self._label = f"sink {context.operator!r}"
        self._transactions = Transactions(owner, context.worker, context.incarnation)
        self._output: TwoPhaseOutput | None = None
        self._lock = threading.Lock()
        self._names = threading.Lock()
        self._receipts: dict[str, Any] = {}
        """Of pending transactions that are durable and have one."""
        self._published = 0
        self._failed = ""
        """Why rows were not staged or prepared. The output may have lost them: it is not called again."""

    def _call(self, action: str, function: Callable[[TwoPhaseOutput], None]) -> None:
        with self._lock:
            if self._output is None:
                raise SinkWriteError(f"{self._label} was closed before it could {action}")
            self._guarded(action, partial(function, self._output))

    def _guarded(self, action: str, function: Callable[[], None]) -> None:
        try:
            function()
        except (DosError, UserFault, *_OF_ROWS):
            raise
        except Exception as error:
            text = f"{self._label} cannot {action}: {text_of(error)}"
            if (kind := write_error(error)) is SinkRefusedError:
                raise SinkRefusedError(f"{text} (user id {os.geteuid()})") from error
            remedy = "repair the destination of its rows, then run the region again; it resumes"
            raise kind(text, remedy=remedy) from error

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        if batch.num_rows:
            with self._names:
                name = self._transactions.for_rows()
            self._call(f"stage rows of {name}", partial(self._once, methodcaller("stage", name, batch)))
        return ()

    def prepare(self, checkpoint: int) -> Any:
        with self._names:
            pending = self._transactions.prepare(checkpoint)
            newest = self._transactions.newest
            return msgspec.to_builtins(_Vote({name: self._receipts.get(name) for name in pending}, newest))

    def sync(self) -> None:
        with self._names:
            names = self._transactions.to_make_durable()
        for name in names:
            self._call(f"prepare {name}", partial(self._once, partial(self._prepare, name)))

    def _once(self, function: Callable[[TwoPhaseOutput], None], output: TwoPhaseOutput) -> None:
        """Call a function whose failure is final: a repeated call could succeed without the rows."""
        if self._failed:
            raise SinkWriteError(f"{self._label} failed before: {self._failed}")
        try:
            function(output)
        except Exception as error:
            self._failed = text_of(error)
            raise

    def _prepare(self, name: str, output: TwoPhaseOutput) -> None:
        receipt = output.prepare(name)
        with self._names:
            self._transactions.durable(name)
            if receipt is not None:
                self._receipts[name] = receipt

    def voted(self, prepared: Any) -> Any:
        vote = msgspec.convert(prepared, _Vote)
        with self._names:  # a transaction that was published meanwhile had its receipt in `prepare`
            pending = {name: self._receipts.get(name, known) for name, known in vote.pending.items()}
        return msgspec.to_builtins(_Vote(pending, vote.newest))

    def publish(self, checkpoint: int) -> None:
        with self._names:
            names = self._transactions.to_publish(checkpoint)
        for name in names:
            self._call(f"show {name}", methodcaller("commit", name))
            with self._names:  # after the commit: if it fails, later checkpoints must still name it
                self._transactions.published(name)
                self._receipts.pop(name, None)
            self._published += 1

    def reset_to(self, prepared: Any | None) -> None:
        try:
            vote = _BEGINNING if prepared is None else msgspec.convert(prepared, _Vote)
            self._transactions.restore(vote.pending, vote.newest)
        except (msgspec.ValidationError, ValueError) as error:
            raise CorruptDataError(
                self._label, 0, "names of its transactions in the checkpoint", str(error)
            ) from error
        with self._lock:
            if self._output is None:
                self._guarded("open", self._connect)
        self._failed = ""
        self._receipts = {name: receipt for name, receipt in vote.pending.items() if receipt is not None}
        for name, receipt in self._receipts.items():
            self._call(f"restore {name}", methodcaller("restore", name, receipt))
        # Once the names of the checkpoint are known: these are staged too, and an abort loses their rows.
        self._call("remove what was left over", self._clean_up)
        if prepared is None:
            self._call("begin", self._refuse_earlier_rows)
        else:
            self._call("take rows back", self._take_back)

    def take_all_back(self) -> None:
        self.reset_to(msgspec.to_builtins(_BEGINNING))  # None would refuse rows that are visible

    def _connect(self) -> None:
        self._output = self._open_output()

    def _clean_up(self, output: TwoPhaseOutput) -> None:
        for name in self._transactions.left_over(output.staged()):
            output.abort(name)

    def _refuse_earlier_rows(self, output: TwoPhaseOutput) -> None:
        """Raise SinkOwnedError if rows are visible though no checkpoint of the region was ever committed."""
        # They are of a run whose checkpoints were deleted, and would come again.
        for name in output.published(""):
            raise SinkOwnedError(
                f"{self._label} has visible rows of this worker ({name}), but the region has no checkpoint"
            )

    def _take_back(self, output: TwoPhaseOutput) -> None:
        # After the aborts: from here on, no worker of an earlier incarnation can publish anything.
        for name in self._transactions.to_take_back(output.published(self._transactions.newest)):
            output.take_back(name)

    def close(self) -> None:
        with self._lock:
            output, self._output = self._output, None
            if output is not None:
                output.close()

    def counters(self) -> dict[str, int]:
        return {"transactions_shown": self._published}
