"""The tables of an SQL sink: the target, derived from the Arrow schema, and three tables of the sink itself.

This file defines and creates tables, and inserts rows into the target so that a refused row is named.
`sql.py` decides when.

| table | content |
|---|---|
| `dos_sink_writers` | per sink and worker: the incarnation that may write, the last visible transaction |
| `dos_sink_owners` | the owning sink of each target table |
| `dos_sink_staged` | rows that are not visible yet, as Arrow streams, because their columns vary |
"""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from dataflow import limits
from dataflow.errors import SchemaError, UserFault

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
    """Insert rows in a transaction that has begun, by another statement than a plain one if it is given.
    keep: False takes that back, after all checks of the database, also those that it defers to the commit.

    Raises UserFault with `remedy`, which names the first row that the database refuses; and what it raises if
    no row is the cause.
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
