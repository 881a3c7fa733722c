"""The trio shell on the fake disk: what disks do reaches the wire as the core says."""

import contextlib
import errno
import select
import socket
import threading
from collections.abc import Iterator, Sequence

import pytest
import trio

from dos_protocol import messages as m
from dos_protocol.digests import Buffer, prefix_digest
from dos_protocol.errors import ErrorCode
from dos_protocol.store_record import Member, StoreRecord, encode_store_record
from dos_server.server import ObjectServer
from dos_server.storage import Storage
from tests.dos_server.core_requests import to_claim
from tests.shells.bugs import planted
from tests.support.fake_disk import FakeDisk
from tests.support.wire import Wire


@contextlib.contextmanager
def serving(disk: FakeDisk) -> Iterator[tuple[str, int]]:
    """The address of a server on the disk, which runs in a thread."""
    server = ObjectServer(Storage(disk))
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    scope, begun = trio.CancelScope(), threading.Event()
    tokens: list[trio.lowlevel.TrioToken] = []

    async def serve() -> None:
        tokens.append(trio.lowlevel.current_trio_token())
        with scope:
            begun.set()
            await server.serve(listener)

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    begun.wait()
    try:
        yield address
    finally:
        trio.from_thread.run_sync(scope.cancel, trio_token=tokens[0])
        thread.join()


def test_a_failed_sync_answers_poisoned_and_other_objects_continue() -> None:
    # EVIDENCE-OF: P-1
    disk = FakeDisk()

    with serving(disk) as address, Wire(address) as wire:
        wire.claim("dir")
        wire.append("good", b"", b"abc")
        wire.wait_synced("good", 3)
        disk.fail("sync", errno.EIO)
        assert wire.answer(wire.append("bad", b"", b"abc")).code == ErrorCode.POISONED
        assert wire.answer(wire.append("bad", b"abc", b"d")).code == ErrorCode.POISONED
        wire.append("good", b"abc", b"def")
        wire.wait_synced("good", 6)
        assert not any(isinstance(one, m.DurabilityAck) and one.name == "bad" for one in wire.unasked)


def refused_now(wire: Wire, request: int) -> bool:
    """Whether the append was refused for want of space. A ping behind it is answered after that."""
    ping = wire.send(m.Ping(b""))
    while (frame := wire.receive_frame()).request_id != ping:
        message = m.decode(frame)
        if frame.request_id == request:
            assert isinstance(message, m.Error)
            assert message.code == ErrorCode.NO_SPACE
            wire.answer(ping)
            return True
        wire.unasked.append(message)
    return False


def test_a_full_disk_answers_no_space_and_the_session_continues() -> None:
    # EVIDENCE-OF: P-8
    disk = FakeDisk(space=20_000)

    with serving(disk) as address, Wire(address) as wire:
        wire.claim("dir")
        assert wire.answer(wire.append("o", b"", bytes(50_000))).code == ErrorCode.NO_SPACE
        disk.space = 1 << 30
        while refused_now(wire, wire.append("o", b"", bytes(50_000))):
            pass  # the server looks each second
        wire.wait_synced("o", 50_000)


def test_a_disk_that_takes_its_time_holds_up_nobody_else() -> None:
    disk = FakeDisk()
    going_on = threading.Event()
    sync = disk.sync

    def slow_sync(handle: int) -> None:
        if disk._handles[handle][1].endswith("/slow"):
            assert going_on.wait(60)
        sync(handle)

    disk.sync = slow_sync  # type: ignore[method-assign]

    with serving(disk) as address, Wire(address) as wire, Wire(address) as other:
        wire.claim("dir")
        wire.append("slow", b"", b"abc")
        other.claim("elsewhere")
        other.append("quick", b"", b"abc")
        other.wait_synced("quick", 3)
        assert other.ask(m.Ping(b"x")) == m.Pong(b"x")
        watermark = wire.receive()  # written, not synced: told within a second
        assert watermark == m.DurabilityAck("slow", 3, 0)
        going_on.set()
        wire.wait_synced("slow", 3)


