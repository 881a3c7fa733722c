"""Appends in the core, event by event on the fake disk: what is acknowledged when, and what is refused."""

import errno
from functools import partial
from typing import Final, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from dos_protocol import messages as m
from dos_protocol.digests import PrefixDigest, prefix_digest
from dos_protocol.errors import ErrorCode
from dos_protocol.frames import Frame
from dos_server.core import vocabulary as v
from dos_server.core.quotas import Quota
from dos_server.core.requests.appends import take_entries
from dos_server.limits import extent_payload_bytes_max
from tests.dos_server.core_requests import W1, W2, append, claimed, code_of, to_claim, writing
from tests.support.core_harness import Harness

_SLOT_BYTES: Final = 1 << 20
"""Of a group log."""


def test_nothing_is_reported_before_the_sync_has_ended() -> None:
    # EVIDENCE-OF: P-1
    server, session = writing()
    server.send(session, append(b"", b"hello"))
    assert server.unasked(session, m.DurabilityAck) == []
    (pending,) = server.pending
    assert isinstance(pending[0], v.Sync)
    server.finish()
    assert server.unasked(session, m.DurabilityAck) == [m.DurabilityAck("o", 5, 5)]


def test_a_sync_covers_only_what_was_written_before_it_began() -> None:
    # EVIDENCE-OF: P-1
    server, session = writing()
    server.send(session, append(b"", b"one"))
    server.send(session, append(b"one", b"two"))
    server.finish()
    assert server.unasked(session, m.DurabilityAck) == [m.DurabilityAck("o", 6, 3)]
    server.finish()
    assert server.unasked(session, m.DurabilityAck)[-1] == m.DurabilityAck("o", 6, 6)


def test_one_sync_serves_every_append_written_before_it() -> None:
    server, session = writing()
    server.send(session, append(b"", b"a"))
    for number in range(1, 50):
        server.send(session, append(b"a" * number, b"a"))
    server.settle()
    assert [one.synced for one in server.unasked(session, m.DurabilityAck)] == [1, 50]


def test_appends_of_one_batch_share_extents() -> None:
    server, session = writing()
    for number in range(10):
        server.send(session, append(b"a" * number, b"a"), ends_batch=False)
    server.event(v.BatchEnded())
    server.settle()
    handle = server.disk.open("d/dir/o", create=False)
    assert server.disk.size(handle) == 64 + 10


def test_received_is_reported_when_no_sync_ends_for_a_while() -> None:
    server, session = writing()
    server.send(session, append(b"", b"hello"))
    server.tick(0.05)
    assert server.unasked(session, m.DurabilityAck) == []
    assert server.core.wants_tick()
    server.tick(0.06)
    assert server.unasked(session, m.DurabilityAck) == [m.DurabilityAck("o", 5, 0)]
    assert not server.core.wants_tick()


def test_an_append_needs_the_exact_size_and_prefix() -> None:
    # EVIDENCE-OF: P-3, P-8
    server, session = writing(b"hello")
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
    server, session = writing(b"theirs")
    lost = server.send(session, append(b"", b"record"))
    behind = server.send(session, append(b"record", b"next"))
    assert code_of(server.answer(session, lost)) == ErrorCode.SIZE_MISMATCH
    assert code_of(server.answer(session, behind)) == ErrorCode.DIGEST_MISMATCH


def test_an_empty_append_makes_an_empty_object_and_asks_for_a_watermark() -> None:
    server, session = writing()
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
    server, session = writing()
    server.send(session, append(b"", b"abc"))
    server.end(session)
    server.settle()
    again = claimed(server, 1, W1)
    assert server.ask(again, m.List()).entries == (m.ObjectInfo("o", 3, 3, prefix_digest(b"abc")),)


# --- Appends handed over in runs end as they would one by one ----------------------------------------------


class AppendSpec(NamedTuple):
    """An append as a writer asks for it. `wrong_by`, `other_digest`: it is not what the object holds."""

    name: str
    count: int
    wrong_by: int
    other_digest: bool


append_specs = st.builds(
    AppendSpec,
    name=st.sampled_from(["o", "o", "o", "p", "not a name"]),
    count=st.sampled_from([0, 1, 100, 100, 100, 65_536, extent_payload_bytes_max + 1]),
    wrong_by=st.sampled_from([0, 0, 0, 0, 0, 0, 1]),
    other_digest=st.sampled_from([False] * 6 + [True]),
)


