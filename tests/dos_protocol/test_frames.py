"""Frames.

Whatever bytes arrive, the decoder gives whole frames or one named error, and never takes memory for a lie.
"""

import struct
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dos_protocol import messages as m
from dos_protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from dos_protocol.frames import Frame, FrameDecoder, encode_frame, frame_head
from dos_protocol.limits import meta_bytes_max, payload_bytes_max
from tests.dos_protocol.strategies import messages, u16, u64
from tests.specifications.wire import META_SPECS, PAYLOADS, EntriesSpec, FrameSpec, build_frame


def one_by_one(decoder: FrameDecoder) -> Iterator[Frame]:
    while (frame := decoder.next_frame()) is not None:
        yield frame


def in_runs(decoder: FrameDecoder, opcode: int, count_max: int) -> Iterator[Frame]:
    """As a server reads: runs of one opcode, and single frames between them."""
    while run := decoder.next_run(opcode, count_max) or list(islice(one_by_one(decoder), 1)):
        assert len(run) <= count_max
        yield from run


def read_in_parts(
    parts: list[bytes], drained: Callable[[FrameDecoder], Iterator[Frame]], payload_max: int
) -> tuple[list[Frame], str, int]:
    """Return the frames in the bytes, the error that ends them or "", and what the decoder still needs."""
    decoder, frames = FrameDecoder(payload_max=payload_max), list[Frame]()
    try:
        for part in parts:
            decoder.receive(part)
            frames.extend(drained(decoder))
    except RemoteProtocolError as error:
        return frames, str(error), 0
    return frames, "", decoder.needed


_APPENDS = st.builds(
    m.Append,
    name=st.sampled_from(["o", "another"]),
    expected_size=u64,
    prefix_digest=u64,
    payload=st.binary(max_size=100),
)


@given(
    sent=st.lists(
        st.tuples(st.one_of(_APPENDS, _APPENDS, messages), u64, st.sampled_from([0, 0, 0, 7])), max_size=8
    ),
    damage=st.none() | st.tuples(st.integers(min_value=0), st.integers(1, 255)),
    cuts=st.lists(st.integers(min_value=0), max_size=6),
    count_max=st.sampled_from([1, 2, 256]),
    payload_max=st.sampled_from([50, payload_bytes_max]),
)
def test_a_run_has_the_frames_that_single_reads_return_whatever_the_bytes_and_their_division(
    sent: list[tuple[m.Message, int, int]],
    damage: tuple[int, int] | None,
    cuts: list[int],
    count_max: int,
    payload_max: int,
) -> None:
    data = bytearray(
        b"".join(encode_frame(m.encode(one, at)._replace(flags=flags)) for one, at, flags in sent)
    )
    if damage is not None and data:
        data[damage[0] % len(data)] ^= damage[1]
    ends = sorted(cut % (len(data) + 1) for cut in cuts)
    parts = [bytes(data[a:b]) for a, b in pairwise([0, *ends, len(data)])]
    runs = partial(in_runs, opcode=int(m.Opcode.APPEND), count_max=count_max)
    assert read_in_parts(parts, runs, payload_max) == read_in_parts(parts, one_by_one, payload_max)


def test_a_run_ends_before_a_frame_with_a_changed_byte_which_the_single_read_refuses() -> None:
    data = encode_frame(m.encode(m.Append("o", 5, 6, b"bytes")))
    for place in range(len(data)):
        decoder, changed = FrameDecoder(), bytearray(data)
        changed[place] ^= 1
        decoder.receive(data + changed)
        assert len(decoder.next_run(int(m.Opcode.APPEND), 256)) == 1
        decoder.receive(bytes(payload_bytes_max))  # a changed length may ask for more
        with pytest.raises(RemoteProtocolError):
            decoder.next_frame()


def header(**changes: int | bytes) -> bytes:
    fields: dict[str, int | bytes] = {
        "magic": b"\xd0\x5e",
        "version": 1,
        "opcode": 9,
        "flags": 0,
        "reserved": 0,
        "request_id": 1,
        "meta_bytes": 0,
        "payload_bytes": 0,
        "digest": 0,
    }
    fields.update(changes)
    return struct.pack(">2sBBHHQIIQ", *fields.values())


@given(message=messages, request_id=u64)
def test_a_message_survives_the_wire(message: m.Message, request_id: int) -> None:
    decoder = FrameDecoder()
    decoder.receive(encode_frame(m.encode(message, request_id)))
    (frame,) = one_by_one(decoder)
    assert frame.request_id == request_id
    assert m.decode(frame) == message


@given(payload=st.binary(max_size=200), rest=st.lists(st.binary(max_size=200), max_size=4))
def test_a_payload_in_pieces_is_the_frame_of_the_whole(payload: bytes, rest: list[bytes]) -> None:
    head = frame_head(Frame(3, 7, b"meta", payload), rest)
    whole = b"".join((payload, *rest))
    assert head + whole == encode_frame(Frame(3, 7, b"meta", whole))


