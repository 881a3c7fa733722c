"""Claims in the core, event by event on the fake disk: epochs, take-overs, and sessions without the claim."""

import errno
import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import ErrorCode
from dos_protocol.frames import encode_frame
from dos_server import embedded
from dos_server.core.files.extent import object_seed
from dos_server.core.files.records import ClaimRecord, encode_claim
from dos_server.core.files.recovery import judge
from tests.dos_server.core_requests import W1, W2, append, claimed, code_of, to_claim
from tests.dos_server.store_member import LONGER, StoreMember
from tests.support.core_harness import Harness
from tests.support.fake_disk import FakeDisk
from tests.support.wire import Wire


def test_a_claim_is_answered_only_when_it_is_durable() -> None:
    # EVIDENCE-OF: P-4
    server = Harness()
    session = server.connect()
    request = server.send(session, to_claim(3))
    server.finish()  # loaded
    assert server.answer(session, request) is None
    server.finish()  # stored
    assert server.answer(session, request) == m.DirectoryOpened(3, W1, ())
    server.restart()
    late = server.connect()
    refused = server.ask(late, to_claim(2, W2))
    assert (code_of(refused), refused.actual) == (ErrorCode.FENCED, 3)


def test_a_claim_waits_for_what_was_accepted_before_it_and_tells_the_final_sizes() -> None:
    # EVIDENCE-OF: P-4
    server = Harness()
    old = claimed(server, 1, W1)
    server.send(old, append(b"", b"last words"))
    new = server.connect()
    request = server.send(new, to_claim(2, W2))
    fenced = server.unasked(old, m.Error)
    assert [(code_of(one), one.actual) for one in fenced] == [(ErrorCode.FENCED, 2)]
    server.finish(1)  # the claim is stored; the sync still runs
    assert server.answer(new, request) is None
    server.finish(0)
    opened = server.answer(new, request)
    assert opened.entries == (m.ObjectInfo("o", 10, 10, prefix_digest(b"last words"), False, False, False),)
    assert server.unasked(old, m.DurabilityAck) == []


@pytest.mark.parametrize("ends", ["logged", "refused"])
def test_a_claim_with_a_log_waits_for_the_slow_write_before_it(ends: str) -> None:
    # EVIDENCE-OF: P-4
    server = Harness(slot_bytes=1 << 20)
    old = claimed(server, 1, W1)
    server.ask(old, append(b"", b"known"))
    server.settle()
    server.slow_writes = True
    server.send(old, append(b"known", b" last words"))
    new = server.connect()
    request = server.send(new, to_claim(2, W2))
    server.finish(1)  # the record that has the claim; the write still runs
    assert server.answer(new, request) is None
    if ends == "refused":
        server.disk.fail_at("write", "d/dir/o", errno.ENOSPC)
    server.finish(0)
    if ends == "logged":
        assert server.answer(new, request) is None, "the record with the last words is not synced"
        server.settle()
    (info,) = server.answer(new, request).entries
    assert info.synced == len(b"known last words" if ends == "logged" else b"known")


def test_a_superseded_writer_is_refused_for_ever_and_may_still_read() -> None:
    # EVIDENCE-OF: P-4, P-8
    server = Harness()
    old = claimed(server, 1, W1)
    server.ask(old, append(b"", b"mine"))
    claimed(server, 2, W2)
    answer = server.ask(old, append(b"mine", b"zombie"))
    assert (code_of(answer), answer.actual) == (ErrorCode.FENCED, 2)
    assert server.ask(old, m.Get("o", 0, 10)).payload == b"mine"
    again = server.ask(old, to_claim())
    assert code_of(again) == ErrorCode.FENCED
    assert code_of(server.ask(old, append(b"mine", b"zombie"))) == ErrorCode.FENCED


