"""Targets of a data directory: extents, the walk over a file of them, and the small records."""

import contextlib
from typing import Final

from construct import ConstructError

from dos_protocol.digests import digest64, prefix_digest
from dos_protocol.errors import CorruptDataError, LocalProtocolError
from dos_protocol.store_record import decode_store_record, encode_store_record
from dos_server.core.access import Access, Right, decode_tokens, encode_settings
from dos_server.core.files import records
from dos_server.core.files.extent import HeaderFault, decode_header, encode_header, object_seed
from dos_server.core.files.records import ObjectMark
from dos_server.core.files.recovery import recover
from dos_server.core.files.scan import DamagedExtentError, read_content
from tests.fuzz.fields import Fields
from tests.specifications.extents import ClaimSpec, MarkSpec, extent_spec
from tests.specifications.wire import (
    StoreRecordSpec,
)

SEED: Final = object_seed("dir", "obj")


_EXTENT: Final = extent_spec("dir", "obj")


def extent(data: bytes) -> None:
    """One header with its digest right, and the extent it makes."""
    fields = Fields(data)
    as_it_is = fields.number(1) == 0
    head = fields.take(56).ljust(56, b"\0")
    payload = fields.rest()
    if not as_it_is:
        head = head[:40] + digest64(payload).to_bytes(8) + head[48:]
    whole = head + digest64(head, SEED).to_bytes(8) + payload
    header = decode_header(whole, SEED)
    assert header is not HeaderFault.DIGEST
    if isinstance(header, HeaderFault):
        with contextlib.suppress(ConstructError):
            _EXTENT.parse(whole)
            raise AssertionError("the specification reads a header that is refused")
        return
    assert encode_header(header, SEED) == whole[:64]
    if len(payload) >= header.payload_bytes and header.payload_digest == digest64(
        payload[: header.payload_bytes]
    ):
        assert _EXTENT.parse(whole).head.value.offset == header.offset


def scan(data: bytes) -> None:
    """A file of extents, holes, copies, blocks of other objects and bytes that are none of these."""
    fields = Fields(data)
    flags = fields.number(1)
    root = 9 if flags & 8 else 0
    mark = (
        ObjectMark("obj", fields.number(1), bool(flags & 1), bool(flags & 2), root=root)
        if flags & 4
        else None
    )
    file = _file(fields)

    def read(position: int, count: int) -> bytes:
        return file[position : position + count]

    found = recover(read, len(file), SEED, mark)
    assert 0 <= found.file_bytes <= len(file)
    try:
        content = read_content(read, SEED, found.index.find(0), 0, found.size)
    except DamagedExtentError:
        return  # below what is known to be durable, payloads are verified when they are read
    assert len(content) == found.size
    assert found.fold.value == prefix_digest(content)
    if not found.corrupt:
        kept = file[: found.file_bytes]
        again = recover(lambda at, count: kept[at : at + count], len(kept), SEED, None)
        assert (again.size, again.file_bytes, again.corrupt) == (found.size, found.file_bytes, False)


def _file(fields: Fields) -> bytes:
    """Blocks of the kinds above; those of this object follow the last one, or stand elsewhere."""
    file, blocks, size, content, link = bytearray(), [b""], 0, b"", 9
    while fields.more and len(file) < 1 << 16:
        kind = fields.number(1)
        if kind < 160:
            payload = fields.take(kind % 40 + 1)
            offset = size if kind < 120 else fields.number(1)
            whole = len(content) - len(content) % 65_536
            durable = min(fields.number(1), offset)
            head = header_without_digest(
                len(payload) or 1, offset, durable, payload, prefix_digest(content[:whole]), link
            )
            seed = SEED if kind < 150 else SEED ^ 1
            block = head + digest64(head, seed).to_bytes(8) + payload
            if kind < 120:
                size, content = size + len(payload), content + payload
                link = int.from_bytes(block[60:64])
            blocks.append(block)
        elif kind < 180:
            block = bytes(fields.number(2) % 1_200)
        elif kind < 210:
            block = blocks[fields.number(1) % len(blocks)]
        elif kind < 230:
            block = blocks[-1][: fields.number(1)]
        else:
            block = fields.take(kind - 229)
        file += block
    return bytes(file)


def tokens(data: bytes) -> None:
    """A file of tokens: what is valid is written again as the same, grants what it says, or is refused by
    name.
    """
    with contextlib.suppress(LocalProtocolError):
        file = decode_tokens(data, "x")
        assert decode_tokens(encode_settings(file), "x") == file
        for one in file.tokens:
            access = Access(one.name, one.grants, bytes.fromhex(one.sha256))
            for right in Right:
                for directory in ("shop", "shop.w0000", "shops"):
                    granted = any(
                        right in grant.rights
                        and (grant.prefix == "*" or f"{directory}.".startswith(f"{grant.prefix}."))
                        for grant in one.grants
                    )
                    assert access.may(right, directory) == granted


def header_without_digest(
    count: int, offset: int, durable: int, payload: bytes, prefix: int, link: int
) -> bytes:
    """The first 56 bytes of a header, said once more from protocol.md."""
    numbers = ((count, 4), (link, 4), (offset, 8), (1, 8), (durable, 8), (digest64(payload), 8), (prefix, 8))
    return b"\xd0\x58\x01\0\0\0\0\0" + b"".join(value.to_bytes(size) for value, size in numbers)


def small_records(data: bytes) -> None:
    """Claim, marks, identity and store record: the value that was written, or refused by name."""
    fields = Fields(data)
    kind = fields.number(1)
    body = fields.rest()
    for one in (body, body + digest64(body).to_bytes(8)):
        with contextlib.suppress(CorruptDataError):
            claim = records.decode_claim(one, "x")
            assert records.encode_claim(claim) == one
            assert ClaimSpec.parse(one).body.value.epoch == claim.epoch
        with contextlib.suppress(CorruptDataError):
            assert records.encode_identity(records.decode_identity(one, "x")) == one
        with contextlib.suppress(CorruptDataError):
            record = decode_store_record(one)
            assert encode_store_record(record) == one
            assert StoreRecordSpec.parse(one).body.value.generation == record.generation
    slot = body[:248].ljust(248, b"\0")
    marked = slot + digest64(slot).to_bytes(8)
    (mark,) = records.decode_marks(marked + body[: kind % 256])[:1]
    if mark is not None:
        assert records.encode_mark(mark) == marked
        assert MarkSpec.parse(marked).body.value.synced == mark.synced
    else:
        with contextlib.suppress(ConstructError):
            name = MarkSpec.parse(marked).body.value.name.rstrip(b"\0").decode("latin-1")
            assert not records.is_name(name), "the specification reads a mark that says nothing"
