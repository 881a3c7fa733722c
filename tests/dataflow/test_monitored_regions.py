"""What the processes of a real region show: figures, health and readiness over HTTP, and lines of JSON."""

import json
import logging
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dataflow import FileSink, FileSource, Graph, RateSource
from dataflow.handle import RegionHandle
from dataflow.limits import WorkerLimits
from dataflow.local import run_local
from dos_monitoring.logs import JsonLines
from tests.dataflow.support import made, word_count
from tests.support.dos_command import dos
from tests.support.http import fetch_url
from tests.support.polling import until
from tests.support.servers import ServerProcess
from tests.support.site_tables import names_of_metrics

pytestmark = [pytest.mark.process, pytest.mark.timeout(300), pytest.mark.usefixtures("forks")]
WAIT_S = 90.0
SMALL_STEPS = WorkerLimits(step_bytes_max=4096, batch_bytes_max=2048)


@contextmanager
def running(
    store: str, folder: Path, name: str, graph: Graph | None = None, **options: Any
) -> Iterator[RegionHandle]:
    folder.mkdir(exist_ok=True)
    (folder / "in.txt").write_text("".join(f"word{number} and\n" for number in range(100)))
    region = run_local(
        graph or word_count([folder / "in.txt"], folder / "out", repeat=10_000_000),
        name=name,
        workers=2,
        store=store,
        logs=folder / "logs",
        checkpoint_interval=0.2,
        standby=0,
        **{"worker_limits": SMALL_STEPS, **options},
    )
    assert isinstance(region, RegionHandle)
    try:
        yield region
    finally:
        region.stop()
        region.wait(WAIT_S)


def fetch(address: str, path: str) -> tuple[int, str]:
    return fetch_url(f"http://{address}{path}", WAIT_S)