@pytest.mark.parametrize(
    ("epoch", "writer", "why"),
    [
        (4, W2, f"epoch 4 of dir is not above epoch 5, which is held by writer {W1.hex()}"),
        (5, W2, f"epoch 5 of dir is not above epoch 5, which is held by writer {W1.hex()}"),
        (0, W1, "epoch 0 of dir: epochs begin at 1"),
        (1048582, W2, "epoch 1048582 of dir is more than 1048576 above the held epoch 5"),
    ],
)
def test_epochs_that_are_lower_taken_zero_or_wild_are_refused(epoch: int, writer: bytes, why: str) -> None:
    # EVIDENCE-OF: P-4
    server = Harness()
    claimed(server, 5, W1)
    other = server.connect()
    answer = server.ask(other, to_claim(epoch, writer))
    assert (code_of(answer), answer.actual, answer.message) == (ErrorCode.FENCED, 5, why)
    assert code_of(server.ask(other, m.Stat("o"))) == ErrorCode.NOT_READY


def test_the_same_writer_may_claim_again_on_a_new_connection() -> None:
    server = Harness()
    first = claimed(server, 5, W1)
    server.ask(first, append(b"", b"abc"))
    second = claimed(server, 5, W1)
    assert code_of(server.ask(first, append(b"abc", b"d"))) == ErrorCode.FENCED
    server.ask(second, append(b"abc", b"d"))
    assert server.unasked(second, m.DurabilityAck) == [m.DurabilityAck("o", 4, 4)]


def test_of_two_claims_at_once_the_higher_wins_and_the_other_is_notified() -> None:
    server = Harness()
    a, b = server.connect(), server.connect()
    low = server.send(a, to_claim(2))
    high = server.send(b, to_claim(3, W2))
    server.settle()
    assert code_of(server.answer(a, low)) == ErrorCode.FENCED
    assert server.answer(b, high).epoch == 3


def test_a_session_without_the_claim_does_not_append_to_a_claimed_directory() -> None:
    server = Harness()
    claimed(server, 5, W1)
    reader = server.connect()
    assert server.ask(reader, m.ChangeDirectory("dir")).epoch == 5
    answer = server.ask(reader, append(b"", b"x"))
    assert (code_of(answer), answer.actual) == (ErrorCode.NOT_CLAIMED, 5)


def test_a_directory_nobody_claimed_takes_appends_until_somebody_does() -> None:
    server = Harness()
    session = server.connect()
    server.ask(session, m.ChangeDirectory("free"))
    server.ask(session, append(b"", b"abc"))
    assert server.unasked(session, m.DurabilityAck) == [m.DurabilityAck("o", 3, 3)]
    other = server.connect()
    server.ask(other, m.ChangeDirectory("free"))
    server.send(session, append(b"abc", b"d"))
    assert (
        code_of(server.answer(other, server.send(other, append(b"abcd", b"e")))) == ErrorCode.BEING_APPENDED
    )
    server.settle()
    server.ask(other, append(b"abcd", b"e"))
    claimed(server, 1, W1, "free")
    assert code_of(server.ask(session, append(b"abcde", b"f"))) == ErrorCode.FENCED


def test_requests_after_a_cwd_wait_for_it() -> None:
    server = Harness()
    session = server.connect()
    server.send(session, to_claim())
    server.send(session, append(b"", b"abc"))
    server.send(session, append(b"abc", b"def"))
    stat = server.send(session, m.Stat("o"))
    assert not server.core.may_read(session)
    server.settle()
    assert server.unasked(session, m.DurabilityAck)[-1] == m.DurabilityAck("o", 6, 6)
    assert code_of(server.answer(session, stat)) == ErrorCode.NOT_FOUND  # nothing of it was written yet then
    assert server.core.may_read(session)


def test_a_claim_that_cannot_be_stored_is_refused_and_still_fences() -> None:
    # EVIDENCE-OF: P-4
    server = Harness()
    old = claimed(server, 1, W1)
    new = server.connect()
    server.disk.fail("rename", errno.EIO)
    answer = server.ask(new, to_claim(2, W2))
    assert code_of(answer) == ErrorCode.POISONED
    assert code_of(server.ask(old, append(b"", b"x"))) == ErrorCode.FENCED
    again = server.ask(new, to_claim(2, W2))
    assert isinstance(again, m.DirectoryOpened)


def test_a_claim_that_could_not_be_stored_does_not_cost_the_one_that_came_after_it() -> None:
    # EVIDENCE-OF: P-4
    server = Harness()
    first, second = server.connect(), server.connect()
    server.disk.fail("rename", errno.EIO)
    server.send(first, to_claim())
    request = server.send(second, to_claim(2, W2))
    server.settle()
    assert isinstance(server.answer(second, request), m.DirectoryOpened)
    assert code_of(server.ask(first, append(b"", b"x"))) != ErrorCode.NO_SPACE
    server.start()
    assert server.ask(server.connect(), m.ChangeDirectory("dir")).epoch == 2


