"""`dos fsck` and the start of the server give one verdict about the same data directory, whatever its damage.

A start that is refused is never exit code 0, and what is served whole is never called damaged.
"""

import logging
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import DosError
from dos_protocol.store_record import Member, StoreRecord, encode_store_record
from dos_server.core.files.findings import Severity
from dos_server.disk import RealDisk
from dos_server.limits import log_reserved_bytes
from dos_server.offline.fsck import Check, NotCheckedError
from tests.dos_server.core_requests import to_claim
from tests.dos_server.fsck.data_directories import CONTENT, PARTS
from tests.support.core_harness import SERVER_ID, Harness

SLOT_BYTES = log_reserved_bytes + (1 << 15)
DIRECTORIES = ("dir", "other")


def written(root: Path, *, clean_stop: bool) -> Path:
    """The data directory of a member with a group log: stopped, or killed while the log is in use."""
    disk = RealDisk(root)
    server = Harness(disk, slot_bytes=SLOT_BYTES)  # type: ignore[arg-type]
    record = StoreRecord(b"s" * 16, 1, 1, (Member(SERVER_ID, "a:1"),))
    server.ask(server.connect(), m.Configure(encode_store_record(record)))
    for directory in DIRECTORIES:
        session = server.connect(m.Hello(store_id=b"s" * 16, generation=1))
        server.ask(session, to_claim(3, directory=directory))
        content = b""
        for part in PARTS:
            server.send(session, m.Append("a", len(content), prefix_digest(content), part))
            server.settle()
            content += part
    if clean_stop:
        server.storage.stop()
    else:
        server.storage.abandon()
    disk.close(disk.lock("lock"))
    disk.shut()
    return root


def flipped(path: Path, rng: random.Random) -> None:
    if data := bytearray(path.read_bytes()):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)


def cut(path: Path, rng: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data) + 1)])


def zeroed(path: Path, rng: random.Random) -> None:
    data = path.read_bytes()
    start = rng.randrange(len(data) + 1)
    path.write_bytes(data[:start].ljust(len(data), b"\0"))


def removed(path: Path, rng: random.Random) -> None:
    folders = [one for one in (path.parent, path.parent.parent) if one.name in ("d", "log", *DIRECTORIES)]
    if folders and rng.random() < 0.4:
        shutil.rmtree(rng.choice(folders))
    else:
        path.unlink()


DAMAGES: list[Callable[[Path, random.Random], None]] = [flipped, cut, zeroed, removed]


def damage(root: Path, rng: random.Random) -> str:
    files = sorted(path for path in root.rglob("*") if path.is_file())
    path, what = rng.choice(files), rng.choice(DAMAGES)
    what(path, rng)
    return f"{path.relative_to(root)} {what.__name__}"


def serves_all(root: Path) -> bool | None:
    """Whether a server serves every byte of the directory; None: it does not start."""
    disk = RealDisk(root)
    try:
        server = Harness(disk, slot_bytes=SLOT_BYTES)  # type: ignore[arg-type]
    except (DosError, OSError):
        disk.shut()
        return None
    try:
        for directory in DIRECTORIES:
            session = server.connect(m.Hello(store_id=b"s" * 16, generation=1))
            opened = server.ask(session, m.ChangeDirectory(directory))
            if not isinstance(opened, m.DirectoryOpened) or opened.epoch != 3:
                return False
            got = server.ask(session, m.Get("a", 0, len(CONTENT)))
            if not isinstance(got, m.Data) or bytes(got.payload) != CONTENT:
                return False
        return True
    finally:
        server.storage.abandon()
        disk.shut()


def is_damaged(root: Path) -> bool:
    """What `dos fsck` says: damage, or that it could not check."""
    try:
        report = Check(root).run()
    except NotCheckedError:
        return True
    return bool(report.of(Severity.DAMAGED) or report.of(Severity.UNCHECKED))


@pytest.mark.parametrize("clean_stop", [True, False])
def test_fsck_and_the_start_agree_about_random_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, clean_stop: bool
) -> None:
    caplog.set_level(logging.CRITICAL)
    whole = written(tmp_path / "whole", clean_stop=clean_stop)
    assert serves_all(Path(shutil.copytree(whole, tmp_path / "copy")))
    assert not is_damaged(whole)
    counts = dict.fromkeys((True, False, None), 0)
    for seed in range(60):
        rng, copy = random.Random(seed), tmp_path / f"copy-{seed}"
        shutil.copytree(whole, copy)
        done = ", ".join(damage(copy, rng) for _ in range(rng.choice([1, 1, 2])))
        damaged = is_damaged(copy)
        served = serves_all(copy)
        counts[served] += 1
        if served is None:
            assert damaged, f"{seed}: {done}: the server does not start, and fsck finds nothing"
        elif served:
            assert not damaged, f"{seed}: {done}: the server serves every byte, and fsck says damaged"
        shutil.rmtree(copy)
    assert min(counts.values()) > (3 if clean_stop else 0), counts
