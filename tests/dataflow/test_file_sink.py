"""Rows as tab-separated text, and a file that goes back to a checkpoint."""

import fcntl
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow import FileSink, SchemaError, limits
from dataflow.errors import OutputLostError, SinkFencedError, SinkOwnedError, SinkWriteError
from dataflow.operators.base import OperatorContext
from dataflow.sinks.files import FileWriter, parse_row, tsv_of
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
@given(st.lists(st.sampled_from(["step", "checkpoint", "reset", "crash"]), max_size=20))
def test_a_file_holds_exactly_the_steps_since_the_checkpoint_it_went_back_to(acts: list[str]) -> None:
    with TemporaryDirectory() as name:
        directory = Path(name) / "out"
        writer = opened(directory)
        writer.reset_to(None)
        content, at_checkpoint, checkpoint = b"", b"", None
        for number, act in enumerate(acts):
            if act == "step":
                write_step(writer, (f"w{number}", number))
                content += f"w{number}\t{number}\n".encode()
            elif act == "checkpoint":
                checkpoint, at_checkpoint = writer.prepare(1), content
                writer.sync()
            else:
                if act == "crash":
                    writer.close()
                    writer = opened(directory)
                writer.reset_to(checkpoint)
                content = at_checkpoint
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
    checkpoint = writer.prepare(1)
    write_step(writer, ("b", 1))
    writer.reset_to(checkpoint)
    write_step(writer, ("b", 1))
    assert (tmp_path / "part-w0000.tsv").read_bytes() == b"a\t1\nb\t1\nb\t1\n"


@pytest.mark.parametrize("damage", [b"a\t1", b"a\t2\nb\t1\n"])
def test_output_that_is_shorter_or_other_than_the_checkpoint_says_is_an_error(
    tmp_path: Path, damage: bytes
) -> None:
    writer = opened(tmp_path)
    writer.reset_to(None)
    write_step(writer, ("a", 1))
    checkpoint = writer.prepare(1)
    writer.close()
    (tmp_path / "part-w0000.tsv").write_bytes(damage)
    with pytest.raises(CorruptDataError, match=r"part-w0000\.tsv"):
        opened(tmp_path).reset_to(checkpoint)


def test_another_regions_directory_is_not_touched(tmp_path: Path) -> None:
    writer = opened(tmp_path)
    writer.reset_to(None)
    write_step(writer, ("a", 1))
    writer.close()
    with pytest.raises(
        SinkOwnedError, match=r"belongs to sink '\w+' of region '\w+' since 20\d\d-\S+ \S+, not to"
    ):
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


def test_a_worker_that_waits_for_a_lock_logs_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "sink_lock_wait_s", 0.3)
    monkeypatch.setattr(limits, "sink_lock_log_s", 0.1)
    first = opened(tmp_path)
    first.reset_to(None)
    with pytest.raises(SinkWriteError, match="still locked"):
        opened(tmp_path).reset_to(None)
    first.close()
    (line,) = [one.getMessage() for one in caplog.records if "waiting up to" in one.getMessage()]
    assert f"waiting up to 0.3 s for the lock of output {tmp_path}/part-w0000.tsv, held by " in line
    shown = any(str(os.getpid()) in one.split() for one in Path("/proc/locks").read_text().splitlines())
    assert (f"process {os.getpid()} of this host" in line) or not shown


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_the_umask_decides_who_reads_a_part_and_nobody_executes_it(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        writer = opened(tmp_path / "out", incarnation=1)
        writer.reset_to(None)
        writer.close()
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "out").glob("*part-*")}
    assert modes == dict.fromkeys(("part-w0000.tsv", "_part-w0000.incarnation"), 0o666 & ~umask)


def test_a_process_without_standard_input_releases_its_part_too(tmp_path: Path) -> None:
    """The part may have descriptor 0 there."""
    kept = os.dup(0)
    os.close(0)
    try:
        writer = opened(tmp_path)
        writer.reset_to(None)
        writer.close()
        with (tmp_path / "part-w0000.tsv").open("rb") as part:
            fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.dup2(kept, 0)
        os.close(kept)


def lost(tmp_path: Path) -> Any:
    """The state of a part in a checkpoint whose file is lost afterwards."""
    writer = opened(tmp_path, incarnation=1)
    writer.reset_to(None)
    write_step(writer, ("a", 1), ("b", 2))
    prepared = writer.prepare(4)
    writer.close()
    (tmp_path / "part-w0000.tsv").unlink()
    return prepared


def accepting(tmp_path: Path, accepted: int, checkpoint: int, incarnation: int) -> FileWriter:
    context = OperatorContext(
        "r", "out", 0, 2, b"s" * 16, (SCHEMA,), None, incarnation, checkpoint=checkpoint
    )
    return FileSink(tmp_path, accept_lost_output=accepted).open(context)


# EVIDENCE-OF: P-7
def test_an_accepted_loss_begins_the_part_anew_and_a_later_loss_is_refused(tmp_path: Path) -> None:
    prepared, path = lost(tmp_path), tmp_path / "part-w0000.tsv"
    refused = accepting(tmp_path, 3, 4, 2)
    with pytest.raises(OutputLostError, match="pass accept_lost_output=4"):
        refused.reset_to(prepared)
    refused.close()
    path.write_bytes(b"a\t1\n")  # what an earlier placement had left here
    writer = accepting(tmp_path, 4, 4, 3)
    writer.reset_to(prepared)
    assert path.read_bytes() == b""
    assert (tmp_path / "_part-w0000.before-4").read_bytes() == b"a\t1\n"
    write_step(writer, ("c", 3))
    writer.reset_to(prepared)  # a reset before the next checkpoint
    assert path.read_bytes() == b""
    assert (tmp_path / "_part-w0000.before-4").read_bytes() == b"a\t1\n"
    write_step(writer, ("c", 3))
    later = writer.prepare(5)
    write_step(writer, ("d", 4))
    writer.close()
    writer = accepting(tmp_path, 4, 5, 4)
    writer.reset_to(later)
    assert path.read_bytes() == b"c\t3\n"
    writer.close()
    path.unlink()
    refused = accepting(tmp_path, 4, 5, 5)
    with pytest.raises(OutputLostError, match="pass accept_lost_output=5"):
        refused.reset_to(later)
    refused.close()


@pytest.mark.parametrize("wrong", [-1, True, "7"])
def test_only_the_number_of_a_checkpoint_accepts_a_loss(wrong: Any) -> None:
    with pytest.raises(SchemaError, match="accept_lost_output is the number of a checkpoint"):
        FileSink("x", accept_lost_output=wrong)


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
