"""All limits of this package; the unit is the last part of the name, and relations between them are asserted.

Times that a user sets per region are fields of `RegionSpec`; their defaults are here.
"""

from typing import Final

# --- channel frames -------------------------------------------------------------------------------
frame_header_bytes: Final = 64
data_bytes_max: Final = 64 * 1024 * 1024
"""Payload of one DATA frame. A record batch of 64 Ki rows is a few MiB; the sender splits larger ones."""
row_bytes_max: Final = data_bytes_max - 1024 * 1024
"""What cannot be divided: one row that is sent to another worker, the state of one key. It must also fit a
record of a journal.
"""
control_bytes_max: Final = 16 * 1024 * 1024
"""Payload of one CONTROL or HANDSHAKE frame: enough for a checkpoint with about ten thousand splits."""
report_chars_max: Final = 100_000
"""Of a text in a report of a failure, such as a traceback: a longer one loses its middle."""
handshake_bytes_max: Final = 4096
"""Payload of one HANDSHAKE frame. Small, because it is read before the peer has proved anything."""
senders_max: Final = 0xFFFF
"""Workers of a region. The sender field is a u16; its last value denotes the coordinator."""
steps_ahead_max: Final = 4
"""How many steps past the step being aligned a sender may be. Sources stop at 2; the rest is slack for frames
in flight.
"""

# --- manifest -------------------------------------------------------------------------------------
manifest_record_bytes_max: Final = control_bytes_max
manifest_segment_bytes_max: Final = 16 * 1024 * 1024
"""The manifest is rolled (snapshot of the retained checkpoints, new segment) after this many appended
bytes.
"""
checkpoints_retained: Final = 5
"""Default number of checkpoints that stay restorable: the latest ones."""
checkpoints_retained_min: Final = 2
"""The latest checkpoint, and the one before in case a person must go back."""
checkpoints_retained_max: Final = 1_000
batch_known_s: Final = 60.0
"""How long a batch of a query is known after its record, so that a DataFrame of it can be evaluated again."""
batch_output_kept_s: Final = 2 * batch_known_s
"""How long a worker keeps the output of a batch: a task that is to read it has time for that."""
trim_wait_s: Final = 60.0
"""How long `dos region trim` waits for members to delete."""
savepoints_max: Final = 64
"""Savepoints of a region: each keeps what its region needed at that time, on every member."""
savepoint_why_chars_max: Final = 500
"""Limits the note of a savepoint: a request with one of these fits `request_bytes_max` in UTF-8."""
rewinds_kept_max: Final = 16
"""Lines of history whose beginnings a checkpoint states. A reader on an older one must begin anew."""
savepoint_name_chars_max: Final = 64
"""Limits the size of checkpoints and manifest snapshots, which contain all savepoints."""
replaced_graphs_max: Final = 1024
"""Graphs that a region had before. A program with one of these is refused. Each is some 80 bytes."""
upgrade_savepoints_max: Final = 3
"""Checkpoints before the last changes of the graph, to which a region can be restored."""
upgrade_kept_s: Final = 86_400.0
"""How long each of them stays. It holds the input from there on."""
ended_logs_max: Final = 64
ended_log_ends_max: Final = 8_192
"""Logs of removed sinks that can be read, and their ends on all workers. Each record states them, in some 100
bytes for an end. Another sink is removed once a log was dropped.
"""
gone_logs_max: Final = 64
"""Logs that were dropped or taken back: a reader of one of these fails, of any other waits."""
operator_uid_chars_max: Final = 88
"""Limits what an operator is stored as: it is part of the name of a chain."""
chain_segments_max: Final = 64
"""A chain with more segments (each reset opens one) is restarted with a snapshot, however short it is."""
manifest_replay_bytes_max: Final = 1024 * 1024
"""A take-over that had to read more than this starts its segment with a snapshot of the retained
checkpoints.
"""
manifest_reads_max: Final = 5
"""How often a reader tries again if the manifest's chain was restarted while it read."""
workers_max: Final = 4096
workers_default: Final = 2
terms_per_incarnation: Final = 1 << 16
"""With local recovery, incarnations are multiples of this. The numbers between two of them are the terms of
workers that are taken over, so a claim of a later incarnation is above all of them.
"""
layout_ranges_max: Final = 64
"""Ranges of the hash space that one worker has at most: each checkpoint lists them all."""