def test_an_unreadable_claim_closes_the_directory_and_no_other() -> None:
    server = Harness()
    claimed(server, 4, W1)
    handle = server.disk.open("d/dir/.claim", create=False)
    server.disk.write(handle, 9, [b"\xff"])
    server.restart()
    session = server.connect()
    for request in (
        m.ChangeDirectory("dir"),
        to_claim(9, W2),
    ):
        assert code_of(server.ask(session, request)) == ErrorCode.CORRUPT
    assert isinstance(server.ask(session, m.ChangeDirectory("other")), m.DirectoryOpened)


# --- A claim that is gone, or older than an extent of the directory: it can fence nobody, and is refused ---


def written(epoch: int = 2) -> Harness:
    """A server that is stopped, whose directory was written by two claims, one after the other."""
    server = Harness(FakeDisk())
    for number, content in ((1, b""), (epoch, b"old")):
        session = server.connect()
        assert isinstance(server.ask(session, to_claim(number)), m.DirectoryOpened)
        assert server.ask(session, append(content, b"old")) is None
    server.storage.stop()
    return server


@pytest.mark.parametrize("left", [None, ClaimRecord(1, b"w" * 16)])
def test_a_directory_whose_extents_are_newer_than_its_claim_is_refused_and_said_to_be(
    left: ClaimRecord | None, caplog: pytest.LogCaptureFixture
) -> None:
    # EVIDENCE-OF: P-4
    server = written()
    if left is None:
        server.disk.remove("d/dir/.claim")
    else:
        server.disk.put("d/dir/.claim", encode_claim(left))
    server.start()
    session = server.connect()
    for request in (to_claim(1), to_claim(3, b"x" * 16), m.ChangeDirectory("dir")):
        refused = server.ask(session, request)
        assert refused.code == ErrorCode.CORRUPT, request
        assert "epoch 2" in refused.message
    assert server.ask(session, append(b"oldold", b"late")).code == ErrorCode.NOT_READY
    (entry,) = server.ask(session, m.List()).entries
    assert (entry.name, entry.corrupt) == ("dir", True)
    assert "directory dir cannot be used" in caplog.text


def test_no_extent_is_of_a_claim_that_is_not_on_stable_storage_yet() -> None:
    """Bytes of the older writer are written while a newer claim is on its way to the disk; then a crash."""
    server = Harness(FakeDisk())
    old, new = server.connect(), server.connect()
    server.ask(old, to_claim(1))
    server.send(old, append(b"", b"accepted"), ends_batch=False)
    server.send(new, to_claim(2, b"x" * 16))  # its storing waits in `pending`, the batch is written
    assert server.disk.content("d/dir/o")
    server.restart()
    opened = server.ask(server.connect(), m.ChangeDirectory("dir"))
    assert isinstance(opened, m.DirectoryOpened), opened
    assert opened.epoch == 1


def test_a_new_copy_is_of_the_claim_that_is_stored() -> None:
    member = StoreMember()
    held = member.ask(member.reader(), m.ChangeDirectory("dir"))
    assert isinstance(held, m.DirectoryOpened)
    member.disk.fail("rename", 5)
    taker = member.reader()
    refused = member.ask(taker, to_claim(held.epoch + 5, b"n" * 16))
    assert isinstance(refused, m.Error)
    member.rot(150_000)
    assert isinstance(member.repair(member.reader(), LONGER, old=member.inspect()), m.RepairAck)
    member.restart()
    opened = member.ask(member.reader(), m.ChangeDirectory("dir"))
    assert isinstance(opened, m.DirectoryOpened), opened


