"""The records of backups in a target: what a backup consists of, and the bytes of its record. Pure.

A target numbers the records of one region 1, 2, ... A run writes two of them: one that it *begins*, and,
after everything else, one that has the whole backup. Each is written only if no record has that number. So a
run that began while another one was under way makes the record of the other impossible, as a claim does.

    offset size
         0    4  magic ff 44 42 4b
         4    1  version = 1
         5    1  kind: 1 a run begins, 2 a backup
         6    2  zero
         8    8  bytes of the JSON, big-endian
        16    .  the JSON
         .   32  SHA-256 of everything before it

The bytes of a segment are stored as *pieces*, each an object that is never changed. A later backup of a
segment that has grown has the pieces of the earlier one and more.
"""

import hashlib
import struct
from typing import Final, NamedTuple

import msgspec

from checkpoint import limits
from checkpoint.core.records.consumers import Register
from checkpoint.core.records.manifest import Checkpoint, decode_checkpoint, encode_checkpoint
from checkpoint.errors import BackupDamagedError
from dos_protocol.digests import ResumePoint
from dos_protocol.errors import MALFORMED_JSON
from journal import Floor

_MAGIC: Final = b"\xffDBK"
_VERSION: Final = 1
_HEADER: Final = struct.Struct(">4sBBHQ")
_SUM_BYTES: Final = 32
_BEGUN: Final = 1
_WHOLE: Final = 2

RECORD_PREFIX: Final = "record-"
PIECE_PREFIX: Final = "piece-"


class Piece(msgspec.Struct, frozen=True):
    """An object with the bytes of a segment from `begin` on. sha256: of all of its bytes, hexadecimal."""

    name: str
    begin: int
    length: int
    sha256: str

    @property
    def end(self) -> int:
        return self.begin + self.length


class SavedSegment(msgspec.Struct, frozen=True):
    """The first `length` bytes of a segment, with this prefix digest. resume: where a later backup continues
    the digest.
    """

    name: str
    length: int
    digest: int
    resume: ResumePoint
    pieces: tuple[Piece, ...]


class SavedChain(msgspec.Struct, frozen=True):
    """The segments of a chain that a backup has, the lowest first.

    released: the lowest of them, if the chain has a history below it that the backup does not have. Only of
    an input: of other chains, the checkpoint states what is needed.
    """

    directory: str
    chain: str
    segments: tuple[SavedSegment, ...]
    released: Floor | None = None


class SavedRegister(msgspec.Struct, frozen=True):
    """What a register of consumers states about the region, and the rule that a person has set."""

    directory: str
    chain: str
    register: Register


class RunBegan(msgspec.Struct, frozen=True, kw_only=True):
    """The record with which a run begins. run: random, so that no two runs have the same bytes.

    newest: the newest backup before this record, 0 for none. It is written only if nothing has its number,
    and numbers have no gaps above the newest backup: so no other backup was written since `newest` was read.
    """

    run: str
    newest: int
    wall_time_ms: int


class BackupRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A complete backup of a region as of one checkpoint."""

    number: int
    run: int
    """The number of the record with which the run began. The names of its pieces begin with it."""
    region: str
    store: str
    """The store of the region, hexadecimal."""
    wall_time_ms: int
    """When everything was copied."""
    stored: tuple[int, tuple[int, int, int], str]
    """Flags, ints and JSON of the checkpoint, as its record in the manifest has them."""
    chains: tuple[SavedChain, ...]
    registers: tuple[SavedRegister, ...] = ()
    reads_outputs: tuple[str, ...] = ()
    """The regions whose output logs it reads. They have backups of their own."""
    left_out: tuple[str, ...] = ()
    """The registered consumers that the backup does not have, each with what it reads."""
    retained: tuple[int, ...] = ()
    """The backups that remain, this one included. All others are released: their objects may be gone."""
    copied_bytes: int = 0

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint. Raises ManifestError if this program cannot read it."""
        flags, ints, text = self.stored
        return decode_checkpoint(flags, ints, text.encode())

    @property
    def bytes(self) -> int:
        """The bytes of all segments."""
        return sum(segment.length for chain in self.chains for segment in chain.segments)

    def pieces(self) -> dict[str, int]:
        """Return the name and the length of every object that it needs."""
        return {
            piece.name: piece.length
            for chain in self.chains
            for segment in chain.segments
            for piece in segment.pieces
        }


