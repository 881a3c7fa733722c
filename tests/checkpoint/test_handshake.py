"""The handshake of a link: which messages each end accepts."""

import pytest

from checkpoint.core.channel_frames import ChannelFrame, FrameType
from checkpoint.core.handshake import NONCE_BYTES, Acceptor, Dialler, LinkHello
from checkpoint.errors import HandshakeError

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
