"""Targets in the data directory of a server that does not run: DATA/DIRECTORY/NAME.

`journal` does not import `dos_server`, which knows the format of data directories. The program that runs the
commands passes in the function that opens one.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from dos_protocol.errors import LocalProtocolError
from journal.ports import StorePort

OpenDataDirectory = Callable[[Path], AbstractContextManager[StorePort]]
"""Opens the data directory of a server. Raises LocalProtocolError if the server runs."""
_openers: list[OpenDataDirectory] = []


def read_data_directories_with(opener: OpenDataDirectory) -> None:
    """Set the function that opens data directories."""
    _openers[:] = [opener]


def open_data_directory(root: Path) -> AbstractContextManager[StorePort]:
    """Open a data directory. Raises LocalProtocolError if its server runs, or if no opener is set."""
    if not _openers:
        raise LocalProtocolError(f"{root} is a data directory: `dos journal` reads these")
    return _openers[0](root)


class InDataDirectory(NamedTuple):
    """DATA/DIRECTORY/NAME: an object, or a chain, in a server's data directory."""

    root: Path
    directory: str
    name: str


def in_data_directory(target: str) -> InDataDirectory | None:
    """Return the object or chain in a data directory that the target names, None if it names no such path."""
    path = Path(target)
    if len(path.parts) < 3 or path.exists() or not (path.parents[1] / "identity").is_file():
        return None
    return InDataDirectory(path.parents[1], path.parent.name, path.name)
