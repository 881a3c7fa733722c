"""Servers as processes: started with `dos serve` on a free port of loopback, ended by their own process id.

A server that is killed and started again keeps its port and its data directory: meanwhile the port is held,
so that no other program is given it.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from types import TracebackType
from typing import IO

from dos_chaos.errors import ServerStartError

START_SECONDS_MAX = 90.0  # a machine that other tests keep busy


def hold_port(port: int, host: str = "127.0.0.1") -> socket.socket:
    """A socket bound to a port, a free one for 0, that does not listen: a server with SO_REUSEADDR still can,
    and the kernel gives the port to nobody who does not ask for it by number."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((host, port))
    return held


class ServerProcess:
    """One `dos serve`. Listens when the constructor returns. Attributes: data, address, server_id.

    `under`: a program that runs another one, and ends as that one. `host`: the address to listen on; one that
    is not of loopback needs `--insecure` or TLS in `options`.
    """

    def __init__(
        self,
        data: Path,
        *,
        port: int = 0,
        options: tuple[str, ...] = (),
        log_path: Path | None = None,
        under: tuple[str, ...] = (),
        host: str = "127.0.0.1",
    ) -> None:
        self.data = data
        self.under = under
        self.options = options
        self.log_path = log_path or data.with_name(data.name + ".log")
        held = hold_port(port, host)
        weakref.finalize(self, held.close)
        self.address: tuple[str, int] = held.getsockname()
        self.server_id = ""
        self._start()

    def _start(self) -> None:
        # the options here are all of its options: not those of a service of this machine
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DOS_SERVE_")}
        environment["DOS_CONFIG"] = os.devnull
        with self.log_path.open("ab") as log:
            arguments = ["serve", "--data", str(self.data), "--listen", self.location, "--verbose"]
            self.process = self._begin([*arguments, *self.options], environment, log)
        watchdog = threading.Timer(START_SECONDS_MAX, self.process.kill)
        watchdog.start()
        try:
            line = self.process.stdout.readline() if self.process.stdout else ""
        finally:
            watchdog.cancel()
        match = re.search(rf"at {re.escape(self.location)}, server id ([0-9a-f]{{32}})", line)
        if match is None:
            code = self.process.poll()
            self.kill()
            how = "it is silent" if code is None else f"it ended with exit code {code}"
            raise ServerStartError(f"server did not start, {how}: {line!r}\n{self.log_path.read_text()}")
        self.server_id = match[1]

    def _begin(
        self, arguments: list[str], environment: dict[str, str], log: IO[bytes]
    ) -> "subprocess.Popen[str]":
        command = [*self.under, sys.executable, "-m", "dos_cli", *arguments]
        return subprocess.Popen(  # noqa: S603 - our own program
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def url(self) -> str:
        return f"dos://{self.location}"

    @property
    def location(self) -> str:
        """host:port, as a URL of several servers wants it."""
        return f"{self.address[0]}:{self.address[1]}"

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL, and wait until it has ended."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM, and wait: the clean end. Returns the exit code."""
        return self._end(signal.SIGTERM)

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and answers nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def _end(self, number: signal.Signals) -> int:
        if self.running:
            self.process.send_signal(number)
        try:
            code = self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code

    def restart(self) -> None:
        """Start again on the same port and data, after `kill` or `stop`; kills it first if it still runs."""
        self.kill()
        self._start()

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
