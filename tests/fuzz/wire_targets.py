"""Targets of the wire: frames and messages of version 1, requests of version 0."""

import contextlib
from typing import Any

from dos_protocol import messages as m
from dos_protocol.errors import RemoteProtocolError
from dos_protocol.frames import Frame, FrameDecoder, encode_frame
from dos_server.core.requests import version0_wire as v0_wire
from tests.fuzz.fields import HELD_BYTES_MAX, REFUSED_BY_SPEC, Fields, assert_printable, pieces
from tests.specifications.wire import (
    META_SPECS,
    PAYLOADS,
    EntriesSpec,
    FrameSpec,
    build_frame,
)


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
        assert_printable(error)
        return frames, error.code
    return frames, None


def _message(frame: Frame) -> None:
    """The struct path and the specification agree on whether it is a message, and which."""
    try:
        message: Any = m.decode(frame)
    except RemoteProtocolError as error:
        assert_printable(error)
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


def version0(data: bytes) -> None:
    """Requests out of a stream, however it is cut; each is what it says, or refused in print."""
    fields = Fields(data)
    size = fields.number(1) + 1
    stream = fields.rest()
    whole = _requests_of([stream])
    assert _requests_of(pieces(stream, size)) == whole
    for body in whole[0]:
        request = v0_wire.parse(body) if body else None
        if isinstance(request, v0_wire.V0InvalidRequest):
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
