"""Words that errors need from `dataflow`, fetched when an error is raised.

Rules of this file: nothing but that. Importing `dataflow` took half the time of importing this source, and
each Python worker that Spark starts would wait for it before its first row.
"""

from collections.abc import Iterable

import pyarrow as pa


def nearest(name: str, known: Iterable[str]) -> str:
    """See `dataflow.errors.nearest`."""
    from dataflow import errors

    return errors.nearest(name, known)


def type_text(kind: pa.DataType) -> str:
    """See `dataflow.schema.type_text`."""
    from dataflow import schema

    return schema.type_text(kind)


def is_control(description: str) -> bool:
    """Whether a cut's description of an operator is that of a control table, which each worker has whole."""
    from dataflow.core.plan import OperatorKind

    return description.partition(" ")[0] == OperatorKind.CONTROL
