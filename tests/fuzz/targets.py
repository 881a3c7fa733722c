"""What is fuzzed: one function a parser, from any bytes at all to nothing, or an exception that is a finding.

Each demands the same: no exception but the named ones; what decodes encodes to the same bytes; memory stays
bounded; and where there is an executable specification, both say the same of the same bytes.

Digests would keep a fuzzer out, so most targets take the input as fields and put the digest right themselves;
a first byte of 0 asks for the bytes as they are. No target knows the fuzzer: inputs are replayed without it.
"""

import contextlib
from collections.abc import Callable
from typing import Any, Final

import xxhash
from construct import ConstructError

from checkpoint.core import channel_frames as channel
from checkpoint.errors import ChannelFrameError
from dos_protocol import messages as m
from dos_protocol.digests import digest64, prefix_digest
from dos_protocol.errors import CorruptDataError, RemoteProtocolError
from dos_protocol.frames import Frame, FrameDecoder, encode_frame
from dos_protocol.store_record import decode_store_record, encode_store_record
from dos_server.core import records
from dos_server.core.extent import HeaderFault, decode_header, encode_header, object_seed
from dos_server.core.records import ObjectMark
from dos_server.core.recovery_scan import recover
from dos_server.core.scan import DamagedExtentError, read_content
from dos_server.core.version0 import requests as v0
from dos_server.core.version0 import wire as v0_wire
from journal.core import record as journal_record
from journal.core.decoder import Decoded, RecordDecoder
from spark_integration.core.arrow_messages import ArrowMessage, ArrowMessages
from spark_integration.errors import NotReadableError
from tests.specifications import channel_frames as channel_spec
from tests.specifications.extents import ClaimSpec, MarkSpec, extent_spec
from tests.specifications.records import RECORD_V0, RECORD_V1
from tests.specifications.wire import (
    META_SPECS,
    PAYLOADS,
    EntriesSpec,
    FrameSpec,
    StoreRecordSpec,
    build_frame,
)

REFUSED_BY_SPEC: Final = (ConstructError, UnicodeDecodeError)
HELD_BYTES_MAX: Final = 3 << 20
"""A decoder may hold one largest frame, and what came besides."""


class Fields:
    """The input, read from the front; past its end there are zeros."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def more(self) -> bool:
        return self._at < len(self._data)

    def take(self, count: int) -> bytes:
        part = self._data[self._at : self._at + count]
        self._at += count
        return part

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count).ljust(count, b"\0"))

    def rest(self) -> bytes:
        return self.take(len(self._data))


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def _in_print(error: Exception) -> None:
    """What came from outside is never shown raw."""
    assert str(error).isprintable(), ascii(str(error))
    assert str(error).isascii(), ascii(str(error))


def xxh3(data: bytes) -> int:
    return xxhash.xxh3_64_intdigest(data)


# Version 1: frames and messages


def wire(data: bytes) -> None:
    """Frames out of a stream, however it is cut; each one's message, beside the specification."""
    fields = Fields(data)
    kind, size = fields.number(1), fields.number(1) + 1
    stream = fields.rest() if kind == 0 else _stream_of_frames(fields, broken=kind == 1)
    whole, fault = _frames_of([stream])
    cut, cut_fault = _frames_of(pieces(stream, size))
    assert cut == whole
    assert cut_fault == fault
    end = 0
    for frame in whole:
        data = encode_frame(frame)
        assert stream[end : end + len(data)] == data, "what decodes encodes to the same bytes"
        parsed = FrameSpec.parse(data)
        assert parsed.head.value.request_id == frame.request_id
        assert (parsed.meta, parsed.payload) == (frame.meta, frame.payload)
        end += len(data)
        _message(frame)
    if fault is not None:
        with contextlib.suppress(*REFUSED_BY_SPEC):
            FrameSpec.parse(stream[end:])
            raise AssertionError(f"{fault}, but the specification reads it")


