"""Files of version 0 that are locked by a stream, and directories that are claimed."""

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import ErrorCode
from dos_server.core.requests.repairs import refuses as refuses_mending
from tests.dos_server.version0.streams import reading, streaming, written
from tests.support.core_harness import Harness

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
    refusal = refuses_mending(state, request)
    assert refusal is not None
    assert refusal.code == ErrorCode.BEING_APPENDED
    server.end(session)
    assert refuses_mending(state, request) is None


# Claimed directories


def test_a_claimed_directory_is_read_only() -> None:
    # EVIDENCE-OF: P-4
    server = Harness()
    written(server, "f", b"12345")
    writer = server.connect()
    server.ask(writer, m.ChangeDirectory("dir", claim=True, epoch=1, writer_id=b"w" * 16))
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
    number = server.send(writer, m.ChangeDirectory("dir", claim=True, epoch=1, writer_id=b"w" * 16))
    assert session in server.closed
    server.settle()
    (info,) = server.answer(writer, number).entries
    assert (info.synced, info.appending) == (3, False)
    assert server.replies(session) == [], "no error among status frames, no word after the claim"
    assert server.notes[-1][0] == session
    assert elsewhere not in server.closed
