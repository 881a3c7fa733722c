"""The HTTP port of `dos serve --metrics`: what is counted, and when a server is alive and ready."""

import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from dos_client import open_store, parse_url
from dos_protocol.errors import NotFoundError
from dos_server.core.server_core import CoreGauges
from dos_server.figures import FRESH_S, ServerFigures, SyncTimes
from tests.support.dos_command import dos
from tests.support.http import fetch_url
from tests.support.polling import until
from tests.support.servers import ServerProcess
from tests.support.site_tables import names_of_metrics

WAIT_S = 60.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data", options=("--metrics", "127.0.0.1:0")) as server:
        assert dos("store", "init", server.url).returncode == 0
        yield server


def fetch(server: ServerProcess, path: str) -> tuple[int, str]:
    line = next(one for one in server.log_path.read_text().splitlines() if one.startswith("metrics: "))
    url = line.removeprefix("metrics: ").removesuffix("/metrics")
    return fetch_url(f"{url}{path}", WAIT_S)


def values(server: ServerProcess) -> dict[str, float]:
    """Name of each sample, with the value of its label -> value."""
    status, text = fetch(server, "/metrics")
    assert status == 200
    found = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            label = next(iter(one.labels.values()), "")
            found[f"{one.name}{{{label}}}" if label else one.name] = one.value
    return found


async def use(url: str) -> None:
    async with open_store(url) as store, await store.claim("dir", 1, b"w" * 16) as claim:
        writer = claim.open_object("o")
        await writer.wait_synced(writer.append(b"x" * 1000))
        with pytest.raises(NotFoundError):
            await store.read("dir", "none", 0, 1)
        assert await store.read("dir", "o", 0, 1000) == b"x" * 1000


def test_a_server_counts_what_it_does(server: ServerProcess) -> None:
    until(lambda: fetch(server, "/readyz") == (200, "ok\n"), "it is ready", WAIT_S)
    assert fetch(server, "/healthz") == (200, "ok\n")
    assert fetch(server, "/other")[0] == 404
    before = values(server)
    trio.run(use, server.url)
    until(
        lambda: values(server)["dos_server_connections_total"] > before["dos_server_connections_total"],
        "a connection",
        WAIT_S,
    )
    until(
        lambda: values(server)["dos_server_directories"] > before["dos_server_directories"],
        "a directory",
        WAIT_S,
    )
    now = values(server)
    assert now["dos_server_written_bytes_total"] - before["dos_server_written_bytes_total"] > 1000
    assert now["dos_server_read_bytes_total"] - before["dos_server_read_bytes_total"] >= 1000
    assert now["dos_server_acknowledgements_total"] > before["dos_server_acknowledgements_total"]
    assert now["dos_server_sync_seconds_count"] > before["dos_server_sync_seconds_count"]
    assert now["dos_server_refusals_total{NOT_FOUND}"] >= 1
    assert now["dos_server_store_generation"] == 1
    assert 0 < now["dos_server_sync_seconds_sum"] < WAIT_S
    names = {
        name.partition("{")[0].removesuffix("_bucket").removesuffix("_count").removesuffix("_sum")
        for name in now
    }
    missing = {name for name in names - names_of_metrics() if not name.endswith("_created")}
    assert not missing, "the page has them all"


def test_a_server_that_hangs_is_not_alive(server: ServerProcess) -> None:
    """The HTTP port is in the same process: a stopped one answers nothing, which a probe counts as failed."""
    until(lambda: fetch(server, "/healthz")[0] == 200, "it is alive", WAIT_S)
    line = server.log_path.read_text().partition("metrics: ")[2].splitlines()[0]
    os.kill(server.pid, signal.SIGSTOP)
    try:
        with pytest.raises(OSError, match="timed out"):
            urllib.request.urlopen(line.replace("/metrics", "/healthz"), timeout=0.5)
    finally:
        os.kill(server.pid, signal.SIGCONT)
    until(lambda: fetch(server, "/healthz")[0] == 200, "it is alive again", WAIT_S)


def gauges(**changed: Any) -> CoreGauges:
    sound = {"refuses_appends": False, "rolled_back": False, "store_generation": 1}
    return CoreGauges(1, 1, 1, 1, 0, 0, 100, **{**sound, **changed})


def test_what_makes_a_server_unready_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    figures, now_s = ServerFigures("1"), [100.0]
    monkeypatch.setattr("dos_server.figures.time.monotonic", lambda: now_s[0])
    assert figures.hangs() == figures.not_ready() == "it does not serve yet"
    figures.publish(gauges(), 1)
    assert figures.hangs() == figures.not_ready() == ""
    figures.publish(gauges(refuses_appends=True), 1)
    assert (figures.hangs(), figures.not_ready()) == ("", "its disk is full: appends are refused")
    figures.publish(gauges(rolled_back=True), 1)
    assert "went back in time" in figures.not_ready()
    now_s[0] += FRESH_S + 1
    assert figures.hangs() == figures.not_ready() == "its event loop has not answered for 6 s"


def test_the_buckets_of_syncs_add_up() -> None:
    times = SyncTimes()
    for seconds in (0.0005, 0.001, 0.3, 99.0):
        times.add(seconds)
    buckets = dict(times.buckets())
    assert (buckets["0.001"], buckets["0.2"], buckets["0.5"], buckets["5.0"], buckets["+Inf"]) == (
        2,
        2,
        3,
        3,
        4,
    )
    with pytest.raises(ZeroDivisionError), times.timing():
        _ = 1 / 0
    assert sum(times.counts) == 5, "a sync that failed has taken time"


def test_an_address_that_cannot_be_used_is_refused(tmp_path: Path, server: ServerProcess) -> None:
    host, port = server.address
    for address, words in ((f"{host}:{port}", "Address already in use"), ("nowhere", "--metrics")):
        done = dos("serve", "--data", tmp_path / "d", "--listen", "127.0.0.1:0", "--metrics", address)
        assert done.returncode == 2
        assert f"cannot serve metrics at {address}" in done.stderr
        assert words in done.stderr
    assert json.loads(dos("store", "status", server.url, "--json").stdout)
    assert parse_url(server.url).servers
