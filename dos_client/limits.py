"""The limits of the client; the unit is last in the name. A server sends its own limits in WELCOME."""

from typing import Final

from dos_protocol.limits import KIB, MIB, digest_block_bytes, payload_bytes_max

default_port: Final = 9999

chunk_bytes_max: Final = 256 * KIB
"""The largest payload of one APPEND, which becomes one extent on the server. A multiple of the digest's
block."""

window_bytes_max: Final = 8 * MIB
"""Acknowledged bytes of one object kept in memory for members that lag a little."""

window_chunks_max: Final = 8_192
"""The same bound for many small appends, whose bookkeeping takes more memory than their bytes."""

journal_lag_bytes_max: Final = 64 * MIB
"""Bytes of one object appended and not yet synced on a quorum. `wait_room` waits above this."""

in_flight_bytes_max: Final = 8 * MIB
"""Bytes sent to one member that it has not yet reported as received. The server's own limit also applies."""

send_batch_bytes: Final = 1 * MIB
send_batch_buffers: Final = 256
"""The approximate size of one gathered write, far below the kernel's limit of 1024 buffers."""
joined_frame_bytes_max: Final = 4 * KIB
"""Up to this size a copy of an append is cheaper than one more buffer in each call that sends it."""

milestone_bytes: Final = 256 * KIB
"""The prefix digest is kept at every multiple of this; bytes that are read elsewhere are verified in such
units."""

milestones_max: Final = 65_536
"""Per object: 512 KiB of digests, for 16 GiB. Beyond that, a member is filled only from other members."""

local_read_timeout_s: Final = 5.0
"""A local copy is not used if reading this little takes longer, because its disk does not respond."""

catch_up_chunk_bytes: Final = 256 * KIB
catch_up_read_bytes: Final = 128 * KIB
"""The memory for a member that lags: two chunks, or twice `catch_up_read_bytes` and 512 KiB for the session's
buffer."""

catch_up_in_flight_bytes_max: Final = 2 * MIB
"""Bytes sent to a member that lags and not yet reported as received."""

append_times_max: Final = 256
append_times_step_s: Final = 0.1
"""Append times are remembered for at most this many positions of an object, at least this far apart."""

fill_in_flight_bytes_max: Final = 4 * MIB
fill_listings_max: Final = 5
fill_stall_s: Final = 1.0
"""Limits of `dos store replace`. A directory whose writer has sent nothing to the new member for
`fill_stall_s` is filled by the command."""

superseded_joining_s: Final = 2.0
"""How long a writer stays away from a joining member after `dos store replace` has claimed the directory
there."""

repair_chunk_bytes: Final = 256 * KIB
repair_timeout_s: Final = 60.0
"""The timeout for one piece of a new copy. The last piece waits until the server has synced all of it."""
delete_timeout_s: Final = 60.0
"""File systems can take long to delete a large file."""
collect_pause_s: Final = 1.0
"""The pause before another attempt to delete an object that is no longer needed."""
repair_attempts_max: Final = 3
repair_pause_s: Final = 0.5
"""How often, and with what pause, the repair of a copy is repeated if a writer interfered."""
auto_repair_pause_s: Final = 1.0
auto_repair_pause_max_s: Final = 60.0
"""The pause between two automatic repairs. It doubles up to the maximum while a repair fails."""
auto_repair_attempts_max: Final = 12
auto_repair_bytes_per_s: Final = 32 * MIB

damage_watch_s: Final = 20.0
"""How often a store with a writer queries each member for directories with damaged copies."""

scrub_poll_s: Final = 0.5
"""How often `dos store scrub` asks for the progress."""
verify_pause_s: Final = 0.3
"""The pause between two reads of a directory whose copies differ: an active writer changes them meanwhile."""

change_beat_s: Final = 5.0
change_end_s: Final = 10.0
"""How often a run that changes the store shows that it works, and how long it waits for the last entry of its
history."""

watch_interval_s: Final = 5.0
watch_stand_by_s: Final = 30.0
watch_replace_after_s: Final = 900.0
"""`dos store watch`. The last is longer than `stamp_renewal_s`: renewed stamps show that clients reach a
member."""
watch_look_max_s: Final = 10.0
"""How long one look may take, because servers do not answer. Longer pauses are not counted as silence."""
looks_per_damage: Final = 6
"""Damage that servers report is read at every sixth look, and at every look while a member is unavailable."""
watch_compare_s: Final = 600.0
"""How often a watcher compares all copies by digest, to find those that are behind a writer that is gone."""
watch_stall_s: Final = 60.0
"""An action of a watcher that makes no progress for this long is reported."""
watch_retry_first_s: Final = 10.0
watch_retry_max_s: Final = 600.0
"""The pause before an action that failed is tried again. It doubles up to the maximum."""

take_over_attempts_max: Final = 8
install_timeout_s: Final = 30.0

read_bytes_max: Final = 16 * MIB
"""The most bytes that one `read` returns. Callers read longer ranges in parts."""

connect_timeout_s: Final = 5.0
answer_timeout_s: Final = 10.0
"""A request that is not answered by then is sent to another member, or the session is reconnected."""

