"""A torn tail that finds no room for its copy (row N): its object is in use again when there is room, without
a restart."""

import errno
import itertools
import random

import pytest

from dos_protocol import messages as m
from dos_protocol.errors import ErrorCode
from dos_protocol.limits import MIB
from dos_server.core.files.extent import object_seed
from dos_server.core.files.records import ObjectMark, encode_mark
from dos_server.limits import space_check_seconds, tail_tries_seconds_max
from tests.dos_server.core_requests import append, claimed, to_claim
from tests.dos_server.test_recovery import extents_of
from tests.support.core_harness import Harness
from tests.support.fake_disk import FakeDisk

GOOD, TAIL = extents_of([b"abc", bytes(range(256)) * 20], seed=object_seed("dir", "o"), epoch=0)
TORN = TAIL[:-100]
TOTAL = 4 * MIB


def without_room(tail: bytes = TORN, mark: ObjectMark | None = None) -> Harness:
    """A server that was started with a torn tail and 1,000 bytes free, and serves what is below."""
    server = Harness(FakeDisk())
    disk = server.disk
    disk.put("d/dir/o", GOOD + tail)
    if mark is not None:
        disk.put("d/dir/.marks", encode_mark(mark))
    server.start()
    disk.space = disk.used + 1_000
    return server


def room(server: Harness, total_bytes: int = TOTAL) -> None:
    """There is so much space, and the server looks, a second later."""
    server.disk.space = total_bytes
    server.now += space_check_seconds
    server.look_at_space()


def torn_copies(server: Harness) -> list[str]:
    return sorted(name for name in server.disk.names("d/dir") or [] if name.startswith(".torn."))


def stat(server: Harness, session: int) -> m.ObjectInfo:
    answer = server.ask(session, m.Stat("o"))
    assert isinstance(answer, m.StatResult), answer
    return answer.info


def test_an_object_is_in_use_again_when_there_is_room_for_its_torn_tail() -> None:
    # EVIDENCE-OF: P-1, P-2
    server = without_room()
    session = claimed(server, 1)
    assert server.ask(session, append(b"abc", b"d")).code == ErrorCode.CORRUPT
    assert stat(server, session).corrupt
    room(server)
    server.settle()
    (fenced,) = server.unasked(session, m.Error)
    assert (fenced.code, fenced.actual) == (ErrorCode.FENCED, 1), "claim again, and compare"
    session = claimed(server, 2)
    assert not stat(server, session).corrupt
    server.ask(session, append(b"abc", b"d"))
    assert server.unasked(session, m.DurabilityAck)[-1] == m.DurabilityAck("o", 4, 4)
    assert torn_copies(server) == [f".torn.o.{len(GOOD)}"]
    assert server.disk.content(f"d/dir/{torn_copies(server)[0]}") == TORN
    server.lose_power(random.Random(1))
    session = claimed(server, 3)
    assert server.ask(session, m.Get("o", 0, 100)).payload == b"abcd"


def test_a_directory_of_which_it_was_the_only_bad_object_is_not_shown_as_damaged_any_more() -> None:
    server = without_room()
    reader = server.connect()
    server.ask(server.connect(), m.ChangeDirectory("dir"))
    assert [info.corrupt for info in server.ask(reader, m.List()).entries] == [True]
    room(server)
    server.settle()
    assert [info.corrupt for info in server.ask(reader, m.List()).entries] == [False]
    assert any("in use again" in text for text in server.told)
    assert not any("in use again" in text for text in server.warnings)


def test_while_its_tail_is_copied_an_object_is_closed_and_a_claim_waits() -> None:
    server = without_room()
    session = claimed(server, 1)
    room(server)
    assert server.ask_now(session, m.Get("o", 0, 9)).code == ErrorCode.BUSY
    assert server.ask_now(session, append(b"abc", b"d")).code == ErrorCode.CORRUPT
    newer = server.connect()
    claim = server.send(newer, to_claim(2, b"v" * 16))
    server.finish(1)
    assert server.answer(newer, claim) is None, "the claim is stored, and the object is not judged yet"
    server.settle()
    (info,) = server.answer(newer, claim).entries
    assert (info.synced, info.corrupt) == (3, False)
    room(server)
    assert not server.pending, "it is judged once"


def test_a_get_that_was_under_way_is_not_answered_from_a_file_that_was_cut_meanwhile() -> None:
    server = without_room()
    session = claimed(server, 1)
    get = server.send(session, m.Get("o", 0, 9))
    room(server)
    server.finish(1)
    server.settle()
    assert server.answer(session, get).code == ErrorCode.BUSY
    assert server.ask(session, m.Get("o", 0, 9)).payload == b"abc"


