"""The limits of the client. Rules of this file: numbers only, unit last in the name, relations checked at
import.

What both ends know (frame sizes, blocks, names) is in `dos_protocol.limits`; what a server allows is in its
WELCOME.
"""

from typing import Final

from dos_protocol.limits import KIB, MIB, digest_block_bytes, payload_bytes_max

default_port: Final = 9999

chunk_bytes_max: Final = 256 * KIB
"""The most one APPEND of ours carries: one extent of the server. A multiple of the digest's block."""

window_bytes_max: Final = 8 * MIB
"""Acknowledged bytes of one object kept for members that are a little behind; further behind, they read
another member."""

window_chunks_max: Final = 8_192
"""The same bound for many small appends, whose bookkeeping weighs more than their bytes."""

journal_lag_bytes_max: Final = 64 * MIB
"""Bytes of one object appended and not yet synced on a quorum: `wait_room` waits above this."""

in_flight_bytes_max: Final = 8 * MIB
"""Bytes sent to one member and not yet `received` there. The server's own limit counts too, when lower."""

send_batch_bytes: Final = 1 * MIB
send_batch_buffers: Final = 256
"""One gathered write takes about this much: far below the kernel's 1024 buffers."""

socket_buffer_bytes: Final = 4 * MIB
"""Asked of the kernel for sending; the kernel may give less."""

milestone_bytes: Final = 256 * KIB
"""The digest of the prefix is kept at every multiple of this: bytes read elsewhere are proved so far at a
time. A multiple of the digest's block, and at most one chunk."""

milestones_max: Final = 65_536
"""Of one object: half a MiB of digests, 16 GiB of bytes. Beyond that, only other members fill a member."""

local_read_timeout_s: Final = 5.0
"""A local copy that takes longer to read so little is not used: its disk hangs."""

catch_up_chunk_bytes: Final = 256 * KIB
catch_up_read_bytes: Final = 128 * KIB
"""A member that is behind costs the memory of one chunk, twice for a moment, when it is read from the local
copy; read from another member, that of this much and of the session's own buffer, of 512 KiB by then."""

catch_up_in_flight_bytes_max: Final = 2 * MIB
"""Sent to a member that is behind and not yet `received` there: in the hands of kernels and the server."""

append_times_max: Final = 256
append_times_step_s: Final = 0.1
"""When bytes were appended is remembered at so many places of an object, this far apart at least: from that
the age of what a member lacks is told."""

fill_directories_max: Final = 8
fill_in_flight_bytes_max: Final = 4 * MIB
fill_looks_max: Final = 5
fill_stall_s: Final = 1.0
"""`dos store replace` fills this many directories at once, each with so much under way, and takes a
directory in hand whose writer has brought nothing to the new member for so long. While objects of a directory
are taken away, it looks at it so often."""

superseded_joining_s: Final = 2.0
"""How long a writer leaves a joining member to `dos store replace` that took the directory in hand there."""

repair_chunk_bytes: Final = 256 * KIB
repair_timeout_s: Final = 60.0
"""One piece of a new copy; the last one waits until a server has synced all of it."""
delete_timeout_s: Final = 60.0
"""A large file takes its file system a while to take away."""
collect_pause_s: Final = 1.0
"""What nobody needs any more and cannot be taken away just now is tried again after so long."""
repair_attempts_max: Final = 3
repair_pause_s: Final = 0.5
"""A copy whose mending met a writer at work is tried so often, so far apart."""
self_repair_pause_s: Final = 1.0
self_repair_pause_max_s: Final = 60.0
"""Between two copies that a store mends by itself; doubling up to the second while one cannot be mended."""
self_repair_attempts_max: Final = 12
self_repair_bytes_per_s: Final = 32 * MIB

damage_watch_s: Final = 20.0
"""A store that is written through asks each member about so often which directories have damaged copies."""

verify_pause_s: Final = 0.3
"""Between the two looks at a directory whose copies are uneven: a writer at work moves them meanwhile."""

