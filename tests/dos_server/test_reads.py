"""Reads in the core, event by event on the fake disk: GET, STAT, LIST, QUIT, and directories nobody uses."""

import pytest

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import ErrorCode
from tests.dos_server.core_requests import W1, W2, append, claimed, code_of
from tests.support.core_harness import Harness


def test_get_gives_only_what_is_durable_and_waits_for_more_when_asked() -> None:
    # EVIDENCE-OF: P-2
    server = Harness()
    session = claimed(server)
    server.ask(session, append(b"", b"hello"))
    server.send(session, append(b"hello", b" world"))
    reader = server.connect()
    server.send(reader, m.ChangeDirectory("dir"))
    waiting = server.send(reader, m.Get("o", 5, 100, 1000))
    past = server.send(reader, m.Get("o", 6, 100, 1000))
    end = server.send(reader, m.Get("o", 5, 100))
    assert server.answer(reader, end) == m.Data("o", 5, 5, b"")
    assert (code_of(server.answer(reader, past)), server.answer(reader, past).actual) == (
        ErrorCode.PAST_END,
        5,
    )
    assert server.answer(reader, waiting) is None
    server.settle()
    assert server.answer(reader, waiting) == m.Data("o", 5, 11, b" world")
    idle = server.send(reader, m.Get("o", 11, 100, 1000))
    server.tick(0.9)
    assert server.answer(reader, idle) is None
    server.tick(0.2)
    assert server.answer(reader, idle) == m.Data("o", 11, 11, b"")


def test_stat_gives_the_digest_of_any_durable_prefix() -> None:
    server = Harness()
    session = claimed(server)
    content = bytes(i % 253 for i in range(200_000))
    for start in range(0, len(content), 70_000):
        server.ask(session, append(content[:start], content[start : start + 70_000]))
    for at in (0, 1, 65_535, 65_536, 65_537, 70_000, 131_072, 199_999, 200_000):
        answer = server.ask(session, m.Stat("o", at))
        assert (answer.digest_at, answer.digest) == (at, prefix_digest(content[:at]))
    assert server.ask(session, m.Stat("o")).digest == 0
    assert code_of(server.ask(session, m.Stat("o", 200_001))) == ErrorCode.PAST_END


def test_list_gives_pages_of_directories_and_of_objects() -> None:
    server = Harness()
    for name in ("app.w0000", "app.w0001", "zoo"):
        session = claimed(server, 1, W1, name)
    for name in ("a", "b", "c"):
        server.ask(session, append(b"", b"x", name))
    fresh = server.connect()
    assert [one.name for one in server.ask(fresh, m.List("app.")).entries] == ["app.w0000", "app.w0001"]
    page = server.ask(session, m.List("", "", 2))
    assert ([one.name for one in page.entries], page.more) == (["a", "b"], True)
    page = server.ask(session, m.List("", "b", 2))
    assert ([one.name for one in page.entries], page.more) == (["c"], False)


def test_quit_is_answered_after_everything_before_it() -> None:
    server = Harness()
    session = claimed(server)
    server.send(session, append(b"", b"abc"))
    bye = server.send(session, m.Quit())
    assert server.answer(session, bye) is None
    server.settle()
    kinds = [type(message) for _, message in server.heard[session]][-2:]
    assert kinds == [m.DurabilityAck, m.Bye]
    assert session in server.closed


def test_directories_that_nobody_uses_are_forgotten_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    # EVIDENCE-OF: P-9
    monkeypatch.setattr("dos_server.core.tables.directories_loaded_max", 3)
    server = Harness()
    for number in range(10):
        session = claimed(server, 1, W1, f"dir{number}")
        server.ask(session, append(b"", b"x"))
        server.end(session)
    assert len(server.core._tables.directories) <= 3
    session = claimed(server, 2, W2, "dir0")
    assert server.ask(session, m.Get("o", 0, 9)).payload == b"x"