def test_without_enough_room_nothing_is_tried_and_a_try_that_fails_waits_longer_each_time() -> None:
    server = without_room()
    session = claimed(server, 1)
    room(server, server.disk.used + len(TORN))
    assert not server.pending, "not with the folder's share"
    tries = []
    while server.now < 4 * tail_tries_seconds_max:
        server.disk.fail_at("write", f"d/dir/.torn.o.{len(GOOD)}", errno.EDQUOT)  # as a quota does it
        room(server)
        if server.pending:
            tries.append(server.now)
            server.settle()
            assert server.ask(session, append(b"abc", b"d")).code == ErrorCode.CORRUPT
            assert torn_copies(server) == []
    waits = [after - before for before, after in itertools.pairwise(tries)]
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    server.disk.heal()
    server.now += tail_tries_seconds_max
    room(server)
    server.settle()
    assert server.ask(claimed(server, 2), m.Get("o", 0, 9)).payload == b"abc"
    assert not stat(server, claimed(server, 3)).corrupt


def test_a_file_system_that_does_not_say_its_size_is_tried_by_the_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = without_room()
    session = claimed(server, 1)
    server.disk.space = TOTAL
    monkeypatch.setattr("tests.support.fake_disk.FakeDisk.free_space", _unknown)
    server.look_at_space()
    server.settle()
    assert not stat(server, session).corrupt


def _unknown(disk: FakeDisk) -> None:
    raise OSError(errno.ENOSYS, "not told")


def test_a_tail_past_the_mark_of_a_failed_sync_goes_when_there_is_room_and_so_does_the_word() -> None:
    """Row P without room: the mark says poisoned, and it is a restart that judges: the one that was."""
    server = without_room(tail=TAIL, mark=ObjectMark("o", 3, poisoned=True))
    session = claimed(server, 1)
    assert server.ask(session, m.Get("o", 0, 9)).payload == b"abc"
    room(server)
    server.settle()
    session = claimed(server, 2)
    server.ask(session, append(b"abc", b"d"))
    server.lose_power(random.Random(1))
    session = claimed(server, 3)
    info = stat(server, session)
    assert (info.synced, info.corrupt, info.poisoned) == (4, False, False)


def test_what_a_failed_sync_poisoned_in_this_life_no_room_brings_back() -> None:
    # EVIDENCE-OF: P-10
    server = without_room()
    room(server)
    session = claimed(server, 1)
    server.settle()
    server.disk.fail("sync", errno.EIO)
    server.ask(session, append(b"abc", b"d"))
    for _ in range(3):
        room(server)
        server.settle()
    assert stat(server, session).poisoned


def test_rot_below_a_torn_tail_is_remembered_and_stays() -> None:
    # EVIDENCE-OF: P-2
    server = without_room()
    session = claimed(server, 1)
    file = bytearray(server.disk.content("d/dir/o"))
    file[len(GOOD) - 1] ^= 1
    handle = server.disk.open("d/dir/o", create=False)
    server.disk.write(handle, 0, [bytes(file)])
    assert server.ask(session, m.Get("o", 0, 9)).code == ErrorCode.CORRUPT
    room(server)
    assert not server.pending
    handle = server.disk.open("d/dir/o", create=False)
    file[len(GOOD) - 1] ^= 1  # as a controller may: what was rotten reads well again
    server.disk.write(handle, 0, [bytes(file)])
    server.restart()
    assert stat(server, claimed(server, 2)).corrupt, "found damaged once: until it is repaired"


def test_a_disk_that_fails_while_the_tail_is_copied_is_no_want_of_room() -> None:
    server = without_room()
    session = claimed(server, 1)
    server.disk.fail_at("write", f"d/dir/.torn.o.{len(GOOD)}", errno.EIO)
    room(server)
    server.settle()
    assert server.ask(session, m.Get("o", 0, 9)).code == ErrorCode.CORRUPT
    assert any("judged again" in text for text in server.warnings)
    room(server)
    assert not server.pending, "a start may say more"


def test_a_mark_that_cannot_be_read_leaves_it_for_the_next_try() -> None:
    server = without_room(mark=ObjectMark("o", 3))
    session = claimed(server, 1)
    server.disk.fail_at("read", "d/dir/.marks", errno.EIO)
    room(server)
    server.settle()
    assert stat(server, session).corrupt
    room(server)
    server.settle()
    assert not stat(server, session).corrupt


def test_an_object_that_finds_no_room_to_be_written_again_is_in_use_when_there_is_room() -> None:
    """No mark vouches for it, so a start writes it again; where a file system wants room for that, too."""
    # EVIDENCE-OF: P-1, P-2
    server = Harness(FakeDisk())
    server.disk.put("d/dir/o", GOOD)
    server.disk.fail_at("write", "d/dir/o", errno.ENOSPC)
    server.start()
    session = claimed(server, 1)
    assert stat(server, session).corrupt
    assert stat(server, session).synced == 0, "nothing of it is known to be durable"
    lister = server.connect0("dir")
    assert server.ask0(lister, "l") == b"o\t0\tno\n", "version 0 has no word for it"
    room(server)
    server.settle()
    assert server.ask0(lister, "l") == b"o\t3\tno\n"
    session = claimed(server, 2)
    info = stat(server, session)
    assert (info.corrupt, info.synced) == (False, 3)


def test_an_object_that_was_removed_is_not_judged_again() -> None:
    server = without_room()
    session = claimed(server, 1)
    assert isinstance(server.ask(session, m.Delete("o")), m.Deleted)
    room(server)
    assert not server.pending
    server.ask(session, append(b"", b"new"))
    room(server)
    assert not server.pending
