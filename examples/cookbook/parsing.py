"""Lines of CSV, as the recipes read them."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dos


def read_csv(graph: dos.Graph, name: str, path: Path, schema: str) -> dos.Stream:
    """The rows of a file, or of all that fit a pattern, without headers; `schema` names the columns, of types
    string, bigint, double and timestamp.
    """
    return parsed(graph, name, dos.FileSource(path), schema)


def parsed(graph: dos.Graph, name: str, source: dos.SourceSpec, schema: str) -> dos.Stream:
    """The rows of a source of such lines."""
    kinds = [column.split()[1] for column in schema.split(", ")]

    def parse(row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(READ[kind](text) for kind, text in zip(kinds, row["line"].split(","), strict=True))

    return graph.source(f"{name}_lines", source).map(name, parse, schema=schema)


def _timestamp(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


READ = {"string": str, "bigint": int, "double": float, "timestamp": _timestamp}
