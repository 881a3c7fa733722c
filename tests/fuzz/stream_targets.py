"""Targets of what applications stream: journal records, channel frames of a region, Arrow messages."""

from typing import Any

import xxhash

from checkpoint.core.links import frames as channel
from checkpoint.errors import ChannelFrameError
from dos_protocol.errors import CorruptDataError
from journal.core import record as journal_record
from journal.core.record import Decoded, RecordDecoder
from spark_integration.core.framing import ArrowMessage, ArrowMessages
from spark_integration.errors import NotReadableError
from tests.fuzz.fields import Fields, assert_printable, pieces
from tests.specifications import channel_frames as channel_spec
from tests.specifications.records import RECORD_V0, RECORD_V1


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
        assert_printable(error)
        return found, type(error)
    return found, type(fault)


def xxh3(data: bytes) -> int:
    return xxhash.xxh3_64_intdigest(data)


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
        assert_printable(error)
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
