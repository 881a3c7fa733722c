"""Journaled files, in the store of the region: `part-w0000.tsv` of worker 0, `part-w0001.tsv`, ...

They are in a directory of the sink (`dataflow.state.operator_directory`), recorded in the chain `files-SINK`.
Exactly once needs nothing else: the vote waits until the chain is synced, a reset leaves out what came after
the checkpoint, and the claim of the worker's directory fences earlier incarnations.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import pyarrow as pa

from dataflow import limits
from dataflow.errors import OperatorFailure, SchemaError, SinkWriteError
from dataflow.operators.base import OperatorContext
from dataflow.sinks.base import SinkSpec, SinkWriter
from dataflow.sinks.files import check_text_columns, part_name, tsv_of
from dataflow.state.operator_directory import OperatorDirectory
from dos_protocol.errors import CorruptDataError

_FILES_OF_MAX_BYTES: Final = 8
"""With `max_bytes`, a file is closed when it has this part of it."""


@dataclass(frozen=True, slots=True)
class JournaledFileSink(SinkSpec):
    """Writes tab-separated rows to one journaled file per worker, which is kept in the region's store and
    rebuilt on another host if its host is lost.

        JournaledFileSink(max_bytes=1_000_000_000)

    Worker 0 of region `shop` and sink `sold` writes part-w0000.tsv; `dos journal cat
    dos://h1,h2,h3/shop.w0000/files-sold part-w0000.tsv --at checkpoint:N` prints the rows up to a committed
    checkpoint. The file on the host is not for reading. A reset rebuilds all of it, so it suits some GB.
    max_bytes: of each worker, keep the newest rows, about this many bytes, in a sequence of files
    (part-w0000.000001.tsv, ...), each an eighth of it; the oldest is deleted, read or not. None: one file,
    which keeps everything. Raises SchemaError for columns that have no text form.
    """

    max_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.max_bytes is not None and self.max_bytes < 1:
            raise SchemaError(f"max_bytes must be above 0, got {self.max_bytes}")

    @property
    def leaves_rows(self) -> bool:
        return False  # they are in the store

    @property
    def keeps_files(self) -> bool:
        return True

    @property
    def unchecked_place(self) -> str:
        return ""  # its destination belongs to the region

    def detail(self) -> str:
        return "JournaledFileSink"

    def check_input(self, schema: pa.Schema) -> None:
        check_text_columns(schema)

    def open(self, context: OperatorContext) -> "JournaledFileWriter":
        return JournaledFileWriter(part_name(context.worker), self.max_bytes)


class JournaledFileWriter(SinkWriter):
    """Appends the rows of each step to the newest file. Receives its directory after `reset_to`."""

    may_repeat: ClassVar[bool] = True

    def __init__(self, first: str, bytes_max: int | None = None) -> None:
        self._first, self._bytes_max = first, bytes_max
        self._directory: OperatorDirectory | None = None
        self._step: list[memoryview] = []
        self._sizes: dict[int, int] = {}
        """Of each file, by its number, oldest first."""
        self._written = 0
        """Bytes, those that were deleted included."""
        self._expected = (first, 0)
        """The newest file of the checkpoint, and its size."""

    def take_directory(self, directory: OperatorDirectory) -> None:
        numbers = {path.name: self._number_of(path.name) for path in directory.path.iterdir()}
        found = {number: name for name, number in numbers.items() if number is not None}
        self._sizes = {number: (directory.path / found[number]).stat().st_size for number in sorted(found)}
        name, expected = self._expected
        number, size = self._newest
        newest = self._name(number)
        if (newest, size) != (name, expected):
            raise CorruptDataError(
                f"journaled file {name!r}",
                size,
                f"{expected} bytes, as in the checkpoint",
                f"{size} bytes in the newest file, {newest!r}",
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
        number, size = self._newest
        if self._bytes_max is not None and size >= self._bytes_max / _FILES_OF_MAX_BYTES:
            number += 1
        for text in texts:
            for begin in range(0, len(text), limits.journaled_append_bytes):
                piece = text[begin : begin + limits.journaled_append_bytes]
                directory.append(self._name(number), bytes(piece))
                self._sizes[number] = self._sizes.get(number, 0) + len(piece)
                self._written += len(piece)
        if self._bytes_max is not None:
            while len(self._sizes) > 1 and sum(self._sizes.values()) > self._bytes_max:
                oldest = min(self._sizes)
                directory.remove(self._name(oldest))
                del self._sizes[oldest]

    @property
    def _newest(self) -> tuple[int, int]:
        """The number and the size of the newest file; before the first row, of the first one."""
        return max(self._sizes.items(), default=(0, 0))

    def _name(self, number: int) -> str:
        """Return the name of a file. The first has the one without `max_bytes`, which may be added later."""
        stem, dot, suffix = self._first.rpartition(".")
        return f"{stem}.{number:06d}{dot}{suffix}" if number else self._first

    def _number_of(self, name: str) -> int | None:
        found = re.search(r"\.(\d{6,})\.", name)
        number = int(found[1]) if found else 0
        return number if name == self._name(number) else None

    def _change(self, change: Callable[[OperatorDirectory], None]) -> None:
        """Change the directory in one method, as operators do: a checkpoint never falls into it."""
        directory = self._directory
        if directory is None:
            raise SinkWriteError(f"{self._first!r} was written before its directory was restored")
        directory.method = "end_step"
        try:
            change(directory)
        except OperatorFailure as error:
            raise SinkWriteError(f"journaled file {self._first!r}: {error}") from error
        finally:
            directory.method_over()

    def prepare(self, checkpoint: int) -> Any:
        del checkpoint
        number, size = self._newest
        return {"file": self._name(number), "bytes": size, "written": self._written}

    def sync(self) -> None:
        """Do nothing: the vote waits for the chain of the directory."""

    def reset_to(self, prepared: Any | None) -> None:
        """Expect the files of the checkpoint in the directory that follows."""
        self._step = []
        self._expected = (self._first, 0) if prepared is None else (prepared["file"], int(prepared["bytes"]))
        self._written = 0 if prepared is None else int(prepared["written"])

    def close(self) -> None:
        if self._directory is not None:
            self._directory.close()
            self._directory = None

    def counters(self) -> dict[str, int]:
        return {"bytes_out": self._written}


__all__ = ["JournaledFileSink"]
