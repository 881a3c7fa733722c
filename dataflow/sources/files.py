"""Text files as a source: one row a line, column `line`. A split is one file in one pass.

Rules of this file: which bytes a step takes, and the proof that they are still the same. Bytes to lines is
`text.py`.

Splits are dealt to workers by index: file f of pass p belongs to worker (f + p) mod workers, so that passes
even out what unequal files do not. A worker reads its splits one after the other, in order; so (number of
splits done, position in the next one) says everything, and that is what a cut holds, with digests: of the
names of the splits done, and of the bytes read of the next. On restore a file that grew is accepted and read
to its new end, one that shrank or whose first bytes differ is refused. A split that was read to its end is
over: what is appended to the file later waits for the next pass.
"""

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import pyarrow as pa

from checkpoint.core.manifest import SplitPosition
from dataflow import limits
from dataflow.errors import InputChangedError, InputListChangedError, SchemaError
from dataflow.operators.base import OperatorContext
from dataflow.sources.base import (
    DONE_SPLITS,
    Division,
    Piece,
    Positions,
    SourceBatch,
    SourceReader,
    SourceSpec,
    SplitDivision,
)
from dataflow.sources.file_bytes import FileBytes, open_bytes
from dataflow.sources.given import Paths, check_errors, paths_of
from dataflow.sources.line_batches import LineChunks, place_of, whole_lines
from dataflow.sources.text import LINE_SCHEMA, Errors
from dos_protocol.digests import PrefixDigest, digest64

_tail_bytes_min: Final = 4 * limits.KIB
"""When less than this is left of a batch, so much is read nevertheless: no reads of a few bytes."""


@dataclass(frozen=True, slots=True, init=False)
class FileSource(SourceSpec):
    """Reads text files, each `repeat` times. Every worker must see them under the same paths.

        FileSource(["a.txt", "b.txt.gz"], repeat=2)

    paths: one path or pattern (`logs/*.txt`), or a list of them; patterns are resolved now, in sorted order.
    Files whose names end with .gz are read as what gzip holds, and so are positions in them.
    errors: what to do with bytes that are not UTF-8, "strict" (stop) or "replace" (by U+FFFD).
    """

    can_trigger: ClassVar[bool] = True
    paths: tuple[str, ...]
    repeat: int
    errors: Errors

    def __init__(
        self,
        paths: Paths,
        repeat: int = 1,
        *,
        errors: Errors = "strict",
    ) -> None:
        found = tuple(path for entry in paths_of(paths) for path in _expanded(entry))
        if not found:
            raise SchemaError(
                "a FileSource has at least one file; none was given, or no file fits the pattern"
            )
        if len(set(found)) != len(found):
            twice = sorted({path for path in found if found.count(path) > 1})
            raise SchemaError(
                f"each file is given once, and {twice[0]!r} is there twice; use repeat= to read it again"
            )
        if not isinstance(repeat, int) or repeat < 1:
            raise SchemaError(f"repeat is a whole number from 1, not {repeat!r}")
        check_errors(errors)
        object.__setattr__(self, "paths", found)
        object.__setattr__(self, "repeat", repeat)
        object.__setattr__(self, "errors", errors)

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        del inputs
        return LINE_SCHEMA

    def open(self, context: OperatorContext) -> "FileReader":
        return FileReader(self, context.worker, context.workers, cut_after_file=context.triggers_cuts)

    def splits_of(self, worker: int, workers: int) -> Iterator[tuple[str, str]]:
        """(split, path) of one worker, in the order in which it reads them."""
        for index in range(self.repeat):
            for file in range((worker - index) % workers, len(self.paths), workers):
                path = self.paths[file]
                yield f"{index}:{path}", path


def _expanded(entry: str) -> list[str]:
    path = os.path.abspath(entry)  # noqa: PTH100 - text in, text out; the file need not exist here
    return sorted(glob.glob(path, recursive=True)) if glob.has_magic(entry) else [path]  # noqa: PTH207


@dataclass(slots=True)
class _OpenSplit:
    """The split being read. Invariant: `digest.size` is the position."""

    name: str
    path: str
    bytes: FileBytes
    digest: PrefixDigest
    begin: int
    """Where the step's division of it begins."""


