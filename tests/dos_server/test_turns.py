"""Turns: who is served next when there is more to do than a round should take, and pages of names."""

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import ErrorCode
from dos_protocol.frames import Frame, encode_frame, frame_head
from dos_protocol.limits import MIB
from dos_server.buffers import BufferAccount, OutgoingAccount
from dos_server.core import vocabulary as v
from dos_server.core.directory_state import NameTable, ObjectTable
from dos_server.core.files.scan import ExtentStart
from dos_server.core.object_state import ObjectState
from dos_server.core.tables import InFlight
from dos_server.limits import (
    buffers_large_bytes_max,
    buffers_needed_bytes_max,
    buffers_optional_bytes_max,
    buffers_total_bytes_max,
    connection_buffer_bytes,
    connection_buffer_fair_bytes,
    entries_few,
    hello_bytes_max,
    in_flight_bytes_max,
    in_flight_share_bytes_min,
    in_flight_shared_bytes_max,
    many_waiting,
    read_bytes_in_flight_max,
    round_bytes_max,
    round_seconds,
    turn_memory_seconds,
    turn_seconds,
)
from dos_server.server import ObjectServer, PacedReads
from dos_server.storage import Storage
from dos_server.turns import ConnectionCost, Turns
from dos_tls.readiness import Readiness
from tests.dos_server.core_requests import to_claim
from tests.dos_server.test_shell import serving
from tests.support.core_harness import Harness
from tests.support.fake_disk import FakeDisk
from tests.support.wire import Wire


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Rounds:
    """Only what `Turns` asks for; `end` is the end of a round."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def soon(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def end(self, turns: Turns) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()
        turns.round_ended()


class Peer:
    """A connection with so many seconds of work at hand; its slice is that of the limits."""

    def __init__(self, name: str, turns: Turns, clock: Clock, served: list[str], work: float) -> None:
        self.use, self.name, self.work, self.has_more = ConnectionCost(), name, work, False
        self._turns, self._clock, self._served = turns, clock, served

    def comes(self) -> None:
        if self._turns.may_begin(self):
            self.take_turn()

    def take_turn(self) -> None:
        began = self._clock.now
        self._served.append(self.name)
        done = min(self.work, self._turns.slice_seconds)
        self.work -= done
        self._clock.now += done
        self.use.add(began, self._clock.now)
        self.has_more = bool(self.work)
        if self.work:
            self._turns.wait(self)


def test_who_asks_for_little_is_served_in_the_round_in_which_it_comes_however_many_ask_for_much() -> None:
    # EVIDENCE-OF: P-10
    clock, rounds, served = Clock(), Rounds(), list[str]()
    turns = Turns(clock, rounds)  # type: ignore[arg-type]
    greedy = [Peer("greedy", turns, clock, served, 60.0) for _ in range(1_000)]
    for one in greedy:
        one.comes()
    rounds.end(turns)
    for _ in range(50):
        began = clock.now
        served.clear()
        Peer("modest", turns, clock, served, turn_seconds / 10).comes()
        rounds.end(turns)
        assert "modest" in served
        assert clock.now - began <= 2 * round_seconds + 2 * turn_seconds
    assert sum(60.0 - one.work for one in greedy) > 0.9 * (clock.now - 100.0), (
        "the rest of the time is theirs"
    )


def test_who_comes_with_something_new_does_not_wait_for_a_thousand_bursts_though_it_has_used_more() -> None:
    # EVIDENCE-OF: P-10
    clock, rounds, served = Clock(), Rounds(), list[str]()
    turns = Turns(clock, rounds)  # type: ignore[arg-type]
    bursts = [Peer("burst", turns, clock, served, 10 * turn_seconds) for _ in range(1_000)]
    for one in bursts:
        one.comes()
        one.has_more = True
    rounds.end(turns)
    regular = Peer("regular", turns, clock, served, 0.0)
    regular.use.add(clock.now - 0.1, clock.now)
    for _ in range(20):
        regular.work = turn_seconds / 10
        assert turns.may_begin(bursts[0]) is False, "the round is full when it comes"
        clock.now += round_seconds
        began = clock.now
        served.clear()
        regular.comes()
        rounds.end(turns)
        assert {"regular", "burst"} <= {*served}, "those that have more go on meanwhile"
        assert clock.now - began <= 2 * round_seconds


def test_a_round_takes_so_many_bytes_and_the_next_one_begins_anew() -> None:
    """They are written at its end, which its time does not include."""
    # EVIDENCE-OF: P-10
    clock, rounds, served = Clock(), Rounds(), list[str]()
    turns = Turns(clock, rounds)  # type: ignore[arg-type]
    streams = [Peer(f"{number}", turns, clock, served, turn_seconds / 100) for number in range(6)]
    for one in streams:
        one.comes()
        turns.took(round_bytes_max // 2)
    assert served == ["0", "1"]
    turns.round_ended()
    late = Peer("late", turns, clock, served, turn_seconds / 100)
    late.comes()
    assert served == ["0", "1", "late"], "the round is new"
    rounds.end(turns)
    assert {*served} == {"late", *map(str, range(6))}


def test_a_slice_is_shorter_while_many_wait() -> None:
    clock, rounds = Clock(), Rounds()
    turns = Turns(clock, rounds)  # type: ignore[arg-type]
    assert turns.slice_seconds == turn_seconds
    for _ in range(many_waiting + 1):
        turns.wait(Peer("one", turns, clock, [], 1.0))
    assert turns.slice_seconds == turn_seconds / 4


def test_those_that_ask_for_much_share_and_none_is_left_out() -> None:
    # EVIDENCE-OF: P-10
    clock, rounds, served = Clock(), Rounds(), list[str]()
    turns = Turns(clock, rounds)  # type: ignore[arg-type]
    greedy = [Peer(f"{number}", turns, clock, served, 60.0) for number in range(20)]
    for one in greedy:
        one.comes()
    for _ in range(200):
        rounds.end(turns)
    done = [60.0 - one.work for one in greedy]
    assert min(done) > 0.8 * max(done) > 0


def test_a_connection_that_ended_has_no_turn() -> None:
    clock, rounds, served = Clock(), Rounds(), list[str]()
    turns = Turns(clock, rounds)  # type: ignore[arg-type]
    first, second = (Peer(name, turns, clock, served, 1.0) for name in ("first", "second"))
    first.comes()
    second.comes()
    turns.leave(second)
    served.clear()
    rounds.end(turns)
    assert served == ["first"]


def test_what_was_used_is_forgotten_by_and_by() -> None:
    use = ConnectionCost()
    use.add(10.0, 11.0)
    assert use.lately(10.0) == 1.0
    assert use.lately(10.0 + turn_memory_seconds) == 0.5


names = st.text("ab.", min_size=1, max_size=4)


@given(
    st.lists(names),
    st.lists(names),
    st.text("ab.\xff", max_size=3),
    st.text("ab.\xff", max_size=3),
    st.integers(0, 5),
)
def test_a_page_of_names_is_that_of_sorting_them_all(
    first: list[str], later: list[str], prefix: str, after: str, count: int
) -> None:
    table = NameTable(first)
    for name in later:
        table.add(name)
    found = sorted(name for name in {*first, *later} if name > after and name.startswith(prefix))
    assert table.page(prefix, after, count) == (found[:count], len(found) > count)
    assert list(table) == sorted({*first, *later})


@given(
    st.lists(st.tuples(names, st.sampled_from(["add", "absent", "remove", "page"]))),
    st.text("ab.", max_size=2),
    st.text("ab.", max_size=2),
    st.integers(0, 4),
)
def test_a_page_of_objects_is_that_of_those_that_exist_whatever_came_and_went(
    steps: list[tuple[str, str]], prefix: str, after: str, count: int
) -> None:
    table = ObjectTable()
    for name, what in (*steps, ("", "page")):
        if what == "remove":
            if name in table:
                del table[name]
        elif what == "page":
            found = sorted(
                one for one, state in table.items() if state.exists and one > after and one.startswith(prefix)
            )
            assert table.page(prefix, after, count) == (found[:count], len(found) > count)
        else:
            table[name] = ObjectState("d", name, fresh_root=1)
            table[name].exists = what == "add"


def test_a_session_ends_once() -> None:
    server = Harness()
    tables, number = server.core._tables, server.connect()
    session = tables.sessions[number]
    for _ in range(2):
        tables.close(session)
        assert session.closed
        assert [type(one) for one in tables.effects] == [v.CloseSession]


def test_only_what_may_have_many_entries_waits_for_a_peer_that_reads_late() -> None:
    server = Harness()
    few, many = (server.connect() for _ in range(2))
    server.ask(few, m.ChangeDirectory("few"))
    server.ask(many, to_claim(1, directory="many"))
    for number in range(entries_few + 1):
        server.send(many, m.Append(f"o{number}", 0, 0, b""))
    server.settle()

    def waits(session: int, request: m.Message | Frame) -> bool:
        frame = request if isinstance(request, Frame) else m.encode(request, 7)
        return server.core.answers_long(session, frame)

    assert waits(few, m.ChangeDirectory("many"))
    assert waits(many, m.List())
    assert not waits(few, m.ChangeDirectory("few"))
    assert not waits(few, m.List())
    assert not waits(server.connect(), m.List()), "there are few directories"
    assert not waits(few, m.ChangeDirectory("nobody has it"))
    for broken in (Frame(99, 7, b""), m.encode(m.ChangeDirectory("many"), 7)._replace(meta=b"")):
        assert not waits(many, broken), "it is answered with an error"
    asked = {(name, body): server.core.answers_long(server.connect0(name), body)
             for name in ("few", "many") for body in (b"l", b"ll", b"do1", b"go1\t0\t9", b"")}  # fmt: skip
    assert {one for one, long in asked.items() if long} == {("many", b"l"), ("many", b"ll")}, "version 0"
    server.start()
    assert waits(server.connect(), m.ChangeDirectory("many")), "it is not loaded: nobody knows"


# --- Connections that share rounds, sync threads and the memory they read into -----------------------------


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


def test_large_frames_without_room_wait_unread_and_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    # EVIDENCE-OF: P-9
    monkeypatch.setattr("dos_server.buffers.buffers_large_bytes_max", 0)
    monkeypatch.setattr("dos_server.buffers.buffers_optional_bytes_max", 0)
    monkeypatch.setattr("dos_server.buffers.buffers_needed_bytes_max", MIB + 1024)
    monkeypatch.setattr("dos_server.buffers.buffers_total_bytes_max", MIB + 1024)
    monkeypatch.setattr("dos_server.connection.stalled_seconds_max", 60)
    monkeypatch.setattr("dos_server.connection.slow_frame_seconds_max", 60)

    with serving(FakeDisk()) as address:
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


def test_who_holds_room_and_sends_nothing_is_closed_once_others_wait_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # EVIDENCE-OF: P-9, P-10
    room_for_one_frame(monkeypatch)
    monkeypatch.setattr("dos_server.connection.stalled_seconds_max", 0.3)

    with serving(FakeDisk()) as address, half_a_frame(address) as stalled, Wire(address) as honest:
        honest.ask(m.ChangeDirectory("dir"))
        stalled.sock.settimeout(1.0)
        with pytest.raises(TimeoutError):
            stalled.receive()
        honest.append("honest", b"", bytes(MIB))
        honest.wait_synced("honest", MIB)
        stalled.sock.settimeout(30)
        assert stalled.ends()


def test_a_frame_that_drips_is_closed_when_others_wait_for_its_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # EVIDENCE-OF: P-9, P-10
    room_for_one_frame(monkeypatch)
    monkeypatch.setattr("dos_server.connection.stalled_seconds_max", 60)
    monkeypatch.setattr("dos_server.connection.slow_frame_seconds_max", 0.5)

    with serving(FakeDisk()) as address, half_a_frame(address) as slow, Wire(address) as honest:
        honest.ask(m.ChangeDirectory("dir"))
        honest.append("honest", b"", bytes(MIB))
        honest.wait_synced("honest", MIB)
        assert slow.ends()


def test_the_clock_of_a_frame_runs_while_it_waits_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    # EVIDENCE-OF: P-9
    room_for_one_frame(monkeypatch)
    monkeypatch.setattr("dos_server.connection.stalled_seconds_max", 60)
    monkeypatch.setattr("dos_server.connection.slow_frame_seconds_max", 60)
    monkeypatch.setattr("dos_server.connection.frame_seconds_max", 1.0)

    with serving(FakeDisk()) as address, contextlib.ExitStack() as stack:
        for one in [stack.enter_context(half_a_frame(address)) for _ in range(5)]:
            assert one.ends()


def test_before_hello_no_frame_needs_more_than_the_small_buffer() -> None:
    # EVIDENCE-OF: P-9
    with serving(FakeDisk()) as address:
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


def test_many_objects_are_synced_at_once_and_each_is_notified() -> None:
    with serving(FakeDisk()) as address:
        wires = [Wire(address) for _ in range(40)]
        for number, wire in enumerate(wires):
            wire.ask(m.ChangeDirectory("dir"))
            wire.append(f"o{number}", b"", b"abc")
        for number, wire in enumerate(wires):
            wire.wait_synced(f"o{number}", 3)
            wire.sock.close()


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


# --- What greedy sessions share: unsynced bytes, and reads at the disk -------------------------------------


def test_a_session_that_appends_alone_may_have_more_unsynced_than_its_share_beside_others() -> None:
    # EVIDENCE-OF: P-10
    shares = InFlight()
    assert shares.bytes_max == in_flight_bytes_max
    shares.appended(1, 0.0)
    assert shares.bytes_max == in_flight_bytes_max
    shares.appended(2, 0.1)
    shares.appended(1, 0.5)
    assert shares.bytes_max == in_flight_shared_bytes_max // 2
    shares.appended(1, 1.2)
    assert shares.bytes_max == in_flight_bytes_max, "the other one has been silent for a second"
    for number in range(1_000):
        shares.appended(number, 1.3)
    assert shares.bytes_max == in_flight_share_bytes_min


class Connection:
    outgoing_bytes = reserved_bytes = 0


class Pool:
    """The threads that read: it notes what begins."""

    busy = False

    def __init__(self) -> None:
        self.begun: list[v.ReadData] = []

    def start(self, effect: v.ReadData) -> None:
        self.begun.append(effect)


def read(session: int, start: int) -> v.ReadData:
    return v.ReadData(session, 0, "d", "o", ExtentStart(0, 0, 0), start, start + MIB)


def test_sessions_take_turns_at_the_disk_within_a_budget_of_bytes() -> None:
    # EVIDENCE-OF: P-10
    pool, results = Pool(), list[v.GotData]()
    connections: Any = {number: Connection() for number in range(3)}
    storage: Any = SimpleNamespace(read=None)
    ports: Any = SimpleNamespace(workers=lambda *_: pool)
    rounds: Any = SimpleNamespace(soon=lambda _: None)
    reads = PacedReads(
        storage, connections, OutgoingAccount(), rounds, results.append, lambda read: read.extent, ports
    )
    for start in range(4):
        reads.submit(read(0, start * MIB))
    for session in (1, 2):
        reads.submit(read(session, 0))
    assert len(pool.begun) == read_bytes_in_flight_max // MIB
    order = []
    while pool.begun:
        done = pool.begun.pop(0)
        order.append(done.session)
        reads._ended(v.GotData(done))
        reads.inspect()
    assert order == [0, 1, 0, 2, 0, 0], "each has its turn, and one read at a time"
    assert not reads.waiting


# --- Work in threads that computes for long: the event loop goes first, and nothing is done for a ... ------


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
async def test_large_gets_in_flight_cost_one_read_each_without_a_walk_over_headers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # EVIDENCE-OF: P-10
    monkeypatch.setattr(
        "dos_server.core.files.scan._FIRST_SPACING", 1 << 30
    )  # the index has the first extent
    disk, content = SlowDisk(), os.urandom(6 * MIB)

    def story(address: tuple[str, int]) -> None:
        with Wire(address) as reader:
            reader.claim("dir")
            for begin in range(0, len(content), MIB):
                reader.append("o", content[:begin], content[begin : begin + MIB])
            reader.wait_synced("o", len(content))
            disk.reads = 0
            requests = [reader.send(m.Get("o", begin, MIB)) for begin in range(0, len(content), MIB)]
            assert b"".join(reader.answer(one).payload for one in requests) == content
            assert disk.reads == len(requests)

    server = ObjectServer(Storage(disk))
    listener = socket.create_server(("127.0.0.1", 0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve, listener)
        await trio.to_thread.run_sync(story, listener.getsockname())
        nursery.cancel_scope.cancel()


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