def test_a_new_copy_begun_again_does_not_lose_its_file_to_the_end_of_the_one_before() -> None:
    disk = FakeDisk()
    begun_again, removed = threading.Event(), threading.Event()
    remove, write = disk.remove, disk.write

    def late_remove(path: str) -> None:
        assert begun_again.wait(30)
        remove(path)
        removed.set()

    def write_around_it(handle: int, position: int, buffers: Sequence[Buffer]) -> None:
        again = disk._handles[handle][1].rpartition("/")[2].startswith(".repair.") and len(disk.calls) > first
        if again:
            begun_again.set()
            assert removed.wait(30)
        write(handle, position, buffers)

    first = 1 << 30
    disk.remove = late_remove  # type: ignore[method-assign]
    disk.write = write_around_it  # type: ignore[method-assign]
    content = bytes(range(256)) * 16

    with serving(disk) as address:
        with Wire(address) as wire:
            member = Member(wire.welcome.server_id, "a:1")
            record = encode_store_record(StoreRecord(b"s" * 16, 1, 1, (member,)))
            assert wire.ask(m.Configure(record)) == m.Configured(1)
        with Wire(address, hello=m.Hello(store_id=b"s" * 16, generation=1)) as wire:
            wire.claim("dir")
            digest = prefix_digest(content)
            for part, done in ((content[:100], False), (content, True)):
                repair = m.RepairChunk("o", 0, len(content), digest, 0, 0, overwrite=False, payload=part)
                assert wire.ask(repair).done is done
                first = len(disk.calls)
            assert wire.ask(m.Get("o", 0, 1 << 20)).payload == content


@pytest.mark.parametrize("bug", [None, "sync_begins_when_it_ends"])
def test_what_is_written_while_a_sync_runs_waits_for_the_next_and_is_not_read_before(
    bug: str | None,
) -> None:
    # EVIDENCE-OF: P-1, P-2
    disk = FakeDisk()
    begun, may_end = threading.Semaphore(0), threading.Semaphore(0)
    acked_early: list[int] = []
    sync = disk.sync

    def slow_sync(handle: int) -> None:
        if disk._handles[handle][1] == "d/dir/o":
            sync(handle)  # what is written from here on is not in it
            begun.release()
            assert may_end.acquire(timeout=30)
        else:
            sync(handle)

    disk.sync = slow_sync  # type: ignore[method-assign]

    def story(address: tuple[str, int]) -> None:
        with contextlib.ExitStack() as at_end, Wire(address) as wire:
            at_end.callback(may_end.release, 100)
            wire.claim("dir")
            wire.append("o", b"", b"abc")
            assert begun.acquire(timeout=30)
            wire.append("o", b"abc", b"def")
            assert wire.ask(m.Ping(b"")) == m.Pong(b"")  # it is written
            may_end.release()
            while (mark := wire.receive()) != m.DurabilityAck("o", 6, 3):
                assert isinstance(mark, m.DurabilityAck)
                if mark.synced == 6:
                    acked_early.append(mark.synced)
                    return
                assert mark.synced == 0
            assert begun.acquire(timeout=30)  # the second sync, which is not over
            assert wire.ask(m.Get("o", 0, 100)).payload == b"abc"
            assert wire.ask(m.Stat("o")).info.synced == 3
            may_end.release()
            wire.wait_synced("o", 6)
            assert wire.ask(m.Get("o", 0, 100)).payload == b"abcdef"

    with planted(bug), serving(disk) as address:
        story(address)
    assert acked_early == ([] if bug is None else [6]), "with its rule broken it is reported before its sync"


@pytest.mark.parametrize("bug", [None, "claims_are_answered_before_they_are_stored"])
def test_a_claim_is_answered_when_it_is_durable(bug: str | None) -> None:
    """R2. With its rule broken the answer is there while the disk still has the claim to sync."""
    # EVIDENCE-OF: P-4
    disk = FakeDisk()
    begun, may_end = threading.Event(), threading.Event()
    sync = disk.sync

    def slow_sync(handle: int) -> None:
        if ".claim" in disk._handles[handle][1]:
            begun.set()
            assert may_end.wait(30)
        sync(handle)

    disk.sync = slow_sync  # type: ignore[method-assign]

    with (
        planted(bug),
        serving(disk) as address,
        contextlib.ExitStack() as at_end,
        Wire(address) as wire,
        Wire(address) as other,
    ):
        at_end.callback(may_end.set)
        request = wire.send(to_claim())
        assert begun.wait(30)
        assert other.ask(m.Ping(b"")) == m.Pong(b"")  # the server continues with others meanwhile
        answered, _, _ = select.select([wire.sock], [], [], 0 if bug is None else 30)
        assert bool(answered) is (bug is not None)
        may_end.set()
        assert wire.answer(request).epoch == 1
