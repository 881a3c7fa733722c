"""Rows in tables of real databases: SQLite, and a PostgreSQL server that the tests start."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from checkpoint.core.region import RegionState
from dataflow import Graph, RateSource, SchemaError, limits
from dataflow.errors import SinkFencedError, SinkWriteError, UserFault
from dataflow.operators.base import OperatorContext
from dataflow.sinks.base import SinkSpec, SinkWriter
from dataflow.sinks.sql import SqlOutput, SqlSink, make_tables, target_table
from dataflow.testing.sink_check import check_sink
from tests.dataflow.test_region_processes import WAIT_S, finished, running
from tests.support.postgres import PostgresServer, postgres_server

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
_tables = count(1)


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database, for tables of the test's own."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'rows.db'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.url


def rows_in(url: str, table: str, schema: pa.Schema = SCHEMA) -> list[tuple[Any, ...]]:
    statement = sa.text(f"SELECT {', '.join(schema.names)} FROM {table}")
    with sa.create_engine(url, poolclass=sa.NullPool).connect() as connection:
        return [tuple(row) for row in connection.execute(statement)]


def told(url: str, statement: str) -> None:
    with sa.create_engine(url, poolclass=sa.NullPool).begin() as connection:
        connection.execute(sa.text(statement))


def fresh_tables(url: str, **options: Any) -> Callable[[str], tuple[SinkSpec, Callable[[], list[int]]]]:
    def fresh(name: str) -> tuple[SinkSpec, Callable[[], list[int]]]:
        table = f"t{next(_tables)}"
        return SqlSink(url, table, **options), lambda: [row[0] for row in rows_in(url, table)]

    return fresh


# EVIDENCE-OF: P-7
def test_rows_are_neither_lost_nor_doubled(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "sql_staged_bytes", 40)
    assert check_sink(fresh_tables(url), workers=1, runs=0)


# EVIDENCE-OF: P-7
def test_rows_with_a_key_come_again_and_exist_once(url: str) -> None:
    assert check_sink(fresh_tables(url, key="id"), early="stays", workers=1, runs=0)


def opened(sink: SqlSink, incarnation: int = 1, schema: pa.Schema = SCHEMA) -> SinkWriter:
    context = OperatorContext(sink.table, "out", 0, 1, bytes(16), (schema,), None, incarnation)
    writer = sink.open(context)
    writer.reset_to(None)
    return writer


def batch(*rows: tuple[int, str | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"id": n, "text": text} for n, text in rows], SCHEMA)


def test_the_last_row_of_a_key_counts_and_an_old_writer_is_refused(url: str) -> None:
    sink = SqlSink(url, f"t{next(_tables)}", key=["id"])
    old = opened(sink)
    old.process(batch((1, "a"), (2, "b"), (1, None)))
    old.end_step()
    assert sorted(rows_in(url, sink.table)) == [(1, None), (2, "b")]
    new = opened(sink, incarnation=3)
    new.process(batch((1, "new")))
    new.end_step()
    old.process(batch((1, "old")))
    with pytest.raises(SinkFencedError, match="written by incarnation 3 of the region; this worker is of 1"):
        old.end_step()
    assert sorted(rows_in(url, sink.table)) == [(1, "new"), (2, "b")]
    for writer in (old, new):
        writer.close()


def test_a_null_in_the_key_is_refused(url: str) -> None:
    writer = opened(SqlSink(url, f"t{next(_tables)}", key=["text"]))
    with pytest.raises(UserFault, match=r"key column 'text' of table .* is null in 1 of 2 rows") as caught:
        writer.process(batch((1, "a"), (2, None)))
    assert caught.value.row == 1
    writer.close()


def test_every_type_that_has_a_column_returns(url: str) -> None:
    row: dict[str, Any] = {
        "flag": True,
        "small": -3,
        "large": 2**60,
        "ratio": 0.1,
        "text": "it's \\ 'é' 日",
        "data": b"\x00\xff",
        "day": date(2026, 5, 1),
        "money": Decimal("12.50"),
        "at": datetime(2026, 5, 1, 9, 0, 1, 5, tzinfo=UTC),
    }
    types = {
        "small": pa.int16(),
        "money": pa.decimal128(10, 2),
        "at": pa.timestamp("us", "UTC"),
    }
    schema = pa.schema([(name, types.get(name, pa.scalar(value).type)) for name, value in row.items()])
    sink = SqlSink(url, f"t{next(_tables)}")
    writer = opened(sink, schema=schema)
    writer.process(pa.RecordBatch.from_pylist([row, dict.fromkeys(row)], schema))
    writer.prepare(1)
    writer.sync()
    writer.publish(1)
    writer.close()
    with sa.create_engine(url, poolclass=sa.NullPool).connect() as connection:
        found = connection.execute(sa.select(target_table(sink.table, schema, ())))
        first, nothing = [one._asdict() for one in found]
    at = first.pop("at")
    assert at.replace(tzinfo=at.tzinfo or UTC) == row.pop("at")
    assert first == row
    assert set(nothing.values()) == {None}


def test_a_table_that_another_worker_creates_at_the_same_moment_is_used_and_other_errors_are_raised(
    url: str,
) -> None:
    engine = sa.create_engine(url, poolclass=sa.NullPool)

    def create(table: sa.Table, statement: str) -> None:
        """Create it while `statement` runs after this worker has seen that the table is missing."""
        sa.event.listen(table, "before_create", lambda *_, **__: told(url, statement))
        make_tables(engine, table)

    name, other = f"t{next(_tables)}", f"t{next(_tables)}"
    create(target_table(name, SCHEMA, []), f"CREATE TABLE {name} (id BIGINT, text VARCHAR(9))")
    assert [column["name"] for column in sa.inspect(engine).get_columns(name)] == ["id", "text"]
    with pytest.raises(sa.exc.DBAPIError):
        create(target_table(f"nowhere.{other}", SCHEMA, []), "SELECT 1")
    assert not sa.inspect(engine).has_table(other)


def test_a_table_that_exists_is_used_as_it_is(url: str) -> None:
    name = f"t{next(_tables)}"
    told(url, f"CREATE TABLE {name} (text varchar(5), id integer, more integer DEFAULT 7)")
    writer = opened(SqlSink(url, name, create=False))
    writer.process(batch((1, "a")))
    writer.prepare(1)
    writer.sync()
    writer.publish(1)
    writer.close()
    assert rows_in(url, name, pa.schema([*SCHEMA, ("more", pa.int64())])) == [(1, "a", 7)]


def test_a_server_that_is_unavailable_resets_the_region_and_loses_nothing(postgres: PostgresServer) -> None:
    sink = SqlSink(postgres.url, f"t{next(_tables)}")
    writer = opened(sink)
    writer.process(batch((1, "a")))
    prepared = writer.prepare(1)
    writer.sync()
    postgres.crash()
    try:
        with pytest.raises(SinkWriteError, match=r"sink 'out' cannot show \S+: OperationalError"):
            writer.publish(1)
        writer.close()
    finally:
        postgres.start()
    later = sink.open(replace(_context(sink), incarnation=2))
    later.reset_to(prepared)
    later.publish(1)
    later.publish(1)
    later.close()
    assert rows_in(postgres.url, sink.table) == [(1, "a")]


def _context(sink: SqlSink) -> OperatorContext:
    return OperatorContext(sink.table, "out", 0, 1, bytes(16), (SCHEMA,), None, 1)


def test_staged_rows_that_are_gone_are_an_error(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'rows.db'}"
    writer = opened(SqlSink(url, "t"))
    writer.process(batch((1, "a")))
    writer.prepare(1)
    writer.sync()
    told(url, "DELETE FROM dos_sink_staged")
    with pytest.raises(
        SinkWriteError, match="are missing in 'dos_sink_staged', but their checkpoint is committed"
    ):
        writer.publish(1)
    writer.close()


@pytest.mark.parametrize("staged_bytes", [0, 1 << 20], ids=["in the database", "in memory"])
def test_rows_of_a_transaction_that_was_given_up_are_neither_staged_nor_published(
    url: str, staged_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "sql_staged_bytes", staged_bytes)
    sink = SqlSink(url, f"t{next(_tables)}")
    writer = opened(sink)
    writer.process(batch((0, "of another transaction")))
    writer.prepare(1)
    writer.sync()
    output = writer._output  # type: ignore[attr-defined]
    (other,) = output.staged()
    name = other[:-1] + "9"
    output.stage(name, batch((1, "given up")))
    output.abort(name)
    assert list(output.staged()) == [other]
    output.stage(name, batch((2, "kept")))
    output.prepare(name)
    assert sorted(output.staged()) == sorted([other, name])
    output.commit(name)
    assert rows_in(url, sink.table) == [(2, "kept")]
    writer.close()


def test_a_commit_that_is_not_noted_is_missed_when_it_comes_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = SqlSink(url, f"t{next(_tables)}")
    writer = opened(sink)
    writer.process(batch((1, "a")))
    prepared = writer.prepare(1)
    writer.sync()
    writer.publish(1)
    writer.reset_to(prepared)
    writer.publish(1)
    assert rows_in(url, sink.table) == [(1, "a")]
    monkeypatch.setattr(SqlOutput, "_record_published", lambda *_: True)
    writer.reset_to(prepared)
    with pytest.raises(SinkWriteError, match="their checkpoint is committed"):
        writer.publish(1)
    writer.close()


def test_what_cannot_be_written_is_refused_before_anything_runs() -> None:
    lists = pa.schema([("id", pa.int64()), ("words", pa.list_(pa.string()))])
    with pytest.raises(SchemaError, match=r"column 'words' of type list<.*> has no SQL type here"):
        SqlSink("sqlite://", "t").check_input(lists)
    with pytest.raises(
        SchemaError, match="key column 'who' of a SqlSink does not exist; rows have 'id', 'text'"
    ):
        SqlSink("sqlite://", "t", key="who").check_input(SCHEMA)
    with pytest.raises(SchemaError, match="a SqlSink needs an SQLAlchemy URL"):
        SqlSink("rows.db", "t")
    with pytest.raises(SchemaError, match="key= is supported for postgresql, sqlite, not for mysql"):
        SqlSink("mysql://h/d", "t", key="id")
    assert "secret" not in repr(SqlSink("postgresql+psycopg://u:secret@h/d", "t"))


def voted(writer: SinkWriter) -> None:
    """A step ends, and a checkpoint is voted."""
    writer.end_step()
    writer.prepare(1)
    writer.sync()


REFUSED: dict[str, tuple[str, tuple[int, str | None], str]] = {
    "null": ("id bigint, text text NOT NULL", (2, None), "text=None"),
    "check": ("id bigint CHECK (id < 5), text text", (7, "b"), "id=7"),
    "unique": ("id bigint UNIQUE, text text", (1, "b"), "id=1"),
    "already there": ("id bigint UNIQUE, text text", (0, "b"), "id=0"),
    "too long": ("id bigint, text varchar(5)", (2, "longer"), "text='longer'"),
    "a NUL byte": ("id bigint, text text", (2, "a\0b"), r"text='a\x00b'"),
    "out of range": ("id smallint, text text", (2**40, "b"), f"id={2**40}"),
    "deferred": (
        "id bigint, text text REFERENCES {table}_others DEFERRABLE INITIALLY DEFERRED",
        (2, "nowhere"),
        "text='nowhere'",
    ),
}
ONLY_POSTGRESQL = ("too long", "a NUL byte", "out of range", "deferred")


@pytest.mark.parametrize(
    ("case", "key"),
    [*((case, ()) for case in REFUSED), *((case, ("id",)) for case in ("null", "check", "a NUL byte"))],
)
def test_a_row_that_the_table_refuses_is_refused_by_name_before_the_vote(
    url: str, case: str, key: tuple[str, ...]
) -> None:
    columns, row, named = REFUSED[case]
    if "sqlite" in url and case in ONLY_POSTGRESQL:
        return  # SQLite takes it
    table = f"t{next(_tables)}"
    told(url, f"CREATE TABLE {table}_others (text text PRIMARY KEY)")
    told(url, f"INSERT INTO {table}_others VALUES ('a'), ('c')")
    unique = ", UNIQUE (id)" if key else ""
    told(url, f"CREATE TABLE {table} ({columns.format(table=table)}{unique})")
    told(url, f"INSERT INTO {table} VALUES (0, 'a')")
    sink = SqlSink(url, table, key=key, create=False, shared=True)
    writer = opened(sink)
    writer.process(batch((1, "a"), (3, "c")))
    writer.process(batch((4, "c"), row, (3, "a")))
    with pytest.raises(UserFault, match=f"table '{table}' refuses a row: ") as caught:
        voted(writer)
    assert named in str(caught.value)
    assert "exclude or correct such rows" in caught.value.remedy
    writer.close()
    assert rows_in(url, table) == [(0, "a")]
    later = opened(sink, incarnation=2)
    later.process(batch((1, "a"), (4, "c")))
    voted(later)
    later.publish(1)
    later.close()
    assert sorted(rows_in(url, table)) == [(0, "a"), (1, "a"), (4, "c")]


def test_a_table_that_was_altered_after_the_vote_names_the_row_and_takes_it_when_it_is_altered_back(
    url: str,
) -> None:
    sink = SqlSink(url, f"t{next(_tables)}")
    writer = opened(sink)
    writer.process(batch((1, "a"), (2, "b"), (2, "c")))
    writer.prepare(1)
    writer.sync()
    told(url, f"CREATE UNIQUE INDEX {sink.table}_id ON {sink.table} (id)")
    with pytest.raises(UserFault, match=r"refuses a row: .*the row has id=2, text='c'") as caught:
        writer.publish(1)
    assert "change the table so that it takes the row, then run the region again" in caught.value.remedy
    assert rows_in(url, sink.table) == []
    told(url, f"DROP INDEX {sink.table}_id")
    writer.publish(1)
    writer.close()
    assert len(rows_in(url, sink.table)) == 3


def test_a_time_after_the_year_9999_is_refused_before_the_vote(url: str) -> None:
    schema = pa.schema([("at", pa.timestamp("us", "UTC"))])
    writer = opened(SqlSink(url, f"t{next(_tables)}"), schema=schema)
    writer.process(
        pa.RecordBatch.from_arrays([pa.array([0, 253402300800000000], schema.types[0])], schema=schema)
    )
    writer.prepare(1)
    with pytest.raises(UserFault, match=r"refuses a row: .*the row has at=253402300800000000"):
        writer.sync()
    writer.close()


def limited(row: dict[str, Any], *, most: int) -> dict[str, Any]:
    return {"id": min(row["value"], most), "text": "x"}


@pytest.mark.process
@pytest.mark.usefixtures("forks")
def test_a_region_that_met_a_row_that_its_table_refuses_goes_on_with_a_corrected_program(
    shared_store: str, tmp_path: Path, postgres: PostgresServer
) -> None:
    told(postgres.url, "CREATE TABLE limited (id bigint CHECK (id <= 900), text text)")

    def program(most: int) -> Graph:
        graph = Graph("limited")
        numbers = graph.source("rows", RateSource(1_000, rows=1_500))
        rows = numbers.map("numbers", partial(limited, most=most), schema=SCHEMA)
        rows.sink("table", SqlSink(postgres.url, "limited", create=False))
        return graph

    with running(program(2_000), shared_store, tmp_path) as (control, _):
        assert control.wait(WAIT_S)
        assert control.status.state is RegionState.FAILED
        assert not control.status.resets
        assert "operator 'table'" in control.status.reason
        assert "table 'limited' refuses a row" in control.status.reason
        assert "the row has id=90" in control.status.reason
    with running(program(900), shared_store, tmp_path) as (control, _):
        assert finished(control), control.status
    shown = sorted(row[0] for row in rows_in(postgres.url, "limited"))
    assert shown == [min(value, 900) for value in range(1_500)]
