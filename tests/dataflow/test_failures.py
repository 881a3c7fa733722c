"""What an operator, a source or a sink raises stops the region at once, and names it; what a disk or a
service does to it is a loss; where it ends its process or holds the interpreter lock, its companion names it.

Every method that a worker calls of every kind of operator raises, and ends a copy of the process, in one
circuit on one thread.
"""

import asyncio
import ctypes
import errno
import faulthandler
import inspect
import itertools
import os
import resource
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
import sqlalchemy as sa

from checkpoint import Failed, limits
from dataflow import (
    CallSink,
    Count,
    FileSource,
    Graph,
    IteratorSource,
    LogSink,
    Stream,
)
from dataflow.errors import InputUnavailableError, SchemaError, SinkRefusedError, SinkWriteError, UserFault
from dataflow.operators.base import Operator, OperatorContext
from dataflow.sinks.base import SinkSpec, SinkWriter, write_error
from dataflow.sinks.call import CallWriter
from dataflow.sinks.sql import SqlSink
from dataflow.sources.base import SourceReader, SourceSpec
from dataflow.worker import companion, partitioning
from dos_protocol.errors import text_of
from journal.limits import record_body_bytes_max
from tests.dataflow.every_kind import (
    GRAPHS,
    NOT_HERE,
    ROWS,
    WINDOW,
    OneWorker,
    graph_of,
    kinds,
    made_folder,
    rows_from,
)
from tests.dataflow.s3_sinks import bucket, service
from tests.support.parts import with_long

__all__ = ["bucket", "service"]


class BadTextError(Exception):
    """Its text has no encoding."""

    def __str__(self) -> str:
        return "half of a pair: \ud800"


class NoTextError(Exception):
    """Its text cannot be made."""

    def __str__(self) -> str:
        raise SystemExit("not even that")


EXCEPTIONS: Mapping[str, Callable[[], BaseException]] = {
    "ValueError": lambda: ValueError("bad"),
    "OverflowError": lambda: OverflowError("date value out of range"),
    "UnicodeEncodeError": lambda: UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
    "MemoryError": MemoryError,
    "RecursionError": RecursionError,
    "ArrowInvalid": lambda: pa.ArrowInvalid("bad"),
    "AssertionError": AssertionError,
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
    "BadTextError": BadTextError,
    "NoTextError": NoTextError,
}


def test_every_kind_of_the_package_is_tried() -> None:
    known = {kind.__name__ for kind in kinds()}
    assert known - GRAPHS.keys() - NOT_HERE.keys() == set()
    assert NOT_HERE.keys() <= known


BORDERS = {
    name
    for base in (Operator, SourceReader, SinkWriter)
    for name in dir(base)
    if not name.startswith("_") and name not in ("close", "describe", "reached", "passes_on")
}
"""What a worker calls or reads of an operator. Not `close` and `describe`, which have tests of their own."""


ENDS: Mapping[int, Callable[[], object]] = {
    3 << 8: lambda: os._exit(3),
    signal.SIGSEGV: lambda: ctypes.string_at(0),
}
"""The wait status of a process, and what its code did."""


def end_a_copy(status: int) -> int:
    """Fork this process, let the child end with that status, and return the status that it had."""
    child = os.fork()
    if not child:
        faulthandler.disable()  # it would write the stacks of the test
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        ENDS[status]()
    return os.waitpid(child, 0)[1]


def hold_the_lock(worker: OneWorker, of: int) -> int:
    """Hold the interpreter lock until another process, like the companion, has seen what runs. Return its
    status, 0 if it has seen the operator (of = 0: as what runs, 1: as a sink), in a process not stopped.
    """
    waits, ends = os.pipe()
    companion_pid = os.fork()
    if not companion_pid:
        named = worker.named()[of] == "made" and not companion._is_stopped(os.getppid())
        os._exit(0 if named else 1)  # its end closes the pipe
    os.close(ends)
    ctypes.PyDLL(None).read(waits, ctypes.create_string_buffer(1), 1)
    os.close(waits)
    return os.waitpid(companion_pid, 0)[1]


@contextmanager
def sabotaged(
    worker: OneWorker, border: str, make: Callable[[], BaseException], act: Callable[[], None] | None = None
) -> Iterator[list[str]]:
    """Let one method or property of the operator `made` raise, after `act`. Yields what was called of it."""
    spec = worker.plan.specs["made"]
    calls: list[str] = []
    open_spec = type(spec).open

    def raising(self: Any, *_: Any, **__: Any) -> Any:
        calls.append(border)
        if act is not None and len(calls) == 1:
            act()
        raise make()

    def opened(self: Any, context: Any) -> Any:
        operator = open_spec(self, context)
        if context.operator == "made":
            cls = type(operator)
            is_property = isinstance(inspect.getattr_static(cls, border), property)
            attributes = {"__slots__": (), border: property(raising) if is_property else raising}
            operator.__class__ = type(cls.__name__, (cls,), attributes)
        return operator

    with mock.patch.object(type(spec), "open", opened):
        yield calls


