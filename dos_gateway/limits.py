"""The limits of the package. The unit is the last word of each name, the reason follows it."""

from typing import Final

from dos_protocol.limits import KIB, MIB

path_parts_max: Final = 64
path_part_bytes_max: Final = 255
"""Of a path in a tree: that of Linux for a part. Every walk of a tree has a bounded depth."""

block_bytes: Final = 128 * MIB
"""The size of a block in the answers. Files have one block whatever their length."""

tree_files_max: Final = 200_000
"""A tree with more files is served, and is reported: a take-over of one takes longer than was measured."""

inline_bytes_max: Final = 256 * KIB
"""A body of at most this size is in the record of its file: one append, one sync."""

piece_bytes: Final = 512 * KIB
"""A longer body is appended in pieces of this size while it arrives. A read of a part of a body reads and
checks whole pieces."""

upload_unsynced_bytes_max: Final = 4 * MIB
"""Of one body: more is not received before it is synced."""

segment_bytes: Final = 32 * MIB
"""A chain rolls after this much. A start reads at most a snapshot and this much."""

slack_bytes: Final = 64 * MIB
"""A chain may be longer than twice its live bytes by this much before live bytes are copied forward."""

deletions_bytes: Final = 128 * MIB
"""The last bytes below `--max-bytes`, which only deletions and copies use: deleting needs appends, and so
does giving back space."""

alive_share_max: Final = 0.75
"""A chain that is almost as long as `--max-bytes` permits may be longer than this share of it is alive, by
`slack_bytes`: up to three bytes are copied for each one that is gained."""

max_bytes_min: Final = deletions_bytes + 2 * slack_bytes
"""The smallest `--max-bytes`. Below it, deletions would not make room: a chain may have its slack."""

give_back_again_s: Final = 60.0
"""The wait before space is given back again, after a body could not be read."""

settle_wait_s: Final = 60.0
"""How long a start waits for the members to have one segment of bodies before it looks at the next."""

snapshot_nodes: Final = 250
"""Nodes in one record of a snapshot."""

yield_nodes: Final = 1000
"""After so many nodes of a listing, or of a replay, other tasks run."""

cache_bytes_max: Final = 32 * MIB
"""Bodies that were written through this gateway and are kept in memory for the next read."""

lease_s: Final = 1.0
"""How long after the sending of an append that was acknowledged a gateway answers from memory."""

lease_wait_s: Final = 1.1
"""How long after its claim was granted a gateway answers nothing: lease_s, for clocks that differ by 10%."""

beat_s: Final = 0.4
"""An idle gateway appends so often. Two beats are within a lease."""

silent_s: Final = 1.2
"""A standby takes over when the chain has not grown for so long, doubled by each take-over of the last
minute: on an overloaded machine, gateways would take the tree from each other for ever."""

take_overs_s: Final = 60.0
"""How long a take-over counts for that."""

claim_patience_s: Final = 10.0
"""A claim counts as growth for so long: its gateway reads the chain, and appends nothing meanwhile."""

watch_s: Final = 0.2
"""How often a standby looks at the chain."""

standby_wait_s: Final = 20.0
"""How long a standby holds a request before it sends the client on."""

tree_reads_max: Final = 4
"""How often a tree is read before it is reported that a segment is missing: a gateway releases segments."""

trees_read_max: Final = 4
"""Trees whose status is read at the same time: each may have 200,000 files in memory."""

alone_wait_s: Final = 10.0
"""How long a gateway whose clients know no other one holds a request while another one serves, before it
refuses the request: more than a take-over takes, and less than the client's own patience of 20 s."""

role_wait_s: Final = 5.0
"""How long a gateway that starts waits to see whether another one serves, in order to report it."""

status_wait_s: Final = 3.0
"""A tree whose chain does not grow for so long is reported as not served: more than twice `silent_s`."""

claim_wait_s: Final = 5.0
"""A claim that is not granted in this time is abandoned, and tried again when the chain is silent."""

idle_body_s: Final = 30.0
"""A head that is not complete so long after its first byte, and a body of which no byte arrives for so long,
end their connection: an upload pins the space of the pieces behind it."""

idle_connection_s: Final = 60.0
"""How long a connection stays open between two requests."""

driver_watch_s: Final = 0.2
"""How often the gateway of a driver looks whether that has ended: until then it holds the tree."""

tick_s: Final = 0.1
"""How often a gateway notes that it runs."""

stalled_loop_s: Final = 1.0
"""After the process stood still for so long, requests that wait in its sockets are from before: clients have
repeated them elsewhere. Their connections end unread."""

connections_max: Final = 2_000
"""Of one gateway, if so many files may be open. When there are more, the connection that waits longest for a
request gives way. If 10,000 ended at once, the process would stand still for more than `stalled_loop_s`, and
end all others, too."""

descriptors_reserved: Final = 128
"""Open files that are no connections of clients: those to servers, the listeners, the libraries."""

files_max: Final = connections_max + descriptors_reserved
"""Open files that a gateway asks the system for."""

uploads_max: Final = 256
"""Of one gateway: an upload holds two pieces in memory."""

answers_max: Final = 256
"""Bodies that are being sent: each has a piece in memory."""

stalled_answer_s: Final = 300.0
"""A client that takes nothing of an answer for so long has left. It may be slow: Spark reads a file while it
computes."""

stalled_others_s: Final = 2.0
"""A client that takes nothing for so long gives way to others, if `answers_max` are being sent. Hadoop's
client asks again for the rest."""

send_bytes: Final = 64 * KIB

key_seconds: Final = 10 * 365 * 24 * 3600
"""How long clients use a bearer. It is valid as long as the key; a client that had to exchange the key again
while the gateway at that address is down could not use the others."""

refused_body_bytes_max: Final = 64 * KIB
"""How much of the body of a client without a key is read, so that it sees the refusal."""

head_bytes_max: Final = 64 * KIB
receive_bytes: Final = 64 * KIB

listing_entries_max: Final = 1000
"""Entries in one answer of a listing in batches, as HDFS has."""