# --- state blocks ---------------------------------------------------------------------------------
state_block_bytes_max: Final = 16 * 1024 * 1024
"""Arrow bytes of one state block. Larger changes are written as several blocks of one checkpoint."""
state_block_rows_max: Final = 8 * 1024
"""A reader of some keys reads whole blocks: of 1 M keys on two workers, one that joins reads 1.1 times what
it takes over. Smaller blocks are compressed worse.
"""
state_fold_rows_min: Final = 256 * 1024
"""Blocks are folded once they have more rows, and twice those of the last fold."""
state_index_blocks_max: Final = 4096
"""Blocks that one index describes, so that it fits one read."""
state_indexed_bytes_min: Final = 256 * 1024
"""Fewer bytes of blocks have no index: they are read as fast as it."""
state_compressed_bytes_min: Final = 64 * 1024
"""From this size on, blocks are compressed. Smaller ones are the changes of a step: they delay a vote, and
are little to store.
"""
snapshot_bytes_min: Final = 64 * 1024 * 1024
"""No new snapshot is written below this many bytes appended since the last one."""
snapshot_growth: Final = 4
"""A snapshot is due when the bytes appended since the last one exceed its size by this factor."""

# --- input handles -------------------------------------------------------------------------------
input_part_bytes_max: Final = 1024 * 1024
"""Typical size of one record of a producer, because a step reads whole parts. A single row may be larger."""
input_pending_bytes_max: Final = 16 * 1024 * 1024
"""How many bytes of an incomplete batch a reader keeps in memory; a larger batch is read a second time."""
input_segment_bytes_max: Final = 64 * 1024 * 1024
"""A producer's chain continues in a new segment after this many bytes, which bounds what a restart reads."""
input_poll_s: Final = 0.02
"""Typical delay until a recorded batch is noticed. An idle producer is polled less and less often."""
input_poll_max_s: Final = 0.5
output_poll_s: Final = 0.05
"""Delay until a region that reads another region's output notices a checkpoint."""
inputs_poll_s: Final = 0.5
"""How often a reader checks for new producers and for the end of the input."""

entry_marks_every_us: Final = 1_000_000
"""Entry points mark each origin at these times, also without rows; at most, windows close so much later."""
entry_marks_every_us_min: Final = 10_000
entry_unattended_s: Final = 3.0
"""An origin whose chain did not grow for this long is claimed by another entry point, which marks it."""
entry_clock_error_max_us: Final = 250_000
"""An entry point gives no times if its clock may differ by more from a majority of all clocks."""
entry_clock_drift: Final = 200e-6
"""How fast two clocks may part: twice what quartz does. A measurement loses this much precision."""
entry_horizon_us: Final = 600_000_000
"""An entry point gives rows no times that are further above the least mark."""
entry_origins_max: Final = 10_000
"""Producer names of one handle. Each is marked for ever."""

output_step_bytes_max: Final = 48 * 1024 * 1024
"""Rows of one step of one worker in an output log, as they are stored: a step is one record. The rest of the
record is for the positions of its sources.
"""
output_step_plain_bytes_max: Final = 8 * 1024 * 1024
"""Rows of a larger step are compressed."""
output_segment_bytes_max: Final = 64 * 1024 * 1024
"""The same for the output log of a worker."""
trim_poll_s: Final = 10.0
"""How often the writer of an input or an output log checks what its consumers still need. It reads their
manifests, if it has more than one segment.
"""
trim_segments_max: Final = 16
"""How many segments one such check releases at most: bounds the deletions per second on each member."""
consumers_max: Final = 1_000
"""Regions that are registered for one input; each check reads the manifest of each."""
query_publish_s: Final = 10.0
"""How often a streaming query of another engine publishes its position at most: each time is a claim, and a
new segment of the register.
"""
query_running_s: Final = 60.0
"""A query that published within this time is assumed to run: it is not removed from the consumers."""
query_retain_s: Final = 60.0
"""How long a query retains a position by default: longer than a system keeps written files in memory, in case
the machine with the engine's checkpoint loses power.
"""

