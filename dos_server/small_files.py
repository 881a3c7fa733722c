"""Small files that are read and replaced as a whole: identity, store record, claim.

After a crash a file is the old or the new one, never a mixture. Functions raise OSError.
"""

from dos_server.disk import Disk


def read(disk: Disk, path: str) -> bytes | None:
    """Return the content of a file; None if there is none."""
    try:
        handle = disk.open(path, create=False)
    except FileNotFoundError:
        return None
    try:
        return disk.read(handle, 0, disk.size(handle))
    finally:
        disk.close(handle)


def replace(disk: Disk, folder: str, name: str, data: bytes) -> None:
    """Replace a file atomically: temporary file, write, sync, rename, sync of the folder."""
    temporary = f".{name}.new" if not name.startswith(".") else f"{name}.new"
    handle = disk.open(f"{folder}/{temporary}" if folder else temporary, create=True)
    try:
        disk.cut(handle, 0)
        disk.write(handle, 0, [data])
        disk.sync(handle)  # before the rename: a crash must never leave an empty file under the final name
    finally:
        disk.close(handle)
    disk.rename(folder, temporary, name)
    disk.sync_folder(folder)
