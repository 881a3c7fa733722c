"""Requests of version 0 in the core: USE, GET, SYNC, LIST, and sessions that end at any moment."""

import errno
import random

import pytest

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import ErrorCode
from dos_server.core import vocabulary as v
from dos_server.core.object_state import ObjectState
from dos_server.core.requests.repairs import refuses as refuses_repair
from dos_server.core.requests.version0 import TABLE, V0Event, V0State, diagram, step
from dos_server.limits import version0_in_flight_batches_max, version0_in_flight_bytes_max
from tests.dos_server.core_requests import to_claim
from tests.dos_server.version0.streams import reading, streaming, written
from tests.support.core_harness import Harness
from tests.support.fake_disk import FakeDisk


def test_use_makes_the_directory_and_it_exists_after_a_power_cut() -> None:
    server = Harness()
    server.connect0("dir")
    for seed in range(5):
        server.lose_power(random.Random(seed))
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


# --- Streams of version 0 and their status frames, event by event on the fake disk with the test's ... -----


# Streams and their status


def test_a_stream_is_reported_nothing_within_the_first_second_and_the_truth_at_its_end() -> None:
    # EVIDENCE-OF: P-1
    server = Harness()
    session = streaming(server)
    server.stream(session, b"hello ")
    server.stream(session, b"world")
    server.half_close(session)
    assert server.replies(session) == []
    assert session not in server.closed
    server.settle()
    assert server.replies(session) == [b"11\t11"]
    assert session in server.closed
    assert server.ask(reading(server), m.Get("f", 0, 100)).payload == b"hello world"


def test_the_end_of_an_empty_stream_is_reported_too() -> None:
    server = Harness()
    written(server, "f", b"12345")
    session = streaming(server, "f", 5)
    server.half_close(session)
    assert server.replies(session) == [b"5\t5"]
    assert session in server.closed


def test_while_bytes_come_a_status_goes_out_a_second_after_the_last() -> None:
    server = Harness()
    session = streaming(server)
    for _ in range(25):
        server.tick(0.125)
        server.stream(session, b"x")
        server.settle()
    # each eighth byte comes a second after the last status; it is written then, and not yet synced
    assert server.replies(session) == [b"8\t7", b"16\t15", b"24\t23"]


def test_the_two_numbers_are_what_is_written_and_what_is_synced() -> None:
    # EVIDENCE-OF: P-1
    server = Harness()
    session = streaming(server)
    server.stream(session, b"x" * 100)
    server.tick(1.1)
    assert server.replies(session) == [b"100\t0"]
    server.stream(session, b"y" * 10)
    server.finish()
    server.tick(1.1)
    assert server.replies(session) == [b"110\t100"]
    server.settle()
    server.tick(0.5)
    assert server.replies(session) == []
    server.tick(0.6)
    assert server.replies(session) == [b"110\t110"]


def test_after_a_pause_of_a_second_what_is_new_is_reported_once_and_then_nothing() -> None:
    server = Harness()
    session = streaming(server)
    server.tick(10.0)
    assert server.replies(session) == []
    assert not server.core.wants_tick()
    server.stream(session, b"abc")
    assert server.replies(session) == [b"3\t0"], "the last one is ten seconds ago"
    server.settle()
    server.tick(0.9)
    assert server.replies(session) == []
    server.tick(0.2)
    assert server.replies(session) == [b"3\t3"]
    server.tick(5.0)
    assert server.replies(session) == []
    assert not server.core.wants_tick(), "a stream at rest costs no ticks"


def test_bytes_of_one_read_become_extents_of_a_quarter_mebibyte() -> None:
    server = Harness()
    session = streaming(server)
    server.stream(session, bytes(range(256)) * 2560)  # 640 KiB
    server.settle()
    handle = server.disk.open("d/dir/f", create=False)
    assert server.disk.size(handle) == 655_360 + 3 * 64
    data = server.ask(reading(server), m.Get("f", 300_000, 1000))
    assert data.payload == (bytes(range(256)) * 2560)[300_000:301_000]


@pytest.mark.parametrize("chunk_bytes", [1 << 20, 1])
def test_a_stream_is_not_read_while_too_much_of_it_is_unsynced(chunk_bytes: int) -> None:
    # EVIDENCE-OF: P-9
    server = Harness()
    session = streaming(server)
    chunk = bytes(chunk_bytes)
    taken = 0
    while server.core.may_read(session):
        server.stream(session, chunk)
        taken += len(chunk)
        assert taken <= min(version0_in_flight_bytes_max, version0_in_flight_batches_max * chunk_bytes)
    server.settle()
    assert server.core.may_read(session)


def test_nothing_is_read_while_a_request_is_being_answered() -> None:
    server = Harness()
    session = server.connect0()
    assert server.core.may_read(session)
    server.request(session, "udir")
    assert not server.core.may_read(session)
    server.settle()
    assert server.core.may_read(session)


