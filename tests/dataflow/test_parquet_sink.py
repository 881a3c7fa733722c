"""Parquet files that appear at the commit: whole, once, and never changed."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataflow import ParquetSink, SchemaError, limits
from dataflow.errors import OutputLostError, SinkOwnedError, SinkWriteError
from dataflow.operators.base import OperatorContext
from dataflow.sinks.base import SinkSpec, SinkWriter
from dataflow.sinks.files import AcceptedLoss
from dataflow.sinks.parquet import ParquetOutput
from dataflow.testing.sink_check import check_sink

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


def ids_in(folder: Path) -> list[int]:
    """What a reader of the directory sees: files whose names begin with _ are none."""
    return [
        number for path in folder.glob("[!_]*.parquet") for number in pq.read_table(path)["id"].to_pylist()
    ]


def opened(folder: Path, incarnation: int = 1) -> SinkWriter:
    context = OperatorContext("r", "out", 0, 1, bytes(16), (SCHEMA,), None, incarnation)
    return ParquetSink(folder).open(context)


def staging(folder: Path) -> Path:
    """The directory of the worker's staged files."""
    (found,) = folder.glob("_*.staging")
    return found


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"id": n, "text": "x" * n} for n in numbers], SCHEMA)


# EVIDENCE-OF: P-7
def test_rows_are_neither_lost_nor_doubled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fresh(name: str) -> tuple[SinkSpec, Callable[[], list[int]]]:
        return ParquetSink(tmp_path / name), lambda: ids_in(tmp_path / name)

    monkeypatch.setattr(limits, "parquet_group_bytes", 40)
    assert check_sink(fresh, runs=5)


def test_a_file_appears_when_its_checkpoint_is_committed(tmp_path: Path) -> None:
    writer = opened(tmp_path)
    writer.reset_to(None)
    writer.process(rows(1, 2))
    writer.process(rows(3))
    prepared = writer.prepare(1)
    writer.sync()
    assert ids_in(tmp_path) == []
    (name,) = prepared["pending"]
    assert pq.read_table(staging(tmp_path) / f"{name}.parquet").num_rows == 3, "it is whole, and waits"
    writer.publish(1)
    (path,) = tmp_path.glob("part-*.parquet")
    found = pq.ParquetFile(path)
    assert found.schema_arrow.equals(SCHEMA)
    assert found.num_row_groups == 1, "small batches make no small groups"
    assert ids_in(tmp_path) == [1, 2, 3]
    writer.close()


def test_files_that_readers_have_taken_away_are_not_missed(tmp_path: Path) -> None:
    writer = opened(tmp_path)
    writer.reset_to(None)
    writer.process(rows(1))
    prepared = writer.prepare(1)
    writer.sync()
    writer.publish(1)
    writer.close()
    for path in tmp_path.glob("part-*"):
        path.unlink()
    later = opened(tmp_path, 2)
    later.reset_to(prepared)
    later.publish(1)
    assert ids_in(tmp_path) == []
    later.close()


def test_a_reset_to_an_older_checkpoint_takes_later_files_back(tmp_path: Path) -> None:
    """As after a rollback: the rows of later checkpoints come again."""
    writer = opened(tmp_path)
    writer.reset_to(None)
    prepared = []
    for number in (1, 2):
        writer.process(rows(number))
        prepared.append(writer.prepare(number))
        writer.sync()
        writer.publish(number)
    writer.close()
    assert sorted(ids_in(tmp_path)) == [1, 2]
    later = opened(tmp_path, 2)
    later.reset_to(prepared[0])
    later.publish(3)
    assert ids_in(tmp_path) == [1]
    later.close()
    none = opened(tmp_path, 3)
    with pytest.raises(SinkOwnedError, match="the region has no checkpoint"):
        none.reset_to(None)
    none.close()


def test_a_staged_file_that_was_removed_is_an_error(tmp_path: Path) -> None:
    writer = opened(tmp_path)
    writer.reset_to(None)
    writer.process(rows(1))
    (name,) = writer.prepare(1)["pending"]
    writer.sync()
    (staging(tmp_path) / f"{name}.parquet").unlink()
    with pytest.raises(
        SinkWriteError, match=r"does not exist, but the checkpoint that covers its rows is committed"
    ):
        writer.publish(1)
    writer.close()


