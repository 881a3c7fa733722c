"""Every limit of the package, unit last in the name, the reason beside it. Relations are checked at import.

What a user may choose per region is a field of `WorkerLimits`; its defaults live here.
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
"""Of a batch, where a user function runs on threads: a slow row holds up a small part of it."""

# --- steps --------------------------------------------------------------------------------------------------
step_bytes_max: Final = 2 * MIB
"""Source bytes of one step of one worker. Merging equal words pays more the larger a step is, and a cut
waits for the steps under way: from 2 to 8 MiB the word count gets no faster, and a cut takes 0.4 to 1.6 s.
"""
step_ms_max: Final = 250
"""A step also ends when its user functions took this long, so that cuts come in time with slow functions."""
batch_bytes_max: Final = 1 * MIB
batch_bytes_min: Final = 4 * KIB
"""A batch is what one call of a user function sees. Its size follows the time the last one took, between
these.
"""
batch_ms_aim: Final = 50
steps_ahead: Final = 2
"""How many steps sources run ahead of the consumer, so that exchange and compute overlap."""

# --- sources ------------------------------------------------------------------------------------------------
line_bytes_max: Final = 16 * MIB
"""A longer line is an error: one line is held in memory whole."""
verify_read_bytes: Final = 1 * MIB
directory_files_max: Final = 50_000
"""Files of a watched directory that one worker reads: each cut holds the position of every one, in some 100
bytes and its path, and a cut is one record of at most 16 MiB.
"""

feed_split_bytes_max: Final = 4 * MIB
feed_bytes_max: Final = 64 * MIB
"""What is read ahead of one split, and of one source, whose input lies in the store."""

entry_line_bytes_max: Final = 1 * MIB
"""A longer line at an entry point is refused: whoever connects could fill the memory with it."""
entry_chunks_waiting: Final = 64
"""What came on connections of an entry point and waits to be sent to the store, in pieces of what one read
gave: clients wait behind that.
"""
entry_tell_s: Final = 5.0
"""A client that does not take its answer for so long holds the others up no longer."""
entry_last_answer_s: Final = 60.0
"""How long a connection stays open for its last answer, when its client has sent all."""

# --- exchange -----------------------------------------------------------------------------------------------
key_sample_rows: Final = 2_048
key_sample_distinct_max: Final = 0.95
"""Of so many rows of a batch not more are different: then there are some 20,000 keys or fewer, and a batch
has each of them several times.
"""
frame_rows_max: Final = 1 << 20
frame_bytes_aim: Final = 8 * MIB
"""Batches larger than this are cut into several DATA frames, so that a link's buffers stay small."""

# --- state --------------------------------------------------------------------------------------------------
state_rows_max: Final = 1 << 31
"""Keys of one operator on one worker."""

held_values_max: Final = 4_096
held_values_min: Final = 16
held_bytes_max: Final = 8 * MIB
"""Values of a state on disk that are in memory as objects. A write touches a page of 4 KiB for each of them.
"""
disk_map_bytes_min: Final = 16 * MIB
"""How much of a state on disk is mapped at first; doubled whenever it is full."""
snapshot_piece_rows: Final = 64 * 1024
"""Rows of a keyed state that become a block of a snapshot at a time."""
snapshot_memory_bytes_max: Final = 32 * MIB
"""A snapshot of a worker's state that waits to be sent lies in the scratch directory from this size on."""

directory_bytes_ahead: Final = 16 * MIB
"""Changes of an operator's files that were handed over and are not in their chain yet: the operator waits at
more. One write has no more than that.
"""
directory_batch_bytes: Final = 256 * KIB
"""Changes of an operator's files are handed over when they are so many, and at the end of its methods:
one by one, two threads would wake each other for each.
"""
directory_record_bytes: Final = 64
"""What a change counts besides its data and its file's name."""

broadcast_rows_max: Final = 1_000_000
"""Keys of one control table, which every worker holds whole, as Python objects."""

# --- sinks --------------------------------------------------------------------------------------------------
sink_lock_wait_s: Final = 60.0
"""How long a new writer of an output file waits for the process that still holds it (a worker being killed).
"""

parquet_group_bytes: Final = 16 * MIB
"""Rows of a Parquet sink wait in memory until so many bytes make a row group: small ones are slow to read."""
sql_staged_bytes: Final = 4 * MIB
"""Rows of a SQL sink wait in memory until so many bytes make a row of the table in which they are staged."""
sql_insert_rows: Final = 1_000
"""Rows that one statement of a SQL sink inserts."""
sql_lock_wait_s: Final = 60.0
"""How long a writer of an SQLite file waits for the others."""

# --- worker runtime -----------------------------------------------------------------------------------------
state_blocks_ahead: Final = 4
"""State blocks handed to the circuit and not yet taken by it, when a state is loaded."""
store_poll_s: Final = 0.1
"""How soon sources notice that the store waits, or goes on."""
peer_dial_s: Final = 10.0
peer_wait_s: Final = 30.0
"""How long a peer that is one incarnation ahead waits for us to get the same order."""
orphan_exit_s: Final = 10.0
orphan_exit_code: Final = 70
"""A worker whose coordinator is gone and whose circuit does not come back ends like this (EX_SOFTWARE)."""


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """What one worker may use of time and memory. Every worker of a region gets the same."""

    step_bytes_max: int = step_bytes_max
    step_ms_max: int = step_ms_max
    batch_bytes_max: int = batch_bytes_max
    steps_ahead: int = steps_ahead
    snapshot_bytes_min: int = field(default_factory=lambda: checkpoint_limits.snapshot_bytes_min)
    """A worker's chain takes no snapshot before so much was appended behind the last one. What it replaces is
    deleted when the cuts before it are released: so about so much of each chain is kept, and read again.
    """

    def __post_init__(self) -> None:
        for name in ("step_bytes_max", "step_ms_max", "batch_bytes_max", "steps_ahead", "snapshot_bytes_min"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above zero, not {getattr(self, name)}")
        if self.steps_ahead > steps_ahead:
            raise ValueError(f"steps_ahead is at most {steps_ahead}, not {self.steps_ahead}")


assert held_values_min <= held_values_max
assert batch_bytes_min <= batch_bytes_max <= step_bytes_max
assert batch_bytes_max <= line_bytes_max
assert step_bytes_max <= feed_split_bytes_max <= feed_bytes_max
