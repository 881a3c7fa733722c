"""Fixtures with real servers as processes, and `ServerProcess`, which they are made of.

Import the fixtures where you need them (`from tests.support.servers import three_servers`), or use
`ServerProcess` as a context manager.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from dos_chaos.servers import ServerProcess, hold_port

__all__ = [
    "NO_LOG",
    "ServerProcess",
    "hold_port",
    "one_server",
    "server_without_log",
    "three_servers",
    "url_of",
]


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
