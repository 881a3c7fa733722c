"""Servers for the tests of the client."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dos_client.support import Threads, ThreadServer, thread_servers
from tests.support.servers import three_servers as three_servers


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Threads]:
    """Three servers in threads, not yet a store."""
    with thread_servers(tmp_path, 3) as servers:
        yield servers


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[ThreadServer]:
    """One server in a thread."""
    server = ThreadServer(tmp_path / "alone")
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture
def four(tmp_path: Path) -> Iterator[Threads]:
    """Four servers in threads; the first three are to be the store."""
    with thread_servers(tmp_path, 4) as servers:
        yield servers


@pytest.fixture
def five(tmp_path: Path) -> Iterator[Threads]:
    with thread_servers(tmp_path, 5) as servers:
        yield servers
