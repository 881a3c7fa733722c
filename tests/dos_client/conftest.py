"""Servers for the tests of the client."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dos_client.support import ThreadServer


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[ThreadServer]]:
    """Three servers in threads, not yet a store."""
    servers = [ThreadServer(tmp_path / f"server-{number}") for number in range(3)]
    try:
        yield servers
    finally:
        for server in servers:
            server.kill()


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[ThreadServer]:
    """One server in a thread."""
    server = ThreadServer(tmp_path / "alone")
    try:
        yield server
    finally:
        server.kill()
