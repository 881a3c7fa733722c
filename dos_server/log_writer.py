"""Writes the records of the group log, one at a time: in the event loop while the disk is fast, else in a
thread.

A sync that takes less than the hand-over to a thread and back is cheapest in the loop; while it runs, no
thread competes for the interpreter lock. One that takes long stops every client of the loop. So after a slow
record in the loop, a thread gets the next ones, until one of them was fast or the loop is tried again. The
time of a record in a thread contains waits for the interpreter lock, so it alone does not show that the disk
is slow.
"""

from collections.abc import Callable
from typing import NamedTuple

from dos_server.core import vocabulary as v
from dos_server.limits import log_fast_seconds, log_try_records
from dos_server.ports import Ports, Rounds, Workers
from dos_server.storage import Storage


class _Written(NamedTuple):
    outcome: v.LogSynced | OSError
    seconds: float


class LogWriter:
    """Appends records and reports their syncs. After a failure it calls `halt` with the reason.

    `done`: called in the event loop with the result of the thread. `is_slow`: whether a sync or write of a
    file is slow now, so that the loop must not touch the disk.
    """

    def __init__(
        self,
        storage: Storage,
        ports: Ports,
        readiness: Rounds,
        *,
        done: Callable[[v.Event], None],
        halt: Callable[[str], None],
        is_slow: Callable[[], bool],
    ) -> None:
        self._storage, self._done, self._halt, self._is_slow = storage, done, halt, is_slow
        self._clock = ports.monotonic
        self._thread: Workers[v.WriteLog] = ports.workers(self._append, self._thread_ended, readiness, 1)
        self._for_thread, self._in_loop = log_try_records, 0

    def write(self, effect: v.WriteLog) -> v.LogSynced | None:
        """Append a record. None: the thread does it, or it failed."""
        if self._for_thread or self._is_slow():
            self._for_thread = max(self._for_thread - 1, 0)
            self._thread.start(effect)
            return None
        written = self._append(effect)
        self._in_loop += 1
        if written.seconds > log_fast_seconds:
            self._for_thread = log_try_records
        elif self._in_loop % log_try_records == 0:
            self._for_thread = 1
        return self._outcome_of(written)

    def close(self) -> None:
        """Wait until the record that is being written is on stable storage."""
        self._thread.close()

    def _append(self, effect: v.WriteLog) -> _Written:
        began = self._clock()
        try:
            outcome: v.LogSynced | OSError = self._storage.append_log(effect)
        except OSError as error:
            outcome = error
        return _Written(outcome, self._clock() - began)

    def _thread_ended(self, written: _Written) -> None:
        if written.seconds <= log_fast_seconds:
            self._for_thread = 0
        synced = self._outcome_of(written)
        if synced is not None:
            self._done(synced)

    def _outcome_of(self, written: _Written) -> v.LogSynced | None:
        if isinstance(written.outcome, OSError):
            self._halt(f"a write or sync of the group log failed: {written.outcome}")
            return None
        return written.outcome
