"""`dos store watch` as a process: its health, and its log."""

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from dos_client import init_store
from tests.dos_monitoring.test_health import WAIT_S, fetch
from tests.support.polling import until
from tests.support.servers import ServerProcess, url_of

pytestmark = pytest.mark.process


def test_a_watcher_is_ready_while_no_person_has_to_act(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with ExitStack() as stack:
        servers = [stack.enter_context(ServerProcess(tmp_path / f"s{index}")) for index in range(3)]
        trio.run(init_store, url_of(servers))
        words = ("store", "watch", url_of(servers), "--interval", "0.2s", "--json", "--log-json")
        with log.open("wb") as output:
            watcher = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "dos_cli", *words, "--metrics", "127.0.0.1:0"],
                    stdout=subprocess.DEVNULL,
                    stderr=output,
                )
            )
        stack.callback(watcher.terminate)
        until(lambda: "/metrics" in log.read_text(), "it serves", WAIT_S)
        host, _, port = log.read_text().partition("http://")[2].partition("/metrics")[0].rpartition(":")
        until(lambda: fetch((host, int(port)), "/readyz") == (200, "ok\n"), "it is ready", WAIT_S)
        for one in servers[:2]:
            one.kill()
        until(lambda: fetch((host, int(port)), "/readyz")[0] == 503, "a person has to act", WAIT_S)
        assert fetch((host, int(port)), "/readyz")[1].startswith("a person has to act: ")
        assert fetch((host, int(port)), "/healthz") == (200, "ok\n")
        assert "dos_watch_looks_total" in fetch((host, int(port)), "/metrics")[1]
    logged = [json.loads(line) for line in log.read_text().splitlines() if not line.startswith("metrics: ")]
    assert all({"time", "level", "logger", "message"} <= set(line) for line in logged)