def test_a_new_file_is_durable_before_its_append_is_answered() -> None:
    # EVIDENCE-OF: P-1
    server = Harness()
    session = server.connect0("dir")
    server.request(session, "af\t0")
    assert server.replies(session) == []
    server.finish()
    assert server.replies(session) == [b"ok"]
    server.lose_power(random.Random(1))
    assert server.ask0(server.connect0("dir"), "l") == b"f\t0\tno\n"


def test_nothing_is_reported_of_a_new_file_before_its_name_is_durable() -> None:
    """Not even that it has no bytes, by a session that did not make it; nobody else appends until it is."""
    # EVIDENCE-OF: P-1
    server = Harness()
    first, second, third = (server.connect0("dir") for _ in range(3))
    server.request(first, "af\t0")
    server.request(second, "sf")
    server.end(first)
    server.request(third, "af\t0")
    assert server.replies(second) == []
    assert server.replies(third) == [b"ERROR: another session appends to f"]
    server.settle()
    assert server.replies(second) == [b"0\t0"]
    assert server.ask0(server.connect0("dir"), "af\t0") == b"ok"


@pytest.mark.parametrize("offset", [0, 4, 6, 2**63 - 1])
def test_an_offset_that_is_not_the_size_is_refused_and_ends_the_connection(offset: int) -> None:
    # EVIDENCE-OF: P-3, P-8
    server = Harness()
    written(server, "f", b"12345")
    session = server.connect0("dir")
    assert server.ask0(session, f"af\t{offset}") == f"ERROR: f has 5 bytes, not {offset}".encode()
    assert session in server.closed
    assert server.ask0(server.connect0("dir"), "l") == b"f\t5\tno\n"


def test_a_refused_append_makes_no_file() -> None:
    # EVIDENCE-OF: P-8
    server = Harness()
    session = server.connect0("dir")
    assert server.ask0(session, "anew\t7") == b"ERROR: new has 0 bytes, not 7"
    assert server.ask0(server.connect0("dir"), "l") == b""


# --- Files of version 0 that are locked by a stream, and directories that are claimed ----------------------


# Locks


def test_a_file_is_locked_by_its_stream_in_its_directory_only_and_until_it_ends() -> None:
    server = Harness()
    first = streaming(server)
    other = server.connect0("dir")
    assert server.ask0(other, "af\t0") == b"ERROR: another session appends to f"
    assert other in server.closed
    elsewhere = streaming(server, "f", directory="dir2")
    assert server.ask0(server.connect0("dir"), "l") == b"f\t0\tyes\n"
    server.half_close(first)
    server.settle()
    assert server.ask0(server.connect0("dir"), "l") == b"f\t0\tno\n"
    assert server.ask0(server.connect0("dir2"), "l") == b"f\t0\tyes\n"
    server.end(elsewhere)
    assert server.ask0(server.connect0("dir2"), "l") == b"f\t0\tno\n"
    streaming(server, "f", directory="dir2")


def test_the_lock_of_a_stream_that_breaks_off_is_free_when_its_bytes_are_durable() -> None:
    # EVIDENCE-OF: P-1
    server = Harness()
    session = streaming(server)
    watcher, early = server.connect0("dir"), server.connect0("dir")
    server.stream(session, b"abc")
    server.end(session)
    server.request(watcher, "l")
    assert server.replies(watcher) == [b"f\t0\tyes\n"]
    server.request(early, "af\t3")
    assert server.replies(early) == [b"ERROR: another session appends to f"]
    server.settle()
    server.request(watcher, "l")
    assert server.replies(watcher) == [b"f\t3\tno\n"]
    streaming(server, "f", 3)


def test_versions_do_not_append_to_one_file_at_a_time() -> None:
    # EVIDENCE-OF: P-3
    server = Harness()
    one, zero, other = reading(server), streaming(server), server.connect0("dir")
    append = m.Append("f", 0, 0, b"x")
    assert server.ask(one, append).code == ErrorCode.BEING_APPENDED
    server.half_close(zero)
    server.settle()
    server.send(one, append)
    server.request(other, "af\t1")
    assert server.replies(other) == [b"ERROR: another session appends to f"]
    server.settle()
    streaming(server, "f", 1)


def test_no_new_copy_takes_the_place_of_a_file_that_is_locked() -> None:
    # EVIDENCE-OF: P-2
    server = Harness()
    session = streaming(server)
    server.settle()
    state = server.core._tables.find("dir", "f")
    request = m.RepairChunk("f", 0, 3, prefix_digest(b"abc"), 0, 0, overwrite=True, payload=b"abc")
    refusal = refuses_repair(state, request)
    assert refusal is not None
    assert refusal.code == ErrorCode.BEING_APPENDED
    server.end(session)
    assert refuses_repair(state, request) is None


# Claimed directories


