"""Writes that a thread makes, because the disk takes its time: the same promises, and the loop goes on."""

import errno
import random
import time
from pathlib import Path
from typing import Any

import pytest

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import ErrorCode
from dos_protocol.frames import Frame
from dos_server.core import vocabulary as v
from dos_server.limits import slow_disk_seconds
from dos_server.server import Writes
from tests.dos_server.core_requests import claimed, to_claim
from tests.support.core_harness import Harness
from tests.support.fake_disk import FakeDisk
from tests.support.servers import ServerProcess
from tests.support.strace import PWRITES, SYNCS, Injected
from tests.support.wire import Wire


def slow() -> tuple[Harness, int]:
    server = Harness(FakeDisk())
    session = claimed(server)
    server.slow_writes = True
    return server, session


def send(server: Harness, session: int, content: bytes, payload: bytes, name: str = "o") -> int:
    """An append whose payload lies in a buffer that is used again once the batch has ended."""
    request_id = 1_000_000 + len(server.heard[session]) + len(content)
    buffer = bytearray(payload)
    frame = m.encode(m.Append(name, len(content), prefix_digest(content), b""), request_id)
    server.event(v.Received(session, Frame(*frame)._replace(payload=memoryview(buffer))))
    server.event(v.BatchEnded())
    buffer[:] = b"\xee" * len(buffer)
    return request_id


class _Shell:
    """The storage, clock and threads of `Writes`: each write takes so many seconds, and no thread ends."""

    def __init__(self, seconds: list[float]) -> None:
        self._seconds = seconds
        self._now = 0.0
        self.written: list[v.Write] = []
        self.in_threads: list[v.Write] = []

    def monotonic(self) -> float:
        return self._now

    def workers(self, *_: object) -> "_Shell":
        return self

    def start(self, write: v.Write) -> None:
        self.in_threads.append(write)

    def write(self, write: v.Write) -> v.DiskFailure:
        self._now += self._seconds[len(self.written)]
        self.written.append(write)
        return v.DiskFailure.NONE


def test_from_the_write_on_that_takes_long_the_others_of_a_round_are_made_by_threads() -> None:
    """Made in the loop, each of them would stop the server for as long."""
    shell: Any = _Shell([0.0, slow_disk_seconds * 1.1])
    writes = Writes(shell, lambda _: None, shell, shell)
    buffer = bytearray(b"bytes")
    many = [v.Write("dir", f"o{number}", 0, [memoryview(buffer)], create=True) for number in range(4)]
    assert writes.write(v.WriteMany(many)) == v.WrittenMany(many, [v.DiskFailure.NONE] * 2)
    buffer[:] = b"other"  # as the receive buffer is used again
    assert shell.written == many[:2]
    assert [(one.name, one.buffers) for one in shell.in_threads] == [("o2", [b"bytes"]), ("o3", [b"bytes"])]
    assert writes.write(v.WriteMany(many)) == v.WrittenMany(many, []), "it is slow"
    assert len(shell.in_threads) == 6


def work(server: Harness, kind: type[v.Write | v.Sync]) -> int:
    """Where in what is pending the first of a kind is."""
    return next(place for place, (effect, _) in enumerate(server.pending) if isinstance(effect, kind))


def test_what_is_appended_while_a_write_is_under_way_keeps_its_bytes() -> None:
    # EVIDENCE-OF: P-1, P-3
    server, session = slow()
    content = b""
    for number in range(5):
        part = bytes([number]) * (number * 700 + 1)
        send(server, session, content, part)
        content += part
    assert [type(effect) for effect, _ in server.pending] == [v.Write], "one at a time, the rest waits for it"
    assert not server.unasked(session, m.DurabilityAck)
    server.settle()
    assert server.unasked(session, m.DurabilityAck)[-1] == m.DurabilityAck("o", len(content), len(content))
    assert server.ask(session, m.Get("o", 0, 100_000)).payload == content


def test_no_space_in_a_thread_refuses_what_was_accepted_after_it_too() -> None:
    # EVIDENCE-OF: P-8
    server, session = slow()
    send(server, session, b"", b"good")
    server.settle()
    server.disk.space = server.disk.used + 100
    first = send(server, session, b"good", b"x" * 200)
    second = send(server, session, b"good" + b"x" * 200, b"y")
    server.settle()
    for request in (first, second):
        assert server.answer(session, request).code == ErrorCode.NO_SPACE
    server.disk.space = 1 << 30
    send(server, session, b"good", b"more")
    server.settle()
    assert server.ask(session, m.Get("o", 0, 100)).payload == b"goodmore"


