"""Stamps of a server's disk, and what it keeps of those of other members (docs/decisions/0211)."""

import errno
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dos_protocol import messages as m
from dos_protocol.digests import digest64
from dos_protocol.errors import CorruptDataError, ErrorCode
from dos_protocol.store_record import (
    DiskStamp,
    Member,
    StoreRecord,
    decode_witnessed,
    encode_store_record,
)
from dos_server.core.requests.stamps import (
    History,
    decode_history,
    decode_witnesses,
    encode_history,
    encode_witnesses,
)
from dos_server.disk import replace_file
from dos_server.limits import stamp_seconds, stamps_kept_max
from tests.dos_server.core_requests import to_claim
from tests.support.core_harness import SERVER_ID, Harness

STORE, OTHER, THIRD = b"s" * 16, b"o" * 16, b"t" * 16
HELLO = m.Hello(store_id=STORE, generation=1)
FIVE, SIX = DiskStamp(5, b"5" * 16), DiskStamp(6, b"6" * 16)
ids = st.binary(min_size=16, max_size=16)
stamps = st.builds(DiskStamp, st.integers(1, 1 << 40), ids)


@pytest.fixture
def server() -> Harness:
    """A member of a store of three."""
    server = Harness()
    members = (Member(SERVER_ID, "h:1"), Member(OTHER, "h:2"), Member(THIRD, "h:3"))
    record = StoreRecord(STORE, 1, 2, members)
    assert isinstance(server.ask(server.connect(), m.Configure(encode_store_record(record))), m.Configured)
    return server


def newest_of(server: Harness) -> DiskStamp:
    session = server.connect(HELLO)
    answer = server.ask(session, m.Stamp())
    assert isinstance(answer, m.Stamped), answer
    return DiskStamp(answer.number, answer.stamp_id)


def made_by_a_newer_copy(server: Harness, number: int) -> DiskStamp:
    """Return a stamp of a copy of the disk, which has its key."""
    before = decode_history(server.disk.content("stamps") or b"")
    return before._replace(first=number, ids=()).made(SERVER_ID, b"a start of the other copy").newest


def welcome_of(server: Harness, hello: m.Hello = HELLO) -> m.Message:
    session = server.connect(hello)
    return server.heard[session][0][1]


def test_each_start_gives_the_disk_another_stamp_and_welcome_tells_it_to_sessions_of_the_store(
    server: Harness,
) -> None:
    first = newest_of(server)
    server.start()
    second = newest_of(server)
    assert second.number == first.number + 1
    assert second.stamp_id != first.stamp_id
    welcome, alone = welcome_of(server), welcome_of(server, m.Hello())
    assert isinstance(welcome, m.Welcome)
    assert isinstance(alone, m.Welcome)
    assert (welcome.stamp_number, welcome.stamp_id) == second
    assert (alone.stamp_number, alone.witnessed, alone.rolled_back) == (0, b"", False)


def test_a_granted_claim_makes_a_new_stamp_for_the_client_that_asks_next(server: Harness) -> None:
    session, writer = server.connect(HELLO), server.connect(HELLO)
    before = newest_of(server)
    assert newest_of(server) == before
    server.ask(writer, to_claim(1, directory="d"))
    assert server.ask(session, m.Stamp(*before)).number == before.number, "a proof makes none"
    server.send(session, m.Stamp())
    server.send(writer, to_claim(2, directory="d"))
    server.send(writer, m.Stamp())  # while the first one is being stored
    server.settle()
    assert before.number + 2 == newest_of(server).number
    assert decode_history(server.disk.content("stamps") or b"").newest == newest_of(server)


def test_a_disk_that_has_the_stamp_reports_it_and_continues(server: Harness) -> None:
    before = newest_of(server)
    server.start()
    session = server.connect(HELLO)
    assert server.ask(session, m.Stamp(*before)) == m.Stamped(*newest_of(server))
    assert server.ask(session, m.Ping(b"x")) == m.Pong(b"x")


