"""All limits of the package, with the reason beside each. The unit is the last word of the name.

Relations between limits are checked at import. `WorkerLimits` has what a user may configure per region.
"""

from dataclasses import dataclass, field
from typing import Final

from checkpoint import limits as checkpoint_limits

KIB: Final = 1024
MIB: Final = 1024 * KIB

# --- graph --------------------------------------------------------------------------------------------------
operators_max: Final = 1_000
columns_max: Final = 1_000
exchanges_max: Final = 256
operator_threads_max: Final = 256
slices_per_thread: Final = 4
"""Slices of a batch if a user function runs on threads: a slow row delays only a small part of the batch."""

# --- handles of regions -------------------------------------------------------------------------------
stop_timeout_s: Final = 60.0
"""How long `stop` waits for the region's last checkpoint and the end of its workers before it kills them."""
workers_end_timeout_s: Final = 15.0
"""How long the workers of an ended region may take to end on their own, and again after they were killed."""
circuit_silent_s: Final = 60.0
"""The default of `WorkerLimits.circuit_silent_s`: a function that calls a slow service may take seconds."""
handle_poll_s: Final = 1.0
"""Interval at which a handle that receives no event checks whether the region has ended."""

# --- merged streams of replicas -------------------------------------------------------------------------
merged_bytes_max: Final = 16 * MIB
"""Rows that were passed by the filter of duplicates and not taken yet: more are not read."""
merged_bytes_min: Final = 1 * MIB
"""Rows that are recorded, at least, until the state of the filter is recorded again."""
replica_report_s: Final = 1.0
"""How often the streams of a merge are reported."""
replica_retry_s: Final = 1.0
"""The wait after a store was unavailable, or until an output to read is looked for again."""

# --- steps --------------------------------------------------------------------------------------------------
step_bytes_max: Final = 2 * MIB
"""Source bytes of one step of one worker. Merging equal words saves more the larger a step is, but a
checkpoint waits for the steps in progress: from 2 to 8 MiB the word count gets no faster, and a checkpoint
takes 1.6 s instead of 0.4 s.
"""
step_ms_max: Final = 250
"""A step also ends when its user functions took this long, so that slow functions do not delay checkpoints.
"""
backlog_s: Final = 1.0
"""Minimum time between two counts of the input that waits: heartbeats report it once per second."""
batch_bytes_max: Final = 1 * MIB
batch_bytes_min: Final = 1 * KIB
"""The input of one call of a user function. Its size follows the duration of the previous call, and begins
here: a batch of 64 KiB took 8 s of a function that needs 3 ms for a row.
"""
batch_ms_aim: Final = 50
steps_ahead: Final = 2
"""How many steps sources run ahead of the consumer, so that exchange and computation overlap."""

# --- sources ------------------------------------------------------------------------------------------------
line_bytes_max: Final = 16 * MIB
"""A longer line is an error: a line is held in memory as a whole."""
verify_read_bytes: Final = 1 * MIB
row_group_bytes_max: Final = 1024 * MIB
"""A row group of a Parquet file is in memory as a whole, compressed and as rows."""
file_part_bytes: Final = 64 * MIB
"""A file of row groups is divided into parts of this size, which several workers read. Each part reads the
footer, and a checkpoint holds the position of each that is being read.
"""
infer_bytes: Final = 1 * MIB
"""The beginning of the first file from which a schema is inferred."""
directory_files_max: Final = 50_000
"""Files of a watched directory that one worker reads. A checkpoint holds the position of each, about 100
bytes and its path, and is one record of at most 16 MiB.
"""

object_read_bytes_min: Final = 256 * KIB
"""The first request for an object; each further one in sequence doubles. One takes 30 ms, in which S3 sends 1
to 3 MB.
"""
object_read_bytes_max: Final = 8 * MIB
object_buffer_bytes_max: Final = 64 * MIB
"""Bytes of objects that one source of one worker holds, for all open objects together."""
object_reads_ahead: Final = 2
"""Requests of one source that are made while rows are processed."""
object_poll_s: Final = 10.0
"""Default interval between two lists of a bucket. A list of up to 1,000 objects is one paid request."""

feed_split_bytes_max: Final = 4 * MIB
feed_bytes_max: Final = 64 * MIB
"""Prefetched bytes of one split, and of one source, whose input is in the store."""

