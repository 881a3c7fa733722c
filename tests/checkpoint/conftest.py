"""Fixtures of tests with real servers: a store that they share, and regions of real workers on it."""

import contextlib
import zlib

import pytest
import trio

from dos_client import init_store
from tests.checkpoint.real_region import ticking
from tests.support.servers import ServerProcess, three_servers, url_of

__all__ = ["three_servers"]


@pytest.fixture(scope="module")
def shared_store(tmp_path_factory):
    """The URL of a store for all tests of a module that leave its servers alone."""
    folder = tmp_path_factory.mktemp("servers")
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(ServerProcess(folder / f"server-{index}")) for index in range(3)]
        trio.run(init_store, url_of(servers))
        yield url_of(servers)


@pytest.fixture
def region_name(request):
    """The name of this test's own region."""
    return f"r{zlib.crc32(request.node.name.encode())}"


@pytest.fixture
def region(shared_store, tmp_path, region_name):
    """A region that has committed a checkpoint and does not finish on its own."""
    with ticking(shared_store, tmp_path, name=region_name) as running:
        yield running
