"""Compare two trees of files. Changes neither."""

from dataclasses import dataclass
from pathlib import Path

from journal.files.tree import FileTree
from journal.limits import file_copy_bytes_max


@dataclass(frozen=True, slots=True)
class FileChange:
    """The difference of one file: its size before and after, None if missing, and the first
    differing byte.
    """

    path: str
    before: int | None
    after: int | None
    differs_at: int = 0


def changes_between(before: Path, after: Path) -> list[FileChange]:
    """Return the files that were added, removed or changed, by name. Raises OSError."""
    with FileTree(before) as old, FileTree(after) as new:
        sizes = ({path: tree.size(path) for path in tree.paths()} for tree in (old, new))
        was, now = sizes
    changes = []
    for path in sorted(was.keys() | now.keys()):
        if path not in was or path not in now:
            changes.append(FileChange(path, was.get(path), now.get(path)))
        elif (at := _first_difference(before / path, after / path)) is not None:
            changes.append(FileChange(path, was[path], now[path], at))
    return changes


def _first_difference(one: Path, other: Path) -> int | None:
    at = 0
    with one.open("rb") as left, other.open("rb") as right:
        while True:
            first, second = left.read(file_copy_bytes_max), right.read(file_copy_bytes_max)
            if first != second:
                pairs = enumerate(zip(first, second, strict=False))
                return at + next((n for n, (a, b) in pairs if a != b), min(len(first), len(second)))
            if not first:
                return None
            at += len(first)