@pytest.mark.parametrize("ahead", [0, 1, 1_000], ids=["another id", "the next number", "a far number"])
def test_a_disk_that_lacks_a_stamp_serves_its_store_no_more_not_even_after_a_start(
    server: Harness, ahead: int
) -> None:
    # EVIDENCE-OF: P-5
    other, session = server.connect(HELLO), server.connect(HELLO)
    alone = server.connect()
    missing = made_by_a_newer_copy(server, newest_of(server).number + ahead)
    answer = server.ask(session, m.Stamp(*missing))
    assert isinstance(answer, m.Error)
    assert (answer.code, answer.actual) == (ErrorCode.ROLLED_BACK, missing.number)
    assert {session, other} <= server.closed, "nobody may count what it said"
    assert server.ask(alone, m.Ping(b"x")) == m.Pong(b"x"), "people can look at what it has"
    assert any("went back in time" in one and "`dos store replace`" in one for one in server.warnings)
    server.settle()
    for _ in range(2):
        refused, probed = welcome_of(server), welcome_of(server, m.Hello())
        assert isinstance(refused, m.Error)
        assert refused.code == ErrorCode.ROLLED_BACK
        assert isinstance(probed, m.Welcome)
        assert probed.rolled_back
        server.start()


def test_a_stamp_is_reported_when_it_is_durable_and_an_old_one_is_replaced_when_somebody_asks(
    server: Harness,
) -> None:
    first = newest_of(server)
    server.now += stamp_seconds - 1
    assert newest_of(server) == first
    server.now += 2
    session = server.connect(HELLO)
    request = server.send(session, m.Stamp())
    assert request not in [number for number, _ in server.heard[session]]
    assert newest_of(server) == first, "the one that is on stable storage"
    server.settle()
    second = decode_history(server.disk.content("stamps")).newest
    assert (request, m.Stamped(*second)) in server.heard[session]
    assert second.number == first.number + 1
    server.start()
    assert server.ask(server.connect(HELLO), m.Stamp(*second)) == m.Stamped(*newest_of(server))


def test_a_disk_without_a_stamp_of_its_own_keeps_none_of_others(server: Harness) -> None:
    server.disk.remove("stamps")
    server.disk.fail("write", errno.ENOSPC)
    server.start()
    refused = server.ask(server.connect(HELLO), m.Witness(OTHER, *FIVE))
    assert isinstance(refused, m.Error)
    assert "the first stamp of this disk" in refused.message
    server.start()
    assert server.ask(server.connect(HELLO), m.Witness(OTHER, *FIVE)) == m.Witnessed(OTHER, *FIVE)


def test_a_stamp_that_cannot_be_stored_is_not_told(server: Harness) -> None:
    first = newest_of(server)
    server.now += stamp_seconds + 1
    server.disk.fail("sync", errno.ENOSPC)
    assert newest_of(server) == first
    server.disk.fail("write", errno.ENOSPC)
    server.start()
    assert newest_of(server) == first, "a full disk starts with the stamps that it has"


def test_a_witness_keeps_the_newest_stamp_and_only_in_the_place_of_the_one_that_was_proved(
    server: Harness,
) -> None:
    session = server.connect(HELLO)
    assert server.ask(session, m.Witness(OTHER, *FIVE)) == m.Witnessed(OTHER, *FIVE)
    assert server.ask(session, m.Witness(OTHER, *SIX)) == m.Witnessed(OTHER, *FIVE), "five is not proved"
    wrong = m.Witness(OTHER, *SIX, 5, b"x" * 16)
    assert server.ask(session, wrong) == m.Witnessed(OTHER, *FIVE)
    assert server.ask(session, m.Witness(OTHER, *SIX, *FIVE)) == m.Witnessed(OTHER, *SIX)
    server.ask(session, m.Witness(THIRD, *FIVE))
    server.start()
    welcome = welcome_of(server)
    assert isinstance(welcome, m.Welcome)
    assert decode_witnessed(welcome.witnessed) == {OTHER: SIX, THIRD: FIVE}


