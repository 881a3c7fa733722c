"""Proof of the job's key on a new link, both ways, before anything else is said. Pure: nonces come in as
arguments.

Rules of this file: payloads of HANDSHAKE frames, who may say what next, and the comparison. The key itself
is in no message, no error text and no repr.

    dialler                                       acceptor
    Hello(role, job, worker, ..., nonce_c)   ->
                                             <-   Challenge(nonce_s, proof_s)     proof_s = mac("acceptor",
                                             transcript)
    Proof(proof_c)                           ->                                   proof_c = mac("dialler",
    transcript)
                                             <-   Accepted(...) or Refused(reason), then the link closes

transcript = the bytes of Hello as sent + nonce_s; mac = HMAC-SHA256 under the job key with the label in
front. The two labels differ, so a proof cannot be mirrored; both nonces are fresh, so it cannot be
replayed. The dialler sends its proof only after the acceptor's is good. After the handshake frames carry
checksums, not MACs: the network between workers is loopback, TLS, or declared insecure by the user.
"""

import hashlib
import hmac
from typing import Final, Literal, TypeAlias

import msgspec

from checkpoint.core.channel_frames import ChannelFrame, FrameType
from checkpoint.core.messages import job_digest
from checkpoint.errors import HandshakeError

KEY_BYTES_MIN: Final = 16
NONCE_BYTES: Final = 32
Role: TypeAlias = Literal["control", "exchange"]


class LinkHello(msgspec.Struct, frozen=True, kw_only=True, tag="Hello"):
    """Who dials, and what for."""

    role: Role
    job: str
    worker: int
    attempt: int
    incarnation: int = 0
    """For exchange links: the incarnation whose steps will be sent. 0 on a control link."""
    nonce: bytes = b""


class Challenge(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The acceptor's proof and nonce."""

    nonce: bytes
    proof: bytes


class Proof(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The dialler's proof."""

    proof: bytes


class LinkAccepted(msgspec.Struct, frozen=True, kw_only=True, tag="Accepted"):
    """The link stands."""


class LinkRefused(msgspec.Struct, frozen=True, kw_only=True, tag="Refused"):
    """The link closes. The reason says nothing that a stranger may not know."""

    reason: str


_Payload: TypeAlias = LinkHello | Challenge | Proof | LinkAccepted | LinkRefused
_decoder: Final[msgspec.json.Decoder[_Payload]] = msgspec.json.Decoder(_Payload)


def _mac(key: bytes, label: str, transcript: bytes) -> bytes:
    return hmac.new(key, f"dos-link-1 {label}\0".encode() + transcript, hashlib.sha256).digest()


def _check_key(key: bytes) -> None:
    if len(key) < KEY_BYTES_MIN:
        raise ValueError(f"a job key has at least {KEY_BYTES_MIN} bytes, not {len(key)}")


def _frame(job: str, payload: _Payload) -> ChannelFrame:
    return ChannelFrame(FrameType.HANDSHAKE, job=job_digest(job), payload=msgspec.json.encode(payload))


def _decode(frame: ChannelFrame) -> _Payload:
    if frame.type is not FrameType.HANDSHAKE:
        raise HandshakeError(f"a {frame.type.name} frame came before the handshake was done")
    try:
        payload: _Payload = _decoder.decode(frame.payload)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise HandshakeError(f"a handshake frame does not decode: {error}") from error
    if isinstance(payload, LinkRefused):
        raise HandshakeError(f"the other end refused the link: {payload.reason}")
    return payload


class Dialler:
    """The side that connects: `hello()`, then `challenged(frame)` gives the proof to send, then
    `accepted(frame)`.
    """

    def __init__(self, hello: LinkHello, *, key: bytes, nonce: bytes) -> None:
        _check_key(key)
        self._key = key
        self._hello_frame = _frame(hello.job, msgspec.structs.replace(hello, nonce=nonce))
        self._job = hello.job

    def hello(self) -> ChannelFrame:
        return self._hello_frame

    def challenged(self, frame: ChannelFrame) -> ChannelFrame:
        """The proof to send. Raises HandshakeError, having proved nothing, unless the acceptor's proof is
        good.
        """
        payload = _decode(frame)
        if not isinstance(payload, Challenge) or len(payload.nonce) < NONCE_BYTES:
            raise HandshakeError(f"{type(payload).__name__} came where a challenge was due")
        transcript = bytes(self._hello_frame.payload) + payload.nonce
        if not hmac.compare_digest(payload.proof, _mac(self._key, "acceptor", transcript)):
            raise HandshakeError("the listener did not prove that it has this job's key")
        return _frame(self._job, Proof(proof=_mac(self._key, "dialler", transcript)))

    def accepted(self, frame: ChannelFrame) -> None:
        payload = _decode(frame)
        if not isinstance(payload, LinkAccepted):
            raise HandshakeError(f"{type(payload).__name__} came where the link's acceptance was due")


class Acceptor:
    """The side that listens: `received(hello)` gives the challenge, `proved(frame)` gives the acceptance."""

    def __init__(self, *, job: str, key: bytes, nonce: bytes) -> None:
        _check_key(key)
        self._job = job
        self._key = key
        self._nonce = nonce
        self._transcript = b""
        self._hello: LinkHello | None = None

    def received(self, frame: ChannelFrame) -> ChannelFrame:
        """The challenge for a HELLO. Raises HandshakeError for another job."""
        payload = _decode(frame)
        if not isinstance(payload, LinkHello) or len(payload.nonce) < NONCE_BYTES:
            raise HandshakeError(f"{type(payload).__name__} came where a hello was due")
        if payload.job != self._job or frame.job != job_digest(self._job):
            raise HandshakeError(f"a link of job {payload.job[:128]!r} came to job {self._job!r}")
        self._hello = payload
        self._transcript = bytes(frame.payload) + self._nonce
        proof = _mac(self._key, "acceptor", self._transcript)
        return _frame(self._job, Challenge(nonce=self._nonce, proof=proof))

    def proved(self, frame: ChannelFrame) -> tuple[LinkHello, ChannelFrame]:
        """Who dials, now proved, and the acceptance to send. Raises HandshakeError; nothing the peer said
        counts.
        """
        payload = _decode(frame)
        if self._hello is None or not isinstance(payload, Proof):
            raise HandshakeError(f"{type(payload).__name__} came where a proof was due")
        if not hmac.compare_digest(payload.proof, _mac(self._key, "dialler", self._transcript)):
            raise HandshakeError("the dialler did not prove that it has this job's key")
        return self._hello, _frame(self._job, LinkAccepted())

    def refusal(self, error: HandshakeError) -> ChannelFrame:
        """What to tell the other end before closing."""
        return _frame(self._job, LinkRefused(reason=error.args[0]))
