"""The thread that writes the records of the group log, one at a time."""

from collections.abc import Callable

from dos_server.core import vocabulary as v
from dos_server.ports import Ports, Rounds, Workers
from dos_server.storage import Storage


class LogThread:
    """Appends records and reports their syncs to `done`. After a failure it calls `halt` with the reason."""

    def __init__(
        self,
        storage: Storage,
        ports: Ports,
        readiness: Rounds,
        done: Callable[[v.Event], None],
        halt: Callable[[str], None],
    ) -> None:
        self._storage, self._done, self._halt = storage, done, halt
        self._thread: Workers[v.WriteLog] = ports.workers(self._append, self._appended, readiness, 1)

    def start(self, effect: v.WriteLog) -> None:
        """Append a record."""
        self._thread.start(effect)

    def close(self) -> None:
        """Wait until the record that is being written is on stable storage."""
        self._thread.close()

    def _append(self, effect: v.WriteLog) -> v.LogSynced | OSError:
        try:
            return self._storage.append_log(effect)
        except OSError as error:
            return error

    def _appended(self, result: v.LogSynced | OSError) -> None:
        if isinstance(result, OSError):
            self._halt(f"a write or sync of the group log failed: {result}")
        else:
            self._done(result)
