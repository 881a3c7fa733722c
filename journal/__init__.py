"""Journals: write, take over, read and replay append-only chains of records.

The names in `__all__` are the public interface of the package. `core/` does no I/O; `chain`, `reading`,
`writer` and `scratch` connect it to a store of `dos_client`. To read the code, start with
`core/record_layout.py`, then `core/record.py`, `core/segment.py` and `core/walk.py`.
"""

from typing import TYPE_CHECKING

from dos_protocol.lazy_names import lazy_names

if TYPE_CHECKING:
    from journal.chain import inspect_chain, inspect_chain_at, take_over
    from journal.core.chain import ChainState, SegmentSpan, segments_seen
    from journal.core.decoder import RecordDecoder
    from journal.core.errors import (
        ChainError,
        CorruptRecordError,
        EpochUsedTwiceError,
        LocalFilesError,
        LostBytesError,
        NotEnoughAnswersError,
        StopNotFoundError,
        TornRecordError,
        UnknownRecordError,
    )
    from journal.core.file_ops import FileOp, FileTruncate, FileWrite
    from journal.core.inspection import Located
    from journal.core.position import ORIGIN, Position
    from journal.core.record import Record
    from journal.core.replay import fold
    from journal.core.segment import SegmentName, parse_segment_name
    from journal.core.trimming import Floor, Floors, below, lowest
    from journal.files.directory import Directory
    from journal.files.local_journal import LocalJournal
    from journal.files.mirroring import Mirror
    from journal.files.moments import AtCheckpoint, AtStep
    from journal.files.restoring import RestoreResult, restore
    from journal.following import ChainFollower, size_seen
    from journal.ops import Op
    from journal.reading import read_batches, read_plain_batches, read_records
    from journal.scratch import Scratch
    from journal.watching import ChainWatch
    from journal.writer import ChainWriter

__all__ = [
    "ORIGIN",
    "AtCheckpoint",
    "AtStep",
    "ChainError",
    "ChainFollower",
    "ChainState",
    "ChainWatch",
    "ChainWriter",
    "CorruptRecordError",
    "Directory",
    "EpochUsedTwiceError",
    "FileOp",
    "FileTruncate",
    "FileWrite",
    "Floor",
    "Floors",
    "LocalFilesError",
    "LocalJournal",
    "Located",
    "LostBytesError",
    "Mirror",
    "NotEnoughAnswersError",
    "Op",
    "Position",
    "Record",
    "RecordDecoder",
    "RestoreResult",
    "Scratch",
    "SegmentName",
    "SegmentSpan",
    "StopNotFoundError",
    "TornRecordError",
    "UnknownRecordError",
    "below",
    "fold",
    "inspect_chain",
    "inspect_chain_at",
    "lowest",
    "parse_segment_name",
    "read_batches",
    "read_plain_batches",
    "read_records",
    "restore",
    "segments_seen",
    "size_seen",
    "take_over",
]

MODULES = {
    "journal.chain": (
        "inspect_chain",
        "inspect_chain_at",
        "take_over",
    ),
    "journal.core.chain": (
        "ChainState",
        "SegmentSpan",
        "segments_seen",
    ),
    "journal.core.decoder": ("RecordDecoder",),
    "journal.core.errors": (
        "ChainError",
        "CorruptRecordError",
        "EpochUsedTwiceError",
        "LocalFilesError",
        "LostBytesError",
        "NotEnoughAnswersError",
        "StopNotFoundError",
        "TornRecordError",
        "UnknownRecordError",
    ),
    "journal.core.file_ops": (
        "FileOp",
        "FileTruncate",
        "FileWrite",
    ),
    "journal.core.inspection": ("Located",),
    "journal.core.position": (
        "ORIGIN",
        "Position",
    ),
    "journal.core.record": ("Record",),
    "journal.core.replay": ("fold",),
    "journal.core.segment": (
        "SegmentName",
        "parse_segment_name",
    ),
    "journal.core.trimming": (
        "Floor",
        "Floors",
        "below",
        "lowest",
    ),
    "journal.files.directory": ("Directory",),
    "journal.files.local_journal": ("LocalJournal",),
    "journal.files.mirroring": ("Mirror",),
    "journal.files.moments": (
        "AtCheckpoint",
        "AtStep",
    ),
    "journal.files.restoring": (
        "RestoreResult",
        "restore",
    ),
    "journal.following": (
        "ChainFollower",
        "size_seen",
    ),
    "journal.ops": ("Op",),
    "journal.reading": (
        "read_batches",
        "read_plain_batches",
        "read_records",
    ),
    "journal.scratch": ("Scratch",),
    "journal.watching": ("ChainWatch",),
    "journal.writer": ("ChainWriter",),
}
"""Module -> the names imported from it. The same list as above, used at run time to import lazily."""

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(globals(), MODULES)
