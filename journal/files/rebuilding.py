"""Making a tree of files from records, beside the place where it is to stand, and putting it there whole.

Rules of this file: until `put` everything happens in a directory of its own beside the target, so that a
target that is seen is whole. What a crash leaves beside it is taken away by the next rebuilding of the same
target.
"""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from journal.core.file_ops import Paths, Stop, file_op
from journal.core.record import Record
from journal.files.tree import FileTree
from journal.limits import file_gather_bytes
from journal.ops import Op

TO_THE_END: Final = Stop()


class Rebuilding:
    """A tree in the making. A context manager: left without `put`, nothing stays.

    Records are taken in order by `apply`, each with the logical offset just past it, until the stop.
    """

    def __init__(
        self, target: Path, *, stop: Stop = TO_THE_END, only: str | None = None, paths: Paths = "safe"
    ) -> None:
        self.target = target.absolute()
        self.stop = stop
        self.stopped = False
        """The stop was reached: nothing more is taken."""
        self.end = 0
        """Logical offset just past the last record taken."""
        self.records = 0
        self.wall_ms: int | None = None
        """The last mark taken."""
        self._only = only
        self._paths = paths
        self._beside = self.target.parent / f".{self.target.name}.rebuilding"
        self._old = self.target.parent / f".{self.target.name}.replaced"
        self._take_away()
        self._beside.mkdir(parents=True)
        self._tree = FileTree(self._beside, gather_bytes=file_gather_bytes)

    def __enter__(self) -> "Rebuilding":
        return self

    def __exit__(self, *_: object) -> None:
        self._tree.close()
        self._take_away()

    def apply(self, steps: Iterable[tuple[int, Record]]) -> bool:
        """Take records; False once the stop is reached.

        Raises UnsafePathError, FileConflictError (the journal's fault), OSError.
        """
        for end, record in steps:
            if self.stopped or self.stop.lies_before(end, record):
                self.stopped = True
                return False
            self.end = end
            self.records += 1
            if record.op is Op.MARK:
                self.wall_ms = record.ints[0]
                continue
            op = file_op(record, self._paths)
            if op is not None and self._only in (None, op.path):
                self._tree.apply(op)
        return True

    def put(self) -> None:
        """The tree stands at the target from now on, instead of what was there."""
        self._tree.flush()
        self._tree.close()
        if os.path.lexists(self.target):
            self.target.rename(self._old)
        self._beside.rename(self.target)
        self._take_away()

    def _take_away(self) -> None:
        for path in (self._beside, self._old):
            if path.is_symlink() or path.is_file():
                path.unlink()
            elif path.exists():
                shutil.rmtree(path)