class FileReader(SourceReader):
    """A worker's splits, one after the other."""

    def __init__(self, spec: FileSource, worker: int, workers: int, *, cut_after_file: bool = False) -> None:
        self._spec = spec
        self._cut_after_file = cut_after_file
        self._worker, self._workers = worker, workers
        self._current: _OpenSplit | None = None
        self.reset()

    # --- where it stands ------------------------------------------------------------------------------------

    def reset(self) -> None:
        self.close()
        self._splits = self._spec.splits_of(self._worker, self._workers)
        self._next = next(self._splits, None)
        self._done_count = 0
        self._done_names = 0
        self._division: Division = {}
        self._wants_cut = False

    def close(self) -> None:
        if self._current is not None:
            self._current.bytes.close()
            self._current = None

    def reset_to(self, positions: Mapping[str, SplitPosition]) -> None:
        self.reset()
        done = positions.get(DONE_SPLITS, SplitPosition(0, done=True))
        while self._done_count < done.position and self._next is not None:
            self._finish_next()
        if (self._done_count, self._done_names) != (done.position, done.digest):
            raise InputListChangedError(
                f"the {done.position} inputs that worker {self._worker} has read to their end are not "
                "the first of its "
                f"list any more: expected names with digest {done.digest:016x}, found {self._done_count} "
                "with "
                f"{self._done_names:016x}"
            )
        for name, at in positions.items():
            if name != DONE_SPLITS:
                self._stand_in(name, at)

    def _stand_in(self, name: str, at: SplitPosition) -> None:
        if self._next is None or self._next[0] != name:
            found = self._next[0] if self._next else "the end of the list"
            raise InputListChangedError(
                f"the input being read was {name!r} at byte {at.position}, now it is {found!r}"
            )
        split = self._open_next()
        size = split.bytes.size()
        if size is not None and size < at.position:
            raise InputChangedError(split.path, at.position, f"at least {at.position} bytes", f"{size}")
        while split.digest.size < at.position:
            want = min(limits.verify_read_bytes, at.position - split.digest.size)
            split.digest.update(self._pread(split, want, exact=True))
        if split.digest.value != at.digest:
            raise InputChangedError(
                split.path, at.position, f"content with digest {at.digest:016x}", f"{split.digest.value:016x}"
            )
        split.begin = at.position

    def positions(self) -> Positions:
        positions = {DONE_SPLITS: SplitPosition(self._done_count, self._done_names, done=True)}
        if self._current is not None and self._current.digest.size:
            positions[self._current.name] = SplitPosition(
                self._current.digest.size, self._current.digest.value
            )
        return positions

    @property
    def exhausted(self) -> bool:
        return self._next is None

    # --- reading --------------------------------------------------------------------------------------------

    def read(self, bytes_max: int) -> SourceBatch | None:
        taken = self._chunks()
        while taken.size < bytes_max and self._next is not None and not self._wants_cut:
            split = self._current or self._open_next()
            begin = split.digest.size
            want = max(bytes_max - taken.size, min(_tail_bytes_min, bytes_max))
            lines, rest, at_end = whole_lines(split.bytes, split.path, begin, want)
            split.digest.update(lines + rest)
            taken.add(split.name, begin, lines + rest)
            self._note(split, done=at_end)
        return taken.take()

    def replay(self, division: Division) -> list[SourceBatch]:
        batches: list[SourceBatch | None] = []
        taken = self._chunks()
        for name, part in division.items():
            taken.add(name, part.begin, self._replay_split(name, part))
            if taken.size >= limits.batch_bytes_max:
                batches.append(taken.take())
        batches.append(taken.take())
        return [batch for batch in batches if batch is not None]

    def _chunks(self) -> LineChunks:
        return LineChunks(self._spec.errors, _path_of)

    def _replay_split(self, name: str, part: SplitDivision) -> bytes:
        if self._next is None or self._next[0] != name:
            found = self._next[0] if self._next else "the end of the list"
            raise InputListChangedError(f"a step had read {name!r} next, now it is {found!r}")
        split = self._current or self._open_next()
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

    def take_division(self) -> Division:
        division, self._division = self._division, {}
        if self._current is not None:
            self._current.begin = self._current.digest.size
        return division

    def _pread(self, split: _OpenSplit, want: int, *, exact: bool = False) -> bytes:
        at = split.digest.size
        block = split.bytes.read(at, want)
        if exact and len(block) < want:
            raise InputChangedError(
                split.path, at + want, f"at least {at + want} bytes", f"{at + len(block)}"
            )
        return block

    # --- from split to split --------------------------------------------------------------------------------

    def _open_next(self) -> _OpenSplit:
        assert self._next is not None
        assert self._current is None
        name, path = self._next
        self._current = _OpenSplit(name, path, open_bytes(path), PrefixDigest(), 0)
        return self._current

    def _note(self, split: _OpenSplit, *, done: bool) -> None:
        """Write down what the step took of this split; go on to the next one if it is done."""
        self._division[split.name] = SplitDivision(
            split.begin, split.digest.size, split.digest.value, int(done)
        )
        if done:
            self.close()
            self._finish_next()
            self._wants_cut = self._cut_after_file

    @property
    def wants_cut(self) -> bool:
        """After each file, where operators trigger cuts."""
        return self._wants_cut

    def cut_taken(self) -> None:
        self._wants_cut = False

    def _finish_next(self) -> None:
        assert self._next is not None
        self._done_count += 1
        self._done_names = digest64(self._next[0].encode(), self._done_names)
        self._next = next(self._splits, None)

    # --- for people -----------------------------------------------------------------------------------------

    def describe(self, source: SourceBatch, row: int | None) -> str:
        return place_of(source, row, self._where)

    def _where(self, piece: Piece) -> str:
        index = int(piece.split.partition(":")[0])
        return f"file {_path_of(piece.split)!r}" + (f" (pass {index + 1})" if self._spec.repeat > 1 else "")

    def counters(self) -> dict[str, int]:
        return {"splits_done": self._done_count}


def _path_of(split: str) -> str:
    return split.partition(":")[2]
