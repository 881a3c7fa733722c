"""The core on a disk that fails, fills up, or returns other bytes than it was given."""

import errno

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import ErrorCode
from tests.dos_server.core_requests import W2, append, claimed, code_of, to_claim, writing
from tests.support.core_harness import Harness
from tests.support.fake_disk import FakeDisk


def test_a_failed_sync_poisons_and_nothing_more_is_acknowledged() -> None:
    # EVIDENCE-OF: P-1
    server, session = writing(b"good")
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
    server, session = writing(b"good")
    server.disk.fail("sync", errno.EIO)
    server.send(session, append(b"good", b"lost"))
    server.settle()
    server.restart()
    session = claimed(server, 2, W2)
    opened = server.ask(session, m.List()).entries
    assert opened == (m.ObjectInfo("o", 4, 4, prefix_digest(b"good")),)
    server.ask(session, append(b"good", b"again"))
    assert server.unasked(session, m.DurabilityAck) == [m.DurabilityAck("o", 9, 9)]
    assert any(name.startswith(".torn.o.") for name in server.disk.names("d/dir") or [])


def test_a_claim_on_a_directory_with_a_poisoned_object_is_answered_and_reports_it() -> None:
    server, session = writing()
    server.disk.fail("sync", errno.EIO)
    server.send(session, append(b"", b"lost"))
    server.settle()
    new = server.connect()
    opened = server.ask(new, to_claim(2, W2))
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
    server, session = writing()
    server.disk.fail("write", errno.EIO)
    assert code_of(server.ask(session, append(b"", b"x"))) == ErrorCode.POISONED


def test_damage_met_by_a_read_is_corrupt_and_stays_so() -> None:
    # EVIDENCE-OF: P-2
    server, session = writing()
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


def test_acknowledged_bytes_that_are_gone_after_a_restart_are_missed() -> None:
    # EVIDENCE-OF: P-2
    server, session = writing()
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
