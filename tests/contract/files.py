"""Files of the tests of disks."""

from dos_server.disk import Disk


def put(disk: Disk, path: str, data: bytes) -> None:
    handle = disk.open(path, create=True)
    disk.write(handle, 0, [data])
    disk.close(handle)