def test_after_any_crash_the_claim_is_no_older_than_the_extents() -> None:
    """Claims, appends and power cuts in random order: a sound server never contradicts itself."""
    for seed in range(200):
        rng = random.Random(seed)
        server, epoch = Harness(FakeDisk()), 0
        newcomers = [server.connect() for _ in range(12)]
        sessions: list[int] = []
        sizes: dict[int, bytes] = {}
        for _ in range(12):
            if rng.random() < 0.4 or not sessions:
                epoch += rng.randrange(1, 4)
                sessions.append(newcomers.pop())
                server.send(sessions[-1], to_claim(epoch, rng.randbytes(16)))
            else:
                session = rng.choice(sessions)
                content = sizes.get(session, b"")
                server.send(session, append(content, b"x", f"o{session}"), ends_batch=rng.random() < 0.5)
                sizes[session] = content + b"x"
            while server.pending and rng.random() < 0.6:
                server.finish(rng.randrange(len(server.pending)))
        server.lose_power(rng)
        opened = server.ask(server.connect(), m.ChangeDirectory("dir"))
        assert isinstance(opened, m.DirectoryOpened), (seed, opened)


def test_the_walk_of_a_start_tells_the_highest_epoch() -> None:
    disk = written(epoch=7).disk
    data = disk.content("d/dir/o")
    found = judge(lambda at, count: data[at : at + count], len(data), object_seed("dir", "o"), None)
    assert found.epoch_max == 7


# --- Clients that go in the middle of an append, at every byte of it: the next one finds one ... -----------


FIRST, SECOND = b"a first append", b"and one behind it"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[embedded.EmbeddedServer]:
    with embedded.start(tmp_path / "data") as server:
        yield server


def append_frame(content: bytes, payload: bytes, request_id: int) -> bytes:
    return encode_frame(m.encode(m.Append("o", len(content), prefix_digest(content), payload), request_id))


def test_a_client_that_goes_at_any_byte_leaves_whole_appends_or_none(server: embedded.EmbeddedServer) -> None:
    # EVIDENCE-OF: P-1, P-3, P-8
    content, epoch = b"", 0
    sizes = set()
    bytes_of_both = len(append_frame(b"", FIRST, 9)) + len(append_frame(b"", SECOND, 10))
    for cut in range(bytes_of_both + 1):
        epoch += 1
        with Wire(server.address) as wire:
            wire.claim("dir", epoch)
            both = append_frame(content, FIRST, 9) + append_frame(content + FIRST, SECOND, 10)
            wire.sock.sendall(both[:cut])
            if cut % 2:  # by RST, else by FIN
                wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        epoch += 1
        with Wire(server.address) as wire:
            opened = wire.claim("dir", epoch)
            size, digest = next(((one.synced, one.digest) for one in opened.entries), (0, 0))
            possible = [content, content + FIRST, content + FIRST + SECOND]
            (content,) = [one for one in possible if (len(one), prefix_digest(one)) == (size, digest)]
            sizes.add(possible.index(content))
            wire.append("o", content, b".")
            wire.wait_synced("o", size + 1)
            content += b"."
            assert wire.ask(m.Get("o", 0, 1 << 20)).payload == content
    assert sizes == {0, 1, 2}


@pytest.mark.parametrize("sync_ends", ["before the new session", "after its claim is asked for"])
@pytest.mark.parametrize("step", range(5))
def test_a_session_that_ends_at_any_step_of_an_append_leaves_a_size_to_continue_from(
    step: int, sync_ends: str
) -> None:
    # EVIDENCE-OF: P-1, P-2
    server = Harness()
    session = server.connect()
    server.ask(session, to_claim())
    steps = [
        lambda: server.send(session, m.Append("o", 0, 0, FIRST), ends_batch=False),
        lambda: server.send(session, m.Append("o", len(FIRST), prefix_digest(FIRST), SECOND)),
        lambda: server.finish(),
        lambda: server.settle(),
    ]
    for one in steps[:step]:
        one()
    server.end(session)
    if sync_ends == "before the new session":
        server.settle()
    session = server.connect()
    request = server.send(session, to_claim(2, b"x" * 16))
    server.settle()
    opened = server.answer(session, request)
    content = FIRST + SECOND if step >= 2 else FIRST if step == 1 else b""
    listed = {info.name: (info.received, info.synced, info.digest) for info in opened.entries}
    if content:
        assert listed == {"o": (len(content), len(content), prefix_digest(content))}
    server.ask(session, m.Append("o", len(content), prefix_digest(content), b"."))
    assert server.unasked(session, m.DurabilityAck)[-1].synced == len(content) + 1
    assert server.ask(session, m.Get("o", 0, 100)).payload == content + b"."
