"""Every limit of the Spark integration, unit last in the name. Nothing but constants belongs here."""

WORKERS_MAX = 64
"""Workers of one region started by one driver: each holds a slot and a driver thread for the region's
whole life.
"""

SLOTS_WARN_S = 30.0
"""After so long without enough executors the user is told what is missing."""

START_TIMEOUT_S = 300.0
"""After so long without enough executors, or without every worker having joined, the region gives up."""

SLOTS_POLL_S = 0.5
CANCEL_AGAIN_S = 0.5
"""A cancel by tag does nothing when the job is not submitted yet, so it is said again until the job has
ended.
"""

STOP_TIMEOUT_S = 60.0
"""How long `stop` waits for the region's last cut and the end of its jobs before it cancels them."""

ERROR_TEXT_CHARS_MAX = 20_000
"""Of a failed job's message; Spark repeats the cause several times, with Java's stack below each."""
JOBS_END_TIMEOUT_S = 15.0
"""How long the jobs of a region that has ended may take to end by themselves, and again after a cancel."""

STORE_ANSWER_S = 30.0

# --- the data source ------------------------------------------------------------------------------
PARTITION_BYTES = 64 * 1024 * 1024
"""What one task reads, unless the user says otherwise: about a segment of an output log."""
BATCH_ROWS = 64 * 1024
BATCH_BYTES = 8 * 1024 * 1024
"""Small record batches are put together until there is so much: each costs Spark a fixed time."""
BATCH_ROWS_ALONE = 16 * 1024
"""One of so many rows goes as it is: to copy it would cost more."""
SEEN_S = 1.0
"""So old what a query says in its progress of how far there is more may be."""
HANDED_BYTES_MAX = 256 * 1024
"""So few bytes of a split travel to the task of a micro-batch with its partition."""
HANDED_BYTES_KEPT = 2 * 1024 * 1024
"""So much of what it read last the scan of a split holds for that: more than it reads at a time."""
STORE_IDLE_S = 10.0
"""So long a Python worker keeps the store of a task open for the next one."""
READ_BYTES = 1024 * 1024
SEEK_BYTES = 64 * 1024
"""How much of an object is read at a time to find where a record ends."""
SAMPLE_BYTES = 1024 * 1024
"""From so much of an object its columns are guessed, where they must be."""
OBJECT_RECORD_BYTES_MAX = 64 * 1024 * 1024
"""A record has to fit into memory; a longer one is taken for bytes that are something else."""
PIECES_PER_TRIGGER = 8
"""A micro-batch with a limit on rows takes objects in pieces of so small a part of it."""
TASKS_PER_WORKER_MAX = 1024
"""Each of the tasks that share the state of one worker reads all of its chain."""
WATCH_S = 1.0
"""How often a handle to which no event comes looks whether the region is over."""

# --- the data sink --------------------------------------------------------------------------------
SINK_PART_BYTES = 1024 * 1024
"""A task makes parts of about so much, before they are packed: a step of a region takes whole parts."""
SINK_PUT_BYTES = 1024 * 1024
"""Parts are handed to the store in so much at a time."""
SINK_READ_BYTES = 2 * 1024 * 1024
SINK_READS_AHEAD = 4
"""A commit reads what tasks put down in pieces of so much, and so many of them ahead of what it sends."""
SINK_SWEEPS_MAX = 16
"""So many directories are cleared out at a time."""
SINK_MESSAGE_BYTES = 256 * 1024
"""What a task wrote travels to the driver in its message up to so much; more is put down in the store."""
SINK_COMMIT_ATTEMPTS_MAX = 5
"""So often a commit begins anew when another one has fenced it."""
SINK_PRODUCERS_HELD_MAX = 8
"""A process that commits keeps so many producers open between micro-batches."""
SINK_SWEEP_S = 10.0
"""How long a commit waits, at most, for what is left over to be taken away; the next one goes on with it."""