def test_a_write_that_fails_in_a_thread_poisons() -> None:
    server, session = slow()
    server.disk.fail("write", errno.EIO)
    request = send(server, session, b"", b"x")
    server.settle()
    assert server.answer(session, request).code == ErrorCode.POISONED


def test_an_object_poisoned_while_a_thread_writes_is_left_alone_until_that_has_ended() -> None:
    """A new copy that took its place meanwhile would be written into."""
    # EVIDENCE-OF: P-10
    server, session = slow()
    send(server, session, b"", b"good")
    server.finish(work(server, v.Write))
    server.disk.fail("sync", errno.EIO)  # the sync of the second: of the first it has begun
    server.settle()
    send(server, session, b"good", b"more")
    server.finish(work(server, v.Write))
    send(server, session, b"goodmore", b"late")
    server.finish(work(server, v.Sync))
    assert server.ask_now(session, m.Stat("o")).info.poisoned
    newer = server.connect()
    claim = server.send(newer, to_claim(2, b"v" * 16))
    server.finish(len(server.pending) - 1)
    assert server.answer(newer, claim) is None, "a write is under way"
    server.settle()
    (info,) = server.answer(newer, claim).entries
    assert (info.synced, info.poisoned) == (4, True)
    server.disk.power_cut(random.Random(1))
    server.slow_writes = False
    server.start()
    session = claimed(server, 3)
    assert server.ask(session, m.Get("o", 0, 100)).payload == b"good"


@pytest.mark.parametrize("seed", range(30))
def test_whatever_order_threads_end_in_what_was_reported_exists_after_a_crash(seed: int) -> None:
    # EVIDENCE-OF: P-1, P-2
    rng = random.Random(seed)
    server, session = slow()
    contents: dict[str, bytes] = {"a": b"", "b": b"", "c": b""}
    for _ in range(60):
        if rng.random() < 0.5 or not server.pending:
            name = rng.choice(sorted(contents))
            part = rng.randbytes(rng.choice([1, 100, 5_000, 300_000]))
            send(server, session, contents[name], part, name)
            contents[name] += part
        else:
            server.finish(rng.randrange(len(server.pending)))
        server.slow_writes = rng.random() < 0.7
    acked = {one.name: one.synced for one in server.unasked(session, m.DurabilityAck)}
    assert acked, "something was acknowledged"
    server.lose_power(rng) if rng.random() < 0.5 else server.restart()
    server.slow_writes = False
    session = claimed(server, 2)
    for name, synced in acked.items():
        got = b""
        while part := bytes(server.ask(session, m.Get(name, len(got), 1 << 20)).payload):
            got += part
        assert len(got) >= synced
        assert contents[name].startswith(got)


@pytest.mark.process
def test_a_disk_that_hangs_holds_up_nobody_who_needs_none(tmp_path: Path) -> None:
    """Row 30. Every sync hangs, and every write but the first of a thread: the loop's next one would."""
    # EVIDENCE-OF: P-9
    hang = "delay_enter=60000000"
    with ServerProcess(tmp_path / "server") as server, Wire(server.address) as wire:
        wire.claim("dir")
        wire.append("a", b"", b"good")
        wire.wait_synced("a", 4)
        strace_options = (f"inject={SYNCS}:{hang}", f"inject={PWRITES}:{hang}:when=2+")
        with Wire(server.address) as other, Injected(server.pid, tmp_path / "strace.log", *strace_options):
            wire.append("a", b"good", b"more")
            slow_at = time.monotonic() + 2 * slow_disk_seconds
            while time.monotonic() < slow_at:
                assert other.ask(m.Ping(b"")) == m.Pong(b"")
            for name in ("b", "c", "d"):
                wire.append(name, b"", b"by a thread")
                wire.append(name, b"by a thread", b"and another one, which hangs")
            assert other.ask(m.Ping(b"still here")) == m.Pong(b"still here")
            infos = other.ask(m.ChangeDirectory("dir")).entries
            assert {info.name: info.synced for info in infos}["a"] == 4
        server.restart()
        with Wire(server.address) as again:
            again.claim("dir", epoch=2)
            assert bytes(again.ask(m.Get("a", 0, 100)).payload) in (b"good", b"goodmore")
