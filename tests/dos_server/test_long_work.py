"""Work in threads that computes for long: the event loop goes first, and nothing is done for a peer that is
gone."""

import os
import socket
import struct
import threading
import time
from functools import partial

import pytest
import trio

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_server.ports import Readiness
from dos_server.server import ObjectServer
from dos_server.storage import Storage
from tests.support.fake_disk import FakeDisk
from tests.support.wire import Wire


class SlowDisk(FakeDisk):
    """Counts reads, each of which waits while `held`."""

    def __init__(self) -> None:
        super().__init__()
        self.free, self.reads = threading.Event(), 0
        self.free.set()

    def read(self, handle: int, position: int, count: int) -> bytes:
        self.reads += 1
        self.free.wait()
        return super().read(handle, position, count)


@pytest.mark.trio
async def test_digests_that_nobody_waits_for_any_more_are_not_read() -> None:
    # EVIDENCE-OF: P-9
    disk = SlowDisk()

    def story(address: tuple[str, int]) -> None:
        with Wire(address) as honest:
            honest.claim("dir")
            honest.append("o", b"", bytes(100))
            honest.wait_synced("o", 100)
            disk.free.clear()
            disk.reads = 0
            greedy = [Wire(address) for _ in range(3)]
            for one in greedy:
                one.ask(m.ChangeDirectory("dir"))
                for _ in range(15):
                    one.send(m.Stat("o", 50))
                one.ask(m.Ping(b"?"))  # all of them are at the disk, or wait for it
            for one in greedy:
                one.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                one.close()
            last = honest.send(m.Stat("o", 50))
            while len(server._connections) > 1:
                honest.ask(m.Ping(b"?"))
            disk.free.set()
            assert honest.answer(last).digest == prefix_digest(bytes(50))
            assert disk.reads <= 2 * 3, "three reads a digest: of the one that had begun, and of the last one"

    server = ObjectServer(Storage(disk))
    listener = socket.create_server(("127.0.0.1", 0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve, listener)
        await trio.to_thread.run_sync(story, listener.getsockname())
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_thread_that_computes_gives_way_to_a_round_and_is_not_kept_waiting_for_ever() -> None:
    # EVIDENCE-OF: P-9
    calls, seconds = 30, {}
    readiness = Readiness()
    for gives_way in (True, False, True, False):
        stop, ended = threading.Event(), trio.Event()
        computed = 0

        def compute(gives_way: bool, stop: threading.Event) -> None:
            nonlocal computed
            while not stop.is_set():
                sum(range(2_000))
                computed += 1
                if gives_way:
                    readiness.yield_to_loop()

        def a_round(gives_way: bool, ended: trio.Event) -> None:
            began = time.monotonic()
            for _ in range(calls):
                os.getppid()
                time.sleep(0)  # any call that lets go of the interpreter
            seconds.setdefault(gives_way, []).append(time.monotonic() - began)
            ended.set()

        thread = threading.Thread(target=compute, args=(gives_way, stop))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(readiness.run, lambda: None)
            thread.start()
            readiness.soon(partial(a_round, gives_way, ended))
            with trio.fail_after(60):
                await ended.wait()
            nursery.cancel_scope.cancel()
        stop.set()
        thread.join()
        assert computed > 0
    readiness.close()
    # on a busy machine the computing thread may not run at all for a while: then the round is fast anyway
    assert 3 * min(seconds[True]) < max(seconds[False]), seconds
