"""The manifest of an archived chain: the segments in the bucket, with their digests. Pure: no I/O.

It is a sealed record (`dos_protocol/sealed.py`) whose rest is the JSON of an ArchiveManifest (`_check`). A
segment is listed only after its object was read back with the right length and SHA-256, and stays listed if a
rollback leaves its line of history. A trim sets `floor` and drops the segments below it, for good.
"""

import hashlib
from typing import Final

import msgspec

from dos_protocol.errors import MALFORMED_JSON
from dos_protocol.sealed import SealedLayout
from journal.core.chain import (
    NO_FLOOR,
    Floor,
    Position,
    SegmentName,
    SegmentSpan,
    base_of,
    parse_segment_name,
)
from journal.core.errors import ArchiveDiffersError
from journal.limits import archive_block_bytes, archive_manifest_bytes_max

LAYOUT: Final = SealedLayout(
    "archive's manifest",
    b"\xd0\x41",
    rest="the JSON of ArchiveManifest",
    remedy="archive to another prefix while servers have the data, or restore the object's older version",
)
_SHA256_BYTES: Final = hashlib.sha256().digest_size
_LENGTH_DIGITS: Final = 16
"""Of the length that follows a segment's name in the name of its object."""


class ArchivedSegment(msgspec.Struct, frozen=True):
    """The first `length` bytes of a segment, as stored in the bucket. digest: the prefix digest at `length`.
    blocks: the concatenated SHA-256 of each block of `archive_block_bytes`, so that any part can be checked.
    """

    name: str
    base: int
    length: int
    digest: int
    sha256: bytes
    blocks: bytes

    @property
    def key(self) -> str:
        """Its object's name in the directory. Other lengths are other objects: none is ever overwritten."""
        return f"{self.name}-{self.length:0{_LENGTH_DIGITS}x}"

    def block(self, number: int) -> bytes:
        return self.blocks[number * _SHA256_BYTES : (number + 1) * _SHA256_BYTES]


class ArchiveManifest(msgspec.Struct, frozen=True):
    """The content of the manifest of a chain. end: that of the newest sealed segment when the chain was last
    archived. floor: segments below this (epoch, base) were trimmed.
    """

    directory: str
    chain: str
    store_id: str
    end: Position
    segments: tuple[ArchivedSegment, ...] = ()
    floor: Floor = NO_FLOOR

    def has_trimmed(self, name: str) -> bool:
        parsed = parse_segment_name(name)
        return parsed is not None and parsed.chain == self.chain and parsed.order < self.floor

    def trimmed_to(self, floor: Floor) -> "ArchiveManifest":
        """Return this manifest without what is below a floor; a floor below its own has no effect."""
        raised = msgspec.structs.replace(self, floor=max(floor, self.floor))
        kept = tuple(one for one in self.segments if not raised.has_trimmed(one.name))
        return msgspec.structs.replace(raised, segments=kept)

    @property
    def bytes(self) -> int:
        return sum(segment.length for segment in self.segments)

    def holds(self, span: SegmentSpan) -> bool:
        """Return whether a span is archived. Raises ArchiveDiffersError if other bytes of its length are."""
        for segment in self.segments:
            if (segment.name, segment.length) == (span.name, span.length):
                if segment.digest != span.digest:
                    raise ArchiveDiffersError(
                        f"{span.name} with {span.length} bytes has prefix digest {span.digest:016x}, "
                        f"in the archive it has {segment.digest:016x}"
                    )
                return True
        return False

    def with_segment(self, segment: ArchivedSegment) -> "ArchiveManifest":
        known = {(one.name, one.length): one for one in (*self.segments, segment)}
        return msgspec.structs.replace(self, segments=tuple(known[key] for key in sorted(known)))

    def merged(self, other: "ArchiveManifest") -> "ArchiveManifest":
        """Return the segments of both that neither has trimmed, with this end. Raises ArchiveDiffersError."""
        if (self.directory, self.chain, self.store_id) != (other.directory, other.chain, other.store_id):
            raise ArchiveDiffersError(
                f"the archive holds {self.directory}/{self.chain} of store {self.store_id}, "
                f"this is {other.directory}/{other.chain} of store {other.store_id}"
            )
        merged = self
        for segment in other.segments:
            merged = merged.with_segment(segment)
        return merged.trimmed_to(other.floor)

    def line(self) -> dict[str, ArchivedSegment]:
        """Return the longest copy of each segment, by name, up to the segment that holds `end`."""
        last = str(self._last() or "")  # names of one chain sort as its segments do
        found: dict[str, ArchivedSegment] = {}
        for segment in self.segments:
            if segment.name <= last:
                found[segment.name] = segment
        return found

    @property
    def last_length(self) -> int:
        last = self._last()
        return 0 if last is None else self.end.size - last.base

    def _last(self) -> SegmentName | None:
        names = [parse_segment_name(one.name) for one in self.segments]
        base = base_of(self.end, [name.base for name in names if name and name.epoch == self.end.epoch])
        return None if base is None else SegmentName(self.chain, self.end.epoch, base)


def parse_object_name(name: str) -> tuple[str, int] | None:
    """Return segment and length of an object's name (`ArchivedSegment.key`), None for any other name."""
    segment, _, digits = name.rpartition("-")
    try:
        length = int(digits, 16) if len(digits) == _LENGTH_DIGITS else 0
    except ValueError:
        return None
    return (segment, length) if length > 0 and parse_segment_name(segment) is not None else None


def encode_manifest(manifest: ArchiveManifest) -> bytes:
    return LAYOUT.seal(rest=msgspec.json.encode(manifest))


def decode_manifest(data: bytes, where: str) -> ArchiveManifest:
    """Decode a manifest. Raises CorruptDataError, which names the first broken rule."""
    if len(data) > archive_manifest_bytes_max:
        expected = f"an archive's manifest of at most {archive_manifest_bytes_max} bytes"
        raise LAYOUT.damage(where, 0, expected, f"{len(data)}")
    try:
        manifest = msgspec.json.decode(LAYOUT.open(data, where).rest, type=ArchiveManifest)
    except MALFORMED_JSON as error:
        raise LAYOUT.damage(where, LAYOUT.rest_at, "the JSON of a manifest", f"{error}") from error
    _check(manifest, where)
    return manifest


# A manifest is valid if and only if it is a valid sealed record, and its JSON is an ArchiveManifest whose
# segments are of its chain, each with one digest per block, and whose `end` lies in one of them.
def _check(manifest: ArchiveManifest, where: str) -> None:
    for segment in manifest.segments:
        name = parse_segment_name(segment.name)
        if name is None or name.chain != manifest.chain or name.base != segment.base or segment.length < 1:
            expected = f"segments of chain {manifest.chain}"
            raise LAYOUT.damage(where, LAYOUT.rest_at, expected, segment.name[:200])
        blocks = -(-segment.length // archive_block_bytes)
        if len(segment.blocks) != blocks * _SHA256_BYTES or len(segment.sha256) != _SHA256_BYTES:
            expected = f"{blocks} block digests of {segment.name}"
            raise LAYOUT.damage(where, LAYOUT.rest_at, expected, f"{len(segment.blocks)} bytes")
    line = manifest.line()
    longest = line[max(line)].length if line else 0
    if manifest.segments and not 0 < manifest.last_length <= longest:
        raise LAYOUT.damage(
            where, LAYOUT.rest_at, "an end within a segment that is listed", str(manifest.end)
        )
