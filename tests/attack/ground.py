"""Data directories as attackers would have filled them, written directly instead of through a server.

The files have the layout of `core.extent` and `core.records`. Nothing in them counts as acknowledged, so
nothing is synced.
"""

from pathlib import Path

from dos_protocol.digests import PrefixDigest, digest64
from dos_server.core.files.extent import ExtentHeader, encode_header, link_after, object_seed
from dos_server.core.files.records import DIRECTORIES, OBJECTS, ObjectMark, encode_identity, encode_mark

ROOT = 7
_PART_EXTENTS = 100_000


def server(data: Path) -> None:
    """A server's own: who it is."""
    (data / OBJECTS).mkdir(parents=True)
    (data / "identity").write_bytes(encode_identity(b"attacked".ljust(16)))
    (data / DIRECTORIES).touch()


def directories(data: Path, count: int) -> None:
    """Empty directories `n0`, `n1`, ..."""
    for number in range(count):
        (data / OBJECTS / f"n{number}").mkdir(parents=True, exist_ok=True)


def objects(data: Path, directory: str, count: int, content: bytes = b"x") -> None:
    """A directory of objects `o0`, `o1`, ... with one extent each."""
    folder = data / OBJECTS / directory
    folder.mkdir(parents=True)
    marks = []
    for number in range(count):
        name = f"o{number}"
        header = ExtentHeader(len(content), 0, 0, 0, digest64(content), 0, ROOT)
        (folder / name).write_bytes(encode_header(header, object_seed(directory, name)) + content)
        marks.append(encode_mark(ObjectMark(name, len(content), root=ROOT)))
    (folder / ".marks").write_bytes(b"".join(marks))


def tiny_extents(data: Path, directory: str, name: str, count: int) -> None:
    """An object of so many extents of one byte, as a writer leaves it that appends and waits, byte by
    byte."""
    folder = data / OBJECTS / directory
    folder.mkdir(parents=True, exist_ok=True)
    seed, link, fold = object_seed(directory, name), ROOT, PrefixDigest()
    payload_digest = digest64(b"x")
    with (folder / name).open("wb") as file:
        parts = []
        for offset in range(count):
            header = ExtentHeader(1, offset, 0, offset, payload_digest, fold.blocks_digest, link)
            head = encode_header(header, seed)
            link = link_after(head)
            fold.update(b"x")
            parts.append(head + b"x")
            if len(parts) == _PART_EXTENTS:
                file.write(b"".join(parts))
                parts.clear()
        file.write(b"".join(parts))
    (folder / ".marks").write_bytes(encode_mark(ObjectMark(name, count, root=ROOT)))
