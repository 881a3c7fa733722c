"""Stamps have a MAC: a client cannot make a server believe that its disk went back (docs/decisions/0258)."""

from collections.abc import Callable

import pytest

from dos_protocol import messages as m
from dos_protocol.errors import ErrorCode
from dos_protocol.store_record import DiskStamp
from dos_server.core.requests.stamps import History, decode_history, encode_history
from dos_server.disk import replace_file
from dos_server.limits import stamp_seconds
from tests.dos_server.test_stamps import HELLO, made_by_a_newer_copy, newest_of, server
from tests.support.core_harness import SERVER_ID, Harness

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