def test_what_many_tell_at_once_is_kept_one_after_the_other(server: Harness) -> None:
    sessions = [server.connect(HELLO) for _ in range(4)]
    requests = [
        server.send(sessions[0], m.Witness(OTHER, *FIVE)),
        server.send(sessions[1], m.Witness(OTHER, *SIX)),
        server.send(sessions[2], m.Witness(THIRD, *FIVE)),
        server.send(sessions[3], m.Witness(OTHER, *SIX, *FIVE)),
    ]
    server.settle()
    answers = [dict(server.heard[one])[number] for one, number in zip(sessions, requests, strict=True)]
    kept = [FIVE, FIVE, FIVE, SIX]
    assert answers == [
        m.Witnessed(one, *stamp) for one, stamp in zip([OTHER, OTHER, THIRD, OTHER], kept, strict=True)
    ]
    assert decode_witnesses(server.disk.content("witnessed")) == {OTHER: SIX, THIRD: FIVE}


def test_what_cannot_be_kept_is_refused_and_the_next_one_is_kept(server: Harness) -> None:
    session = server.connect(HELLO)
    server.disk.fail("sync", errno.ENOSPC)
    first = server.send(session, m.Witness(OTHER, *FIVE))
    second = server.send(session, m.Witness(THIRD, *FIVE))
    server.settle()
    heard = dict(server.heard[session])
    refusal = heard[first]
    assert isinstance(refusal, m.Error)
    assert refusal.code == ErrorCode.NO_SPACE
    assert heard[second] == m.Witnessed(THIRD, *FIVE)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (m.Witness(b"x" * 16, *FIVE), ErrorCode.NOT_A_MEMBER),
        (m.Witness(SERVER_ID, *FIVE), ErrorCode.BAD_FRAME),
        (m.Witness(OTHER, 0, b"5" * 16), ErrorCode.BAD_FRAME),
    ],
    ids=["of no member", "of itself", "of no stamp"],
)
def test_what_is_no_stamp_of_another_member_is_refused(
    server: Harness, message: m.Message, code: ErrorCode
) -> None:
    answer = server.ask(server.connect(HELLO), message)
    assert isinstance(answer, m.Error)
    assert answer.code == code


@pytest.mark.parametrize("message", [m.Stamp(9, b"9" * 16), m.Witness(OTHER, *FIVE)])
def test_a_session_of_no_store_changes_nothing(server: Harness, message: m.Message) -> None:
    answer = server.ask(server.connect(), message)
    assert isinstance(answer, m.Error)
    assert newest_of(server).number == 1
    assert not isinstance(welcome_of(server), m.Error)


def test_members_that_are_gone_are_forgotten(server: Harness) -> None:
    session = server.connect(HELLO)
    server.ask(session, m.Witness(OTHER, *FIVE))
    members = (Member(SERVER_ID, "h:1"), Member(THIRD, "h:3"))
    server.ask(server.connect(), m.Configure(encode_store_record(StoreRecord(STORE, 2, 2, members))))
    session = server.connect(m.Hello(store_id=STORE, generation=2))
    server.ask(session, m.Witness(THIRD, *SIX))
    assert decode_witnesses(server.disk.content("witnessed")) == {THIRD: SIX}


@given(st.lists(ids, unique=True, max_size=40), st.integers(0, 45), stamps)
def test_a_history_knows_exactly_its_own_stamps(
    given_ids: list[bytes], number: int, other: DiskStamp
) -> None:
    history = History()
    had = []
    for one in given_ids:
        history = history.grown(one)
        had.append(history.newest)
    assert [stamp.number for stamp in had] == list(range(1, len(given_ids) + 1))
    assert not any(history.lacks(stamp) for stamp in had)
    assert history.lacks(DiskStamp(len(given_ids) + 1, b"n" * 16))
    if number and other.stamp_id not in given_ids:
        assert history.lacks(DiskStamp(number, other.stamp_id))
    assert decode_history(encode_history(history)) == history
    marked = history._replace(missing=other)
    assert decode_history(encode_history(marked)) == marked


