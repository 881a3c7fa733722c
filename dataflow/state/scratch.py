"""The worker's local disk for temporary data: its location, and the error when it fails.

A full or failing disk needs a person, but must not stop the region: it is reported as `OperatorFailure`, and
the region resets to its last checkpoint.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dataflow.errors import OperatorFailure, UserFault


def scratch_directory(scratch: str) -> Path:
    """Return this directory, created if it does not exist; for '' the system's for temporary files.

    Raises OSError.
    """
    directory = Path(scratch or tempfile.gettempdir())
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@contextmanager
def of_scratch(scratch: str, failure: str, *errors: type[Exception]) -> Iterator[None]:
    """Convert OSError and `errors` to UserFault with the message `failure`."""
    expected: tuple[type[Exception], ...] = (OSError, *errors)
    try:
        yield
    except expected as error:
        # LMDB reports EIO if a full disk accepted a part of a write, so the message has the free space.
        problem = f"{failure} in {_named(scratch or tempfile.gettempdir())}: {error}"
        raise UserFault(
            problem,
            remedy="make space on that disk, or start the region with scratch= on a larger one; nothing is"
            " lost: the region resets to its last checkpoint",
        ) from OperatorFailure(problem)


def _named(directory: str) -> str:
    try:
        free = shutil.disk_usage(directory).free
    except OSError:
        return repr(directory)
    return f"{directory!r}, where {free / (1 << 20):.1f} MiB are free"
