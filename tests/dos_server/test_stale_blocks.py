"""Row 12: blocks that a disk gives back at the wrong place, twice, or from another time.

What is then read is an error or the right bytes, never others: each extent is tied to the one before it, and
the first to its object."""

import random
from collections.abc import Iterator

import pytest

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import ErrorCode
from dos_server.core.files.extent import object_seed
from dos_server.core.files.records import decode_marks
from dos_server.core.requests.scrub import ScrubPlan
from tests.dos_server.core_requests import claimed
from tests.dos_server.test_recovery import extents_of
from tests.support.core_harness import Harness
from tests.support.fake_disk import FakeDisk

BLOCK = 4_096
SIZES = [100, 1_000, 64, 4_096, 700, 9_000, 30, 30, 30, 5_000, 4_032, 4_032, 200, 20_000, 1]
PATH = "d/dir/o"


def parts(kind: int) -> list[bytes]:
    """Other bytes for each kind, of the same sizes."""
    rng = random.Random(kind)
    return [rng.randbytes(size) for size in SIZES]


def appended(server: Harness, session: int, texts: list[bytes]) -> bytes:
    """Each text an append and an extent of its own."""
    content = b""
    for text in texts:
        server.ask(session, m.Append("o", len(content), prefix_digest(content), text))
        content += text
    if texts:
        assert server.unasked(session, m.DurabilityAck)[-1].synced == len(content)
    return content


def two_lives() -> tuple[Harness, int, bytes, bytes]:
    """An object that was removed and made again, of the same sizes: server, session, the file it had first,
    and what it has now."""
    server = Harness(FakeDisk())
    session = claimed(server)
    appended(server, session, parts(1))
    old = server.disk.content(PATH)
    assert isinstance(server.ask(session, m.Delete("o")), m.Deleted)
    content = appended(server, session, parts(2))
    assert len(server.disk.content(PATH)) == len(old)
    return server, session, old, content


def starts() -> Iterator[tuple[int, int]]:
    """Where extents begin and end in the file."""
    position = 0
    for size in SIZES:
        yield position, position + 64 + size
        position += 64 + size


def damaged_files(old: bytes, new: bytes) -> Iterator[tuple[str, bytes]]:
    """The file with whole extents and blocks of the earlier life, and with blocks in each other's place."""
    for number, (start, end) in enumerate(starts()):
        yield f"extent {number} of the earlier life", new[:start] + old[start:end] + new[end:]
    blocks = range(0, len(new), BLOCK)
    for start in blocks:
        end = start + BLOCK
        yield f"block {start} of the earlier life", new[:start] + old[start:end] + new[end:]
        yield f"block {start} as it was before it was written", new[:start] + bytes(BLOCK) + new[end:]
        for other in blocks:
            if other != start and len(new) - max(start, other) >= BLOCK:
                misdirected = bytearray(new)
                misdirected[start:end] = new[other : other + BLOCK]
                yield f"block {other} at {start} too", bytes(misdirected)
                misdirected[other : other + BLOCK] = new[start:end]
                yield f"blocks {start} and {other} changed places", bytes(misdirected)


def wrong_reads(server: Harness, session: int, content: bytes) -> tuple[list[tuple[int, int]], int]:
    """Ranges that were answered with other bytes; and how many were refused as damaged."""
    rng, wrong, refused, edge = random.Random(5), [], 0, 0
    ranges = [(0, len(content))]
    for size in SIZES:  # each extent alone, too: a GET that reads no other has only it to go by
        ranges.append((edge, size))
        edge += size
    for _ in range(10):
        start = rng.randrange(len(content))
        ranges.append((start, rng.randrange(1, len(content))))
    for start, count in ranges:
        answer = server.ask(session, m.Get("o", start, count))
        if isinstance(answer, m.Data):
            if bytes(answer.payload) != content[start : start + len(answer.payload)] or not answer.payload:
                wrong.append((start, count))
        else:
            assert answer.code == ErrorCode.CORRUPT, answer
            refused += 1
    return wrong, refused


def put(server: Harness, file: bytes) -> None:
    """Have the disk give those bytes from now on."""
    handle = server.disk.open(PATH, create=False)
    server.disk.write(handle, 0, [file])
    server.disk.sync(handle)
    server.disk.close(handle)


def test_a_running_server_serves_no_byte_of_another_place_or_time() -> None:
    # EVIDENCE-OF: P-2
    server, _, old, content = two_lives()
    good, tried = server.disk.content(PATH), 0
    epoch = 1
    for what, file in damaged_files(old, good):
        if file == good:
            continue
        put(server, good)
        server.disk.put("d/dir/.marks", bytes(256))  # the copy is a good one again, also by its mark
        server.disk.kill()
        server.start()
        epoch += 1
        session = claimed(server, epoch)
        put(server, file)
        wrong, refused = wrong_reads(server, session, content)
        assert not wrong, what
        assert refused, what
        tried += 1
    assert tried > 100