def stored_checkpoint(checkpoint: Checkpoint) -> tuple[int, tuple[int, int, int], str]:
    """Return a checkpoint as `BackupRecord.stored` has it."""
    encoded = encode_checkpoint(checkpoint)
    return encoded.flags, encoded.ints, encoded.text.decode()


def record_name(number: int) -> str:
    """Return the name of a record. Names sort as the numbers do."""
    return f"{RECORD_PREFIX}{number:016x}"


def number_of(name: str) -> int | None:
    """Return the number of a record, None for the name of another object."""
    digits = name.removeprefix(RECORD_PREFIX)
    if digits == name or len(digits) != 16 or not set(digits) <= set("0123456789abcdef"):
        return None
    return int(digits, 16)


def piece_name(run: int, sha256: str) -> str:
    """Return the name of the object with these bytes that a run writes."""
    return f"{PIECE_PREFIX}{run:016x}-{sha256}"


class PieceName(NamedTuple):
    """The parts of the name of a piece."""

    run: int
    sha256: str


def parse_piece_name(name: str) -> PieceName | None:
    """Return the parts of the name of a piece, None for the name of another object."""
    run, dash, sha256 = name.removeprefix(PIECE_PREFIX).partition("-")
    if not name.startswith(PIECE_PREFIX) or not dash or len(run) != 16 or len(sha256) != 64:
        return None
    try:
        return PieceName(int(run, 16), sha256)
    except ValueError:
        return None


def encode_record(record: RunBegan | BackupRecord) -> bytes:
    """Return the bytes of a record. Raises BackupDamagedError if it exceeds the limit."""
    kind = _BEGUN if isinstance(record, RunBegan) else _WHOLE
    body = msgspec.json.encode(record)
    if len(body) > limits.backup_record_bytes_max:
        raise BackupDamagedError(
            "the record of the backup",
            f"it would have {len(body)} bytes, the limit is {limits.backup_record_bytes_max}",
            remedy="the region has too many segments: let it take a snapshot, and run the backup again",
        )
    data = _HEADER.pack(_MAGIC, _VERSION, kind, 0, len(body)) + body
    return data + hashlib.sha256(data).digest()


def decode_record(data: bytes, where: str) -> RunBegan | BackupRecord | None:
    """Return the record in these bytes; None if they end before the record does: its write was interrupted.

    where: the name of the object, for errors. Raises BackupDamagedError.
    """
    if not data.startswith(_MAGIC[: len(data)]):
        raise BackupDamagedError(where, f"it begins with {data[:4].hex()}, not with {_MAGIC.hex()}")
    if len(data) < _HEADER.size:
        return None
    _, version, kind, zero, length = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise BackupDamagedError(
            where, f"it has version {version}, this program reads {_VERSION}", remedy="use a newer program"
        )
    if kind not in (_BEGUN, _WHOLE) or zero or length > limits.backup_record_bytes_max:
        raise BackupDamagedError(where, f"its header is invalid: kind {kind}, {length} bytes")
    if len(data) < _HEADER.size + length + _SUM_BYTES:
        return None
    body = data[_HEADER.size : _HEADER.size + length]
    if data[_HEADER.size + length :] != hashlib.sha256(data[: _HEADER.size + length]).digest():
        raise BackupDamagedError(where, "its bytes do not have its SHA-256")
    try:
        if kind == _BEGUN:
            return msgspec.json.decode(body, type=RunBegan)
        return msgspec.json.decode(body, type=BackupRecord)
    except MALFORMED_JSON as error:
        raise BackupDamagedError(where, f"its JSON is invalid: {error}") from error
