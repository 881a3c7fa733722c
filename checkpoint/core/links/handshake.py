"""The handshake of a new link: both ends prove that they have the job's key. Pure: nonces are arguments.

    dialler                                       acceptor
    Hello(role, job, worker, ..., nonce_c)   ->
                                             <-   Challenge(nonce_s, proof_s)
    Proof(proof_c)                           ->
                                             <-   Accepted(), or Refused(reason) and the link closes

    proof_s, proof_c = HMAC-SHA256 under the job key, of "acceptor" or "dialler", Hello as sent and nonce_s

The labels differ, so a proof cannot be mirrored. Both nonces are fresh, so none can be replayed. An end that
speaks none of the other's versions of messages refuses the link. The key is in no message, error or repr.
"""

import hashlib
import hmac
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from checkpoint.core.links.frames import ChannelFrame, FrameType, job_digest
from checkpoint.core.links.messages import VERSIONS, Versions, overlap, versions_text
from checkpoint.errors import HandshakeError
from dos_protocol.errors import MALFORMED_JSON

KEY_BYTES_MIN: Final = 16
NONCE_BYTES: Final = 32
Role: TypeAlias = Literal["control", "exchange", "standby", "companion", "batch"]


class LinkHello(msgspec.Struct, frozen=True, kw_only=True, tag="Hello"):
    """The dialler and the purpose of the link."""

    role: Role
    job: str
    worker: int
    """The sender's index; -1 for a stand-by, and for a task of a batch."""
    attempt: int
    """The attempt of the worker, also on the link of its companion; for a stand-by, its own number."""
    incarnation: int = 0
    """The incarnation whose steps are sent on an exchange link, or in which a share of a batch is needed; 0
    on a control link. With local recovery: the dialler's term.
    """
    to_worker: int = -1
    """With local recovery: the worker that the dialler wants to reach. A process at its former address is
    another one.
    """
    to_term: int = 0
    """With local recovery: the term of that worker, as the dialler knows it."""
    nonce: bytes = b""
    speaks: Versions = (0, 0)
    """`Dialler` states it, and the nonce. A Hello without one is refused: no end has version 0."""
    package: str = ""
    """The version of the package, for messages."""


