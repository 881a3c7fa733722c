"""The server's port to the disk, on a `DiskState` in memory: for crashes in the middle of a start.

What the server does is in `journal`, as if the file system had noted it.
"""

import errno
from collections.abc import Callable, Sequence

from dos_protocol.digests import Buffer
from dos_server.disk import FreeSpace
from dos_server.limits import mark_bytes
from tests.power import operations as op
from tests.power.disk_state import ROOT, DiskState


class DeadError(Exception):
    """The server does nothing more: it was killed, or the power went."""


class ModelDisk:
    """The server's disk interface on a `DiskState` in memory; the data directory is the folder `below` of
    that disk. It passes the contract of a disk (`tests/contract/test_disk.py`). After `dies_after` operations
    every further one raises DeadError.
    """

    def __init__(self, state: DiskState, below: str = "", *, dies_after: int = 1 << 40) -> None:
        self.state = state
        self.dies_after = dies_after
        self.trouble: Callable[[str], int] = lambda _: 0
        """Error number by method: 0 is none. A write that fails has written its first half."""
        self._below = below
        self.journal: list[op.AnyOperation] = []
        self._handles: dict[int, int] = {}
        self._last_handle = 0
        self._last_node = max([*self.state.files, *self.state.folders])

    def _called(self, method: str) -> None:
        if error := self.trouble(method):
            raise OSError(error, f"injected into {method}")

    def _do(self, operation: op.AnyOperation) -> None:
        if len(self.journal) >= self.dies_after:
            raise DeadError
        self.state.apply(operation)
        self.journal.append(operation)

    def _folder(self, path: str) -> int:
        node = ROOT
        for part in filter(None, f"{self._below}/{path}".split("/")):
            inner = self.state.folders[node].seen.get(part)
            if inner is None:
                raise FileNotFoundError(errno.ENOENT, "no such folder", path)
            if inner not in self.state.folders:
                raise NotADirectoryError(errno.ENOTDIR, "not a folder", path)
            node = inner
        return node

    def _place(self, path: str) -> tuple[int, str]:
        folder, _, name = path.rpartition("/")
        return self._folder(folder), name

    def _new_node(self) -> int:
        self._last_node += 1
        return self._last_node

    def _node(self, handle: int) -> int:
        if handle not in self._handles:
            raise OSError(errno.EBADF, "bad handle")
        return self._handles[handle]

    def names(self, folder: str) -> list[str] | None:
        try:
            return list(self.state.folders[self._folder(folder)].seen)
        except FileNotFoundError:
            return None

    def make_folder(self, folder: str) -> bool:
        self._called("make_folder")
        parent, name = self._place(folder)
        if name in self.state.folders[parent].seen:
            return False
        self._do(op.MakeFolder(folder=parent, name=name, node=self._new_node()))
        return True

    def open(self, path: str, *, create: bool) -> int:
        self._called("open")
        folder, name = self._place(path)
        if name not in self.state.folders[folder].seen:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            self._do(op.MakeFile(folder=folder, name=name, node=self._new_node()))
        node = self.state.folders[folder].seen[name]
        if node not in self.state.files:
            raise OSError(errno.EINVAL, "not a regular file with one name", path)
        self._last_handle += 1
        self._handles[self._last_handle] = node
        return self._last_handle

    def close(self, handle: int) -> None:
        del self._handles[handle]

    def is_named(self, handle: int, path: str) -> bool:
        try:
            folder, name = self._place(path)
        except OSError:
            return False
        return self.state.folders[folder].seen.get(name) == self._node(handle)

    def why_gone(self) -> str:
        return ""

    def size(self, handle: int) -> int:
        return len(self.state.files[self._node(handle)].seen)

    def read(self, handle: int, position: int, count: int) -> bytes:
        return bytes(self.state.files[self._node(handle)].seen[position : position + count])

    def read_stored(self, handle: int, position: int, count: int) -> bytes:
        """Of what is synced, both are the same here: nothing rots."""
        return self.read(handle, position, count)

    def write(self, handle: int, position: int, buffers: Sequence[Buffer]) -> None:
        data = b"".join(bytes(one) for one in buffers)
        try:
            self._called("write" if len(data) > mark_bytes else "write of a mark")
        except OSError:
            half = op.Write(node=self._node(handle), position=position, data=data[: len(data) // 2])
            self._do(half)
            raise
        self._do(op.Write(node=self._node(handle), position=position, data=data))

    def cut(self, handle: int, size: int) -> None:
        self._do(op.Resize(node=self._node(handle), size=size))

    def sync(self, handle: int) -> None:
        self._do(op.SyncFile(node=self._node(handle), since=self.state.count))

    def sync_folder(self, folder: str) -> None:
        self._called("sync_folder")
        self._do(op.SyncFolder(node=self._folder(folder), since=self.state.count))

    def rename(self, folder: str, old: str, new: str) -> None:
        node = self._folder(folder)
        if old not in self.state.folders[node].seen:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        self._do(op.Rename(folder=node, name=old, new_name=new))

    def remove(self, path: str) -> None:
        self._called("remove")
        folder, name = self._place(path)
        if name not in self.state.folders[folder].seen:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        self._do(op.Remove(folder=folder, name=name))

    def free_space(self) -> FreeSpace:
        return FreeSpace(1 << 40, 1 << 40)
