"""Data directories, written by the server's own core and storage, and what `dos fsck` says of them."""

import shutil
import subprocess
import sys
from pathlib import Path

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_server.core.files.findings import Severity
from dos_server.disk import RealDisk
from dos_server.offline.fsck import Check, CheckReport
from dos_server.storage import Storage
from tests.dos_server.core_requests import to_claim
from tests.support.core_harness import SERVER_ID, Harness

PARTS = [b"first record, " * 9, b"the second one, " * 50, b"and a third\0with zeros\0in it" * 3]
CONTENT = b"".join(PARTS)
EDGES = [0, 64 + len(PARTS[0]), 128 + len(PARTS[0] + PARTS[1]), 192 + len(CONTENT)]


def written(root: Path, *names: str, parts: list[bytes] = PARTS) -> Path:
    """A data directory with objects in `dir`, each part an extent of its own, all of it synced and marked."""
    disk = RealDisk(root)
    server = Harness(disk)  # type: ignore[arg-type]
    session = server.connect()
    server.ask(session, to_claim(3))
    for name in names:
        content = b""
        for part in parts:
            server.send(session, m.Append(name, len(content), prefix_digest(content), part))
            server.settle()
            content += part
    server.storage.stop()
    disk.close(disk.lock("lock"))
    disk.shut()
    return root


def checked(root: Path, *, repair: bool = False) -> CheckReport:
    return Check(root, repair=repair).run()


def tree(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything of a directory: names, kinds, times of modification, bytes."""
    found = {}
    for path in [root, *root.rglob("*")]:
        about = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found[str(path.relative_to(root))] = (about.st_mode, about.st_mtime_ns, content)
    return found


def dos(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dos_cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def flip(path: Path, position: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(content)


def started(root: Path, copy: Path) -> tuple[Storage, RealDisk]:
    """A start on a copy, as the server makes it."""
    shutil.copytree(root, copy, symlinks=True)
    disk = RealDisk(copy)
    storage = Storage(disk)
    storage.start(SERVER_ID)
    return storage, disk


LARGE = [bytes([number]) * 100_000 for number in (1, 2, 3, 4)]


def verdicts(root: Path) -> dict[str, tuple[Severity, int | None, str]]:
    return {one.place: (one.verdict, one.offset, one.case) for one in checked(root).findings}
