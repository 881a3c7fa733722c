"""A real server on a real disk that is full: a tmpfs of a few MiB. Appends are refused whole, everything else
goes on, and so do appends when there is space again, without a restart."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from dos_protocol import messages as m
from dos_protocol.digests import PrefixDigest, prefix_digest
from dos_protocol.errors import ErrorCode
from dos_protocol.limits import KIB, MIB
from dos_server.disk import RealDisk
from tests.support.servers import NO_LOG, ServerProcess
from tests.support.small_disk import SmallDisk, small_disk
from tests.support.v0_client import LostError, V0Connection
from tests.support.wire import Wire

pytestmark = pytest.mark.process

DISK_BYTES = 4 * MIB
BLOCK = bytes(range(256)) * 160


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        yield disk


def fill_by_appends(wire: Wire, name: str, content: bytes = b"", block: bytes = BLOCK) -> bytes:
    """Append until there is no space; what was accepted, all of it durable."""
    fold = PrefixDigest()
    fold.update(content)
    while True:
        request = wire.send(m.Append(name, fold.size, fold.value, block))
        ping = wire.send(m.Ping(b""))
        frame = wire.receive_frame()
        while frame.request_id not in (request, ping):
            frame = wire.receive_frame()
        if frame.request_id == request:
            error = m.decode(frame)
            assert isinstance(error, m.Error)
            assert error.code == ErrorCode.NO_SPACE
            wire.answer(ping)
            break
        fold.update(block)
        content += block
    while wire.ask(m.Stat(name)).info.synced < len(content):
        pass
    return content


def append_when_there_is_space(wire: Wire, name: str, content: bytes, payload: bytes) -> bytes:
    """Try until it is taken: the server looks each second."""
    while True:
        request = wire.append(name, content, payload)
        ping = wire.send(m.Ping(b""))
        while (frame := wire.receive_frame()).request_id not in (request, ping):
            pass
        if frame.request_id == ping:
            while wire.ask(m.Stat(name)).info.synced < len(content) + len(payload):
                pass
            return content + payload
        wire.answer(ping)


def content_of(wire: Wire, name: str) -> bytes:
    content = b""
    while part := bytes(wire.ask(m.Get(name, len(content), 1 << 20)).payload):
        content += part
    return content


def file_of(server: ServerProcess, name: str) -> Path:
    return server.data / "d" / "dir" / name


def test_a_full_disk_can_be_claimed_cleared_out_and_restarted(disk: SmallDisk) -> None:
    # EVIDENCE-OF: P-1, P-8, P-10
    with ServerProcess(disk.path / "server") as server:
        with Wire(server.address) as wire:
            wire.claim("dir")
            wire.append("small", b"", b"abc")
            wire.wait_synced("small", 3)
            content = fill_by_appends(wire, "big")
            assert len(content) > DISK_BYTES // 2
            extents = -(-len(content) // len(BLOCK))
            assert file_of(server, "big").stat().st_size == len(content) + 64 * extents
            assert content_of(wire, "big") == content
            refused = wire.ask(m.Append("new", 0, 0, b"x"))
            assert refused.code == ErrorCode.NO_SPACE
            assert not file_of(server, "new").exists()
            with Wire(server.address) as other:
                for epoch in range(2, 12):  # a directory that exists can be claimed, and no other
                    opened = other.claim("dir", epoch)
                    assert isinstance(opened, m.DirectoryOpened), opened
                    assert other.claim(f"elsewhere{epoch}").code == ErrorCode.NO_SPACE
        server.restart()
        with Wire(server.address) as wire:
            opened = wire.claim("dir", epoch=12)
            assert {info.name: info.synced for info in opened.entries} == {"small": 3, "big": len(content)}
            assert content_of(wire, "big") == content
            assert wire.ask(m.Append("small", 3, prefix_digest(b"abc"), BLOCK)).code == ErrorCode.NO_SPACE
            assert isinstance(wire.ask(m.Delete("big")), m.Deleted)
            append_when_there_is_space(wire, "small", b"abc", BLOCK)
            assert content_of(wire, "small") == b"abc" + BLOCK
    log = server.log_path.read_text()
    assert log.count("appends are refused") == 2, "once in each life"
    assert log.count("appends are accepted again") == 1


def test_a_client_of_version_0_clears_out_a_full_disk(disk: SmallDisk) -> None:
    with ServerProcess(disk.path / "server") as server:
        writer = V0Connection(server.address, reply_seconds=30)
        assert writer.ask(b"udir") == b"ok"
        assert writer.ask(b"abig\t0") == b"ok"
        with contextlib.suppress(LostError):  # a stream that cannot go on ends without a word
            while True:
                writer.send(BLOCK)
        writer.sock.close()
        tool = V0Connection(server.address, reply_seconds=30)
        assert tool.ask(b"udir") == b"ok"
        while not tool.ask(b"l").endswith(b"\tno\n"):
            pass  # the last of what was taken is on its way to the disk
        assert tool.ask(b"dbig") == b"ok"
        assert tool.ask(b"l") == b""
        tool.sock.close()


def test_where_nothing_is_kept_a_full_disk_refuses_whole_appends_all_the_same(disk: SmallDisk) -> None:
    """Others took the last byte, the reserve too: writes fail, and leave nothing behind."""
    # EVIDENCE-OF: P-8, P-10
    with (
        ServerProcess(disk.path / "server", options=("--reserve-mib", "0")) as server,
        Wire(server.address) as wire,
    ):
        wire.claim("dir")
        content = BLOCK * 5
        wire.append("o", b"", content)
        wire.wait_synced("o", len(content))
        ballast = disk.fill()
        size = file_of(server, "o").stat().st_size
        for name, expected in (("o", content), ("new", b"")):
            for payload in (BLOCK, b"x" * 20_000):
                assert wire.answer(wire.append(name, expected, payload)).code == ErrorCode.NO_SPACE
        assert file_of(server, "o").stat().st_size == size
        assert not file_of(server, "new").exists()
        assert content_of(wire, "o") == content
        ballast.unlink()
        content = append_when_there_is_space(wire, "o", content, BLOCK)
        append_when_there_is_space(wire, "new", b"", BLOCK)
        assert content_of(wire, "o") == content


def test_a_tail_torn_on_a_full_disk_is_cut_when_there_is_space_without_a_restart(disk: SmallDisk) -> None:
    # EVIDENCE-OF: P-1, P-2
    with ServerProcess(disk.path / "server", options=("--reserve-mib", "0", *NO_LOG)) as server:
        with Wire(server.address) as wire:
            wire.ask(m.ChangeDirectory("dir"))
            wire.append("o", b"", BLOCK)
            wire.wait_synced("o", len(BLOCK))
        server.kill()
        with file_of(server, "o").open("ab") as file:
            file.write(b"\xd0\x58\x01" + bytes(47))  # a header that a crash cut short
        ballast = disk.fill()
        server.restart()
        with Wire(server.address) as wire:
            assert [info.corrupt for info in wire.ask(m.ChangeDirectory("dir")).entries] == [True]
            assert wire.ask(m.Get("o", 0, 1 << 20)).payload == BLOCK
            assert wire.ask(m.Append("o", len(BLOCK), prefix_digest(BLOCK), b"x")).code == ErrorCode.CORRUPT
            ballast.unlink()
            while wire.ask(m.Stat("o")).info.corrupt:
                pass
            append_when_there_is_space(wire, "o", BLOCK, BLOCK)
            assert content_of(wire, "o") == 2 * BLOCK
        assert len(list(file_of(server, "o").parent.glob(".torn.o.*"))) == 1


def test_a_disk_that_fills_within_a_write_takes_a_part_of_it_and_reports_it(
    disk: SmallDisk,
) -> None:
    """RealDisk continues where the short write ended, and gets the error."""
    real = RealDisk(disk.path / "data")
    handle = real.open("o", create=True)
    real.write(handle, 0, [b"abc"])
    disk.fill(leave_bytes=16 * KIB)
    with pytest.raises(OSError, match="No space") as caught:
        real.write(handle, 3, [b"x" * 10_000, b"y" * 40_000])
    assert caught.value.errno == errno.ENOSPC
    short = real.size(handle)
    assert 3 < short < 50_003, "a part of it was written"
    real.cut(handle, 3)
    real.write(handle, 3, [b"x" * 5_000, b"y" * 5_000])
    assert real.read(handle, 0, 20_000) == b"abc" + b"x" * 5_000 + b"y" * 5_000
    real.close(handle)
    real.shut()


def test_what_is_free_is_what_the_file_system_says(disk: SmallDisk) -> None:
    real = RealDisk(disk.path)
    before = real.free_space()
    assert before.total_bytes == DISK_BYTES
    disk.fill(leave_bytes=MIB)
    assert 0 < real.free_space().free_bytes <= MIB < before.free_bytes
    real.shut()
