"""Backups of a region: the bytes of their records, what a backup copies, and what a target may delete. Pure.

A target numbers the records of one region 1, 2, ... A run writes two of them: one that it *begins*, and,
after everything else, one that has the whole backup. Each is written only if no record has that number. So a
run that began while another one was under way makes the record of the other impossible, as a claim does.

The bytes of a segment are stored as *pieces*, each an object that is never changed. A later backup of a
segment that has grown has the pieces of the earlier one and more. Inputs are needed from the positions of the
checkpoint on, up to what is recorded when they are copied: a producer's numbers continue there.
"""

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from checkpoint import limits
from checkpoint.core.records.consumers import INPUT_REGISTERS, OUTPUT_REGISTERS, Register
from checkpoint.core.records.inputs import input_directory
from checkpoint.core.records.lines import log_sizes, repeated
from checkpoint.core.records.manifest import (
    Checkpoint,
    OutputIdentity,
    Rewind,
    decode_checkpoint,
    encode_checkpoint,
)
from checkpoint.core.records.outputs import OUTPUT_CHAIN_PREFIX, output_chain
from checkpoint.core.region import worker_directory
from checkpoint.errors import BackupDamagedError, BackupRefusedError
from dos_protocol.digests import ResumePoint
from dos_protocol.errors import MALFORMED_JSON
from journal import ORIGIN, Floor, Position

_MAGIC: Final = b"\xffDBK"
_VERSION: Final = 1
#     offset size
#          0    4  magic ff 44 42 4b
#          4    1  version = 1
#          5    1  kind: 1 a run begins, 2 a backup
#          6    2  zero
#          8    8  bytes of the JSON, big-endian
#         16    .  the JSON
#          .   32  SHA-256 of everything before it
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


class NeededChain(NamedTuple):
    """A chain that a restore of a checkpoint reads: from the segment at the logical offset `floor` up to a
    position.
    """

    directory: str
    chain: str
    at: Position
    floor: int


# A checkpoint X states the position of every chain of its workers. A restore of X reads each chain from its
# floor up to that position, *which lies in the newest segment*, so a part of that segment is copied too.
def needed_chains(checkpoint: Checkpoint, region: str) -> list[NeededChain]:
    """Return the chains of the region's workers that a restore of the checkpoint reads.

    Raises BackupRefusedError if they are in the directories of another region.
    """
    if checkpoint.in_origin:
        raise BackupRefusedError(
            f"region {region!r} is a fork without chains of its own: run it until it commits a checkpoint"
        )
    found = []
    for worker, part in checkpoint.workers.items():
        found += _chains_of(region, worker, part.chains(), part.floors)
    for worker, output in checkpoint.outputs().items():
        logs = {
            output_chain(name): msgspec.convert(at, Position)
            for name, at in output.sinks.items()
            if _is_log(name, output.floors)
        }
        found += _chains_of(region, worker, logs, output.floors)
    return sorted(found, key=lambda one: one[:2])


def foreign_directories(record: BackupRecord) -> list[str]:
    """Return the directories of a record that no backup of its region has. A restore would claim and write
    them with the rights of the person who runs it, and the record comes from a bucket.

    A backup has directories of the region's workers, of the inputs that it is registered to read, and the
    registers of these and of its own outputs.
    """
    region, foreign, inputs = record.region, list[str](), list[str]()
    for saved in record.registers:
        application, separator, handle = saved.directory.rpartition(INPUT_REGISTERS)
        if separator and set(saved.register.consumers) == {region}:
            inputs.append(input_directory(application, handle))
        elif saved.directory != f"{region}{OUTPUT_REGISTERS}" or set(saved.register.consumers) - {region}:
            foreign.append(saved.directory)
    workers = {one.directory for one in needed_chains(record.checkpoint, region)}
    for directory in sorted({chain.directory for chain in record.chains} - workers):
        if not any(directory == one or directory.startswith(f"{one}.") for one in inputs):
            foreign.append(directory)
    return foreign


def _chains_of(
    region: str, worker: int, chains: Mapping[str, Position], floors: Mapping[str, Floor]
) -> list[NeededChain]:
    directory = worker_directory(region, worker)
    return [
        NeededChain(directory, chain, at, floors.get(chain, (0, 0))[1])
        for chain, at in chains.items()
        if at != ORIGIN and at.size
    ]


def _is_log(name: str, floors: Mapping[str, Floor]) -> bool:
    """Return whether a sink's output is an output log."""
    return f"{OUTPUT_CHAIN_PREFIX}{name}" in floors


class Known(NamedTuple):
    """The objects that a run may use again."""

    segments: Mapping[tuple[str, str], SavedSegment]
    """(directory, segment) -> what the newest backup has of it."""
    unlisted: Mapping[str, str]
    """SHA-256 -> the piece of a run that began after the newest backup and did not end."""


# The newest record states which backups are retained. Only their pieces, and those of runs that began after
# it, are used again: no run deletes these (`unneeded_pieces`).
def known_objects(newest: BackupRecord | None, listed: Mapping[str, int]) -> Known:
    """Return what can be used again. listed: the objects that the target lists, with their lengths.

    A segment of which the target lacks a piece, or has a piece of another length, is copied again.
    """
    segments = {}
    for chain in newest.chains if newest is not None else ():
        for segment in chain.segments:
            if all(listed.get(piece.name) == piece.length for piece in segment.pieces):
                segments[chain.directory, segment.name] = segment
    unlisted = {}
    for name in listed:
        parsed = parse_piece_name(name)
        if parsed is not None and parsed.run > (newest.number if newest is not None else 0):
            unlisted[parsed.sha256] = name
    return Known(segments, unlisted)


