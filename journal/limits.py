"""The limits of the package. The unit is the last word of each name, the reason follows it."""

from typing import Final

from dos_protocol.limits import KIB, MIB, entries_max, name_bytes_max, payload_bytes_max

record_body_bytes_max: Final = 64 * MIB
"""Body of one record (argument words and strings). A reader holds one whole record in memory, so this bounds
it. A writer splits larger state. Equal to the client's default limit of unsynced bytes."""

record_ints_max: Final = 255
record_strings_max: Final = 255
"""The counts are one byte each, as in version 0."""

read_bytes_max: Final = payload_bytes_max
"""Requested by one read of a segment: the maximum that one reply carries."""

start_read_bytes_max: Final = 64 * KIB
"""Read to find the first record of a segment. That record has a few hundred bytes; one that does not fit is
rejected.
"""

append_bytes_max: Final = payload_bytes_max
"""A record is passed to the store in pieces of at most this size: the maximum that one APPEND carries."""

chain_name_bytes_max: Final = name_bytes_max - 2 * (1 + 16)
"""A segment's name is CHAIN.<16 hex>.<16 hex>, and an object name has at most 128 characters."""

segments_in_chain_max: Final = entries_max
"""Segments that a walk follows down. A directory cannot list more objects."""

dump_string_bytes_max: Final = 64
"""A dump prints this much of a string, unless `--full` is passed."""

scratch_read_bytes_max: Final = 4 * MIB
"""One read of the local cache."""

file_read_bytes: Final = 512 * 1024
"""One read of a journal file. All records of one read are in memory at the same time, and small records are
many objects."""

if start_read_bytes_max > read_bytes_max:
    raise ValueError("the first read of a segment must fit one reply")
if chain_name_bytes_max < 1:
    raise ValueError("segment names must leave room for a chain's name")

answers_wait_s: Final = 10.0
"""How long a take-over waits for members whose answer it needs and that have not answered the claim yet."""

late_answer_tries: Final = 4
"""How often a reader that can prove only a part of a chain asks again while a member has not answered: for a
second in all. That member may hold what the proof needs: the start of the newest segment is on a quorum only.
"""

listing_tries_max: Final = 10
"""How often a reader lists the segments of a chain that is trimmed while it reads."""
removal_pause_s: Final = 0.1
"""The pause before a segment is read again that is being removed, which takes some syncs of the disk."""
removal_tries_max: Final = 10
"""How often it is read again."""

file_path_bytes_max: Final = 4096
file_path_part_bytes_max: Final = 255
"""Of a path in a journal: the limits of Linux."""

paths_known_max: Final = 4096
"""Paths that were found safe and are not checked again: a replay meets the same ones repeatedly."""

file_bytes_max: Final = 2**63 - 1
"""Of one file: the limit of Linux. Offsets in records have 64 bits."""

file_write_bytes_max: Final = 16 * MIB
"""One write to a journaled file is one record, which is replayed whole or not at all."""

file_copy_bytes_max: Final = MIB
"""A file that is copied into a snapshot, or renamed, is recorded in pieces of this size."""

file_gather_bytes: Final = 4 * MIB
"""A replay gathers this much before it writes: a system call per record would cost more than the record."""

file_gather_part_bytes: Final = 64
"""Each gathered write counts this much in addition to its data: the memory of its Python object."""

files_open_max: Final = 128
"""Files of one tree that are kept open."""

mirror_poll_s: Final = 0.1
"""How often a mirror checks whether its file has grown."""

file_marks_every_s: Final = 1.0
"""The maximum time between two MARK records while there is traffic: the precision of a restore to a time."""

status_read_bytes_max: Final = 8 * MIB
"""`dos journal status` reads this much of a chain to measure the read rate."""

timeline_stretches_max: Final = 4096
"""`dos journal timeline` counts in this many intervals before it merges neighbors."""

follow_poll_s: Final = 0.25
"""How often `dos journal follow` checks a file, and how late it may notice a new segment of a chain."""

files_segment_bytes_max: Final = 64 * MIB
"""A chain of files rolls to a new segment at about this size."""

recovery_bytes_max: Final = 256 * MIB
"""The maximum that a restore of a directory reads, unless the files themselves have more than half of it."""

trim_wait_s: Final = 60.0
"""How long `dos journal trim` waits for members to delete."""

archive_block_bytes: Final = MIB
"""An archived segment has a SHA-256 for each block of this size, the smallest part that can be read. Part of
the format."""

archive_read_bytes: Final = 8 * MIB
"""One request for a segment that is read in order. A multiple of the block size."""

archive_reads_ahead_max: Final = 2
"""The requests in flight in addition to the one that is awaited or whose bytes are being processed. A restore
holds the bytes of this number plus two in memory."""

archive_segment_bytes_max: Final = 5 * 1024 * MIB
"""Of one archived segment: the limit of S3 for one PUT."""

archive_manifest_bytes_max: Final = 64 * MIB
"""About 1.4 TB of journal, with 44 bytes for each MiB."""

archive_tries_max: Final = 5
"""Attempts of one request if the bucket's service is overloaded, slow, or drops the connection."""

archive_retry_s: Final = 0.5
"""The wait before the second attempt. It doubles after each."""

archive_timeout_s: Final = 30.0
"""The timeout of a connection to the bucket's service, and of each read from it."""

state_claim_patience_s: Final = 10.0
"""A claim for the change of a state that is not granted in this time is abandoned and tried again."""

state_poll_s: Final = 0.1
state_reads_max: Final = 20
"""How often a state is read while another process changes it, and the pause between: a change takes some ms.
"""

state_tidy_s: Final = 1.0
"""How long a change of a state waits until the records before it are deleted."""

if archive_read_bytes % archive_block_bytes:
    raise ValueError("the read size of an archive must be a multiple of its block size")
