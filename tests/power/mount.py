"""A disk for one server, whose power can be cut: `lossy_fs` as a process, mounted as long as the block runs.

    with LossyDisk(folder) as disk:
        server = disk.start_server()
        ...
        disk.cut(seed)      # the server dies, what was not synced goes by chance, what is left is mounted
        server.restart()

Never touch the files below `disk.data` from the test's own process: a call would hang with the file system.
"""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from tests.power import operations as op
from tests.support.servers import ServerProcess

ROOT = Path(__file__).parent.parent.parent
REMEDY = "apt-get install fuse3 libfuse3-dev pkg-config gcc libc6-dev python3-dev, then ./run test"
FILE_SYSTEM = "tests.power.lossy_fs"
SYNC_MS = 3.0
DATA = "deep/data"
"""The server's directory on its disk; it makes it, and what is above it."""


def what_is_missing() -> str:
    """Why no lossy file system can be mounted here; empty when one can."""
    if importlib.util.find_spec("pyfuse3") is None:
        return "pyfuse3 is not installed"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse is not there, or may not be opened"
    if os.getuid() and shutil.which("fusermount3") is None:
        return "fusermount3 is not installed"
    return ""


def skip_or_fail(why: str) -> None:
    """Where CI is set nothing of this may be skipped."""
    reason = f"no file system that can lose its power: {why}; {REMEDY}"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


class LossyDisk:
    """A mounted `lossy_fs`, whose power can be cut."""

    def __init__(self, folder: Path, *, sync_ms: float = SYNC_MS) -> None:
        if why := what_is_missing():
            skip_or_fail(why)
        folder.mkdir(parents=True)
        self.mountpoint = folder / "mount"
        self.mountpoint.mkdir()
        self.data = self.mountpoint / DATA
        self._folder = folder
        self._servers: list[ServerProcess] = []
        command = [sys.executable, "-m", FILE_SYSTEM, str(self.mountpoint), str(sync_ms)]
        with (folder / "fs.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        try:
            self._answer()
        except RuntimeError as error:
            self._unmount()
            skip_or_fail(str(error).strip().rpartition("\n")[2])

    @property
    def pid(self) -> int:
        """Of the file system."""
        return self._process.pid

    def start_server(self, *options: str) -> ServerProcess:
        """A server on this disk; it is killed at the end."""
        server = ServerProcess(self.data, options=options, log_path=self._folder / "server.log")
        self._servers.append(server)
        return server

    def cut(self, seed: int | None) -> None:
        """The server dies in the middle of it; what the seed leaves of the disk is mounted. None: what was
        synced, and nothing else."""
        self.freeze()
        self.go_dark(seed)

    def freeze(self) -> None:
        """Nothing takes effect on the disk any more. For cutting several disks at the same moment."""
        self._order(do="freeze")

    def go_dark(self, seed: int | None) -> None:
        for server in self._servers:
            server.process.send_signal(signal.SIGKILL)  # before its calls end with an error
        self._order(do="cut", seed=seed)
        for server in self._servers:
            server.kill()

    def lie(self, *, files: bool, folders: bool) -> None:
        """From now on syncs of files, of folders are answered and do nothing, until the next cut."""
        self._order(do="lie", files=files, folders=folders)

    def stop(self, after: int | None) -> int:
        """After so many more operations every call fails: a program of the test's own process is as good as
        killed. None: calls work again. Return the number of operations until now.
        """
        return int(self._order(do="stop", after=after)["operations"])

    def journal(self) -> list[op.AnyOperation]:
        """What was done to the disk since it was mounted."""
        path = self._folder / "journal"
        self._order(do="journal", to=str(path))
        return op.decode(path.read_bytes())

    def _order(self, **order: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the file system ended:\n{(self._folder / 'fs.log').read_text()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> "LossyDisk":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self._servers:
            server.process.send_signal(signal.SIGKILL)
        self._unmount()
        for server in self._servers:
            server.kill()

    def _unmount(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        if str(self.mountpoint) in Path("/proc/self/mounts").read_text():
            command = ["umount", "-l"] if os.getuid() == 0 else ["fusermount3", "-u", "-z"]
            subprocess.run([*command, self.mountpoint], check=True)