def test_of_stamps_older_than_all_that_are_kept_nothing_is_reported() -> None:
    history = History()
    for number in range(1, stamps_kept_max + 3):
        history = history.grown(number.to_bytes(16, "big"))
    assert len(history.ids) == stamps_kept_max
    assert history.newest == DiskStamp(stamps_kept_max + 2, (stamps_kept_max + 2).to_bytes(16, "big"))
    assert history.first == 3
    assert not history.lacks(DiskStamp(2, b"x" * 16))
    assert history.lacks(DiskStamp(3, b"x" * 16))
    assert not history.lacks(DiskStamp(3, (3).to_bytes(16, "big")))
    assert decode_history(encode_history(history)) == history


@pytest.mark.parametrize("data", [b"x", b"x" * 41, (b"s" * 16 + bytes(24)) * 2], ids=["1", "41", "twice"])
def test_entries_are_whole_and_one_a_server(data: bytes) -> None:
    body = encode_witnesses({})[:4] + data
    with pytest.raises(CorruptDataError, match="whole entries"):
        decode_witnesses(body + digest64(body).to_bytes(8, "big"))


# --- Stamps have a MAC: a client cannot make a server believe that its disk went back ... ------------------


__all__ = ["server"]

OLD = History(first=3, ids=(b"3" * 16, b"4" * 16))
"""Of the version without MACs."""


def history_of(server: Harness) -> History:
    return decode_history(server.disk.content("stamps") or b"")


def announced(server: Harness, stamp: DiskStamp) -> m.Message:
    answer: m.Message = server.ask(server.connect(HELLO), m.Stamp(*stamp))
    server.settle()
    return answer


def is_rolled_back(answer: m.Message) -> bool:
    return isinstance(answer, m.Error) and answer.code == ErrorCode.ROLLED_BACK


def upgraded(server: Harness) -> DiskStamp:
    """Its disk has stamps without MACs, and this version starts on it. Returns the stamp of this start."""
    replace_file(server.disk, "", "stamps", encode_history(OLD))
    server.start()
    return newest_of(server)


def random_id(server: Harness) -> DiskStamp:
    return DiskStamp(newest_of(server).number, b"f" * 16)


def random_next(server: Harness) -> DiskStamp:
    return DiskStamp(newest_of(server).number + 1, b"f" * 16)


def known_id_under_the_next_number(server: Harness) -> DiskStamp:
    number, stamp_id = newest_of(server)
    return DiskStamp(number + 1, stamp_id)


def known_id_under_the_last_number(server: Harness) -> DiskStamp:
    return DiskStamp(2**64 - 1, newest_of(server).stamp_id)


def known_mac_with_another_half(server: Harness) -> DiskStamp:
    number, stamp_id = newest_of(server)
    return DiskStamp(number, bytes(8) + stamp_id[8:])


def of_another_server_with_the_key(server: Harness) -> DiskStamp:
    return history_of(server).made(b"o" * 16, b"x" * 16).newest


def of_a_version_without_macs(server: Harness) -> DiskStamp:
    return OLD.newest


FORGERIES: list[Callable[[Harness], DiskStamp]] = [
    *(random_id, random_next, known_id_under_the_next_number, known_id_under_the_last_number),
    *(known_mac_with_another_half, of_another_server_with_the_key, of_a_version_without_macs),
]


