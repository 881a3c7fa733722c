"""Every limit of the Spark integration; the unit is the last word of a name. Constants only."""

SLOTS_WARN_S = 30.0
"""After this time without enough executors, a warning names what is missing."""

SLOTS_POLL_S = 0.5
CANCEL_AGAIN_S = 0.5
"""Interval of cancels: Spark ignores a cancel by tag before it knows the job, so it is repeated."""

REJECTED_TASK_S = 5.0
"""How long the task of a rejected worker keeps its slot if the driver does not cancel it earlier."""

ERROR_TEXT_CHARS_MAX = 20_000
"""Maximum length of an error text: Spark repeats the cause several times, with stack traces."""

STORE_ANSWER_S = 30.0

# --- the data source ------------------------------------------------------------------------------
PARTITION_BYTES = 64 * 1024 * 1024
"""Default size of what one task reads: about one segment of an output log."""
BATCH_ROWS = 64 * 1024
BATCH_BYTES = 8 * 1024 * 1024
"""Small record batches are merged up to this size, because each one has a fixed cost in Spark."""
BATCH_ROWS_ALONE = 16 * 1024
"""A batch of this many rows is not merged: copying it would cost more."""
SEEN_S = 1.0
"""Maximum age of the latest offset in a query's progress."""
HANDED_BYTES_MAX = 256 * 1024
"""Maximum size of the bytes of a split that travel with its partition to the task of a micro-batch."""
HANDED_BYTES_KEPT = 2 * 1024 * 1024
"""How much of its last bytes the scan of a split keeps for that; more than one read."""
STORE_IDLE_S = 10.0
"""How long a Python worker keeps the store of a task open for the next task."""
READ_BYTES = 1024 * 1024
SEEK_BYTES = 64 * 1024
"""How much of an object is read at a time to find the end of a record."""
SAMPLE_BYTES = 1024 * 1024
"""How much of an object is read to infer its columns."""
OBJECT_RECORD_BYTES_MAX = 64 * 1024 * 1024
"""A record must fit into memory; a longer one is taken as a sign of other content."""
PIECES_PER_TRIGGER = 8
"""With limits, a micro-batch reads objects in pieces of this fraction of a limit, one in so many."""
TASKS_PER_WORKER_MAX = 1024
"""Each of the tasks that share the state of one worker reads its whole chain."""
MERGED_AHEAD_BYTES = 64 * 1024 * 1024
"""Rows of a merged output that the mark has passed and Spark has not committed: more are not read."""
MERGED_BATCH_BYTES = 16 * 1024 * 1024
"""Default maximum size of a micro-batch of a merged output, which the driver sends to the tasks."""
MERGED_TASK_BYTES = 512 * 1024
"""Maximum size of the rows of one of its tasks: Spark warns of tasks above 1000 KiB."""
MERGED_WARN_S = 10.0
"""How often the driver looks for replicas that are not read, to name them in its log."""

# --- the data sink --------------------------------------------------------------------------------
SINK_PART_BYTES = 1024 * 1024
"""A task makes parts of about this size, before compression: a step of a region reads whole parts."""
SINK_PUT_BYTES = 1024 * 1024
"""Parts are written to the store in chunks of this size."""
SINK_READ_BYTES = 2 * 1024 * 1024
SINK_READS_AHEAD = 4
"""A commit reads staged rows in pieces of this size, and reads this many pieces ahead of what it sends."""
SINK_SWEEPS_MAX = 16
"""Directories that are cleared concurrently."""
SINK_MESSAGE_BYTES = 256 * 1024
"""Rows of a task up to this size travel to the driver in its commit message; more are staged in the store."""
SINK_COMMIT_ATTEMPTS_MAX = 5
"""How often a commit starts over when another one has fenced it."""
SINK_PRODUCERS_HELD_MAX = 8
"""Producers that a committing process keeps open between micro-batches."""
SINK_SWEEP_S = 10.0
"""How long a commit waits for the removal of leftovers; the next one continues it."""

LEAVING_LOOK_S = 2.0
"""How often the launcher asks Spark which executors are being decommissioned."""
LEAVING_AGAIN_S = 30.0
"""After so long, workers that are still there are reported again: their replacement may have failed."""
SLOTS_LOOK_S = 5.0
BATCH_SLOTS_S = 30.0
"""After this time in which workers lacked slots that tasks of batches hold, these tasks end."""
SHARE_AGAIN_S = 0.2
"""The wait until a task sends a batch to the workers again, after a link broke and no reset followed."""

# --- batches of `through` ------------------------------------------------------------------------
DESK_KEY_BYTES = 32
BATCH_MEMORY_BYTES = 64 * 1024 * 1024
"""A task keeps so much of its rows in memory, and the rest in a file."""
READ_ALONE_S = 5.0
"""A batch that takes a task longer to read is worth a warning, if it has several partitions."""
SHARE_FRAME_ROWS = 4096
"""Rows of a batch are dealt to the workers in frames of at most so many."""
OUTPUT_BATCHES_AHEAD = 16
"""Batches of the output that are read before Spark has taken those before, for each worker."""
