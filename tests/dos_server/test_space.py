"""The reserve: appends stop before a disk is full, so that what must not fail has room."""

import errno
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from dos_protocol import messages as m
from dos_protocol.errors import ErrorCode
from dos_protocol.limits import KIB, MIB
from dos_server.core.tables import DiskSpace, reserve_of
from dos_server.limits import new_file_bytes
from tests.dos_server.core_requests import append, code_of, to_claim
from tests.support.core_harness import Harness
from tests.support.fake_disk import FakeDisk

TOTAL = 4 * MIB
RESERVE = TOTAL // 16
WRITER = b"w" * 16


def nearly_full(free_bytes: int, reserve_bytes: int | None = None) -> tuple[Harness, int]:
    """A server whose disk has so much left above the reserve, and a session that holds `dir`."""
    server = Harness(FakeDisk(space=TOTAL), reserve_bytes=reserve_bytes)
    session = server.connect()
    server.ask(session, to_claim(1, WRITER))
    leave(server, free_bytes)
    return server, session


def leave(server: Harness, free_bytes: int) -> None:
    """Others fill the disk, or free it, until so much is left above the reserve; and the server looks."""
    disk = server.disk
    handle = disk.open("ballast", create=True)
    disk.cut(handle, 0)
    ballast = disk.space - disk.used - RESERVE - free_bytes
    disk.cut(handle, ballast)
    disk.close(handle)
    server.look_at_space()


def test_appends_are_refused_whole_before_the_reserve_is_touched() -> None:
    # EVIDENCE-OF: P-8
    server, session = nearly_full(100 * KIB)
    small = b"a" * 40 * KIB
    server.ask(session, append(b"", small))
    assert server.unasked(session, m.DurabilityAck)[-1] == m.DurabilityAck("o", len(small), len(small))
    used = server.disk.used
    for name, content in (("o", small), ("new", b"")):
        refused = server.ask(session, append(content, b"b" * 70 * KIB, name))
        assert code_of(refused) == ErrorCode.NO_SPACE
    assert server.disk.used == used, "nothing of a refused append is anywhere"
    assert [info.name for info in server.ask(session, m.List()).entries] == ["o"]
    assert server.ask(session, m.Get("o", 0, MIB)).payload == small
    assert server.disk.space - used > RESERVE


def test_between_two_looks_what_was_taken_is_counted() -> None:
    server, session = nearly_full(100 * KIB)
    content = b""
    while not isinstance(server.ask(session, append(content, b"x" * 10 * KIB)), m.Error):
        content += b"x" * 10 * KIB
    assert 80 * KIB <= len(content) <= 90 * KIB


def test_what_is_taken_while_the_shell_looks_is_not_forgotten() -> None:
    space = DiskSpace()
    space.seen(RESERVE + 100, TOTAL, space.room_bytes, now=0.0)
    before = space.room_bytes
    assert space.take(60)
    space.seen(RESERVE + 100, TOTAL, before, now=1.0)  # the look may have been before those 60
    assert not space.has_room(60)
    assert space.has_room(30)


def test_a_full_disk_is_reported_once_and_so_is_its_end() -> None:
    server, session = nearly_full(10 * KIB)
    big = append(b"", b"b" * 50 * KIB)
    for _ in range(3):
        assert code_of(server.ask(session, big)) == ErrorCode.NO_SPACE
        server.look_at_space()
    (begun,) = server.warnings
    assert "appends are refused" in begun
    assert str(RESERVE) in begun
    server.now += 7
    leave(server, 40 * KIB)  # more than before, and not enough for what was refused
    assert code_of(server.ask(session, append(b"", b"small"))) == ErrorCode.NO_SPACE
    assert len(server.warnings) == 1
    leave(server, 200 * KIB)
    assert "after 7 s" in server.warnings[1]
    server.ask(session, big)
    assert server.unasked(session, m.DurabilityAck)[-1].synced == 50 * KIB
    assert len(server.warnings) == 2


def test_a_disk_that_others_fill_is_reported_without_an_append() -> None:
    server, _ = nearly_full(0)
    assert len(server.warnings) == 1


def test_an_append_that_writes_nothing_is_answered_on_a_full_disk() -> None:
    server, session = nearly_full(100 * KIB)
    server.ask(session, append(b"", b"abc"))
    leave(server, 0)
    server.send(session, append(b"abc", b""))
    assert server.unasked(session, m.DurabilityAck)[-1] == m.DurabilityAck("o", 3, 3)
    assert code_of(server.ask(session, append(b"", b"", "new"))) == ErrorCode.NO_SPACE


