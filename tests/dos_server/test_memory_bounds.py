"""What a server keeps in memory for sessions: GETs that wait, and objects of the directories they use."""

import pytest

from dos_protocol import messages as m
from dos_protocol.errors import ErrorCode
from dos_protocol.limits import entries_max
from dos_server.limits import reads_queued_of_one_max, requests_in_flight_max
from tests.support.core_harness import Harness


def with_object() -> tuple[Harness, int]:
    server = Harness()
    writer = server.connect()
    server.ask(writer, m.ChangeDirectory("dir"))
    server.ask(writer, m.Append("o", 0, 0, b"a"))
    return server, writer


def reader(server: Harness) -> int:
    session = server.connect()
    server.ask(session, m.ChangeDirectory("dir"))
    return session


def test_beyond_the_budget_a_get_is_answered_at_once_and_each_connection_may_have_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # EVIDENCE-OF: P-9
    monkeypatch.setattr("dos_server.core.tables.waiting_total_max", 8)
    monkeypatch.setattr("dos_server.core.tables.waiting_of_one_min", 2)
    server, _ = with_object()
    get = m.Get("o", 1, 10, 60_000)
    greedy, modest = reader(server), reader(server)
    requests = [server.send(greedy, get) for _ in range(20)]
    answered = [server.answer(greedy, one) for one in requests]
    assert answered[:8] == [None] * 8
    assert all(one == m.Data("o", 1, 1, b"") for one in answered[8:])
    requests = [server.send(modest, get) for _ in range(3)]
    assert [server.answer(modest, one) is None for one in requests] == [True, True, False]
    server.end(greedy)
    assert len(server.core._tables.waiting) == 2, "those of a session that ended wait no more"
    server.tick(61.0)
    assert [server.answer(modest, one) for one in requests] == [m.Data("o", 1, 1, b"")] * 3
    assert not server.core._tables.waiting
    assert not server.core.wants_tick()


def test_many_that_waited_are_answered_in_parts_and_none_reads_more_than_it_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # EVIDENCE-OF: P-2, P-9, P-10
    monkeypatch.setattr("dos_server.core.requests.reads.woken_of_event_max", 10)
    server, writer = with_object()
    sessions = [reader(server) for _ in range(4)]
    requests = [
        (session, server.send(session, m.Get("o", 1, 10, 60_000))) for _ in range(40) for session in sessions
    ]
    server.send(writer, m.Append("o", 1, server.core._tables.find("dir", "o").fold.value, b"b"))
    server.finish()  # the sync
    begun = [effect for effect, _ in server.pending]
    assert len(begun) == 10, "of 160"
    for _ in range(100):
        of = server.core._tables.sessions
        assert all(of[session].reading <= reads_queued_of_one_max for session in sessions)
        server.settle()
        server.tick(0.05)
    assert [server.answer(*one) for one in requests] == [m.Data("o", 1, 2, b"b")] * 160
    assert not server.core.wants_tick()


@pytest.mark.parametrize("what", ["removed", "removed and made anew"])
def test_who_was_woken_and_not_answered_is_notified_that_the_object_was_removed(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    # EVIDENCE-OF: P-2
    monkeypatch.setattr("dos_server.core.requests.reads.woken_of_event_max", 1)
    server, writer = with_object()
    session = reader(server)
    requests = [server.send(session, m.Get("o", 1, 10, 60_000)) for _ in range(3)]
    server.send(writer, m.Append("o", 1, server.core._tables.find("dir", "o").fold.value, b"b"))
    server.settle()
    server.ask(writer, m.Delete("o"))
    if what == "removed and made anew":
        server.ask(writer, m.Append("o", 0, 0, b"another one"))
    for _ in range(5):
        server.tick(0.05)
        server.settle()
    first, *others = [server.answer(session, one) for one in requests]
    assert first == m.Data("o", 1, 2, b"b")
    codes = {one.code for one in others}
    assert codes <= {ErrorCode.NOT_FOUND, ErrorCode.BUSY}, others
    assert len(others) == 2


def test_the_next_one_waits_unread_when_a_session_has_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    # EVIDENCE-OF: P-9
    server, _ = with_object()
    session = reader(server)
    for _ in range(requests_in_flight_max):
        server.send(session, m.Get("o", 1, 10, 60_000))
    assert not server.core.may_read(session)
    server.tick(61.0)
    assert server.core.may_read(session)


def test_another_directory_is_not_opened_when_those_in_use_have_too_many_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # EVIDENCE-OF: P-8, P-9
    monkeypatch.setattr("dos_server.core.tables.objects_in_use_max", entries_max + 3)
    server = Harness()
    sessions = [server.connect() for _ in range(3)]
    first, second, third = sessions
    server.ask(first, m.ChangeDirectory("a"))
    for number in range(4):
        server.ask(first, m.Append(f"o{number}", 0, 0, b"x"))
    refused = server.ask(second, m.ChangeDirectory("b"))
    assert (refused.code, refused.actual) == (ErrorCode.BUSY, 0)
    assert server.ask(second, m.Ping(b"?")).payload == b"?", "the session is where it was, and usable"
    assert isinstance(server.ask(second, m.ChangeDirectory("a")), m.DirectoryOpened), "that is in memory"
    assert server.ask0(server.connect0(), "ub") is not None
    for session in (first, second):
        server.end(session)
    assert isinstance(server.ask(third, m.ChangeDirectory("b")), m.DirectoryOpened), "nobody uses a now"
    assert "a" not in server.core._tables.directories
    assert isinstance(server.ask(third, m.ChangeDirectory("a")), m.DirectoryOpened)
    assert server.ask(third, m.Get("o3", 0, 1)).payload == b"x"


def test_no_other_object_is_made_when_those_in_use_are_too_many_and_nothing_else_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # EVIDENCE-OF: P-8, P-9
    server = Harness()
    session = server.connect()
    server.ask(session, m.ChangeDirectory("a"))
    server.ask(session, m.Append("o", 0, 0, b"x"))
    monkeypatch.setattr("dos_server.core.tables.objects_in_use_max", 1)
    refused = server.ask(session, m.Append("p", 0, 0, b"x"))
    assert (refused.code, refused.actual) == (ErrorCode.BUSY, 1)
    assert server.ask(session, m.Stat("p")).code == ErrorCode.NOT_FOUND
    server.ask(session, m.Append("o", 1, server.core._tables.find("a", "o").fold.value, b"y"))
    assert server.unasked(session, m.DurabilityAck)[-1].synced == 2
    old = server.connect0("a")
    assert (server.ask0(old, "ap\t0") or b"").startswith(b"ERROR")
    server.ask(session, m.Delete("o"))
    server.ask(session, m.Append("p", 0, 0, b"x"))
    assert server.unasked(session, m.DurabilityAck)[-1].name == "p"
