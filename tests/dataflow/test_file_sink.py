"""Rows as tab-separated text, and a file that goes back to a checkpoint."""

import fcntl
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow import FileSink, limits
from dataflow.errors import SinkFencedError, SinkOwnedError, SinkWriteError
from dataflow.operators.base import OperatorContext
from dataflow.sinks.files import FileWriter
from dataflow.sinks.tsv import parse_row, tsv_of
from dos_protocol.errors import CorruptDataError

SCHEMA = pa.schema([("word", pa.string()), ("count", pa.int64())])


def opened(
    directory: Path, *, truncate: bool = True, region: str = "r", worker: int = 0, incarnation: int = 0
) -> FileWriter:
    context = OperatorContext(region, "out", worker, 2, b"s" * 16, (SCHEMA,), None, incarnation)
    return FileSink(directory, truncate_on_reset=truncate).open(context)


def batch(*rows: tuple[str | None, int | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"word": w, "count": c} for w, c in rows], schema=SCHEMA)


_values = st.text(alphabet="ab\t\n\r\\N é日", max_size=6) | st.none()


@given(st.lists(st.tuples(_values, st.integers(-(2**63), 2**63 - 1) | st.none(), _values), max_size=10))
def test_every_value_returns_from_its_text(rows: list[tuple]) -> None:
    schema = pa.schema([("a", pa.string()), ("n", pa.int64()), ("b", pa.string())])
    given_rows = [dict(zip(schema.names, row, strict=True)) for row in rows]
    data = bytes(tsv_of(pa.RecordBatch.from_pylist(given_rows, schema=schema)))
    assert data.count(b"\n") == len(rows)
    lines = data.decode().split("\n")[:-1]
    expected = [[a, None if n is None else str(n), b] for a, n, b in rows]
    assert [parse_row(line) for line in lines] == expected


def test_a_slice_of_a_batch_is_written_as_that_slice() -> None:
    rows = batch(("a", 1), ("b", 2), ("c", 3))
    assert bytes(tsv_of(rows.slice(1, 1))) == b"b\t2\n"
    assert bytes(tsv_of(rows.slice(3))) == b""


def write_step(writer: FileWriter, *rows: tuple[str | None, int | None]) -> None:
    writer.process(batch(*rows))
    writer.end_step()


# EVIDENCE-OF: P-7
@given(st.lists(st.sampled_from(["step", "cut", "reset", "crash"]), max_size=20))
def test_a_file_holds_exactly_the_steps_since_the_checkpoint_it_went_back_to(acts: list[str]) -> None:
    with TemporaryDirectory() as name:
        directory = Path(name) / "out"
        writer = opened(directory)
        writer.reset_to(None)
        content, at_cut, cut = b"", b"", None
        for number, act in enumerate(acts):
            if act == "step":
                write_step(writer, (f"w{number}", number))
                content += f"w{number}\t{number}\n".encode()
            elif act == "cut":
                cut, at_cut = writer.prepare(1), content
                writer.sync()
            else:
                if act == "crash":
                    writer.close()
                    writer = opened(directory)
                writer.reset_to(cut)
                content = at_cut
            assert (directory / "part-w0000.tsv").read_bytes() == content
        writer.close()


def test_rows_of_a_step_that_did_not_end_are_not_written(tmp_path: Path) -> None:
    writer = opened(tmp_path)
    writer.reset_to(None)
    writer.process(batch(("a", 1)))
    assert (tmp_path / "part-w0000.tsv").read_bytes() == b""
    writer.reset_to(None)
    writer.end_step()
    assert (tmp_path / "part-w0000.tsv").read_bytes() == b""


def test_the_test_only_switch_leaves_what_lies_past_the_checkpoint(tmp_path: Path) -> None:
    writer = opened(tmp_path, truncate=False)
    writer.reset_to(None)
    write_step(writer, ("a", 1))
    cut = writer.prepare(1)
    write_step(writer, ("b", 1))
    writer.reset_to(cut)
    write_step(writer, ("b", 1))
    assert (tmp_path / "part-w0000.tsv").read_bytes() == b"a\t1\nb\t1\nb\t1\n"


