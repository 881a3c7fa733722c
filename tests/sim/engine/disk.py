"""A disk with faults: the disk in memory (which keeps, loses, tears and zeroes what was not synced), and the
faults of a run.

Faults of the medium; `nemesis` plans when they happen.
"""

import errno
from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from random import Random

from dos_protocol.digests import Buffer
from dos_protocol.errors import CorruptDataError
from dos_server.disk import write_all
from dos_server.log_files import end_log
from dos_server.memory.disk import ENDLESS, SECTOR, MemoryDisk, _Folder, _Node


class PowerCutError(BaseException):
    """The power fails during a disk call. Only the machine catches it."""


class _ShortWrites:
    """System calls of a kernel that ends writes early: they write a part and return its size."""

    def __init__(
        self, disk: "SimDisk", rng: Random, write: Callable[[int, int, Sequence[Buffer]], None]
    ) -> None:
        self._disk = disk
        self._rng = rng
        self._write = write

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int, /) -> int:
        return self.pwrite(handle, b"".join(buffers), position)

    def pwrite(self, handle: int, data: Buffer, position: int, /) -> int:
        count = len(data)
        if count > 1 and self._rng.random() < 0.5:
            count = self._rng.randrange(1, count)
            if self._disk.whole_sectors:
                count = max(count - (position + count) % SECTOR, 0) or len(data)
            self._disk.sometimes["disk: short write"] += 1
        self._write(handle, position, [memoryview(data)[:count]])
        return count


