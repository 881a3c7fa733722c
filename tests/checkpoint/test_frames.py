"""Frames of channels and the handshake of a link: which bytes and messages each end accepts."""

import msgspec
import pytest
from construct import ConstructError
from hypothesis import given
from hypothesis import strategies as st

from checkpoint import limits
from checkpoint.core.links.frames import (
    HEADER_BYTES,
    ChannelFrame,
    ChannelFrameDecoder,
    FrameType,
    encode,
    encode_header,
)
from checkpoint.core.links.handshake import NONCE_BYTES, Acceptor, Dialler, LinkHello, Party
from checkpoint.errors import ChannelFrameError, HandshakeError
from dos_protocol.errors import ErrorCode
from tests.specifications import channel_frames as specification

u16, u32, u64 = st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
EMPTY = (FrameType.DURABLE, FrameType.EOF, FrameType.RESET, FrameType.PING, FrameType.AT)


@st.composite
def frames(draw):
    kind = draw(st.sampled_from(FrameType))
    payload = b"" if kind in EMPTY else draw(st.binary(max_size=200))
    numbers = [draw(u16), draw(u64), draw(u64), draw(u64), draw(u64), draw(u32), draw(u32)]
    return ChannelFrame(kind, *numbers, draw(st.integers(0, 1)), payload)


@given(st.lists(frames(), max_size=6), st.data())
def test_frames_return_however_the_bytes_are_cut(sent, data) -> None:
    wire = b"".join(encode(frame) for frame in sent)
    checkpoints = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=8)))
    decoder, found = ChannelFrameDecoder(), []
    for begin, end in zip([0, *checkpoints], [*checkpoints, len(wire)], strict=True):
        decoder.receive_data(wire[begin:end])
        found += list(decoder.frames())
    assert found == sent
    assert not decoder.mid_frame


@given(frames())
def test_struct_and_specification_write_and_read_the_same_bytes(frame) -> None:
    wire = encode(frame)
    parsed = specification.channel_frame.parse(wire)
    assert parsed.head.type == frame.type
    head = {
        name: value for name, value in parsed.head.items() if name in ChannelFrame._fields and name != "type"
    }
    assert ChannelFrame(frame.type, payload=parsed.payload, **head) == frame
    head_bytes = specification.channel_head.build(parsed.head)
    assert head_bytes == wire[:56]
    assert parsed.digest == specification.digest(head_bytes, parsed.payload)
    assert specification.channel_frame.build(parsed) == wire


