"""The tables of an SQL sink: the target, derived from the Arrow schema, and three tables of the sink itself.

This file defines and creates tables; `sql.py` writes to them.

| table | content |
|---|---|
| `dos_sink_writers` | per sink and worker: the incarnation that may write, the last visible transaction |
| `dos_sink_owners` | the owning sink of each target table |
| `dos_sink_staged` | rows that are not visible yet, as Arrow streams, because their columns vary |
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from dataflow.errors import SchemaError

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
