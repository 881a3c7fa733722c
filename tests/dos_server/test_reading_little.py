"""A GET reads what it needs, not what lies before it."""

import random

import pytest

from dos_protocol.digests import PrefixDigest
from dos_protocol.limits import KIB, MIB
from dos_server.core.extent import Piece, build_extents, link_after, object_seed
from dos_server.core.index import Place
from dos_server.core.scan import read_content
from dos_server.limits import extent_payload_bytes_max

SEED = object_seed("dir", "o")


def file_of(content: bytes, append_bytes: int) -> bytes:
    """The extents of appends, each written alone."""
    fold, parts, link = PrefixDigest(), [], 1
    for start in range(0, len(content), append_bytes):
        piece = Piece(start, fold.blocks_digest, content[start : start + append_bytes])
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

    assert read_content(read, SEED, Place(0, 0), start, end) == content[start:end]
    needed = end - start
    assert sum(content_reads) <= 1.7 * needed + 4 * append_bytes + 64 * KIB, content_reads
