"""Version 0 on a disk that fails or fills up."""

import errno

import pytest

from tests.dos_server.version0.streams import streaming, written
from tests.support.core_harness import Harness
from tests.support.fake_disk import FakeDisk

# Failures of the disk


def test_a_failed_sync_ends_the_stream_without_a_word() -> None:
    # EVIDENCE-OF: P-1
    disk = FakeDisk()
    server = Harness(disk)
    session = streaming(server)
    disk.fail("sync", errno.EIO)
    server.stream(session, b"abc")
    server.half_close(session)
    server.settle()
    assert server.replies(session) == []
    assert session in server.closed
    late = server.connect0("dir")
    assert (server.ask0(late, "sf") or b"").startswith(b"ERROR: f is damaged")
    assert (server.ask0(late, "af\t0") or b"").startswith(b"ERROR: f is poisoned")


@pytest.mark.parametrize("then", ["bytes", "a pause", "the end"])
def test_a_file_found_damaged_below_its_stream_is_reported_no_more(then: str) -> None:
    # EVIDENCE-OF: P-2
    server = Harness()
    written(server, "f", bytes(5000))
    session, other = streaming(server, "f", 5000), server.connect0("dir")
    server.stream(session, b"abc")
    server.settle()
    server.disk.write(server.disk.open("d/dir/f", create=False), 1000, [b"\xff"])
    assert server.ask0(server.connect0("dir"), "gf\t0\t0") is None
    if then == "bytes":
        server.stream(session, b"defg")
    elif then == "a pause":
        server.tick(1.1)
    else:
        server.half_close(session)
    server.settle()
    assert server.replies(session) == []
    assert session in server.closed
    assert server.ask0(other, "l") == b"f\t0\tno\n", "no reported size includes the damage"


def test_a_full_disk_ends_the_stream_and_it_continues_when_there_is_space() -> None:
    # EVIDENCE-OF: P-8
    disk = FakeDisk()
    server = Harness(disk)
    session = streaming(server)
    server.stream(session, b"abc")
    server.settle()
    disk.space = disk.used + 100
    server.stream(session, bytes(5000))
    assert session in server.closed
    assert server.replies(session) == []
    server.end(session)
    server.settle()
    disk.space = 1 << 30
    assert server.ask0(server.connect0("dir"), "l") == b"f\t3\tno\n"
    session = streaming(server, "f", 3)
    server.stream(session, bytes(5000))
    server.half_close(session)
    server.settle()
    assert server.replies(session) == [b"5003\t5003"]


def test_a_file_that_cannot_be_made_is_refused_and_is_missing() -> None:
    # EVIDENCE-OF: P-8
    disk = FakeDisk()
    server = Harness(disk)
    session = server.connect0("dir")
    disk.fail("write", errno.ENOSPC)
    assert (server.ask0(session, "af\t0") or b"").startswith(b"ERROR: no space for f")
    assert session in server.closed
    assert server.ask0(server.connect0("dir"), "l") == b""


def test_a_directory_that_cannot_be_made_is_refused() -> None:
    disk = FakeDisk()
    server = Harness(disk)
    session = server.connect0()
    disk.fail("make_folder", errno.ENOSPC)
    assert (server.ask0(session, "udir") or b"").startswith(b"ERROR: directory dir cannot be made")
    assert server.ask0(session, "udir") == b"ok"


def test_sync_of_a_file_whose_sync_fails_is_an_error() -> None:
    disk = FakeDisk()
    server = Harness(disk)
    session, other = streaming(server), server.connect0("dir")
    disk.fail("sync", errno.EIO)
    server.stream(session, b"abc")
    server.request(other, "sf")
    server.settle()
    (reply,) = server.replies(other)
    assert reply.startswith(b"ERROR: f is damaged")
    assert other not in server.closed