@given(message=messages, request_id=u64, flags=u16)
def test_the_struct_path_and_the_specification_agree_on_frames(
    message: m.Message, request_id: int, flags: int
) -> None:
    frame = m.encode(message, request_id)._replace(flags=flags)
    data = encode_frame(frame)
    assert build_frame(frame.opcode, request_id, frame.meta, bytes(frame.payload), flags) == data
    parsed = FrameSpec.parse(data)
    assert (parsed.head.value.opcode, parsed.head.value.request_id) == (frame.opcode, request_id)
    assert (parsed.meta, parsed.payload) == (frame.meta, frame.payload)


@given(message=messages)
def test_the_struct_path_and_the_specification_agree_on_messages(message: m.Message) -> None:
    frame = m.encode(message)
    parsed = META_SPECS[frame.opcode].parse(frame.meta)
    for field in message.__struct_fields__:
        if field in parsed:
            assert parsed[field] == getattr(message, field)
    kind = PAYLOADS.get(frame.opcode, "none")
    if kind == "none":
        assert frame.payload == b""
    elif kind == "bytes":
        assert frame.payload == message.payload  # type: ignore[union-attr]
    else:
        listed = EntriesSpec.parse(frame.payload).entries
        wanted = (message.info,) if isinstance(message, m.StatResult) else message.entries  # type: ignore[union-attr]
        assert [tuple(entry[field] for field in m.ObjectInfo.__struct_fields__) for entry in listed] == [
            tuple(getattr(info, field) for field in m.ObjectInfo.__struct_fields__) for info in wanted
        ]
    fields = {name for name in parsed if not name.startswith("_")}
    assert fields <= set(message.__struct_fields__)
    assert META_SPECS[frame.opcode].build(parsed) == frame.meta


def test_every_opcode_has_a_row_and_a_specification() -> None:
    assert set(META_SPECS) == set(m.TABLE) == set(m.Opcode)
    for opcode, row in m.TABLE.items():
        kind = "bytes" if row.payload else {"": "none", "info": "one entry"}.get(row.entries, "entries")
        assert PAYLOADS.get(opcode, "none") == kind


@given(batch=st.lists(messages, min_size=1, max_size=5), data=st.data())
def test_any_split_of_the_bytes_gives_the_same_frames(batch: list[m.Message], data: st.DataObject) -> None:
    stream = b"".join(encode_frame(m.encode(message, index)) for index, message in enumerate(batch))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    decoder = FrameDecoder()
    got = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        decoder.receive(stream[start:end])
        got += [m.decode(frame) for frame in list(one_by_one(decoder))]
    assert got == batch
    assert decoder.buffered == 0


names = st.text(st.characters(max_codepoint=255), max_size=255)
acks = st.builds(m.DurabilityAck, names, u64, u64)
ack_frames = st.builds(lambda one, number: encode_frame(m.encode(one, number)), acks, u64)
other_frames = st.one_of(
    st.builds(
        lambda one, number, flags: encode_frame(m.encode(one, number)._replace(flags=flags)),
        messages,
        u64,
        u16,
    ),
    st.builds(
        lambda meta, payload: encode_frame(Frame(131, 0, meta, payload)),
        st.binary(max_size=60),
        st.binary(max_size=9),
    ),
    st.builds(
        lambda data, at, bit: _flipped(data, at, bit), ack_frames, st.integers(0, 400), st.integers(0, 7)
    ),
    st.binary(max_size=70),
)


def _flipped(data: bytes, at: int, bit: int) -> bytes:
    at %= len(data)
    return data[:at] + bytes((data[at] ^ 1 << bit,)) + data[at + 1 :]


def decoded(decoder: FrameDecoder, *, acks_at_once: bool) -> Iterator[m.Message | tuple[object, ...]]:
    """Yield the messages in the buffer, then the error, if there is one."""
    try:
        while True:
            if acks_at_once:
                for ack in decoder.next_acks():
                    yield m.DurabilityAck(*ack)
            if (frame := decoder.next_frame()) is None:
                return
            yield m.decode(frame)
    except RemoteProtocolError as error:
        yield error.args, error.code, error.request_id


@given(parts=st.lists(st.one_of(ack_frames, ack_frames, other_frames), max_size=9), data=st.data())
def test_acks_taken_at_once_are_those_taken_one_by_one(parts: list[bytes], data: st.DataObject) -> None:
    """Of any bytes, in any division into reads, and up to the same error."""
    # EVIDENCE-OF: P-8
    stream = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    at_once, by_one = FrameDecoder(), FrameDecoder()
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        for decoder in (at_once, by_one):
            decoder.receive(stream[start:end])
        wanted = list(decoded(by_one, acks_at_once=False))
        assert list(decoded(at_once, acks_at_once=True)) == wanted
        assert (at_once.buffered, at_once.needed) == (by_one.buffered, by_one.needed)
        if wanted and isinstance(wanted[-1], tuple):
            return