take_over_attempts_max: Final = 8
install_timeout_s: Final = 30.0

read_bytes_max: Final = 16 * MIB
"""The most one `read` returns; longer ones are asked for in parts."""

connect_timeout_s: Final = 5.0
answer_timeout_s: Final = 10.0
"""A request that a server has not answered by then is tried elsewhere, or the session made anew."""

probe_timeout_s: Final = 3.0
read_timeout_s: Final = 5.0
look_timeout_s: Final = 3.0
"""How long members that do not answer a look are tried again, when too few have answered."""

witness_timeout_s: Final = 2.0
witness_again_s: Final = 5.0
"""For a member to say whether it has a stamp, or to keep another's; and when it is asked again."""
stamp_renewal_s: Final = 600.0
"""Between two questions for a member's newest stamp, at which an old one is replaced by the server."""
silence_ping_s: Final = 5.0
silence_broken_s: Final = 15.0
"""A session that heard nothing for the first asks PING, for the second is taken to be broken."""

backoff_first_s: Final = 0.05
backoff_max_s: Final = 2.0
session_worked_s: Final = 5.0
"""A session that brought no watermark and lived no longer than this does not shorten the wait before the
next."""

answers_grace_s: Final = 0.25
"""When enough members have answered a claim or a look, the others get this much longer to be heard too."""

probe_grace_s: Final = 0.5
"""When enough servers have shown a record to open a store by it, the others get this much longer to be
heard too."""

open_timeout_s: Final = 10.0
"""How long `open_store` looks for enough members to know the record."""

waiting_after_s: Final = 3.0
"""Without progress for this long while bytes wait, a writer says that it is waiting for the store."""

waiting_told_s: Final = 1.0
"""Who has waited for so long tells the log. Shorter ones are no news: every new store record has one."""

observe_step_s: Final = 0.5
"""How often claims are looked at for the log and the metrics."""

reader_sessions_max: Final = 32
"""Sessions of readers kept for the next read; besides, one with each member for each directory in which
somebody follows an object."""

hedge_percentile: Final = 0.95
hedge_delay_min_s: Final = 0.002
hedge_delay_max_s: Final = 0.25
hedge_delay_first_s: Final = 0.02
"""Another member is asked too when the answer takes longer than so large a share of the last answers did, but
not before and not after these. The last counts while fewer answers than `hedge_samples_min` are known."""

hedge_samples_min: Final = 16
hedge_samples_max: Final = 64
hedge_sample_age_s: Final = 30.0
"""What is known of a member's answer times: the last so many, none older."""

hedge_share: Final = 0.05
hedge_burst: Final = 10
"""So many questions may be asked twice: this share of all, and so many saved up."""

hedge_rescue_s: Final = 0.5
"""Without budget another member is asked after this long: something is wrong then, and waiting is worse."""

read_settle_s: Final = 1.0
"""When F members are at an object's end, or have no such object, the others get this long to know more."""

piece_bytes: Final = 1 * MIB
pieces_ahead_max: Final = 4
"""A stream of committed bytes is read and checked in such pieces, so many at once: that is its memory."""

read_ahead_bytes_min: Final = 64 * KIB
read_ahead_bytes_max: Final = 1 * MIB
read_ahead_pieces_max: Final = 2
read_ahead_streams_max: Final = 4
read_ahead_kept_s: Final = 5.0
"""Who reads objects of a claim in order, in pieces of such sizes, has so many pieces read ahead, of so many
objects at once, kept so long: at most 8 MiB a claim while it restores, and nothing afterwards."""

follow_wait_ms: Final = 10_000
follow_pause_s: Final = 0.2
"""Who follows an object asks each member to answer when it has more, at most this much later; a member that
cannot is asked again after the pause."""

answers_owed_max: Final = 8
"""Answers that nobody waits for any more, per session; who owes more is not asked until it gave some."""

damage_reports_max: Final = 1_000
"""Copies known to be wrong; beyond it the oldest note goes, and that copy is found out again when read."""

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
