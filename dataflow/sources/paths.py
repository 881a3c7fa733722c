"""What users give to every source of files: paths, and what to do with bytes that are no text.

Rules of this file: checks and plain values; nothing is looked up.
"""

import os
from collections.abc import Sequence
from typing import TypeAlias, get_args

from dataflow.errors import SchemaError
from dataflow.sources.text import Errors

Paths: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"
"""One path or pattern, or several."""


def paths_of(given: Paths) -> list[str]:
    """All of them, in the order given, as text."""
    entries = [given] if isinstance(given, (str, os.PathLike)) else given
    return [os.fspath(entry) for entry in entries]


def check_errors(errors: object) -> None:
    """Raises SchemaError for what is no way to take bytes that are not UTF-8."""
    known = get_args(Errors)
    if errors not in known:
        raise SchemaError(f"errors is {' or '.join(map(repr, known))}, not {errors!r}")
