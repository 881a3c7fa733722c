"""Read the files of a member's data directory without its server.

Only whole, verified extents are read; anything else makes the copy unreadable.
"""

from pathlib import Path

from dos_server.core.files.extent import object_seed
from dos_server.core.files.scan import ReadWindow, locate, payload_of
from dos_server.limits import extent_header_bytes

_AHEAD_BYTES = 1 << 20


def object_path(data: Path, directory: str, name: str) -> Path:
    return data / "d" / directory / name


def read_object(data: Path, directory: str, name: str) -> bytes | None:
    """The content of one object; empty if it is not there, None if it is damaged."""
    path = object_path(data, directory, name)
    if not path.exists():
        return b""
    file = path.read_bytes()
    window = ReadWindow(lambda position, count: file[position : position + count], _AHEAD_BYTES)
    seed, content, position = object_seed(directory, name), bytearray(), 0
    while any(file[position : position + extent_header_bytes]):  # zeros are the end
        placed = locate(window, seed, position)
        if placed is None or not hasattr(placed, "header") or placed.header.offset != len(content):
            return None
        payload = payload_of(window, placed)
        if payload is None:
            return None
        content += payload
        position = placed.after
    return bytes(content)