def frames_of(many: list[AppendSpec], folds: dict[str, PrefixDigest]) -> list[Frame]:
    """What a writer sends that believes all before was taken, but for those it got wrong."""
    frames = []
    for number, (name, count, wrong_by, other_digest) in enumerate(many, 100):
        fold = folds.setdefault(name, PrefixDigest())
        data = bytes([number % 256]) * count
        append = m.Append(name, fold.size + wrong_by, fold.value ^ other_digest, data)
        if not wrong_by and not other_digest and name != "not a name":
            fold.update(data)
        frames.append(m.encode(append, number))
    return frames


def lived(
    batches: list[list[AppendSpec]],
    *,
    runs: bool,
    claim: bool,
    log: bool,
    reserve_bytes: int,
    quota_bytes: int,
) -> tuple[object, ...]:
    """What a server tells and holds after the batches."""
    quotas = (Quota("dir", bytes_max=quota_bytes),) if quota_bytes else None
    server = Harness(reserve_bytes=reserve_bytes, slot_bytes=_SLOT_BYTES * log, quotas=quotas)
    server.event(v.SpaceSeen(4_000_000, 8_000_000, server.core.room_bytes))
    session = server.connect()
    server.ask(session, m.ChangeDirectory("dir", claim=claim, epoch=1, writer_id=b"w" * 16))
    folds: dict[str, PrefixDigest] = {}
    for batch in batches:
        frames = frames_of(batch, folds)
        if runs:
            server.event(v.ReceivedAppends(session, frames))
        else:
            for frame in frames:
                server.event(v.Received(session, frame))
        server.event(v.BatchEnded())
        server.settle()
    objects = server.core._tables.directories["dir"].objects
    at_end = server.core._tables.sessions[session]
    return (
        server.heard[session],
        {
            name: (state.info(), state.file_bytes, list(state.index._offsets))
            for name, state in objects.items()
        },
        (at_end.unsynced_bytes, at_end.unsynced_appends, at_end.wrote, session in server.closed),
        server.core.room_bytes,
        server.core._tables.quotas.usage_of("dir"),
    )


@given(
    batches=st.lists(st.lists(append_specs, max_size=12), max_size=4),
    claim=st.booleans(),
    log=st.booleans(),
    reserve_bytes=st.sampled_from([0, 3_900_000, 3_989_000]),
    quota_bytes=st.sampled_from([0, 0, 250, 70_000]),
)
def test_the_appends_of_a_read_end_as_one_by_one(
    batches: list[list[AppendSpec]], claim: bool, log: bool, reserve_bytes: int, quota_bytes: int
) -> None:
    lived_so = partial(
        lived, batches, claim=claim, log=log, reserve_bytes=reserve_bytes, quota_bytes=quota_bytes
    )
    assert lived_so(runs=True) == lived_so(runs=False)


def test_a_refused_append_among_others_of_a_read_is_answered_and_the_others_are_accepted() -> None:
    """A server that left it out in silence would let its writer wait for ever."""
    server, session = writing(b"one")
    server.ask(session, append(b"", b"uno", "p"))
    read = [
        append(b"one", b"two"),
        append(b"one", b"bad"),
        append(b"onetwo", b"!"),
        append(b"uno", b"?", "p"),
    ]
    server.event(v.ReceivedAppends(session, [m.encode(one, 50 + at) for at, one in enumerate(read)]))
    server.event(v.BatchEnded())
    server.settle()
    assert [(at, code_of(one)) for at, one in server.heard[session] if at >= 50] == [
        (51, ErrorCode.SIZE_MISMATCH)
    ]
    assert [server.ask(session, m.Stat(name)).info.synced for name in ("o", "p")] == [7, 4]


# --- A round: writes, one record of the group log, acks ----------------------------------------------------


def with_log() -> tuple[Harness, int]:
    server = Harness(slot_bytes=_SLOT_BYTES)
    return server, claimed(server)


def append_all(server: Harness, session: int, appends: list[m.Append]) -> None:
    """All of them in one round."""
    for one in appends:
        server.send(session, one, ends_batch=False)
    server.event(v.BatchEnded())


def test_no_append_of_a_round_is_acknowledged_before_the_record_is_synced() -> None:
    # EVIDENCE-OF: P-1
    server, session = with_log()
    append_all(server, session, [append(b"", b"1", name) for name in "abc"])
    (pending,) = server.pending
    assert isinstance(pending[0], v.WriteLog), "one record has them all"
    assert not server.unasked(session, m.DurabilityAck)
    assert server.ask_now(session, m.Stat("a")).info.synced == 0
    server.finish()
    assert server.unasked(session, m.DurabilityAck) == [m.DurabilityAck(name, 1, 1) for name in "abc"]


