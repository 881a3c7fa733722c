"""Every limit of this package, units last in the name. Relations between limits are checked at import.

What belongs here: sizes, counts and times that bound memory or patience. Times that a user chooses per
region are fields of `RegionSpec`; their defaults live here.
"""

from typing import Final

# --- channel frames -------------------------------------------------------------------------------
frame_header_bytes: Final = 64
data_bytes_max: Final = 64 * 1024 * 1024
"""Payload of one DATA frame. A record batch of 64 Ki rows is some MiB; the sender cuts larger ones."""
control_bytes_max: Final = 16 * 1024 * 1024
"""Payload of one CONTROL or HANDSHAKE frame: a cut with some ten thousand splits fits."""
handshake_bytes_max: Final = 4096
"""Payload of one HANDSHAKE frame: it is read before the peer has proved anything."""
senders_max: Final = 0xFFFF
"""Workers of a region. The sender field is a u16, its last value is the coordinator."""
steps_ahead_max: Final = 4
"""How far past the step being aligned a sender may be. Sources stop at 2; the rest is slack for frames in
flight.
"""

# --- manifest -------------------------------------------------------------------------------------
manifest_record_bytes_max: Final = control_bytes_max
manifest_segment_bytes_max: Final = 16 * 1024 * 1024
"""The manifest is rolled (snapshot of the retained cuts, new segment) when this much was appended."""
cuts_retained: Final = 5
"""Cuts that stay restorable unless the user says how many: the last ones."""
cuts_retained_min: Final = 2
"""The last one, and the one before for a person who must go back."""
cuts_retained_max: Final = 1_000
trim_wait_s: Final = 60.0
"""So long `dos region trim` waits for members to delete."""
savepoints_max: Final = 64
"""Cuts that stay restorable by name: each keeps what its region needed then, on every member."""
savepoint_name_chars_max: Final = 64
"""Their numbers are in every cut, and a manifest's snapshot carries them all over."""
chain_segments_max: Final = 64
"""A chain of more segments (each reset opens one) begins anew with a snapshot, however short it is."""
manifest_replay_bytes_max: Final = 1024 * 1024
"""A take-over that had to read more than this begins its segment with a snapshot of the retained cuts."""
manifest_looks_max: Final = 5
"""A reader whose manifest began anew while it read looks so often."""
workers_max: Final = 4096

# --- state blocks ---------------------------------------------------------------------------------
state_block_bytes_max: Final = 16 * 1024 * 1024
"""Arrow bytes of one state block. Larger changes are written as several blocks of one cut."""
state_block_rows_max: Final = 256 * 1024
snapshot_bytes_min: Final = 64 * 1024 * 1024
"""Below this much appended since the last snapshot no new one is written."""
snapshot_growth: Final = 4
"""A snapshot is due when what was appended since the last one is this many times its size."""

# --- input handles -------------------------------------------------------------------------------
input_part_bytes_max: Final = 1024 * 1024
"""What a producer puts into one record, as a rule: a step takes whole parts. One row may be larger."""
input_pending_bytes_max: Final = 16 * 1024 * 1024
"""Of a batch that is not whole yet, so much is kept in memory by a reader; a larger one is read a second
time.
"""
input_segment_bytes_max: Final = 64 * 1024 * 1024
"""A producer's chain goes on in a new segment after so much: a restart reads back at most about that."""
input_poll_s: Final = 0.02
"""How soon a batch that was recorded is seen, as a rule; a quiet producer is asked less and less often."""
input_poll_max_s: Final = 0.5
output_poll_s: Final = 0.05
"""How soon a region that reads another one's output learns of a cut."""
inputs_poll_s: Final = 0.5
"""How often producers that have come, and the end of the input, are looked for."""

