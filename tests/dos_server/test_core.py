"""The core of the server, driven event by event on the fake disk: order, claims, refusals, poison."""

import errno

import pytest

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import ErrorCode
from dos_protocol.store_record import Member, StoreRecord, encode_store_record
from dos_server.core import vocabulary as v
from tests.support.core_harness import SERVER_ID, Harness
from tests.support.fake_disk import FakeDisk

W1, W2 = b"1" * 16, b"2" * 16


def append(content: bytes, payload: bytes, name: str = "o") -> m.Append:
    return m.Append(name, len(content), prefix_digest(content), payload)


def claimed(server: Harness, epoch: int = 1, writer: bytes = W1, directory: str = "dir") -> int:
    session = server.connect()
    opened = server.ask(session, m.ChangeDirectory(directory, claim=True, epoch=epoch, writer_id=writer))
    assert isinstance(opened, m.DirectoryOpened), opened
    return session


def code_of(answer: object) -> ErrorCode:
    assert isinstance(answer, m.Error), answer
    return ErrorCode(answer.code)


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


def test_a_failed_sync_poisons_and_nothing_more_is_acknowledged() -> None:
    # EVIDENCE-OF: P-1
    server = Harness()
    session = claimed(server)
    server.ask(session, append(b"", b"good"))
    server.disk.fail("sync", errno.EIO)
    first = server.send(session, append(b"good", b"lost"))
    second = server.send(session, append(b"goodlost", b"more"))
    server.settle()
    assert [code_of(server.answer(session, one)) for one in (first, second)] == [ErrorCode.POISONED] * 2
    assert code_of(server.ask(session, append(b"goodlostmore", b"x"))) == ErrorCode.POISONED
    assert code_of(server.ask(session, append(b"good", b"x"))) == ErrorCode.POISONED
    assert server.unasked(session, m.DurabilityAck) == [m.DurabilityAck("o", 4, 4)]
    info = server.ask(session, m.Stat("o")).info
    assert (info.synced, info.corrupt, info.poisoned) == (4, True, True)
    assert server.ask(session, m.Get("o", 0, 100)).payload == b"good"
    syncs = [call for call in server.disk.calls if call == ("sync", "d/dir/o")]
    assert len(syncs) == 2, "a failed sync is never tried again"


def test_after_a_failed_sync_a_restart_does_not_believe_the_cache() -> None:
    # EVIDENCE-OF: P-1, P-2
    server = Harness()
    session = claimed(server)
    server.ask(session, append(b"", b"good"))
    server.disk.fail("sync", errno.EIO)
    server.send(session, append(b"good", b"lost"))
    server.settle()
    server.disk.kill()
    server.start()
    session = claimed(server, 2, W2)
    opened = server.ask(session, m.List()).entries
    assert opened == (m.ObjectInfo("o", 4, 4, prefix_digest(b"good")),)
    server.ask(session, append(b"good", b"again"))
    assert server.unasked(session, m.DurabilityAck) == [m.DurabilityAck("o", 9, 9)]
    assert any(name.startswith(".torn.o.") for name in server.disk.names("d/dir") or [])


def test_a_claim_on_a_directory_with_a_poisoned_object_is_answered_and_reports_it() -> None:
    server = Harness()
    session = claimed(server)
    server.disk.fail("sync", errno.EIO)
    server.send(session, append(b"", b"lost"))
    server.settle()
    new = server.connect()
    opened = server.ask(new, m.ChangeDirectory("dir", claim=True, epoch=2, writer_id=W2))
    (info,) = opened.entries
    assert info.poisoned
    assert info.corrupt