probe_timeout_s: Final = 3.0
status_answer_s: Final = 1.0
"""How long each server gets to answer `dos store status`, which answers within 3 s if servers hang."""
read_timeout_s: Final = 5.0
inspect_timeout_s: Final = 3.0
"""How long members that do not answer are retried while too few have answered a directory read."""

witness_timeout_s: Final = 2.0
witness_again_s: Final = 5.0
"""The timeout for a request about stamps, and the pause before it is repeated."""
stamp_renewal_s: Final = 60.0
"""The interval of requests for a member's newest stamp. The server renews an old stamp on request."""
silence_ping_s: Final = 5.0
silence_broken_s: Final = 15.0
"""A session that receives nothing for `silence_ping_s` sends PING; after `silence_broken_s` it counts as
broken."""

backoff_first_s: Final = 0.05
backoff_max_s: Final = 2.0
session_worked_s: Final = 5.0
"""A session that ended within this time without a durability ack does not reset the backoff."""

answers_grace_s: Final = 0.25
"""After enough members have answered a claim or a directory read, the others get this much more time."""

probe_grace_s: Final = 0.5
"""After enough servers have confirmed a record to open a store, the others get this much more time."""

open_timeout_s: Final = 10.0
"""How long `open_store` searches for enough members that confirm the record."""
open_told_s: Final = 1.0
"""After this time without an answer of any server, `open_store` logs why, and goes on."""

waiting_after_s: Final = 3.0
"""A writer with pending bytes and no progress for this long reports that it waits for the store."""

waiting_report_s: Final = 1.0
"""A wait is logged after this long. Shorter waits are normal: every new store record causes one."""

observe_step_s: Final = 0.5
"""The interval at which claims are observed for the log and the metrics."""

reader_sessions_max: Final = 32
"""Reader sessions kept open for later reads, beyond those in use and those in directories with a followed
object.
"""

hedge_percentile: Final = 0.95
hedge_delay_min_s: Final = 0.002
hedge_delay_max_s: Final = 0.25
hedge_delay_first_s: Final = 0.02
"""Another member is also queried if the answer takes longer than this percentile of the recent answers,
within the two bounds; `hedge_delay_first_s` while fewer than `hedge_samples_min` answers are known."""

hedge_samples_min: Final = 16
hedge_samples_max: Final = 64
hedge_sample_age_s: Final = 30.0
"""A member's answer times are estimated from this many recent answers, none older than this."""

hedge_order_samples: Final = 8
"""Members are queried in the order of the median of this many last answers: with all samples 32 slow ones
would be needed to query a member last, which the budget does not cover."""

hedge_share: Final = 0.05
hedge_burst: Final = 10
"""The budget of hedged requests: this share of all requests, and at most this many saved up."""

hedge_rescue_s: Final = 0.5
"""Without budget, another member is queried after this long: waiting longer is worse than one extra request.
"""

read_settle_s: Final = 1.0
"""After F members are at the end of an object, or have none, the others get this long to report more."""

piece_bytes: Final = 1 * MIB
pieces_ahead_max: Final = 4
"""A stream is read and verified in pieces of this size, at most this many at once. Their product bounds its
memory."""

read_ahead_bytes_min: Final = 64 * KIB
read_ahead_bytes_max: Final = 1 * MIB
read_ahead_pieces_max: Final = 2
read_ahead_streams_max: Final = 4
read_ahead_kept_s: Final = 5.0
"""Read-ahead for sequential reads of a claim's objects: at most 8 MiB per claim during a restore, nothing
afterwards."""

follow_wait_ms: Final = 10_000
follow_pause_s: Final = 0.2
"""A follower gets an answer from each member when it has more, at the latest after `follow_wait_ms`."""

answers_owed_max: Final = 8
"""Answers to abandoned requests that are outstanding, per session. A member with more is not queried."""

damage_reports_max: Final = 1_000
"""Damaged or different copies remembered. Above it, the oldest is dropped, and detected again when it is
read."""

if chunk_bytes_max % digest_block_bytes or chunk_bytes_max > payload_bytes_max:
    raise ValueError("a chunk is whole blocks of the digest, and fits one frame")
if max(2 * catch_up_chunk_bytes, 2 * catch_up_read_bytes + 512 * KIB) > MIB:
    raise ValueError("catching up takes at most 1 MiB a member")
if piece_bytes % digest_block_bytes or piece_bytes > payload_bytes_max:
    raise ValueError("a piece is whole blocks of the digest, and fits one frame")
if not 0 < hedge_delay_min_s <= hedge_delay_first_s <= hedge_delay_max_s <= hedge_rescue_s < read_timeout_s:
    raise ValueError("hedging has its turn before a rescue, and that before the time is up")
if milestone_bytes % digest_block_bytes or milestone_bytes > catch_up_chunk_bytes:
    raise ValueError("what is proved at a time is whole blocks of the digest, and at most one chunk")
if window_bytes_max < 2 * chunk_bytes_max or journal_lag_bytes_max < window_bytes_max:
    raise ValueError("the window holds some chunks, and the lag allowed is at least the window")
