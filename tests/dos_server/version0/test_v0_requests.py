"""Requests of version 0 in the core: USE, GET, SYNC, LIST, and sessions that end at any moment."""

import random

import pytest

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import ErrorCode
from dos_server.core import vocabulary as v
from dos_server.core.object_state import ObjectState
from dos_server.core.requests.version0 import TABLE, V0Event, V0State, diagram, step
from tests.dos_server.version0.streams import reading, streaming, written
from tests.support.core_harness import Harness


def test_use_makes_the_directory_and_it_exists_after_a_power_cut() -> None:
    server = Harness()
    server.connect0("dir")
    for seed in range(5):
        server.disk.power_cut(random.Random(seed))
        server.start()
        listing = server.ask(server.connect(), m.List())
        assert [entry.name for entry in listing.entries] == ["dir"]


# Reading


def test_get_gives_durable_bytes_in_one_frame_however_many_pieces_it_takes() -> None:
    # EVIDENCE-OF: P-2
    server = Harness()
    content = bytes(range(251)) * 12_000  # above 2 MiB: three pieces
    written(server, "f", content)
    session = server.connect0("dir")
    assert server.ask0(session, "gf\t0\t0") == content
    assert server.ask0(session, "gf\t-5\t7") == content[:7]
    assert server.ask0(session, f"gf\t{len(content) - 3}\t100") == content[-3:]
    assert server.ask0(session, f"gf\t{len(content)}\t0") == b""
    assert server.ask0(session, "gf\t99999999999\t5") == b""
    assert server.ask0(session, "gf\t1000000\t1500000") == content[1_000_000:2_500_000]
    stream = streaming(server, "f", len(content))
    server.stream(stream, b"not synced")
    server.request(session, f"gf\t{len(content) - 1}\t0")
    index = next(i for i, (effect, _) in enumerate(server.pending) if isinstance(effect, v.ReadData))
    server.finish(index)
    assert server.replies(session) == [content[-1:]]


def test_a_get_of_nothing_or_of_damage_ends_the_connection_without_a_word() -> None:
    # EVIDENCE-OF: P-2
    server = Harness()
    content = bytes(range(250)) * 10_000
    written(server, "f", content)
    for body in ("gother\t0\t0", "gf\tx\t0", "gf\t0", "g..\t0\t0"):
        session = server.connect0("dir")
        assert server.ask0(session, body) is None
        assert session in server.closed
        assert server.notes[-1][0] == session
    handle = server.disk.open("d/dir/f", create=False)
    server.disk.write(handle, 1_500_000, [b"\xff"])
    session = server.connect0("dir")
    assert server.ask0(session, "gf\t0\t0") is None, "never a whole frame with wrong bytes"
    assert session in server.closed
    sent = bytes(server.bytes_heard[session])
    assert int.from_bytes(sent[:4], "big") == len(content)
    assert content.startswith(sent[4:])
    late = server.connect0("dir")
    assert server.ask0(late, "gf\t0\t1000000") == content[:1_000_000]
    assert server.ask0(late, "gf\t0\t0") is None
    assert server.bytes_heard[late] == b"", "damage that is known is refused before the first byte"


def test_what_does_not_fit_a_frame_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dos_server.core.requests.version0_wire.REPLY_BYTES_MAX", 4)
    server = Harness()
    written(server, "f", b"12345")
    session = server.connect0("dir")
    assert server.ask0(session, "gf\t1\t0") == b"2345"
    assert server.ask0(session, "gf\t0\t0") is None
    assert session in server.closed
    assert "do not fit" in server.notes[-1][1]


def test_a_file_changed_under_a_get_ends_it() -> None:
    # EVIDENCE-OF: P-2
    server = Harness()
    content = bytes(2_500_000)
    written(server, "f", content)
    reader, remover = server.connect0("dir"), server.connect0("dir")
    server.request(reader, "gf\t0\t0")
    server.finish()  # the first piece; the second is being read
    server.request(remover, "df")
    server.finish(1)  # the file goes
    assert server.replies(remover) == [b"ok"]
    put_again = streaming(server, "f")
    server.stream(put_again, bytes([1]) * 2_500_000)
    server.settle()
    assert server.replies(reader) == []
    assert reader in server.closed
    assert bytes(1_048_577).find(server.bytes_heard[reader][4:]) == 0, "nothing of the new file"


# s, l and the rest


def test_sync_is_answered_when_what_was_written_before_it_is_durable() -> None:
    # EVIDENCE-OF: P-1
    server = Harness()
    session, other = streaming(server), server.connect0("dir")
    server.stream(session, b"abc")
    server.request(other, "sf")
    assert server.replies(other) == []
    server.stream(session, b"defg")
    server.finish()
    assert server.replies(other) == [b"3\t3"]
    server.settle()
    server.request(other, "sf")
    assert server.replies(other) == [b"7\t7"]
    assert session not in server.closed


