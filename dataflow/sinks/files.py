"""One file per worker, to which the rows of each step are appended: `part-w0000.tsv`, `part-w0001.tsv`, ...

This file decides which bytes are written at which position. `tsv.py` converts rows to text, `part_file.py`
accesses the file.

Exactly once by truncation: a checkpoint contains the size of the file and the prefix digest of its content,
which are durable before the worker votes. A reset truncates the file to that size. What a reader sees up to
the last committed checkpoint is therefore what a run without failures would have written; what follows may
disappear and be written again. Bytes that are *missing* below the checkpoint's size are an error, because
this sink cannot write them again. So are bytes that differ, as far as a reset reads them: the last 64 KiB or
more before that size, or with `verify="whole"` all of them (`core/file_digest.py`). Either error ends the
region, unless a person has accepted the loss (`AcceptedLoss`): then the part begins anew, as an empty file.

In a region with another delivery guarantee, rows after the checkpoint remain, because they were visible.

Each part stores the last incarnation that wrote it, and an earlier incarnation may not truncate it: a worker
left over from an earlier incarnation may acquire the lock long after a later one has committed more.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pyarrow as pa

from dataflow import limits
from dataflow.core.delivery import Delivery
from dataflow.core.file_digest import FileDigest, Verify, check_verify, resumed
from dataflow.errors import DeliveryError, OutputLostError, SinkFencedError, SinkWriteError
from dataflow.operators.base import OperatorContext
from dataflow.sinks.base import OutputOwner, SinkSpec, SinkWriter, owner_of
from dataflow.sinks.part_file import (
    AcceptedLoss,
    PartFile,
    PartPort,
    check_accepted,
    check_owner,
    part_files,
    refuse_url,
)
from dataflow.sinks.tsv import check_columns, tsv_of
from dos_protocol.digests import ResumePoint
from dos_protocol.errors import CorruptDataError


class _Prepared(msgspec.Struct, frozen=True):
    """The state of one part in a checkpoint."""

    file: str
    size: int
    digest: int
    resume: ResumePoint | msgspec.UnsetType = msgspec.UNSET
    """Where the digest can be resumed. Checkpoints of older versions have none."""


@dataclass(frozen=True, slots=True, init=False)
class FileSink(SinkSpec):
    """Writes tab-separated rows to one file per worker in `directory`, which is created if it does not exist.

        FileSink("/data/counts")

    local: True confirms that a run on a cluster may use this path: either all hosts share the directory, or
    the files may be lost with their host. accept_lost_output: the number of a checkpoint. If the output up to
    it is missing on the host of a worker, the region continues without it; 0 refuses that. truncate_on_reset:
    False is for tests only: a reset then leaves
    the rows after the checkpoint, so rows appear twice. Regions with another delivery guarantee than
    exactly-once also leave them. verify: how much of the files a reset verifies, "tail" (the last 64 KiB
    before the checkpoint, in the same time for any size) or "whole" (everything).
    """

    directory: str
    local: bool
    truncate_on_reset: bool
    verify: Verify
    accept_lost_output: int

    def __init__(
        self,
        directory: "str | os.PathLike[str]",
        *,
        local: bool = False,
        truncate_on_reset: bool = True,
        verify: Verify = "tail",
        accept_lost_output: int = 0,
    ) -> None:
        refuse_url("FileSink", directory)
        check_verify(verify)
        check_accepted(accept_lost_output)
        object.__setattr__(self, "directory", os.path.abspath(directory))  # noqa: PTH100 - created on workers
        object.__setattr__(self, "local", local)
        object.__setattr__(self, "truncate_on_reset", truncate_on_reset)
        object.__setattr__(self, "verify", verify)
        object.__setattr__(self, "accept_lost_output", accept_lost_output)

    def host_path(self) -> str:
        return "" if self.local else self.directory

    def check_input(self, schema: pa.Schema) -> None:
        check_columns(schema)

    def check_place(self, owner: OutputOwner) -> None:
        """Raise SinkOwnedError if another sink or region owns the directory, because a reset truncates its
        files.
        """
        directory = Path(self.directory)
        check_owner(directory, msgspec.json.encode(owner), partial(part_files, directory))

    def delivers(self, wanted: Delivery | None) -> Delivery:
        """Return what is wanted. Raises DeliveryError for exactly-once if resets do not truncate."""
        if self.truncate_on_reset:
            return wanted or "exactly-once"
        if wanted == "exactly-once":
            text = "with truncate_on_reset=False leaves rows in its files that are written again"
            raise DeliveryError(text, remedy='omit that, or set consistent(delivery="at-least-once")')
        return wanted or "at-least-once"

    def open(self, context: OperatorContext) -> "FileWriter":
        part = PartFile(self.directory, part_name(context.worker), context.waits)
        truncate = self.delivers(context.delivery) == "exactly-once"
        accepted = AcceptedLoss(self.accept_lost_output, context.checkpoint)
        return FileWriter(context, part, truncate=truncate, verify=self.verify, accepted=accepted)


def part_name(worker: int) -> str:
    """Return the name of one worker's file."""
    return f"part-w{worker:04d}.tsv"