class Challenge(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The acceptor's proof and nonce."""

    nonce: bytes
    proof: bytes
    speaks: Versions
    package: str = ""


class Proof(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The dialler's proof."""

    proof: bytes


class LinkAccepted(msgspec.Struct, frozen=True, kw_only=True, tag="Accepted"):
    """The link is established."""


class LinkRefused(msgspec.Struct, frozen=True, kw_only=True, tag="Refused"):
    """The link closes. The reason contains nothing secret, because the peer may be unknown."""

    reason: str
    remedy: str = ""


class LinkAssigned(msgspec.Struct, frozen=True, kw_only=True, tag="Assigned"):
    """The worker that a stand-by becomes: offered, accepted, and sent once more to confirm it."""

    worker: int
    attempt: int


_Payload: TypeAlias = LinkHello | Challenge | Proof | LinkAccepted | LinkRefused | LinkAssigned
_decoder: Final[msgspec.json.Decoder[_Payload]] = msgspec.json.Decoder(_Payload)


def _mac(key: bytes, label: str, transcript: bytes) -> bytes:
    return hmac.new(key, f"dos-link-1 {label}\0".encode() + transcript, hashlib.sha256).digest()


def _check_key(key: bytes) -> None:
    if len(key) < KEY_BYTES_MIN:
        raise ValueError(f"a job key needs at least {KEY_BYTES_MIN} bytes, got {len(key)}")


def _frame(job: str, payload: _Payload) -> ChannelFrame:
    return ChannelFrame(FrameType.HANDSHAKE, job=job_digest(job), payload=msgspec.json.encode(payload))


def _decode(frame: ChannelFrame) -> _Payload:
    if frame.type is not FrameType.HANDSHAKE:
        raise HandshakeError(f"received a {frame.type.name} frame before the handshake was complete")
    try:
        payload: _Payload = _decoder.decode(frame.payload)
    except MALFORMED_JSON as error:
        raise HandshakeError(f"a handshake frame does not decode: {error}") from error
    if isinstance(payload, LinkRefused):
        raise HandshakeError(f"the peer refused the link: {payload.reason}", remedy=payload.remedy)
    return payload


class Party(NamedTuple):
    """One end of a link: its package, and the versions of messages that it speaks."""

    speaks: Versions = VERSIONS
    package: str = ""


THIS: Final = Party()


def _check_versions(dialler: Party, acceptor: Party, worker: int) -> None:
    if not overlap(dialler.speaks, acceptor.speaks):
        raise HandshakeError(
            f"worker {worker} runs {_package_text(dialler)}, the process that it connects to"
            f" {_package_text(acceptor)}",
            remedy="install a version on one of the two hosts that fits the other's; CHANGELOG.md has the"
            " versions that each release speaks",
        )


def _package_text(party: Party) -> str:
    return f"dos-journal {party.package or '?'}, which speaks {versions_text(party.speaks)} of the messages"


class Dialler:
    """The side that connects: sends `hello()`, then `challenged(frame)`, then calls `accepted(frame)`."""

    def __init__(self, hello: LinkHello, *, key: bytes, nonce: bytes, party: Party = THIS) -> None:
        _check_key(key)
        self._key = key
        self._party = party
        self._worker = hello.worker
        stated = msgspec.structs.replace(hello, nonce=nonce, speaks=party.speaks, package=party.package)
        self._hello_frame = _frame(hello.job, stated)
        self._job = hello.job

    def hello(self) -> ChannelFrame:
        return self._hello_frame

    # The acceptor's proof is verified first: an impostor must not collect ours.
    def challenged(self, frame: ChannelFrame) -> ChannelFrame:
        """Return the proof to send. Raises HandshakeError if the acceptor's proof or its version is wrong."""
        payload = _decode(frame)
        if not isinstance(payload, Challenge) or len(payload.nonce) < NONCE_BYTES:
            raise HandshakeError(f"expected Challenge, got {type(payload).__name__}")
        transcript = bytes(self._hello_frame.payload) + payload.nonce
        if not hmac.compare_digest(payload.proof, _mac(self._key, "acceptor", transcript)):
            raise HandshakeError("the listener did not prove that it has the key of this job")
        _check_versions(self._party, Party(payload.speaks, payload.package), self._worker)
        return _frame(self._job, Proof(proof=_mac(self._key, "dialler", transcript)))

    def accepted(self, frame: ChannelFrame) -> None:
        payload = _decode(frame)
        if not isinstance(payload, LinkAccepted):
            raise HandshakeError(f"expected LinkAccepted, got {type(payload).__name__}")


class Acceptor:
    """The side that listens: sends `received(hello)`, then the frame of `proved(frame)`."""

    def __init__(self, *, job: str, key: bytes, nonce: bytes, party: Party = THIS) -> None:
        _check_key(key)
        self._party = party
        self._job = job
        self._key = key
        self._nonce = nonce
        self._transcript = b""
        self._hello: LinkHello | None = None

    def received(self, frame: ChannelFrame) -> ChannelFrame:
        """Return the challenge for a Hello. Raises HandshakeError for another job, or version."""
        payload = _decode(frame)
        if not isinstance(payload, LinkHello) or len(payload.nonce) < NONCE_BYTES:
            raise HandshakeError(f"expected LinkHello, got {type(payload).__name__}")
        if payload.job != self._job or frame.job != job_digest(self._job):
            raise HandshakeError(f"received a link of job {payload.job[:128]!r}, this is job {self._job!r}")
        _check_versions(Party(payload.speaks, payload.package), self._party, payload.worker)
        self._hello = payload
        self._transcript = bytes(frame.payload) + self._nonce
        proof = _mac(self._key, "acceptor", self._transcript)
        return _frame(self._job, Challenge(nonce=self._nonce, proof=proof, **self._party._asdict()))

    def proved(self, frame: ChannelFrame) -> tuple[LinkHello, ChannelFrame]:
        """Return the authenticated Hello and the acceptance. Raises HandshakeError if the proof is wrong."""
        payload = _decode(frame)
        if self._hello is None or not isinstance(payload, Proof):
            raise HandshakeError(f"expected Proof, got {type(payload).__name__}")
        if not hmac.compare_digest(payload.proof, _mac(self._key, "dialler", self._transcript)):
            raise HandshakeError("the dialler did not prove that it has the key of this job")
        return self._hello, _frame(self._job, LinkAccepted())

    def refusal(self, error: HandshakeError) -> ChannelFrame:
        """Return the frame to send before the link closes."""
        return _frame(self._job, LinkRefused(reason=error.args[0], remedy=error.remedy))


def assignment(job: str, assigned: LinkAssigned) -> ChannelFrame:
    """Return the frame for an assignment."""
    return _frame(job, assigned)


def read_assignment(frame: ChannelFrame) -> LinkAssigned:
    """Return the assignment in a frame. Raises HandshakeError for any other frame."""
    payload = _decode(frame)
    if not isinstance(payload, LinkAssigned):
        raise HandshakeError(f"expected LinkAssigned, got {type(payload).__name__}")
    return payload