def test_an_ack_counts_when_it_is_whole_even_if_the_buffer_still_has_an_equal_one() -> None:
    # EVIDENCE-OF: P-8
    data = encode_frame(m.encode(m.DurabilityAck("object", 9, 8)))
    decoder = FrameDecoder()
    for part, wanted in ((data, [("object", 9, 8)]), (data[:-1], []), (data[-1:], [("object", 9, 8)])):
        decoder.writable()[: len(part)] = part
        decoder.wrote(len(part))
        assert decoder.next_acks() == wanted
    assert decoder.buffered == 0


@given(message=messages, data=st.data())
def test_a_truncated_frame_is_no_frame_and_no_error(message: m.Message, data: st.DataObject) -> None:
    stream = encode_frame(m.encode(message))
    cut = data.draw(st.integers(0, len(stream) - 1))
    decoder = FrameDecoder()
    decoder.receive(stream[:cut])
    assert list(one_by_one(decoder)) == []
    assert decoder.buffered == cut


@given(message=messages, data=st.data())
def test_a_flipped_bit_is_a_named_error_or_waits_for_more(message: m.Message, data: st.DataObject) -> None:
    stream = bytearray(encode_frame(m.encode(message, 5)))
    bit = data.draw(st.integers(0, 8 * len(stream) - 1))
    stream[bit // 8] ^= 1 << bit % 8
    decoder = FrameDecoder()
    decoder.receive(stream)
    try:
        assert (
            list(one_by_one(decoder)) == []
        )  # a longer length: never a frame, and the server's time-out ends it
    except RemoteProtocolError as error:
        assert error.code in {  # noqa: PT017 - not raising is allowed too
            ErrorCode.BAD_FRAME,
            ErrorCode.BAD_VERSION,
            ErrorCode.TOO_LARGE,
            ErrorCode.BAD_DIGEST,
        }


@given(garbage=st.binary(min_size=1, max_size=400), whole=messages)
def test_garbage_is_a_named_error_and_never_another_exception(garbage: bytes, whole: m.Message) -> None:
    for stream in (garbage, encode_frame(m.encode(whole)) + garbage):
        decoder = FrameDecoder()
        decoder.receive(stream)
        try:
            list(one_by_one(decoder))
        except RemoteProtocolError:
            with pytest.raises(RemoteProtocolError):
                decoder.next_frame()


@given(opcode=st.integers(0, 255), meta=st.binary(max_size=120), payload=st.binary(max_size=60))
def test_any_meta_in_a_whole_frame_decodes_or_is_a_named_error(
    opcode: int, meta: bytes, payload: bytes
) -> None:
    try:
        message = m.decode(Frame(opcode, 3, meta, payload))
    except RemoteProtocolError as error:
        assert error.code in {ErrorCode.UNKNOWN_OPCODE, ErrorCode.BAD_FRAME}  # noqa: PT017
        assert error.request_id == 3  # noqa: PT017
    else:
        assert m.decode(m.encode(message)) == message


@pytest.mark.parametrize(
    ("head", "code"),
    [
        (header(magic=b"GE"), ErrorCode.BAD_FRAME),
        (header(version=2), ErrorCode.BAD_VERSION),
        (header(reserved=1), ErrorCode.BAD_FRAME),
        (header(meta_bytes=meta_bytes_max + 1), ErrorCode.TOO_LARGE),
        (header(payload_bytes=payload_bytes_max + 1), ErrorCode.TOO_LARGE),
        (header(payload_bytes=2**32 - 1), ErrorCode.TOO_LARGE),
        (header(digest=1), ErrorCode.BAD_DIGEST),
    ],
)
def test_a_bad_header_is_refused_by_name_before_anything_is_allocated(head: bytes, code: ErrorCode) -> None:
    # EVIDENCE-OF: P-9
    decoder = FrameDecoder()
    before = decoder.capacity
    decoder.receive(head)
    with pytest.raises(RemoteProtocolError) as caught:
        decoder.next_frame()
    assert caught.value.code == code
    assert decoder.capacity == before
    decoder.receive(encode_frame(m.encode(m.Quit())))
    with pytest.raises(RemoteProtocolError):
        decoder.next_frame()


def test_values_that_do_not_fit_are_the_callers_error() -> None:
    for message in (
        m.DurabilityAck("a", -1, 0),
        m.Get("a", 0, 2**32, 0),
        m.Stat("\u20ac"),
        m.Stat("x" * 256),
        m.Configure(bytes(70_000)),
    ):
        with pytest.raises(LocalProtocolError):
            m.encode(message)
    with pytest.raises(LocalProtocolError):
        encode_frame(Frame(9, 0, b"", bytes(payload_bytes_max + 1)))


def test_golden_frames_keep_their_bytes() -> None:
    append = encode_frame(m.encode(m.Append("state.1", 65536, 0x1122334455667788, b"payload"), 42))
    assert append.hex() == GOLDEN_APPEND
    assert encode_frame(m.encode(m.Quit(), 1)).hex() == GOLDEN_QUIT


GOLDEN_APPEND = (
    "d05e010300000000000000000000002a000000180000000744195a6e9c0a7a3a"
    "000000000001000011223344556677880773746174652e317061796c6f6164"
)
GOLDEN_QUIT = "d05e010a0000000000000000000000010000000000000000f6a78abaf7443735"
