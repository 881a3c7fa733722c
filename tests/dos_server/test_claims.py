"""Claims in the core, event by event on the fake disk: epochs, take-overs, and sessions without the claim."""

import errno

import pytest

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import ErrorCode
from tests.dos_server.core_requests import W1, W2, append, claimed, code_of
from tests.support.core_harness import Harness


def test_a_claim_is_answered_only_when_it_is_durable() -> None:
    # EVIDENCE-OF: P-4
    server = Harness()
    session = server.connect()
    request = server.send(session, m.ChangeDirectory("dir", claim=True, epoch=3, writer_id=W1))
    server.finish()  # loaded
    assert server.answer(session, request) is None
    server.finish()  # stored
    assert server.answer(session, request) == m.DirectoryOpened(3, W1, ())
    server.disk.kill()
    server.start()
    late = server.connect()
    refused = server.ask(late, m.ChangeDirectory("dir", claim=True, epoch=2, writer_id=W2))
    assert (code_of(refused), refused.actual) == (ErrorCode.FENCED, 3)


def test_a_claim_waits_for_what_was_accepted_before_it_and_tells_the_final_sizes() -> None:
    # EVIDENCE-OF: P-4
    server = Harness()
    old = claimed(server, 1, W1)
    server.send(old, append(b"", b"last words"))
    new = server.connect()
    request = server.send(new, m.ChangeDirectory("dir", claim=True, epoch=2, writer_id=W2))
    fenced = server.unasked(old, m.Error)
    assert [(code_of(one), one.actual) for one in fenced] == [(ErrorCode.FENCED, 2)]
    server.finish(1)  # the claim is stored; the sync still runs
    assert server.answer(new, request) is None
    server.finish(0)
    opened = server.answer(new, request)
    assert opened.entries == (m.ObjectInfo("o", 10, 10, prefix_digest(b"last words"), False, False, False),)
    assert server.unasked(old, m.DurabilityAck) == []


def test_a_superseded_writer_is_refused_for_ever_and_may_still_read() -> None:
    # EVIDENCE-OF: P-4, P-8
    server = Harness()
    old = claimed(server, 1, W1)
    server.ask(old, append(b"", b"mine"))
    claimed(server, 2, W2)
    answer = server.ask(old, append(b"mine", b"zombie"))
    assert (code_of(answer), answer.actual) == (ErrorCode.FENCED, 2)
    assert server.ask(old, m.Get("o", 0, 10)).payload == b"mine"
    again = server.ask(old, m.ChangeDirectory("dir", claim=True, epoch=1, writer_id=W1))
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
    answer = server.ask(other, m.ChangeDirectory("dir", claim=True, epoch=epoch, writer_id=writer))
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
    low = server.send(a, m.ChangeDirectory("dir", claim=True, epoch=2, writer_id=W1))
    high = server.send(b, m.ChangeDirectory("dir", claim=True, epoch=3, writer_id=W2))
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
    server.send(session, m.ChangeDirectory("dir", claim=True, epoch=1, writer_id=W1))
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
    answer = server.ask(new, m.ChangeDirectory("dir", claim=True, epoch=2, writer_id=W2))
    assert code_of(answer) == ErrorCode.POISONED
    assert code_of(server.ask(old, append(b"", b"x"))) == ErrorCode.FENCED
    again = server.ask(new, m.ChangeDirectory("dir", claim=True, epoch=2, writer_id=W2))
    assert isinstance(again, m.DirectoryOpened)


def test_a_claim_that_could_not_be_stored_does_not_cost_the_one_that_came_after_it() -> None:
    # EVIDENCE-OF: P-4
    server = Harness()
    first, second = server.connect(), server.connect()
    server.disk.fail("rename", errno.EIO)
    server.send(first, m.ChangeDirectory("dir", claim=True, epoch=1, writer_id=W1))
    request = server.send(second, m.ChangeDirectory("dir", claim=True, epoch=2, writer_id=W2))
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
    server.disk.kill()
    server.start()
    session = server.connect()
    for request in (
        m.ChangeDirectory("dir"),
        m.ChangeDirectory("dir", claim=True, epoch=9, writer_id=W2),
    ):
        assert code_of(server.ask(session, request)) == ErrorCode.CORRUPT
    assert isinstance(server.ask(session, m.ChangeDirectory("other")), m.DirectoryOpened)