@pytest.mark.parametrize("committed", [True, False])
def test_files_that_are_lost_with_their_host_are_refused_unless_the_loss_is_accepted(
    tmp_path: Path, committed: bool
) -> None:
    writer = opened(tmp_path / "first")
    writer.reset_to(None)
    writer.process(rows(1))
    prepared = writer.prepare(1)
    writer.sync()
    if committed:  # then the next checkpoint names no pending transaction
        writer.publish(1)
        prepared = writer.prepare(2)
    writer.close()

    def continued(accepted: int) -> SinkWriter:
        context = OperatorContext("r", "out", 0, 1, bytes(16), (SCHEMA,), None, 2, checkpoint=2)
        sink = ParquetSink(tmp_path / "second", accept_lost_output=accepted).open(context)
        sink.reset_to(prepared)
        sink.publish(2)
        return sink

    with pytest.raises(OutputLostError, match=r"\.parquet at byte 0.*pass accept_lost_output=2"):
        continued(1)
    later = continued(2)
    later.process(rows(2))
    later.prepare(3)
    later.sync()
    later.publish(3)
    later.close()
    assert ids_in(tmp_path / "second") == [2]


def test_what_was_left_over_is_removed(tmp_path: Path) -> None:
    writer = opened(tmp_path)
    writer.reset_to(None)
    writer.process(rows(1))
    writer.prepare(1)
    writer.sync()
    writer.process(rows(2))
    writer.close()
    (tmp_path / "_notes.parquet").write_bytes(b"not ours")
    later = opened(tmp_path, 2)
    later.reset_to(None)
    assert [*staging(tmp_path).iterdir()] == []
    left = sorted(path.name for path in tmp_path.iterdir() if path != staging(tmp_path))
    assert left == ["_notes.parquet", "_region.json"]
    later.close()


def test_a_reset_lists_staged_files_and_not_the_published_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = opened(tmp_path)
    writer.reset_to(None)
    for checkpoint in (1, 2):
        writer.process(rows(checkpoint))
        prepared = writer.prepare(checkpoint)
        writer.sync()
        writer.publish(checkpoint)
    writer.close()
    staged, glob, listed = staging(tmp_path), Path.glob, list[Path]()

    def noted(path: Path, pattern: str) -> Iterator[Path]:
        listed.append(path)
        return glob(path, pattern)

    monkeypatch.setattr(Path, "glob", noted)
    later = opened(tmp_path, 2)
    later.reset_to(prepared)
    later.publish(0)
    later.close()
    assert listed == [staged]
    assert sorted(ids_in(tmp_path)) == [1, 2]


def test_columns_and_compressions_that_parquet_does_not_know_are_refused_before_anything_runs() -> None:
    with pytest.raises(SchemaError, match="column 'odd' of type month_day_nano_interval has no Parquet type"):
        ParquetSink("x").check_input(pa.schema([("odd", pa.month_day_nano_interval())]))
    with pytest.raises(SchemaError, match="compression must be one of zstd, snappy"):
        ParquetSink("x", compression="zip")  # type: ignore[arg-type]


def test_the_directory_is_made_with_those_above_it(tmp_path: Path) -> None:
    writer = opened(tmp_path / "of" / "today")
    writer.reset_to(None)
    writer.close()
    assert (tmp_path / "of" / "today").is_dir()


def test_rows_of_a_transaction_that_was_given_up_do_not_count_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "parquet_group_bytes", 3 * rows(1).nbytes)
    output = ParquetOutput(tmp_path, SCHEMA, "zstd", None, "w", AcceptedLoss(0, 0), 1)
    for transaction in ("given-up", "next"):
        output.stage(transaction, rows(1))
        output.stage(transaction, rows(2))
        if transaction == "given-up":
            output.abort(transaction)
    output.prepare("next")
    assert pq.ParquetFile(staging(tmp_path) / "next.parquet").num_row_groups == 1
    output.close()


def test_a_commit_that_was_interrupted_between_record_and_rename_is_completed(tmp_path: Path) -> None:
    """And a reset to a checkpoint before it finds the file that the commit made visible."""
    writer = opened(tmp_path)
    writer.reset_to(None)
    checkpoints = []
    for checkpoint in (1, 2):
        writer.process(rows(checkpoint))
        checkpoints.append(writer.prepare(checkpoint))
        writer.sync()
    writer.publish(1)
    writer.close()
    (name,) = checkpoints[1]["pending"].keys() - checkpoints[0]["pending"].keys()
    (record,) = tmp_path.glob("_*.shown")
    record.write_text(name)  # as the commit of checkpoint 2 leaves it before the rename
    later = opened(tmp_path, 2)
    later.reset_to(checkpoints[1])
    later.publish(0)
    assert sorted(ids_in(tmp_path)) == [1, 2]
    later.close()
    rolled_back = opened(tmp_path, 3)
    rolled_back.reset_to(checkpoints[0])
    assert ids_in(tmp_path) == [1]
    rolled_back.close()
