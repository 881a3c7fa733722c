"""Turns: who is served next when there is more to do than a round should take, and pages of names."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from dos_protocol import messages as m
from dos_protocol.frames import Frame
from dos_server.core import vocabulary as v
from dos_server.core.directory_state import NameTable, ObjectTable
from dos_server.core.object_state import ObjectState
from dos_server.limits import (
    entries_few,
    many_waiting,
    round_bytes_max,
    round_seconds,
    turn_memory_seconds,
    turn_seconds,
)
from dos_server.turns import ConnectionCost, Turns
from tests.support.core_harness import Harness


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
    server.ask(many, m.ChangeDirectory("many", claim=True, epoch=1, writer_id=b"w" * 16))
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
