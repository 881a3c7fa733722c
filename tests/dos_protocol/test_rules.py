"""Each rule of the layouts at its boundary: metas, entries, frames."""

import struct
from typing import get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dos_protocol import messages as m
from dos_protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from dos_protocol.frames import Frame, FrameDecoder, encode_frame, frame_head
from dos_protocol.limits import meta_bytes_max, payload_bytes_max
from dos_protocol.names import check_id
from tests.dos_protocol.strategies import messages

INFO = m.ObjectInfo("a", 3, 2, 1)
SAMPLES: dict[m.Opcode, m.Message] = {
    m.opcode_of(one): one
    for one in (
        m.Hello(1, b"t", b"s" * 16, 2, "c"), m.ChangeDirectory("d", True, 2, b"w" * 16),
        m.Append("a", 1, 2, b"p"), m.Get("a", 1, 2, 3), m.List("a", "b", 3), m.Stat("a", 4), m.Delete("a"),
        m.Configure(b"r"), m.Ping(b"p"),
        m.Quit(), m.RepairChunk("a", 1, 2, 3, 4, 5, True, b"p"), m.Stamp(1, b"i" * 16),
        m.Witness(b"s" * 16, 1, b"i" * 16, 2, b"j" * 16), m.Welcome(1, b"s" * 16, 2, 3, 4, b"r"),
        m.DirectoryOpened(1, b"w" * 16, (INFO,)), m.DurabilityAck("a", 2, 1), m.Data("a", 1, 2, b"p"),
        m.Listing((INFO,), True), m.StatResult(INFO, 1, 2), m.Deleted("a"), m.Configured(1),
        m.Pong(b"p"), m.Bye(),
        m.RepairAck("a", 1, True), m.Stamped(1, b"i" * 16), m.Witnessed(b"s" * 16, 1, b"i" * 16),
        m.ScrubRequest(True, 1), m.ScrubProgress(1, 2, 3, 4, 5),
        m.Error(13, "m", "r", 5, b"x"),
    )
}  # fmt: skip
"""One message of each kind."""
EACH = pytest.mark.parametrize("opcode", list(m.Opcode), ids=lambda opcode: opcode.name)


def refusal(frame: Frame) -> RemoteProtocolError:
    with pytest.raises(RemoteProtocolError) as caught:
        m.decode(frame)
    assert caught.value.request_id == frame.request_id
    return caught.value


# --- metas ---


@EACH
def test_a_meta_is_exactly_as_its_row_says(opcode: m.Opcode) -> None:
    frame = m.encode(SAMPLES[opcode], 7)
    assert m.decode(frame) == SAMPLES[opcode]
    for meta in [frame.meta + b"\0", *(frame.meta[:size] for size in range(len(frame.meta)))]:
        assert refusal(frame._replace(meta=meta)).code is ErrorCode.BAD_FRAME, (opcode, meta)


@EACH
def test_a_payload_exists_where_one_belongs_and_nowhere_else(opcode: m.Opcode) -> None:
    frame, row = m.encode(SAMPLES[opcode], 7), m.TABLE[opcode]
    if row.payload:
        assert getattr(m.decode(frame._replace(payload=b"other")), row.payload) == b"other"
    else:
        assert refusal(frame._replace(payload=bytes(frame.payload) + b"\0")).code is ErrorCode.BAD_FRAME


@given(message=messages)
def test_a_longer_meta_is_refused_whatever_is_in_it(message: m.Message) -> None:
    frame = m.encode(message, 7)
    refusal(frame._replace(meta=frame.meta + frame.meta[-1:] + b"x"))


def test_a_flag_is_0_or_1() -> None:
    frame = m.encode(m.ChangeDirectory("d", True, 2, b"w" * 16))
    for byte, known in ((0, True), (1, True), (2, False), (255, False)):
        changed = frame._replace(meta=bytes([byte]) + frame.meta[1:])
        if known:
            assert m.decode(changed) == m.ChangeDirectory("d", bool(byte), 2, b"w" * 16)
        else:
            assert "neither" in str(refusal(changed))


def test_an_opcode_without_a_row_is_named() -> None:
    for number in set(range(256)) - set(m.Opcode):
        error = refusal(Frame(number, 9, b""))
        assert (error.code, str(number) in str(error)) == (ErrorCode.UNKNOWN_OPCODE, True)


def test_requests_are_below_128_and_every_message_has_an_opcode() -> None:
    answers = {"Welcome", "DirectoryOpened", "DurabilityAck", "Data", "Listing", "StatResult", "Deleted",
               "Configured", "Pong", "Bye", "RepairAck", "Stamped", "Witnessed", "ScrubProgress",
               "Error"}  # fmt: skip
    for opcode, row in m.TABLE.items():
        assert (opcode >= 128) == (row.cls.__name__ in answers)
    assert set(get_args(m.Message)) == {row.cls for row in m.TABLE.values()}


