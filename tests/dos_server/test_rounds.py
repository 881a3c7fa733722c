"""Connections that share rounds, sync threads and the memory they read into."""

import os
import socket
import threading
from collections.abc import Callable
from functools import partial

import pytest
import trio

from dos_protocol import messages as m
from dos_protocol.frames import encode_frame
from dos_protocol.limits import MIB
from dos_server.buffers import BufferAccount
from dos_server.disk_threads import DiskThreads
from dos_server.limits import (
    buffers_large_bytes_max,
    buffers_total_bytes_max,
    buffers_wished_bytes_max,
    connection_buffer_bytes,
    connection_buffer_fair_bytes,
)
from dos_server.readiness import Readiness
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
    take_all(account.wish, connection_buffer_bytes)
    assert buffers_large_bytes_max - connection_buffer_bytes < account.held <= buffers_large_bytes_max
    take_all(account.wish, connection_buffer_fair_bytes)
    assert account.held <= buffers_wished_bytes_max
    assert take_all(account.need, MIB) >= 1, "a largest frame has room when no wish has"
    assert account.held <= buffers_total_bytes_max
    woken: list[int] = []
    account.wait(lambda: woken.append(1))
    assert account.wanted
    account.give_back(MIB)
    assert woken == [1]
    assert not account.wanted
    assert account.need(FIRST_BYTES, MIB) == MIB


@pytest.mark.trio
async def test_large_frames_without_room_wait_unread_and_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    # EVIDENCE-OF: P-9
    monkeypatch.setattr("dos_server.buffers.buffers_large_bytes_max", 0)
    monkeypatch.setattr("dos_server.buffers.buffers_wished_bytes_max", 0)
    monkeypatch.setattr("dos_server.buffers.buffers_total_bytes_max", MIB + 1024)

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
            while wire.receive() != m.Watermark("o", 6, 0):
                pass  # both are in the file now, and the one sync that began did so before the second
            go_on.set()
            told = [wire.receive()]
            while told[-1] != m.Watermark("o", 6, 6):
                told.append(wire.receive())
            assert m.Watermark("o", 6, 3) in told

    await with_server(disk, story)


@pytest.mark.trio
async def test_many_objects_are_synced_at_once_and_each_is_told() -> None:
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
    heard: list[int] = []
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

    threads = DiskThreads(work, heard.append, readiness, 3)
    for job in range(200):
        threads.start(job)
    assert threads.busy
    async with trio.open_nursery() as nursery:
        nursery.start_soon(readiness.run, lambda: ended.set() if len(heard) == 200 else None)
        with trio.fail_after(60):
            await ended.wait()
        nursery.cancel_scope.cancel()
    assert not threads.busy
    assert sorted(heard) == list(range(200))
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
