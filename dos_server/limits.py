"""Every limit of the server. The unit is the last word of a name; relations are checked at import.

Limits that clients must also know are in `dos_protocol.limits`.

Together these limits keep the process below 150 MB for any object size (P-9). Memory that grows with objects
is the sparse index (at most 8 KiB per object) and about 2 KiB per object in use, whose number is limited.
Memory that grows with peers is limited per connection and over all connections.
"""

from typing import Final

from dos_protocol import limits as wire
from dos_protocol.limits import KIB, MIB

extent_header_bytes: Final = 64
extent_payload_bytes_max: Final = 256 * KIB
index_entries_max: Final = 512

connections_max: Final = 1_280
"""An idle connection takes about 30 KiB. Fewer if the limit of open files allows fewer."""
handshakes_max: Final = 256
"""Connections in the TLS handshake. The others stay free for peers that have completed it."""
connections_waiting_max: Final = 1_024
"""The listen backlog: one more, and its peer retries after a second."""
descriptors_min: Final = 1_024
"""A server does not start with fewer: the files of objects that wait to be filed would take all of them."""
descriptors_reserved: Final = 128
"""Left for the listener, folders, marks of directories and files that libraries open."""
connection_buffer_bytes: Final = 512 * KIB
"""Receive buffer of a busy connection; an idle one has 16 KiB."""
connection_buffer_fair_bytes: Final = 64 * KIB
"""Receive buffer of a connection when many are busy."""
buffers_large_bytes_max: Final = 6 * MIB
"""Receive memory beyond the first 16 KiB of each connection, over all connections: above this limit no large
buffer is granted."""
buffers_optional_bytes_max: Final = 8 * MIB
"""Above this limit, a buffer grows only for a frame that does not fit it."""
buffers_needed_bytes_max: Final = 10 * MIB
"""Above this limit it does not grow for that either: the connection waits until others return theirs."""
buffers_total_bytes_max: Final = 12 * MIB
"""The limit for connections that have delivered a large frame before."""
hello_bytes_max: Final = 8_160
"""Maximum meta, and payload, of a frame before HELLO is answered: such a frame fits the small buffer."""
stalled_seconds_max: Final = 1.0
"""While others wait for buffer space: a connection that holds space for a frame and sends nothing for this
long is closed."""
slow_frame_seconds_max: Final = 5.0
"""In the same situation, a connection whose frame is not complete after this is also closed."""

requests_in_flight_max: Final = 1_024
"""Unanswered requests of one connection; above this the server stops reading from it."""
outgoing_bytes_max: Final = 2 * MIB + KIB
"""Bytes queued for one slow reader, two of the largest answers; above this the server stops answering it."""
outgoing_total_bytes_max: Final = 8 * MIB
outgoing_pressed_bytes: Final = 32 * KIB
"""Above `outgoing_total_bytes_max`, a peer with this much queued is not read. A GET is then answered with at
most this much, and only if the peer has taken everything before."""
outgoing_full_bytes: Final = 16 * MIB
"""Above this total, LIST, CWD and `l` of version 0 wait: each of their answers has up to 1 MiB."""
list_entries_max: Final = 1_000
"""Entries of an answer to LIST. Longer ones would delay everybody else, and are no faster."""
entries_few: Final = 200
"""A directory with at most this many objects is exempt from that."""
openings_max: Final = 8
"""CWDs that wait for a directory to load, over all connections; further ones are queued before they begin."""
waiting_total_max: Final = 16_384
"""GETs that wait at the end of an object, over all connections; further ones are answered at once, empty."""
waiting_of_one_min: Final = 16
"""Each connection may have this many waiting GETs regardless of the total."""
woken_of_event_max: Final = 256
"""Waiting GETs answered at once when an object grows; the next group follows after about 50 ms, and so on."""
reads_queued_of_one_max: Final = 16
"""GETs and STATs of one connection that wait for the disk; above this the server stops reading from it."""
reads_in_flight_max: Final = 4
"""Concurrent GETs at the disk, over all connections."""
read_bytes_in_flight_max: Final = 2 * MIB
"""Payload of these: more of them at once do not read faster, and delay the event loop."""
read_extents_max: Final = 512
"""A GET that spans more extents is answered with the bytes of this many. Small extents cost processor time,
7 us each, and a thread that computes for more than 5 ms without a pause delays the event loop."""
digests_in_flight_max: Final = 1
"""Concurrent digest reads. A digest over extents of one byte each takes 0.5 s of processor time."""
in_flight_bytes_max: Final = 64 * MIB
"""Received and not yet synced, per connection; announced to clients. Above this the server stops reading."""
in_flight_shared_bytes_max: Final = 16 * MIB
"""The same for all sessions together, in equal shares, while several append: the disk writes about this much
before it can sync what comes after."""
in_flight_share_bytes_min: Final = 512 * KIB
"""The smallest share. A frame that is larger is accepted nevertheless."""

