"""What a backup of a region copies, what it need not copy again, and what a target may delete. Pure.

`backup_record.py` has the records. The theory:

1. A checkpoint X states the position of every chain of its workers. A restore of X reads each chain from its
   floor up to that position, *which lies in the newest segment*, so a part of that segment is copied too.
2. Inputs are needed from the positions of X on, up to what is recorded when they are copied: a producer's
   numbers continue there.
3. The newest record states which backups are retained. Only their pieces, and those of runs that began after
   it, are used again: no run deletes these (4).
4. A run deletes after its record is written, and only records and pieces of its own number or lower: first
   the records that are not retained, then the pieces that no retained backup needs. Pieces of a later run
   have higher numbers, and the record of an earlier one can no longer be written.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from checkpoint import limits
from checkpoint.core.backup_record import BackupRecord, SavedSegment, number_of, parse_piece_name
from checkpoint.core.records.consumers import INPUT_REGISTERS, OUTPUT_REGISTERS, Register
from checkpoint.core.records.inputs import input_directory
from checkpoint.core.records.lines import log_sizes
from checkpoint.core.records.manifest import Checkpoint, OutputIdentity, Rewind, in_its_version
from checkpoint.core.records.outputs import OUTPUT_CHAIN_PREFIX, output_chain
from checkpoint.core.region import worker_directory
from checkpoint.errors import BackupRefusedError
from journal import ORIGIN, Floor, Position

_POSITION: Final = frozenset(Position.__struct_fields__)


class NeededChain(NamedTuple):
    """A chain that a restore of a checkpoint reads: from the segment at the logical offset `floor` up to a
    position.
    """

    directory: str
    chain: str
    at: Position
    floor: int


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
            if _is_log(name, at, output.floors)
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


def _is_log(name: str, at: Any, floors: Mapping[str, Floor]) -> bool:
    """Return whether a sink's output is an output log. A checkpoint of an older version states no floor."""
    return f"{OUTPUT_CHAIN_PREFIX}{name}" in floors or (isinstance(at, dict) and set(at) == _POSITION)


class Known(NamedTuple):
    """The objects that a run may use again."""

    segments: Mapping[tuple[str, str], SavedSegment]
    """(directory, segment) -> what the newest backup has of it."""
    unlisted: Mapping[str, str]
    """SHA-256 -> the piece of a run that began after the newest backup and did not end."""


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
    restored = msgspec.structs.replace(
        checkpoint,
        number=checkpoint.number + 1,
        parent=checkpoint.number,
        incarnation=incarnation,
        rolled_back_to=checkpoint.voted_as,
        retained=(checkpoint.number + 1,),
        savepoints={},
        notes={},
        phases_s={},
        line=rewind.line,
        rewinds=(*checkpoint.rewinds, rewind)[-limits.rewinds_kept_max :],
        rewound=True,
        edit=None,
        identity=(checkpoint.identity or OutputIdentity(region=record.region, store=record.store))
        if old_is_gone
        else None,
    )
    return in_its_version(restored if old_is_gone else without_outside_output(restored))


def outside_sinks(checkpoint: Checkpoint) -> list[str]:
    """Return the sinks whose output is outside of the store."""
    inside = {name for part in checkpoint.workers.values() for name in part.directories}
    return sorted(
        {
            name
            for part in checkpoint.outputs().values()
            for name, at in part.sinks.items()
            if name not in inside and not _is_log(name, at, part.floors)
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
