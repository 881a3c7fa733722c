"""Three DOS servers as processes on loopback, and the commands a person would give them.

Everything is done with the `dos` command, so a person can do the same in a terminal. Processes are ended by
their id, and only those that were started here.
"""

import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

SERVING = re.compile(r"^dos: serving (?P<data>.+) at (?P<address>\S+), server id (?P<id>[0-9a-f]{32})$")
END_S = 10.0

DOS = (sys.executable, "-m", "dos_cli")


def _ignore(line: str) -> None:
    del line


class Server:
    """One `dos serve` process. Raises RuntimeError when it does not come up."""

    def __init__(self, number: int, data: Path, log: Path) -> None:
        self.number = number
        self.data = data
        self.alive = True
        self._log = log.open("ab")
        self.process = subprocess.Popen(
            [*DOS, "serve", "--data", str(data), "--listen", "127.0.0.1:0"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,  # so that Ctrl-C in the terminal reaches the demo alone
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline().rstrip("\n")
        serving = SERVING.match(line)
        if serving is None:
            self.stop()
            raise RuntimeError(f"server {number} said {line!r} instead of where it serves; see {log}")
        self.address, self.server_id = serving["address"], serving["id"]

    def lose(self) -> None:
        """SIGKILL the process and delete its data, as if the machine had burnt."""
        self.process.kill()
        self.process.wait()
        self.alive = False
        shutil.rmtree(self.data)

    def stop(self) -> None:
        """End the process: with SIGTERM, after END_S with SIGKILL."""
        self.alive = False
        self.process.terminate()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.close()


class Cluster:
    """The servers of the demo, which form a store."""

    def __init__(self, directory: Path, servers: int = 3) -> None:
        self.directory = directory
        self.started: list[Server] = []
        try:
            self.members = [self._start() for _ in range(servers)]
            self.run_dos("store", "init", self.url)
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        return "dos://" + ",".join(server.address for server in self.members)

    def _start(self) -> Server:
        number = len(self.started)
        server = Server(number, self.directory / f"server-{number}", self.directory / f"server-{number}.log")
        self.started.append(server)
        return server

    def replace(self, lost: Server, on_line: Callable[[str], None]) -> Server:
        """Start a new server that replaces the lost one. `on_line` gets each line of the command's output."""
        new = self._start()
        url = self.url
        self.run_dos("store", "replace", url, lost.address, new.address, on_line=on_line)
        self.members[self.members.index(lost)] = new
        return new

    def run_dos(self, *arguments: str, on_line: Callable[[str], None] = _ignore) -> None:
        """Run a dos command. Raises RuntimeError with its output if it fails."""
        command = subprocess.Popen(
            [*DOS, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        output = []
        assert command.stdout is not None
        with command.stdout:
            for line in command.stdout:
                output.append(line)
                on_line(line.rstrip())
        if command.wait() != 0:
            raise RuntimeError(
                f"dos {' '.join(arguments)} ended with {command.returncode}: {''.join(output)}"
            )

    def stop(self) -> None:
        """End every server that still runs, concurrently."""
        threads = [threading.Thread(target=server.stop) for server in self.started if server.alive]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
