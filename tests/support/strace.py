"""Faults from outside: strace, attached to a running server, makes its system calls fail or delays them.

    with Injected(server.pid, log, "inject=fdatasync:error=EIO"):
        ...

From the first line of the block until its end every matching call of every thread of the process is hit, and
none before or after. `paths` narrows it to calls on those files. The log has every matching call, with the
path of each descriptor.

It controls strace and reads its log; the tests decide what is correct under a fault.
"""

import re
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from tests.support.needs import as_root, lacking

PWRITES = "pwritev,pwritev2,pwrite64"
WRITES = f"{PWRITES},write"
SYNCS = "fsync,fdatasync"
_CALL = re.compile(r"^(?:\d+ +)?(?P<name>\w+)\((?P<handle>\d+)<(?P<path>[^>]*)>(?P<rest>.*)$")


class Call(NamedTuple):
    """One system call on a descriptor. `rest`: the other arguments and the result, as strace prints them."""

    name: str
    handle: int
    path: str
    rest: str

    @property
    def file(self) -> str:
        return self.path.rpartition("/")[2]


class Injected:
    """strace, attached for the duration of the block. `filters`: values of its -e; without an `inject=`
    it only records.
    """

    def __init__(self, pid: int, log: Path, *filters: str, paths: tuple[Path, ...] = ()) -> None:
        self._pid = pid
        self.log = log
        self._options = [word for one in filters for word in ("-e", one)]
        self._options += [word for path in paths for word in ("-P", str(path))]

    def __enter__(self) -> "Injected":
        if shutil.which("strace") is None:
            lacking("needs strace: apt-get install strace")
        self._prefix = as_root() or ()
        command = [*self._prefix, "strace", "-f", "-y", "-p", str(self._pid), "-o", str(self.log)]
        self._process = subprocess.Popen([*command, *self._options], stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        line = self._process.stderr.readline()
        if "attached" not in line:
            self._process.communicate(timeout=30)
            lacking(f"strace may not attach to a process here: {line.strip()}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let the process go; it runs on, without faults."""
        interrupt = [*self._prefix, "kill", "-INT", str(self._process.pid)]  # sudo passes it on
        subprocess.run(interrupt, check=True, timeout=30)
        try:
            self._process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            # strace may miss the end of a thread, and would then hold the process for ever.
            subprocess.run([*self._prefix, "kill", "-KILL", str(self._process.pid)], check=True, timeout=30)
            self._process.communicate(timeout=30)

    def calls(self) -> list[Call]:
        """The calls seen so far, in the order in which they began. Whole after the block only."""
        found = (_CALL.match(line) for line in self.log.read_text(errors="replace").splitlines())
        return [Call(one["name"], int(one["handle"]), one["path"], one["rest"]) for one in found if one]
