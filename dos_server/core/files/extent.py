"""Extents: the unit in which an object's content is written to its file.

Pure: encodes and decodes headers, and divides accepted appends into extents. File positions and durability
are not known here.

Layout (big-endian): a header of 64 bytes, then the payload, then the next extent.

    offset 0   magic 2 = D0 58
    offset 2   version u8 = 1
    offset 3   reserved u8 = 0
    offset 4   flags u16 = 0
    offset 6   reserved u16 = 0
    offset 8   payload bytes u32
    offset 12  link u32             the last 4 bytes of the header before this one; of the first one: the root
    offset 16  logical offset u64
    offset 24  epoch u64            of the claim under which it was written, 0 without one
    offset 32  durable u64          logical size known to be synced when it was written
    offset 40  payload digest u64   xxh3-64 of the payload
    offset 48  prefix digest u64    fold over the full 64 KiB blocks of content below the logical offset
    offset 56  header digest u64    xxh3-64 of the first 56 bytes, seeded with xxh3-64 of "directory/object"

A header is valid if and only if

1. the header digest matches,
2. magic, version, flags and reserved bytes have the values above,
3. the payload has 1 byte to 256 KiB,
4. durable <= logical offset.

An extent is valid if its header is valid and the payload digest matches.

Why each field exists:

- Header digest: without it, a flipped bit in the length would look like a torn tail. Its seed is the object's
  name, so a header that belongs to another object is not accepted.
- Link: it ties a header to the one before it, and so to all earlier ones and to the *root*. The root is a
  nonzero random number, chosen anew each time an object of that name is created. So an extent of an earlier
  object with the same name, or one of the same object that belongs elsewhere, does not fit even if its
  position and length do.
- Prefix digest: it covers whole blocks, so the fold can resume at any extent after reading less than one
  block. The digest of any prefix costs one read.
"""

import struct
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Final, NamedTuple

import xxhash

from dos_protocol.digests import Buffer, digest64
from dos_server.limits import extent_header_bytes, extent_payload_bytes_max

MAGIC: Final = b"\xd0\x58"
VERSION: Final = 1
_BEFORE_DIGEST: Final = struct.Struct(">2sBBHHIIQQQQQ")
_HEADER: Final = struct.Struct(">2sBBHHIIQQQQQQ")
_STEP: Final = struct.Struct(">QIIQQQQ8xQ")
_FIRST_WORD: Final = int.from_bytes(MAGIC + bytes((VERSION, 0, 0, 0, 0, 0)), "big")
_DIGEST: Final = struct.Struct(">Q")
_DIGESTED_BYTES: Final = _BEFORE_DIGEST.size
_PIECES_MANY: Final = 8
_one_shot: Final = xxhash.xxh3_64_intdigest
_LINK: Final = struct.Struct(">I")
_LINK_AT: Final = extent_header_bytes - _LINK.size
_LINK_MAX: Final = 0xFFFF_FFFF
assert _HEADER.size == extent_header_bytes == 64
assert _DIGESTED_BYTES == 56


class HeaderFault(Enum):
    DIGEST = "the header digest does not match"
    FORMAT = "the header digest matches, but this version is not known"


class ExtentHeader(NamedTuple):
    payload_bytes: int
    offset: int
    epoch: int
    durable: int
    payload_digest: int
    prefix_digest: int
    link: int

    @property
    def end(self) -> int:
        return self.offset + self.payload_bytes


class AcceptedBytes(NamedTuple):
    """Accepted bytes at a logical offset, at most one extent, with the fold of the blocks below them."""

    offset: int
    prefix_digest: int
    data: Buffer


def object_seed(directory: str, name: str) -> int:
    """Return the seed of the header digests of an object."""
    return digest64(f"{directory}/{name}".encode("ascii"))


def fresh_root(incarnation_id: bytes, number: int) -> int:
    """Return the root of the object with that number in one incarnation of the server. Never 0."""
    return digest64(number.to_bytes(8, "big"), digest64(incarnation_id)) & _LINK_MAX or 1


def link_after(head: Buffer) -> int:
    link: int = _LINK.unpack_from(head, _LINK_AT)[0]
    return link


def encode_header(header: ExtentHeader, seed: int) -> bytes:
    head = _BEFORE_DIGEST.pack(
        MAGIC,
        VERSION,
        0,
        0,
        0,
        header.payload_bytes,
        header.link,
        header.offset,
        header.epoch,
        header.durable,
        header.payload_digest,
        header.prefix_digest,
    )
    return head + _DIGEST.pack(digest64(head, seed))


