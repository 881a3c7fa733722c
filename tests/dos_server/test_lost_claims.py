"""A claim that is gone, or older than an extent of the directory: it can fence nobody, and is refused.

The epoch in an extent is that of a claim that was on stable storage before the extent was written. So an
extent of a higher epoch than the claim's proves that the claim went back, and nothing else does.
"""

import random

import pytest

from dos_protocol import messages as m
from dos_protocol.errors import ErrorCode
from dos_server.core.files.extent import object_seed
from dos_server.core.files.records import ClaimRecord, encode_claim
from dos_server.core.files.recovery import judge
from tests.dos_server.core_requests import append
from tests.dos_server.store_member import LONGER, StoreMember
from tests.support.core_harness import Harness
from tests.support.fake_disk import FakeDisk


def claim(epoch: int, writer_id: bytes = b"w" * 16) -> m.ChangeDirectory:
    return m.ChangeDirectory("dir", claim=True, epoch=epoch, writer_id=writer_id)


def written(epoch: int = 2) -> Harness:
    """A server that is stopped, whose directory was written by two claims, one after the other."""
    server = Harness(FakeDisk())
    for number, content in ((1, b""), (epoch, b"old")):
        session = server.connect()
        assert isinstance(server.ask(session, claim(number)), m.DirectoryOpened)
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
    for request in (claim(1), claim(3, b"x" * 16), m.ChangeDirectory("dir")):
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
    server.ask(old, claim(1))
    server.send(old, append(b"", b"accepted"), ends_batch=False)
    server.send(new, claim(2, b"x" * 16))  # its storing waits in `pending`, the batch is written
    assert server.disk.content("d/dir/o")
    server.disk.kill()
    server.start()
    opened = server.ask(server.connect(), m.ChangeDirectory("dir"))
    assert isinstance(opened, m.DirectoryOpened), opened
    assert opened.epoch == 1


def test_a_new_copy_is_of_the_claim_that_is_stored() -> None:
    member = StoreMember()
    held = member.ask(member.reader(), m.ChangeDirectory("dir"))
    assert isinstance(held, m.DirectoryOpened)
    member.disk.fail("rename", 5)
    taker = member.reader()
    refused = member.ask(
        taker, m.ChangeDirectory("dir", claim=True, epoch=held.epoch + 5, writer_id=b"n" * 16)
    )
    assert isinstance(refused, m.Error)
    member.rot(150_000)
    assert isinstance(member.repair(member.reader(), LONGER, old=member.inspect()), m.RepairAck)
    member.disk.kill()
    member.start()
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
                server.send(sessions[-1], claim(epoch, rng.randbytes(16)))
            else:
                session = rng.choice(sessions)
                content = sizes.get(session, b"")
                server.send(session, append(content, b"x", f"o{session}"), ends_batch=rng.random() < 0.5)
                sizes[session] = content + b"x"
            while server.pending and rng.random() < 0.6:
                server.finish(rng.randrange(len(server.pending)))
        server.disk.power_cut(rng)
        server.start()
        opened = server.ask(server.connect(), m.ChangeDirectory("dir"))
        assert isinstance(opened, m.DirectoryOpened), (seed, opened)


def test_the_walk_of_a_start_tells_the_highest_epoch() -> None:
    disk = written(epoch=7).disk
    data = disk.content("d/dir/o")
    found = judge(lambda at, count: data[at : at + count], len(data), object_seed("dir", "o"), None)
    assert found.epoch_max == 7
