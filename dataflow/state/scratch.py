"""The worker's local disk, for what need not last: where it is, and what is said when it fails.

Rules of this file: no data. A disk that is full or fails is for a person to mend, and no reason to lose a
region: it is told as `OperatorFailure`, and the region goes back to its last cut.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dataflow.errors import OperatorFailure
from dataflow.operators.base import UserFault


def scratch_directory(scratch: str) -> Path:
    """This directory, made if it is not there; for '' the system's for temporary files. Raises OSError."""
    directory = Path(scratch or tempfile.gettempdir())
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@contextmanager
def of_scratch(scratch: str, what: str, *errors: type[Exception]) -> Iterator[None]:
    """Tell OSError and these as UserFault: `what` could not be done."""
    expected: tuple[type[Exception], ...] = (OSError, *errors)
    try:
        yield
    except expected as error:
        # The library says EIO where a full disk took a part of what it wrote: so say how much is free.
        told = f"{what} in {_named(scratch or tempfile.gettempdir())}: {error}"
        raise UserFault(
            told,
            remedy="make space on that disk, or start the region with scratch= on a larger one; nothing is"
            " lost: the region goes back to its last cut",
        ) from OperatorFailure(told)


def _named(directory: str) -> str:
    try:
        free = shutil.disk_usage(directory).free
    except OSError:
        return repr(directory)
    return f"{directory!r}, where {free / (1 << 20):.1f} MiB are free"