@pytest.mark.parametrize("size", [0, 255, 256])
def test_a_name_has_at_most_255_bytes_on_the_wire(size: int) -> None:
    for message in (m.Delete("é" * size), m.DurabilityAck("é" * size, 1, 0)):
        if size < 256:
            assert m.decode(m.encode(message)) == message
        else:
            with pytest.raises(LocalProtocolError, match="does not fit"):
                m.encode(message)


@pytest.mark.parametrize("size", [65_535, 65_536])
def test_texts_and_bytes_have_at_most_65535_bytes(size: int) -> None:
    for message in (m.Configure(bytes(size)), m.Hello(client="a" * size)):
        if size < 65_536:
            assert m.decode(m.encode(message)) == message
        else:
            with pytest.raises(LocalProtocolError, match="does not fit"):
                m.encode(message)


@pytest.mark.parametrize("size", [0, 15, 17])
def test_an_id_of_another_length_is_refused_in_every_message(size: int) -> None:
    checked = 0
    for message in SAMPLES.values():
        for field in message.__struct_fields__:
            if field in ("store_id", "server_id", "writer_id", "stamp_id", "before_id"):
                values = {name: getattr(message, name) for name in message.__struct_fields__}
                with pytest.raises(LocalProtocolError, match=f"{field} must be exactly 16 bytes"):
                    m.encode(type(message)(**{**values, field: bytes(size)}))
                checked += 1
    assert checked == 12
    with pytest.raises(LocalProtocolError, match="got str"):
        check_id("a" * 16, "writer_id")  # type: ignore[arg-type]


# --- entries ---


def test_entries_are_exactly_as_many_as_are_reported() -> None:
    good = m.encode_entries((INFO, INFO))
    assert m.decode_entries(good) == (INFO, INFO)
    assert m.decode_entries(m.encode_entries(())) == ()
    bad = [good + b"\0", *(good[:size] for size in range(len(good)))]
    bad += [struct.pack(">I", count) + good[4:] for count in (0, 1, 3, 2**32 - 1)]
    for data in bad:
        with pytest.raises((ValueError, struct.error)):
            m.decode_entries(data)


@pytest.mark.parametrize("marks", range(256))
def test_three_marks_are_known(marks: int) -> None:
    data = m.encode_entries((INFO,))[:-1] + bytes([marks])
    if marks < 8:
        (info,) = m.decode_entries(data)
        assert (info.appending, info.corrupt, info.poisoned) == (
            bool(marks & 1),
            bool(marks & 2),
            bool(marks & 4),
        )
        assert m.encode_entries((info,)) == data
    else:
        with pytest.raises(ValueError, match="unknown marks"):
            m.decode_entries(data)


@pytest.mark.parametrize("count", [0, 2])
def test_a_stat_has_one_entry(count: int) -> None:
    frame = m.encode(SAMPLES[m.Opcode.STAT_RESULT])
    assert f"expected one entry, got {count}" in str(
        refusal(frame._replace(payload=m.encode_entries((INFO,) * count)))
    )


# --- frames ---


@pytest.mark.parametrize("over", [0, 1])
def test_a_frame_has_the_most_that_is_allowed_and_no_more_on_both_ends(over: int) -> None:
    for meta, payload in (
        (meta_bytes_max + over, 0),
        (0, payload_bytes_max + over),
        (meta_bytes_max, payload_bytes_max),
    ):
        frame = Frame(9, 1, bytes(meta), bytes(payload))
        if meta <= meta_bytes_max and payload <= payload_bytes_max:
            decoder = FrameDecoder()
            decoder.receive(encode_frame(frame))
            assert decoder.next_frame() == frame
            continue
        with pytest.raises(LocalProtocolError, match=f"{meta} and {payload}"):
            frame_head(frame)


@pytest.mark.parametrize("over", [0, 1])
@pytest.mark.parametrize("part", ["meta", "payload"])
def test_what_an_end_allows_is_kept_to_the_byte(part: str, over: int) -> None:
    data = encode_frame(
        Frame(9, 1, bytes(5 + over if part == "meta" else 5), bytes(7 + over if part == "payload" else 7))
    )
    early, late = FrameDecoder(meta_max=5, payload_max=7), FrameDecoder()
    late.allow(5, 7)
    for decoder in (early, late):
        decoder.receive(data[:32])
        if over:
            with pytest.raises(RemoteProtocolError, match="announced") as caught:
                decoder.next_frame()
            assert (caught.value.code, caught.value.request_id) == (ErrorCode.TOO_LARGE, 1)
        else:
            assert decoder.next_frame() is None
            assert decoder.needed == len(data)


