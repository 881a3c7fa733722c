"""Writes rows into a table of a database through SQLAlchemy: each row once, or by key.

Without `key`, rows wait in `dos_sink_staged` until their checkpoint is committed. One database transaction
then records in `dos_sink_writers` that they are visible, inserts the rows, and deletes them where they were
staged. A repeated commit finds the record. With `key`, the rows of each step replace the rows of their keys
immediately.

Each database transaction checks and locks the row that holds the incarnation that may write, which fences
earlier writers. `dos_sink_owners` has the owning sink of each target table.
"""

import os
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from dataflow import limits
from dataflow.core.regions import Delivery
from dataflow.core.transactions import TransactionName, parse_name
from dataflow.errors import (
    DeliveryError,
    SchemaError,
    SinkFencedError,
    SinkOwnedError,
    SinkRefusedError,
    SinkWriteError,
    UserFault,
)
from dataflow.operators.base import OperatorContext, set_fields
from dataflow.sinks.base import (
    OutputOwner,
    SinkSpec,
    SinkWriter,
    exactly_once_remedy,
    other_owner,
    owner_of,
    write_error,
)
from dataflow.sinks.two_phase import TwoPhaseOutput, TwoPhaseWriter

OWN: Final = sa.MetaData()
writers: Final = sa.Table(
    "dos_sink_writers",
    OWN,
    sa.Column("writer", sa.String(64), primary_key=True),
    sa.Column("incarnation", sa.BigInteger, nullable=False),
    sa.Column("shown_incarnation", sa.BigInteger, nullable=False),
    sa.Column("shown_number", sa.BigInteger, nullable=False),
)
staged: Final = sa.Table(
    "dos_sink_staged",
    OWN,
    sa.Column("transaction_name", sa.String(80), primary_key=True),
    sa.Column("piece", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("data", sa.LargeBinary, nullable=False),
)

owners: Final = sa.Table(
    "dos_sink_owners",
    OWN,
    sa.Column("target", sa.String(200), primary_key=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("since", sa.String(40), nullable=False),
)

UPSERTS: "Final[Mapping[str, Callable[[sa.Table], postgresql.Insert | sqlite.Insert]]]" = {
    "postgresql": postgresql.insert,
    "sqlite": sqlite.insert,
}
"""Databases that support ON CONFLICT, with the same SQLAlchemy interface."""


def target_table(name: str, schema: pa.Schema, key: Sequence[str]) -> sa.Table:
    """Return the target table; `name` may be SCHEMA.TABLE. Raises SchemaError for columns without an SQL
    type.
    """
    namespace, _, table = name.rpartition(".")
    columns = [
        sa.Column(field.name, _sql_type(field), primary_key=field.name in key, autoincrement=False)
        for field in schema
    ]
    return sa.Table(table, sa.MetaData(), *columns, schema=namespace or None)


def _sql_type(field: pa.Field) -> "sa.types.TypeEngine[Any]":
    kind, field_type = pa.types, field.type
    plain: list[tuple[bool, sa.types.TypeEngine[Any]]] = [
        (kind.is_boolean(field_type), sa.Boolean()),
        (kind.is_signed_integer(field_type), sa.BigInteger()),
        (kind.is_floating(field_type), sa.Double()),
        (kind.is_string(field_type) or kind.is_large_string(field_type), sa.Text()),
        (kind.is_binary(field_type) or kind.is_large_binary(field_type), sa.LargeBinary()),
        (kind.is_date(field_type), sa.Date()),
    ]
    for fits, sql_type in plain:
        if fits:
            return sql_type
    if kind.is_timestamp(field_type) and field_type.unit != "ns":
        return sa.DateTime(timezone=field_type.tz is not None)
    if kind.is_decimal(field_type):
        return sa.Numeric(field_type.precision, field_type.scale)
    raise SchemaError(
        f"column {field.name!r} of type {field_type} has no SQL type here; convert it with a map"
    )


def make_tables(engine: sa.Engine, *tables: sa.Table) -> None:
    """Create the tables that do not exist. Several workers may do so at once."""
    for table in tables:
        try:
            table.create(engine, checkfirst=True)
        except sa.exc.DBAPIError:
            if not sa.inspect(engine).has_table(table.name, schema=table.schema):
                raise


def insert_rows(
    connection: sa.Connection,
    target: sa.Table,
    table: pa.Table,
    remedy: str,
    *,
    statement: Any = None,
    keep: bool = True,
) -> None:
    """Insert rows in a transaction that has begun, perhaps by another statement. keep: False takes that back,
    after all checks of the database, also those that it defers. Raises UserFault with `remedy`, which names
    the first row that the database refuses; and what it raises if no row is the cause.
    """
    insert = target.insert() if statement is None else statement
    try:
        _attempt(connection, insert, table, keep=keep)
    except Exception as error:
        if not _is_of_rows(error):
            raise
        count, cause = _first_refused(connection, insert, table, error)
        text = " ".join(str(getattr(cause, "orig", None) or cause).split())
        row = textwrap.shorten(
            ", ".join(f"{one}={_shown(table.column(one)[count - 1])}" for one in table.column_names), 500
        )
        raise UserFault(
            f"table {target.name!r} refuses a row: {text}; the row has {row}", remedy=remedy
        ) from cause


def _attempt(connection: sa.Connection, insert: sa.Executable, table: pa.Table, *, keep: bool) -> None:
    """Insert rows so that an error leaves the transaction usable."""
    with connection.begin_nested() as attempt:
        for batch in table.to_batches(max_chunksize=limits.sql_insert_rows):
            if batch.num_rows:
                connection.execute(insert, batch.to_pylist())
        if not keep:
            if connection.dialect.name == "postgresql":
                connection.execute(sa.text("SET CONSTRAINTS ALL IMMEDIATE"))
            attempt.rollback()


def _first_refused(
    connection: sa.Connection, insert: sa.Executable, table: pa.Table, error: Exception
) -> tuple[int, Exception]:
    """Return the least number of rows from the beginning that the database refuses, and its error."""
    accepted, refused = 0, table.num_rows
    while refused - accepted > 1:
        middle = (accepted + refused) // 2
        try:
            _attempt(connection, insert, table.slice(0, middle), keep=False)
        except Exception as earlier:
            if not _is_of_rows(earlier):
                raise
            refused, error = middle, earlier
        else:
            accepted = middle
    return refused, error


def _is_of_rows(error: Exception) -> bool:
    """Return whether a database, or its driver, refuses values, so that another attempt has the same end."""
    if isinstance(error, sa.exc.DBAPIError):
        raised = getattr(error.orig, "sqlstate", None) == "P0001"  # by RAISE in a trigger of PostgreSQL
        return raised or isinstance(error, sa.exc.IntegrityError | sa.exc.DataError)
    return isinstance(error, sa.exc.StatementError | ValueError | TypeError | ArithmeticError)


def _shown(value: pa.Scalar) -> str:
    try:
        return repr(value.as_py())
    except (ValueError, ArithmeticError):  # a time that Python has no value for
        return str(value.cast(pa.int64(), safe=False).as_py())


_CORRECT: Final = "exclude or correct such rows before the sink, or change the table so that it takes them"
_ALTER: Final = (
    "its checkpoint is committed: change the table so that it takes the row, then run the region again, which"
    " shows it; or go back to a checkpoint before it: dos region restore URL NAME --to checkpoint:N --stopped"
    " --allow-republish, after which a program that excludes the row can run"
)


@dataclass(frozen=True, slots=True, init=False)
class SqlSink(SinkSpec):
    """Writes rows into `table` (or SCHEMA.TABLE) of the database at `url`, an SQLAlchemy URL.

    Without `key`, each row appears once, when the checkpoint that covers it is committed. key: columns that
    identify a row and are unique in the table; a new row immediately replaces the row with the same key. It
    requires PostgreSQL or SQLite, and suits rows such as counts, of which only the last matters. create:
    create the table if it does not exist. The table belongs to one sink of one region: one with rows of
    another run or program is rejected before any worker starts. shared: True adds rows to a table with other
    rows. The tables `dos_sink_writers`, `dos_sink_owners` and `dos_sink_staged` are created in the same
    database. local: as of `FileSink`, for SQLite. Every worker must reach the database under that URL, whose
    password is sent with the graph. Raises SchemaError.
    """

    url: str = field(repr=False)
    table: str
    key: tuple[str, ...]
    create: bool
    shared: bool
    local: bool

    def __init__(
        self,
        url: str,
        table: str,
        *,
        key: "str | Sequence[str]" = (),
        create: bool = True,
        shared: bool = False,
        local: bool = False,
    ) -> None:
        try:
            dialect = sa.make_url(url).get_dialect().name
        except sa.exc.SQLAlchemyError as error:
            raise SchemaError(f"a SqlSink needs an SQLAlchemy URL: {error}") from error
        keys = (key,) if isinstance(key, str) else tuple(key)
        if keys and dialect not in UPSERTS:
            known = ", ".join(sorted(UPSERTS))
            raise SchemaError(f"key= is supported for {known}, not for {dialect}; omit it")
        set_fields(self, url=url, table=table, key=keys, create=create, shared=shared, local=local)

    @property
    def leaves_rows(self) -> bool:
        return not self.key  # with a key, rows are visible at once, and stay

    def host_path(self) -> str:
        url = sa.make_url(self.url)
        return (url.database or "") if url.get_backend_name() == "sqlite" and not self.local else ""

    def check_input(self, schema: pa.Schema) -> None:
        if missing := [name for name in self.key if name not in schema.names]:
            raise SchemaError(
                f"key column {missing[0]!r} of a SqlSink does not exist; rows have"
                f" {', '.join(map(repr, schema.names))}"
            )
        target_table(self.table, schema, self.key)

    def delivers(self, wanted: Delivery | None) -> Delivery:
        """Return at-least-once with a key: rows are visible immediately and may be written again."""
        if not self.key:
            return SinkSpec.delivers(self, wanted)
        if wanted == "exactly-once":
            text = "with key= makes rows visible immediately, and older ones again after a reset"
            raise DeliveryError(text, remedy=f"omit key=; or {exactly_once_remedy}")
        return wanted or "at-least-once"

    def check_place(self, owner: OutputOwner) -> None:
        """Raise SinkOwnedError if another owner has rows there, because they would mix with these."""
        if self.shared:
            return
        engine = sa.create_engine(self.url, poolclass=sa.NullPool)
        try:
            with engine.connect() as connection:
                _check_owner(connection, self.table, owner)
        finally:
            engine.dispose()

    def open(self, context: OperatorContext) -> SinkWriter:
        if self.key:
            return KeyedWriter(self, context)
        return TwoPhaseWriter(lambda: SqlOutput(_Database(self, context)), context)

    def detail(self) -> str:
        url = sa.make_url(self.url)
        database = url.database or ""  # not the host and the user: a database may have others
        if url.get_backend_name() == "sqlite" and database not in ("", ":memory:"):
            database = os.path.abspath(database)  # noqa: PTH100 - as of files
        # With a key, nothing is staged: rows that are would never be shown.
        key = f" by key {', '.join(self.key)}" if self.key else ""
        return f"SqlSink table {self.table} of {url.get_backend_name()} {database}{key}"


def _check_owner(connection: sa.Connection, table: str, owner: OutputOwner) -> bool:
    """Return whether the table is recorded as the owner's. Raises SinkOwnedError if it belongs to another
    owner, or holds rows although this owner has not written here.
    """
    inspector = sa.inspect(connection)
    text = msgspec.json.encode(owner).decode()
    remedy = "choose another table, or empty that one; shared=True adds rows to those that exist"
    if inspector.has_table(owners.name):
        mine = sa.select(owners.c.owner, owners.c.since).where(owners.c.target == table)
        if (row := connection.execute(mine).one_or_none()) is not None:
            if row.owner == text:
                return True
            forget = sa.delete(owners).where(owners.c.target == table)
            statement = " ".join(str(forget.compile(compile_kwargs={"literal_binds": True})).split())
            raise SinkOwnedError(
                other_owner(f"table {table!r}", row.owner.encode(), text.encode(), row.since),
                remedy="choose another table, or shared=True to add rows to this one; if that region will not"
                f" run again, empty the table, and {statement}",
            )
    if inspector.has_table(writers.name):  # also if the table was shared before
        wrote = writers.c.writer.startswith(f"{owner.digest:016x}-w", autoescape=True)
        if connection.scalar(sa.select(writers.c.writer).where(wrote).limit(1)) is not None:
            return False
    namespace, _, name = table.rpartition(".")
    if inspector.has_table(name, schema=namespace or None):
        target = sa.table(name, schema=namespace or None)
        if connection.scalar(sa.select(sa.literal(1)).select_from(target).limit(1)) is not None:
            raise SinkOwnedError(
                f"table {table!r} holds rows, but no sink is recorded as its owner: another run or program"
                " wrote them",
                remedy=remedy,
            )
    return False


class _Database:
    """One worker's connection to the tables. Raises SinkFencedError."""

    def __init__(self, spec: SqlSink, context: OperatorContext) -> None:
        owner = owner_of(context)
        self.writer = f"{owner.digest:016x}-w{context.worker:04d}"
        self.schema, self._table = context.inputs[0], spec.table
        self.target = target_table(spec.table, self.schema, spec.key)
        self._incarnation = context.incarnation
        is_file = sa.make_url(spec.url).get_dialect().name == "sqlite"
        waits = {"timeout": limits.sql_lock_wait_s} if is_file else {}
        self.engine = sa.create_engine(spec.url, pool_size=1, max_overflow=1, connect_args=waits)
        try:
            make_tables(self.engine, writers, staged, owners, *([self.target] if spec.create else []))
            self._check_table()
            self._owner = None if spec.shared or self._is_marked(owner) else owner
            """Recorded before the first rows; None: it is recorded, or none is."""
            self._begin_to_write()
        except BaseException:
            self.engine.dispose()
            raise

    def _check_table(self) -> None:
        """Raise SinkRefusedError if the table does not exist, or lacks a column of the rows."""
        name = self.target.name
        try:
            columns = [
                str(one["name"]) for one in sa.inspect(self.engine).get_columns(name, self.target.schema)
            ]
        except sa.exc.NoSuchTableError as error:
            text = f"there is no table {name!r} in the database"
            raise SinkRefusedError(text, remedy="create it, or omit create=False") from error
        known = {one.lower() for one in columns}
        if missing := [one.name for one in self.target.columns if one.name.lower() not in known]:
            raise SinkRefusedError(
                f"table {name!r} has no column {missing[0]!r}, but {', '.join(map(repr, columns))}",
                remedy="add the column, choose another table, or rename the column of the rows with a map",
            )

    def _is_marked(self, owner: OutputOwner) -> bool:
        with self.engine.connect() as connection:
            return _check_owner(connection, self._table, owner)

    def own(self) -> None:
        """Record the owner of the table before the first rows. A start whose graph is never committed writes
        none, and does not keep the table. Raises SinkOwnedError.
        """
        owner, self._owner = self._owner, None
        if owner is None or self._is_marked(owner):
            return
        try:
            with self.engine.begin() as connection:
                since = datetime.now(UTC).isoformat(" ", "seconds")
                row = {
                    "target": self.target.name,
                    "owner": msgspec.json.encode(owner).decode(),
                    "since": since,
                }
                connection.execute(owners.insert().values(row))
        except sa.exc.IntegrityError:
            self._is_marked(owner)

    def _begin_to_write(self) -> None:
        """Fence earlier incarnations off. Raises SinkFencedError if a later one has written."""
        row = {"incarnation": self._incarnation, "shown_incarnation": 0, "shown_number": 0}
        try:
            with self.engine.begin() as connection:
                connection.execute(writers.insert().values(writer=self.writer, **row))
        except sa.exc.IntegrityError:
            with self.engine.begin() as connection:
                self.lock(connection)

    def lock(self, connection: sa.Connection) -> None:
        """Lock this worker's writer row until the end of the transaction. Raises SinkFencedError."""
        mine = sa.and_(writers.c.writer == self.writer, writers.c.incarnation <= self._incarnation)
        update = writers.update().where(mine).values(incarnation=self._incarnation)
        if connection.execute(update).rowcount == 0:
            current = connection.scalar(
                sa.select(writers.c.incarnation).where(writers.c.writer == self.writer)
            )
            raise SinkFencedError(
                f"table {self.target.name!r} is written by incarnation {current} of the region; this worker"
                f" is of {self._incarnation}"
            )


class SqlOutput(TwoPhaseOutput):
    """Rows are collected in memory into pieces, and staged in `dos_sink_staged` until they become visible."""

    def __init__(self, database: _Database) -> None:
        self._database = database
        self._waiting: dict[str, list[pa.RecordBatch]] = {}
        self._pieces: dict[str, int] = {}

    def stage(self, transaction: str, batch: pa.RecordBatch) -> None:
        waiting = self._waiting.setdefault(transaction, [])
        waiting.append(batch)
        if sum(one.nbytes for one in waiting) >= limits.sql_staged_bytes:
            self._write_piece(transaction)

    def _write_piece(self, transaction: str) -> None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._database.schema) as stream:
            for batch in self._waiting.pop(transaction):
                stream.write_batch(batch)
        piece = self._pieces[transaction] = self._pieces.get(transaction, -1) + 1
        data = sink.getvalue().to_pybytes()
        row = {"transaction_name": transaction, "piece": piece, "data": data}
        target = self._database.target
        self._database.own()
        with self._database.engine.begin() as connection:
            self._database.lock(connection)
            # A row that the table refuses must not reach a checkpoint, which nothing could make visible then:
            # it is inserted before the vote, and that is taken back at once.
            insert_rows(connection, target, pa.ipc.open_stream(data).read_all(), _CORRECT, keep=False)
            connection.execute(staged.insert().values(row))

    def prepare(self, transaction: str) -> None:
        if transaction in self._waiting:
            self._write_piece(transaction)
        self._pieces.pop(transaction, None)

    def commit(self, transaction: str) -> None:
        name = parse_name(transaction)
        assert name is not None
        with self._database.engine.begin() as connection:
            self._database.lock(connection)
            if not self._record_published(connection, name):
                return  # a repeated commit: record and rows are in one transaction, so the rows are there too
            for data in self._pieces_of(connection, transaction):
                rows = pa.ipc.open_stream(data).read_all()
                insert_rows(connection, self._database.target, rows, _ALTER)
            connection.execute(staged.delete().where(staged.c.transaction_name == transaction))

    def _record_published(self, connection: sa.Connection, name: TransactionName) -> bool:
        """Record that the transaction is visible. Return whether it was not visible before."""
        columns = writers.c
        before = sa.or_(
            columns.shown_incarnation < name.incarnation,
            sa.and_(columns.shown_incarnation == name.incarnation, columns.shown_number < name.number),
        )
        mine = columns.writer == self._database.writer
        published = {"shown_incarnation": name.incarnation, "shown_number": name.number}
        return connection.execute(writers.update().where(mine, before).values(published)).rowcount > 0

    def _pieces_of(self, connection: sa.Connection, transaction: str) -> Iterator[bytes]:
        mine = staged.c.transaction_name == transaction
        pieces = connection.scalars(sa.select(staged.c.piece).where(mine).order_by(staged.c.piece)).all()
        if not pieces:
            raise SinkWriteError(
                f"rows of {transaction} are missing in {staged.name!r}, but their checkpoint is committed",
                remedy="restore a database state that contains them: an older copy has lost rows",
            )
        for piece in pieces:
            yield connection.execute(
                sa.select(staged.c.data).where(mine, staged.c.piece == piece)
            ).scalar_one()

    def staged(self) -> Iterable[str]:
        mine = staged.c.transaction_name.startswith(self._database.writer, autoescape=True)
        with self._database.engine.connect() as connection:
            return connection.scalars(sa.select(staged.c.transaction_name).where(mine).distinct()).all()

    def abort(self, transaction: str) -> None:
        self._waiting.pop(transaction, None)
        with self._database.engine.begin() as connection:
            self._database.lock(connection)
            connection.execute(staged.delete().where(staged.c.transaction_name == transaction))

    def close(self) -> None:
        self._waiting.clear()
        self._database.engine.dispose()


class KeyedWriter(SinkWriter):
    """Writes the rows of each step in one database transaction."""

    def __init__(self, spec: SqlSink, context: OperatorContext) -> None:
        self._spec = spec
        self._context = context
        self._database: _Database | None = None
        self._step: list[pa.RecordBatch] = []
        self._rows = 0

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        for name in self._spec.key:
            column = batch.column(name)
            if column.null_count:  # SQL does not match nulls, so a null key would add a row each time
                raise UserFault(
                    f"key column {name!r} of table {self._spec.table!r} is null in {column.null_count} of"
                    f" {batch.num_rows} rows, and SQL does not match null keys",
                    row=column.is_null().index(pa.scalar(value=True)).as_py(),
                    remedy="exclude such rows by key_by(..., on_null='drop') or 'side', or by a map before",
                )
        self._step.append(batch)
        return ()

    def end_step(self) -> Sequence[pa.RecordBatch]:
        batches, self._step = self._step, []
        if not any(batch.num_rows for batch in batches):
            return ()
        assert self._database is not None
        target, key = self._database.target, self._spec.key
        upsert = UPSERTS[self._database.engine.dialect.name](target)
        others = {one.name: upsert.excluded[one.name] for one in target.columns if one.name not in key}
        if others:
            statement = upsert.on_conflict_do_update(index_elements=list(key), set_=others)
        else:
            statement = upsert.on_conflict_do_nothing(index_elements=list(key))
        table = _last_of_each(pa.Table.from_batches(batches), key)
        try:
            self._database.own()
            with self._database.engine.begin() as connection:
                self._database.lock(connection)
                insert_rows(connection, target, table, _CORRECT, statement=statement)
        except sa.exc.SQLAlchemyError as error:
            raise SinkWriteError(
                f"table {target.name!r} rejects rows: {error}",
                remedy="repair the database, then run the region again; it resumes",
            ) from error
        self._rows += table.num_rows
        return ()

    def prepare(self, checkpoint: int) -> Any:
        del checkpoint

    def sync(self) -> None:
        """Do nothing: the transaction of each step was durable when it ended."""

    def reset_to(self, prepared: Any | None) -> None:
        """Keep what was written; it is written again."""
        del prepared
        self._step = []
        if self._database is None:
            try:
                self._database = _Database(self._spec, self._context)
            except sa.exc.SQLAlchemyError as error:
                raise write_error(error)(
                    f"the database of table {self._spec.table!r} cannot be opened: {error}",
                    remedy="repair the database, then run the region again; it resumes",
                ) from error

    def close(self) -> None:
        if self._database is not None:
            self._database.engine.dispose()
            self._database = None

    def counters(self) -> dict[str, int]:
        return {"rows_written": self._rows}


def _last_of_each(table: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the last row of each key, because one statement may not write a row twice."""
    row_number = pa.array(range(table.num_rows), pa.int64())
    numbered = pa.table([*(table.column(name) for name in key), row_number], [*key, "_row_number"])
    last = numbered.group_by(list(key)).aggregate([("_row_number", "max")])
    return table.take(last.column("_row_number_max").combine_chunks().sort())