def refused_after_restart(server: Harness, epoch: int, content: bytes, what: str) -> int:
    """Restart the server: some reads are refused, none is wrong. The session that read."""
    server.disk.kill()
    server.start()
    session = claimed(server, epoch)
    wrong, refused = wrong_reads(server, session, content)
    assert not wrong, what
    assert refused, what
    return session


def test_a_start_serves_no_byte_of_another_place_or_time() -> None:
    # EVIDENCE-OF: P-2
    server, _, old, content = two_lives()
    good, marks, epoch = server.disk.content(PATH), server.disk.content("d/dir/.marks"), 1
    for what, file in damaged_files(old, good):
        if file == good:
            continue
        put(server, file)
        server.disk.put("d/dir/.marks", marks)
        epoch += 1
        refused_after_restart(server, epoch, content, what)


def test_without_a_mark_what_does_not_fit_together_is_damaged_from_its_beginning() -> None:
    """A power cut took the mark: nobody knows the root, so a stale beginning could pass for the object's."""
    # EVIDENCE-OF: P-2
    server, _, old, content = two_lives()
    good, epoch = server.disk.content(PATH), 1
    for number, (start, end) in enumerate(starts()):
        put(server, good[:start] + old[start:end] + good[end:])
        server.disk.put("d/dir/.marks", bytes(256))
        for _ in range(2):  # the next start goes by the mark that this one writes
            epoch += 1
            session = refused_after_restart(server, epoch, content, f"extent {number}")
            assert server.ask(session, m.Get("o", 0, 1)).actual == 0


def test_the_scrub_finds_a_stale_extent_that_nobody_reads() -> None:
    for number in range(len(SIZES)):
        server = Harness(FakeDisk(), scrub=ScrubPlan(1 << 30, 1.0))
        session = claimed(server)
        appended(server, session, parts(1))
        old = server.disk.content(PATH)
        server.ask(session, m.Delete("o"))
        appended(server, session, parts(2))
        start, end = list(starts())[number]
        put(server, server.disk.content(PATH)[:start] + old[start:end] + server.disk.content(PATH)[end:])
        while not any("rounds since" in text for text in server.told):
            server.scrub_on()
            server.settle()
        info = server.ask(session, m.Stat("o")).info
        assert info.corrupt, number
        damaged_at = server.ask(session, m.Get("o", sum(SIZES) - 1, 1)).actual
        assert damaged_at == sum(SIZES[:number]), number


def test_the_root_of_each_object_of_a_name_is_another_and_its_mark_says_it() -> None:
    server, session, old, _ = two_lives()
    roots = {int.from_bytes(file[12:16]) for file in (old, server.disk.content(PATH))}
    assert len(roots) == 2
    assert 0 not in roots
    (mark,) = [one for one in decode_marks(server.disk.content("d/dir/.marks")) if one is not None]
    assert mark.root == int.from_bytes(server.disk.content(PATH)[12:16])
    server.disk.kill()
    server.start()
    server.ask(claimed(server, 2), m.Append("p", 0, prefix_digest(b""), b"x"))
    roots.add(int.from_bytes(server.disk.content("d/dir/p")[12:16]))
    assert len(roots) == 3
    assert session in server.closed


@pytest.mark.parametrize("cut", range(len(SIZES)))
def test_what_is_appended_after_a_torn_tail_and_after_a_restart_follows_the_chain(cut: int) -> None:
    server = Harness(FakeDisk())
    content = appended(server, claimed(server), parts(1)[:cut])
    if cut:
        server.disk.kill()
        handle = server.disk.open(PATH, create=False)
        server.disk.write(handle, server.disk.size(handle), [b"\xd0\x58\x01" + bytes(40)])
        server.disk.kill()
        server.start()
    session = claimed(server, 2)
    for text in parts(3):
        server.ask(session, m.Append("o", len(content), prefix_digest(content), text))
        content += text
    server.disk.kill()
    server.start()
    session = claimed(server, 3)
    assert wrong_reads(server, session, content) == ([], 0)
    assert server.ask(session, m.Get("o", 0, len(content))).payload == content


def test_a_chain_of_one_file_is_no_chain_of_another_with_the_same_name() -> None:
    """Two servers' copies of an object: neither's extents fit into the other's file."""
    texts = parts(1)
    one, other = (extents_of(texts, seed=object_seed("dir", "o"), root=root) for root in (1, 2))
    for number in range(len(texts)):
        server = Harness(FakeDisk())
        server.disk.put(PATH, b"".join([*one[:number], other[number], *one[number + 1 :]]))
        server.start()
        session = claimed(server)
        wrong, _ = wrong_reads(server, session, b"".join(texts))
        assert not wrong
        assert server.ask(session, m.Stat("o")).info.corrupt