repairs_max: Final = 8
"""Concurrent repairs (new copies of objects), over all connections."""

sync_threads_max: Final = 16
write_threads_max: Final = 16
slow_disk_seconds: Final = 0.5
"""A sync or write that takes longer shows that a write in the event loop would block it."""
slow_writes_bytes_max: Final = 64 * MIB
"""Copied and waiting for a slow disk; above this nothing more is read from any connection."""
claim_threads_max: Final = 8
load_threads_max: Final = 4
repair_threads_max: Final = 4

round_seconds: Final = 0.002
"""Maximum duration of a round, before its results are written, synced and sent."""
round_bytes_max: Final = 1 * MIB
"""Input of a round after which further connections wait for the next one."""
turn_seconds: Final = 0.001
"""The time slice of one connection while others wait. A single request may take longer; none is split."""
many_waiting: Final = 64
"""If more connections wait for their turn, the slice is a quarter of `turn_seconds`."""
turn_memory_seconds: Final = 0.5
"""Half-life of the recorded cost of a connection."""
accepts_of_round_max: Final = 32
"""Connections accepted in one round, before existing connections have their turn."""

hello_seconds_max: Final = 5.0
frame_seconds_max: Final = 30.0
"""From the first byte of a frame to its last. An idle session has no time-out."""
send_seconds_max: Final = 60.0
"""A peer that reads nothing for this long is disconnected (NATS: 10 s)."""
full_send_seconds_max: Final = 2.0
"""The same, while others wait because too much is queued for peers that do not read."""
linger_seconds: Final = 1.0
"""How long the server reads and discards input after it has sent the reason for closing."""
watermark_seconds_max: Final = 0.1
"""Maximum delay of a `received` report if no sync finishes in the meantime; the promise is one second."""
shrink_seconds: Final = 5.0
"""An idle connection returns its large buffer after this long."""

directories_loaded_max: Final = 256
objects_loaded_max: Final = 10_000
"""Above either, directories that no session uses are unloaded, oldest first."""
objects_in_use_max: Final = 36_000
"""In directories that sessions use: six full ones, about 2 KiB per object. At the limit no further directory
is opened and no object created until sessions leave some. The scrub may use one directory in addition."""
open_files_max: Final = 256

fsck_part_bytes: Final = 4 * MIB
fsck_part_extents_max: Final = 65_536
"""The unit that `dos fsck` verifies at once: determines its memory and how often it reports progress."""

reserve_bytes_default: Final = 16 * MIB
"""Kept free on the file system for claims, marks, store records, removals and restarts: 4 KiB for each
claimed directory, thousands of times. An append that would use it is refused."""
reserve_fraction_max: Final = 16
"""On a small file system the reserve is at most one part in this many."""
resume_fraction: Final = 4
"""Appends resume once this fraction of the reserve, one part in so many, is free above it."""
new_file_bytes: Final = 4 * KIB
"""Cost of a new object before its first byte: the first block of its file, and its share of the folder."""

new_directory_bytes: Final = 3 * new_file_bytes
"""Cost of a new directory: its folder, its claim and its marks."""

