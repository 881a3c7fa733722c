"""Sinks whose rows outlive their host, in a region of processes whose workers die with all local files."""

import re
import shutil
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from checkpoint.core.region import RegionState
from dataflow import FileSource, Graph, JournaledFileSink, RateSource, S3Sink
from dataflow.limits import WorkerLimits
from dataflow.sinks.tsv import parse_row
from dos_cli.main import app
from tests.dataflow.s3_sinks import client
from tests.dataflow.support import true_counts
from tests.dataflow.test_region_processes import (
    WAIT_S,
    finished,
    hurry,
    kill_both_in_turn,
    running,
    unhurried,
)
from tests.support.examples import run_example
from tests.support.s3 import BUCKET, serving
from tests.support.s3_rows import objects, parquet_rows, uploads

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forks")]
NAME = "outlived"


@pytest.fixture(scope="module", autouse=True)
def bucket() -> Iterator[None]:
    with serving():
        client().create_bucket(Bucket=BUCKET)
        yield


def test_the_example_of_the_docs(shared_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_example("docs/sources-and-sinks.md", "s3", store=shared_store, bucket=f"s3://{BUCKET}/sold")
    assert len(objects("sold")) == 2, "one of each worker"


def test_a_region_whose_bucket_does_not_exist_fails_before_any_worker_starts(
    shared_store: str, tmp_path: Path
) -> None:
    graph = Graph("nowhere")
    graph.source("numbers", RateSource(10)).sink("out", S3Sink("s3://no-such-bucket/x"))
    with running(graph, shared_store, tmp_path) as (control, _):
        assert control.wait(WAIT_S)
        assert control.status.state is RegionState.FAILED
        assert re.search(r"NoSuchBucket.*create the bucket 'no-such-bucket'", str(control.exception()))
    assert not (tmp_path / "logs").exists(), "no worker was started"


def journaled(store_url: str, worker: int, cut: int) -> str:
    """The rows of one worker's file, as docs/sources-and-sinks.md has it: read from the store alone."""
    chain = f"{store_url}/{NAME}.w{worker:04d}/files-kept"
    arguments = ["journal", "cat", chain, f"part-w{worker:04d}.tsv", "--at", f"checkpoint:{cut}"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


# EVIDENCE-OF: P-7
def test_a_region_continues_on_hosts_that_have_nothing(shared_store: str, tmp_path: Path) -> None:
    """Workers are killed, one loses its disk. Then all local files are deleted, and others continue."""
    paths = [tmp_path / f"in{index}.txt" for index in range(3)]
    for path in paths:
        text = "".join(f"word{number % 700} and{number % 7} {path.stem}\n" for number in range(4_000))
        path.write_text(text)
    graph = Graph("counted")
    lines = graph.source("lines", FileSource(paths, repeat=4))
    slow = partial(unhurried, tmp_path / "out.hurry")
    words = lines.flat_map("words", slow, schema="word string", takes="batch")
    counts = words.key_by("by_word", "word").count("counts")
    counts.sink("objects", S3Sink(f"s3://{BUCKET}/counts"))
    counts.sink("kept", JournaledFileSink())
    first, second = tmp_path / "first" / NAME, tmp_path / "second" / NAME
    small = WorkerLimits(step_bytes_max=16 * 1024, batch_bytes_max=8 * 1024)
    with running(graph, shared_store, first, worker_limits=small) as (control, watch):
        kill_both_in_turn(control, watch)
        before = len(objects("counts"))
    shutil.rmtree(first)
    with running(graph, shared_store, second) as (control, _):
        hurry(tmp_path / "out")
        assert finished(control), control.status
    truth = dict(true_counts(paths, 4))
    in_objects = parquet_rows(objects("counts"))
    files = [journaled(shared_store, worker, control.status.last_checkpoint) for worker in range(2)]
    in_store = [parse_row(line) for file in files for line in file.splitlines()]
    assert 0 < before < len(objects("counts"))
    assert max(Counter(in_objects).values()) == 1, "no count of a word comes twice"
    assert sorted(in_objects) == sorted((str(word), int(str(count))) for word, count in in_store)
    assert dict(sorted(in_objects)) == truth
    assert uploads("counts") == [], "nothing waits at the end"
