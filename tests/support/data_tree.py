"""What lies in a folder, so that a test can say that nothing there changed."""

import hashlib
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

Entry = tuple[str, int, str]
"""(kind and permissions, number of names, what it holds)"""


def tree(root: Path) -> dict[str, Entry]:
    """Every name below the folder, and what is behind it. Follows no link, opens only regular files."""
    found = {".": _entry(root)}
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder, name)
            found[str(path.relative_to(root))] = _entry(path)
    return found


@contextmanager
def undisturbed(data: Path, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """What is done to a server inside leaves its data to the byte (P-8), and nothing raw in its log."""
    caplog.set_level(logging.INFO, "dos.server")
    before = tree(data)
    yield
    assert tree(data) == before
    assert all(line.isprintable() and line.isascii() for line in caplog.messages)


def _entry(path: Path) -> Entry:
    about = path.lstat()
    if stat.S_ISREG(about.st_mode):
        held = f"{about.st_size} bytes, {hashlib.sha256(path.read_bytes()).hexdigest()}"
    else:
        held = str(path.readlink()) if stat.S_ISLNK(about.st_mode) else ""
    return stat.filemode(about.st_mode), 1 if stat.S_ISDIR(about.st_mode) else about.st_nlink, held
