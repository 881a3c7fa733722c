"""One journaled file per worker, in the store of the region: `part-w0000.tsv`, `part-w0001.tsv`, ...

The file is in a directory of the sink (`dataflow.state.operator_directory`): its changes are recorded in the
chain `files-SINK` of the worker's directory in the store. A restore rebuilds it on any host, as of the
checkpoint. So exactly once needs nothing else: the vote waits until the chain is synced, a reset leaves out
what came after the checkpoint, and the claim of the directory fences workers of earlier incarnations.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dataflow import limits
from dataflow.errors import OperatorFailure, SinkWriteError
from dataflow.operators.base import OperatorContext
from dataflow.sinks.base import SinkSpec, SinkWriter
from dataflow.sinks.files import part_name
from dataflow.sinks.tsv import check_columns, tsv_of
from dataflow.state.operator_directory import OperatorDirectory
from dos_protocol.errors import CorruptDataError


@dataclass(frozen=True, slots=True)
class JournaledFileSink(SinkSpec):
    """Writes tab-separated rows to one journaled file per worker, which is kept in the region's store and
    rebuilt on another host if its host is lost.

        JournaledFileSink()

    Worker 0 of region `shop` and sink `sold` writes part-w0000.tsv; `dos journal cat
    dos://h1,h2,h3/shop.w0000/files-sold part-w0000.tsv --at checkpoint:N` prints the rows up to a committed
    checkpoint. The file on the host is in the worker's scratch directory, not for reading. A reset rebuilds
    all of it, so it suits output of some GB. Raises SchemaError for columns that have no text form.
    """

    @property
    def keeps_files(self) -> bool:
        return True

    def detail(self) -> str:
        return "keeps files"

    def check_input(self, schema: pa.Schema) -> None:
        check_columns(schema)

    def open(self, context: OperatorContext) -> "JournaledFileWriter":
        return JournaledFileWriter(part_name(context.worker))


class JournaledFileWriter(SinkWriter):
    """Appends the rows of each step to one file. Receives its directory after `reset_to`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._directory: OperatorDirectory | None = None
        self._step: list[memoryview] = []
        self._size = 0

    def take_directory(self, directory: OperatorDirectory) -> None:
        path = directory.path / self._name
        size = path.stat().st_size if path.exists() else 0
        if size != self._size:
            raise CorruptDataError(
                f"journaled file {self._name!r}", size, f"{self._size} bytes, as in the checkpoint", f"{size}"
            )
        self._directory = directory

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        self._step.append(tsv_of(batch))
        return ()

    def end_step(self) -> Sequence[pa.RecordBatch]:
        texts, self._step = self._step, []
        if any(texts):
            self._change(lambda directory: self._append(directory, texts))
        return ()

    def _append(self, directory: OperatorDirectory, texts: Sequence[memoryview]) -> None:
        for text in texts:
            for begin in range(0, len(text), limits.journaled_append_bytes):
                piece = text[begin : begin + limits.journaled_append_bytes]
                directory.append(self._name, bytes(piece))
                self._size += len(piece)

    def _change(self, change: Callable[[OperatorDirectory], None]) -> None:
        """Change the directory in one method, as operators do: a checkpoint never falls into it."""
        directory = self._directory
        if directory is None:
            raise SinkWriteError(f"{self._name!r} was written before its directory was restored")
        directory.method = "end_step"
        try:
            change(directory)
        except OperatorFailure as error:
            raise SinkWriteError(f"journaled file {self._name!r}: {error}") from error
        finally:
            directory.method_over()

    def prepare(self, checkpoint: int) -> Any:
        del checkpoint
        return {"file": self._name, "bytes": self._size}

    def sync(self) -> None:
        """Do nothing: the vote waits for the chain of the directory."""

    def reset_to(self, prepared: Any | None) -> None:
        """Expect the file of the checkpoint in the directory that follows."""
        self._step = []
        self._size = 0 if prepared is None else int(prepared["bytes"])

    def close(self) -> None:
        if self._directory is not None:
            self._directory.close()
            self._directory = None

    def counters(self) -> dict[str, int]:
        return {"bytes_out": self._size}


__all__ = ["JournaledFileSink"]
