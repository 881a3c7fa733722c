"""What a reader of a sink's objects sees, read from moto's memory: requests would take most of a test."""

import io
from typing import Any

import pyarrow.parquet as pq
from moto.s3.models import s3_backends

from tests.support.s3 import BUCKET


def objects(prefix: str = "", *, hidden: bool = False) -> dict[str, bytes]:
    """Name -> content of the objects below a prefix that readers look at: their names do not begin with _."""
    found = {}
    for key, stored in list(_bucket().keys.items()):
        path, _, name = key.rpartition("/")
        if path == prefix and (hidden or not name.startswith("_")):
            found[name] = stored.value
    return found


def objects_below(prefix: str) -> dict[str, bytes]:
    """As `objects`, also of the levels below: their keys after the prefix."""
    found = {key.removeprefix(f"{prefix}/"): one.value for key, one in list(_bucket().keys.items())}
    return {
        key: value for key, value in found.items() if key[0] != "_" and f"{prefix}/{key}" in _bucket().keys
    }


def fill(prefix: str, names: list[str]) -> None:
    """Put empty objects below a prefix."""
    for name in names:
        s3_backends["123456789012"]["aws"].put_object(BUCKET, f"{prefix}/{name}", b"")


def uploads(prefix: str) -> list[str]:
    """The keys of the uploads below a prefix that are not completed."""
    found = [upload.key_name for upload in _bucket().multiparts.values()]
    return [key for key in found if key.startswith(f"{prefix}/")]


def ids_in(prefix: str) -> list[int]:
    """The column `id` of all rows that a reader sees."""
    return [number for name, content in objects(prefix).items() for number in _ids(name, content)]


def parquet_rows(found: dict[str, bytes]) -> list[tuple[Any, ...]]:
    """The rows of Parquet files."""
    tables = [pq.read_table(io.BytesIO(content)) for content in found.values()]
    return [tuple(row.values()) for table in tables for row in table.to_pylist()]


def _ids(name: str, content: bytes) -> list[int]:
    if name.endswith(".tsv"):
        return [int(line.split(b"\t")[0]) for line in content.splitlines()]
    found: list[int] = pq.read_table(io.BytesIO(content))["id"].to_pylist()
    return found


def _bucket() -> Any:
    return s3_backends["123456789012"]["aws"].buckets[BUCKET]