entry_line_bytes_max: Final = 1 * MIB
"""A longer line at an entry point is refused: any client could otherwise fill the memory."""
entry_chunks_waiting: Final = 64
"""Chunks of connections of an entry point that wait to be stored. Clients are blocked beyond that."""
entry_reply_s: Final = 5.0
"""A client that does not read its answer for this long no longer delays other clients."""
entry_last_answer_s: Final = 60.0
"""How long a connection stays open for its last answer after its client has sent everything."""

entry_poll_s: Final = 0.5
"""How often an entry point reads the list of origins and looks for unattended ones."""
entry_ask_s: Final = 1.0
"""How often an entry point compares its clock with that of each peer."""
entry_wait_s: Final = 0.05
"""How often a batch that may not be given a time yet is tried again."""
entry_read_marks_s: Final = 10.0
"""How often the mark of an origin is read from the store if no peer reports it."""
entry_silence_s: Final = 3.0
"""A producer whose entry point answers nothing for this long moves to another one."""
entry_batch_bytes_max: Final = 64 * MIB
"""A batch for an entry point: it is held in memory until it is recorded."""

# --- exchange -----------------------------------------------------------------------------------------------
key_sample_rows: Final = 2_048
key_sample_distinct_max: Final = 0.95
"""Up to this fraction of distinct keys among the sampled rows, each distinct key is hashed once."""
frame_rows_max: Final = 1 << 20
frame_bytes_aim: Final = 8 * MIB
"""Larger batches are divided into several DATA frames, so that the buffers of a link stay small."""

# --- state --------------------------------------------------------------------------------------------------
state_rows_max: Final = 1 << 31
"""Keys of one operator on one worker."""

cached_values_max: Final = 4_096
cached_values_min: Final = 16
cached_bytes_max: Final = 8 * MIB
"""Values of a state on disk that are cached as objects. A write touches a page of 4 KiB for each of them."""
disk_map_bytes_min: Final = 16 * MIB
"""Initial size of the memory map of a state on disk; doubled when it is full."""
snapshot_piece_rows: Final = 64 * 1024
"""Rows of a keyed state in one block of a snapshot."""
runs_alike_max: Final = 4
"""So many runs of indexed rows of about one size become one. Fewer would be copied more often, with more of
them a lookup takes longer.
"""
run_rows_max: Final = 128 * 1024
run_bytes_max: Final = 256 * MIB
"""A run that has reached one of these is not merged again: what a step may copy is bounded, and a column of
text stays below the 2 GiB that its offsets can count.
"""
snapshot_memory_bytes_max: Final = 32 * MIB
"""From this size on, a snapshot that waits to be sent is in the scratch directory instead of memory."""

share_memory_bytes_max: Final = 64 * MIB
"""Shares of batches that a worker has in memory, of all attempts; the rest is in the scratch directory."""

directory_bytes_ahead: Final = 16 * MIB
"""Changes of an operator's files that are not in their chain yet. The operator blocks beyond that."""
directory_batch_bytes: Final = 256 * KIB
"""Changes of files are handed over in batches: one by one, two threads would wake each other for each."""
directory_record_bytes: Final = 64
"""The bytes counted for a change in addition to its data and file name."""

broadcast_rows_max: Final = 1_000_000
"""Keys of one broadcast table, which every worker holds completely, as Python objects."""

# --- sinks --------------------------------------------------------------------------------------------------
sink_lock_wait_s: Final = 60.0
"""How long a new writer of an output file waits for the process that holds it (a worker being killed)."""
sink_lock_log_s: Final = 1.0
"""A longer wait is logged. A process that was killed has released its files within milliseconds."""

journaled_append_bytes: Final = 4 * MIB
"""Longer text of a step becomes several changes of a journaled file; one change has at most 16 MiB."""
s3_part_bytes: Final = 8 * MIB
"""One part of an upload. S3 requires 5 MiB of every part except the last. Twice the size is no faster."""
s3_parts_max: Final = 10_000
"""Parts of one upload, a limit of S3: 80 GB between two checkpoints of one worker."""
s3_parts_ahead: Final = 3
"""Parts of one worker that are uploaded at the same time. Beyond that, the worker waits."""
parquet_group_bytes: Final = 16 * MIB
"""Rows of a Parquet sink stay in memory until they fill a row group: small ones are slow to read."""
sink_partitions_max: Final = 128
"""Directories into which one worker writes between two checkpoints. Each has a file that is open, and in a
bucket up to `s3_part_bytes` in memory.
"""
sql_staged_bytes: Final = 4 * MIB
"""Rows of a SQL sink are kept in memory until they fill one row of this size in the staging table."""
sql_insert_rows: Final = 1_000
"""Rows that one statement of a SQL sink inserts."""
sql_lock_wait_s: Final = 60.0
"""How long a writer of an SQLite file waits for other writers."""

