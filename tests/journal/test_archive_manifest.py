"""The manifest of an archive: every truncation and flipped bit is refused, and two are merged rightly."""

import hashlib

import msgspec
import pytest

from dos_protocol.errors import CorruptDataError
from journal.core.archive_manifest import ArchivedSegment, ArchiveManifest, decode_manifest, encode_manifest
from journal.core.chain import SegmentSpan
from journal.core.errors import ArchiveDiffersError
from journal.core.position import Position
from journal.core.segment import segment_name
from journal.limits import archive_block_bytes


def segment(epoch: int, base: int, length: int) -> ArchivedSegment:
    blocks = bytes(32) * -(-length // archive_block_bytes)
    sha256 = hashlib.sha256(b"x").digest()
    return ArchivedSegment(segment_name("files", epoch, base), base, length, 2**64 - epoch, sha256, blocks)


def manifest(end: Position, *segments: ArchivedSegment) -> ArchiveManifest:
    return ArchiveManifest("ledger", "files", "77" * 16, end, segments)


WHOLE = manifest(Position(2, 700, 5), segment(1, 0, 500), segment(2, 500, archive_block_bytes + 1))


def test_a_manifest_returns_as_it_was() -> None:
    assert decode_manifest(encode_manifest(WHOLE), "here") == WHOLE


def test_every_truncation_and_every_flipped_bit_is_refused() -> None:
    data = encode_manifest(WHOLE)
    for length in range(len(data)):
        with pytest.raises(CorruptDataError):
            decode_manifest(data[:length], "here")
    with pytest.raises(CorruptDataError):
        decode_manifest(data + b"x", "here")
    for place in range(len(data)):
        for bit in range(8):
            bad = bytearray(data)
            bad[place] ^= 1 << bit
            with pytest.raises(CorruptDataError):
                decode_manifest(bytes(bad), "here")


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (manifest(Position(2, 700, 5), segment(1, 0, 500)), "an end within a segment"),
        (manifest(Position(1, 501, 5), segment(1, 0, 500)), "an end within a segment"),
        (msgspec.structs.replace(WHOLE, chain="state"), "segments of chain state"),
        *(
            (manifest(Position(1, 5, 5), msgspec.structs.replace(segment(1, 0, 5), name=name)), "segments of")
            for name in ("../files.0000000000000001.0000000000000000", "/etc/passwd", "..", "")
        ),
        (
            manifest(Position(1, 5, 5), msgspec.structs.replace(segment(1, 0, 5), blocks=b"")),
            "1 block digests",
        ),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(bad: ArchiveManifest, text: str) -> None:
    with pytest.raises(CorruptDataError, match=text):
        decode_manifest(encode_manifest(bad), "here")


def test_a_newer_version_reports_it() -> None:
    data = bytearray(encode_manifest(WHOLE))
    data[4] = 2
    with pytest.raises(CorruptDataError, match=r"version 2.*newer"):
        decode_manifest(bytes(data), "here")


def test_two_are_merged_and_another_stores_is_refused() -> None:
    other = manifest(Position(1, 500, 1), segment(1, 0, 500), segment(1, 0, 300), segment(3, 500, 9))
    merged = WHOLE.merged(other)
    assert [(one.base, one.length) for one in merged.segments] == [
        (0, 300),
        (0, 500),
        (500, archive_block_bytes + 1),
        (500, 9),
    ]
    assert merged.end == WHOLE.end
    assert sorted(merged.line()) == [segment_name("files", 1, 0), segment_name("files", 2, 500)]
    assert merged.line()[segment_name("files", 1, 0)].length == 500
    assert merged.last_length == 200
    with pytest.raises(ArchiveDiffersError, match="of store 6666"):
        WHOLE.merged(msgspec.structs.replace(other, store_id="66" * 16))


def test_other_bytes_of_that_length_are_no_match() -> None:
    assert WHOLE.holds(SegmentSpan(segment_name("files", 1, 0), 0, 500, 2**64 - 1))
    assert not WHOLE.holds(SegmentSpan(segment_name("files", 1, 0), 0, 400, 7))
    with pytest.raises(ArchiveDiffersError, match="has prefix digest 0000000000000007"):
        WHOLE.holds(SegmentSpan(segment_name("files", 1, 0), 0, 500, 7))
