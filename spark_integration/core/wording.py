"""Functions of `dataflow` that errors need, imported when an error is raised.

Importing `dataflow` took half the time of importing this source, and each Python worker of Spark would wait
for it before its first row.
"""

from collections.abc import Iterable

import pyarrow as pa


def nearest(name: str, known: Iterable[str]) -> str:
    """Call `dataflow.errors.nearest`."""
    from dataflow import errors

    return errors.nearest(name, known)


def type_text(kind: pa.DataType) -> str:
    """Call `dataflow.schema.type_text`."""
    from dataflow import schema

    return schema.type_text(kind)
