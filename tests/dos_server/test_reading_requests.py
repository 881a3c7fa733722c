"""GET that waits and STAT with the digest of any prefix: each line of protocol.md about them."""

import errno
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import ErrorCode
from dos_protocol.limits import get_wait_ms_max, payload_bytes_max
from dos_server.core.tables import WaitingRead, WaitingReads
from tests.dos_server.core_requests import W1, W2, append, code_of
from tests.dos_server.store_member import StoreMember
from tests.support.core_harness import Harness

CONTENT = random.Random(4).randbytes(300_000)


def claim(epoch: int = 1, writer: bytes = W1) -> m.ChangeDirectory:
    return m.ChangeDirectory("dir", claim=True, epoch=epoch, writer_id=writer)


def with_reader(content: bytes = b"hello") -> tuple[Harness, int, int]:
    """A server with an object, its writer's session, and a reader's."""
    server = Harness()
    writer, reader = server.connect(), server.connect()
    server.ask(writer, claim())
    server.ask(writer, append(b"", content))
    server.ask(reader, m.ChangeDirectory("dir"))
    return server, writer, reader


# GET


def test_a_get_that_waits_is_answered_by_the_first_bytes_that_are_durable() -> None:
    # EVIDENCE-OF: P-2
    server, writer, reader = with_reader()
    waits = [server.send(reader, m.Get("o", 5, size, 60_000)) for size in (3, 100)]
    server.send(writer, append(b"hello", b" world"))
    assert [server.answer(reader, one) for one in waits] == [None, None], "written, and not yet synced"
    server.settle()
    assert [server.answer(reader, one) for one in waits] == [
        m.Data("o", 5, 11, b" wo"),
        m.Data("o", 5, 11, b" world"),
    ]


def test_a_get_that_asks_for_no_bytes_or_below_the_end_does_not_wait() -> None:
    server, _, reader = with_reader()
    assert server.ask(reader, m.Get("o", 5, 0, 60_000)) == m.Data("o", 5, 5, b"")
    assert server.ask(reader, m.Get("o", 2, 0, 60_000)) == m.Data("o", 2, 5, b"")
    assert server.ask(reader, m.Get("o", 4, 100, 60_000)) == m.Data("o", 4, 5, b"o")
    assert code_of(server.ask(reader, m.Get("o", 6, 100, 60_000))) == ErrorCode.PAST_END
    assert code_of(server.ask(reader, m.Get("p", 0, 100, 60_000))) == ErrorCode.NOT_FOUND


@pytest.mark.parametrize(("asked_ms", "waited_s"), [(1, 0.001), (60_000, 60), (60_001, 60), (2**32 - 1, 60)])
def test_a_wait_ends_with_its_time_and_never_takes_longer_than_a_minute(
    asked_ms: int, waited_s: float
) -> None:
    server, _, reader = with_reader()
    assert get_wait_ms_max == 60_000
    began = server.now
    waiting = server.send(reader, m.Get("o", 5, 100, asked_ms))
    server.tick(waited_s * 0.99)
    assert server.answer(reader, waiting) is None
    server.now = began + waited_s  # this moment, not one later: a timer is set to it
    server.tick(0)
    assert server.answer(reader, waiting) == m.Data("o", 5, 5, b"")
    assert not server.core.wants_tick()


def test_a_sync_that_brings_no_bytes_does_not_begin_the_wait_anew() -> None:
    server = Harness()
    writer = server.connect()
    server.ask(writer, claim())
    server.send(writer, append(b"", b""))
    waiting = server.send(writer, m.Get("o", 0, 100, 1_000))
    server.tick(0.9)
    server.settle()
    assert server.answer(writer, waiting) is None
    server.tick(0.2)
    assert server.answer(writer, waiting) == m.Data("o", 0, 0, b"")


def test_a_wait_continues_through_a_claim_and_ends_with_the_new_writers_bytes() -> None:
    server, _, reader = with_reader()
    waiting = server.send(reader, m.Get("o", 5, 100, 60_000))
    taker = server.connect()
    server.ask(taker, claim(2, W2))
    assert server.answer(reader, waiting) is None
    server.ask(taker, append(b"hello", b"!"))
    assert server.answer(reader, waiting) == m.Data("o", 5, 6, b"!")


def test_the_wait_of_a_writer_continues_when_it_is_superseded() -> None:
    server, writer, _ = with_reader()
    waiting = server.send(writer, m.Get("o", 5, 100, 60_000))
    taker = server.connect()
    server.ask(taker, claim(2, W2))
    server.ask(taker, append(b"hello", b"!"))
    assert server.answer(writer, waiting) == m.Data("o", 5, 6, b"!")


