"""A FUSE file system that loses what was not synced when its power is cut.

    python -m tests.power.lossy_fs MOUNTPOINT SYNC_MS

It obeys one JSON object a line on standard input, and answers each with a line; the end of standard input
unmounts.

    {"do": "freeze"}                nothing takes effect any more: who asks waits
    {"do": "cut", "seed": 7}        who waits gets an error; what seed 7 leaves of the disk is mounted again;
                                    null for a seed: what was synced, and nothing else
    {"do": "lie", "files": true, "folders": false}    whether syncs are answered, and not done
    {"do": "stop", "after": 3}      after 3 more operations every call fails, as if who calls was killed; null
                                    ends it
    {"do": "journal", "to": PATH}   write down every operation since the mount

A sync takes up to SYNC_MS milliseconds and covers only what came before it began. `disk_state` says what may
be lost. The pages are not kept by the kernel (direct I/O), names and attributes neither: every call arrives
here.
"""

import errno
import json
import os
import random
import stat
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pyfuse3
import trio

from tests.power import operations as op
from tests.power.disk_state import DiskState


class LossyFs(pyfuse3.Operations):
    """One life of the disk, from a mount to the next cut."""

    def __init__(self, state: DiskState, sync_s: float) -> None:
        super().__init__()
        self.state = state
        self.journal: list[op.AnyOperation] = []
        self.lie_files = self.lie_folders = False
        self._sync_s = sync_s
        self._rng = random.Random(len(state.files))
        self._last_node = max([*state.files, *state.folders])
        self._frozen = False
        self._stops_at: int | None = None
        self._power_is_gone = trio.Event()

    def freeze(self) -> None:
        self._frozen = True

    def let_go(self) -> None:
        """Those who wait get an error: they should be dead by now."""
        self._frozen = True
        self._power_is_gone.set()

    def stop(self, after: int | None) -> None:
        self._stops_at = None if after is None else self.state.count + after

    async def _gate(self) -> None:
        if self._stops_at is not None and self.state.count >= self._stops_at:
            raise pyfuse3.FUSEError(errno.EIO)
        if self._frozen:
            await self._power_is_gone.wait()
            raise pyfuse3.FUSEError(errno.EIO)

    async def _do(self, make: Callable[[float], op.AnyOperation]) -> None:
        await self._gate()
        operation = make(time.monotonic())
        self.state.apply(operation)
        self.journal.append(operation)

    async def _syncs(self) -> int:
        """A sync that takes its time; where it began."""
        await self._gate()
        since = self.state.count
        await trio.sleep(self._rng.random() * self._sync_s)
        return since

    # What there is

    def _about(self, node: int) -> pyfuse3.EntryAttributes:
        about = pyfuse3.EntryAttributes()
        about.st_ino = node
        is_folder = node in self.state.folders
        about.st_mode = stat.S_IFDIR | 0o700 if is_folder else stat.S_IFREG | 0o600
        about.st_nlink = 2 if is_folder else 1
        about.st_uid, about.st_gid = os.getuid(), os.getgid()
        about.st_size = 0 if is_folder else len(self.state.files[node].seen)
        about.st_blksize = 4096
        about.st_blocks = -(-about.st_size // 512)
        about.st_atime_ns = about.st_mtime_ns = about.st_ctime_ns = 0
        about.entry_timeout = about.attr_timeout = 0.0
        return about

    def _entries(self, folder: int) -> dict[str, int]:
        if folder not in self.state.folders:
            raise pyfuse3.FUSEError(errno.ENOTDIR)
        return self.state.folders[folder].seen

    def _child(self, folder: int, name: bytes) -> int:
        node = self._entries(folder).get(os.fsdecode(name))
        if node is None:
            raise pyfuse3.FUSEError(errno.ENOENT)
        return node

    async def lookup(self, parent_inode: Any, name: Any, ctx: Any) -> Any:
        await self._gate()
        return self._about(self._child(parent_inode, name))

    async def getattr(self, inode: Any, ctx: Any) -> Any:
        await self._gate()
        if inode not in self.state.folders and inode not in self.state.files:
            raise pyfuse3.FUSEError(errno.ENOENT)
        return self._about(inode)

    async def opendir(self, inode: Any, ctx: Any) -> Any:
        await self._gate()
        return inode

    async def readdir(self, fh: Any, start_id: Any, token: Any) -> None:
        await self._gate()
        for place, (name, node) in enumerate(sorted(self._entries(fh).items()), 1):
            if place > start_id and not pyfuse3.readdir_reply(
                token, os.fsencode(name), self._about(node), place
            ):
                return

    async def open(self, inode: Any, flags: Any, ctx: Any) -> Any:
        await self._gate()
        if flags & os.O_TRUNC:
            await self._do(lambda at: op.Resize(at=at, node=inode, size=0))
        return pyfuse3.FileInfo(fh=inode, direct_io=True)

    async def read(self, fh: Any, off: Any, size: Any) -> bytes:
        await self._gate()
        return bytes(self.state.files[fh].seen[off : off + size])

    async def statfs(self, ctx: Any) -> Any:
        await self._gate()
        about = pyfuse3.StatvfsData()
        about.f_bsize = about.f_frsize = 4096
        about.f_blocks = about.f_bfree = about.f_bavail = 1 << 24
        about.f_files = about.f_ffree = about.f_favail = 1 << 20
        about.f_namemax = 255
        return about

    async def access(self, inode: Any, mode: Any, ctx: Any) -> bool:
        await self._gate()
        return True

    async def flush(self, fh: Any) -> None:
        """Closing makes nothing durable."""

    async def release(self, fh: Any) -> None:
        """Nothing to give back: nodes live as long as the mount."""

    async def releasedir(self, fh: Any) -> None:
        """As `release`."""

    async def forget(self, inode_list: Any) -> None:
        """As `release`."""

    # What changes it

    async def mkdir(self, parent_inode: Any, name: Any, mode: Any, ctx: Any) -> Any:
        return self._about(await self._make(op.MakeFolder, parent_inode, os.fsdecode(name)))

    async def create(self, parent_inode: Any, name: Any, mode: Any, flags: Any, ctx: Any) -> Any:
        node = await self._make(op.MakeFile, parent_inode, os.fsdecode(name))
        return pyfuse3.FileInfo(fh=node, direct_io=True), self._about(node)

    async def _make(self, kind: type[op.MakeFile | op.MakeFolder], folder: int, name: str) -> int:
        await self._gate()
        if name in self._entries(folder):
            raise pyfuse3.FUSEError(errno.EEXIST)
        self._last_node += 1
        node = self._last_node
        await self._do(lambda at: kind(at=at, folder=folder, name=name, node=node))
        return node

    async def write(self, fh: Any, off: Any, buf: Any) -> int:
        await self._do(lambda at: op.Write(at=at, node=fh, position=off, data=bytes(buf)))
        return len(buf)

    async def setattr(self, inode: Any, attr: Any, fields: Any, fh: Any, ctx: Any) -> Any:
        if fields.update_size:
            await self._do(lambda at: op.Resize(at=at, node=inode, size=attr.st_size))
        return self._about(inode)

    async def unlink(self, parent_inode: Any, name: Any, ctx: Any) -> None:
        await self._gate()
        if self._child(parent_inode, name) in self.state.folders:
            raise pyfuse3.FUSEError(errno.EISDIR)
        await self._do(lambda at: op.Remove(at=at, folder=parent_inode, name=os.fsdecode(name)))

    async def rmdir(self, parent_inode: Any, name: Any, ctx: Any) -> None:
        await self._gate()
        if self._entries(self._child(parent_inode, name)):
            raise pyfuse3.FUSEError(errno.ENOTEMPTY)
        await self._do(lambda at: op.Remove(at=at, folder=parent_inode, name=os.fsdecode(name)))

    async def rename(
        self, parent_inode_old: Any, name_old: Any, parent_inode_new: Any, name_new: Any, flags: Any, ctx: Any
    ) -> None:
        await self._gate()
        self._child(parent_inode_old, name_old)
        if flags:
            raise pyfuse3.FUSEError(errno.EINVAL)
        name, new_name = os.fsdecode(name_old), os.fsdecode(name_new)
        old, new = parent_inode_old, parent_inode_new
        await self._do(lambda at: op.Rename(at=at, folder=old, name=name, new_name=new_name, new_folder=new))

    async def link(self, inode: Any, new_parent_inode: Any, new_name: Any, ctx: Any) -> Any:
        await self._gate()
        name = os.fsdecode(new_name)
        if name in self._entries(new_parent_inode):
            raise pyfuse3.FUSEError(errno.EEXIST)
        await self._do(lambda at: op.Link(at=at, folder=new_parent_inode, name=name, node=inode))
        return self._about(inode)

    # What makes it durable

    async def fsync(self, fh: Any, datasync: Any) -> None:
        since = await self._syncs()
        if not self.lie_files:
            await self._do(lambda at: op.SyncFile(at=at, node=fh, since=since))

    async def fsyncdir(self, fh: Any, datasync: Any) -> None:
        since = await self._syncs()
        if not self.lie_folders:
            await self._do(lambda at: op.SyncFolder(at=at, node=fh, since=since))


class Power:
    """Mounts a disk, cuts its power, mounts what survived."""

    def __init__(self, mountpoint: str, sync_s: float) -> None:
        self._mountpoint = mountpoint
        self._sync_s = sync_s
        self._next: DiskState | None = DiskState()
        self._mounted = trio.Event()
        self._fs: LossyFs

    async def mounts(self) -> None:
        """One mount after the other, until there is no next one."""
        while self._next is not None:
            self._fs = LossyFs(self._next, self._sync_s)
            self._next = None
            pyfuse3.init(self._fs, self._mountpoint, {*pyfuse3.default_options, "fsname=dos-lossy"})
            try:
                self._mounted.set()
                await pyfuse3.main()
            finally:
                pyfuse3.close(unmount=True)

    async def obey(self) -> None:
        """The lines of standard input."""
        await self._mounted.wait()
        say(mounted=self._mountpoint)
        async for line in lines_of_input():
            say(**await self._obey(json.loads(line)))
        self._unmount()

    async def _obey(self, order: dict[str, Any]) -> dict[str, object]:
        match order:
            case {"do": "freeze"}:
                self._fs.freeze()
            case {"do": "cut", "seed": int() | None as seed}:
                await self._cut(seed)
            case {"do": "lie", "files": bool(files), "folders": bool(folders)}:
                self._fs.lie_files, self._fs.lie_folders = files, folders
            case {"do": "stop", "after": int() | None as after}:
                self._fs.stop(after)
            case {"do": "journal", "to": str(path)}:
                await trio.Path(path).write_bytes(op.encode(self._fs.journal))
            case _:
                raise ValueError(f"no such order: {order}")
        return {"operations": self._fs.state.count}

    async def _cut(self, seed: int | None) -> None:
        state = self._fs.state
        self._next = DiskState.of(state.bare() if seed is None else state.crash(seed))
        self._mounted = trio.Event()
        self._unmount()
        await self._mounted.wait()

    def _unmount(self) -> None:
        self._fs.let_go()
        pyfuse3.terminate()


def say(**words: object) -> None:
    print(json.dumps(words), flush=True)


async def lines_of_input() -> AsyncIterator[bytes]:
    rest = b""
    async with trio.lowlevel.FdStream(os.dup(0)) as stream:
        async for chunk in stream:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield line


async def run(mountpoint: str, sync_s: float) -> None:
    power = Power(mountpoint, sync_s)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(power.obey)
        await power.mounts()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(run, sys.argv[1], float(sys.argv[2]) / 1000)
