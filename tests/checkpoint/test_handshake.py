"""The handshake of a link: which messages each end accepts."""

import msgspec
import pytest

from checkpoint.core.links.frames import ChannelFrame, FrameType
from checkpoint.core.links.handshake import NONCE_BYTES, Acceptor, Dialler, LinkHello, Party
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
    del challenge["speaks"], challenge["package"]
    sent = ChannelFrame(FrameType.HANDSHAKE, job=dialler.hello().job, payload=msgspec.json.encode(challenge))
    with pytest.raises(HandshakeError, match=named):
        dialler.challenged(sent)
