"""A disk in memory that can be made to fail, fill up and lose its power. It passes the tests of the real one.

It keeps what a real disk keeps:

- Writes are in a cache until `sync`; entries of a folder are in a cache until `sync_folder`.
- A failed sync drops what it was to write, and later syncs succeed (as on ext4, XFS and Btrfs).
- In a power cut every sector of an unsynced write is kept, lost or zeroed, and each unsynced entry is kept or
  lost.
"""

import errno
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from dos_protocol.digests import Buffer
from dos_server.disk import FreeSpace

SECTOR = 512
ENDLESS = 1 << 40
"""Unlimited space. The space used is then not counted at each write."""


@dataclass
class _Node:
    """A file: the content that programs see, that on stable storage, and the writes between them."""

    seen: bytearray = field(default_factory=bytearray)
    stable: bytearray = field(default_factory=bytearray)
    unsynced: list[tuple[int, bytes]] = field(default_factory=list)

    def __deepcopy__(self, memo: object) -> "_Node":
        return _Node(bytearray(self.seen), bytearray(self.stable), list(self.unsynced))

    def sync(self) -> None:
        """Apply only the pending writes: what a failed sync dropped stays lost."""
        for position, data in self.unsynced:
            if position > len(self.stable):
                self.stable.extend(bytes(position - len(self.stable)))
            self.stable[position : position + len(data)] = data
        del self.stable[len(self.seen) :]
        self.unsynced.clear()


@dataclass
class _Folder:
    seen: dict[str, "_Node | _Folder"] = field(default_factory=dict)
    stable: dict[str, "_Node | _Folder"] = field(default_factory=dict)