class SimDisk(MemoryDisk):
    """A disk with faults. `cut_in`: the power fails after so many more calls; `failing`: methods that fail
    with that error while they are listed; `trouble`: returns for a method the error number of this call, or
    0; `short`: decides where the kernel ends writes early, None: nowhere; `unreadable`: sectors that
    cannot be read, by the file that they belong to, whatever its name: a new copy that replaces an old one
    has other sectors. `whole_sectors`: a write that is ended early ends at a boundary of a sector, so that a
    power cut leaves no half of one; recovery takes a half of an extent's sector for bit rot. `was_full`: the
    disk was full at any time. `sometimes`: counts the effects of faults.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cut_in: int | None = None
        self.failing: dict[str, int] = {}
        self.trouble: Callable[[str], int] | None = None
        self.short: Random | None = None
        self.whole_sectors = False
        self.was_full = False
        self.sometimes: Counter[str] = Counter()
        self.unreadable: list[tuple[_Node, int]] = []
        self._after: dict[bool, tuple[int, SimDisk]] = {}

    def _called(self, method: str, what: str) -> None:
        self.calls.clear()
        if self.cut_in is not None:
            self.cut_in -= 1
            if self.cut_in <= 0:
                self.cut_in = None
                raise PowerCutError
        if method in self.failing:
            raise OSError(self.failing[method], f"injected into {method}", what)
        if self.trouble is not None and not self.off and (error := self.trouble(method)):
            self.sometimes[f"disk: {errno.errorcode[error]} from {method}"] += 1
            raise OSError(error, f"injected into {method}", what)
        super()._called(method, what)

    def write(self, handle: int, position: int, buffers: Sequence[Buffer]) -> None:
        write = super().write
        try:
            if self.short is None:
                write(handle, position, buffers)
            else:
                write_all(_ShortWrites(self, self.short, write), handle, position, buffers)
        except OSError as error:
            self.sometimes["disk: ENOSPC from write"] += error.errno == errno.ENOSPC
            raise

    def fill(self, left: int) -> None:
        """Leave space for that many bytes."""
        self.was_full = True
        self.space = self.used + left

    def free(self) -> None:
        """Give the disk unlimited space again."""
        self.space = ENDLESS

    def heal(self) -> None:
        """End all faults; damage remains."""
        super().heal()
        self.cut_in = None
        self.failing.clear()
        self.trouble = self.short = None
        self.free()

    def read(self, handle: int, position: int, count: int) -> bytes:
        self._may_be_read(handle, position, count)
        return super().read(handle, position, count)

    def read_stored(self, handle: int, position: int, count: int) -> bytes:
        self._may_be_read(handle, position, count)
        return super().read_stored(handle, position, count)

    def _may_be_read(self, handle: int, position: int, count: int) -> None:
        node, path = self._node(handle)
        for bad, sector in self.unreadable:
            if bad is node and position < (sector + 1) * SECTOR and sector * SECTOR < position + count:
                raise OSError(errno.EIO, f"sector {sector} cannot be read", path)

    def spoil(self, path: str, sector: int) -> None:
        """Let reads of that sector of a file on the platters fail from now on."""
        node = self._find(path, durable=True)
        assert node is not None, f"{path} is on the platters"
        self.unreadable.append((node, sector))

    def is_unreadable(self, path: str) -> bool:
        """Return whether a file on the platters has a sector that cannot be read."""
        node = self._find(path, durable=True)
        return any(bad is node for bad, _ in self.unreadable)

    def write_back(self) -> None:
        """Write the page cache to the platters, as the kernel does after a while."""
        self._write_back(self.root)

    def _write_back(self, folder: _Folder) -> None:
        folder.stable = dict(folder.seen)
        for node in folder.seen.values():
            if isinstance(node, _Folder):
                self._write_back(node)
            else:
                node.sync()

    def damage(self, path: str, change: Callable[[bytearray], None], *, cached: bool = False) -> None:
        """Change a file on the platters and drop it from the cache; `cached`: the cache keeps the old
        content."""
        node = self._find(path, durable=True)
        assert node is not None, f"{path} is on the platters"
        change(node.stable)
        if not cached:
            node.seen = bytearray(node.stable)
            node.unsynced.clear()

    def forget_cache(self, path: str) -> None:
        """Drop a file from the cache, as a kernel that needs memory does, unless it has unwritten changes."""
        node = self._find(path, durable=True)
        if node is not None and not node.unsynced and len(node.seen) == len(node.stable):
            node.seen = bytearray(node.stable)

    def _find(self, path: str, *, durable: bool) -> _Node | None:
        node: _Node | _Folder | None = self.root
        for part in path.split("/"):
            if not isinstance(node, _Folder):
                return None
            node = (node.stable if durable else node.seen).get(part)
        return node if isinstance(node, _Node) else None

    def entries(self, folder: str) -> list[str]:
        """Return the sorted names in a folder, none if it does not exist. It does not count as a disk
        call."""
        node: _Node | _Folder | None = self.root
        for part in folder.split("/"):
            node = node.seen.get(part) if isinstance(node, _Folder) else None
        return sorted(node.seen) if isinstance(node, _Folder) else []

    def stable(self, path: str) -> bytes | None:
        """Return a whole file as it is on the platters; None if its name is not durable."""
        node = self._find(path, durable=True)
        return None if node is None else bytes(node.stable)

    def after_start(self, *, durable: bool = False) -> "SimDisk":
        """Return the disk as the next start makes it from the group log; itself if no log is in use.

        durable: only what is on the platters. If the start is refused, the files are as they are.
        """
        if self.content("life") is None:
            return self
        stamp = sum(self._counts.values())
        if self._after.get(durable, (0, self))[0] != stamp:
            self._after[durable] = stamp, self._replayed(durable=durable)
        return self._after[durable][1]

    def platters(self) -> _Folder:
        """Return a copy of what is on the platters, as a snapshot of the volume has it."""
        root = deepcopy(self.root)
        _drop_cache(root)
        return root

    def is_healthy(self) -> bool:
        """Return whether no fault is in progress or coming."""
        return (
            self.space == ENDLESS and self.cut_in is None and not (self.failing or any(self._faults.values()))
        )

    def _replayed(self, *, durable: bool) -> "SimDisk":
        copy = SimDisk()
        copy.root, copy.unreadable = deepcopy((self.root, self.unreadable))
        if durable:
            _drop_cache(copy.root)
        try:
            end_log(copy)
        except CorruptDataError:
            return self
        return copy

    def readable(self, path: str) -> bytes | None:
        """Return the content of a file on the platters up to the first sector that cannot be read; None if
        its name is not durable."""
        node = self._find(path, durable=True)
        if node is None:
            return None
        bad = [sector * SECTOR for one, sector in self.unreadable if one is node]
        return bytes(node.stable[: min(bad, default=len(node.stable))])

    def content(self, path: str) -> bytes | None:
        """Return a whole file as programs see it; None if there is none."""
        node = self._find(path, durable=False)
        return None if node is None else bytes(node.seen)


def _drop_cache(folder: _Folder) -> None:
    folder.seen = dict(folder.stable)
    for node in folder.stable.values():
        if isinstance(node, _Folder):
            _drop_cache(node)
        else:
            node.seen = bytearray(node.stable)
            node.unsynced.clear()