def test_the_list_is_sorted_and_tells_durable_sizes() -> None:
    server = Harness()
    for name in ("b", "a.2", "a", "B"):
        written(server, name, name.encode() * 3)
    session = streaming(server, "b", 3)
    other = server.connect0("dir")
    server.stream(session, b"in flight")
    server.request(other, "l")
    assert server.replies(other) == [b"B\t3\tno\na\t3\tno\na.2\t9\tno\nb\t3\tyes\n"]


@pytest.mark.parametrize("body", ["l", "df", "sf"])
def test_before_u_there_is_no_directory(body: str) -> None:
    server = Harness()
    session = server.connect0()
    assert server.ask0(session, body) == b"ERROR: no directory: u DIR comes first"
    assert server.ask0(session, "udir") == b"ok"
    assert server.ask0(server.connect0(), "gf\t0\t0") is None
    assert server.ask0(server.connect0(), "af\t0") == b"ERROR: no directory: u DIR comes first"


def test_an_empty_request_ends_the_connection() -> None:
    server = Harness()
    session = server.connect0("dir")
    assert server.ask0(session, b"") is None
    assert session in server.closed


def test_an_answer_that_is_due_is_given_to_a_client_that_sends_no_more() -> None:
    server = Harness()
    session = server.connect0("dir")
    server.request(session, "u" + "other")
    server.half_close(session)
    server.settle()
    assert server.replies(session) == [b"ok"]
    assert session in server.closed


@pytest.mark.parametrize(("token", "version0"), [(b"secret", True), (b"", False)])
def test_where_version_0_is_off_it_is_reported_once(token: bytes, version0: bool) -> None:
    server = Harness(token=token, version0=version0)
    session = server.connect0()
    reply = server.ask0(session, "udir")
    assert reply is not None
    assert reply.startswith(b"ERROR: ")
    assert session in server.closed
    assert server.disk.names("d") == []


def test_a_session_that_goes_at_any_moment_leaves_nothing_behind() -> None:
    # EVIDENCE-OF: P-9
    def lives(server: Harness) -> list[int]:
        written(server, "g", bytes(2_000_000))
        session = server.connect0()
        for body in ("udir", "l", "gg\t0\t0", "sg", "dg", "af\t0"):
            server.request(session, body)
            yield session
            if server.pending:
                server.finish()
                yield session
            server.settle()
        server.stream(session, b"abc")
        yield session
        server.half_close(session)
        yield session

    steps = len([*lives(Harness())])
    for stop in range(steps):
        server = Harness()
        for count, session in enumerate(lives(server)):
            if count == stop:
                server.end(session)
                break
        server.settle()
        server.tick(5.0)
        assert not server.core.wants_tick()
        answers = server.core._version0._answers
        assert not answers.sessions
        assert not answers.waiting
        tables = server.core._tables
        assert all(one.version == 1 for one in tables.sessions.values())
        directory = tables.directories.get("dir")
        assert directory is None or all(not one.being_appended for one in directory.objects.values())
        assert directory is None or all(one.settled for one in directory.objects.values())


# The table


def test_every_state_is_reached_and_can_end() -> None:
    reached = {V0State.COMMAND} | {after for row in TABLE.values() for after in row.values()}
    assert reached == set(V0State)
    assert all(row.get(V0Event.ENDED) is V0State.CLOSED for state, row in TABLE.items() if row)
    assert TABLE[V0State.CLOSED] == {}
    with pytest.raises(AssertionError, match="is not valid in state"):
        step(V0State.STREAMING, V0Event.REQUESTED)
    for state in V0State:
        assert state.name in diagram()


def test_objects_made_after_a_removal_have_another_version() -> None:
    # EVIDENCE-OF: P-2
    server = Harness()
    written(server, "f", b"old content")
    reader = reading(server)
    number = server.send(reader, m.Get("f", 0, 100))
    read = server.pending.pop()
    remover = server.connect0("dir")
    assert server.ask0(remover, "df") == b"ok"
    session = streaming(server)
    server.stream(session, b"new content")
    server.pending.append(read)
    server.finish(len(server.pending) - 1)
    answer = server.answer(reader, number)
    assert isinstance(answer, m.Error), "bytes that are not durable yet, of another object"
    assert answer.code == ErrorCode.BUSY
    state = server.core._tables.find("dir", "f")
    assert isinstance(state, ObjectState)
    assert state.corrupt_from is None
    assert prefix_digest(b"new content") == state.fold.value
