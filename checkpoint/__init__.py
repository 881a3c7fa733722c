"""Consistent checkpoints of a region: barriers, votes, the manifest, reset, and the versioned store of each
worker.

`core/` is pure and decides the order of all actions, in particular what may be sent only after something is
durable. The modules beside it perform what the core requests: sockets, threads, the journal. protocol.md has
the rules and their reasons ("Channel frame", "State block", "Manifest", "Control messages"), as have the
docstrings of `core/coordination/coordinator.py` and `core/links/participation.py`.
"""

from typing import TYPE_CHECKING

from dos_protocol.lazy_names import lazy_names

if TYPE_CHECKING:
    from checkpoint.core.applications import continued_regions as continued_regions
    from checkpoint.core.coordination.batches import refused_before_claim as refused_before_claim
    from checkpoint.core.graph_change import AT_ITS_END as AT_ITS_END
    from checkpoint.core.graph_change import NOT_NULL as NOT_NULL
    from checkpoint.core.graph_change import STATELESS as STATELESS
    from checkpoint.core.graph_change import Begin as Begin
    from checkpoint.core.graph_change import DeclaredState as DeclaredState
    from checkpoint.core.graph_change import GraphChange as GraphChange
    from checkpoint.core.graph_change import GraphOptions as GraphOptions
    from checkpoint.core.graph_change import OperatorNote as OperatorNote
    from checkpoint.core.graph_change import ResultNote as ResultNote
    from checkpoint.core.graph_change import born_with as born_with
    from checkpoint.core.graph_change import check_compatible as check_compatible
    from checkpoint.core.graph_change import compare as compare
    from checkpoint.core.graph_change import fingerprint as fingerprint
    from checkpoint.core.graph_change import result_uids as result_uids
    from checkpoint.core.graph_change import stored_under as stored_under
    from checkpoint.core.links.barrier import Alignment as Alignment
    from checkpoint.core.links.barrier import CompleteStep as CompleteStep
    from checkpoint.core.links.frames import ChannelFrame as ChannelFrame
    from checkpoint.core.links.frames import FrameFlag as FrameFlag
    from checkpoint.core.links.frames import FrameType as FrameType
    from checkpoint.core.links.frames import control_frame as control_frame
    from checkpoint.core.links.frames import decode_share as decode_share
    from checkpoint.core.links.frames import decode_to_desk as decode_to_desk
    from checkpoint.core.links.frames import decode_to_task as decode_to_task
    from checkpoint.core.links.frames import job_digest as job_digest
    from checkpoint.core.links.handshake import LinkHello as LinkHello
    from checkpoint.core.links.messages import BatchAsked as BatchAsked
    from checkpoint.core.links.messages import BatchNeeded as BatchNeeded
    from checkpoint.core.links.messages import BatchOffered as BatchOffered
    from checkpoint.core.links.messages import BatchProblem as BatchProblem
    from checkpoint.core.links.messages import BatchProcessed as BatchProcessed
    from checkpoint.core.links.messages import BatchRefused as BatchRefused
    from checkpoint.core.links.messages import BatchShare as BatchShare
    from checkpoint.core.links.messages import Committed as Committed
    from checkpoint.core.links.messages import CompanionReport as CompanionReport
    from checkpoint.core.links.messages import CopiedAhead as CopiedAhead
    from checkpoint.core.links.messages import CopyAhead as CopyAhead
    from checkpoint.core.links.messages import Counters as Counters
    from checkpoint.core.links.messages import EventTime as EventTime
    from checkpoint.core.links.messages import Failed as Failed
    from checkpoint.core.links.messages import FailureKind as FailureKind
    from checkpoint.core.links.messages import Finished as Finished
    from checkpoint.core.links.messages import Host as Host
    from checkpoint.core.links.messages import OpenBatch as OpenBatch
    from checkpoint.core.links.messages import Pause as Pause
    from checkpoint.core.links.messages import Paused as Paused
    from checkpoint.core.links.messages import Peer as Peer
    from checkpoint.core.links.messages import ReadAlone as ReadAlone
    from checkpoint.core.links.messages import RegionAsked as RegionAsked
    from checkpoint.core.links.messages import RegionAt as RegionAt
    from checkpoint.core.links.messages import RequestCheckpoint as RequestCheckpoint
    from checkpoint.core.links.messages import Restore as Restore
    from checkpoint.core.links.messages import Restored as Restored
    from checkpoint.core.links.messages import Start as Start
    from checkpoint.core.links.messages import Suspects as Suspects
    from checkpoint.core.links.messages import View as View
    from checkpoint.core.links.messages import Vote as Vote
    from checkpoint.core.links.messages import WantsCheckpoint as WantsCheckpoint
    from checkpoint.core.progress import BUSY as BUSY
    from checkpoint.core.progress import driver_report as driver_report
    from checkpoint.core.progress import merge_counters as merge_counters
    from checkpoint.core.progress import span_of as span_of
    from checkpoint.core.progress import under_way_text as under_way_text
    from checkpoint.core.records.consumers import Register as Register
    from checkpoint.core.records.consumers import RegisterPlace as RegisterPlace
    from checkpoint.core.records.consumers import RetentionRule as RetentionRule
    from checkpoint.core.records.consumers import input_register as input_register
    from checkpoint.core.records.consumers import output_register as output_register
    from checkpoint.core.records.consumers import with_entry as with_entry
    from checkpoint.core.records.consumers import with_query as with_query
    from checkpoint.core.records.divisions import NO_MARK as NO_MARK
    from checkpoint.core.records.divisions import Division as Division
    from checkpoint.core.records.divisions import Mark as Mark
    from checkpoint.core.records.divisions import Sources as Sources
    from checkpoint.core.records.inputs import INPUT_CHAIN as INPUT_CHAIN
    from checkpoint.core.records.inputs import AttendedOrigins as AttendedOrigins
    from checkpoint.core.records.inputs import BatchDecision as BatchDecision
    from checkpoint.core.records.inputs import ClockCheck as ClockCheck
    from checkpoint.core.records.inputs import EntryOrigins as EntryOrigins
    from checkpoint.core.records.inputs import EntrySettings as EntrySettings
    from checkpoint.core.records.inputs import InputEnds as InputEnds
    from checkpoint.core.records.inputs import InputPiece as InputPiece
    from checkpoint.core.records.inputs import InputSequence as InputSequence
    from checkpoint.core.records.inputs import OriginMark as OriginMark
    from checkpoint.core.records.inputs import OriginTime as OriginTime
    from checkpoint.core.records.inputs import check_input_name as check_input_name
    from checkpoint.core.records.inputs import checked_settings as checked_settings
    from checkpoint.core.records.inputs import decode_part as decode_part
    from checkpoint.core.records.inputs import floor_of_new_origin as floor_of_new_origin
    from checkpoint.core.records.inputs import judge_batch as judge_batch
    from checkpoint.core.records.inputs import may_stamp as may_stamp
    from checkpoint.core.records.inputs import producer_directory as producer_directory
    from checkpoint.core.records.layout import Layout as Layout
    from checkpoint.core.records.layout import TakenPart as TakenPart
    from checkpoint.core.records.layout import even_layout as even_layout
    from checkpoint.core.records.layout import rebalanced as rebalanced
    from checkpoint.core.records.layout import state_parts as state_parts
    from checkpoint.core.records.lines import edit_target as edit_target
    from checkpoint.core.records.lines import graph_change as graph_change
    from checkpoint.core.records.lines import parting as parting
    from checkpoint.core.records.lines import taken_back as taken_back
    from checkpoint.core.records.manifest import Checkpoint as Checkpoint
    from checkpoint.core.records.manifest import Edit as Edit
    from checkpoint.core.records.manifest import OnDamaged as OnDamaged
    from checkpoint.core.records.manifest import OutputIdentity as OutputIdentity
    from checkpoint.core.records.manifest import RetiredWorker as RetiredWorker
    from checkpoint.core.records.manifest import Rewind as Rewind
    from checkpoint.core.records.manifest import Rolling as Rolling
    from checkpoint.core.records.manifest import SplitPosition as SplitPosition
    from checkpoint.core.records.manifest import WorkerCheckpoint as WorkerCheckpoint
    from checkpoint.core.records.outputs import OUTPUT_CHAIN_PREFIX as OUTPUT_CHAIN_PREFIX
    from checkpoint.core.records.outputs import Output as Output
    from checkpoint.core.records.outputs import OutputDecision as OutputDecision
    from checkpoint.core.records.outputs import OutputTime as OutputTime
    from checkpoint.core.records.outputs import Publish as Publish
    from checkpoint.core.records.outputs import decode_output as decode_output
    from checkpoint.core.records.outputs import output_chain as output_chain
    from checkpoint.core.records.staged import NO_ROWS as NO_ROWS
    from checkpoint.core.records.staged import BatchContent as BatchContent
    from checkpoint.core.records.staged import BatchMark as BatchMark
    from checkpoint.core.records.staged import CommitUnit as CommitUnit
    from checkpoint.core.records.staged import WriteKind as WriteKind
    from checkpoint.core.records.staged import decode_mark as decode_mark
    from checkpoint.core.records.staged import encode_mark as encode_mark
    from checkpoint.core.records.staged import is_orphan as is_orphan
    from checkpoint.core.records.staged import staged_name as staged_name
    from checkpoint.core.records.staged import staging_directory as staging_directory
    from checkpoint.core.records.staged import staging_prefix as staging_prefix
    from checkpoint.core.records.views import checkpoint_full as checkpoint_full
    from checkpoint.core.records.views import checkpoint_row as checkpoint_row
    from checkpoint.core.region import AutoScale as AutoScale
    from checkpoint.core.region import FellBack as FellBack
    from checkpoint.core.region import Launcher as Launcher
    from checkpoint.core.region import Recovery as Recovery
    from checkpoint.core.region import RegionEvent as RegionEvent
    from checkpoint.core.region import RegionSpec as RegionSpec
    from checkpoint.core.region import RegionState as RegionState
    from checkpoint.core.region import RegionStatus as RegionStatus
    from checkpoint.core.region import ReplaceSettled as ReplaceSettled
    from checkpoint.core.region import ScaleSettled as ScaleSettled
    from checkpoint.core.region import StateChanged as StateChanged
    from checkpoint.core.region import begins_latest as begins_latest
    from checkpoint.core.region import check_continues as check_continues
    from checkpoint.core.region import check_names as check_names
    from checkpoint.core.region import coordinator_directory as coordinator_directory
    from checkpoint.core.region import region_of_worker as region_of_worker
    from checkpoint.core.region import rows_made_of as rows_made_of
    from checkpoint.core.region import rows_to_add as rows_to_add
    from checkpoint.core.region import worker_directory as worker_directory
    from checkpoint.core.verbs import VERBS as VERBS
else:
    __getattr__, __dir__, __all__ = lazy_names(globals())
