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
    from checkpoint.core.barrier import Alignment, CompleteStep
    from checkpoint.core.channel_frames import ChannelFrame, FrameFlag, FrameType
    from checkpoint.core.checkpoint_views import cut_full, cut_row
    from checkpoint.core.divisions import Division, Sources
    from checkpoint.core.dropped import merge_counters
    from checkpoint.core.fingerprint import check_fingerprint, declared_state, fingerprint
    from checkpoint.core.handshake import LinkHello
    from checkpoint.core.inputs import (
        INPUT_CHAIN,
        InputEnds,
        InputPiece,
        InputSequence,
        check_input_name,
        decode_part,
        producer_directory,
    )
    from checkpoint.core.layout import Layout, even_layout
    from checkpoint.core.manifest import Cut, SplitPosition, WorkerCut
    from checkpoint.core.messages import (
        Committed,
        Counters,
        FailureKind,
        Pause,
        Peer,
        RequestCut,
        Restore,
        Start,
        job_digest,
    )
    from checkpoint.core.outputs import Output, OutputDecision, Publish, decode_output, output_chain
    from checkpoint.core.region import (
        RegionEvent,
        RegionSpec,
        RegionState,
        RegionStatus,
        StateChanged,
        coordinator_directory,
        region_of_worker,
        worker_directory,
    )
    from checkpoint.core.retention import Rolling
    from checkpoint.core.staged import (
        BatchMark,
        CommitUnit,
        WriteKind,
        decode_mark,
        encode_mark,
        is_orphan,
        staged_name,
        staging_directory,
        staging_prefix,
    )

__all__ = [
    "INPUT_CHAIN",
    "Alignment",
    "BatchMark",
    "ChannelFrame",
    "CommitUnit",
    "Committed",
    "CompleteStep",
    "Counters",
    "Cut",
    "Division",
    "FailureKind",
    "FrameFlag",
    "FrameType",
    "InputEnds",
    "InputPiece",
    "InputSequence",
    "Layout",
    "LinkHello",
    "Output",
    "OutputDecision",
    "Pause",
    "Peer",
    "Publish",
    "RegionEvent",
    "RegionSpec",
    "RegionState",
    "RegionStatus",
    "RequestCut",
    "Restore",
    "Rolling",
    "Sources",
    "SplitPosition",
    "Start",
    "StateChanged",
    "WorkerCut",
    "WriteKind",
    "check_fingerprint",
    "check_input_name",
    "coordinator_directory",
    "cut_full",
    "cut_row",
    "declared_state",
    "decode_mark",
    "decode_output",
    "decode_part",
    "encode_mark",
    "even_layout",
    "fingerprint",
    "is_orphan",
    "job_digest",
    "merge_counters",
    "output_chain",
    "producer_directory",
    "region_of_worker",
    "staged_name",
    "staging_directory",
    "staging_prefix",
    "worker_directory",
]

MODULES = {
    "checkpoint.core.barrier": (
        "Alignment",
        "CompleteStep",
    ),
    "checkpoint.core.channel_frames": (
        "ChannelFrame",
        "FrameFlag",
        "FrameType",
    ),
    "checkpoint.core.checkpoint_views": (
        "cut_full",
        "cut_row",
    ),
    "checkpoint.core.divisions": (
        "Division",
        "Sources",
    ),
    "checkpoint.core.dropped": ("merge_counters",),
    "checkpoint.core.fingerprint": (
        "check_fingerprint",
        "declared_state",
        "fingerprint",
    ),
    "checkpoint.core.handshake": ("LinkHello",),
    "checkpoint.core.inputs": (
        "INPUT_CHAIN",
        "InputEnds",
        "InputPiece",
        "InputSequence",
        "check_input_name",
        "decode_part",
        "producer_directory",
    ),
    "checkpoint.core.layout": (
        "Layout",
        "even_layout",
    ),
    "checkpoint.core.manifest": (
        "Cut",
        "SplitPosition",
        "WorkerCut",
    ),
    "checkpoint.core.messages": (
        "Committed",
        "Counters",
        "FailureKind",
        "Pause",
        "Peer",
        "RequestCut",
        "Restore",
        "Start",
        "job_digest",
    ),
    "checkpoint.core.outputs": (
        "Output",
        "OutputDecision",
        "Publish",
        "decode_output",
        "output_chain",
    ),
    "checkpoint.core.region": (
        "RegionEvent",
        "RegionSpec",
        "RegionState",
        "RegionStatus",
        "StateChanged",
        "coordinator_directory",
        "region_of_worker",
        "worker_directory",
    ),
    "checkpoint.core.retention": ("Rolling",),
    "checkpoint.core.staged": (
        "BatchMark",
        "CommitUnit",
        "WriteKind",
        "decode_mark",
        "encode_mark",
        "is_orphan",
        "staged_name",
        "staging_directory",
        "staging_prefix",
    ),
}
"""Module -> its names that are the package's too."""

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(globals(), MODULES)