# --- requests to a region through the store -------------------------------------------------------
request_bytes_max: Final = 4096
answer_bytes_max: Final = 4 * 1024 * 1024
"""A status of the most workers fits."""
queue_object_bytes_max: Final = 4 * 1024 * 1024
"""Requests, or answers, go on in a new object when theirs would be longer: nobody reads more than this to
find the newest.
"""
queue_objects_kept: Final = 4
"""The newest objects of requests, or answers, are looked at: older ones have got their last bytes long ago,
and are taken away.
"""
queue_tidy_s: Final = 1.0
"""A writer of letters waits so long for older objects to go; a later one takes what is left."""
queue_repair_s: Final = 5.0
"""How often a driver looks whether a member that was unavailable lacks requests or answers."""
requests_open_max: Final = 1_000
"""Accepted and not done. More are refused."""
request_ids_kept_max: Final = 10_000
"""A request is known to be a duplicate among so many."""
requests_poll_s: Final = 0.5
"""How often a driver looks for requests."""
answers_poll_s: Final = 0.2
"""How often a requester looks for answers."""
status_answers_s: Final = 1.0
"""Two status answers are at least so far apart: one serves all who asked."""
request_patience_s: Final = 10.0
"""How long a requester waits for a first answer, unless told."""
request_clock_slack_s: Final = 60.0
"""How much the clocks of a requester and a driver may differ."""
request_write_s: Final = 15.0
"""A request or an answer that is not written by then is given up, or tried again later."""
listeners_end_s: Final = 5.0
"""How long `awaitTermination` lets listeners hear the end."""
last_answers_s: Final = 5.0
"""How long the answers of a region that has ended may take."""

# --- times ----------------------------------------------------------------------------------------
heartbeat_s: Final = 1.0
drops_told_s: Final = 10.0
"""The least time between two warnings about rows that were dropped."""
suspect_after_s: Final = 10.0
orphan_timeout_s: Final = 30.0
checkpoint_interval_s: Final = 1.0
drain_timeout_s: Final = 180.0
reset_timeout_s: Final = 180.0
start_timeout_s: Final = 300.0
reset_attempts_max: Final = 5
reset_forgiven_s: Final = 60.0
"""What runs without cuts has no commit that forgives its reset attempts: so much running does."""
handshake_timeout_s: Final = 5.0
stop_cut_timeout_s: Final = 30.0
"""How long `stop` waits for its last cut before it stops without one."""
stop_grace_s: Final = 10.0
"""How long workers get to end themselves after the order to stop, before they are cancelled."""
tick_late_s: Final = 0.25
"""A timer that fires this much after its time means that our own loop was late."""
launch_backoff_s: Final = 0.5
launch_backoff_max_s: Final = 10.0
"""A worker that is lost again and again is started again after this delay, doubled each time, at most the
second.
"""
store_poll_s: Final = 0.25
"""How often the manifest's claim is asked whether it waits, and a store without a quorum is asked again."""
control_queue_max: Final = 1_000
"""Messages kept for one worker that does not take them; more, and its link is given up."""
claim_patience_s: Final = 10.0
"""A claim of the manifest that is not granted by then is given up, told as waiting, and tried again."""
claimant_wait_s: Final = 2.0
"""A driver that lost the manifest to a claim without a segment waits so long, once, for the claimant to
open one, or twice as long as its own opening took: a newer driver at work. If it died over its claim, the
older one takes over from itself (R18).
"""
manifest_backoff_s: Final = 0.05
manifest_backoff_max_s: Final = 5.0
manifest_backoff_attempts_max: Final = 4.0
"""Random, doubling wait of a coordinator superseded before its segment start was acknowledged (R17). First:
the former and what the attempt took; at most: the second and so many times that."""

assert handshake_bytes_max <= control_bytes_max <= data_bytes_max
assert 2 * heartbeat_s < suspect_after_s < orphan_timeout_s
assert workers_max < senders_max
assert state_block_bytes_max < data_bytes_max
assert 2 <= cuts_retained_min <= cuts_retained <= cuts_retained_max
assert request_bytes_max < queue_object_bytes_max
