"""The disk of a host is lost with the files of sinks: the region ends and names the remedy. It continues
without the lost rows only after a person has accepted the loss.
"""

import shutil
from collections import Counter
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from checkpoint.core.region import RegionState
from dataflow import FileSink, FileSource, Graph, ParquetSink
from dataflow.errors import OutputLostError
from dataflow.limits import WorkerLimits
from dataflow.sinks.files import AcceptedLoss, parse_row
from tests.dataflow.test_region_processes import WAIT_S, finished, hurry, running, unhurried

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forks")]

SMALL = WorkerLimits(step_bytes_max=8 * 1024, batch_bytes_max=4 * 1024)


def graph_of(lines: Path, out: Path, accepted: int = 0) -> Graph:
    graph = Graph("lines")
    slow = partial(unhurried, out.with_name("out.hurry"))
    words = graph.source("lines", FileSource([lines])).flat_map(
        "words", slow, schema="word string", takes="batch"
    )
    words.sink("text", FileSink(out / "text", local=True, accept_lost_output=accepted))
    words.sink("files", ParquetSink(out / "files", local=True, accept_lost_output=accepted))
    return graph


def rows_in(out: Path) -> tuple[Counter[str], Counter[str]]:
    """The words in the text files, and in the Parquet files, visible or staged for the last checkpoint."""
    text = [line for path in (out / "text").glob("part-*.tsv") for line in path.read_text().splitlines()]
    tables = [pq.ParquetFile(path).read() for path in (out / "files").rglob("*.parquet")]
    return (
        Counter(str(parse_row(line)[0]) for line in text),
        Counter(word for table in tables for word in table["word"].to_pylist()),
    )


def failure(graph: Graph, store: str, folder: Path) -> str:
    with running(graph, store, folder, workers=1, worker_limits=SMALL) as (control, _):
        assert control.wait(WAIT_S)
        assert control.status.state is RegionState.FAILED
        return str(control.exception())


# EVIDENCE-OF: P-7
def test_a_lost_directory_stops_the_region_until_the_loss_is_accepted(
    shared_store: str, tmp_path: Path
) -> None:
    lines, out, copy = tmp_path / "in.txt", tmp_path / "out", tmp_path / "copy"
    lines.write_text("".join(f"word{number}\n" for number in range(12_000)))
    with running(graph_of(lines, out), shared_store, tmp_path, workers=1, worker_limits=SMALL) as (
        control,
        watch,
    ):
        watch.checkpoints(3)
        control.stop()
        last = control.status.last_checkpoint
    shutil.copytree(out, copy)
    shutil.rmtree(out)
    hurry(out)
    said = failure(graph_of(lines, out), shared_store, tmp_path)
    assert "a check failed in worker 0 on host " in said
    assert "available here and run the region again" in said
    assert f"pass accept_lost_output={last} to the sink" in said
    with running(
        graph_of(lines, out, accepted=last), shared_store, tmp_path, workers=1, worker_limits=SMALL
    ) as (control, _):
        assert finished(control), control.status
    truth = Counter(lines.read_text().split())
    for before, after in zip(rows_in(copy), rows_in(out), strict=True):
        assert before, "something was lost"
        assert before + after == truth, "each row was written once: before the loss, or after it"


def test_a_loss_is_accepted_up_to_a_checkpoint_only() -> None:
    error = OutputLostError("/out/part-w0000.tsv", 0, "at least 7 bytes", "0")
    for accepted in (AcceptedLoss(0, 5), AcceptedLoss(4, 5)):
        with pytest.raises(OutputLostError, match=r"part-w0000.*accept_lost_output=5"):
            accepted.take(error)
    AcceptedLoss(5, 5).take(error)
    AcceptedLoss(6, 5).take(error)
