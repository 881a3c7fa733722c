"""A file of rows in the store: rebuilt for each incarnation, on whatever host."""

from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from dataflow import FileSource, Graph, JournaledFileSink, SchemaError, limits
from dataflow.operators.base import OperatorContext
from dataflow.sinks.base import SinkSpec
from dataflow.sinks.files import parse_row
from dataflow.sinks.journaled import JournaledFileWriter
from dataflow.state.operator_directory import OperatorDirectory
from dataflow.testing.sink_check import SinkCheckError, SinkDirectories, check_sink
from dataflow.testing.trial import KeptChanges
from dos_protocol.errors import CorruptDataError
from tests.dataflow.region_in_one_thread import OneThreadRegion

SCHEMA = pa.schema([("id", pa.int64())])


def fresh(_: str) -> tuple[SinkSpec, Callable[..., Iterable[int]]]:
    return JournaledFileSink(), ids_in


def ids_in(directories: list[Path]) -> list[int]:
    """What a reader sees who restores the files as of the last committed checkpoint."""
    lines = [line for one in directories for path in one.glob("*") for line in path.read_text().splitlines()]
    return [int(parse_row(line)[0] or "") for line in lines]


# EVIDENCE-OF: P-7
def test_rows_are_neither_lost_nor_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "journaled_append_bytes", 7)
    assert check_sink(fresh, runs=1) >= 20


def forgets_the_rest(self: JournaledFileWriter, directory: OperatorDirectory, texts: Any) -> None:
    for text in texts:
        directory.append(self._first, bytes(text[:7]))
        self._sizes[0] = self._sizes.get(0, 0) + min(len(text), 7)


def writes_past_the_directory(self: JournaledFileWriter, directory: OperatorDirectory, texts: Any) -> None:
    """The files of this host have the rows, and the store does not."""
    with (directory.path / self._first).open("ab") as file:
        file.writelines(texts)
    self._sizes[0] = self._sizes.get(0, 0) + sum(map(len, texts))


def keeps_all(self: SinkDirectories, worker: int, number: int) -> None:
    """A reset restores the newest files instead of those of the checkpoint."""
    if worker in self._open:
        _, directory, log = self._open[worker]
        directory.checkpoint(number, number)
        self._checkpoints[worker, number] = log.records


@pytest.mark.parametrize(
    ("kind", "method", "fault", "said"),
    [
        (JournaledFileWriter, "_append", forgets_the_rest, "lost: "),
        (JournaledFileWriter, "_append", writes_past_the_directory, "lost: "),
        (SinkDirectories, "checkpoint", keeps_all, "visible too early: "),
    ],
)
def test_each_rule_of_the_sink_is_needed(
    monkeypatch: pytest.MonkeyPatch, kind: type, method: str, fault: Callable[..., Any], said: str
) -> None:
    monkeypatch.setattr(kind, method, fault)
    with pytest.raises(SinkCheckError, match=said):
        check_sink(fresh, workers=1, runs=0)


def test_a_directory_of_another_size_than_in_the_checkpoint_is_refused(tmp_path: Path) -> None:
    context = OperatorContext("r", "out", 0, 1, bytes(16), (SCHEMA,), None, 1)
    writer = JournaledFileSink().open(context)
    writer.reset_to({"file": "part-w0000.tsv", "bytes": 8, "written": 8})
    (tmp_path / "part-w0000.tsv").write_bytes(b"1\n2\n")
    with pytest.raises(CorruptDataError, match=r"part-w0000\.tsv.*8 bytes, as in the checkpoint"):
        writer.take_directory(OperatorDirectory(tmp_path, KeptChanges()))


@pytest.mark.parametrize(
    "prepared",
    [
        {"file": "part-w0000.tsv", "bytes": 4, "written": 4},
        {"file": "part-w0000.000001.tsv", "bytes": 4, "written": 4},
    ],
)
def test_another_newest_file_than_in_the_checkpoint_is_refused(
    tmp_path: Path, prepared: dict[str, Any]
) -> None:
    context = OperatorContext("r", "out", 0, 1, bytes(16), (SCHEMA,), None, 1)
    writer = JournaledFileSink(max_bytes=100).open(context)
    writer.reset_to(prepared)
    (tmp_path / "part-w0000.000002.tsv").write_bytes(b"1\n2\n")
    with pytest.raises(CorruptDataError, match=r"4 bytes in the newest file, 'part-w0000\.000002\.tsv'"):
        writer.take_directory(OperatorDirectory(tmp_path, KeptChanges()))


