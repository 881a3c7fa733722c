"""Text files as a source: one row per line, column `line`. A split is one file in one pass.

This file decides which bytes a step reads and verifies that they are unchanged.

Splits are assigned to workers by index: file f of pass p belongs to worker (f + p) mod workers, so that
passes balance out files of unequal size. A worker starts its splits in order. Without event time it reads one
split after the other; if event time is taken from them, it starts all of them and continues with the one with
the lowest watermark (`RoundRobin`).

A checkpoint contains:

1. the number of splits done without a gap from the first on, with a digest of their names;
2. the ranges of splits done after that gap, as ">RANGES", with a digest of their names;
3. the position of each split in progress, with a digest of what was read, and where it can be resumed.

On restore, a file that grew is accepted and read to its new end. A file that shrank is rejected, as is one
that differs in the last 64 KiB or more before the position, or with `verify="whole"` anywhere before it (also
if it is a gzip file, which has to be decompressed from its beginning in any case). A split that was read to
its end is done: what is appended to the file later is read in the next pass.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from msgspec import UNSET

from checkpoint import SplitPosition
from dataflow import limits
from dataflow.core.event_time import SourceTime
from dataflow.core.file_digest import FileDigest, Verify, check_verify, resumed
from dataflow.errors import InputChangedError, InputListChangedError, SchemaError
from dataflow.operators.base import OperatorContext, set_fields
from dataflow.sources import base
from dataflow.sources.base import RoundRobin, begin_bytes
from dataflow.sources.file_dealing import chained, combined, later_in, later_key, redealt
from dataflow.sources.input_files import (
    GZIP_SUFFIX,
    FileBytes,
    OpenInputs,
    Paths,
    input_files,
    input_paths,
    is_url,
)
from dataflow.sources.lines import (
    LINE_SCHEMA,
    Errors,
    LineChunks,
    check_errors,
    position_text,
    replay_lines,
    whole_lines,
)
from dataflow.sources.unread_files import OpenSplit, UnreadFiles

_tail_bytes_min: Final = 4 * limits.KIB
"""Minimum number of bytes per read, even if less room is left in the batch: avoids very small reads."""
_files_open_max: Final = 256
_splits_started_max: Final = 10_000
"""Maximum number of splits read by time at once, because a checkpoint holds the position of each. Event time
waits for splits that are not started.
"""


@dataclass(frozen=True, slots=True, init=False)
class FileSource(base.SourceSpec):
    """Reads text files, each `repeat` times. Every worker must see them under the same paths.

        FileSource(["a.txt", "b.txt.gz"], repeat=2)

    paths: one path, pattern (`logs/*.txt`) or URL of objects in a bucket (`s3://bucket/logs/*.txt`), or a
    list of them. Patterns are resolved when the source is created, in sorted order. Files whose names end
    with .gz are decompressed, and positions refer to the decompressed content. local: True confirms that a
    run on a cluster may use these paths, because all hosts have the same files. errors: how to treat bytes
    that are not UTF-8, "strict" (stop) or "replace" (by U+FFFD). verify: how much of a file that is being
    read a reset verifies, "tail" (the last 64 KiB before the position, in the same time for any size) or
    "whole" (everything before it). endpoint: the URL of a bucket's service other than AWS.

    Raises SchemaError, BadUrlError; for a pattern of objects InputReadError, InputUnavailableError.
    """

    paths: tuple[str, ...]
    repeat: int
    errors: Errors
    local: bool
    verify: Verify
    endpoint: str | None

    def __init__(
        self,
        paths: Paths,
        repeat: int = 1,
        *,
        errors: Errors = "strict",
        local: bool = False,
        verify: Verify = "tail",
        endpoint: str | None = None,
    ) -> None:
        given, endpoint = input_paths(paths, endpoint)
        expanded = tuple(input_files(given[0], endpoint).expand(given)) if given else ()
        if not expanded:
            why = f"no file matches {', '.join(map(repr, given))}" if given else "none was given"
            raise SchemaError(f"a FileSource needs at least one file: {why}")
        if len(set(expanded)) != len(expanded):
            twice = sorted({path for path in expanded if expanded.count(path) > 1})
            raise SchemaError(f"file {twice[0]!r} is given twice; use repeat= to read it again")
        if not isinstance(repeat, int) or repeat < 1:
            raise SchemaError(f"repeat must be an integer of 1 or more, not {repeat!r}")
        check_errors(errors)
        check_verify(verify)
        set_fields(self, paths=expanded, repeat=repeat, errors=errors)
        set_fields(self, local=local, verify=verify, endpoint=endpoint)

    @property
    def can_trigger(self) -> bool:
        return True

    def host_path(self) -> str:
        return "" if self.local or is_url(self.paths[0]) else self.paths[0]

    def check_access(self) -> None:
        input_files(self.paths[0], self.endpoint).check_access(self.paths[0])

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        del inputs
        return LINE_SCHEMA

    def open(self, context: OperatorContext) -> "FileReader":
        return FileReader(self, context.worker, context.workers, stop_after_file=context.triggers_checkpoints)

    def redeal(self, positions: Sequence[base.Positions], worker: int, workers: int) -> base.Positions:
        return redealt(self, positions, worker, workers)

    def splits_of(self, worker: int, workers: int) -> Iterator[tuple[str, str]]:
        """Yield (split, path) of one worker, in the order in which it reads them."""
        for index in range(self.repeat):
            for file in range((worker - index) % workers, len(self.paths), workers):
                path = self.paths[file]
                yield f"{index}:{path}", path


class FileReader(base.SourceReader):
    """Reads a worker's splits. Invariant: in its list, the first `_done_count` are done, those of `_later`
    and `_reading` follow in any order, then those that are not started, of which `_next` is the first.
    """

    def __init__(self, spec: FileSource, worker: int, workers: int, *, stop_after_file: bool = False) -> None:
        self._spec = spec
        self._stop_after_file = stop_after_file
        self._worker, self._workers = worker, workers
        self._files = OpenInputs(input_files(spec.paths[0], spec.endpoint), _files_open_max)
        """By split."""
        self._unread = UnreadFiles(spec, worker, workers)
        self._reading: dict[str, OpenSplit] = {}
        self._clear()

    # --- Position -------------------------------------------------------------------------------------

    def _clear(self) -> None:
        self.close()
        self._splits = self._spec.splits_of(self._worker, self._workers)
        self._next = next(self._splits, None)
        self._started_count = 0
        self._reading = {}
        self._at: base.Positions = {}
        self._later: dict[int, str] = {}
        self._later_key = ""
        """The key of `_later` in a checkpoint; "": not computed."""
        self._later_names = 0
        """The digests of their names, combined by XOR so that the order does not matter."""
        self._done_count = 0
        self._done_names = 0
        self._division: base.SourceDivision = {}
        self._turns = RoundRobin()
        self._wants_checkpoint = False

    def close(self) -> None:
        self._files.close_all()

    def reset_to(self, positions: Mapping[str, SplitPosition]) -> None:
        self._clear()
        done = positions.get(base.DONE_SPLITS, SplitPosition(0, done=True))
        while self._started_count < done.position and self._next is not None:
            self._finish(self._begin_next())
        if (self._done_count, self._done_names) != (done.position, done.digest):
            raise InputListChangedError(
                f"the {done.position} inputs that worker {self._worker} has fully read are no longer the"
                f" first of its list: expected names with digest {done.digest:016x}, found"
                f" {self._done_count} with {self._done_names:016x}"
            )
        later, finished = later_in(positions)
        in_progress = {name: at for name, at in positions.items() if name not in (base.DONE_SPLITS, later)}
        while finished or in_progress:
            if self._started_count in finished and self._next is not None:
                finished.discard(self._started_count)
                self._finish(self._begin_next())
                continue
            name = (
                self._next[0]
                if self._next and self._next[0] in in_progress
                else next(iter(in_progress), later)
            )
            self._resume(name, in_progress.pop(name, positions[name]))
        if later and self._later_names != positions[later].digest:
            raise InputListChangedError(
                f"the inputs {later[1:]} of worker {self._worker}'s list, which it has fully read, have"
                f" other names now: expected digest {positions[later].digest:016x}"
            )

    def _resume(self, name: str, at: SplitPosition) -> None:
        if self._next is None or self._next[0] != name:
            found = self._next[0] if self._next else "the end of the list"
            raise InputListChangedError(
                f"the input being read was {name!r} at byte {at.position}, now it is {found!r}"
            )
        split = self._begin_next()
        split.version = at.version or ""
        size = self._file(split).size()
        if size is not None and size < at.position:
            raise InputChangedError(split.path, at.position, f"at least {at.position} bytes", f"{size}")
        whole = self._spec.verify == "whole" or split.path.endswith(GZIP_SUFFIX)
        split.digest = digest = resumed(at.resume, whole=whole)
        verified_from = digest.size
        digest.read_to(at.position, lambda _, count: self._pread(split, count, exact=True))
        if digest.value != at.digest:
            found = f"{digest.value:016x}; verified from byte {verified_from}"
            raise InputChangedError(split.path, at.position, f"content with digest {at.digest:016x}", found)
        split.begin = at.position
        self._at[name] = self._position_of(split)

    def positions(self) -> base.Positions:
        positions = {base.DONE_SPLITS: SplitPosition(self._done_count, self._done_names, done=True)}
        if self._later:
            self._later_key = self._later_key or later_key(self._later)
            positions[self._later_key] = SplitPosition(len(self._later), self._later_names, done=True)
        return positions | self._at

    @property
    def exhausted(self) -> bool:
        return self._next is None and not self._reading

    @property
    def backlog_bytes(self) -> int | None:
        return self._unread.count(self._started_count, self._reading.values())

    def time_now(self) -> SourceTime:
        return SourceTime(self.exhausted, unbegun=self._next is not None, behind=self._reading)

    # --- reading --------------------------------------------------------------------------------------------

    def read(self, bytes_max: int) -> base.SourceBatch | None:
        taken = self._chunks()
        by_time = self.reached is not None
        while taken.size < bytes_max and not (by_time and taken.size) and not self._wants_checkpoint:
            if (split := self._by_time() if by_time else self._in_order()) is None:
                break
            begin = split.digest.size
            want = max(bytes_max - taken.size, min(_tail_bytes_min, bytes_max))
            if by_time and not begin and (self._next is not None or len(self._reading) > 1):
                want = min(want, begin_bytes)
            lines, rest, at_end = whole_lines(self._file(split), split.path, begin, want)
            split.digest.update(lines + rest)
            taken.add(split.name, begin, lines + rest)
            self._note(split, done=at_end)
        return taken.take()

    def _in_order(self) -> OpenSplit | None:
        if self._reading:
            return next(iter(self._reading.values()))
        return self._begin_next() if self._next is not None else None

    def _by_time(self) -> OpenSplit | None:
        assert self.reached is not None
        if self._next is not None and len(self._reading) < _splits_started_max:
            split = self._begin_next()
            self._turns.begin(split.name)
            return split
        name = self._turns.next(self._reading, self.reached)
        return None if name is None else self._reading[name]

    def replay(self, division: base.SourceDivision) -> list[base.SourceBatch]:
        by_time = self.reached is not None
        return replay_lines(self._chunks(), division, self._replay_split, split_by_split=by_time)

    def _chunks(self) -> LineChunks:
        return LineChunks(self._spec.errors, _path_of)

    def _replay_split(self, name: str, part: base.SplitDivision) -> bytes:
        split = self._reading.get(name)
        if split is None:
            if self._next is None or self._next[0] != name:
                found = self._next[0] if self._next else "the end of the list"
                raise InputListChangedError(f"a step had read {name!r} next, now it is {found!r}")
            split = self._begin_next()
        if split.digest.size != part.begin:
            raise InputListChangedError(
                f"a step had read {name!r} from byte {part.begin}, now it is at {split.digest.size}"
            )
        chunk = self._pread(split, part.end - part.begin, exact=True)
        split.digest.update(chunk)
        if split.digest.value != part.digest:
            raise InputChangedError(
                split.path, part.end, f"content with digest {part.digest:016x}", f"{split.digest.value:016x}"
            )
        self._note(split, done=bool(part.done))
        return chunk

    def take_division(self) -> base.SourceDivision:
        division, self._division = self._division, {}
        for name in division:
            if name in self._reading:
                self._reading[name].begin = self._reading[name].digest.size
        self._turns.step_over()
        return division

    def _pread(self, split: OpenSplit, want: int, *, exact: bool = False) -> bytes:
        at = split.digest.size
        block = self._file(split).read(at, want)
        if exact and len(block) < want:
            raise InputChangedError(
                split.path, at + want, f"at least {at + want} bytes", f"{at + len(block)}"
            )
        return block

    # --- Changes of the current split -----------------------------------------------------------------

    def _begin_next(self) -> OpenSplit:
        assert self._next is not None
        name, path = self._next
        split = self._reading[name] = OpenSplit(self._started_count, name, path, FileDigest(), 0)
        self._started_count += 1
        self._next = next(self._splits, None)
        return split

    def _file(self, split: OpenSplit) -> FileBytes:
        """Return the open file. Raises InputReadError; InputChangedError if the file was replaced."""
        file = self._files.opened(split.name, split.path, split.version)
        if split.identity not in (None, file.identity):
            at = split.digest.size
            raise InputChangedError(split.path, at, "the file that was read before", "another one")
        split.identity = file.identity
        return file

    def _note(self, split: OpenSplit, *, done: bool) -> None:
        """Record what the step read of this split."""
        self._division[split.name] = base.SplitDivision(
            split.begin, split.digest.size, split.digest.value, int(done)
        )
        if done:
            self._finish(split)
            self._wants_checkpoint = self._stop_after_file
        elif split.digest.size:
            self._at[split.name] = self._position_of(split)

    def _position_of(self, split: OpenSplit) -> SplitPosition:
        digest, split.version = split.digest, self._file(split).version
        version = split.version or UNSET
        return SplitPosition(digest.size, digest.value, resume=digest.resume, version=version)

    @property
    def wants_checkpoint(self) -> bool:
        """Whether a file was just finished, in a region whose operators trigger checkpoints."""
        return self._wants_checkpoint

    def checkpoint_taken(self) -> None:
        self._wants_checkpoint = False

    def _finish(self, split: OpenSplit) -> None:
        self._files.close(split.name)
        del self._reading[split.name]
        self._at.pop(split.name, None)
        self._later[split.index] = split.name
        self._later_key = ""
        self._later_names = combined(self._later_names, split.name)
        while self._done_count in self._later:
            name = self._later.pop(self._done_count)
            self._done_count += 1
            self._done_names = chained(self._done_names, name)
            self._later_names = combined(self._later_names, name)

    # --- For display ----------------------------------------------------------------------------------

    def describe(self, source: base.SourceBatch, row: int | None) -> str:
        return position_text(source, row, self._name_of)

    def _name_of(self, piece: base.BatchPiece) -> str:
        index = int(piece.split.partition(":")[0])
        return f"file {_path_of(piece.split)!r}" + (f" (pass {index + 1})" if self._spec.repeat > 1 else "")

    def counters(self) -> dict[str, int]:
        return {"splits_done": self._done_count + len(self._later)}


def _path_of(split: str) -> str:
    return split.partition(":")[2]