REACHED = {
    "operator": {"process_of", "end_step", "tables", "restored"},
    "source": {"reset_to", "read", "positions", "take_division", "exhausted", "has_input", "counters"},
    "sink": {"reset_to", "process_of", "end_step", "prepare", "sync", "voted", "publish"},
}
MISSED = {
    "InputSource": {"read"},
    "LogSource": {"read"},
    "MergedLogSource": {"read"},
    "UnionSpec": {"process_of"},
    "KeyBySpec": {"end_step"},
}
"""What a kind has, and no call reaches here."""


EVERY = ("process_of", "read", "sync", "has_input")
"""Borders where every kind of exception is raised; at others one each, in turn. S3Sink, whose requests take
long, has the writer of NowhereSink.
"""


ALL = [kind for kind in GRAPHS if kind not in NOT_HERE]
SOME = [
    "MapSpec",
    "WindowSpec",
    "JoinSpec",
    "ProcessorSpec",
    "FileSource",
    "InputSource",
    "LogSource",
    "CallSink",
    "SqlSink",
]
"""Of each role a few; what calls them is the same for all."""


@pytest.mark.parametrize("kind", with_long(SOME, [kind for kind in ALL if kind not in SOME]))
def test_what_an_operator_does_anywhere_is_named(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """What it raises stops the region. If it ends its process, or holds the lock, its companion names it.

    Each border of each kind does each of the three: copies of this process end by `os._exit` and SIGSEGV, and
    it holds the lock until another process has read the memory that a companion reads. What a companion
    sends of that memory, and that the status has it, is in test_companions.py, once for each of the three.
    """
    if kind == "S3Sink":
        request.getfixturevalue("bucket")
    numbers, in_turn = itertools.count(), itertools.cycle(EXCEPTIONS)
    reached, seen, expected = set[str](), list[tuple[int, str]](), list[tuple[int, str]]()
    for border in sorted(BORDERS):
        for name in EXCEPTIONS if border in EVERY and kind != "S3Sink" else [next(in_turn)]:
            folder = made_folder(tmp_path / str(next(numbers)))
            worker = OneWorker(graph_of(kind, folder), folder)

            def act(worker: OneWorker = worker, border: str = border) -> None:
                of = border in ("sync", "voted")
                for status in ENDS:
                    seen.append((end_a_copy(status), worker.named()[of]))
                    expected.append((status, "made"))
                seen.append((hold_the_lock(worker, of), "made"))
                expected.append((0, "made"))

            with sabotaged(worker, border, EXCEPTIONS[name], act if border not in reached else None) as calls:
                failures = worker.live()
            if not calls:
                break
            assert seen == expected, f"{kind}.{border}"
            reached.add(border)
            said = f"{kind}.{border} raises {name}: {failures}"
            assert [(one.kind, one.operator) for one in failures] == [("operator", "made")], said
            assert name in failures[0].message, said
            assert failures[0].position, said
            failures[0].message.encode()
    spec = worker.plan.specs["made"]
    role = "source" if isinstance(spec, SourceSpec) else "sink" if isinstance(spec, SinkSpec) else "operator"
    assert REACHED[role] - reached - MISSED.get(kind, set()) == set()


@pytest.mark.parametrize(
    "loss", [OSError(5, "no answer"), SinkWriteError("full"), InputUnavailableError("down")]
)
def test_what_a_disk_or_a_service_does_to_an_operator_is_a_loss_and_names_it(
    loss: Exception, tmp_path: Path
) -> None:
    worker = OneWorker(graph_of("FileSink", made_folder(tmp_path / "a")), tmp_path)
    with sabotaged(worker, "process_of", lambda: loss):
        (failure,) = worker.live()
    assert failure.kind == "internal"
    assert failure.message == f"{text_of(loss)} (operator 'made')"


@pytest.mark.parametrize(
    ("error", "checkpoint", "kind"),
    [
        (SinkRefusedError("no permission"), 0, "operator"),
        (SinkRefusedError("no permission"), 7, "internal"),
        (SinkWriteError("full"), 0, "internal"),
    ],
    ids=["refused", "refused after a checkpoint", "full"],
)
def test_a_place_that_refuses_to_be_written_stops_a_new_region_at_once(
    error: Exception, checkpoint: int, kind: str, tmp_path: Path
) -> None:
    worker = OneWorker(graph_of("FileSink", made_folder(tmp_path / "a")), tmp_path)
    with sabotaged(worker, "reset_to", lambda: error):
        (failure,) = worker.live(checkpoint)
    assert failure.kind == kind
    assert error.args[0] in failure.message
    assert "made" in failure.message + failure.operator


def test_which_errors_of_a_destination_another_attempt_would_have_again(tmp_path: Path) -> None:
    def of_database(path: str) -> Exception:
        engine = sa.create_engine(f"sqlite:///{path}")
        with pytest.raises(sa.exc.SQLAlchemyError) as raised, engine.begin() as connection:
            connection.execute(sa.text("create table t (n int)"))
        return raised.value

    (tmp_path / "text").write_text("no database" * 100)

    class OfServer(Exception):  # noqa: N818 - as psycopg has it
        def __init__(self, state: str) -> None:
            self.sqlstate = state

    def below(state: str) -> Exception:
        return sa.exc.DBAPIError("", {}, OfServer(state))

    again: list[Exception] = [OSError(code, "") for code in (errno.EACCES, errno.EROFS, errno.ENOTDIR)]
    again += [
        ModuleNotFoundError("No module named 'MySQLdb'"),
        of_database(f"{tmp_path}/none/d"),
        of_database(f"{tmp_path}/text"),
    ]
    again += [below(state) for state in ("42501", "28P01", "3D000", "42P01")]
    assert [write_error(one) for one in again] == [SinkRefusedError] * len(again)
    others: list[Exception] = [OSError(code, "") for code in (errno.EIO, errno.ENOSPC, errno.ETIMEDOUT)]
    others += [ConnectionError("away"), ValueError(), *map(below, ("57P03", "08006", "53300"))]
    assert [write_error(one) for one in others] == [SinkWriteError] * len(others)


@pytest.mark.parametrize("key", [(), ("v",)], ids=["rows", "by key"])
def test_a_table_that_cannot_take_the_rows_is_refused_when_the_sink_is_opened(
    key: tuple[str, ...], tmp_path: Path
) -> None:
    url, schema = f"sqlite:///{tmp_path}/d", pa.schema([("v", pa.int64())])
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("create table other (q int)"))
        connection.execute(sa.text("create table upper (V int primary key, q int)"))

    def opened(table: str) -> None:
        sink = SqlSink(url, table, key=key, create=False)
        writer = sink.open(OperatorContext("r", "out", 0, 1, bytes(16), (schema,), None, 1))
        writer.reset_to(None)
        writer.close()

    with pytest.raises(SinkRefusedError, match="there is no table 'none' in the database"):
        opened("none")
    with pytest.raises(SinkRefusedError, match="table 'other' has no column 'v', but 'q'"):
        opened("other")
    opened("upper")


