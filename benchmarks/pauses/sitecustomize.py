"""Note the syncs and the garbage collections of every process that a benchmark starts.

The interpreter imports this module at its start, if the folder is in PYTHONPATH. DOS_BENCH_PAUSES is the
folder for the notes, one file per process with a line for each pause: its kind, and from when until when, in
seconds of the clock that `time.perf_counter` of all processes of a machine reads.
"""

import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

COLLECTION_S_MIN: Final = 0.002
"""Shorter collections are not noted."""


class Notes:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[int, IO[str]] = {}
        """Process id -> its file: servers are forked from a process that has imported this module."""
        self._collects = 0.0

    def note(self, kind: str, begun: float) -> None:
        file = self._files.get(os.getpid())
        if file is None:
            file = self._files[os.getpid()] = (self._folder / str(os.getpid())).open("a", buffering=1)
        file.write(f"{kind} {begun:.6f} {time.perf_counter():.6f}\n")

    def timed(self, sync: Callable[[int], None]) -> Callable[[int], None]:
        def timed_sync(handle: int) -> None:
            begun = time.perf_counter()
            try:
                sync(handle)
            finally:
                self.note("sync", begun)

        return timed_sync

    def on_collection(self, phase: str, info: dict[str, int]) -> None:
        del info
        if phase == "start":
            self._collects = time.perf_counter()
        elif time.perf_counter() - self._collects > COLLECTION_S_MIN:
            self.note("collection", self._collects)


if folder := os.environ.get("DOS_BENCH_PAUSES"):
    notes = Notes(Path(folder))
    os.fdatasync, os.fsync = notes.timed(os.fdatasync), notes.timed(os.fsync)
    gc.callbacks.append(notes.on_collection)