quota_directories_default: Final = 1_000
"""Directories that a quota of bytes or objects allows, unless it names another number."""
space_check_seconds: Final = 1.0
"""Interval of checks of the free space."""
again_seconds: Final = 1.0
"""Delay before a sync or removal that the disk could not begin is requested again."""
tail_tries_seconds_min: Final = 1.0
tail_tries_seconds_max: Final = 60.0
"""Delay between two tries to copy a torn tail aside; it doubles each time, up to the maximum."""

stamp_seconds: Final = 60.0
"""Age after which the disk gets a new stamp, when a client requests the newest. A copy of the disk younger
than this, and than the last claim that was granted, cannot be recognized as old."""
stamps_kept_max: Final = 4_096
"""64 KiB, at least two days. A member whose outage is older than all of them is not compared."""

mark_bytes: Final = 256
"""One mark never crosses a sector, because 256 divides 512."""

version0_request_bytes_max: Final = 255
"""Maximum length of a version 0 request; so the first byte of such a connection is zero."""
version0_status_seconds: Final = 1.0
"""Interval of status frames of a stream while bytes arrive, and the pause after which progress is sent."""
version0_in_flight_bytes_max: Final = 16 * MIB
"""Received from one stream and not yet synced. Less than `in_flight_bytes_max`: a client of version 0 treats
back-pressure of 2 s as a lost connection, and this much is synced well within that time."""
version0_in_flight_batches_max: Final = 8_192
"""The same limit in reads of the socket: a client may send single bytes."""
version0_silence_seconds_max: Final = 60
"""A peer that acknowledges no packet for this long is gone, and its lock is released: TCP keep-alive."""

scrub_first_seconds_max: Final = 60.0
"""Upper limit of the delay of the first scrub after a start, which has more urgent work."""
scrub_part_bytes: Final = 4 * (extent_header_bytes + extent_payload_bytes_max)
scrub_part_extents_max: Final = 512
"""The unit that the scrub reads at once: determines its memory and how long it may delay others."""
scrub_rest_share: Final = 9.0
"""The scrub pauses for this many times the length of its last read: small extents cost time, not bytes."""
scrub_load_seconds: Final = 0.05
"""Interval of checks whether a directory has been loaded."""
scrub_yield_seconds: Final = 0.05
scrub_yield_seconds_max: Final = 1.0
"""Interval of retries while the disk works for clients, and the maximum delay of a scrub read."""

if extent_payload_bytes_max % wire.digest_block_bytes:
    raise ValueError("an extent holds whole digest blocks")
if outgoing_bytes_max < wire.payload_bytes_max:
    raise ValueError("one answer must fit the queue of a connection")
if buffers_needed_bytes_max - buffers_optional_bytes_max < wire.payload_bytes_max + wire.meta_bytes_max + KIB:
    raise ValueError("the receive buffers must always have room for one frame of the maximum size")
if 512 % mark_bytes:
    raise ValueError("a mark must not cross a sector")

log_bytes_default: Final = 64 * MIB
"""Size of the group log of `dos serve`: all its slots together."""
log_bytes_embedded: Final = 16 * MIB
log_align_bytes: Final = 4 * KIB
"""A record of the group log begins at a multiple of this, so that no two share a block of the disk."""
log_content_bytes_max: Final = 1 * MIB
log_slots: Final = 4
log_live_segments_max: Final = log_slots - 1
"""So that a start, which replays them, finds a free slot for its first record."""
log_reserved_bytes: Final = 64 * KIB
"""The end of a slot, for claims, removals and replacements."""
log_age_seconds: Final = 5.0
"""Age at which a segment is sealed, so that what it holds is filed."""
log_unfiled_max: Final = 768
"""Objects in a segment: their files stay open until they are filed."""
log_small_bytes_max: Final = 64 * KIB
"""Of one object, written and not synced: more goes directly to its file."""
log_direct_seconds: Final = 1.0
"""How long an object that was above that goes directly: a large stream that is slow looks like small ones."""
log_entries_max: Final = 1_024
log_idle_seconds: Final = 1.0
"""After so long without a record, everything is filed."""
log_name_seconds: Final = 0.1
"""How long it may take until an append to an object whose file was removed is noticed (decision 0201)."""
log_filing_max: Final = 2
"""Syncs of files at once that only file what the log has."""
