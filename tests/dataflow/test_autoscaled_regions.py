"""Regions whose number of workers follows the load, on real servers and worker processes."""

import logging
import time
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from checkpoint.core.region import AutoScale, RegionEvent, ScaleDecided, ScaleSettled
from dataflow import (
    CallSink,
    FileSink,
    FileSource,
    Graph,
    InputSource,
    JournaledFileSink,
    LogSink,
    RateSource,
    autonomous,
    consistent,
)
from dataflow.local import run_local
from tests.dataflow.support import split_words
from tests.dataflow.test_region_processes import finished, running, three_servers
from tests.dataflow.test_rescaled_regions import counts_in
from tests.support.dos_command import dos

__all__ = ["three_servers"]
pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forks")]


def slowly(batch: pa.RecordBatch) -> pa.Array:
    """Some 300 lines per second, on any machine."""
    time.sleep(0.003 * batch.num_rows)
    return split_words(batch)


def test_a_region_adds_workers_for_a_load_and_they_leave_after_it(
    shared_store: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dos.checkpoint")
    folder = tmp_path / "in"
    folder.mkdir()
    graph = Graph("autoscaled")
    lines = graph.source("lines", FileSource(folder, watch=True, until=folder / "END", poll_s=0.2))
    words = lines.flat_map("words", slowly, schema="word string", takes="batch")
    words.key_by("by_word", "word").count("counts").sink("out", FileSink(tmp_path / "out"))
    policy = AutoScale(1, 3, window=3, cool_down=3, catch_up=2)

    def settled(workers: int, event: RegionEvent) -> bool:
        return isinstance(event, ScaleSettled) and event.workers == workers and not event.error

    with running(graph, shared_store, tmp_path, workers=1, autoscale=policy) as (control, watch):
        for index in range(60):  # long lines, so that a step has few
            (folder / f"f{index}").write_text("".join(f"w{number % 17:<100}\n" for number in range(100)))
        watch.wait(partial(settled, 3))
        shown = dos("region", "status", shared_store, tmp_path.name).stdout
        assert "autoscale 1 to 3 workers: " in shown
        assert "last decision: autoscale from 1 to 3 workers: the load needs 3 workers; load" in shown
        watch.wait(partial(settled, 1))
        assert control.status.autoscale is not None
        assert control.status.autoscale.decided == next(
            event for event in reversed(watch.events) if isinstance(event, ScaleDecided)
        )
        (folder / "END").touch()
        assert finished(control), control.status
    assert counts_in(tmp_path / "out") == {
        f"w{word}": 60 * sum(number % 17 == word for number in range(100)) for word in range(17)
    }
    assert "autoscale from 1 to 3 workers: the load needs 3 workers" in caplog.text


def test_a_region_that_cannot_be_scaled_on_its_own_is_refused_before_it_starts(tmp_path: Path) -> None:
    graph = Graph("kept")
    lines = graph.source("lines", RateSource(10))
    lines.sink("out", JournaledFileSink())
    with pytest.raises(
        ValueError, match="kept: autoscale needs a graph whose number of workers can change: 'out'"
    ):
        run_local(graph, store="dos://nowhere", autoscale=AutoScale(1, 3))
    other = Graph("other")
    other.source("lines", RateSource(10)).sink("out", LogSink())
    with pytest.raises(ValueError, match="other: workers=4 is outside of autoscale, 1 to 3 workers"):
        run_local(other, store="dos://nowhere", workers=4, autoscale=AutoScale(1, 3))
    two = Graph("two")
    outside = two.source("outside", InputSource("rows", "word string")).annotate(autonomous)
    outside.sink("shown", CallSink(print))
    two.source("inside", RateSource(10)).annotate(consistent()).sink("out", LogSink())
    with pytest.raises(
        ValueError, match=r"two\.\S+: autoscale needs checkpoints, and operators outside of any"
    ):
        run_local(two, store="dos://nowhere", autoscale=AutoScale(1, 3))