@given(frames(), st.data())
def test_a_flipped_bit_is_a_named_error_and_never_another_frame(frame, data) -> None:
    wire = bytearray(encode(frame))
    bit = data.draw(st.integers(0, len(wire) * 8 - 1))
    wire[bit // 8] ^= 1 << (bit % 8)
    decoder = ChannelFrameDecoder()
    decoder.receive_data(bytes(wire))
    try:
        assert decoder.next_frame() is None  # a longer length: it waits, and the link will end within a frame
        assert decoder.mid_frame
    except ChannelFrameError:
        with pytest.raises(ChannelFrameError):
            decoder.next_frame()


@given(frames(), st.data())
def test_a_cut_off_frame_is_waited_for(frame, data) -> None:
    wire = encode(frame)
    decoder = ChannelFrameDecoder()
    decoder.receive_data(wire[: data.draw(st.integers(0, len(wire) - 1))])
    assert decoder.next_frame() is None


@given(st.binary(max_size=400))
def test_garbage_raises_the_named_error_or_is_waited_for(garbage) -> None:
    decoder = ChannelFrameDecoder()
    decoder.receive_data(garbage)
    try:
        list(decoder.frames())
    except ChannelFrameError:
        return
    assert garbage[:2] in (b"", b"\xd0", b"\xd0\x43") or not garbage


def broken(frame, **bytes_at):
    wire = bytearray(encode_header(frame))
    for at, value in bytes_at.items():
        wire[int(at[1:])] = value
    return bytes(wire)


@pytest.mark.parametrize(
    ("wire", "code", "text"),
    [
        (b"GET / HTTP/1.1", ErrorCode.BAD_FRAME, "begins with 4745, expected d043"),
        (b"\x16\x03\x01", ErrorCode.BAD_FRAME, "begins with 1603, expected d043"),
        (
            broken(ChannelFrame(FrameType.EOF), _2=2),
            ErrorCode.BAD_VERSION,
            "version 2; this program supports",
        ),
        (broken(ChannelFrame(FrameType.EOF), _3=99), ErrorCode.UNKNOWN_OPCODE, "unknown frame type 99"),
        (broken(ChannelFrame(FrameType.EOF), _4=128), ErrorCode.BAD_FRAME, "undefined bits"),
        (broken(ChannelFrame(FrameType.EOF), _52=1), ErrorCode.BAD_FRAME, "undefined bits"),
        (broken(ChannelFrame(FrameType.DATA), _48=255), ErrorCode.TOO_LARGE, "exceeds 67108864"),
        (broken(ChannelFrame(FrameType.RESET), _51=1), ErrorCode.TOO_LARGE, "exceeds 0"),
        (broken(ChannelFrame(FrameType.EOF), _63=1), ErrorCode.BAD_DIGEST, "EOF frame has digest"),
    ],
)
def test_each_rule_has_its_own_error(wire, code, text) -> None:
    decoder = ChannelFrameDecoder()
    decoder.receive_data(wire)
    with pytest.raises(ChannelFrameError, match=text) as error:
        decoder.next_frame()
    assert error.value.code is code


def test_a_length_beyond_the_limit_is_refused_before_its_payload_is_waited_for() -> None:
    # EVIDENCE-OF: P-9
    wire = bytearray(encode_header(ChannelFrame(FrameType.HANDSHAKE, payload=b"x")))
    wire[48:52] = (limits.handshake_bytes_max + 1).to_bytes(4, "big")
    decoder = ChannelFrameDecoder()
    decoder.receive_data(bytes(wire[:56]))
    assert decoder.next_frame() is None
    decoder.receive_data(bytes(wire[56:]))
    with pytest.raises(ChannelFrameError) as error:
        decoder.next_frame()
    assert error.value.code is ErrorCode.TOO_LARGE


def test_a_payload_above_its_limit_is_not_sent() -> None:
    with pytest.raises(ValueError, match="at most 4096 bytes, got 4097"):
        encode_header(ChannelFrame(FrameType.HANDSHAKE, payload=bytes(limits.handshake_bytes_max + 1)))


def test_the_layout_has_these_bytes_for_ever() -> None:
    frame = ChannelFrame(FrameType.STEP_END, 3, 0x1122334455667788, 7, 42, 5, 9, 1, 1, b"")
    fields = (
        "d0430103 00010003 1122334455667788 0000000000000007 000000000000002a 0000000000000005"
        " 00000009 00000001 00000000 00000000 9b648343272c81ee"
    )
    assert encode(frame).hex() == fields.replace(" ", "")
    assert len(encode(frame)) == HEADER_BYTES
    with pytest.raises(ConstructError):
        specification.channel_frame.parse(b"\xd0\x44" + encode(frame)[2:])


# --- the handshake ----------------------------------------------------------------------------------------


KEY = b"k" * 32


def ends() -> tuple[Dialler, Acceptor]:
    hello = LinkHello(role="exchange", job="app", worker=3, attempt=2, incarnation=9)
    dialler = Dialler(hello, key=KEY, nonce=b"d" * NONCE_BYTES)
    return dialler, Acceptor(job="app", key=KEY, nonce=b"a" * NONCE_BYTES)


def test_nothing_but_a_handshake_frame_is_read_before_the_link_stands() -> None:
    dialler, acceptor = ends()
    hello = dialler.hello()
    other = ChannelFrame(FrameType.DATA, job=hello.job, payload=bytes(hello.payload))
    with pytest.raises(HandshakeError, match="received a DATA frame before"):
        acceptor.received(other)
    with pytest.raises(HandshakeError, match="expected Challenge, got LinkHello"):
        dialler.challenged(hello)
    challenge = acceptor.received(hello)
    with pytest.raises(HandshakeError, match="expected LinkHello, got Challenge"):
        ends()[1].received(challenge)
    with pytest.raises(HandshakeError, match="expected LinkAccepted, got Challenge"):
        dialler.accepted(challenge)


def test_a_nonce_that_is_too_short_is_refused_by_both_ends() -> None:
    hello = LinkHello(role="exchange", job="app", worker=3, attempt=2, incarnation=9)
    short = Dialler(hello, key=KEY, nonce=b"d" * (NONCE_BYTES - 1))
    dialler, acceptor = ends()
    with pytest.raises(HandshakeError, match="expected LinkHello"):
        acceptor.received(short.hello())
    weak = Acceptor(job="app", key=KEY, nonce=b"a" * (NONCE_BYTES - 1))
    with pytest.raises(HandshakeError, match="expected Challenge"):
        dialler.challenged(weak.received(dialler.hello()))


@pytest.mark.parametrize(("dials", "accepts"), [((2, 3), (1, 2)), ((1, 1), (1, 4)), ((3, 3), (3, 3))])
def test_ends_of_different_packages_that_share_a_version_link(
    dials: tuple[int, int], accepts: tuple[int, int]
) -> None:
    hello = LinkHello(role="control", job="app", worker=3, attempt=2)
    dialler = Dialler(hello, key=KEY, nonce=b"d" * NONCE_BYTES, party=Party(dials, "0.2.0"))
    acceptor = Acceptor(job="app", key=KEY, nonce=b"a" * NONCE_BYTES, party=Party(accepts, "0.1.0"))
    proved, accepted = acceptor.proved(dialler.challenged(acceptor.received(dialler.hello())))
    dialler.accepted(accepted)
    assert (proved.speaks, proved.package) == (dials, "0.2.0")


def test_an_end_that_shares_no_version_is_refused_by_name_at_either_end() -> None:
    """An acceptor of before versions were stated checks nothing, so the dialler does."""
    hello = LinkHello(role="control", job="app", worker=3, attempt=2)
    dialler = Dialler(hello, key=KEY, nonce=b"d" * NONCE_BYTES, party=Party((2, 3), "0.9.0"))
    old = Acceptor(job="app", key=KEY, nonce=b"a" * NONCE_BYTES, party=Party((1, 1)))
    named = (
        r"worker 3 runs dos-journal 0\.9\.0, which speaks versions 2 to 3 of the messages, the process that"
        r" it connects to dos-journal \?, which speaks version 1 of the messages"
    )
    with pytest.raises(HandshakeError, match=named):
        old.received(dialler.hello())
    careless = Acceptor(job="app", key=KEY, nonce=b"a" * NONCE_BYTES, party=Party((1, 9)))
    challenge = msgspec.json.decode(bytes(careless.received(dialler.hello()).payload))
    for speaks, match in (((1, 1), named), (None, "missing required field `speaks`")):
        challenge = challenge | {"speaks": speaks, "package": ""}
        if speaks is None:
            del challenge["speaks"]
        payload = msgspec.json.encode(challenge)
        with pytest.raises(HandshakeError, match=match):
            dialler.challenged(ChannelFrame(FrameType.HANDSHAKE, job=dialler.hello().job, payload=payload))


def test_a_hello_that_states_no_versions_is_refused() -> None:
    hello = LinkHello(role="control", job="app", worker=3, attempt=2)
    frame = Dialler(hello, key=KEY, nonce=b"d" * NONCE_BYTES).hello()
    stated = msgspec.json.decode(bytes(frame.payload))
    del stated["speaks"]
    acceptor = Acceptor(job="app", key=KEY, nonce=b"a" * NONCE_BYTES)
    with pytest.raises(HandshakeError, match="which speaks version 0 of the messages"):
        acceptor.received(
            ChannelFrame(FrameType.HANDSHAKE, job=frame.job, payload=msgspec.json.encode(stated))
        )