def test_claims_records_removals_and_a_restart_work_from_the_reserve() -> None:
    # EVIDENCE-OF: P-10
    server, session = nearly_full(100 * KIB)
    server.ask(session, append(b"", b"abc"))
    server.ask(session, append(b"", b"d" * 60 * KIB, "big"))
    other = server.connect()
    claim = to_claim(1, WRITER, "elsewhere")
    assert isinstance(server.ask(other, claim), m.DirectoryOpened)
    leave(server, 0)
    assert isinstance(server.ask(other, structs.replace(claim, epoch=2)), m.DirectoryOpened)
    assert code_of(server.ask(other, structs.replace(claim, directory="new"))) == ErrorCode.NO_SPACE
    assert isinstance(server.ask(session, m.Delete("big")), m.Deleted)
    server.restart()
    server.look_at_space()
    session = server.connect()
    claim = to_claim(2, WRITER)
    opened = server.ask(session, claim)
    assert [(info.name, info.synced) for info in opened.entries] == [("o", 3)]
    server.ask(session, append(b"abc", b"more"))
    assert server.unasked(session, m.DurabilityAck)[-1] == m.DurabilityAck("o", 7, 7), (
        "what was removed is room"
    )


@pytest.mark.parametrize("body", ["ao\t0", "anew\t0"])
def test_version_0_is_reported_at_its_append_that_the_disk_is_full(body: str) -> None:
    server = Harness(FakeDisk(space=TOTAL))
    session = server.connect0("dir")
    assert server.ask0(session, "ao\t0") == b"ok"
    server.half_close(session)
    server.settle()
    leave(server, 0)
    used = server.disk.used
    late = server.connect0("dir")
    reply = server.ask0(late, body)
    assert reply is not None
    assert reply.startswith(b"ERROR: no space")
    assert late in server.closed
    assert server.disk.used == used
    assert server.ask0(server.connect0("dir"), "do") == b"ok", "and a file can be removed"


def test_a_stream_of_version_0_ends_at_the_reserve_and_continues_when_there_is_space() -> None:
    server = Harness(FakeDisk(space=TOTAL))
    session = server.connect0("dir")
    assert server.ask0(session, "ao\t0") == b"ok"
    leave(server, 20 * KIB)
    for _ in range(4):
        server.stream(session, b"x" * 8 * KIB)
        server.settle()
    assert session in server.closed
    assert any("no space" in text for _, text in server.notes)
    leave(server, 200 * KIB)
    again = server.connect0("dir")
    size = 16 * KIB
    assert server.ask0(again, f"ao\t{size}") == b"ok"
    server.stream(again, b"y" * 8 * KIB)
    server.half_close(again)
    server.settle()
    assert f"o\t{size + 8 * KIB}".encode() in (server.ask0(server.connect0("dir"), "l") or b"")


def test_how_much_is_kept_depends_on_the_disk_and_on_who_runs_it() -> None:
    assert reserve_of(1 << 40) == 16 * MIB
    assert reserve_of(16 * MIB) == MIB
    for reserve_bytes, room in ((None, False), (RESERVE, False), (0, True), (RESERVE + 100, False)):
        space = DiskSpace(reserve_bytes)
        space.seen(RESERVE, TOTAL, space.room_bytes, now=0.0)
        assert space.has_room(100) is room


def test_a_file_system_that_does_not_say_its_size_limits_nothing(caplog: pytest.LogCaptureFixture) -> None:
    server = Harness(FakeDisk(space=TOTAL))
    for nth in range(1, 4):
        server.disk.fail("free_space", errno.ENOSYS, nth=nth)
    for _ in range(3):
        server.look_at_space()
        assert server.core._tables.space.has_room(1 << 50)
    assert caplog.text.count("does not report its free space") == 1


@given(seed=st.integers(0, 2**32))
def test_no_order_of_appends_and_looks_takes_from_the_reserve(seed: int) -> None:
    rng = random.Random(seed)
    free = rng.randrange(2 * RESERVE)
    space, taken, seen = DiskSpace(), 0, free
    space.seen(free, TOTAL, space.room_bytes, now=0.0)
    before = space.room_bytes
    for _ in range(rng.randrange(10, 60)):
        count = rng.randrange(30 * new_file_bytes)
        if rng.random() < 0.5:
            space.seen(seen, TOTAL, before, now=0.0)
            before, seen = (
                space.room_bytes,
                free - taken,
            )  # a measurement that has begun, and is reported later
        elif space.take(count):
            taken += count
        else:
            space.ran_out(count, now=0.0)
            assert space.refusing
    assert taken == 0 or free - taken > RESERVE
