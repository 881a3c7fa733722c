"""Consistent checkpoints of a region: barriers, votes, the manifest, reset, and the versioned store of each
worker.

`core/` is pure and decides the order of all actions, in particular what may be sent only after something is
durable. The modules beside it perform what the core requests: sockets, threads, the journal. protocol.md has
the rules and their reasons ("Channel frame", "State block", "Manifest", "Control messages"), as have the
docstrings of `core/coordinator.py` and `core/participant.py`.
"""

from typing import TYPE_CHECKING

from dos_protocol.lazy_names import lazy_names

if TYPE_CHECKING:
    from checkpoint.core.autoscale_policy import AutoScale as AutoScale
    from checkpoint.core.barrier import Alignment as Alignment
    from checkpoint.core.barrier import CompleteStep as CompleteStep
    from checkpoint.core.channel_frames import ChannelFrame as ChannelFrame
    from checkpoint.core.channel_frames import FrameFlag as FrameFlag
    from checkpoint.core.channel_frames import FrameType as FrameType
    from checkpoint.core.checkpoint_views import checkpoint_full as checkpoint_full
    from checkpoint.core.checkpoint_views import checkpoint_row as checkpoint_row
    from checkpoint.core.consumers import Register as Register
    from checkpoint.core.consumers import RegisterPlace as RegisterPlace
    from checkpoint.core.consumers import RetentionRule as RetentionRule
    from checkpoint.core.consumers import input_register as input_register
    from checkpoint.core.consumers import output_register as output_register
    from checkpoint.core.consumers import with_entry as with_entry
    from checkpoint.core.consumers import with_query as with_query
    from checkpoint.core.control_frames import control_frame as control_frame
    from checkpoint.core.control_frames import job_digest as job_digest
    from checkpoint.core.damaged import OnDamaged as OnDamaged
    from checkpoint.core.divisions import NO_MARK as NO_MARK
    from checkpoint.core.divisions import Division as Division
    from checkpoint.core.divisions import Mark as Mark
    from checkpoint.core.divisions import Sources as Sources
    from checkpoint.core.dropped import BUSY as BUSY
    from checkpoint.core.dropped import merge_counters as merge_counters
    from checkpoint.core.editing import edit_target as edit_target
    from checkpoint.core.entry import AttendedOrigins as AttendedOrigins
    from checkpoint.core.entry import ClockCheck as ClockCheck
    from checkpoint.core.entry import EntryOrigins as EntryOrigins
    from checkpoint.core.entry import EntrySettings as EntrySettings
    from checkpoint.core.entry import OriginTime as OriginTime
    from checkpoint.core.entry import checked_settings as checked_settings
    from checkpoint.core.entry import floor_of_new_origin as floor_of_new_origin
    from checkpoint.core.entry import may_stamp as may_stamp
    from checkpoint.core.fingerprint import check_fingerprint as check_fingerprint
    from checkpoint.core.fingerprint import declared_state as declared_state
    from checkpoint.core.fingerprint import fingerprint as fingerprint
    from checkpoint.core.forking import check_log as check_log
    from checkpoint.core.handshake import LinkHello as LinkHello
    from checkpoint.core.inputs import INPUT_CHAIN as INPUT_CHAIN
    from checkpoint.core.inputs import BatchDecision as BatchDecision
    from checkpoint.core.inputs import InputEnds as InputEnds
    from checkpoint.core.inputs import InputPiece as InputPiece
    from checkpoint.core.inputs import InputSequence as InputSequence
    from checkpoint.core.inputs import OriginMark as OriginMark
    from checkpoint.core.inputs import check_input_name as check_input_name
    from checkpoint.core.inputs import decode_part as decode_part
    from checkpoint.core.inputs import judge_batch as judge_batch
    from checkpoint.core.inputs import producer_directory as producer_directory
    from checkpoint.core.layout import Layout as Layout
    from checkpoint.core.layout import even_layout as even_layout
    from checkpoint.core.lines import parting as parting
    from checkpoint.core.lines import taken_back as taken_back
    from checkpoint.core.manifest import Checkpoint as Checkpoint
    from checkpoint.core.manifest import Edit as Edit
    from checkpoint.core.manifest import OutputIdentity as OutputIdentity
    from checkpoint.core.manifest import RetiredWorker as RetiredWorker
    from checkpoint.core.manifest import Rewind as Rewind
    from checkpoint.core.manifest import SplitPosition as SplitPosition
    from checkpoint.core.manifest import WorkerCheckpoint as WorkerCheckpoint
    from checkpoint.core.messages import Committed as Committed
    from checkpoint.core.messages import CompanionReport as CompanionReport
    from checkpoint.core.messages import CopyAhead as CopyAhead
    from checkpoint.core.messages import Counters as Counters
    from checkpoint.core.messages import EventTime as EventTime
    from checkpoint.core.messages import FailureKind as FailureKind
    from checkpoint.core.messages import Host as Host
    from checkpoint.core.messages import Pause as Pause
    from checkpoint.core.messages import Peer as Peer
    from checkpoint.core.messages import RequestCheckpoint as RequestCheckpoint
    from checkpoint.core.messages import Restore as Restore
    from checkpoint.core.messages import Start as Start
    from checkpoint.core.messages import View as View
    from checkpoint.core.outputs import OUTPUT_CHAIN_PREFIX as OUTPUT_CHAIN_PREFIX
    from checkpoint.core.outputs import Output as Output
    from checkpoint.core.outputs import OutputDecision as OutputDecision
    from checkpoint.core.outputs import OutputTime as OutputTime
    from checkpoint.core.outputs import Publish as Publish
    from checkpoint.core.outputs import decode_output as decode_output
    from checkpoint.core.outputs import output_chain as output_chain
    from checkpoint.core.progress import driver_report as driver_report
    from checkpoint.core.progress import under_way_text as under_way_text
    from checkpoint.core.rebalancing import TakenPart as TakenPart
    from checkpoint.core.rebalancing import rebalanced as rebalanced
    from checkpoint.core.rebalancing import state_parts as state_parts
    from checkpoint.core.region import Launcher as Launcher
    from checkpoint.core.region import Recovery as Recovery
    from checkpoint.core.region import RegionSpec as RegionSpec
    from checkpoint.core.region import RegionState as RegionState
    from checkpoint.core.region import RegionStatus as RegionStatus
    from checkpoint.core.region import coordinator_directory as coordinator_directory
    from checkpoint.core.region import region_of_worker as region_of_worker
    from checkpoint.core.region import worker_directory as worker_directory
    from checkpoint.core.region_events import FellBack as FellBack
    from checkpoint.core.region_events import RegionEvent as RegionEvent
    from checkpoint.core.region_events import ReplaceSettled as ReplaceSettled
    from checkpoint.core.region_events import ScaleSettled as ScaleSettled
    from checkpoint.core.region_events import StateChanged as StateChanged
    from checkpoint.core.region_spans import span_of as span_of
    from checkpoint.core.retention import Rolling as Rolling
    from checkpoint.core.staged import NO_ROWS as NO_ROWS
    from checkpoint.core.staged import BatchContent as BatchContent
    from checkpoint.core.staged import BatchMark as BatchMark
    from checkpoint.core.staged import CommitUnit as CommitUnit
    from checkpoint.core.staged import WriteKind as WriteKind
    from checkpoint.core.staged import decode_mark as decode_mark
    from checkpoint.core.staged import encode_mark as encode_mark
    from checkpoint.core.staged import is_orphan as is_orphan
    from checkpoint.core.staged import staged_name as staged_name
    from checkpoint.core.staged import staging_directory as staging_directory
    from checkpoint.core.staged import staging_prefix as staging_prefix
else:
    __getattr__, __dir__, __all__ = lazy_names(globals())