def test_what_close_raises_is_logged_and_has_no_other_effect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worker = OneWorker(graph_of("MapSpec", made_folder(tmp_path / "a")), tmp_path)
    with sabotaged(worker, "close", lambda: SystemExit(3)) as calls:
        assert worker.live() == []
    assert calls
    assert "in close: operator 'made' failed at its close: SystemExit: 3" in caplog.text


def test_a_source_that_cannot_describe_a_position_hides_no_error(tmp_path: Path) -> None:
    worker = OneWorker(graph_of("IteratorSource", made_folder(tmp_path / "a")), tmp_path)
    with (
        mock.patch.object(CallWriter, "process", side_effect=ZeroDivisionError("division by zero")),
        sabotaged(worker, "describe", SystemExit),
    ):
        (failure,) = worker.live()
    assert (failure.operator, failure.message) == ("end", "ZeroDivisionError: division by zero")
    assert failure.position == "a position that its source cannot describe: SystemExit: "


def failure_of_rows(rows: list[dict[str, Any]], added: Callable[[Stream], Stream], folder: Path) -> Failed:
    graph = Graph("failures")

    def positioned(split: str, at: int) -> Iterator[tuple[int, dict[str, Any]]]:
        del split
        return ((number + 1, rows[number]) for number in range(at, len(rows)))

    source = IteratorSource(positioned, "t timestamp, k string, x bigint")
    added(graph.source("rows", source)).sink("end", CallSink(print))
    (failure,) = OneWorker(graph, folder).live()
    return failure


