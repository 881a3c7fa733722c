"""Journals: write, take over, read and replay append-only chains of records.

The names in `__all__` are the public interface of the package. `core/` does no I/O; `chain`, `reading`,
`writer` and `scratch` connect it to a store of `dos_client`. To read the code, start with
`core/record.py`, then `core/chain.py` and `core/walk.py`.
"""

from typing import TYPE_CHECKING

from dos_protocol.lazy_names import lazy_names

if TYPE_CHECKING:
    from journal.chain import inspect_chain as inspect_chain
    from journal.chain import inspect_chain_at as inspect_chain_at
    from journal.chain import inspect_whole as inspect_whole
    from journal.chain import report_unproved as report_unproved
    from journal.chain import take_over as take_over
    from journal.core.chain import NO_FLOOR as NO_FLOOR
    from journal.core.chain import ORIGIN as ORIGIN
    from journal.core.chain import ChainState as ChainState
    from journal.core.chain import Floor as Floor
    from journal.core.chain import Floors as Floors
    from journal.core.chain import Gap as Gap
    from journal.core.chain import Gaps as Gaps
    from journal.core.chain import Position as Position
    from journal.core.chain import SegmentName as SegmentName
    from journal.core.chain import SegmentSpan as SegmentSpan
    from journal.core.chain import below as below
    from journal.core.chain import below_or_within as below_or_within
    from journal.core.chain import gaps_between as gaps_between
    from journal.core.chain import lowest as lowest
    from journal.core.chain import parse_segment_name as parse_segment_name
    from journal.core.chain import segments_seen as segments_seen
    from journal.core.errors import ArchiveNotFoundError as ArchiveNotFoundError
    from journal.core.errors import ArchiveRefusedError as ArchiveRefusedError
    from journal.core.errors import ArchiveUnavailableError as ArchiveUnavailableError
    from journal.core.errors import ChainError as ChainError
    from journal.core.errors import CorruptRecordError as CorruptRecordError
    from journal.core.errors import EpochUsedTwiceError as EpochUsedTwiceError
    from journal.core.errors import LocalFilesError as LocalFilesError
    from journal.core.errors import LostBytesError as LostBytesError
    from journal.core.errors import NotEnoughAnswersError as NotEnoughAnswersError
    from journal.core.errors import RewrittenChainError as RewrittenChainError
    from journal.core.errors import StopNotFoundError as StopNotFoundError
    from journal.core.errors import TornRecordError as TornRecordError
    from journal.core.errors import TrimmedBytesError as TrimmedBytesError
    from journal.core.errors import UnknownRecordError as UnknownRecordError
    from journal.core.errors import UnsettledStateError as UnsettledStateError
    from journal.core.file_ops import FileOp as FileOp
    from journal.core.file_ops import FileTruncate as FileTruncate
    from journal.core.file_ops import FileWrite as FileWrite
    from journal.core.inspection import Located as Located
    from journal.core.record import Op as Op
    from journal.core.record import Record as Record
    from journal.core.record import RecordDecoder as RecordDecoder
    from journal.core.record import bytes_of_record as bytes_of_record
    from journal.core.scan import fold as fold
    from journal.files.directory import Directory as Directory
    from journal.files.history import AtCheckpoint as AtCheckpoint
    from journal.files.history import AtStep as AtStep
    from journal.files.mirroring import Mirror as Mirror
    from journal.files.restoring import RestoreResult as RestoreResult
    from journal.files.restoring import restore as restore
    from journal.following import ChainFollower as ChainFollower
    from journal.following import ChainWatch as ChainWatch
    from journal.following import size_seen as size_seen
    from journal.local_store import LocalClaim as LocalClaim
    from journal.local_store import LocalJournal as LocalJournal
    from journal.local_store import LocalStore as LocalStore
    from journal.reading import read_batches as read_batches
    from journal.reading import read_batches_since as read_batches_since
    from journal.reading import read_plain_batches as read_plain_batches
    from journal.reading import read_records as read_records
    from journal.reading import read_span as read_span
    from journal.scratch import Scratch as Scratch
    from journal.whole_state import StatePlace as StatePlace
    from journal.whole_state import StateRecord as StateRecord
    from journal.whole_state import StoreStateHost as StoreStateHost
    from journal.whole_state import change_state as change_state
    from journal.whole_state import read_state as read_state
    from journal.writer import ChainWriter as ChainWriter
else:
    __getattr__, __dir__, __all__ = lazy_names(globals())