# --- worker runtime -----------------------------------------------------------------------------------------
state_blocks_ahead: Final = 4
"""State blocks sent to the circuit and not yet restored by it."""
store_poll_s: Final = 0.1
"""The delay after which sources notice that the store blocks or continues."""
damage_look_s: Final = 2.0
"""How long a claim may take until the worker looks for damage as the reason, and the pause between looks."""
peer_dial_s: Final = 5.0
peer_silent_s: Final = 4.0
"""A peer whose host sends no packet for this long is lost: its kernel is asked for one each second."""
companion_s: Final = 0.5
"""How often the companion of a worker reports. The coordinator needs two reports in `suspects_fresh_s`."""
forked_exit_code: Final = 70
"""The exit code of a child that user code forked and that returned into the engine (EX_SOFTWARE)."""
copied_report_s: Final = 0.5
"""How often a worker reports how much state it has copied ahead of a change of the layout."""
peer_silence_poll_s: Final = 0.5
peer_resume_s: Final = 1.0
"""Local recovery: a link that cannot be opened again for this long is reported to the coordinator."""
peer_redial_s: Final = 0.1
take_over_steps_ahead: Final = 1_024
take_over_bytes_ahead: Final = 64 * MIB
"""Local recovery: how far a worker that takes another one over makes steps ahead of those that it has run,
because its peers wait for its rows. Bytes: read of its input, and received from peers. As many of its stored
state, which it does not need for that, may wait to be restored.
"""
take_over_rows_at_once: Final = 16_384
"""Local recovery: a worker that takes another one over restores so many rows of its state, in a few
milliseconds, before it looks for a step that peers wait for.
"""
standby_after_reset_s: Final = 1.0
"""A reset is followed by a new stand-by after the next checkpoint, and at most after this time: meanwhile the
workers make steps again, and a process that imports everything would take a core from them for a second.
"""
ping_s: Final = 0.1
pings_missed_max: Final = 3
"""Local recovery: a worker reports the next one after so many pings without an answer."""
retained_bytes_max: Final = 64 * MIB
"""Local recovery: steps retained for peers in memory; the rest is on the disk. At twice as much in total, a
checkpoint is requested and no input is taken.
"""
spill_bytes: Final = 1 * MIB
"""About the size of one file of retained steps."""
suspects_s: Final = 0.5
"""How often a worker repeats that it suspects a peer."""
peer_wait_s: Final = 30.0
"""How long a peer that is one incarnation ahead waits for this worker to get the same order."""
hosted_end_s: Final = 10.0
"""How long a process waits at its end for a worker that it runs beside its own one."""
orphan_exit_s: Final = 10.0
orphan_exit_code: Final = 70
"""The exit code of a worker whose coordinator is gone and whose circuit does not end (EX_SOFTWARE)."""


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """Limits of time and memory for one worker. Every worker of a region has the same."""

    step_bytes_max: int = step_bytes_max
    step_ms_max: int = step_ms_max
    batch_bytes_max: int = batch_bytes_max
    steps_ahead: int = steps_ahead
    snapshot_bytes_min: int = field(default_factory=lambda: checkpoint_limits.snapshot_bytes_min)
    """A chain gets a snapshot only after this many bytes since the previous one. So about this much of each
    chain is kept and read on restore.
    """

    retained_bytes_max: int = retained_bytes_max
    """Local recovery: the bytes in memory that are retained for other workers."""

    circuit_silent_s: float = circuit_silent_s
    """A circuit thread that works on one batch for longer counts as one that hangs, in /healthz."""

    def __post_init__(self) -> None:
        for name in (
            *("step_bytes_max", "step_ms_max", "batch_bytes_max", "steps_ahead"),
            *("snapshot_bytes_min", "retained_bytes_max", "circuit_silent_s"),
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be greater than 0, got {getattr(self, name)}")
        if self.steps_ahead > steps_ahead:
            raise ValueError(f"steps_ahead must be at most {steps_ahead}, got {self.steps_ahead}")


assert cached_values_min <= cached_values_max
assert batch_bytes_min <= batch_bytes_max <= step_bytes_max
assert batch_bytes_max <= line_bytes_max
assert step_bytes_max <= feed_split_bytes_max <= feed_bytes_max