# --- requests to a region through the store -------------------------------------------------------
request_bytes_max: Final = 4096
answer_bytes_max: Final = 4 * 1024 * 1024
"""Enough for a status with the maximum number of workers."""
queue_object_bytes_max: Final = 4 * 1024 * 1024
"""Requests, or answers, continue in a new object above this size, which bounds what a reader must read to
find the newest.
"""
queue_objects_kept: Final = 4
"""Number of newest request or answer objects that readers examine. Older ones are complete and are
deleted.
"""
queue_tail_bytes: Final = 256 * 1024
"""Of the newest answers, what is read to find how a region ended."""
queue_tidy_s: Final = 1.0
"""How long a writer waits for the deletion of older objects; a later writer deletes the rest."""
queue_repair_s: Final = 5.0
"""How often a driver checks whether a member that was unavailable lacks requests or answers."""
requests_open_max: Final = 1_000
"""Requests that are accepted but not done. Further requests are rejected."""
request_ids_kept_max: Final = 10_000
"""Number of request ids remembered for the detection of duplicates."""
requests_poll_s: Final = 0.25
"""How often a driver polls for requests, beside watching the newest object of them."""
outcome_wait_s: Final = 0.15
"""How long the first answer to a request waits for the outcome, so that both are one write."""
savepoints_poll_s: Final = 5.0
"""How often a driver checks whether savepoints that the project made for itself are over."""
answers_poll_s: Final = 0.05
"""How often a requester polls for answers."""
status_answers_s: Final = 1.0
"""Minimum time between two status answers; one answer serves all pending requests."""
request_patience_s: Final = 10.0
"""Default time that a requester waits for a first answer."""
request_clock_slack_s: Final = 60.0
"""Maximum difference between the clocks of a requester and a driver."""
request_write_s: Final = 15.0
"""Time limit for writing a request or an answer; afterwards a request fails, and an answer is retried
later.
"""
listeners_end_s: Final = 5.0
"""How long `awaitTermination` waits for listeners to be notified of the end."""
last_answers_s: Final = 5.0
"""Time limit for the last answers of a region that has ended."""

# --- backups --------------------------------------------------------------------------------------
backup_piece_bytes_max: Final = 16 << 20
"""Maximum size of one object with bytes of a segment. A few of them are in memory at a time."""
backup_copies_max: Final = 4
"""How many of these objects are written at the same time."""
backup_small_pieces_max: Final = 64
"""A segment that consists of so many pieces more than necessary is copied again as a whole."""
backup_record_bytes_max: Final = 256 << 20
backup_writes_max: Final = 8
"""How many numbers a run tries if others begin runs at the same time."""
backup_drop_s: Final = 60.0
"""How long the end of a backup waits until the savepoint is dropped, or until a store deletes objects."""
backup_epochs_ahead: Final = 1 << 16
"""By how much the incarnation of a restored region is above everything in its backup, beside one for each
second since: for an original that was reset more often, and for clocks that differ. Larger ones would cost:
a claim rises by `epoch_jump_max` at a time, in the manifest and in every worker's directory.
"""