@pytest.mark.parametrize("forge", FORGERIES, ids=lambda one: one.__name__)
def test_a_stamp_that_the_disk_never_made_is_ignored_and_audited(
    server: Harness, forge: Callable[[Harness], DiskStamp]
) -> None:
    # EVIDENCE-OF: P-5
    for _ in range(4):
        server.start()
    server.audited.clear()
    other, stored = server.connect(HELLO), server.disk.content("stamps")
    forged = forge(server)
    for _ in range(3):
        assert announced(server, forged) == m.Stamped(*newest_of(server))
    assert server.ask(other, m.Ping(b"x")) == m.Pong(b"x")
    assert server.disk.content("stamps") == stored
    assert [one.action for one in server.audited] == [
        "ignored: a stamp of this server that its disk never made"
    ], "once a minute"
    server.start()
    assert announced(server, forged) == m.Stamped(*newest_of(server))


def test_a_backup_that_has_its_key_is_still_detected(server: Harness) -> None:
    # EVIDENCE-OF: P-5
    backup = server.disk.content("stamps")
    server.start()
    server.start()
    seen = newest_of(server)
    replace_file(server.disk, "", "stamps", backup or b"")
    server.start()
    assert is_rolled_back(announced(server, seen))
    assert history_of(server).missing == seen


@pytest.mark.parametrize("seen", [OLD.newest._replace(number=5), DiskStamp(4, b"x" * 16)])
def test_a_copy_from_before_the_upgrade_is_detected_by_stamps_without_a_mac(
    server: Harness, seen: DiskStamp
) -> None:
    newest = upgraded(server)
    assert newest.number == 5
    assert announced(server, OLD.newest) == m.Stamped(*newest), "what it had stays valid"
    assert is_rolled_back(announced(server, seen))


def test_a_copy_from_before_the_upgrade_is_detected_by_the_stamps_of_the_key_that_it_lacks(
    server: Harness,
) -> None:
    # EVIDENCE-OF: P-5
    upgraded(server)
    server.start()
    seen = newest_of(server)
    assert seen.number == 6
    upgraded(server)
    assert not history_of(server).has_made(SERVER_ID, seen)
    assert is_rolled_back(announced(server, seen))


@pytest.mark.parametrize("after", ["", "a start"])
def test_after_the_upgrade_a_key_is_proven_when_a_client_returns_a_stamp_of_it(
    server: Harness, after: str
) -> None:
    newest = upgraded(server)
    announced(server, OLD.newest)
    assert not history_of(server).proven
    announced(server, newest)
    assert history_of(server).proven
    if after:
        server.start()
    assert announced(server, DiskStamp(9, b"9" * 16)) == m.Stamped(*newest_of(server))


def test_without_its_stamps_a_disk_has_a_new_key_and_believes_every_stamp(server: Harness) -> None:
    server.start()
    seen, key = newest_of(server), history_of(server).key
    server.disk.remove("stamps")
    server.start()
    now = history_of(server)
    assert (now.first, len(now.ids), now.proven) == (1, 1, False)
    assert now.key != key
    assert is_rolled_back(announced(server, seen))


def test_the_verdict_is_stored_after_a_stamp_that_is_being_stored(server: Harness) -> None:
    server.now += stamp_seconds + 1
    newest = newest_of(server)
    missing = made_by_a_newer_copy(server, newest.number + 7)
    first, second = server.connect(HELLO), server.connect(HELLO)
    server.now += stamp_seconds + 1
    server.send(first, m.Stamp())
    server.send(second, m.Stamp(*missing))
    assert len(server.pending) == 1, "two writes of one file at once could mix"
    server.settle()
    stored = history_of(server)
    assert stored.missing == missing
    assert stored.newest.number == newest.number + 1


def test_a_stamp_has_these_bytes() -> None:
    history = History(3, (b"a" * 16,), DiskStamp(0, bytes(16)), b"k" * 16, True).made(SERVER_ID, b"f" * 16)
    assert history.ids[-1].hex() == "855f1f0a56210848158b73cd1567742b"
    assert decode_history(encode_history(history)) == history
    assert decode_history(encode_history(history._replace(proven=False))).proven is False