class FileWriter(SinkWriter):
    """Writes one part. Invariant while open: `_digest.size` is the size of the file and the position of the
    next byte.
    """

    may_repeat: ClassVar[bool] = True

    def __init__(
        self,
        context: OperatorContext,
        part: PartPort,
        *,
        truncate: bool = True,
        verify: Verify = "tail",
        accepted: AcceptedLoss | None = None,
    ) -> None:
        self._accepted = accepted or AcceptedLoss(0, context.checkpoint)
        self._truncate = truncate
        self._verify = verify
        self._part = part
        self._incarnation = context.incarnation
        self._owner = owner_of(context)
        self._digest = FileDigest()
        self._step: list[memoryview] = []

    # --- Steps ----------------------------------------------------------------------------------------

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        self._step.append(tsv_of(batch))
        return ()

    def end_step(self) -> Sequence[pa.RecordBatch]:
        texts, self._step = self._step, []
        for text in texts:
            self._write(text)
        return ()

    def _write(self, text: memoryview) -> None:
        at = self._digest.size
        rest = text
        try:
            while rest:
                count = self._part.write(at, rest)
                at, rest = at + count, rest[count:]
        except OSError as error:
            raise SinkWriteError(f"output {self._part.full_path!r} at byte {at}: {error.strerror}") from error
        self._digest.update(text)

    def sync(self) -> None:
        try:
            self._part.sync()
        except OSError as error:
            text = f"output {self._part.full_path!r} cannot be synced: {error.strerror}"
            raise SinkWriteError(text) from error

    def prepare(self, checkpoint: int) -> Any:
        del checkpoint
        digest = self._digest
        prepared = _Prepared(self._part.name, digest.size, digest.value, digest.resume)
        return msgspec.json.decode(msgspec.json.encode(prepared))  # lists, as it returns from the manifest

    # --- Reset ----------------------------------------------------------------------------------------

    def reset_to(self, prepared: Any | None) -> None:
        self._step = []
        part = self._part
        to = _Prepared(part.name, 0, 0) if prepared is None else msgspec.convert(prepared, _Prepared)
        if to.file != part.name:
            raise CorruptDataError(
                part.full_path, 0, f"output of {to.file!r} in the checkpoint", f"{part.name!r}"
            )
        try:
            part.open(msgspec.json.encode(self._owner))
            self._fence()  # before truncation: a left-over worker must not cut off newer rows
            try:
                self._truncate_to(to)
            except OutputLostError as error:
                self._accepted.take(error)
                part.set_aside(self._accepted.checkpoint)
                self._digest = FileDigest()
        except OSError as error:
            raise SinkWriteError(
                f"output {part.full_path!r} cannot be opened or truncated: {error.strerror}"
            ) from error

    def _fence(self) -> None:
        """Record this incarnation durably as the last writer, before anything in the part changes. Raises
        SinkFencedError if a later incarnation has written it.
        """
        last_writer = self._part.incarnation()
        if last_writer > self._incarnation:
            self._part.close()
            raise SinkFencedError(
                f"output {self._part.full_path!r} was written by incarnation {last_writer} of the region; "
                f"this worker is of {self._incarnation}"
            )
        if last_writer < self._incarnation:
            self._part.set_incarnation(self._incarnation)

    def _truncate_to(self, to: _Prepared) -> None:
        part = self._part
        size = part.size()
        if size < to.size:
            raise OutputLostError(
                part.full_path, size, f"at least {to.size} bytes, as in the checkpoint", f"{size}"
            )
        keep = to.size if self._truncate else self._end_of_rows(to.size, size)
        self._digest = self._verified(to)
        self._digest.read_to(keep, part.read)
        part.checkpoint(keep)

    def _verified(self, to: _Prepared) -> FileDigest:
        """Return the digest of the part at the size in the checkpoint. Raises OutputLostError if the bytes
        that it reads for that differ.
        """
        digest = resumed(to.resume, whole=self._verify == "whole")
        verified_from = digest.size
        digest.read_to(to.size, self._part.read)
        if digest.value != to.digest:
            raise OutputLostError(
                self._part.full_path,
                to.size,
                f"content with digest {to.digest:016x} up to there, as in the checkpoint",
                f"{digest.value:016x}; verified from byte {verified_from}",
            )
        return digest

    def _end_of_rows(self, begin: int, end: int) -> int:
        """Return the end of the last complete row; a worker may have died in the middle of a row."""
        end_of_row = at = begin
        while at < end:
            block = self._part.read(at, min(limits.verify_read_bytes, end - at))
            if not block:
                break
            if b"\n" in block:
                end_of_row = at + block.rindex(b"\n") + 1
            at += len(block)
        return end_of_row

    def close(self) -> None:
        self._part.close()

    def counters(self) -> dict[str, int]:
        return {"bytes_out": self._digest.size}
