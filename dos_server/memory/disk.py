"""A disk in memory that can be told to fail, fill up and lose its power. It passes the same tests as the real
one.

What it keeps, as a real one does: writes live in a cache until `sync`; entries of a folder live in a cache
until `sync_folder`; a failed sync forgets what it was to write, and later syncs succeed (ext4, XFS, Btrfs);
at a power cut every unsynced write keeps, loses or zeroes any of its sectors, and unsynced entries come or
go.
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
"""Room that nobody fills: what there is of it is not counted at each write."""


@dataclass
class _Node:
    """A file: what programs see, what the platters have, what lies between."""

    seen: bytearray = field(default_factory=bytearray)
    stable: bytearray = field(default_factory=bytearray)
    unsynced: list[tuple[int, bytes]] = field(default_factory=list)

    def sync(self) -> None:
        """Only what is still to be written is written: what a failed sync forgot stays lost."""
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
    """See the module. `calls`: every method called, for tests of order. `fail(method, number, error)`."""

    def __init__(self, *, space: int = ENDLESS) -> None:
        self.root = _Folder()
        self.space = space
        self.off = False
        """The machine is gone: whoever still calls, in its last moment, changes nothing."""
        self.gone = ""
        """Why the data directory is not there any more, if somebody took it away."""
        self.calls: list[tuple[str, str]] = []
        self._faults: dict[str, dict[int, int]] = defaultdict(dict)
        self._faults_at: dict[tuple[str, str], int] = {}
        self._counts: dict[str, int] = defaultdict(int)
        self._handles: dict[int, tuple[_Node, str]] = {}
        self._last = 0

    def fail(self, method: str, error: int, *, nth: int = 1) -> None:
        """The nth call of a method from now on raises OSError(error)."""
        self._faults[method][self._counts[method] + nth] = error

    def fail_at(self, method: str, path: str, error: int) -> None:
        """The next call of a method on that very path raises OSError(error)."""
        self._faults_at[method, path] = error

    def heal(self) -> None:
        """No faults are to come."""
        self._faults.clear()
        self._faults_at.clear()

    def _called(self, method: str, what: str) -> None:
        if self.off:
            raise OSError(errno.EIO, "the machine of this disk is off", what)
        self.calls.append((method, what))
        self._counts[method] += 1
        if self._faults or self._faults_at:
            self._fail_as_told(method, what)

    def _fail_as_told(self, method: str, what: str) -> None:
        error = 0
        if method in self._faults:
            error = self._faults[method].pop(self._counts[method], 0)
        error = error or self._faults_at.pop((method, what), 0)
        if error:
            raise OSError(error, f"injected into {method}", what)

    def put(self, path: str, data: bytes) -> None:
        """Have a file on the platters, and the folders above it, whatever was there."""
        *folders, name = path.split("/")
        folder = self.root
        for part in folders:
            inner = folder.seen.setdefault(part, _Folder())
            assert isinstance(inner, _Folder), path
            folder.stable[part], folder = inner, inner
        folder.seen[name] = folder.stable[name] = _Node(bytearray(data), bytearray(data))

    def take_away(self, path: str) -> None:
        """Somebody removes a file or a folder with all that is in it, durably, and asks nobody."""
        folder, _, name = path.rpartition("/")
        above = self._folder(folder)
        above.seen.pop(name)
        above.stable.pop(name, None)

    def content(self, path: str) -> bytes:
        """What programs see in a file."""
        folder, _, name = path.rpartition("/")
        node = self._folder(folder).seen[name]
        assert isinstance(node, _Node), path
        return bytes(node.seen)

    def power_cut(self, rng: random.Random) -> None:
        """Lose the power: handles go, and what was not synced goes by chance."""
        self._handles.clear()
        self._cut(self.root, rng)

    def kill(self) -> None:
        """The process dies, the machine does not: handles go, the cache stays."""
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
            self._keep_some(node.stable, position, data, rng)
        node.seen = bytearray(node.stable)
        node.unsynced.clear()

    @staticmethod
    def _keep_some(stable: bytearray, position: int, data: bytes, rng: random.Random) -> None:
        """Of one write: nothing; or its size, or up to a sector's edge, and of that each sector or zeros.

        A page is copied under its lock, so no sector holds half of what one write put there.
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
            return True  # nobody hears of it
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
        """What the platters have: rot that the cache hides is in `stable` alone."""
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
        """Bytes in all files."""

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
            return  # nobody hears that it did nothing
        node, path = self._node(handle)
        try:
            self._called("sync", path)
        except OSError:
            if not self.off:
                node.unsynced.clear()  # the pages are clean now, and not on the platters
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