@pytest.mark.parametrize("by_quit", [False, True])
def test_who_sends_no_more_gets_what_there_is_at_once(by_quit: bool) -> None:
    server, _, reader = with_reader()
    waiting = server.send(reader, m.Get("o", 5, 100, 60_000))
    if by_quit:
        bye = server.send(reader, m.Quit())
        assert server.heard[reader][-1] == (bye, m.Bye())
    else:
        server.half_close(reader)
    assert server.answer(reader, waiting) == m.Data("o", 5, 5, b"")
    assert reader in server.closed
    assert not server.core.wants_tick()


def test_a_wait_continues_when_its_session_looks_elsewhere() -> None:
    server, writer, reader = with_reader()
    waiting = server.send(reader, m.Get("o", 5, 100, 60_000))
    other = server.connect()
    server.ask(other, m.ChangeDirectory("elsewhere", claim=True, epoch=1, writer_id=W2))
    server.ask(other, append(b"", b"of another directory"))
    server.ask(reader, m.ChangeDirectory("elsewhere"))
    server.ask(writer, append(b"hello", b"!"))
    assert server.answer(reader, waiting) == m.Data("o", 5, 6, b"!")


def test_a_wait_ends_when_the_object_is_found_damaged_or_its_disk_fails() -> None:
    # EVIDENCE-OF: P-2
    server, writer, reader = with_reader()
    waiting = server.send(reader, m.Get("o", 5, 100, 60_000))
    server.disk.fail("sync", errno.EIO)
    server.ask(writer, append(b"hello", b"!"))
    assert code_of(server.answer(reader, waiting)) == ErrorCode.POISONED
    assert server.ask(reader, m.Get("o", 5, 100, 60_000)) == m.Data("o", 5, 5, b""), "nothing more will come"

    server, _, reader = with_reader()
    waiting = server.send(reader, m.Get("o", 5, 100, 60_000))
    server.disk.write(server.disk.open("d/dir/o", create=False), 66, [b"?"])
    assert code_of(server.ask(reader, m.Get("o", 0, 100))) == ErrorCode.CORRUPT
    answer = server.answer(reader, waiting)
    assert (code_of(answer), answer.actual) == (ErrorCode.CORRUPT, 0)
    assert code_of(server.ask(reader, m.Get("o", 5, 100, 60_000))) == ErrorCode.CORRUPT


def test_a_wait_is_answered_from_the_new_copy_of_a_repaired_object() -> None:
    member = StoreMember(b"short")
    reader = member.reader()
    waiting = member.send(reader, m.Get("o", 5, 100, 60_000))
    member.ask(
        member.reader(),
        m.RepairChunk(
            "o", 0, 12, prefix_digest(b"short longer"), 5, prefix_digest(b"short"), False, b"short longer"
        ),
    )
    assert member.answer(reader, waiting) == m.Data("o", 5, 12, b" longer")


def test_a_get_gives_no_more_than_one_payload_takes() -> None:
    content = CONTENT * 5
    server = Harness()
    session = server.connect()
    server.ask(session, claim())
    for start in range(0, len(content), 500_000):
        server.ask(session, append(content[:start], content[start : start + 500_000]))
    assert len(content) > payload_bytes_max
    for offset, most in ((0, 2**32 - 1), (7, payload_bytes_max), (len(content) - 3, 2**32 - 1), (65_535, 2)):
        answer = server.ask(session, m.Get("o", offset, most))
        assert 0 < len(answer.payload) <= min(most, payload_bytes_max)
        assert content[offset:].startswith(bytes(answer.payload))


def test_damage_that_is_found_while_a_sync_runs_is_remembered_and_nothing_above_it_is_acknowledged() -> None:
    # EVIDENCE-OF: P-2
    server, writer, reader = with_reader(CONTENT[:100_000])
    for start in (100_000, 200_000):
        server.ask(writer, append(CONTENT[:start], CONTENT[start : start + 100_000]))
    acks = server.unasked(writer, m.DurabilityAck)
    appending = server.send(writer, append(CONTENT, b"more"))
    server.disk.write(server.disk.open("d/dir/o", create=False), 64 + 100_000 + 70, [b"?"])
    reading = server.send(reader, m.Get("o", 100_000, 100))
    server.finish(1)  # the read ends while the sync still runs
    assert code_of(server.answer(reader, reading)) == ErrorCode.CORRUPT
    server.tick(1)
    server.settle()
    answer = server.answer(writer, appending)
    assert (code_of(answer), answer.actual) == (ErrorCode.CORRUPT, 100_000)
    assert server.unasked(writer, m.DurabilityAck) == acks, "a reported size covers everything below it"
    server.disk.kill()
    server.start()
    again = server.connect()
    (info,) = server.ask(again, m.ChangeDirectory("dir")).entries
    assert (info.synced, info.corrupt) == (0, True)


class WaitedFor:
    """An object, as far as waiting reads count on it."""

    waiters = 0


