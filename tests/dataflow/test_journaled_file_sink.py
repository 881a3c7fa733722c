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
from dataflow.sinks.journaled import JournaledFileWriter
from dataflow.sinks.tsv import parse_row
from dataflow.state.operator_directory import OperatorDirectory
from dataflow.testing.directories import KeptChanges
from dataflow.testing.sink_check import SinkCheckError, check_sink
from dataflow.testing.sink_directories import SinkDirectories
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
        directory.append(self._name, bytes(text[:7]))
        self._size += min(len(text), 7)


def writes_past_the_directory(self: JournaledFileWriter, directory: OperatorDirectory, texts: Any) -> None:
    """The files of this host have the rows, and the store does not."""
    with (directory.path / self._name).open("ab") as file:
        file.writelines(texts)
    self._size += sum(map(len, texts))


def keeps_all(self: SinkDirectories, worker: int, number: int) -> None:
    """A reset restores the newest files instead of those of the checkpoint."""
    if worker in self._open:
        _, directory, log = self._open[worker]
        directory.cut(number, number)
        self._cuts[worker, number] = log.records


@pytest.mark.parametrize(
    ("kind", "method", "fault", "said"),
    [
        (JournaledFileWriter, "_append", forgets_the_rest, "lost: "),
        (JournaledFileWriter, "_append", writes_past_the_directory, "lost: "),
        (SinkDirectories, "cut", keeps_all, "visible too early: "),
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
    writer.reset_to({"file": "part-w0000.tsv", "bytes": 8})
    (tmp_path / "part-w0000.tsv").write_bytes(b"1\n2\n")
    with pytest.raises(CorruptDataError, match=r"part-w0000\.tsv.*8 bytes, as in the checkpoint"):
        writer.take_directory(OperatorDirectory(tmp_path, KeptChanges()))


def test_columns_without_text_and_parts_without_checkpoints_are_refused() -> None:
    with pytest.raises(SchemaError, match="column 'b' of type binary has no text form"):
        JournaledFileSink().check_input(pa.schema([("b", pa.binary())]))


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