# --- times ----------------------------------------------------------------------------------------
heartbeat_s: Final = 1.0
idle_report_s: Final = 10.0
"""The time between two reports that a region has nothing to do, as with queries of Spark."""
drop_warnings_s: Final = 10.0
"""Minimum time between two warnings about dropped rows."""
slow_checkpoint_s: Final = 10.0
slow_checkpoint_again_s: Final = 60.0
"""The log warns of a checkpoint that takes longer than the first, at most once in the second."""
suspect_after_s: Final = 10.0
last_words_s: Final = 0.5
"""How long the loss of a worker waits for the report of its companion, which says what ran. It comes within
milliseconds, unless the companion is lost, too.
"""
standby_after_s: Final = 10.0
"""Warm stand-bys are started after the first commit since a reset, or after this time without one."""
standby_load_s: Final = 2.0
"""The least time between two loads of a warm stand-by: each reads the end of a chain."""
standby_wait_s: Final = 30.0
"""How long a recovery waits for a load that a warm stand-by has begun. Then all of the state is read."""
long_call_s: Final = 5.0
"""The status of a region says which operator has run for longer."""
suspects_fresh_s: Final = 1.5
"""How long a worker's report that a peer does not answer counts. It repeats it more often."""
suspected_silent_s: Final = 1.5
"""A worker that a peer reports is lost if its heartbeats have stopped for this long, too."""
suspects_alone_s: Final = 5.0
"""A worker that lives, but that one peer cannot reach for this long, is replaced: no step can end."""
orphan_timeout_s: Final = 30.0
checkpoint_interval_s: Final = 1.0
drain_timeout_s: Final = 180.0
reset_timeout_s: Final = 180.0
start_timeout_s: Final = 300.0
reset_attempts_max: Final = 5
reset_forgiven_s: Final = 60.0
"""A region without checkpoints has no commit that resets its count of reset attempts: running this long
does.
"""
handshake_timeout_s: Final = 5.0
connect_attempt_s: Final = 1.0
connect_pause_s: Final = 0.25
"""A worker that cannot connect to a peer tries again: an attempt takes at most the first time, and a refused
one is repeated after the second.
"""
standby_answer_s: Final = 1.0
"""How long a stand-by may take to accept an assignment; after that another process becomes the worker."""
standby_silent_s: Final = 4.0
"""A stand-by whose host has sent no packet for this time gets no assignment: its host is probably lost."""
unreachable_counts_s: Final = 60.0
"""How long two hosts are taken for unable to reach each other after a worker has reported it."""
unreachable_at_start_s: Final = 30.0
"""A region without a checkpoint fails after this time: an advertised address is probably wrong. Later,
`reset_timeout_s` counts.
"""
placement_tries_max: Final = 8
"""How many placements of a worker are rejected before one is accepted on a host that a peer could not reach:
no other host seems to be available.
"""
placement_pause_s: Final = 30.0
"""How long workers stay where they are after no other host was found for one of them."""
stop_checkpoint_timeout_s: Final = 30.0
"""How long `stop` waits for its last checkpoint before it stops without one."""
stop_grace_s: Final = 10.0
"""How long workers may take to end after the order to stop, before they are cancelled."""
tick_late_s: Final = 0.25
"""A timer that fires this late means that our own loop was delayed."""
launch_backoff_s: Final = 0.5
launch_backoff_max_s: Final = 10.0
"""A worker that is lost repeatedly is restarted after the first delay, doubled each time, up to the
second.
"""
store_poll_s: Final = 0.25
"""Poll interval for the state of the manifest's claim, and for a store without a quorum."""
control_queue_max: Final = 1_000
"""Maximum number of messages queued for one worker; above it, its link is closed."""
claim_patience_s: Final = 10.0
"""A claim of the manifest that is not granted in this time is abandoned, reported as waiting, and tried
again.
"""
claimant_wait_s: Final = 2.0
"""A driver that lost the manifest to a claim without a segment waits once, for this time or twice as long as
its own opening took, so that a newer driver can open its segment. If the claimant died after its claim, the
older driver takes over from itself (R18).
"""
load_again_s: Final = 3.0
"""If the workers of a driver that takes a region over have loaded state for longer, they load what was
committed meanwhile before the region is asked for.
"""
lease_s: Final = 30.0
"""How long a region that is lent to another driver stays paused for its claim."""
heir_commits_s: Final = 30.0
"""How long a driver that has lent its region, and was superseded, waits for the first checkpoint of the other
one. Without it, it takes the region back.
"""
manifest_backoff_s: Final = 0.05
manifest_backoff_max_s: Final = 5.0
manifest_backoff_attempts_max: Final = 4.0
"""Random, doubling wait of a coordinator that was superseded before its segment start was acknowledged (R17).
The first wait is the first value plus the duration of the attempt; the maximum is the second value plus this
many times that duration.
"""

assert handshake_bytes_max <= control_bytes_max <= data_bytes_max
assert 2 * heartbeat_s < suspect_after_s < orphan_timeout_s
assert workers_max < senders_max
assert workers_max < ended_log_ends_max
assert state_block_bytes_max < data_bytes_max
assert 2 <= checkpoints_retained_min <= checkpoints_retained <= checkpoints_retained_max
assert request_bytes_max < queue_object_bytes_max
