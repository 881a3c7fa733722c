"""Servers for the tests of the client."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dos_client.support import ThreadServer, thread_servers


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[ThreadServer]]:
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
