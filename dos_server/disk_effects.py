"""Effects of the core that a few threads perform on the storage, one by one: loads, claims, repairs, digests.

Writes, syncs, reads and records of the group log have parts of their own: `writes`, `disk_threads`,
`paced_reads`, `log_thread`.
"""

import logging
from collections.abc import Callable, Container
from typing import Any, Final

from dos_server.core import vocabulary as v
from dos_server.limits import claim_threads_max, digests_in_flight_max, load_threads_max, repair_threads_max
from dos_server.ports import Ports, Rounds, Workers
from dos_server.storage import Storage
from dos_server.wording import record_text

logger = logging.getLogger("dos.server")

Work = Callable[[], v.Event | None]


class DiskEffects:
    """Performs effects in threads and reports to `done`. `connections`: the sessions that are connected.
    `performs`: by effect, the method that begins it.
    """

    def __init__(
        self,
        storage: Storage,
        ports: Ports,
        readiness: Rounds,
        done: Callable[[v.Event | None], None],
        connections: Container[int],
    ) -> None:
        self._storage, self._connections = storage, connections

        def threads(threads_max: int) -> Workers[Work]:
            return ports.workers(lambda work: work(), done, readiness, threads_max)

        self._claims, self._loads = threads(claim_threads_max), threads(load_threads_max)
        self._repairs, self._digests = threads(repair_threads_max), threads(digests_in_flight_max)
        self.performs: Final[dict[type[Any], Callable[[Any], None]]] = {
            v.LoadDirectory: self._load,
            v.LoadObject: lambda one: self._loads.start(lambda: storage.load_object(*one)),
            v.MakeDirectory: self._make_directory,
            v.WriteClaim: self._store_claim,
            v.FileClaim: self._file_claim,
            v.WriteStoreRecord: self._store_record,
            v.WriteStamps: lambda one: self._claims.start(lambda: storage.store_stamps(one)),
            v.ReadDigest: lambda one: self._digests.start(lambda: self._digest(one)),
            v.WriteRepair: self._write_repair,
            v.InstallRepair: self._install_repair,
            v.DropRepair: lambda one: self._repairs.start(lambda: storage.drop_repair(one)),
            v.RemoveObject: lambda one: self._repairs.start(lambda: storage.remove(one)),
        }

    @property
    def busy(self) -> bool:
        """Whether the disk works for clients. Loads do not count, because the scrub requests them too."""
        return any(one.busy for one in (self._claims, self._repairs, self._digests))

    def close(self) -> None:
        """Wait until all threads have finished their current work."""
        for threads in (self._claims, self._loads, self._repairs, self._digests):
            threads.close()

    def _load(self, effect: v.LoadDirectory) -> None:
        self._loads.start(lambda: self._storage.load(effect.directory))

    def _digest(self, effect: v.ReadDigest) -> v.Event:
        """Compute a digest, in a thread; not for a peer that is gone, because others may be queued."""
        if effect.session not in self._connections:
            return v.GotDigest(effect, 0)
        return self._storage.digest(effect)

    def _store_claim(self, effect: v.WriteClaim) -> None:
        def work() -> v.Event:
            failure = self._storage.store_claim(effect.directory, effect.claim)
            return v.ClaimStored(effect.directory, effect.claim, failure)

        self._claims.start(work)

    def _file_claim(self, effect: v.FileClaim) -> None:
        def work() -> v.Event:
            failure = self._storage.store_claim(effect.directory, effect.claim)
            return v.ClaimFiled(effect.directory, effect.claim, failure)

        self._claims.start(work)

    def _store_record(self, effect: v.WriteStoreRecord) -> None:
        def work() -> v.Event:
            failure = self._storage.store_record(effect.record)
            if failure is v.DiskFailure.NONE:
                logger.warning("store record: %s", record_text(effect.record))
            return v.RecordStored(effect.session, effect.request_id, effect.record, failure)

        self._claims.start(work)

    def _write_repair(self, effect: v.WriteRepair) -> None:
        self._repairs.start(lambda: v.RepairWritten(effect.session, self._storage.write_repair(effect)))

    def _install_repair(self, effect: v.InstallRepair) -> None:
        def work() -> v.Event:
            found = self._storage.install_repair(effect)
            return v.RepairInstalled(effect.session, effect.directory, effect.name, found)

        self._repairs.start(work)

    def _make_directory(self, effect: v.MakeDirectory) -> None:
        def work() -> v.Event:
            failure = self._storage.make_directory(effect.directory)
            return v.DirectoryMade(effect.session, effect.directory, failure)

        self._loads.start(work)
