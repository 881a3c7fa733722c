"""Directories that grow: files that come later are picked up, and so are lines that are appended to files.

Rules of this file: which bytes a step takes, and the proof that a replay takes the same. What lies in the
directories is told by `sources/watched_files.py`, bytes to lines is `line_batches.py`'s.

A split is a file, under its path. It belongs to the worker that the hash of its path says, so no worker has
to be told of a new one. Files are read in turns, in the order of their paths, each at most once in a step, so
that the division alone (file, from, to; in order) says in which order rows came; no busy file holds up the
others. Where event time is taken from the lines, each turn is that of the file whose watermark is least
(`turns.py`). A file holds event time back while it has lines that wait. One that is read to its present end
does not, because nobody knows which files still grow.

A cut holds the position of every file that is there, with a digest of what lies just before it. A file is
read on only if that is still there: one that is shorter, or other before the position, is refused by name.
Of a file that grows only whole lines are taken: what stands behind the last line end waits for its own. A
gzip file is taken when it is whole, and is over then; its digest is that of the file.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import pyarrow as pa

from checkpoint.core.manifest import SplitPosition
from dataflow import limits
from dataflow.core.event_time import SourceTime
from dataflow.errors import InputChangedError, InputGoneError, InputReadError, SchemaError
from dataflow.operators.base import OperatorContext
from dataflow.sources.base import (
    Division,
    Positions,
    SourceBatch,
    SourceReader,
    SourceSpec,
    SplitDivision,
)
from dataflow.sources.file_bytes import GZIP_SUFFIX, open_bytes
from dataflow.sources.line_batches import LineChunks, place_of, whole_lines
from dataflow.sources.paths import Paths, check_errors, paths_of
from dataflow.sources.prefetched import owner_by_name
from dataflow.sources.round_robin import RoundRobin, begin_bytes
from dataflow.sources.text import LINE_SCHEMA, Errors
from dataflow.sources.watched_files import (
    FilePart,
    FileSeen,
    FollowedFile,
    WatchedFiles,
    WholeGzips,
    list_files,
    mark_of,
    watched,
)
from dos_protocol.digests import PrefixDigest, digest64

Gone: TypeAlias = Literal["stop", "forget"]

_NOWHERE: Final = SplitPosition(0)
_tail_bytes: Final = 4 * limits.KIB
"""What lies before a position is proved by so many bytes."""
_chunk_bytes_min: Final = 4 * limits.KIB
_open_files_max: Final = 64


@dataclass(frozen=True, slots=True, init=False)
class DirectorySource(SourceSpec):
    """Reads all files in a directory, or those that fit a pattern, a row a line (column `line`); those that
    come later too, and what is appended to them. Every worker must see them under the same paths. It has no
    end until the path `until` exists: then what is there is read, and the source is over.

        DirectorySource("logs", until="logs/END")

    paths: a directory, a path or pattern (`logs/**/*.log`), or a list of them. Names that begin with . or _
    are left out: write a file as _name, and rename it. Those that end with .gz are read when they are whole.
    poll_s: seconds after which is looked again. gone: what to do about a file that is not there any more,
    "stop" the region, or "forget" it: then a file may be taken away once a cut holds it.
    errors: as of `FileSource`. Raises SchemaError, also for a directory that is not there.
    """

    places: tuple[WatchedFiles, ...]
    until: str | None
    poll_s: float
    gone: Gone
    errors: Errors

    def __init__(
        self,
        paths: Paths,
        *,
        until: "str | os.PathLike[str] | None" = None,
        poll_s: float = 1.0,
        gone: Gone = "stop",
        errors: Errors = "strict",
    ) -> None:
        given = paths_of(paths)
        if not given:
            raise SchemaError("a DirectorySource has at least one directory or pattern; none was given")
        if not poll_s > 0:
            raise SchemaError(f"poll_s is a time above 0 in seconds, not {poll_s!r}")
        if gone not in ("stop", "forget"):
            raise SchemaError(f"gone is 'stop' or 'forget', not {gone!r}")
        check_errors(errors)
        object.__setattr__(self, "places", tuple(watched(entry) for entry in given))
        end = None if until is None else os.path.abspath(until)  # noqa: PTH100 - it need not exist here
        object.__setattr__(self, "until", end)
        object.__setattr__(self, "poll_s", poll_s)
        object.__setattr__(self, "gone", gone)
        object.__setattr__(self, "errors", errors)

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        del inputs
        return LINE_SCHEMA

    def open(self, context: OperatorContext) -> "DirectoryReader":
        return DirectoryReader(self, context.worker, context.workers)


class DirectoryReader(SourceReader):
    """A worker's files, in turns."""

    def __init__(
        self,
        spec: DirectorySource,
        worker: int,
        workers: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spec = spec
        self._worker, self._workers = worker, workers
        self._clock = clock
        self._open: dict[str, FollowedFile] = {}
        """The last used at the end."""
        self.reset()

    # --- where it stands ------------------------------------------------------------------------------------

    def reset(self) -> None:
        self.close()
        self._at: Positions = {}
        self._parts: dict[str, FilePart] = {}
        self._seen: dict[str, FileSeen] = {}
        self._gzips = WholeGzips()
        self._halves: dict[str, int] = {}
        """File -> its size when no line was whole behind the position."""
        self._ready: deque[str] = deque()
        """Files with more to read, in the order of their turns."""
        self._last = ""
        """The file that was read last; `_more`: it has more."""
        self._more = False
        self._look_at = 0.0
        self._listed = False  # in this incarnation
        self._turns = RoundRobin()
        self._ending = self._over = False

    def close(self) -> None:
        for file in self._open.values():
            file.held.close()
        self._open.clear()

    def reset_to(self, positions: Mapping[str, SplitPosition]) -> None:
        self.reset()
        self._at = dict(positions)

    def positions(self) -> Positions:
        return dict(self._at)

    @property
    def is_idle(self) -> bool:
        return not self._at

    @property
    def exhausted(self) -> bool:
        return self._over

    def time_now(self) -> SourceTime:
        behind = {*self._ready, self._last} if self._more else {*self._ready}
        quiet = {path: 0.0 for path, at in self._at.items() if path not in behind and not at.done}
        return SourceTime(self._over, self._listed, behind=behind, caught_up=quiet, caught_up_holds=False)

    @property
    def has_input(self) -> bool:
        self._look()
        return self._more or bool(self._ready)

    @property
    def wakes_in(self) -> float | None:
        return None if self._over else max(0.0, self._look_at - self._clock())

    # --- what lies there ------------------------------------------------------------------------------------

    def _look(self) -> None:
        """If it is time. Raises InputChangedError, InputGoneError, InputReadError."""
        if self._over or self._clock() < self._look_at:
            return
        until = self._spec.until
        ending = until is not None and os.path.exists(until)  # noqa: PTH110 - before the files are listed
        found = {path: seen for path, seen in list_files(self._spec.places).items() if self._owns(path)}
        if len(found) > limits.directory_files_max:
            raise InputReadError(
                f"{len(found)} input files are there for one worker, and a cut holds the position of each: "
                f"at most {limits.directory_files_max}",
                remedy='take away files that were read, with gone="forget"; or use more workers',
            )
        for path in [path for path in self._at if path not in found]:
            self._note_gone(path)
        ready = [path for path, seen in found.items() if self._is_ready(path, seen, ending=ending)]
        self._seen, self._ending = found, ending
        self._more = self._more and self._last in ready
        self._ready = deque(path for path in ready if path > self._last)
        self._ready += [path for path in ready if path < self._last]
        if self._last in ready and not self._more:
            self._ready.append(self._last)
        self._over = ending and not ready
        self._listed = True
        self._look_at = self._clock() + self._spec.poll_s

    def _owns(self, path: str) -> bool:
        return path != self._spec.until and owner_by_name(path, self._workers) == self._worker

    def _note_gone(self, path: str) -> None:
        last = self._seen.get(path)
        unread = path in self._ready or (self._more and path == self._last)
        if self._spec.gone == "stop" or (last is not None and unread):
            raise InputGoneError(path, self._at[path].position)
        self._forget(path)

    def _forget(self, path: str) -> None:
        """Another file of this name is read from its beginning."""
        self._at.pop(path, None)
        self._gzips.forget(path)
        self._halves.pop(path, None)
        self._shut(path)

    def _shut(self, path: str) -> None:
        if path in self._open:
            self._open.pop(path).held.close()

    def _is_ready(self, path: str, seen: FileSeen, *, ending: bool) -> bool:
        """Whether there is more to read of it. Raises InputChangedError for a file that is another one."""
        at = self._at.get(path, _NOWHERE)
        last = self._seen.get(path)
        if last is not None and last.identity != seen.identity:
            self._shut(path)
            if at.position and not at.done and seen.size >= at.position:
                self._opened(path)  # the proof: the same content under the name is the same file
        if path.endswith(GZIP_SUFFIX):
            if at.done and last != seen and (mark := mark_of(path)) != at.digest:
                found = f"another file, of {seen.size} bytes ({mark:016x})"
                raise InputChangedError(
                    path, at.position, f"the file that was read ({at.digest:016x})", found
                )
            return not at.done and (ending or self._gzips.is_whole(path, seen, last))
        if seen.size < at.position:
            raise InputChangedError(path, at.position, f"at least {at.position} bytes", f"{seen.size}")
        return seen.size > (at.position if ending else max(at.position, self._halves.get(path, 0)))

    # --- open files -----------------------------------------------------------------------------------------

    def _opened(self, path: str) -> FollowedFile:
        """The file, if what lies before the position is what was there. Raises InputChangedError."""
        file = self._open.pop(path, None)
        if file is None:
            at = self._at.get(path, _NOWHERE)
            file = FollowedFile(open_bytes(path), b"")
            size = min(at.position, _tail_bytes)
            file.tail = file.held.read(at.position - size, size) if size else b""
            if size and (len(file.tail) < size or digest64(file.tail) != at.digest):
                file.held.close()
                raise InputChangedError(
                    path,
                    at.position,
                    f"{size} bytes with digest {at.digest:016x} before it",
                    f"{len(file.tail)} with {digest64(file.tail):016x}",
                )
        self._open[path] = file
        if len(self._open) > _open_files_max:
            self._shut(next(iter(self._open)))
        return file

    def _checked(self, path: str) -> FollowedFile:
        """The same, when a step begins to read of it: it may have been written anew in its place."""
        if path not in self._parts and not path.endswith(GZIP_SUFFIX):
            self._shut(path)
        return self._opened(path)

    # --- reading --------------------------------------------------------------------------------------------

    def read(self, bytes_max: int) -> SourceBatch | None:
        self._look()
        taken = self._chunks()
        by_time = self.reached is not None
        choose = self._by_time if by_time else self._next
        while taken.size < (1 if by_time else bytes_max) and (path := choose()) is not None:
            begin = self._at.get(path, _NOWHERE).position
            want = max(bytes_max - taken.size, min(_chunk_bytes_min, bytes_max))
            if by_time and not begin and self._ready:
                want = min(want, begin_bytes)
            lines, rest, at_end = whole_lines(self._checked(path).held, path, begin, want)
            packed = path.endswith(GZIP_SUFFIX)
            chunk = lines + rest if self._ending or packed else lines
            taken.add(path, begin, chunk)
            if chunk or (at_end and packed):
                self._note(path, chunk, done=at_end and packed)
            if at_end and rest and not chunk.endswith(rest):
                self._halves[path] = begin + len(lines) + len(rest)
            self._more = not at_end
        return taken.take()

    def _next(self) -> str | None:
        """Whose turn it is: a file goes on as long as the step has room, and comes once in a step."""
        if self._more:
            return self._last
        for _ in range(len(self._ready)):
            path = self._ready.popleft()
            if path not in self._parts:
                self._last, self._more = path, True
                return path
            self._ready.append(path)
        return None

    def _by_time(self) -> str | None:
        assert self.reached is not None
        waiting = [self._last, *self._ready] if self._more else [*self._ready]
        path = self._turns.next(waiting, self.reached)
        if path is not None:
            self._ready = deque(other for other in waiting if other != path)
            self._last, self._more = path, True
        return path

    def _chunks(self) -> LineChunks:
        return LineChunks(self._spec.errors, lambda path: path)

    def _note(self, path: str, chunk: bytes, *, done: bool) -> None:
        """The step has taken the next bytes of a file."""
        file, at = self._open[path], self._at.get(path, _NOWHERE)
        part = self._parts.setdefault(path, FilePart(at.position, PrefixDigest()))
        part.digest.update(chunk)
        part.done = done
        file.tail = (file.tail + chunk)[-_tail_bytes:]
        position = at.position + len(chunk)
        if done:
            self._at[path] = SplitPosition(position, mark_of(path), done=True)
            self._shut(path)
        else:
            self._at[path] = SplitPosition(position, digest64(file.tail))

    def replay(self, division: Division) -> list[SourceBatch]:
        batches: list[SourceBatch | None] = []
        taken = self._chunks()
        for path, part in division.items():
            taken.add(path, part.begin, self._replayed(path, part))
            if taken.size >= limits.batch_bytes_max or self.reached is not None:
                batches.append(taken.take())
        batches.append(taken.take())
        return [batch for batch in batches if batch is not None]

    def _replayed(self, path: str, part: SplitDivision) -> bytes:
        if not os.path.exists(path):  # noqa: PTH110
            raise InputGoneError(path, part.end)
        at = self._at.get(path, _NOWHERE)
        if part.begin == 0 and at.position and self._spec.gone == "forget":
            self._forget(path)
        elif at.position != part.begin or at.done:
            raise InputChangedError(path, part.begin, f"a step from {part.begin}", f"{at.position}")
        chunk = self._checked(path).held.read(part.begin, part.end - part.begin)
        digest = PrefixDigest()
        digest.update(chunk)
        if digest.value != part.digest:
            raise InputChangedError(
                path,
                part.end,
                f"{part.end - part.begin} bytes with digest {part.digest:016x}",
                f"{len(chunk)} with {digest.value:016x}",
            )
        self._note(path, chunk, done=bool(part.done))
        self._last, self._more = path, False
        self._look_at = 0.0
        return chunk

    def take_division(self) -> Division:
        parts, self._parts = self._parts, {}
        self._turns.step_over()
        if self._more:  # the next step begins with the next file
            self._ready.append(self._last)
            self._more = False
        return {
            path: SplitDivision(part.begin, part.begin + part.digest.size, part.digest.value, int(part.done))
            for path, part in parts.items()
        }

    # --- for people -----------------------------------------------------------------------------------------

    def describe(self, source: SourceBatch, row: int | None) -> str:
        return place_of(source, row, lambda piece: f"file {piece.split!r}")

    def counters(self) -> dict[str, int]:
        return {"files": len(self._at), "files_waiting": len(self._ready) + self._more}
