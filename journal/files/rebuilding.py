"""Making a tree of files from records, beside the place where it is to stand, and putting it there whole.

Rules of this file: until `put` everything happens in a directory of its own beside the target, so that a
target that is seen is whole. What a crash leaves beside it is taken away by the next rebuilding of the same
target.
"""

import os
import shutil
from pathlib import Path

from journal.core.file_ops import Paths, ReplayStop
from journal.files.replaying import TO_THE_END, FilesReplay
from journal.files.tree import FileTree
from journal.limits import file_gather_bytes


class Rebuilding:
    """A tree in the making: `replay` takes the records. A context manager: left without `put`, nothing stays.

    `replay.take` raises UnsafePathError, FileConflictError (the journal's fault), OSError.
    """

    def __init__(
        self, target: Path, *, stop: ReplayStop = TO_THE_END, only: str | None = None, paths: Paths = "safe"
    ) -> None:
        self.target = target.absolute()
        self._beside = self.target.parent / f".{self.target.name}.rebuilding"
        self._old = self.target.parent / f".{self.target.name}.replaced"
        self._take_away()
        self._beside.mkdir(parents=True)
        self._tree = FileTree(self._beside, gather_bytes=file_gather_bytes)
        self.replay = FilesReplay(self._tree, stop=stop, only=only, paths=paths)

    def __enter__(self) -> "Rebuilding":
        return self

    def __exit__(self, *_: object) -> None:
        self._tree.close()
        self._take_away()

    def has_file(self, path: str) -> bool:
        """Whether the records taken so far leave a file of that path."""
        self._tree.flush()
        return (self._beside / path).is_file()

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
