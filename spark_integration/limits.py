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
WATCH_S = 1.0
"""How often a handle to which no event comes looks whether the region is over."""