def test_a_full_disk_refuses_whole_appends_and_continues_when_there_is_space() -> None:
    # EVIDENCE-OF: P-8
    disk = FakeDisk(space=4_000)
    server = Harness(disk)
    session = claimed(server)
    server.ask(session, append(b"", b"a" * 1000))
    used = disk.used
    first = server.send(session, append(b"a" * 1000, b"b" * 5000))
    behind = server.send(session, append(b"a" * 1000 + b"b" * 5000, b"c"))
    server.settle()
    assert code_of(server.answer(session, first)) == ErrorCode.NO_SPACE
    assert code_of(server.answer(session, behind)) == ErrorCode.SIZE_MISMATCH
    created = server.ask(session, append(b"", b"n" * 5000, "new"))
    assert code_of(created) == ErrorCode.NO_SPACE
    assert disk.used == used
    assert server.ask(session, m.Get("o", 0, 9999)).payload == b"a" * 1000
    assert [info.name for info in server.ask(session, m.List()).entries] == ["o"]
    disk.space = 1 << 30
    server.ask(session, append(b"a" * 1000, b"b" * 5000))
    server.ask(session, append(b"", b"n" * 5000, "new"))
    assert server.unasked(session, m.DurabilityAck)[-2:] == [
        m.DurabilityAck("o", 6000, 6000),
        m.DurabilityAck("new", 5000, 5000),
    ]


def test_a_write_of_unknown_effect_poisons() -> None:
    server = Harness()
    session = claimed(server)
    server.disk.fail("write", errno.EIO)
    assert code_of(server.ask(session, append(b"", b"x"))) == ErrorCode.POISONED


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
    ]
    server.settle()
    assert server.unasked(session, m.DurabilityAck) == [m.DurabilityAck("o", 1, 1)]


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


def test_damage_met_by_a_read_is_corrupt_and_stays_so() -> None:
    # EVIDENCE-OF: P-2
    server = Harness()
    session = claimed(server)
    server.ask(session, append(b"", b"a" * 100))
    server.ask(session, append(b"a" * 100, b"b" * 100))
    server.ask(session, append(b"a" * 100 + b"b" * 100, b"c" * 100))
    handle = server.disk.open("d/dir/o", create=False)
    server.disk.write(handle, 164 + 64 + 7, [b"X"])
    answer = server.ask(session, m.Get("o", 0, 1000))
    assert (code_of(answer), answer.actual) == (ErrorCode.CORRUPT, 100)
    assert server.ask(session, m.Get("o", 0, 1000)).payload == b"a" * 100
    assert code_of(server.ask(session, m.Get("o", 150, 10))) == ErrorCode.CORRUPT
    assert server.ask(session, m.Stat("o")).info.corrupt
    assert code_of(server.ask(session, append(b"x", b"y"))) == ErrorCode.CORRUPT
    assert code_of(server.ask(session, m.Stat("o", 200))) == ErrorCode.CORRUPT


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


def test_a_lost_connection_does_not_undo_what_was_accepted() -> None:
    server = Harness()
    session = claimed(server)
    server.send(session, append(b"", b"abc"))
    server.end(session)
    server.settle()
    again = claimed(server, 1, W1)
    assert server.ask(again, m.List()).entries == (m.ObjectInfo("o", 3, 3, prefix_digest(b"abc")),)


def record(generation: int, *, server: bytes = SERVER_ID, store: bytes = b"s" * 16) -> bytes:
    members = (Member(server, "a:1"), Member(b"x" * 16, "b:1"))
    return encode_store_record(StoreRecord(store, generation, 1, members))


def test_a_store_record_is_kept_and_only_a_newer_one_replaces_it() -> None:
    server = Harness()
    session = server.connect()
    assert (
        code_of(server.ask(server.connect(), m.Configure(record(1, server=b"y" * 16))))
        == ErrorCode.NOT_A_MEMBER
    )
    assert server.ask(session, m.Configure(record(1))) == m.Configured(1)
    assert server.ask(session, m.Configure(record(1))) == m.Configured(1)
    assert server.ask(session, m.Configure(record(2))) == m.Configured(2)
    for offered, code in (
        (record(1), ErrorCode.STALE_GENERATION),
        (record(3, store=b"t" * 16), ErrorCode.WRONG_STORE),
        (b"junk", ErrorCode.BAD_FRAME),
    ):
        other = server.connect()
        answer = server.ask(other, m.Configure(offered))
        assert code_of(answer) == code
        assert other in server.closed
    server.disk.kill()
    server.start()
    assert server.core.record_bytes == record(2)


