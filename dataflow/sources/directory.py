"""Directories that grow: reads files that are added later, and lines that are appended to files.

This file decides which bytes a step reads and verifies that a replay reads the same.

1. A split is a file, named by its path. The hash of the path determines its worker.
2. Files are read in turns, in the order of their paths, each at most once per step. The division (file, from,
   to; in order) therefore determines the order of the rows, and a busy file does not delay the others. With
   event time from the lines, the file with the lowest watermark is next (`RoundRobin`).
3. A file with lines to read holds event time back; one at its present end does not: it may never grow again.
4. A checkpoint contains the position of every existing file, with a digest of the bytes just before it. A
   file that is shorter, or differs before the position, is rejected by name.
5. Of a growing file only whole lines are read.
6. A gzip file is read once it is whole, and is then finished; its digest is that of the file.
7. An object of a bucket is whole when it appears. It is read to its end before the next one, and is then
   finished. A position contains its version; an object of another version is rejected by name.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import pyarrow as pa
from msgspec import UNSET

from checkpoint import SplitPosition
from dataflow import limits
from dataflow.core.event_time import SourceTime
from dataflow.errors import InputChangedError, InputGoneError, SchemaError
from dataflow.operators.base import OperatorContext, set_fields
from dataflow.sources import base
from dataflow.sources.base import RoundRobin, begin_bytes
from dataflow.sources.input_files import (
    GZIP_SUFFIX,
    FileSeen,
    Paths,
    WatchedFiles,
    end_path,
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
from dataflow.sources.prefetched import owner_by_name
from dataflow.sources.unread_files import unread_of_listed
from dataflow.sources.watched_files import (
    CompleteGzips,
    FilePart,
    FollowedFile,
    FollowedFiles,
    check_count,
    check_part,
    object_is_ready,
)
from dos_protocol.digests import PrefixDigest

Gone: TypeAlias = Literal["stop", "forget"]
_BEGINNING: Final = SplitPosition(0)
_chunk_bytes_min: Final = 4 * limits.KIB


@dataclass(frozen=True, slots=True, init=False)
class DirectorySource(base.SourceSpec):
    """Reads the files of a directory, one row per line (column `line`), and what is added to it later. Every
    worker must see the same paths. The source ends when the path `until` exists and all files are read.

        DirectorySource("logs", until="logs/END")

    paths: a directory, a path or pattern (`logs/**/*.log`), or a list of them; for a bucket, the URL of a
    prefix (`s3://bucket/logs`) or a pattern. Names that begin with . or _ are skipped: write a file as _name
    and rename it when complete. Files that end with .gz are read once they are whole. poll_s: seconds between
    two listings, by default 1, and 10 for a bucket. gone: what to do if a file no longer exists, "stop" the
    region, or "forget" the file; with "forget", a file may be removed once a checkpoint covers it. errors,
    local, endpoint: as of `FileSource`. With trigger="operator" it requests a checkpoint after it has read a
    file to its end. Raises SchemaError, also for a directory that does not exist; BadUrlError.
    """

    patterns: tuple[WatchedFiles, ...]
    until: str | None
    poll_s: float
    gone: Gone
    errors: Errors
    local: bool
    endpoint: str | None

    def __init__(
        self,
        paths: Paths,
        *,
        until: "str | os.PathLike[str] | None" = None,
        poll_s: float | None = None,
        gone: Gone = "stop",
        errors: Errors = "strict",
        local: bool = False,
        endpoint: str | None = None,
    ) -> None:
        given, endpoint = input_paths(paths, endpoint)
        if not given:
            raise SchemaError("a DirectorySource needs at least one directory or pattern")
        end = None if until is None else end_path(until, given[0])
        files = input_files(given[0], endpoint)
        if poll_s is None:
            poll_s = limits.object_poll_s if files.versioned else 1.0
        if not poll_s > 0:
            raise SchemaError(f"poll_s must be a number of seconds above 0, not {poll_s!r}")
        if gone not in ("stop", "forget"):
            raise SchemaError(f"gone must be 'stop' or 'forget', not {gone!r}")
        check_errors(errors)
        patterns = tuple(map(files.watched, given))
        set_fields(self, patterns=patterns, until=end, poll_s=poll_s, gone=gone)
        set_fields(self, errors=errors, local=local, endpoint=endpoint)

    def host_path(self) -> str:
        return "" if self.local or is_url(self.patterns[0].root) else self.patterns[0].root

    def check_access(self) -> None:
        input_files(self.patterns[0].root, self.endpoint).check_access(self.patterns[0].root)

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        del inputs
        return LINE_SCHEMA

    @property
    def can_trigger(self) -> bool:
        return True

    def redeal(self, positions: Sequence[base.Positions], worker: int, workers: int) -> base.Positions:
        return base.own_positions(positions, lambda path: owner_by_name(path, workers) == worker)

    def open(self, context: OperatorContext) -> "DirectoryReader":
        stop = context.triggers_checkpoints
        return DirectoryReader(self, context.worker, context.workers, stop_after_file=stop)


class DirectoryReader(base.SourceReader):
    """Reads a worker's files in turns."""

    def __init__(
        self,
        spec: DirectorySource,
        worker: int,
        workers: int,
        clock: Callable[[], float] = time.monotonic,
        *,
        stop_after_file: bool = False,
    ) -> None:
        self._spec, self._stop_after_file = spec, stop_after_file
        self._worker, self._workers, self._clock = worker, workers, clock
        self._input = input_files(spec.patterns[0].root, spec.endpoint)
        self._files = FollowedFiles(self._input)
        self._clear()

    # --- Position -------------------------------------------------------------------------------------

    def _clear(self) -> None:
        self.close()
        self._at: base.Positions = {}
        self._parts: dict[str, FilePart] = {}
        self._listed_files: dict[str, FileSeen] = {}
        self._gzips = CompleteGzips()
        self._incomplete_sizes: dict[str, int] = {}
        """File -> its size when there was no complete line after the position."""
        self._ready: deque[str] = deque()
        """Files with more to read, in the order of their turns."""
        self._last = ""
        """The file that was read last. `_more`: it has more to read."""
        self._more = False
        self._list_at_s = 0.0
        self._listed = self._replayed_since_listing = False  # since this incarnation began
        self._turns = RoundRobin()
        self._ending = self._at_end = self._wants_checkpoint = False

    def close(self) -> None:
        self._files.close_all()
        self._input.close()

    def reset_to(self, positions: Mapping[str, SplitPosition]) -> None:
        self._clear()
        self._at = dict(positions)

    def positions(self) -> base.Positions:
        return dict(self._at)

    @property
    def is_idle(self) -> bool:
        return not self._at

    @property
    def exhausted(self) -> bool:
        return self._at_end

    def time_now(self) -> SourceTime:
        behind = {*self._ready, self._last} if self._more else {*self._ready}
        quiet = [path for path, at in self._at.items() if path not in behind and not at.done]
        return SourceTime(self._at_end, self._listed, behind=behind, caught_up=quiet, caught_up_holds=False)

    @property
    def has_input(self) -> bool:
        self._list_if_due()
        return not self._wants_checkpoint and (self._more or bool(self._ready))

    @property
    def backlog_bytes(self) -> int | None:
        waiting = [*self._ready, self._last] if self._more else self._ready
        return unread_of_listed(waiting, self._listed_files, self._at) if self._listed else None

    @property
    def wants_checkpoint(self) -> bool:
        """Whether a file was read to its present end, in a region whose operators trigger checkpoints."""
        return self._wants_checkpoint

    def checkpoint_taken(self) -> None:
        self._wants_checkpoint = False

    @property
    def wakes_in(self) -> float | None:
        return None if self._at_end else max(0.0, self._list_at_s - self._clock())

    # --- Listing --------------------------------------------------------------------------------------

    def _list_if_due(self) -> None:
        """List the directories if it is time. Raises InputChangedError, InputGoneError, InputReadError."""
        due = self._clock() >= self._list_at_s
        if self._at_end or not (due or self._replayed_since_listing):
            return
        found, ending = self._list() if due else (self._listed_files, self._ending)
        ready = [path for path, seen in found.items() if self._is_ready(path, seen, ending=ending)]
        self._listed_files, self._ending = found, ending
        self._more = self._more and self._last in ready
        self._ready = deque(path for path in ready if path > self._last)
        self._ready += [path for path in ready if path < self._last]
        if self._last in ready and not self._more:
            self._put_back(self._last)
        self._at_end = ending and not ready
        self._listed, self._replayed_since_listing = True, False

    def _list(self) -> tuple[dict[str, FileSeen], bool]:
        """Return this worker's files, and whether no more will follow."""
        until = self._spec.until
        ending = until is not None and self._input.exists(until)  # before listing: misses no file
        listed = self._input.listing(self._spec.patterns)
        own = [one for one in listed if one != until and owner_by_name(one, self._workers) == self._worker]
        found = {path: listed[path] for path in own}
        check_count(found)
        for path in [path for path in self._at if path not in found]:
            self._handle_missing(path)
        self._list_at_s = self._clock() + self._spec.poll_s
        return found, ending

    def _handle_missing(self, path: str) -> None:
        last = self._listed_files.get(path)
        unread = path in self._ready or (self._more and path == self._last)
        unread = (last is not None and unread) or (self._input.versioned and not self._at[path].done)
        if self._spec.gone == "stop" or unread:
            raise InputGoneError(path, self._at[path].position)
        self._forget(path)

    def _forget(self, path: str) -> None:
        """Forget a file; another file of this name is read from its beginning."""
        self._at.pop(path, None)
        self._gzips.forget(path)
        self._incomplete_sizes.pop(path, None)
        self._files.close(path)

    def _is_ready(self, path: str, seen: FileSeen, *, ending: bool) -> bool:
        """Return whether the file has more to read. Raises InputChangedError if it is a different file."""
        at = self._at.get(path, _BEGINNING)
        last = self._listed_files.get(path)
        if isinstance(seen.identity, str):
            if at.done and at.version != seen.identity and self._spec.gone == "forget":
                self._forget(path)
                at = _BEGINNING
            return object_is_ready(path, seen, at)
        if last is not None and last.identity != seen.identity:
            self._files.close(path)
            if at.position and not at.done and seen.size >= at.position:
                # verifies the digest: a file of this name with the same content counts as the same file
                self._opened(path)
        if path.endswith(GZIP_SUFFIX):
            return self._gzips.is_ready(path, seen, last, at, ending=ending)
        if seen.size < at.position:
            raise InputChangedError(path, at.position, f"at least {at.position} bytes", f"{seen.size}")
        return seen.size > (at.position if ending else max(at.position, self._incomplete_sizes.get(path, 0)))

    # --- open files -----------------------------------------------------------------------------------------

    def _opened(self, path: str) -> FollowedFile:
        return self._files.opened(path, self._at.get(path, _BEGINNING))

    def _is_whole(self, path: str) -> bool:
        """Return whether a file is read once it is whole, and is finished then."""
        return self._input.versioned or path.endswith(GZIP_SUFFIX)

    def _checked(self, path: str) -> FollowedFile:
        """Return the open file. Verifies it in each step, because it may have been rewritten in place."""
        if path not in self._parts and not self._is_whole(path):
            self._files.close(path)
        return self._opened(path)

    # --- reading --------------------------------------------------------------------------------------------

    def read(self, bytes_max: int) -> base.SourceBatch | None:
        self._list_if_due()
        taken = LineChunks(self._spec.errors, str)
        by_time = self.reached is not None
        choose, room = (self._by_time, 1) if by_time else (self._next, bytes_max)
        while not self._wants_checkpoint and taken.size < room and (path := choose()) is not None:
            begin = self._at.get(path, _BEGINNING).position
            want = max(bytes_max - taken.size, min(_chunk_bytes_min, bytes_max))
            if by_time and not begin and self._ready:
                want = min(want, begin_bytes)
            lines, rest, at_end = whole_lines(self._checked(path).held, path, begin, want)
            whole = self._is_whole(path)
            chunk = lines + rest if self._ending or whole else lines
            taken.add(path, begin, chunk)
            if chunk or (at_end and whole):
                self._note(path, chunk, done=at_end and whole)
            if at_end and rest and not chunk.endswith(rest):
                self._incomplete_sizes[path] = begin + len(lines) + len(rest)
            self._more = not at_end
            self._wants_checkpoint = self._stop_after_file and at_end and bool(chunk or begin)
        return taken.take()

    def _put_back(self, path: str) -> None:
        """Let the next step begin with the next file; or continue this one, if it does not grow, or if
        checkpoints are to be between files.
        """
        if self._stop_after_file or self._input.versioned:
            self._ready.appendleft(path)
        else:
            self._ready.append(path)

    def _next(self) -> str | None:
        """Return the next file: a file continues while the step has room, and has one turn per step."""
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

    def _note(self, path: str, chunk: bytes, *, done: bool) -> None:
        """Record that the step read `chunk` of a file."""
        file, at = self._opened(path), self._at.get(path, _BEGINNING)
        part = self._parts.setdefault(path, FilePart(at.position, PrefixDigest()))
        part.add(chunk, done=done)
        self._at[path] = file.position_after(path, at, chunk, done=done)
        if done:
            self._files.close(path)

    def replay(self, division: base.SourceDivision) -> list[base.SourceBatch]:
        lines = LineChunks(self._spec.errors, str)
        return replay_lines(lines, division, self._replayed, split_by_split=self.reached is not None)

    def _replayed(self, path: str, part: base.SplitDivision) -> bytes:
        if path not in self._listed_files and not self._input.exists(path):
            raise InputGoneError(path, part.end)
        at = self._at.get(path, _BEGINNING)
        if part.begin == 0 and at.position and self._spec.gone == "forget":
            self._forget(path)
        elif at.position != part.begin or at.done:
            raise InputChangedError(path, part.begin, f"a step from {part.begin}", f"{at.position}")
        file = self._checked(path).held
        chunk = file.read(part.begin, part.end - part.begin)
        check_part(path, part, chunk, more=bool(part.done and file.read(part.end, 1)))
        self._note(path, chunk, done=bool(part.done))
        self._last, self._more = path, False
        if self._stop_after_file:
            at_end = part.done if self._is_whole(path) else part.end == file.size()
            self._wants_checkpoint |= bool(at_end)
        seen = self._listed_files.get(path)
        if seen is None or self._at[path].version not in (UNSET, seen.identity):
            self._list_at_s = 0.0
        self._replayed_since_listing = True
        return chunk

    def take_division(self) -> base.SourceDivision:
        parts, self._parts = self._parts, {}
        self._turns.step_over()
        if self._more:
            self._put_back(self._last)
            self._more = False
        return {path: part.division() for path, part in parts.items()}

    # --- For display ----------------------------------------------------------------------------------

    def describe(self, source: base.SourceBatch, row: int | None) -> str:
        return position_text(source, row, lambda piece: f"file {piece.split!r}")

    def counters(self) -> dict[str, int]:
        return {"files": len(self._at), "files_waiting": len(self._ready) + self._more}
