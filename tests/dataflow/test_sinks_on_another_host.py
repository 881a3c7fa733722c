"""Sources and sinks that outlive their host, in a region of processes whose workers die with all local
files.
"""

import re
import shutil
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from checkpoint.core.region import RegionState, ResetReport
from dataflow import FileSink, FileSource, Graph, JournaledFileSink, RateSource, S3Sink
from dataflow.limits import WorkerLimits
from dataflow.sinks.files import parse_row
from dos_cli.main import app
from tests.dataflow.s3_sinks import client
from tests.dataflow.support import rows_of
from tests.dataflow.test_region_processes import (
    WAIT_S,
    finished,
    hurry,
    kill_both_in_turn,
    running,
    unhurried,
)
from tests.support.examples import run_example
from tests.support.s3 import BUCKET, FakeS3, Rule, serving, status
from tests.support.s3_rows import objects, parquet_rows, uploads

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forks")]
NAME = "outlived"


@pytest.fixture(scope="module", autouse=True)
def bucket() -> Iterator[FakeS3]:
    with serving() as service:
        client().create_bucket(Bucket=BUCKET)
        yield service


def test_the_example_of_the_docs(shared_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_example("docs/sources-and-sinks.md", "s3", store=shared_store, bucket=f"s3://{BUCKET}/sold")
    assert len(objects("sold")) == 2, "one of each worker"


@pytest.mark.parametrize("end", ["source", "sink"])
def test_a_region_whose_bucket_does_not_exist_fails_before_any_worker_starts(
    shared_store: str, tmp_path: Path, end: str
) -> None:
    graph = Graph("nowhere")
    url = "s3://no-such-bucket/x"
    source = RateSource(10) if end == "sink" else FileSource(url, watch=True)
    graph.source("rows", source).sink("out", S3Sink(url) if end == "sink" else JournaledFileSink())
    with running(graph, shared_store, tmp_path) as (control, _):
        assert control.wait(WAIT_S)
        assert control.status.state is RegionState.FAILED
        assert re.search(r"NoSuchBucket.*create the bucket 'no-such-bucket'", str(control.exception()))
    assert not (tmp_path / "logs").exists(), "no worker was started"


def journaled(store_url: str, worker: int, checkpoint: int) -> str:
    """The rows of one worker's file, as docs/sources-and-sinks.md has it: read from the store alone."""
    chain = f"{store_url}/{NAME}.w{worker:04d}/files-kept"
    arguments = ["journal", "cat", chain, f"part-w{worker:04d}.tsv", "--at", f"checkpoint:{checkpoint}"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def put(key: str, text: str) -> None:
    client().put_object(Bucket=BUCKET, Key=key, Body=text.encode())


# EVIDENCE-OF: P-7
def test_a_region_continues_on_hosts_that_have_nothing(
    shared_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers are killed, one loses its disk. Then all local files are deleted, and others continue.

    One source reads given objects several times, the other reads objects that appear meanwhile.
    """
    texts = [
        "".join(
            f"word{number % 700} and{number % 7} in{index}\n" for number in range(4_000 if index < 3 else 500)
        )
        for index in range(5)
    ]
    for index in range(3):
        put(f"given/in{index}.txt", texts[index])
    put("added/3.txt", texts[3])
    graph = Graph("counted")
    given = graph.source("given", FileSource(f"s3://{BUCKET}/given/*.txt", repeat=4))
    prefix = f"s3://{BUCKET}/added"
    added = graph.source("added", FileSource(prefix, watch=True, until=f"{prefix}/END", poll_s=1.0))
    slow = partial(unhurried, tmp_path / "out.hurry")
    words = given.union("lines", added).flat_map("words", slow, schema="word string", takes="batch")
    counts = words.key_by("by_word", "word").count("counts")
    counts.sink("objects", S3Sink(f"s3://{BUCKET}/counts"))
    counts.sink("kept", JournaledFileSink())
    first, second = tmp_path / "first" / NAME, tmp_path / "second" / NAME
    small = WorkerLimits(step_bytes_max=16 * 1024, batch_bytes_max=8 * 1024)
    first.mkdir(parents=True)
    monkeypatch.chdir(first)
    with running(graph, shared_store, first, worker_limits=small) as (control, watch):
        kill_both_in_turn(control, watch)
        before = len(objects("counts"))
    second.mkdir(parents=True)
    monkeypatch.chdir(second)
    shutil.rmtree(first)
    put("added/4.txt", texts[4])
    put("added/END", "")
    with running(graph, shared_store, second) as (control, _):
        hurry(tmp_path / "out")
        assert finished(control), control.status
    truth = Counter(word for text in (*texts[:3] * 4, *texts[3:]) for word in text.split())
    in_objects = parquet_rows(objects("counts"))
    files = [journaled(shared_store, worker, control.status.last_checkpoint) for worker in range(2)]
    in_store = [parse_row(line) for file in files for line in file.splitlines()]
    assert 0 < before < len(objects("counts"))
    assert max(Counter(in_objects).values()) == 1, "no count of a word comes twice"
    assert sorted(in_objects) == sorted((str(word), int(str(count))) for word, count in in_store)
    assert dict(sorted(in_objects)) == dict(truth)
    assert uploads("counts") == [], "nothing waits at the end"


@pytest.mark.long  # waits for repeated requests
def test_a_region_resumes_when_the_service_of_its_input_is_available_again(
    shared_store: str, tmp_path: Path, bucket: FakeS3
) -> None:
    """Its worker fails when all attempts of a request have failed, is started again, and loses nothing."""
    prefix = f"s3://{BUCKET}/waited"
    put("waited/1.txt", "one\n")
    graph = Graph("waits")
    source = FileSource(prefix, watch=True, until=f"{prefix}/END", poll_s=0.2)
    graph.source("lines", source).sink("out", FileSink(tmp_path / "out"))
    with running(graph, shared_store, tmp_path) as (control, watch):
        watch.checkpoints(1)
        bucket.rules.append(Rule("GET", "prefix=waited", status(503, "SlowDown")))
        put("waited/2.txt", "two\n")
        put("waited/END", "")
        watch.wait(lambda event: isinstance(event, ResetReport))
        bucket.rules.clear()
        assert finished(control), control.status
        report = control.status.resets[0]
    assert re.search(r"InputUnavailableError.*cannot be reached.*SlowDown.*check the endpoint", report.reason)
    assert sorted(row[0] or "" for _, row in rows_of(tmp_path / "out")) == ["one", "two"]