@given(st.randoms(use_true_random=False))
def test_each_waiting_get_is_found_once_by_object_session_or_deadline_and_leaves_nothing(
    rng: random.Random,
) -> None:
    # EVIDENCE-OF: P-9
    waiting, model = WaitingReads(), list[WaitingRead]()
    objects: list[Any] = [WaitedFor() for _ in range(3)]
    for number in range(rng.randrange(1, 60)):
        what, session, now = rng.choice(objects), rng.randrange(3), rng.choice([*range(100), 100])
        match rng.randrange(6):
            case 0:
                taken, gone = waiting.take_of_object(what), [one for one in model if one.state is what]
            case 1:
                taken, gone = (
                    waiting.take_of_session(session),
                    [one for one in model if one.session == session],
                )
            case 2:
                taken, gone = waiting.take_due(now), [one for one in model if one.deadline <= now]
            case _:
                taken, gone = [], []
                model.append(WaitingRead(what, session, number, m.Get("o", 0, 1), rng.randrange(100)))
                waiting.add(model[-1])
        assert taken == gone, "in order of arrival"
        model = [one for one in model if one not in gone]
        assert len(waiting) == len(model)
        for one in objects:
            assert one.waiters == sum(waiter.state is one for waiter in model)
        assert waiting._of_session.keys() == {one.session for one in model}
        assert waiting._of_object.keys() == {one.state for one in model}


# STAT


def test_stat_gives_the_digest_of_every_prefix_up_to_the_synced_size() -> None:
    server, writer, reader = with_reader(b"")
    done = 0
    for size in (1, 10, 65_524, 1, 65_536, 100_000, 68_928):
        server.ask(writer, append(CONTENT[:done], CONTENT[done : done + size]))
        done += size
    assert done == len(CONTENT)
    edges = [edge + by for edge in (0, 65_536, 131_072, 196_608, 262_144) for by in (-1, 0, 1)]
    for at in {*(edge for edge in edges if edge >= 0), 11, 100_000, done - 1, done}:
        answer = server.ask(reader, m.Stat("o", at))
        assert (answer.digest_at, answer.digest) == (at, prefix_digest(CONTENT[:at]))
        assert (answer.info.synced, answer.info.digest) == (done, prefix_digest(CONTENT))
    answer = server.ask(reader, m.Stat("o", done + 1))
    assert (code_of(answer), answer.actual) == (ErrorCode.PAST_END, done)
    answer = server.ask(reader, m.Stat("o", 2**64 - 2))
    assert (code_of(answer), answer.actual) == (ErrorCode.PAST_END, done)
    none = server.ask(reader, m.Stat("o", 2**64 - 1))
    assert (none.digest_at, none.digest, none.info.synced) == (2**64 - 1, 0, done)


def test_stat_of_bytes_that_are_not_synced_yet_is_past_the_end() -> None:
    server, writer, reader = with_reader()
    server.send(writer, append(b"hello", b" world"))
    answer = server.answer(reader, server.send(reader, m.Stat("o", 6)))
    assert (code_of(answer), answer.actual) == (ErrorCode.PAST_END, 5)
    info = server.answer(reader, server.send(reader, m.Stat("o"))).info
    assert (info.received, info.synced, info.appending) == (11, 5, True)
    assert info.digest == prefix_digest(b"hello"), "the entry's own digest is that at synced"
    server.settle()
    assert server.ask(reader, m.Stat("o", 11)).digest == prefix_digest(b"hello world")


def test_stat_of_an_empty_object_and_of_none() -> None:
    server, _, reader = with_reader(b"")
    assert server.ask(reader, m.Stat("o", 0)) == m.StatResult(m.ObjectInfo("o"), 0, 0)
    assert code_of(server.ask(reader, m.Stat("o", 1))) == ErrorCode.PAST_END
    assert code_of(server.ask(reader, m.Stat("p", 0))) == ErrorCode.NOT_FOUND


def test_stat_of_a_damaged_object_gives_digests_below_the_damage_and_no_other() -> None:
    # EVIDENCE-OF: P-2
    server, writer, reader = with_reader(CONTENT[:1000])
    server.ask(writer, append(CONTENT[:1000], CONTENT[1000:2000]))
    server.disk.write(server.disk.open("d/dir/o", create=False), 64 + 1000 + 64 + 500, [b"??"])
    assert code_of(server.ask(reader, m.Get("o", 1000, 1000))) == ErrorCode.CORRUPT
    for at in (0, 1, 999, 1000):
        assert server.ask(reader, m.Stat("o", at)).digest == prefix_digest(CONTENT[:at])
    answer = server.ask(reader, m.Stat("o", 1001))
    assert (code_of(answer), answer.actual) == (ErrorCode.CORRUPT, 1000)
