"""Every limit of the package, with its unit last in the name and the reason beside it."""

from typing import Final

from dos_protocol.limits import KIB, MIB, entries_max, name_bytes_max, payload_bytes_max

record_body_bytes_max: Final = 64 * MIB
"""Body of one record (argument words and strings). A reader holds one whole record in memory, so this bounds
it; a writer whose state is larger splits it. Equal to the client's default bound of unsynced bytes."""

record_ints_max: Final = 255
record_strings_max: Final = 255
"""The counts are one byte each, as in version 0."""

read_bytes_max: Final = payload_bytes_max
"""What one read of a segment asks for: the most that one answer carries."""

start_read_bytes_max: Final = 64 * KIB
"""What is read of a segment to see its first record. That has a few hundred bytes; one that does not fit is
refused.
"""

append_bytes_max: Final = payload_bytes_max
"""A record is handed to the store in pieces of at most this size: the most that one APPEND carries."""

chain_name_bytes_max: Final = name_bytes_max - 2 * (1 + 16)
"""A segment's name is CHAIN.<16 hex>.<16 hex>, and an object's name has at most 128 characters."""

segments_in_chain_max: Final = entries_max
"""Segments that a walk follows down; a directory cannot list more objects."""

dump_string_bytes_max: Final = 64
"""A dump shows so much of a string unless asked for `--full`."""

scratch_read_bytes_max: Final = 4 * MIB
"""One read of the local cache."""

file_read_bytes: Final = 512 * 1024
"""One read of a journal file. Small records are many objects, and all of one read live at one time."""

if start_read_bytes_max > read_bytes_max:
    raise ValueError("the first read of a segment must fit one answer")
if chain_name_bytes_max < 1:
    raise ValueError("segment names must leave room for a chain's name")

answers_wait_s: Final = 10.0
"""A take-over waits so long for members that its question needs and that have not answered the claim yet."""

file_path_bytes_max: Final = 4096
file_path_part_bytes_max: Final = 255
"""Of a path in a journal: what Linux takes."""

paths_known_max: Final = 4096
"""Paths that were found safe and are not looked at again: a replay meets the same ones over and over."""

file_bytes_max: Final = 2**63 - 1
"""Of one file: what Linux takes. Offsets in records have 64 bits."""

file_write_bytes_max: Final = 16 * MIB
"""One write to a journaled file is one record, which is there whole or not at all."""

file_copy_bytes_max: Final = MIB
"""A file that is copied into a snapshot, or renamed, is written in pieces of this size."""

file_gather_bytes: Final = 4 * MIB
"""A replay holds so much before it writes: a system call for each record would cost more than the record."""

file_gather_part_bytes: Final = 64
"""What each write that is held counts besides its data: the memory of the object around it."""

files_open_max: Final = 128
"""Files of one tree that stay open."""

mirror_poll_s: Final = 0.1
"""How often a mirror looks whether its file has grown."""

file_marks_every_s: Final = 1.0
"""At most this long between two marks while there is traffic: how exactly a moment can be gone back to."""

status_read_bytes_max: Final = 8 * MIB
"""`dos journal status` reads so much of a chain to see how quickly it comes."""

timeline_stretches_max: Final = 4096
"""`dos journal timeline` counts in so many stretches before it puts neighbours together."""

follow_poll_s: Final = 0.25
"""`dos journal follow` looks at a file so often; of a chain, so late it may notice a new segment."""

files_segment_bytes_max: Final = 64 * MIB
"""A chain of files goes on in a new segment about here."""

recovery_bytes_max: Final = 256 * MIB
"""What a restore of a directory reads at most, unless the files themselves have more than half of it."""

trim_wait_s: Final = 60.0
"""So long `dos journal trim` waits for members to delete."""

archive_block_bytes: Final = MIB
"""An archived segment has a SHA-256 for each block of this size: no smaller part of it is read. Part of the
format."""

archive_read_bytes: Final = 8 * MIB
"""One request for a segment that is read in order. Whole blocks."""

archive_reads_ahead_max: Final = 2
"""So many of these requests are on their way beside the one that is waited for, or while what it gave is
taken in: a restore holds what as many and two give."""

archive_segment_bytes_max: Final = 5 * 1024 * MIB
"""Of one archived segment: what S3 takes in one PUT."""

archive_manifest_bytes_max: Final = 64 * MIB
"""About 1.4 TB of journal, with 44 bytes for each MiB."""

archive_tries_max: Final = 5
"""A request is made so often when the bucket's service is overloaded, slow, or breaks off."""

archive_retry_s: Final = 0.5
"""The wait before the second try; it doubles."""

archive_timeout_s: Final = 30.0
"""A connection to the bucket's service, and each read from it, may take so long."""

if archive_read_bytes % archive_block_bytes:
    raise ValueError("an archive is read in whole blocks")
