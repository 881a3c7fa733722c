"""Every bound of the server, unit last, relations checked at import. What both ends know is in
`dos_protocol.limits`.

Together they keep the process under 150 MB whatever the object sizes (P-9): what grows with objects is the
sparse index (8 KiB an object at most) and some 2 KiB an object in use, of which there is a bound; what grows
with peers is bounded per connection and over all connections.
"""

from typing import Final

from dos_protocol import limits as wire
from dos_protocol.limits import KIB, MIB

extent_header_bytes: Final = 64
extent_payload_bytes_max: Final = 256 * KIB
index_entries_max: Final = 512

connections_max: Final = 1_280
"""An idle one takes some 30 KiB. Fewer where the limit of open files allows fewer."""
connections_waiting_max: Final = 1_024
"""Until they are accepted: one more, and its peer tries again after a second."""
descriptors_reserved: Final = 128
"""Left for the listener, folders, marks of directories and what the libraries open."""
connection_buffer_bytes: Final = 512 * KIB
"""What a busy connection reads into; an idle one holds 16 KiB."""
connection_buffer_fair_bytes: Final = 64 * KIB
"""What it reads into when many are busy."""
buffers_large_bytes_max: Final = 6 * MIB
"""Beyond the first 16 KiB of each, over all connections: no more large buffers are given out;"""
buffers_wished_bytes_max: Final = 8 * MIB
"""nor any, but for a frame that would not fit;"""
buffers_needed_bytes_max: Final = 10 * MIB
"""nor for that: the connection waits until others have given back;"""
buffers_total_bytes_max: Final = 12 * MIB
"""unless it has delivered a large frame before: then up to here."""
hello_bytes_max: Final = 8_160
"""Of meta, and of payload, before HELLO was answered: such a frame fits the small buffer."""
stalled_seconds_max: Final = 1.0
"""While others wait for room to read into: who has room for a frame and sends nothing for so long is
closed,"""
slow_frame_seconds_max: Final = 5.0
"""and so is whose frame is not whole after that."""

requests_in_flight_max: Final = 1_024
"""Unanswered requests of one connection; beyond it the server stops reading from it."""
outgoing_bytes_max: Final = 2 * MIB
"""Bytes queued for one slow reader before the server stops answering it."""
outgoing_total_bytes_max: Final = 8 * MIB
outgoing_pressed_bytes: Final = 32 * KIB
"""Beyond that total, a peer with so much before it is not read, and a GET is answered with so much at
most, and only to a peer that took everything before."""
outgoing_full_bytes: Final = 16 * MIB
"""Beyond that total, LIST and CWD wait, and `l` of version 0: their answers have up to 1 MiB each."""
entries_few: Final = 200
"""But for a directory with no more than so many objects."""
openings_max: Final = 8
"""CWDs that wait until a directory is loaded, over all connections: beyond it others wait before they do."""
waiting_total_max: Final = 16_384
"""GETs that wait at the end of objects, over all connections: beyond it another one is answered at once,
empty,"""
waiting_of_one_min: Final = 16
"""but for so many of each connection."""
woken_of_event_max: Final = 256
"""So many of them are answered at once when there is more; others some 50 ms later, and so on."""
reads_queued_of_one_max: Final = 16
"""GETs and STATs of one connection that wait for the disk; beyond it the server stops reading from it."""
reads_in_flight_max: Final = 4
"""GETs at the disk at once, over all connections: at most 10 MiB read for 4 MiB of payload."""
read_extents_max: Final = 512
"""A GET whose bytes lie in more extents is answered with those of so many: what small extents cost is
processor time, 7 us each, and a thread that takes more than 5 ms of it in one go holds up the event loop."""
digests_in_flight_max: Final = 1
"""Digests that are read at once: one among extents of one byte takes 0.5 s of processor time."""
in_flight_bytes_max: Final = 64 * MIB
"""Received and not yet synced, per connection: told to clients. Beyond it the server stops reading."""

repairs_max: Final = 8
"""New copies of objects under way at once, over all connections."""

sync_threads_max: Final = 16
write_threads_max: Final = 16
slow_disk_seconds: Final = 0.5
"""A sync that takes longer, or a write, shows a disk that writes in the event loop would wait for."""
slow_writes_bytes_max: Final = 64 * MIB
"""Copied, and waiting for such a disk: beyond it nothing more is read from any connection."""
claim_threads_max: Final = 8
load_threads_max: Final = 4
repair_threads_max: Final = 4

round_seconds: Final = 0.004
"""So long requests of all connections are carried out until what came of it is written, synced and sent."""
turn_seconds: Final = 0.001
"""So long those of one connection, while others wait; one request may take longer, none is cut in two."""
many_waiting: Final = 64
"""When more wait for their turn, a slice is a quarter of that."""
turn_memory_seconds: Final = 0.5
"""After which half of what a connection has cost is forgotten."""
accepts_of_round_max: Final = 32
"""Connections that are accepted before those that are there have their turn."""

