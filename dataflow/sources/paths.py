"""Parameters that all file sources share: paths, and the treatment of bytes that are not UTF-8.

Checks values only; it does not access the file system.
"""

import os
from collections.abc import Sequence
from typing import TypeAlias, get_args

from dataflow.errors import SchemaError
from dataflow.sources.text import Errors

Paths: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"
"""One path or pattern, or several."""


def paths_of(given: Paths) -> list[str]:
    """Return all paths as text, in the order given."""
    entries = [given] if isinstance(given, (str, os.PathLike)) else given
    return [os.fspath(entry) for entry in entries]


def check_errors(errors: object) -> None:
    """Raise SchemaError if `errors` is not a valid way to treat bytes that are not UTF-8."""
    known = get_args(Errors)
    if errors not in known:
        raise SchemaError(f"errors must be {' or '.join(map(repr, known))}, not {errors!r}")