def test_a_writer_that_is_superseded_while_the_record_is_synced_gets_no_acks() -> None:
    server, session = with_log()
    append_all(server, session, [append(b"", b"1", name) for name in "abc"])
    newer = server.connect()
    claim = server.send(newer, to_claim(2, W2))
    server.settle()
    assert not server.unasked(session, m.DurabilityAck), (
        "it would count for sizes that the newer one has not read"
    )
    assert [one.synced for one in server.answer(newer, claim).entries] == [1, 1, 1]


def test_of_the_writes_of_a_round_each_succeeds_or_fails_alone() -> None:
    # EVIDENCE-OF: P-8
    server, session = with_log()
    append_all(server, session, [append(b"", b"1", name) for name in "abc"])
    server.settle()
    server.disk.fail_at("write", "d/dir/b", errno.ENOSPC)
    append_all(server, session, [append(b"1", b"2", name) for name in "abc"])
    server.settle()
    refused = [code_of(one) for _, one in server.heard[session] if isinstance(one, m.Error)]
    assert refused == [ErrorCode.NO_SPACE]
    assert [server.ask(session, m.Stat(name)).info.synced for name in "abc"] == [2, 1, 2]
    # as if it had never been: its bytes and its digest are gone, too
    append_all(server, session, [append(b"1", b"3", "b")])
    server.settle()
    assert server.ask(session, m.Get("b", 0, 10)).payload == b"13"


def test_a_session_that_quits_gets_the_acks_of_the_round_before_the_end() -> None:
    server, session = with_log()
    append_all(server, session, [append(b"", b"1", name) for name in "ab"])
    server.send(session, m.Quit())
    server.settle()
    assert [type(one) for _, one in server.heard[session]][-3:] == [m.DurabilityAck, m.DurabilityAck, m.Bye]


def test_a_run_is_taken_at_once_up_to_what_does_not_fit_it() -> None:
    server = Harness()
    session = server.connect()
    server.ask(session, m.ChangeDirectory("dir"))
    folds: dict[str, PrefixDigest] = {}
    right = AppendSpec("o", 100, 0, False)
    server.event(v.ReceivedAppends(session, frames_of([right], folds)))
    server.event(v.BatchEnded())
    server.settle()
    other, new = AppendSpec("p", 100, 0, False), AppendSpec("q", 100, 0, False)
    server.event(v.ReceivedAppends(session, frames_of([other], folds)))
    server.event(v.BatchEnded())
    server.settle()
    frames = frames_of([right] * 3 + [other, right, new, right], folds)
    one = server.core._tables.sessions[session]
    assert take_entries(server.core._tables, one, frames, 0) == 5
    assert one.unsynced_appends == 5
    assert take_entries(server.core._tables, one, frames, 5) == 5


def test_a_run_never_takes_for_one_object_what_is_for_another_with_the_same_content() -> None:
    server = Harness()
    session = server.connect()
    server.ask(session, m.ChangeDirectory("dir"))
    server.ask(session, m.Append("short", 0, 0, b"a"))
    server.ask(session, m.Append("long", 0, 0, b"aa"))
    once, twice = PrefixDigest(), PrefixDigest()
    once.update(b"a")
    twice.update(b"aa")
    run = [m.Append("short", 1, once.value, b"a"), m.Append("long", 2, twice.value, b"a")]
    server.event(v.ReceivedAppends(session, [m.encode(one, 100) for one in run]))
    server.event(v.BatchEnded())
    server.settle()
    assert [server.ask(session, m.Stat(name)).info.synced for name in ("short", "long")] == [2, 3]


def test_a_superseded_writer_gets_nothing_in_by_a_run() -> None:
    server = Harness()
    old = server.connect()
    server.ask(old, to_claim())
    folds: dict[str, PrefixDigest] = {}
    right = AppendSpec("o", 100, 0, False)
    server.event(v.ReceivedAppends(old, frames_of([right], folds)))
    server.event(v.BatchEnded())
    server.settle()
    new = server.connect()
    server.ask(new, to_claim(2, b"x" * 16))
    server.event(v.ReceivedAppends(old, frames_of([right] * 3, folds)))
    server.event(v.BatchEnded())
    server.settle()
    assert server.ask(new, m.Stat("o")).info.synced == 100


def test_a_run_of_a_session_that_is_gone_changes_nothing() -> None:
    server = Harness()
    server.event(v.ReceivedAppends(99, frames_of([AppendSpec("o", 100, 0, False)], {})))
    server.event(v.BatchEnded())
    server.settle()
    assert not server.heard.get(99)
