"""Files and names in directories of this machine, on stable storage.

A synced file is lost with a power cut if its name is not on stable storage, and so is all that lies in a
directory whose own name is not.
"""

import os
from contextlib import suppress
from pathlib import Path


def replace_durably(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace a file: after a power cut it is whole, the old or the new one; after this call, the new one.

    Only its single writer may call this. mode: the permissions, of which the process's mask is taken away; by
    default only the owner can read it. Raises OSError.
    """
    new = path.with_name(f".{path.name}.new")
    with suppress(FileNotFoundError):
        new.unlink()
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync_folder(path.parent)


def make_durable_folders(folder: Path, mode: int = 0o777) -> None:
    """Make a folder and its missing parents, and put each new name on stable storage. Raises OSError.

    Also syncs the name of the lowest folder that exists: a process killed at this point may have made it.
    """
    folder = folder.absolute()
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    with suppress(PermissionError):  # a folder that cannot be read was not written by this user
        sync_folder(folder.parent)
    for one in reversed(missing):
        one.mkdir(mode=mode, exist_ok=True)
        sync_folder(one.parent)


def sync_folder(folder: Path) -> None:
    """Put created, renamed and removed names of a folder on stable storage. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
