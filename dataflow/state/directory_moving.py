"""The files of an operator in another layout, which a function of the user makes from those of all workers.

The function works on plain directories, with any means: copies of the files of each former worker, and an
empty one. What is in the latter when it returns becomes the beginning of the operator's directory. That is
recorded before `open` can change it, so the checkpoint that changes the layout contains it.
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from dataflow.errors import UserFault
from dataflow.state.operator_directory import ChangeLog, copy_files
from dataflow.state.scratch import of_scratch
from dos_protocol.errors import DosError
from journal.files.directory import sizes_of

MakeFiles: TypeAlias = Callable[[Mapping[int, Path], Path], None]
"""Called with former worker -> its files, and the empty directory to fill."""


def begin_files(
    path: Path, sources: Mapping[int, Path], log: ChangeLog, make: MakeFiles, scratch: str = ""
) -> None:
    """Create the files at `path`, which must not exist, and record them as the beginning of the directory.

    Deletes the sources. Raises UserFault for what no directory can contain, or if the disk failed, and what
    `make` raises; then nothing is recorded.
    """
    made = path.with_name(f".{path.name}.made")
    failed = "the files of a directory could not be copied"
    with of_scratch(scratch, failed):
        made.mkdir(parents=True)
    make(sources, made)
    with of_scratch(scratch, failed):
        sizes = _sizes(made)
        copy_files(made, path, sizes)
        for source in sources.values():
            shutil.rmtree(source, ignore_errors=True)
    log.begin(sizes, made)


def copy_of_one(sources: Mapping[int, Path], made: Path) -> None:
    """Fill the directory with the files of the only source, as they are."""
    (source,) = sources.values()
    with of_scratch("", "the files of a directory could not be copied"):
        shutil.copytree(source, made, dirs_exist_ok=True)


def _sizes(made: Path) -> dict[str, int]:
    try:
        return sizes_of(made)
    except DosError as error:
        raise UserFault(
            f"redistribute_directory left what cannot be in a directory of an operator: {error}",
            remedy="leave regular files only, with names that a journal can have",
        ) from error


__all__ = ["MakeFiles", "begin_files", "copy_of_one"]