def decode_header(data: Buffer, seed: int, position: int = 0) -> ExtentHeader | HeaderFault:
    """Return the header at a position of the data, or its fault. 64 bytes must be available there."""
    decoded = decode_linked(data, seed, position)
    return decoded if isinstance(decoded, HeaderFault) else decoded[0]


def decode_linked(data: Buffer, seed: int, position: int = 0) -> tuple[ExtentHeader, int] | HeaderFault:
    """Return the header at a position of the data and the link for the next extent, or the header's fault."""
    (
        magic,
        version,
        r0,
        flags,
        r1,
        count,
        link,
        offset,
        epoch,
        durable,
        payload_digest,
        prefix_digest,
        digest,
    ) = _HEADER.unpack_from(data, position)
    # Before the version: a flipped bit in it is damage, and not a file of a newer server that is left alone.
    if digest64(memoryview(data)[position : position + _DIGESTED_BYTES], seed) != digest:
        return HeaderFault.DIGEST
    if magic != MAGIC or version != VERSION or flags or r0 or r1:
        return HeaderFault.FORMAT
    if not 1 <= count <= extent_payload_bytes_max or durable > offset:
        return HeaderFault.FORMAT
    header = ExtentHeader(count, offset, epoch, durable, payload_digest, prefix_digest, link)
    return header, digest & _LINK_MAX


Step = tuple[int, int, int, int, int, int, int]
"""One header in a walk: payload bytes, link, offset, epoch, durable, payload digest, and the link for the
next extent.

A plain tuple: creating a NamedTuple would double the cost of a step.
"""


def steps_in(data: Buffer, seed: int) -> Iterator[Step]:
    """Yield the valid headers of adjacent extents, up to the first one that is invalid or incomplete.

    Makes the same checks as `decode_header` in a fifth of the time, because a walk may visit millions of
    headers.
    """
    at, last = 0, len(data) - extent_header_bytes
    unpack, digest_of = _STEP.unpack_from, _one_shot
    while at <= last:
        word, count, link, offset, epoch, durable, payload_digest, digest = unpack(data, at)
        if digest_of(data[at : at + _DIGESTED_BYTES], seed) != digest or word != _FIRST_WORD:
            return
        if not 1 <= count <= extent_payload_bytes_max or durable > offset:
            return
        yield count, link, offset, epoch, durable, payload_digest, digest & _LINK_MAX
        at += extent_header_bytes + count


def small_extent(piece: AcceptedBytes, *, seed: int, epoch: int, durable: int, link: int) -> bytes:
    """Return the one extent that `build_extents` yields for a piece, as one byte string."""
    offset, prefix_digest, data = piece
    head = _BEFORE_DIGEST.pack(
        MAGIC, VERSION, 0, 0, 0, len(data), link, offset, epoch, durable, _one_shot(data), prefix_digest
    )
    return b"".join((head, _DIGEST.pack(_one_shot(head, seed)), data))


def build_extents(
    pieces: Iterable[AcceptedBytes], *, seed: int, epoch: int, durable: int, link: int
) -> Iterator[tuple[ExtentHeader, list[Buffer]]]:
    """Yield extents for adjacent pieces, in order: the header, and the buffers to write.

    The first buffer is the encoded header. `link`: the link of the first extent.
    """
    group: list[AcceptedBytes] = []
    size = 0
    for piece in pieces:
        if group and size + len(piece.data) > extent_payload_bytes_max:
            header, buffers = _extent(group, size, seed, epoch, durable, link)
            link = link_after(buffers[0])
            yield header, buffers
            group, size = [], 0
        group.append(piece)
        size += len(piece.data)
    if group:
        yield _extent(group, size, seed, epoch, durable, link)


def _extent(
    group: list[AcceptedBytes], size: int, seed: int, epoch: int, durable: int, link: int
) -> tuple[ExtentHeader, list[Buffer]]:
    datas = [piece.data for piece in group]
    if len(group) > _PIECES_MANY:  # one copy costs less than many small buffers
        datas = [b"".join(datas)]
    if len(datas) == 1:
        payload_digest = digest64(datas[0])
    else:
        hasher = xxhash.xxh3_64()
        for data in datas:
            hasher.update(data)
        payload_digest = hasher.intdigest()
    first = group[0]
    header = ExtentHeader(size, first.offset, epoch, durable, payload_digest, first.prefix_digest, link)
    return header, [encode_header(header, seed), *datas]