def values(address: str) -> dict[str, dict[tuple[str, ...], float]]:
    """Metric -> its labels but the region and the worker -> value."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(fetch(address, "/metrics")[1]):
        for one in family.samples:
            labels = tuple(text for name, text in one.labels.items() if name not in ("region", "worker"))
            found.setdefault(one.name, {})[labels] = one.value
    return found


def is_ready(address: str) -> bool:
    return fetch(address, "/readyz") == (200, "ok\n")


def names_all(address: str, names: list[str]) -> bool:
    return all(name in fetch(address, "/readyz")[1] for name in names)


def addresses(region: RegionHandle) -> list[str]:
    """Of the driver, then of the workers."""
    status = region.status
    return [status.metrics, *(worker.metrics for worker in status.workers)]


def test_the_driver_and_each_worker_show_figures_and_are_ready_while_the_store_is(tmp_path: Path) -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(ServerProcess(tmp_path / f"s{index}")) for index in range(3)]
        store = made(servers)
        with running(store, tmp_path, "counted", dated_words(tmp_path), metrics="127.0.0.1:0") as region:
            assert fetch(region.status.metrics, "/healthz") == (200, "ok\n")
            until(lambda: all(addresses(region)), "all have joined", WAIT_S)
            driver, *workers = addresses(region)
            assert len({driver, *workers}) == 3
            until(lambda: region.status.checkpoints_committed > 2, "checkpoints", WAIT_S)
            for address in (driver, *workers):
                until(partial(is_ready, address), "it is ready", WAIT_S)
                assert fetch(address, "/healthz") == (200, "ok\n")
            check_figures(driver, workers)
            check_targets(store, driver, workers)
            names = [f"{host}:{port}" for host, port in (one.address for one in servers[1:])]
            for one in servers[1:]:
                one.kill()
            for address in (driver, workers[0]):
                until(partial(names_all, address, names), "it names the unavailable members", WAIT_S)
                assert fetch(address, "/readyz")[0] == 503
                assert fetch(address, "/readyz")[1].startswith("WAITING_FOR_STORE: ")
                assert fetch(address, "/healthz") == (200, "ok\n"), "a restart would not help"
            assert values(driver)["dos_region_state"]["WAITING_FOR_STORE",] == 1
            until(lambda: values(driver)["dos_region_waiting_seconds"][()] > 0, "it is counted", WAIT_S)
            for one in servers[1:]:
                one.restart()
            until(lambda: fetch(driver, "/readyz")[0] == 200, "it continues", WAIT_S)
    for address in (driver, *workers):
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(f"http://{address}/healthz")


def dated_words(folder: Path) -> Graph:
    """A word count of rows with an event time."""
    graph = Graph("dated")
    rows = graph.source("rows", RateSource(2000))
    words = rows.map("words", lambda row: (row["timestamp"], "even"), schema="at timestamp, word string")
    timed = words.event_time("timed", "at", lateness=timedelta(0))
    timed.key_by("by_word", "word").count("counts").sink("out", FileSink(folder / "out"))
    return graph


def check_figures(driver: str, workers: list[str]) -> None:
    of_driver, of_worker = values(driver), values(workers[0])
    assert of_driver["dos_region_state"]["RUNNING",] == 1
    assert sum(of_driver["dos_region_state"].values()) == 1
    assert of_driver["dos_region_workers"] == {("RUNNING",): 2}
    assert of_driver["dos_region_checkpoint_seconds_count"][()] > 2
    phases = of_driver["dos_region_checkpoint_phase_seconds_total"]
    assert {("align",), ("drain",), ("write",), ("sync",), ("commit",)} <= phases.keys()
    assert sum(phases.values()) > 0
    assert of_driver["dos_region_last_checkpoint_timestamp_seconds"][()] > 1e9
    assert of_driver["dos_client_appended_bytes_total"][()] > 0
    assert of_driver["dos_region_event_time_seconds"]["timed",] == pytest.approx(time.time(), abs=WAIT_S)
    rows = of_worker["dos_worker_operator_rows_in_total"]
    assert {("words",), ("counts",)} <= rows.keys()
    until(
        lambda: values(workers[0])["dos_worker_operator_rows_in_total"]["words",] > rows["words",],
        "rows are counted",
        WAIT_S,
    )
    busy = of_worker["dos_worker_operator_busy_seconds_total"]
    assert busy.keys() == rows.keys()
    assert 0 < busy["words",] < of_worker["dos_worker_busy_seconds_total"][()] + WAIT_S
    assert of_worker["dos_worker_running"][()] == 1
    assert of_worker["dos_worker_busy_seconds_total"][()] > 0
    assert of_worker["dos_worker_step"][()] > 0
    documented = names_of_metrics()
    for name in {*of_driver, *of_worker}:
        short = name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum")
        assert name.endswith("_created") or short in documented, f"the page has {short}"


def check_targets(store: str, driver: str, workers: list[str]) -> None:
    shown = dos("region", "status", store, "counted").stdout
    held = r"event time of 'timed' is at 20\S+, held by worker [01], split 'w000[01]' of source 'rows'"
    assert re.search(held, shown), shown
    done = dos("region", "status", store, "counted", "--prometheus-targets")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [one["targets"] for one in found] == [[driver], *([one] for one in workers)]
    assert [one["labels"]["dos_role"] for one in found] == ["driver", "w0", "w1"]
    assert {one["labels"]["dos_region"] for one in found} == {"counted"}
    assert dos("region", "status", store, "counted", "--prometheus-targets", "--no-ask").returncode == 2


def hanging(folder: Path) -> Graph:
    """A function that waits while a file is there."""
    graph = Graph("hanging")

    def wait(batch: pa.RecordBatch) -> pa.Array:
        (folder / "called").touch()
        while (folder / "hold").exists():
            time.sleep(0.02)
        return batch.column("line")

    lines = graph.source("lines", FileSource([folder / "in.txt"], repeat=10_000_000))
    slow = lines.flat_map("slow", wait, schema="line string", takes="batch")
    slow.sink("out", FileSink(folder / "out", truncate_on_reset=True))
    return graph


def test_a_function_that_hangs_is_shown_by_the_worker(shared_store: str, tmp_path: Path) -> None:
    limits = WorkerLimits(circuit_silent_s=0.5)
    (tmp_path / "hold").touch()
    graph = hanging(tmp_path)
    with running(
        shared_store, tmp_path, "hanging", graph, metrics="127.0.0.1:0", worker_limits=limits
    ) as region:
        until((tmp_path / "called").exists, "the function is called", WAIT_S)
        until(lambda: all(addresses(region)), "the addresses are known", WAIT_S)
        worker = addresses(region)[1]
        until(lambda: fetch(worker, "/healthz")[0] == 503, "it hangs", WAIT_S)
        assert "its circuit thread has worked on one batch for" in fetch(worker, "/healthz")[1]
        assert fetch(addresses(region)[0], "/healthz") == (200, "ok\n"), "the driver moves"
        (tmp_path / "hold").unlink()
        until(lambda: fetch(worker, "/healthz")[0] == 200, "it moves again", WAIT_S)


def test_a_port_in_use_costs_the_figures_and_not_the_region(
    shared_store: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ServerProcess(tmp_path / "s", options=("--metrics", "127.0.0.1:0")) as server:
        line = server.log_path.read_text().partition("metrics: http://")[2]
        taken = line.partition("/metrics")[0]
        with running(shared_store, tmp_path, "unseen", metrics=taken) as region:
            until(lambda: region.status.checkpoints_committed > 0, "it runs", WAIT_S)
            assert addresses(region) == ["", "", ""]
    assert f"its driver serves no figures at {taken}: " in caplog.text
    done = dos("region", "status", shared_store, "unseen", "--prometheus-targets")
    assert done.returncode == 1, "no driver answers any more"


def noisy(folder: Path) -> Graph:
    """A function that logs a line for its first batch, on threads of its operator."""
    graph = Graph("logged")

    def note(batch: pa.RecordBatch) -> pa.Array:
        if not (folder / "noted").exists():
            (folder / "noted").touch()
            logging.getLogger("mine").warning("a batch of\n%d rows", batch.num_rows)
        return batch.column("line")

    lines = graph.source("lines", FileSource([folder / "in.txt"], repeat=10_000_000))
    noted = lines.flat_map("noted", note, schema="line string", takes="batch", threads=2)
    noted.sink("out", FileSink(folder / "out", truncate_on_reset=True))
    return graph


def test_logs_of_a_region_are_lines_of_json(
    shared_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DOS_LOG", "json")
    of_driver = logging.StreamHandler(StringIO())
    of_driver.setFormatter(JsonLines())
    monkeypatch.setattr(logging.getLogger("dos.checkpoint"), "handlers", [of_driver])
    caplog.set_level(logging.INFO, logger="dos.checkpoint")
    with running(shared_store, tmp_path, "logged", noisy(tmp_path)) as region:
        until(lambda: region.status.checkpoints_committed > 0, "it runs", WAIT_S)
        incarnation = region.status.incarnation
    driver = [json.loads(line) for line in of_driver.stream.getvalue().splitlines()]
    assert {one.get("region") for one in driver if one["message"].startswith("region logged: ")} == {"logged"}
    texts = {worker: (tmp_path / "logs" / f"w{worker:04d}.1.log").read_text() for worker in range(2)}
    logged = [(worker, json.loads(line)) for worker, text in texts.items() for line in text.splitlines()]
    found = [(worker, line) for worker, line in logged if line.get("logger") == "mine"]
    assert found
    for worker, line in found:
        assert line.pop("time").endswith("+00:00")
        assert line.pop("message").startswith("a batch of\n")
        whose = {"region": "logged", "worker": worker, "incarnation": incarnation}
        assert line == {"level": "WARNING", "logger": "mine", **whose}


@pytest.mark.parametrize(
    ("options", "variables", "words"),
    [
        ({"metrics": "9400"}, {}, "HOST:PORT"),
        ({}, {"DOS_METRICS": "h:x"}, "HOST:PORT"),
        ({}, {"DOS_LOG": "xml"}, "DOS_LOG"),
    ],
)
def test_what_cannot_be_read_is_refused_before_anything_starts(
    options: dict[str, Any],
    variables: dict[str, str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=words), running("dos://127.0.0.1:1", tmp_path, "never", **options):
        pass
