"""Fixtures with real servers as processes, and `ServerProcess`, which they are made of: forked processes.

Import the fixtures where you need them (`from tests.support.servers import three_servers`), or use
`ServerProcess` as a context manager.
"""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from dos_chaos import servers
from dos_chaos.servers import hold_port
from tests.support.forked_servers import ForkedProcess

__all__ = [
    "NO_LOG",
    "ServerProcess",
    "hold_port",
    "one_server",
    "server_without_log",
    "three_servers",
    "url_of",
]


class ServerProcess(servers.ServerProcess):
    """The same, forked from a process that has imported everything, unless it is to run under a program."""

    def _begin(
        self, arguments: list[str], environment: dict[str, str], log: IO[bytes]
    ) -> "subprocess.Popen[str]":
        if self.under:
            return super()._begin(arguments, environment, log)
        return ForkedProcess(arguments, environment, log.fileno())


@pytest.fixture
def one_server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server of its own for the test."""
    with ServerProcess(tmp_path / "server") as server:
        yield server


NO_LOG = ("--group-log", "0")
"""Every object is synced in its own file."""


@pytest.fixture
def server_without_log(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server of its own for the test, which syncs every object in its own file."""
    with ServerProcess(tmp_path / "server", options=NO_LOG) as server:
        yield server


@pytest.fixture
def three_servers(tmp_path: Path) -> Iterator[list[ServerProcess]]:
    """Three servers, not yet a store. They are killed by id at the end."""
    with contextlib.ExitStack() as stack:
        folders = [tmp_path / f"server-{index}" for index in range(3)]
        yield [stack.enter_context(ServerProcess(folder)) for folder in folders]


def url_of(servers: list[ServerProcess], path: str = "") -> str:
    """One URL for several servers: dos://h1:p1,h2:p2/path."""
    return "dos://" + ",".join(server.location for server in servers) + (f"/{path}" if path else "")