def _stream_of_frames(fields: Fields, *, broken: bool) -> bytes:
    stream = bytearray()
    while fields.more:
        opcode, flags = fields.number(1), fields.number(1)
        meta, payload = fields.take(fields.number(1)), fields.take(fields.number(1))
        stream += build_frame(opcode, fields.number(1), meta, payload, flags)
    if broken and stream:
        stream[len(stream) // 2] ^= 1
    return bytes(stream)


def _frames_of(parts: list[bytes]) -> tuple[list[Frame], object]:
    decoder, frames = FrameDecoder(), []
    try:
        for part in parts:
            decoder.receive(part)
            while (frame := decoder.next_frame()) is not None:
                frames.append(frame)
            assert len(decoder.writable()) > 0
            assert decoder.capacity <= HELD_BYTES_MAX
    except RemoteProtocolError as error:
        _in_print(error)
        return frames, error.code
    return frames, None


def _message(frame: Frame) -> None:
    """The struct path and the specification agree on whether it is a message, and which."""
    try:
        message: Any = m.decode(frame)
    except RemoteProtocolError as error:
        _in_print(error)
        problem, request_id = str(error), error.request_id
        message = None
    if message is None:
        assert request_id == frame.request_id
        assert not _spec_reads(frame), f"opcode {frame.opcode}: {problem}"
        return
    assert _spec_reads(frame), f"the specification does not read {message}"
    again = m.encode(message, frame.request_id)
    assert (again.meta, bytes(again.payload)) == (frame.meta, bytes(frame.payload)), message
    parsed = META_SPECS[frame.opcode].parse(frame.meta)
    for field in message.__struct_fields__:
        assert field not in parsed or parsed[field] == getattr(message, field), (field, message)


def _spec_reads(frame: Frame) -> bool:
    spec = META_SPECS.get(frame.opcode)
    if spec is None:
        return False
    kind = PAYLOADS.get(frame.opcode, "none")
    try:
        spec.parse(frame.meta)
        entries = EntriesSpec.parse(bytes(frame.payload)).entries if "entr" in kind else []
    except REFUSED_BY_SPEC:
        return False
    return (kind != "none" or not frame.payload) and (kind != "one entry" or len(entries) == 1)


# Version 0: requests


def version0(data: bytes) -> None:
    """Requests out of a stream, however it is cut; each is what it says, or refused in print."""
    fields = Fields(data)
    size = fields.number(1) + 1
    stream = fields.rest()
    whole = _requests_of([stream])
    assert _requests_of(pieces(stream, size)) == whole
    for body in whole[0]:
        request = v0.parse(body) if body else None
        if isinstance(request, v0.V0InvalidRequest):
            assert request.text.isprintable()
            assert request.text.isascii()
        elif request is not None:
            words = "\t".join(str(one) for one in request)
            assert body == body[:1] + words.encode("ascii"), request


def _requests_of(parts: list[bytes]) -> tuple[list[bytes], str]:
    inlet, bodies = v0_wire.Inlet(1 << 16), []
    try:
        for part in parts:
            inlet.receive(part)
            while (body := inlet.next_request()) is not None:
                bodies.append(body)
            assert inlet.capacity <= HELD_BYTES_MAX
    except v0_wire.RequestTooLongError as error:
        return bodies, str(error)
    return bodies, ""


# Extents, and the walk over a file of them

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


def header_without_digest(
    count: int, offset: int, durable: int, payload: bytes, prefix: int, link: int
) -> bytes:
    """The first 56 bytes of a header, said once more from protocol.md."""
    numbers = ((count, 4), (link, 4), (offset, 8), (1, 8), (durable, 8), (digest64(payload), 8), (prefix, 8))
    return b"\xd0\x58\x01\0\0\0\0\0" + b"".join(value.to_bytes(size) for value, size in numbers)


# The small records of a data directory


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


# Journal records


def journal(data: bytes) -> None:
    """Records of both versions out of a stream, however it is cut; digests put right."""
    fields = Fields(data)
    kind, size = fields.number(1), fields.number(1) + 1
    version = kind % 2
    stream = fields.rest() if kind < 2 else b"".join(_journal_records(fields, version))
    whole, fault = _records_of([stream], version)
    cut, cut_fault = _records_of(pieces(stream, size), version)
    assert cut == whole
    assert cut_fault == fault
    start = 0
    for end, record in whole:
        taken = stream[start:end]
        assert journal_record.encode(record, version) == taken, record
        parsed = (RECORD_V1 if version else RECORD_V0).parse(taken)
        assert (parsed.op, parsed.tag, list(parsed.ints)) == (record.op, record.tag, list(record.ints))
        assert [bytes(one) for one in parsed.strings] == list(record.strings)
        start = end


def _journal_records(fields: Fields, version: int) -> list[bytes]:
    made = []
    while fields.more:
        op, flags, ints, strings = (fields.number(1) for _ in range(4))
        ints, strings = ints % 5, strings % 4
        tag = fields.number(1)
        numbers = b"".join(fields.number(1).to_bytes(8) for _ in range(ints))
        texts = [fields.take(fields.number(1) % 32) for _ in range(strings)]
        sizes = b"".join((len(text) + (flags == 77)).to_bytes(8) for text in texts)
        body = numbers + sizes + b"".join(texts)
        if version:
            head = b"\xd0\x4a\x01" + bytes((op % 16, 0, flags, ints, strings)) + tag.to_bytes(8)
            head += len(body).to_bytes(4)
            head += (xxh3(head) & 0xFFFFFFFF).to_bytes(4)
            made.append(head + body + xxh3(head + body).to_bytes(8))
        else:
            head = (12 + len(body)).to_bytes(4) + bytes((0, op % 4, ints, strings)) + tag.to_bytes(8)
            made.append(head + body)
    return made


def _records_of(parts: list[bytes], version: int) -> tuple[list[Decoded], Any]:
    decoder = RecordDecoder(version)
    found: list[Decoded] = []
    try:
        for part in parts:
            found += decoder.feed(part)
        fault = decoder.finish()
    except CorruptDataError as error:
        _in_print(error)
        return found, type(error)
    return found, type(fault)


# Channel frames of a region


def channel_frame(data: bytes) -> None:
    """Frames out of a stream, however it is cut, beside the specification."""
    fields = Fields(data)
    kind, size = fields.number(1), fields.number(1) + 1
    stream = fields.rest() if kind == 0 else b"".join(_channel_frames(fields))
    whole, fault = _channel_frames_of([stream])
    cut, cut_fault = _channel_frames_of(pieces(stream, size))
    assert (cut, cut_fault) == (whole, fault)
    at = 0
    for frame in whole:
        taken = channel.encode(frame)
        assert stream[at : at + len(taken)] == taken
        parsed = channel_spec.channel_frame.parse(taken)
        assert (parsed.head.type, parsed.head.step, parsed.payload) == (frame.type, frame.step, frame.payload)
        at += len(taken)


def _channel_frames(fields: Fields) -> list[bytes]:
    made = []
    while fields.more:
        head = bytearray(b"\xd0\x43\x01" + fields.take(45).ljust(45, b"\0"))
        payload = fields.take(fields.number(1))
        head += len(payload).to_bytes(4) + bytes(4)
        made.append(bytes(head) + channel_spec.digest(bytes(head), payload).to_bytes(8) + payload)
    return made


def _channel_frames_of(parts: list[bytes]) -> tuple[list[channel.ChannelFrame], Any]:
    decoder, frames = channel.ChannelFrameDecoder(), []
    try:
        for part in parts:
            decoder.receive_data(part)
            while (frame := decoder.next_frame()) is not None:
                frames.append(frame)
    except ChannelFrameError as error:
        _in_print(error)
        return frames, error.code
    return frames, None


def arrow(data: bytes) -> None:
    """Arrow streams in an object, in pieces of so many bytes as the first one says: refused, or messages that
    follow one another, and the same ones however the bytes are cut.
    """
    size, content = data[0] + 1 if data else 1, data[1:]
    found, refused = _arrow_messages([content[at : at + size] for at in range(0, len(content), size)])
    at_once, refused_at_once = _arrow_messages([content])
    assert refused == refused_at_once
    assert refused or found == at_once
    assert [one.begin for one in found] == [0, *(one.end for one in found)][: len(found)]
    assert all(one.rows >= 0 and one.end <= len(content) for one in found)


def _arrow_messages(pieces: list[bytes]) -> tuple[list[ArrowMessage], bool]:
    messages, found = ArrowMessages("o", 0), []
    try:
        for piece in pieces:
            found += messages.feed(piece)
    except NotReadableError:
        return found, True
    return found, False


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    "wire": wire,
    "version0": version0,
    "extent": extent,
    "scan": scan,
    "records": small_records,
    "journal": journal,
    "channel": channel_frame,
    "arrow": arrow,
}