def test_a_reset_drops_the_rows_of_the_step_and_files_of_other_names_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(b"x" * 100)
    writer = JournaledFileSink().open(OperatorContext("r", "out", 0, 1, bytes(16), (SCHEMA,), None, 1))
    writer.process(pa.record_batch([[1]], SCHEMA))
    writer.reset_to(None)
    writer.take_directory(OperatorDirectory(tmp_path, KeptChanges()))
    writer.process(pa.record_batch([[2]], SCHEMA))
    writer.end_step()
    assert (tmp_path / "part-w0000.tsv").read_bytes() == b"2\n"


def test_columns_without_text_and_parts_without_checkpoints_are_refused() -> None:
    with pytest.raises(SchemaError, match="column 'b' of type binary has no text form"):
        JournaledFileSink().check_input(pa.schema([("b", pa.binary())]))


# EVIDENCE-OF: P-6
@pytest.mark.parametrize("seed", range(3))
def test_the_newest_rows_are_kept_and_the_files_stay_small(tmp_path: Path, seed: int) -> None:
    """The rows that remain are the last ones, in order, whatever was reset, and over several files."""
    (tmp_path / "in.txt").write_text("".join(f"{number}\n" for number in range(400)))
    graph = Graph("copy")
    lines = graph.source("lines", FileSource(tmp_path / "in.txt"))
    ids = lines.map("ids", lambda row: int(row["line"]), schema="id bigint")
    ids.sink("out", JournaledFileSink(max_bytes=400))
    rng = Random(seed)
    region = OneThreadRegion(graph, 1, rng.randrange, folder=tmp_path / "files")
    region.run_with_trouble(rng, rounds=8, turns=40)
    (files,) = [sorted(side.paths["out"].iterdir()) for side in region.sides]
    sizes = [file.stat().st_size for file in files]
    assert sum(sizes) <= 400, sizes
    assert len(files) > 1
    kept = [int(line) for file in files for line in file.read_text().splitlines()]
    assert kept == [*range(400 - len(kept), 400)]


def test_a_limit_can_be_added_to_a_file_that_exists(tmp_path: Path) -> None:
    context = OperatorContext("r", "out", 0, 1, bytes(16), (SCHEMA,), None, 1)
    (tmp_path / "part-w0000.tsv").write_bytes(b"1\n" * 100)
    writer = JournaledFileSink(max_bytes=80).open(context)
    writer.reset_to({"file": "part-w0000.tsv", "bytes": 200, "written": 200})
    writer.take_directory(OperatorDirectory(tmp_path, KeptChanges()))
    for _ in range(3):
        writer.process(pa.record_batch([[*range(10, 14)]], SCHEMA))
        writer.end_step()
    assert {path.name: path.stat().st_size for path in tmp_path.iterdir()} == {
        "part-w0000.000001.tsv": 12,
        "part-w0000.000002.tsv": 12,
        "part-w0000.000003.tsv": 12,
    }
    assert writer.prepare(1) == {"file": "part-w0000.000003.tsv", "bytes": 12, "written": 236}
    with pytest.raises(SchemaError, match="max_bytes must be above 0, got 0"):
        JournaledFileSink(max_bytes=0)


@pytest.mark.parametrize("seed", range(3))
def test_in_a_region_whose_workers_are_reset_at_any_moment(tmp_path: Path, seed: int) -> None:
    """The real circuits, whose directories are handed over after the sinks were reset."""
    (tmp_path / "in.txt").write_text("".join(f"{number}\n" for number in range(60)))
    graph = Graph("copy")
    lines = graph.source("lines", FileSource(tmp_path / "in.txt"))
    lines.map("ids", lambda row: int(row["line"]), schema="id bigint").sink("out", JournaledFileSink())
    rng = Random(seed)
    region = OneThreadRegion(graph, 2, rng.randrange, folder=tmp_path / "files")
    region.run_with_trouble(rng, rounds=4, turns=40)
    paths = [side.paths["out"] for side in region.sides]
    assert sorted(ids_in(paths)) == [*range(60)]