def test_a_session_that_leaves_after_a_store_record_gets_its_bye_though_the_disk_fails() -> None:
    server = Harness()
    session = server.connect()
    server.disk.fail("write", errno.EIO)
    configured = server.send(session, m.Configure(record(1)))
    left = server.send(session, m.Quit())
    server.settle()
    assert code_of(server.answer(session, configured)) == ErrorCode.NO_SPACE
    assert isinstance(server.answer(session, left), m.Bye)
    assert session in server.closed


def test_a_newer_record_ends_the_sessions_of_the_older() -> None:
    server = Harness()
    admin = server.connect()
    server.ask(admin, m.Configure(record(1)))
    member = server.connect(m.Hello(store_id=b"s" * 16, generation=1))
    assert isinstance(server.heard[member][0][1], m.Welcome)
    server.ask(admin, m.Configure(record(2)))
    (told,) = server.unasked(member, m.Error)
    assert (code_of(told), told.record) == (ErrorCode.STALE_GENERATION, record(2))
    assert member in server.closed
    assert admin not in server.closed


@pytest.mark.parametrize(
    ("hello", "code"),
    [
        (m.Hello(version=2), ErrorCode.BAD_VERSION),
        (m.Hello(token=b"wrong"), ErrorCode.UNAUTHORISED),
        (m.Hello(token=b"secret", store_id=b"t" * 16, generation=1), ErrorCode.WRONG_STORE),
        (m.Hello(token=b"secret", store_id=b"s" * 16, generation=1), ErrorCode.STALE_GENERATION),
        (m.Hello(token=b"secret", store_id=b"s" * 16, generation=9), ErrorCode.STALE_GENERATION),
    ],
)
def test_a_hello_that_does_not_fit_is_refused_and_closed(hello: m.Hello, code: ErrorCode) -> None:
    server = Harness(token=b"secret")
    admin = server.connect(m.Hello(token=b"secret"))
    server.ask(admin, m.Configure(record(2)))
    session = server.connect(hello)
    ((_, answer),) = server.heard[session]
    assert code_of(answer) == code
    assert session in server.closed


def test_a_server_that_its_record_does_not_name_counts_for_nothing() -> None:
    server = Harness()
    admin = server.connect()
    server.ask(admin, m.Configure(record(1)))
    server.ask(admin, m.Configure(record(2, server=b"n" * 16)))
    session = server.connect(m.Hello(store_id=b"s" * 16, generation=2))
    assert code_of(server.heard[session][0][1]) == ErrorCode.NOT_A_MEMBER


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


def test_acknowledged_bytes_that_are_gone_after_a_restart_are_missed() -> None:
    # EVIDENCE-OF: P-2
    server = Harness()
    session = claimed(server)
    server.ask(session, append(b"", b"a" * 100))
    server.ask(session, append(b"a" * 100, b"b" * 100))
    server.ask(session, append(b"", b"c", "whole"))
    server.disk.kill()
    handle = server.disk.open("d/dir/o", create=False)
    server.disk.cut(handle, 164)
    server.disk.remove("d/dir/whole")
    server.start()
    session = claimed(server, 2, W2)
    infos = {info.name: info for info in server.ask(session, m.List()).entries}
    assert (infos["o"].synced, infos["o"].corrupt) == (100, True)
    assert (infos["whole"].synced, infos["whole"].corrupt) == (0, True)
    assert code_of(server.ask(session, m.Get("o", 100, 10))) == ErrorCode.CORRUPT


def test_a_block_in_another_ones_place_is_never_served() -> None:
    # EVIDENCE-OF: P-2
    server = Harness()
    session = claimed(server)
    for number in range(4):
        server.ask(session, append(b"x" * 100 * number, b"x" * 100))
    handle = server.disk.open("d/dir/o", create=False)
    first = server.disk.read(handle, 0, 164)
    server.disk.write(handle, 2 * 164, [first])
    answer = server.ask(session, m.Get("o", 0, 1000))
    assert (code_of(answer), answer.actual) == (ErrorCode.CORRUPT, 200)
    assert server.ask(session, m.Get("o", 0, 1000)).payload == b"x" * 200