@pytest.mark.parametrize(
    ("begun", "spoken"),
    [
        (b"HTTP/1.1 400", "an HTTP response"), (b"GET / HTTP/1.1", "an HTTP request"),
        (b"POST / HTTP/1.1", "an HTTP request"), (b"SSH-2.0-x", "ssh"), (b"\x15\x03\x03", "TLS"),
        (b"\x16\x03\x01", "TLS"), (b"\x17\x03\x01", ""), (b"\xd0\x4a", ""),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [2, 40])
def test_a_stranger_is_told_what_it_speaks_from_two_bytes_on(begun: bytes, spoken: str, size: int) -> None:
    decoder = FrameDecoder()
    decoder.receive(begun[:2] if size == 2 else begun.ljust(size, b"."))
    with pytest.raises(RemoteProtocolError) as caught:
        decoder.next_frame()
    assert caught.value.code is ErrorCode.BAD_FRAME
    assert (f"that is {spoken}, not DOS" in str(caught.value)) == bool(spoken)
    assert f"not {begun[:2].hex()}" in str(caught.value)


def test_the_first_byte_alone_tells_a_stranger_or_is_waited_behind() -> None:
    decoder = FrameDecoder()
    assert decoder.next_frame() is None
    decoder.receive(b"\xd0")
    assert decoder.next_frame() is None
    decoder.receive(b"\x5e")
    assert (decoder.next_frame(), decoder.buffered, decoder.needed) == (None, 2, 32)
    decoder = FrameDecoder()
    decoder.receive(b"G")
    with pytest.raises(RemoteProtocolError):
        decoder.next_frame()


def test_a_bad_digest_names_its_request_and_is_reported_again() -> None:
    data = bytearray(encode_frame(m.encode(SAMPLES[m.Opcode.GET], 77)))
    data[-1] ^= 1
    decoder = FrameDecoder()
    decoder.receive(data)
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match="opcode 4 does not match") as caught:
            decoder.next_frame()
        assert (caught.value.code, caught.value.request_id) == (ErrorCode.BAD_DIGEST, 77)


@given(st.lists(st.integers(0, 3000), max_size=12), st.integers(1, 5000), st.booleans(), st.booleans())
@example([3000] * 12, 5000, True, True)
@example([3000] * 12, 5000, False, True)
def test_bytes_may_come_in_by_copy_and_by_view_in_turns(
    sizes: list[int], piece: int, by_view: bool, lazy: bool
) -> None:
    """`lazy`: one frame is taken after each piece, while whole ones wait, as under backpressure."""
    sent = [
        Frame(9, number, b"m" * (number % 5), bytes([number]) * size) for number, size in enumerate(sizes)
    ]
    data, decoder, got = b"".join(map(encode_frame, sent)), FrameDecoder(capacity_grown=20_000), []
    for at in range(0, len(data), piece):
        chunk = memoryview(data[at : at + piece])
        while len(chunk):
            if by_view:
                room = decoder.writable()
                assert len(room)
                count = min(len(room), len(chunk))
                room[:count] = chunk[:count]
                decoder.wrote(count)
            else:
                count = len(chunk)
                decoder.receive(chunk)
            chunk, by_view = chunk[count:], by_view if lazy else not by_view
        while (frame := decoder.next_frame()) is not None:
            got.append(frame)
            if lazy:
                break
    got += iter(decoder.next_frame, None)
    assert got == sent
    assert decoder.buffered == 0
    decoder.shrink()
    assert decoder.capacity == 16 * 1024


def test_memory_is_taken_when_it_is_filled_and_given_back_between_frames() -> None:
    decoder = FrameDecoder(capacity_grown=50_000)
    data = encode_frame(Frame(9, 1, b"", bytes(60_000)))
    decoder.receive(data[:100])
    assert (decoder.next_frame(), decoder.capacity) == (None, 16 * 1024), "only announced"
    decoder.shrink()
    assert decoder.buffered == 100, "one that has begun is kept"
    sent = 100
    while sent < len(data):
        room = decoder.writable()
        count = min(len(room), len(data) - sent)
        room[:count] = data[sent : sent + count]
        decoder.wrote(count)
        sent += count
    assert decoder.capacity == len(data), "as large as the frame, which is more than a grown one"
    assert decoder.next_frame() == Frame(9, 1, b"", bytes(60_000))
    decoder.shrink()
    assert decoder.capacity == 16 * 1024


def test_a_view_or_a_copy_of_the_payload_as_is_asked_for() -> None:
    for copy, kind in ((True, bytes), (False, memoryview)):
        decoder = FrameDecoder(copy=copy)
        decoder.receive(encode_frame(Frame(9, 1, b"m", b"payload", 3)))
        frame = decoder.next_frame()
        assert frame is not None
        assert (type(frame.payload), frame.flags) == (kind, 3)
