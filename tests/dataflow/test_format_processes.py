"""Every format of files as input, and partitioned files as output, while workers are killed and changed."""

import csv
import json
import time
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from dataflow import FileSource, Graph, ParquetSink, limits
from tests.dataflow.test_formats import compress, write_table
from tests.dataflow.test_region_processes import (
    WAIT_S,
    finished,
    hurry,
    hurry_of,
    kill,
    kill_both_in_turn,
    running,
)
from tests.support.parts import with_long

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forks")]
ROWS = 1000
NAMES = ["plain.json", "part.csv", "packed.csv.gz", "packed.json.bz2", "packed.json.zst", "a.parquet"]
NAMES += ["b.arrow", "c.arrows"]
SCHEMA = "id bigint, text string"


def rows_of(name: str) -> list[dict[str, Any]]:
    return [{"id": number, "text": f'{name},\n"{number}"' + "é" * (number % 5)} for number in range(ROWS)]


def write(folder: Path, name: str) -> FileSource:
    """Write two files, of which those of row groups are read in parts."""
    kind: Any = name.split(".")[1].removesuffix("s")
    for half, rows in enumerate([rows_of(name)[: ROWS // 2], rows_of(name)[ROWS // 2 :]]):
        path = folder / f"{half}-{name}"
        if kind in ("parquet", "arrow"):
            form = name.split(".")[1]
            write_table(form, path, pa.Table.from_pylist(rows).select(["text", "id"]), group=20)
            continue
        text = StringIO()
        if kind == "json":
            text.writelines(json.dumps(row) + "\n" for row in rows)
        else:
            writer = csv.writer(text)
            writer.writerows([["text", "id"], *([row["text"], row["id"]] for row in rows)])
        suffix = path.suffix if path.suffix in (".gz", ".bz2", ".zst") else ""
        path.write_bytes(compress(suffix, text.getvalue().encode()))
    return FileSource(f"{folder}/*-{name}", format=kind, schema=SCHEMA)


def tagged(name: str, hurried: Path, row: Any) -> dict[str, Any]:
    """A function that is slow with each row, until the test ends that."""
    if not hurried.exists():
        time.sleep(0.001)
    return {"name": name, "third": row["id"] % 3 or None, "id": row["id"], "text": row["text"]}


@pytest.mark.parametrize("changes", with_long([False], [True]))
def test_rows_of_every_format_are_in_partitions_once_after_kills(
    changes: bool, shared_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "file_part_bytes", 8_000)
    graph, out = Graph("formats"), tmp_path / "out"
    schema = "name string, third int, id bigint, text string"
    streams = []
    for at, name in enumerate(NAMES):
        source = write(tmp_path, name)
        assert len(source.pieces) > len(source.paths) or "csv" in name or "json" in name
        function = partial(tagged, name, hurry_of(out))
        streams.append(graph.source(f"read_{at}", source).map(f"tagged_{at}", function, schema=schema))
    streams[0].union("all", *streams[1:]).sink("out", ParquetSink(out, partition_by=("name", "third")))
    with running(graph, shared_store, tmp_path, workers=2) as (control, watch):
        if changes:
            watch.checkpoints(2)
            for workers in (1, 3, 2):
                control.scale(workers, WAIT_S)
                kill(control, workers - 1, wipe=True)
                control.checkpoint(WAIT_S)
        else:
            kill_both_in_turn(control, watch)
        hurry(out)
        assert finished(control), control.status
    columns = pa.schema([("name", pa.string()), ("third", pa.int32())])
    read = ds.dataset(out, format="parquet", partitioning=ds.partitioning(columns, flavor="hive")).to_table()
    found = sorted((row["name"], row["id"], row["text"], row["third"]) for row in read.to_pylist())
    expected = [
        (name, row["id"], row["text"], row["id"] % 3 or None) for name in NAMES for row in rows_of(name)
    ]
    assert len(found) == len(expected)
    assert found == sorted(expected)
    assert not [*out.glob("_*.staging/*")]