def continued(saved: SavedSegment | None, length: int) -> SavedSegment | None:
    """Return what is there of a segment, if the first `length` bytes of it are that and perhaps more after
    it.

    None if it must be copied from its beginning: nothing is there, more than `length` bytes are, or it
    consists of so many small pieces that a restore would read them slowly.
    """
    if saved is None or saved.length > length:
        return None
    many = limits.backup_small_pieces_max + length // limits.backup_piece_bytes_max
    return saved if len(saved.pieces) < many or saved.length == length else None


def released_records(listed: Iterable[str], record: BackupRecord) -> list[str]:
    """Return the records that may be deleted after `record` is written, the oldest first."""
    numbers = {name: number_of(name) for name in listed}
    return sorted(
        name
        for name, number in numbers.items()
        if number is not None and number < record.number and number not in record.retained
    )


# A run deletes after its record is written, and only records and pieces of its own number or lower: first
# the records that are not retained, then the pieces that no retained backup needs. Pieces of a later run
# have higher numbers, and the record of an earlier one can no longer be written.
def unneeded_pieces(
    listed: Iterable[str], record: BackupRecord, retained: Sequence[BackupRecord]
) -> list[str]:
    """Return the pieces that may be deleted: of this run and earlier ones, and needed by no retained backup.

    retained: all backups that `record` retains, itself included.
    """
    assert {one.number for one in retained} == set(record.retained), "all of them decide"
    needed = {name for one in retained for name in one.pieces()}
    return sorted(
        name
        for name in listed
        if (parsed := parse_piece_name(name)) is not None and parsed.run <= record.run and name not in needed
    )


def retained_after(newest: BackupRecord | None, number: int, keep: int) -> tuple[int, ...]:
    """Return the backups that remain after `number` is written: the newest `keep`, itself included."""
    before = newest.retained if newest is not None else ()
    return (*before, number)[-keep:]


def only_region(register: Register, region: str) -> Register:
    """Return a register with this region alone: no other consumer is in the store of a restored region. One
    that is not there would keep all rows for ever.
    """
    own = {name: one for name, one in register.consumers.items() if name == region}
    return Register(consumers=own, rule=register.rule)


def left_out_text(left_out: Sequence[str]) -> str:
    """Return the message about registered consumers that a backup does not have, "" if there are none."""
    if not left_out:
        return ""
    return (
        f"not in the backup are the registrations of {', '.join(left_out)}: in a restored region, what they"
        " have not read is kept only after they have registered there"
    )


def restored_from(record: BackupRecord, incarnation: int, *, old_is_gone: bool) -> Checkpoint:
    """Return the first checkpoint of the region that is restored from a backup.

    It begins a line of history, so that readers notice that what followed the backup is gone. With
    `old_is_gone` the region is the owner of the output that the original had outside of the store; otherwise
    such output begins anew, because the original may still write its own.
    """
    checkpoint = record.checkpoint
    rewind = Rewind(
        line=checkpoint.line + 1,
        to=checkpoint.voted_as,
        step=checkpoint.step,
        of=checkpoint.line,
        outputs=log_sizes(checkpoint),
    )
    restored = repeated(
        checkpoint,
        checkpoint,
        incarnation,
        retained=(checkpoint.number + 1,),
        savepoints={},
        notes={},
        line=rewind.line,
        rewinds=(*checkpoint.rewinds, rewind)[-limits.rewinds_kept_max :],
        rewound=True,
        identity=(checkpoint.identity or OutputIdentity(region=record.region, store=record.store))
        if old_is_gone
        else None,
    )
    return restored if old_is_gone else without_outside_output(restored)


def outside_sinks(checkpoint: Checkpoint) -> list[str]:
    """Return the sinks whose output is outside of the store."""
    inside = {name for part in checkpoint.workers.values() for name in part.directories}
    return sorted(
        {
            name
            for part in checkpoint.outputs().values()
            for name in part.sinks
            if name not in inside and not _is_log(name, part.floors)
        }
    )


def without_outside_output(checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint in which sinks outside of the store have written nothing yet."""
    outside = set(outside_sinks(checkpoint))

    def kept(sinks: Mapping[str, object]) -> dict[str, object]:
        return {name: at for name, at in sinks.items() if name not in outside}

    return msgspec.structs.replace(
        checkpoint,
        workers={
            worker: msgspec.structs.replace(part, sinks=kept(part.sinks))
            for worker, part in checkpoint.workers.items()
        },
        retired={
            worker: msgspec.structs.replace(part, sinks=kept(part.sinks))
            for worker, part in checkpoint.retired.items()
        },
    )


def highest_epoch(checkpoint: Checkpoint) -> int:
    """Return the highest epoch that anything of a checkpoint has."""
    epochs = {epoch for part in checkpoint.workers.values() for epoch in part.epochs()}
    floors = {floor[0] for part in checkpoint.outputs().values() for floor in part.floors.values()}
    return max({checkpoint.incarnation} | epochs | floors)


def first_incarnation(checkpoint: Checkpoint, now_ms: int) -> int:
    """Return a number above which the incarnation of a restored region is: above everything in the backup,
    and above what the original and earlier restores of the same backup have probably reached since, because
    sinks outside of the store refuse earlier incarnations.
    """
    seconds = max(now_ms - checkpoint.wall_time_ms, 0) // 1000
    return highest_epoch(checkpoint) + limits.backup_epochs_ahead + seconds
