"""A base for sinks of your own that show each row once: say how rows are staged, and how they are shown.

    @dataclass(frozen=True)
    class JsonFiles(TwoPhaseSink):
        folder: str

        def open_output(self, context):
            return JsonOutput(Path(self.folder))

    class JsonOutput(TwoPhaseOutput):
        def stage(self, transaction, batch): ...    # where nobody looks, under this name
        def prepare(self, transaction): ...         # it outlives a crash from here on
        def commit(self, transaction): ...          # show it; a second time: nothing
        def staged(self): ...                       # names of what is staged and not shown
        def abort(self, transaction): ...           # away with it

docs/sources-and-sinks.md has it whole. Rules of this file: when which of these is called, one at a time,
and what a failure of it is told as. Names, and what is shown or left over, are `core/transactions.py`'s.
Whether yours does what it should: `dataflow.testing.sink_check.check_sink`.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import methodcaller
from typing import Any

import msgspec
import pyarrow as pa

from dataflow.core.transactions import Transactions
from dataflow.errors import SinkWriteError
from dataflow.operators.base import OperatorContext
from dataflow.sinks.base import SinkSpec, SinkWriter, owner_of
from dos_protocol.errors import CorruptDataError, DosError


class TwoPhaseOutput(ABC):
    """One worker's way to the place where rows go. Two threads call it, never both at once.

    A transaction is a name: letters, digits and `-`, at most 80, never used twice; names sort in the order
    in which they are shown. Several regions and workers may share a place. What any method raises resets
    the region, which then goes on from its last committed cut: `staged`, `abort` and `commit` come again.
    """

    @abstractmethod
    def stage(self, transaction: str, batch: pa.RecordBatch) -> None:
        """Take rows. No reader may see them yet; they may be lost in a crash."""

    @abstractmethod
    def prepare(self, transaction: str) -> None:
        """All rows of it are on stable storage when this returns, and reached by whoever opens this place
        on any machine where the worker may be started again. No more will come.
        """

    @abstractmethod
    def commit(self, transaction: str) -> None:
        """Show all rows of a prepared transaction. It comes again after a failure, perhaps from another
        process: if it was shown before, nothing happens. Raise if it is neither staged nor shown.
        """

    @abstractmethod
    def staged(self) -> Iterable[str]:
        """Names of what is staged here and not shown, prepared or not, by anybody."""

    @abstractmethod
    def abort(self, transaction: str) -> None:
        """Remove what is staged under that name; it will never be shown."""

    def close(self) -> None:  # noqa: B027 - most have nothing to let go of
        """Let go of files and connections. Nothing becomes durable or is shown by it."""


class TwoPhaseSink(SinkSpec):
    """The description of such a sink: immutable, and pickled on its way to the workers."""

    @abstractmethod
    def open_output(self, context: OperatorContext) -> TwoPhaseOutput:
        """This worker's way to the place."""

    def check_input(self, schema: pa.Schema) -> None:
        """Everything is taken; override it to raise SchemaError for columns that do not fit."""

    def open(self, context: OperatorContext) -> "TwoPhaseWriter":
        return TwoPhaseWriter(lambda: self.open_output(context), context)


class TwoPhaseWriter(SinkWriter):
    """Invariant: `_lock` is held by whoever calls the output, `_names` by whoever looks at the names:
    `sync` comes from another thread.
    """

    def __init__(self, open_output: Callable[[], TwoPhaseOutput], context: OperatorContext) -> None:
        owner = owner_of(context).digest
        self._open_output = open_output
        self._where = f"sink {context.operator!r}"
        self._transactions = Transactions(owner, context.worker, context.incarnation)
        self._output: TwoPhaseOutput | None = None
        self._lock = threading.Lock()
        self._names = threading.Lock()
        self._shown = 0

    def _call(self, what: str, function: Callable[[TwoPhaseOutput], None]) -> None:
        with self._lock:
            if self._output is None:
                raise SinkWriteError(f"{self._where} was closed before it could {what}")
            self._guarded(what, partial(function, self._output))

    def _guarded(self, what: str, function: Callable[[], None]) -> None:
        try:
            function()
        except DosError:
            raise
        except Exception as error:
            text = f"{self._where} cannot {what}: {type(error).__name__}: {error}"
            remedy = "see to the place where its rows go, then run the region again: it resumes"
            raise SinkWriteError(text, remedy=remedy) from error

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        if batch.num_rows:
            with self._names:
                name = self._transactions.for_rows()
            self._call(f"stage rows of {name}", methodcaller("stage", name, batch))
        return ()

    def prepare(self, cut: int) -> Any:
        with self._names:
            return self._transactions.prepare(cut)

    def sync(self) -> None:
        with self._names:
            names = self._transactions.to_make_durable()
        for name in names:
            self._call(f"prepare {name}", methodcaller("prepare", name))
            with self._names:
                self._transactions.durable(name)

    def publish(self, cut: int) -> None:
        with self._names:
            names = self._transactions.to_show(cut)
        for name in names:
            self._call(f"show {name}", methodcaller("commit", name))
            with self._names:
                self._transactions.shown(name)
            self._shown += 1

    def reset_to(self, prepared: Any | None) -> None:
        try:
            self._transactions.stand(msgspec.convert(prepared or [], list[str]))
        except (msgspec.ValidationError, ValueError) as error:
            raise CorruptDataError(
                self._where, 0, "names of its transactions in the cut", str(error)
            ) from error
        with self._lock:
            if self._output is None:
                self._guarded("open", self._connect)
        self._call("remove what was left over", self._clean_up)

    def _connect(self) -> None:
        self._output = self._open_output()

    def _clean_up(self, output: TwoPhaseOutput) -> None:
        for name in self._transactions.left_over(output.staged()):
            output.abort(name)

    def close(self) -> None:
        with self._lock:
            output, self._output = self._output, None
            if output is not None:
                output.close()

    def counters(self) -> dict[str, int]:
        return {"transactions_shown": self._shown}
