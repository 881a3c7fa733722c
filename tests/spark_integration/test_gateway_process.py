"""The gateway of `dos.checkpoints` lives as long as its driver: no longer, and no shorter. Without Spark."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import trio

from dos_client import init_store
from tests.dos_gateway.gateways import WebHdfsClient
from tests.support.servers import ServerProcess, one_server

__all__ = ["one_server"]
pytestmark = pytest.mark.process
DRIVER = """
import os, signal, sys
from spark_integration.gateway_process import _Gateway
gateway = _Gateway(sys.argv[1], b"", "")
forked = os.fork()
if not forked:
    while True: signal.pause()
signal.signal(signal.SIGINT, lambda *_: None)  # as the shells of Python and Spark, which live on
print(gateway._process.pid, forked, gateway._listen.rpartition(":")[2], flush=True)
while True: signal.pause()
"""
"""A driver that has forked a process, as `multiprocessing` does: that one has its open files, too."""


class Driver:
    def __init__(self, url: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, url],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            start_new_session=True,
        )
        assert self.process.stdout is not None
        gateway, forked, self.port = map(int, self.process.stdout.readline().split())
        self.gateway, self.forked = psutil.Process(gateway), psutil.Process(forked)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for one in (self.gateway, self.forked):
            if one.is_running():
                one.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def driver(one_server: ServerProcess) -> Iterator[Driver]:
    trio.run(init_store, one_server.url)
    driver = Driver(f"{one_server.url}/orders")
    yield driver
    driver.end()


def test_a_gateway_ends_with_its_driver_also_if_that_has_forked_processes(driver: Driver) -> None:
    assert WebHdfsClient(driver.port).ask("PUT", "MKDIRS", "/totals").code == 200
    driver.process.kill()
    driver.process.wait()
    _, alive = psutil.wait_procs([driver.gateway], 60)
    assert not alive, "it holds the tree, and the next driver waits for ever"
    assert driver.forked.is_running()


def test_an_interrupt_from_the_terminal_does_not_reach_the_gateway(driver: Driver) -> None:
    """A shell survives Ctrl-C, and so do its queries: Spark's JVM ignores it, too."""
    os.killpg(driver.process.pid, signal.SIGINT)
    assert WebHdfsClient(driver.port).ask("PUT", "MKDIRS", "/totals").code == 200
    assert os.getpgid(driver.gateway.pid) != driver.process.pid
