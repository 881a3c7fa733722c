"""What tests of regions of processes share: workers that start at once, and a store."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from dataflow import local
from tests.dataflow.fork_launcher import ForkLauncher
from tests.dataflow.support import made
from tests.support.servers import ServerProcess


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that start at once."""
    monkeypatch.setattr(local, "ProcessLauncher", ForkLauncher)


@pytest.fixture(scope="module")
def shared_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A store for tests that leave its servers alone; each runs a region of another name."""
    folder = tmp_path_factory.mktemp("servers")
    with ExitStack() as stack:
        yield made([stack.enter_context(ServerProcess(folder / f"s{index}")) for index in range(3)])


@pytest.fixture(scope="module")
def store(shared_store: str) -> str:
    """The same, for modules whose tests all share one."""
    return shared_store
