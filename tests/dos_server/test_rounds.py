"""Connections that share rounds, sync threads and the memory they read into."""

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import trio

from dos_protocol import messages as m
from dos_protocol.errors import ErrorCode
from dos_protocol.frames import Frame, encode_frame, frame_head
from dos_protocol.limits import MIB
from dos_server.buffers import BufferAccount
from dos_server.limits import (
    buffers_large_bytes_max,
    buffers_needed_bytes_max,
    buffers_optional_bytes_max,
    buffers_total_bytes_max,
    connection_buffer_bytes,
    connection_buffer_fair_bytes,
    hello_bytes_max,
)
from dos_server.ports import DiskThreads, Readiness
from tests.dos_server.test_shell import with_server
from tests.support.fake_disk import FakeDisk
from tests.support.wire import Wire

FIRST_BYTES = 16 * 1024


def take_all(take: Callable[[int, int], int], size: int) -> int:
    """How many connections get a buffer of that size before one gets none."""
    count = 0
    while take(FIRST_BYTES, size) == size:
        count += 1
    return count


def test_wishes_end_first_then_needs_and_what_is_given_back_wakes_those_who_wait() -> None:
    # EVIDENCE-OF: P-9
    account = BufferAccount()
    take_all(account.take_optional, connection_buffer_bytes)
    assert buffers_large_bytes_max - connection_buffer_bytes < account.held <= buffers_large_bytes_max
    take_all(account.take_optional, connection_buffer_fair_bytes)
    assert account.held <= buffers_optional_bytes_max
    assert take_all(partial(account.need, delivered=False), MIB) >= 1, (
        "a frame has room, an optional buffer has none"
    )
    assert account.held <= buffers_needed_bytes_max
    assert account.need(FIRST_BYTES, MIB, delivered=True) == MIB, "some is kept for who delivered before"
    assert account.held <= buffers_total_bytes_max
    account.held = buffers_needed_bytes_max
    woken: list[str] = []
    waiters = [Waits(woken, *one) for one in (("large", MIB), ("small", MIB // 4), ("known", MIB, True))]
    for one in waiters:
        account.wait(one)
    assert account.wanted
    account.release(MIB)
    assert woken == ["known"], "who delivered before, and no more than fit"
    account.release(MIB)
    assert woken == ["known", "small", "large"], "then who needs least"
    assert not account.wanted
    account.wait(waiters[0])
    account.leave(waiters[0])
    assert not account.wanted
    assert account.need(FIRST_BYTES, MIB, delivered=False) == MIB


@dataclass(eq=False)
class Waits:
    woken: list[str]
    name: str
    lacks_bytes: int
    delivered: bool = False

    def on_room(self) -> None:
        self.woken.append(self.name)


@pytest.mark.trio
async def test_large_frames_without_room_wait_unread_and_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    # EVIDENCE-OF: P-9
    monkeypatch.setattr("dos_server.buffers.buffers_large_bytes_max", 0)
    monkeypatch.setattr("dos_server.buffers.buffers_optional_bytes_max", 0)
    monkeypatch.setattr("dos_server.buffers.buffers_needed_bytes_max", MIB + 1024)
    monkeypatch.setattr("dos_server.buffers.buffers_total_bytes_max", MIB + 1024)
    monkeypatch.setattr("dos_server.connection.stalled_seconds_max", 60)
    monkeypatch.setattr("dos_server.connection.slow_frame_seconds_max", 60)

    def story(address: tuple[str, int]) -> None:
        content = os.urandom(MIB)
        with Wire(address) as first, Wire(address) as second, Wire(address) as small:
            for wire in (first, second, small):
                wire.ask(m.ChangeDirectory("dir"))
            frames = [
                encode_frame(m.encode(m.Append(name, 0, 0, content), 900)) for name in ("first", "second")
            ]
            first.sock.sendall(frames[0][:-1])
            second.sock.sendall(frames[1])
            small.append("small", b"", b"abc")
            small.wait_synced("small", 3)
            second.sock.settimeout(0.3)
            with pytest.raises(TimeoutError):
                second.receive()
            second.sock.settimeout(30)
            first.sock.sendall(frames[0][-1:])
            first.wait_synced("first", MIB)
            second.wait_synced("second", MIB)

    await with_server(FakeDisk(), story)


def room_for_one_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("large", "optional"):
        monkeypatch.setattr(f"dos_server.buffers.buffers_{name}_bytes_max", 0)
    for name in ("needed", "total"):
        monkeypatch.setattr(f"dos_server.buffers.buffers_{name}_bytes_max", MIB + 1024)


def half_a_frame(address: tuple[str, int]) -> Wire:
    """A session with a frame of 1 MiB begun, of which half is there, and nothing more comes."""
    wire = Wire(address)
    wire.ask(m.ChangeDirectory("dir"))
    wire.sock.sendall(encode_frame(m.encode(m.Append("o", 0, 0, bytes(MIB)), 900))[: MIB // 2])
    return wire


@pytest.mark.trio
async def test_who_holds_room_and_sends_nothing_is_closed_once_others_wait_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # EVIDENCE-OF: P-9, P-10
    room_for_one_frame(monkeypatch)
    monkeypatch.setattr("dos_server.connection.stalled_seconds_max", 0.3)

    def story(address: tuple[str, int]) -> None:
        with half_a_frame(address) as stalled, Wire(address) as honest:
            honest.ask(m.ChangeDirectory("dir"))
            stalled.sock.settimeout(1.0)
            with pytest.raises(TimeoutError):
                stalled.receive()
            honest.append("honest", b"", bytes(MIB))
            honest.wait_synced("honest", MIB)
            stalled.sock.settimeout(30)
            assert stalled.ends()

    await with_server(FakeDisk(), story)


@pytest.mark.trio
async def test_a_frame_that_drips_is_closed_when_others_wait_for_its_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # EVIDENCE-OF: P-9, P-10
    room_for_one_frame(monkeypatch)
    monkeypatch.setattr("dos_server.connection.stalled_seconds_max", 60)
    monkeypatch.setattr("dos_server.connection.slow_frame_seconds_max", 0.5)

    def story(address: tuple[str, int]) -> None:
        with half_a_frame(address) as slow, Wire(address) as honest:
            honest.ask(m.ChangeDirectory("dir"))
            honest.append("honest", b"", bytes(MIB))
            honest.wait_synced("honest", MIB)
            assert slow.ends()

    await with_server(FakeDisk(), story)


@pytest.mark.trio
async def test_the_clock_of_a_frame_runs_while_it_waits_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    # EVIDENCE-OF: P-9
    room_for_one_frame(monkeypatch)
    monkeypatch.setattr("dos_server.connection.stalled_seconds_max", 60)
    monkeypatch.setattr("dos_server.connection.slow_frame_seconds_max", 60)
    monkeypatch.setattr("dos_server.connection.frame_seconds_max", 1.0)

    def story(address: tuple[str, int]) -> None:
        with contextlib.ExitStack() as stack:
            for one in [stack.enter_context(half_a_frame(address)) for _ in range(5)]:
                assert one.ends()

    await with_server(FakeDisk(), story)


@pytest.mark.trio
async def test_before_hello_no_frame_needs_more_than_the_small_buffer() -> None:
    # EVIDENCE-OF: P-9
    def story(address: tuple[str, int]) -> None:
        with Wire(address, greet=False) as stranger:
            stranger.sock.sendall(frame_head(Frame(3, 7, bytes(20), bytes(hello_bytes_max + 1)))[:32])
            assert stranger.receive().code == ErrorCode.TOO_LARGE
            assert stranger.ends()
        with Wire(address, greet=False) as hasty:  # what follows a HELLO need not wait for its answer
            hasty.sock.sendall(
                encode_frame(m.encode(m.Hello(client="x" * 1000), 1))
                + encode_frame(m.encode(m.ChangeDirectory("dir"), 2))
                + encode_frame(m.encode(m.Append("o", 0, 0, bytes(MIB)), 3))
            )
            hasty.answer(2)
            hasty.wait_synced("o", MIB)

    await with_server(FakeDisk(), story)


@pytest.mark.trio
async def test_what_is_written_while_a_sync_runs_waits_for_the_next() -> None:
    # EVIDENCE-OF: P-1
    disk = FakeDisk()
    begun, go_on = threading.Event(), threading.Event()
    sync = disk.sync

    def held_sync(handle: int) -> None:
        if disk._handles[handle][1].endswith("/o"):
            begun.set()
            assert go_on.wait(60)
        sync(handle)

    disk.sync = held_sync  # type: ignore[method-assign]

    def story(address: tuple[str, int]) -> None:
        with Wire(address) as wire:
            wire.claim("dir")
            wire.append("o", b"", b"abc")
            assert begun.wait(60)
            wire.append("o", b"abc", b"def")
            while wire.receive() != m.DurabilityAck("o", 6, 0):
                pass  # both are in the file now, and the one sync that began did so before the second
            go_on.set()
            answers = [wire.receive()]
            while answers[-1] != m.DurabilityAck("o", 6, 6):
                answers.append(wire.receive())
            assert m.DurabilityAck("o", 6, 3) in answers

    await with_server(disk, story)


@pytest.mark.trio
async def test_many_objects_are_synced_at_once_and_each_is_notified() -> None:
    def story(address: tuple[str, int]) -> None:
        wires = [Wire(address) for _ in range(40)]
        for number, wire in enumerate(wires):
            wire.ask(m.ChangeDirectory("dir"))
            wire.append(f"o{number}", b"", b"abc")
        for number, wire in enumerate(wires):
            wire.wait_synced(f"o{number}", 3)
            wire.sock.close()

    await with_server(FakeDisk(), story)


@pytest.mark.trio
async def test_what_threads_have_done_is_called_in_the_loop_in_order_and_all_of_it() -> None:
    readiness = Readiness()
    called: list[int] = []
    ended = trio.Event()

    def work() -> None:
        for number in range(5_000):
            readiness.done(lambda number=number: called.append(number))

    def round_ended() -> None:
        if len(called) == 5_000:
            ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(readiness.run, round_ended)
        await trio.to_thread.run_sync(work)
        with trio.fail_after(60):
            await ended.wait()
        nursery.cancel_scope.cancel()
    readiness.close()
    assert called == list(range(5_000))


@pytest.mark.trio
async def test_a_descriptor_not_watched_any_more_is_not_called_in_the_same_round() -> None:
    readiness = Readiness()
    pairs = [socket.socketpair() for _ in range(2)]
    called: list[int] = []
    ended = trio.Event()

    def call(number: int, *, readable: bool) -> None:
        assert readable
        called.append(number)
        for one, _ in pairs:
            readiness.watch(one, partial(call, 9), reading=False, writing=False)

    for number, (one, _) in enumerate(pairs):
        readiness.watch(one, partial(call, number), reading=True, writing=False)
    for _, other in pairs:
        other.send(b"x")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(readiness.run, ended.set)
        with trio.fail_after(60):
            await ended.wait()
        nursery.cancel_scope.cancel()
    readiness.close()
    assert len(called) == 1
    for pair in pairs:
        for one in pair:
            one.close()


@pytest.mark.trio
async def test_jobs_beyond_the_threads_wait_and_all_are_done() -> None:
    readiness = Readiness()
    reported: list[int] = []
    at_work, most, guard = 0, 0, threading.Lock()
    ended = trio.Event()

    def work(job: int) -> int:
        nonlocal at_work, most
        with guard:
            at_work += 1
            most = max(most, at_work)
        with guard:
            at_work -= 1
        return job

    threads = DiskThreads(work, reported.append, readiness, 3)
    for job in range(200):
        threads.start(job)
    assert threads.busy
    async with trio.open_nursery() as nursery:
        nursery.start_soon(readiness.run, lambda: ended.set() if len(reported) == 200 else None)
        with trio.fail_after(60):
            await ended.wait()
        nursery.cancel_scope.cancel()
    assert not threads.busy
    assert sorted(reported) == list(range(200))
    assert most <= 3
    threads.close()
    readiness.close()


@pytest.mark.trio
async def test_what_no_thread_should_raise_is_raised_in_the_loop() -> None:
    readiness = Readiness()

    def work(job: str) -> None:
        raise KeyError(job)

    threads = DiskThreads(work, print, readiness, 1)
    threads.start("unheard of")
    with pytest.raises(KeyError, match="unheard of"), trio.fail_after(60):
        await readiness.run(lambda: None)
    threads.close()
    readiness.close()