class MemoryDisk:
    """A data directory in memory. `calls`: all calls, in order; `fail` and `fail_at` inject errors."""

    def __init__(self, *, space: int = ENDLESS) -> None:
        self.root = _Folder()
        self.space = space
        self.off = False
        """The machine is off: calls still made by its last tasks change nothing."""
        self.gone = ""
        """Why the data directory is gone, if a test removed it."""
        self.calls: list[tuple[str, str]] = []
        self._faults: dict[str, dict[int, int]] = defaultdict(dict)
        self._faults_at: dict[tuple[str, str], int] = {}
        self._counts: dict[str, int] = defaultdict(int)
        self._handles: dict[int, tuple[_Node, str]] = {}
        self._last = 0

    def fail(self, method: str, error: int, *, nth: int = 1) -> None:
        """Make the nth call of a method from now on raise OSError(error)."""
        self._faults[method][self._counts[method] + nth] = error

    def fail_at(self, method: str, path: str, error: int) -> None:
        """Make the next call of a method on exactly that path raise OSError(error)."""
        self._faults_at[method, path] = error

    def heal(self) -> None:
        self._faults.clear()
        self._faults_at.clear()

    def _called(self, method: str, what: str) -> None:
        if self.off:
            raise OSError(errno.EIO, "the machine of this disk is off", what)
        self.calls.append((method, what))
        self._counts[method] += 1
        if self._faults or self._faults_at:
            self._raise_injected(method, what)

    def _raise_injected(self, method: str, what: str) -> None:
        error = 0
        if method in self._faults:
            error = self._faults[method].pop(self._counts[method], 0)
        error = error or self._faults_at.pop((method, what), 0)
        if error:
            raise OSError(error, f"injected into {method}", what)

    def put(self, path: str, data: bytes) -> None:
        *folders, name = path.split("/")
        folder = self.root
        for part in folders:
            inner = folder.seen.setdefault(part, _Folder())
            assert isinstance(inner, _Folder), path
            folder.stable[part], folder = inner, inner
        folder.seen[name] = folder.stable[name] = _Node(bytearray(data), bytearray(data))

    def take_away(self, path: str) -> None:
        """Remove a file, or a folder with its content, durably and behind the server's back."""
        folder, _, name = path.rpartition("/")
        above = self._folder(folder)
        above.seen.pop(name)
        above.stable.pop(name, None)

    def content(self, path: str) -> bytes:
        folder, _, name = path.rpartition("/")
        node = self._folder(folder).seen[name]
        assert isinstance(node, _Node), path
        return bytes(node.seen)

    def power_cut(self, rng: random.Random) -> None:
        """Cut the power: handles become invalid, and unsynced writes and entries are lost at random."""
        self._handles.clear()
        self._cut(self.root, rng)

    def kill(self) -> None:
        """Kill the process but not the machine: handles become invalid, the cache stays."""
        self._handles.clear()

    def _cut(self, folder: _Folder, rng: random.Random) -> None:
        for name in sorted({*folder.seen, *folder.stable}):
            if folder.seen.get(name) is not folder.stable.get(name) and rng.random() < 0.5:
                folder.stable.pop(name, None)
                if name in folder.seen:
                    folder.stable[name] = folder.seen[name]
        folder.seen = dict(folder.stable)
        for node in folder.stable.values():
            if isinstance(node, _Folder):
                self._cut(node, rng)
            else:
                self._cut_file(node, rng)

    def _cut_file(self, node: _Node, rng: random.Random) -> None:
        if len(node.seen) < len(node.stable) and rng.random() < 0.5:
            del node.stable[len(node.seen) :]
        for position, data in node.unsynced:
            self._keep_random_part(node.stable, position, data, rng)
        node.seen = bytearray(node.stable)
        node.unsynced.clear()

    @staticmethod
    def _keep_random_part(stable: bytearray, position: int, data: bytes, rng: random.Random) -> None:
        """Keep a random part of one write: nothing; or its size, or up to a sector boundary, each sector kept
        or zeroed.
        """
        if rng.random() < 0.3:
            return
        end = position + rng.choice([len(data), rng.randrange(len(data) + 1)])
        if end < position + len(data):
            end -= end % SECTOR
        if end > len(stable):
            stable.extend(bytes(end - len(stable)))
        start = position
        while start < end:
            stop = min(start - start % SECTOR + SECTOR, end)
            if rng.random() < 0.6:
                stable[start:stop] = data[start - position : stop - position]
            start = stop

    # The port

    def _folder(self, path: str) -> _Folder:
        node: _Node | _Folder = self.root
        for part in path.split("/") if path else ():
            if not isinstance(node, _Folder):
                raise NotADirectoryError(errno.ENOTDIR, "not a folder", path)
            if part not in node.seen:
                raise FileNotFoundError(errno.ENOENT, "no such folder", path)
            node = node.seen[part]
        if not isinstance(node, _Folder):
            raise NotADirectoryError(errno.ENOTDIR, "not a folder", path)
        return node

    def names(self, folder: str) -> list[str] | None:
        self._called("names", folder)
        try:
            return list(self._folder(folder).seen)
        except FileNotFoundError:
            return None

    def make_folder(self, folder: str) -> bool:
        self._called("make_folder", folder)
        parent, _, name = folder.rpartition("/")
        entries = self._folder(parent).seen
        if name in entries:
            return False
        entries[name] = _Folder()
        return True

    def open(self, path: str, *, create: bool) -> int:
        self._called("open", path)
        folder, _, name = path.rpartition("/")
        entries = self._folder(folder).seen
        node = entries.get(name)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            node = entries[name] = _Node()
        if not isinstance(node, _Node):
            raise IsADirectoryError(errno.EISDIR, "a folder", path)
        self._last += 1
        self._handles[self._last] = (node, path)
        return self._last

    def _node(self, handle: int) -> tuple[_Node, str]:
        try:
            return self._handles[handle]
        except KeyError:
            raise OSError(errno.EBADF, "bad handle") from None

    def close(self, handle: int) -> None:
        if self.off:
            return
        self._called("close", self._node(handle)[1])
        del self._handles[handle]

    def is_named(self, handle: int, path: str) -> bool:
        if self.off:
            return True  # the caller is dead: the answer is not used
        folder, _, name = path.rpartition("/")
        try:
            return self._folder(folder).seen.get(name) is self._node(handle)[0]
        except (FileNotFoundError, NotADirectoryError):
            return False

    def why_gone(self) -> str:
        return self.gone

    def size(self, handle: int) -> int:
        return len(self._node(handle)[0].seen)

    def read(self, handle: int, position: int, count: int) -> bytes:
        node, path = self._node(handle)
        self._called("read", path)
        return bytes(node.seen[position : position + count])

    def read_stored(self, handle: int, position: int, count: int) -> bytes:
        """Read from stable storage: bit rot that the cache hides is only in `stable`."""
        node, path = self._node(handle)
        self._called("read_stored", path)
        return bytes(node.stable[position : position + count])

    def write(self, handle: int, position: int, buffers: Sequence[Buffer]) -> None:
        node, path = self._node(handle)
        data = b"".join(buffers)
        try:
            self._called("write", path)
        except OSError:
            if not self.off:
                self._put(node, position, data[: len(data) // 2])
            raise
        if self.space < ENDLESS:
            room = self.space - self.used + max(0, len(node.seen) - position)
            if len(data) > room:
                self._put(node, position, data[: max(room, 0)])
                raise OSError(errno.ENOSPC, "full")
        self._put(node, position, data)

    @staticmethod
    def _put(node: _Node, position: int, data: bytes) -> None:
        if position > len(node.seen):
            node.seen.extend(bytes(position - len(node.seen)))
        node.seen[position : position + len(data)] = data
        if data:
            node.unsynced.append((position, data))

    @property
    def used(self) -> int:
        def bytes_in(folder: _Folder) -> int:
            return sum(
                bytes_in(node) if isinstance(node, _Folder) else len(node.seen)
                for node in list(folder.seen.values())
            )

        return bytes_in(self.root)

    def cut(self, handle: int, size: int) -> None:
        node, path = self._node(handle)
        self._called("cut", path)
        del node.seen[size:]
        longer = bytes(size - len(node.seen))
        node.unsynced = [(at, data[: max(size - at, 0)]) for at, data in node.unsynced if at < size]
        self._put(node, len(node.seen), longer)

    def sync(self, handle: int) -> None:
        if self.off:
            return  # the caller is dead: that nothing was synced is never reported
        node, path = self._node(handle)
        try:
            self._called("sync", path)
        except OSError:
            if not self.off:
                node.unsynced.clear()  # as on Linux: the pages count as clean, and are lost
            raise
        node.sync()

    def sync_folder(self, folder: str) -> None:
        self._called("sync_folder", folder)
        entries = self._folder(folder)
        entries.stable = dict(entries.seen)

    def rename(self, folder: str, old: str, new: str) -> None:
        self._called("rename", f"{folder}/{new}")
        entries = self._folder(folder).seen
        if old not in entries:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        if isinstance(entries.get(new), _Folder):
            raise IsADirectoryError(errno.EISDIR, "a folder", new)
        entries[new] = entries.pop(old)

    def remove(self, path: str) -> None:
        self._called("remove", path)
        folder, _, name = path.rpartition("/")
        entries = self._folder(folder).seen
        if name not in entries:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        if isinstance(entries[name], _Folder):
            raise IsADirectoryError(errno.EISDIR, "a folder", path)
        del entries[name]

    def free_space(self) -> FreeSpace:
        self._called("free_space", "")
        return FreeSpace(max(self.space - self.used, 0), self.space)