def test_a_row_at_the_end_of_all_times_is_named_and_is_no_lost_worker(tmp_path: Path) -> None:
    late = {"t": datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC), "k": "a", "x": 1}
    failure = failure_of_rows(
        [*ROWS, late],
        lambda rows: (
            rows.event_time("timed", "t", lateness=timedelta(0), max_ahead=None)
            .key_by("by", "k")
            .aggregate("per_minute", WINDOW, n=Count())
        ),
        tmp_path,
    )
    assert (failure.kind, failure.operator) == ("operator", "per_minute")
    assert "the window of the time 9999-12-31T23:59:59.000000 is not within the years" in failure.message


def test_text_that_no_encoding_has_is_named_where_it_is_read(tmp_path: Path) -> None:
    failure = failure_of_rows([*ROWS, {**ROWS[0], "k": "\ud800"}], lambda rows: rows, tmp_path)
    assert (failure.kind, failure.operator) == ("operator", "rows")
    assert failure.position == "split 'rows', after position 9"
    with pytest.raises(SchemaError, match="must be text that UTF-8 can encode"):
        IteratorSource(rows_from, "x bigint", splits=["\ud800"])


def test_a_file_whose_name_is_not_utf_8_is_named(tmp_path: Path) -> None:
    folder = made_folder(tmp_path / "a")
    (folder / "inputs" / os.fsdecode(b"caf\xe9.txt")).write_text("one\n")
    (failure,) = OneWorker(graph_of("FileSource(watch=True)", folder), folder).live()
    assert (failure.kind, failure.operator) == ("operator", "made")
    assert r"caf\udce9.txt' is not UTF-8" in failure.message
    with pytest.raises(SchemaError, match="is not UTF-8"):
        FileSource(folder / "inputs" / "*")


def test_the_state_of_one_key_above_the_limit_is_named_with_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "row_bytes_max", 100_000)
    monkeypatch.setattr(limits, "state_block_bytes_max", 50_000)

    def keep(row: dict[str, Any], state: Any) -> list[Any]:
        state.value = {"seen": [*(state.value or {"seen": []})["seen"], row["k"] * 100_000]}
        return []

    failure = failure_of_rows(
        ROWS,
        lambda rows: (
            rows.event_time("timed", "t", lateness=timedelta(0))
            .key_by("by", "k")
            .map_state("kept", keep, state="seen array<string>", schema="x bigint", time="t")
        ),
        tmp_path,
    )
    assert (failure.kind, failure.operator) == ("operator", "kept")
    assert failure.position == "the checkpoint after step 2"
    assert "the state of the key {'k': 'b'} has 0.4 MiB, and at most 0 MiB" in failure.message
    assert "correct the function so that it keeps less of one key" in failure.message


def test_a_row_above_the_limit_for_other_workers_is_named_and_smaller_ones_are_divided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partitioning, "row_bytes_max", 100_000)
    columns = pa.schema([("k", pa.string()), ("data", pa.list_(pa.string()))])
    uneven = pa.RecordBatch.from_pylist(
        [{"k": "a", "data": ["x" * (n % 7) * 14_000]} for n in range(60)], columns
    )
    pieces = list(partitioning.frames_of(uneven))
    assert pa.Table.from_batches(pieces).combine_chunks().to_batches() == [uneven]
    assert max(len(partitioning.encode_batch(piece)) for piece in pieces) <= 100_000 + 1_000
    one = pa.RecordBatch.from_pylist([{"k": "a", "data": ["x" * 200_000]}], columns)
    with pytest.raises(UserFault, match=r"a row has 0.2 MiB, most of them in column 'data', and .* at most"):
        list(partitioning.frames_of(one))


def test_a_large_step_of_a_log_is_compressed_and_one_above_the_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pa.RecordBatch.from_pydict({"n": pa.array(range(9_000_000), pa.int64())})
    writer = LogSink().open(mock.Mock(inputs=[rows.schema]))
    assert rows.nbytes > record_body_bytes_max
    writer.process(rows)
    writer.end_step()
    data = writer.take_step().data
    assert len(data) < limits.output_step_bytes_max
    assert pa.ipc.open_stream(data).read_all().equals(pa.Table.from_batches([rows]))
    monkeypatch.setattr(limits, "output_step_bytes_max", 100)
    graph = Graph("failures")
    source = IteratorSource(rows_from, "t timestamp, k string, x bigint")
    graph.source("rows", source).sink("shown", LogSink())
    (failure,) = OneWorker(graph, tmp_path).live()
    assert (failure.kind, failure.operator) == ("operator", "shown")
    assert failure.position == "the end of step 1"
    assert "a step has 9 rows here" in failure.message
    assert "run the region with more workers" in failure.message
