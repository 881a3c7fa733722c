"""Journaled directories on the store in memory, random changes to them, and the files that result."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from journal import Directory, Op, Record
from tests.journal.memory_store import MemoryStore

BEGIN_MS = 1_700_000_000_000


def files(root: Path) -> dict[str, bytes]:
    """What is there, as plain reading sees it."""
    return {
        str(Path(folder, name).relative_to(root)): Path(folder, name).read_bytes()
        for folder, _, names in os.walk(root)
        for name in names
    }


def names(root: Path) -> list[str]:
    """What lies in it, hidden things too."""
    return sorted(path.name for path in root.iterdir())


class Clock:
    """A wall clock that the test advances."""

    def __init__(self) -> None:
        self.ms = BEGIN_MS

    def __call__(self) -> int:
        return self.ms


@asynccontextmanager
async def opened(store: MemoryStore, path: Path, epoch: int, **options: Any) -> AsyncIterator[Directory]:
    async with await Directory.open(path, store.claim(epoch), **options) as directory:
        yield directory


NAMES = st.sampled_from(["a", "a", "b", "d/a", "d/e/b", "\udcff"])


SIZES = st.sampled_from([0, 1, 4]) | st.integers(0, 60)
"""So few that a write often begins at the end of a file, or just beside it."""
DATA = st.sampled_from([b"", b"x", b"four"]) | st.binary(max_size=40)

CHANGE = st.one_of(
    st.tuples(st.just("append"), NAMES, DATA),
    st.tuples(st.just("write_at"), NAMES, SIZES, DATA),
    st.tuples(st.just("truncate"), NAMES, SIZES),
    st.tuples(st.just("remove"), NAMES),
    st.tuples(st.just("rename"), NAMES, NAMES),
    st.tuples(st.just("reopen")),
    st.tuples(st.just("tamper"), NAMES),
)


def changed(model: dict[str, bytes], change: tuple[Any, ...]) -> dict[str, bytes]:
    """What the files are after the change."""
    after = dict(model)
    kind, *rest = change
    if kind == "append":
        after[rest[0]] = after.get(rest[0], b"") + rest[1]
    elif kind == "write_at":
        name, offset, data = rest
        old = after.get(name, b"")
        # As the operating system has it: a write of nothing makes the file and moves its end nowhere.
        after[name] = old[:offset].ljust(offset, b"\0") + data + old[offset + len(data) :] if data else old
    elif kind == "truncate":
        after[rest[0]] = after.get(rest[0], b"")[: rest[1]].ljust(rest[1], b"\0")
    elif kind == "remove":
        after.pop(rest[0])
    elif kind == "rename":
        after[rest[1]] = after.pop(rest[0])
    return after


def write(path: bytes, data: bytes, offset: int = 0) -> Record:
    return Record(Op.WRITE, ints=(offset,), strings=(path, data))


def mark(when: datetime) -> Record:
    return Record(Op.MARK, ints=(int(when.timestamp() * 1000),))