def test_a_claimed_directory_is_read_only() -> None:
    # EVIDENCE-OF: P-4
    server = Harness()
    written(server, "f", b"12345")
    writer = server.connect()
    server.ask(writer, to_claim())
    session = server.connect0("dir")
    assert server.ask0(session, "l") == b"f\t5\tno\n"
    assert server.ask0(session, "gf\t0\t0") == b"12345"
    assert server.ask0(session, "sf") == b"5\t5"
    assert (server.ask0(session, "df") or b"").startswith(b"ERROR: directory dir is claimed")
    assert (server.ask0(session, "af\t5") or b"").startswith(b"ERROR: directory dir is claimed")
    assert session in server.closed
    assert server.ask0(server.connect0("dir"), "l") == b"f\t5\tno\n"


def test_a_claim_ends_the_streams_of_its_directory_and_tells_what_they_brought() -> None:
    # EVIDENCE-OF: P-4
    server = Harness()
    session, elsewhere = streaming(server), streaming(server, "f", directory="dir2")
    server.stream(session, b"abc")
    writer = server.connect()
    number = server.send(writer, to_claim())
    assert session in server.closed
    server.settle()
    (info,) = server.answer(writer, number).entries
    assert (info.synced, info.appending) == (3, False)
    assert server.replies(session) == [], "no error among status frames, no word after the claim"
    assert server.notes[-1][0] == session
    assert elsewhere not in server.closed


# --- Version 0 on a disk that fails or fills up ------------------------------------------------------------


# Failures of the disk


def test_a_failed_sync_ends_the_stream_without_a_word() -> None:
    # EVIDENCE-OF: P-1
    disk = FakeDisk()
    server = Harness(disk)
    session = streaming(server)
    disk.fail("sync", errno.EIO)
    server.stream(session, b"abc")
    server.half_close(session)
    server.settle()
    assert server.replies(session) == []
    assert session in server.closed
    late = server.connect0("dir")
    assert (server.ask0(late, "sf") or b"").startswith(b"ERROR: f is damaged")
    assert (server.ask0(late, "af\t0") or b"").startswith(b"ERROR: f is poisoned")


@pytest.mark.parametrize("then", ["bytes", "a pause", "the end"])
def test_a_file_found_damaged_below_its_stream_is_reported_no_more(then: str) -> None:
    # EVIDENCE-OF: P-2
    server = Harness()
    written(server, "f", bytes(5000))
    session, other = streaming(server, "f", 5000), server.connect0("dir")
    server.stream(session, b"abc")
    server.settle()
    server.disk.write(server.disk.open("d/dir/f", create=False), 1000, [b"\xff"])
    assert server.ask0(server.connect0("dir"), "gf\t0\t0") is None
    if then == "bytes":
        server.stream(session, b"defg")
    elif then == "a pause":
        server.tick(1.1)
    else:
        server.half_close(session)
    server.settle()
    assert server.replies(session) == []
    assert session in server.closed
    assert server.ask0(other, "l") == b"f\t0\tno\n", "no reported size includes the damage"


def test_a_full_disk_ends_the_stream_and_it_continues_when_there_is_space() -> None:
    # EVIDENCE-OF: P-8
    disk = FakeDisk()
    server = Harness(disk)
    session = streaming(server)
    server.stream(session, b"abc")
    server.settle()
    disk.space = disk.used + 100
    server.stream(session, bytes(5000))
    assert session in server.closed
    assert server.replies(session) == []
    server.end(session)
    server.settle()
    disk.space = 1 << 30
    assert server.ask0(server.connect0("dir"), "l") == b"f\t3\tno\n"
    session = streaming(server, "f", 3)
    server.stream(session, bytes(5000))
    server.half_close(session)
    server.settle()
    assert server.replies(session) == [b"5003\t5003"]


def test_a_file_that_cannot_be_made_is_refused_and_is_missing() -> None:
    # EVIDENCE-OF: P-8
    disk = FakeDisk()
    server = Harness(disk)
    session = server.connect0("dir")
    disk.fail("write", errno.ENOSPC)
    assert (server.ask0(session, "af\t0") or b"").startswith(b"ERROR: no space for f")
    assert session in server.closed
    assert server.ask0(server.connect0("dir"), "l") == b""


def test_a_directory_that_cannot_be_made_is_refused() -> None:
    disk = FakeDisk()
    server = Harness(disk)
    session = server.connect0()
    disk.fail("make_folder", errno.ENOSPC)
    assert (server.ask0(session, "udir") or b"").startswith(b"ERROR: directory dir cannot be made")
    assert server.ask0(session, "udir") == b"ok"


def test_sync_of_a_file_whose_sync_fails_is_an_error() -> None:
    disk = FakeDisk()
    server = Harness(disk)
    session, other = streaming(server), server.connect0("dir")
    disk.fail("sync", errno.EIO)
    server.stream(session, b"abc")
    server.request(other, "sf")
    server.settle()
    (reply,) = server.replies(other)
    assert reply.startswith(b"ERROR: f is damaged")
    assert other not in server.closed