@pytest.mark.parametrize("damage", [b"a\t1", b"a\t2\nb\t1\n"])
def test_output_that_is_shorter_or_other_than_the_checkpoint_says_is_an_error(
    tmp_path: Path, damage: bytes
) -> None:
    writer = opened(tmp_path)
    writer.reset_to(None)
    write_step(writer, ("a", 1))
    cut = writer.prepare(1)
    writer.close()
    (tmp_path / "part-w0000.tsv").write_bytes(damage)
    with pytest.raises(CorruptDataError, match=r"part-w0000\.tsv"):
        opened(tmp_path).reset_to(cut)


def test_another_regions_directory_is_not_touched(tmp_path: Path) -> None:
    writer = opened(tmp_path)
    writer.reset_to(None)
    write_step(writer, ("a", 1))
    writer.close()
    with pytest.raises(SinkOwnedError, match="belongs to"):
        opened(tmp_path, region="other").reset_to(None)
    assert (tmp_path / "part-w0000.tsv").read_bytes() == b"a\t1\n"


def test_output_that_nobody_owns_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "part-w0000.tsv").write_bytes(b"precious\n")
    with pytest.raises(SinkOwnedError, match=r"no _region\.json"):
        opened(tmp_path).reset_to(None)
    assert (tmp_path / "part-w0000.tsv").read_bytes() == b"precious\n"


def test_workers_of_one_region_share_a_directory(tmp_path: Path) -> None:
    for worker in (0, 1):
        writer = opened(tmp_path, worker=worker)
        writer.reset_to(None)
        write_step(writer, ("a", worker))
        writer.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "_region.json",
        "part-w0000.tsv",
        "part-w0001.tsv",
    ]


def test_a_part_that_another_process_writes_is_waited_for_and_then_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "sink_lock_wait_s", 0.1)
    first = opened(tmp_path)
    first.reset_to(None)
    with pytest.raises(SinkWriteError, match="still locked"):
        opened(tmp_path).reset_to(None)
    with (tmp_path / "part-w0000.tsv").open() as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    first.close()
    second = opened(tmp_path)
    second.reset_to(None)
    second.close()


# EVIDENCE-OF: P-7
def test_a_worker_of_an_earlier_incarnation_checkpoints_nothing_back(tmp_path: Path) -> None:
    """Found by the simulator: it had waited for the lock while a later one wrote, committed and ended."""
    newer = opened(tmp_path, incarnation=7)
    newer.reset_to(None)
    write_step(newer, ("a", 1))
    prepared = newer.prepare(1)
    newer.close()
    older = opened(tmp_path, incarnation=4)
    with pytest.raises(SinkFencedError, match=r"incarnation 7 .* this worker is of 4"):
        older.reset_to(None)
    assert (tmp_path / "part-w0000.tsv").read_bytes() == b"a\t1\n"
    newest = opened(tmp_path, incarnation=8)
    newest.reset_to(prepared)
    write_step(newest, ("b", 1))
    newest.close()
    assert (tmp_path / "part-w0000.tsv").read_bytes() == b"a\t1\nb\t1\n"
    other = opened(tmp_path, worker=1, incarnation=4)
    other.reset_to(None)  # each part has its own
    other.close()


def test_who_wrote_a_part_last_must_be_a_number(tmp_path: Path) -> None:
    writer = opened(tmp_path, incarnation=7)
    writer.reset_to(None)
    writer.close()
    (tmp_path / "_part-w0000.incarnation").write_bytes(b"seven")
    later = opened(tmp_path, incarnation=8)
    with pytest.raises(CorruptDataError, match="incarnation"):
        later.reset_to(None)
    later.close()
