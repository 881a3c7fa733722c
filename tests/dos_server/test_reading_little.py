"""A GET reads what it needs, not what lies before it."""

import random

import pytest

from dos_protocol import messages as m
from dos_protocol.digests import PrefixDigest, prefix_digest
from dos_protocol.limits import KIB, MIB
from dos_server.core.files.extent import AcceptedBytes, build_extents, link_after, object_seed
from dos_server.core.files.records import ObjectMark
from dos_server.core.files.recovery import recover
from dos_server.core.files.scan import (
    DamagedExtentError,
    ExtentStart,
    SparseIndex,
    prefix_fold,
    read_content,
    read_part,
)
from dos_server.limits import extent_payload_bytes_max, read_extents_max
from tests.support.core_harness import Harness

SEED = object_seed("dir", "o")


def file_of(content: bytes, append_bytes: int) -> bytes:
    """The extents of appends, each written alone."""
    fold, parts, link = PrefixDigest(), [], 1
    for start in range(0, len(content), append_bytes):
        piece = AcceptedBytes(start, fold.blocks_digest, content[start : start + append_bytes])
        for _, buffers in build_extents([piece], seed=SEED, epoch=0, durable=0, link=link):
            link = link_after(buffers[0])
            parts += buffers
        fold.update(piece.data)
    return b"".join(parts)


@pytest.mark.parametrize("append_bytes", [100, 5_000, 64 * KIB, extent_payload_bytes_max])
@pytest.mark.parametrize(
    ("start", "end"), [(0, 1), (3 * MIB + 7, 3 * MIB + 9), (MIB, 2 * MIB), (3_000_000, 4 * MIB)]
)
def test_a_get_reads_little_more_than_its_extents(append_bytes: int, start: int, end: int) -> None:
    content = random.Random(1).randbytes(4 * MIB)
    file = file_of(content, append_bytes)
    content_reads = []

    def read(position: int, count: int) -> bytes:
        if count > 20 * KIB:
            content_reads.append(count)
        return file[position : position + count]

    assert read_content(read, SEED, ExtentStart(0, 0), start, end) == content[start:end]
    needed = end - start
    assert sum(content_reads) <= 1.7 * needed + 4 * append_bytes + 64 * KIB, content_reads


@pytest.mark.parametrize("wrong", [-100, -1, 1, 100, 1_000])
def test_an_extent_that_begins_at_another_offset_than_the_index_has_is_damage(wrong: int) -> None:
    content = random.Random(4).randbytes(1_000)
    file = file_of(content, 100)
    extent_bytes = len(file) // 10
    for number in range(10):
        offset, start = number * 100, ExtentStart(number * 100 + wrong, number * extent_bytes)

        def read(position: int, count: int) -> bytes:
            return file[position : position + count]

        assert read_content(read, SEED, start._replace(offset=offset), offset, offset + 100) in content
        with pytest.raises(DamagedExtentError, match=f"the next header is for offset {offset}"):
            read_content(read, SEED, start, offset, offset + 100)


@pytest.mark.parametrize("ask", [1, 4 * KIB, 65 * KIB, 199_999, 200_000])
def test_a_digest_among_small_extents_reads_a_block_of_them_and_not_an_extent_of_the_largest_size(
    ask: int,
) -> None:
    # EVIDENCE-OF: P-9
    content = random.Random(2).randbytes(200_000)
    file, read_bytes = file_of(content, 1), 0

    def read(position: int, count: int) -> bytes:
        nonlocal read_bytes
        data = file[position : position + count]
        read_bytes += len(data)
        return data

    index = recover(read, len(file), SEED, ObjectMark("o", len(content), root=1)).index
    read_bytes = 0
    assert prefix_fold(read, SEED, index.fold_starts(ask), ask).value == prefix_digest(content[:ask])
    extents = read_bytes // 65
    assert extents <= 64 * KIB + 4 * 4 * KIB, "a block, and the spacing of the index before and behind it"


@pytest.mark.parametrize("seed", range(5))
def test_what_lies_in_many_small_extents_is_read_in_parts_and_each_continues_where_the_last_one_ended(
    seed: int,
) -> None:
    # EVIDENCE-OF: P-2, P-9
    rng = random.Random(seed)
    content = rng.randbytes(5_000)
    file, index, read_bytes = file_of(content, rng.choice([1, 3, 7])), SparseIndex(), 0

    def read(position: int, count: int) -> bytes:
        nonlocal read_bytes
        data = file[position : position + count]
        read_bytes += len(data)
        return data

    found, start = b"", 0
    while len(found) < len(content):
        end = min(len(found) + rng.randrange(1, 2_000), len(content))
        part = read_part(read, SEED, index.find(len(found)), len(found), end, 100)
        assert 0 < len(part.data) <= 700
        found += part.data
        start += 1
        assert part.after is not None
        index.remember(part.after)
    assert found == content
    assert read_bytes < start * 64 * KIB
    index.cut(10)
    assert index.find(5_000) == ExtentStart(0, 0), "what is cut is not remembered"


def test_a_get_among_extents_of_one_byte_gives_a_part_and_asking_on_gives_the_rest() -> None:
    # EVIDENCE-OF: P-2, P-9
    server = Harness()
    session = server.connect()
    server.ask(session, m.ChangeDirectory("dir"))
    content = random.Random(1).randbytes(2 * read_extents_max + 10)
    fold = PrefixDigest()
    for byte in content:
        server.send(session, m.Append("o", fold.size, fold.value, bytes((byte,))))
        fold.update(bytes((byte,)))
    server.settle()
    found, sizes = b"", []
    while len(found) < len(content):
        data = server.ask(session, m.Get("o", len(found), MIB))
        assert isinstance(data, m.Data)
        found += data.payload
        sizes.append(len(data.payload))
    assert found == content
    assert sizes == [read_extents_max, read_extents_max, 10]
