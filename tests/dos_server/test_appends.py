"""Appends in the core, event by event on the fake disk: what is acknowledged when, and what is refused."""

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import ErrorCode
from dos_server.core import vocabulary as v
from tests.dos_server.core_requests import W1, append, claimed, code_of
from tests.support.core_harness import Harness


def test_nothing_is_reported_before_the_sync_has_ended() -> None:
    # EVIDENCE-OF: P-1
    server = Harness()
    session = claimed(server)
    server.send(session, append(b"", b"hello"))
    assert server.unasked(session, m.DurabilityAck) == []
    (pending,) = server.pending
    assert isinstance(pending[0], v.Sync)
    server.finish()
    assert server.unasked(session, m.DurabilityAck) == [m.DurabilityAck("o", 5, 5)]


def test_a_sync_covers_only_what_was_written_before_it_began() -> None:
    # EVIDENCE-OF: P-1
    server = Harness()
    session = claimed(server)
    server.send(session, append(b"", b"one"))
    server.send(session, append(b"one", b"two"))
    server.finish()
    assert server.unasked(session, m.DurabilityAck) == [m.DurabilityAck("o", 6, 3)]
    server.finish()
    assert server.unasked(session, m.DurabilityAck)[-1] == m.DurabilityAck("o", 6, 6)


def test_one_sync_serves_every_append_written_before_it() -> None:
    server = Harness()
    session = claimed(server)
    server.send(session, append(b"", b"a"))
    for number in range(1, 50):
        server.send(session, append(b"a" * number, b"a"))
    server.settle()
    assert [one.synced for one in server.unasked(session, m.DurabilityAck)] == [1, 50]


def test_appends_of_one_batch_share_extents() -> None:
    server = Harness()
    session = claimed(server)
    for number in range(10):
        server.send(session, append(b"a" * number, b"a"), ends_batch=False)
    server.event(v.BatchEnded())
    server.settle()
    handle = server.disk.open("d/dir/o", create=False)
    assert server.disk.size(handle) == 64 + 10


def test_received_is_reported_when_no_sync_ends_for_a_while() -> None:
    server = Harness()
    session = claimed(server)
    server.send(session, append(b"", b"hello"))
    server.tick(0.05)
    assert server.unasked(session, m.DurabilityAck) == []
    assert server.core.wants_tick()
    server.tick(0.06)
    assert server.unasked(session, m.DurabilityAck) == [m.DurabilityAck("o", 5, 0)]
    assert not server.core.wants_tick()


def test_an_append_needs_the_exact_size_and_prefix() -> None:
    # EVIDENCE-OF: P-3, P-8
    server = Harness()
    session = claimed(server)
    server.ask(session, append(b"", b"hello"))
    before = server.disk.used
    wrong = server.ask(session, m.Append("o", 4, prefix_digest(b"hell"), b"x"))
    assert (code_of(wrong), wrong.actual) == (ErrorCode.SIZE_MISMATCH, 5)
    other = server.ask(session, m.Append("o", 5, prefix_digest(b"HELLO"), b"x"))
    assert (code_of(other), other.actual) == (ErrorCode.DIGEST_MISMATCH, prefix_digest(b"hello"))
    ahead = server.ask(session, m.Append("o", 6, prefix_digest(b"hello!"), b"x"))
    assert code_of(ahead) == ErrorCode.SIZE_MISMATCH
    assert server.disk.used == before
    assert server.ask(session, m.Get("o", 0, 100)).payload == b"hello"


def test_after_a_refusal_what_was_pipelined_after_it_is_refused_too() -> None:
    # EVIDENCE-OF: P-3
    server = Harness()
    session = claimed(server)
    server.ask(session, append(b"", b"theirs"))
    lost = server.send(session, append(b"", b"record"))
    behind = server.send(session, append(b"record", b"next"))
    assert code_of(server.answer(session, lost)) == ErrorCode.SIZE_MISMATCH
    assert code_of(server.answer(session, behind)) == ErrorCode.DIGEST_MISMATCH


def test_an_empty_append_makes_an_empty_object_and_asks_for_a_watermark() -> None:
    server = Harness()
    session = claimed(server)
    server.send(session, append(b"", b""))
    assert server.unasked(session, m.DurabilityAck) == []
    server.settle()
    assert server.unasked(session, m.DurabilityAck) == [m.DurabilityAck("o", 0, 0)]
    assert server.ask(session, m.List()).entries == (m.ObjectInfo("o"),)
    server.send(session, append(b"", b""))
    assert len(server.unasked(session, m.DurabilityAck)) == 2


def test_a_session_that_is_elsewhere_receives_no_watermark_of_what_it_left() -> None:
    """Its objects have the same names there: a watermark would be taken for theirs."""
    # EVIDENCE-OF: P-1
    server = Harness()
    session = server.connect()
    server.ask(session, m.ChangeDirectory("here"))
    server.ask(session, m.ChangeDirectory("there"))
    server.ask(session, m.ChangeDirectory("here"))
    server.send(session, append(b"", b"hello"))
    server.send(session, m.ChangeDirectory("there"))
    server.settle()
    server.tick(60.0)
    assert server.unasked(session, m.DurabilityAck) == []
    server.ask(session, m.ChangeDirectory("here"))
    server.ask(session, append(b"hello", b"!"))
    assert server.unasked(session, m.DurabilityAck) == [m.DurabilityAck("o", 6, 6)]


def test_the_entry_of_a_new_object_and_its_folders_are_durable_before_the_first_watermark() -> None:
    # EVIDENCE-OF: P-1
    server = Harness()
    session = server.connect()
    server.ask(session, m.ChangeDirectory("free"))
    server.disk.calls.clear()
    server.send(session, append(b"", b"x"))
    assert server.unasked(session, m.DurabilityAck) == []
    calls = [call for call in server.disk.calls if call[0] in {"write", "sync", "sync_folder"}]
    assert calls == [
        ("write", "d/free/o"),
        ("sync", "d/free/o"),
        ("sync_folder", "d/free"),
        ("sync_folder", "d"),
        ("write", "directories"),
        ("sync", "directories"),
        ("sync_folder", ""),
    ]
    server.settle()
    assert server.unasked(session, m.DurabilityAck) == [m.DurabilityAck("o", 1, 1)]


def test_a_lost_connection_does_not_undo_what_was_accepted() -> None:
    server = Harness()
    session = claimed(server)
    server.send(session, append(b"", b"abc"))
    server.end(session)
    server.settle()
    again = claimed(server, 1, W1)
    assert server.ask(again, m.List()).entries == (m.ObjectInfo("o", 3, 3, prefix_digest(b"abc")),)