hello_seconds_max: Final = 5.0
frame_seconds_max: Final = 30.0
"""From a frame's first byte to its last. An idle session may stay for ever."""
send_seconds_max: Final = 60.0
"""A peer that takes nothing for this long is cut off (NATS: 10 s)."""
full_send_seconds_max: Final = 2.0
"""The same, while others wait because too much stands before peers that do not take it."""
linger_seconds: Final = 1.0
"""How long the server reads, and drops, what comes after it has said why it closes."""
watermark_seconds_max: Final = 0.1
"""How late a `received` may be told when no sync finishes in the meantime; the promise is a second."""
shrink_seconds: Final = 5.0
"""An idle connection gives its large buffer back after this long."""

directories_loaded_max: Final = 256
objects_loaded_max: Final = 10_000
"""Beyond either, directories that no session uses are forgotten, oldest first."""
objects_in_use_max: Final = 36_000
"""In directories that sessions use: six full ones, some 2 KiB each. Another directory is not opened then, nor
another object made, until some are left. The scrub may have one directory besides."""
open_files_max: Final = 256

fsck_part_bytes: Final = 4 * MIB
fsck_part_extents_max: Final = 65_536
"""What `dos fsck` verifies at a time: its memory, and how often it shows how far it is."""

reserve_bytes_default: Final = 16 * MIB
"""Kept free on the file system, for claims, marks, store records, removals and restarts: what a directory
costs, 4 KiB for each, thousands of times. Appends are refused before it is touched."""
reserve_fraction_max: Final = 16
"""And of a small file system at most this part, one in so many."""
resume_fraction: Final = 4
"""Appends go on once this part of the reserve, one in so many, is free above it."""
new_file_bytes: Final = 4 * KIB
"""What a new object costs before its first byte: its file's first block, and its share of the folder."""
space_look_seconds: Final = 1.0
"""Between two looks at what is free."""
again_seconds: Final = 1.0
"""After which the disk is asked again for a sync or a removal that it could not begin."""
tail_tries_seconds_min: Final = 1.0
tail_tries_seconds_max: Final = 60.0
"""Between two tries to copy a torn tail aside: twice as long each time, up to the longest."""

stamp_seconds: Final = 600.0
"""After which a disk is given a new stamp, when a client asks for its newest. A copy that is younger does not
look older than the disk."""
stamps_kept_max: Final = 1_024
"""16 KiB, a week at least. A member that was away for longer than all of them are old is not compared."""

mark_bytes: Final = 256
"""One mark never crosses a sector: 256 divides 512."""

version0_request_bytes_max: Final = 255
"""The length of a request of version 0; so the first byte of such a connection is zero."""
version0_status_seconds: Final = 1.0
"""Between the status frames of a stream while bytes come; and the pause after which news is told."""
version0_in_flight_bytes_max: Final = 16 * MIB
"""Taken of one stream and not yet synced. Less than `in_flight_bytes_max`: a client of version 0 takes
back-pressure of 2 s for a lost connection, and this much is synced well within that."""
version0_in_flight_batches_max: Final = 8_192
"""The same, counted in reads of the socket: a client may send single bytes."""
version0_silence_seconds_max: Final = 60
"""After which a peer that does not even acknowledge is gone, and its lock with it: TCP keep-alive."""

scrub_first_seconds_max: Final = 60.0
"""A server that has just started has better to do for so long."""
scrub_part_bytes: Final = 4 * (extent_header_bytes + extent_payload_bytes_max)
scrub_part_extents_max: Final = 512
"""One look at most: its memory, and for how long it may disturb others."""
scrub_rest_share: Final = 9.0
"""A look is followed by a rest of so many times its length: small extents cost time, not bytes."""
scrub_load_seconds: Final = 0.05
"""Between two questions whether a directory has been loaded."""
scrub_yield_seconds: Final = 0.05
scrub_yield_seconds_max: Final = 1.0
"""How often a look asks again while the disk is at work for clients, and how long it waits at most."""

if extent_payload_bytes_max % wire.digest_block_bytes:
    raise ValueError("an extent holds whole digest blocks")
if outgoing_bytes_max < wire.payload_bytes_max:
    raise ValueError("one answer must fit the queue of a connection")
if buffers_needed_bytes_max - buffers_wished_bytes_max < wire.payload_bytes_max + wire.meta_bytes_max + KIB:
    raise ValueError("one largest frame must fit what no wish is granted of")
if 512 % mark_bytes:
    raise ValueError("a mark must not cross a sector")
