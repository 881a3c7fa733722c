"""O10: sessions, requests, files and memory are under their limits, those of dos_server/limits.py (P-9)."""

from typing import TYPE_CHECKING

from dos_protocol.limits import entries_max, payload_bytes_max
from dos_server.limits import (
    connections_max,
    directories_loaded_max,
    in_flight_bytes_max,
    index_entries_max,
    objects_in_use_max,
    open_files_max,
    reads_queued_of_one_max,
    repairs_max,
    requests_in_flight_max,
    waiting_of_one_min,
    waiting_total_max,
)
from tests.sim.oracles.oracle import Oracle

if TYPE_CHECKING:
    from tests.sim.run import Cluster
    from tests.sim.store.machine import Machine
    from tests.sim.store.server import Server

_FILES_BESIDE: int = 64
"""Allowed in addition, for the marks of directories and files in use."""


class Caps(Oracle):
    """Checks the limits of a session whenever its server served it, the others when a machine loses its power
    and at the end.
    """

    number = "O10"

    def served(self, server: "Server", session: int) -> None:
        one = server.core._tables.sessions.get(session)
        if one is None:
            return
        if (
            one.reading > reads_queued_of_one_max
            or one.pending > requests_in_flight_max
            or one.unsynced_bytes > in_flight_bytes_max + payload_bytes_max
        ):
            owner_of = f"of session {session} of {server.machine.name}"
            self._under(one.reading, reads_queued_of_one_max, f"reads {owner_of}")
            self._under(one.pending, requests_in_flight_max, f"requests {owner_of}")
            self._under(one.unsynced_bytes, in_flight_bytes_max + payload_bytes_max, f"bytes {owner_of}")

    def power_cut(self, machine: "Machine") -> None:
        self._check_limits(machine)

    def ended(self, cluster: "Cluster") -> None:
        for machine in cluster.machines:
            self._check_limits(machine)

    def _check_limits(self, machine: "Machine") -> None:
        server = machine.server
        if server is None:
            return
        tables, name = server.core._tables, machine.name
        self._under(len(tables.sessions), connections_max, f"sessions of {name}")
        self._under(len(tables.directories), directories_loaded_max, f"directories of {name}")
        self._under(len(tables.repairs), repairs_max, f"new copies of {name}")
        self._under(len(machine.disk._handles), open_files_max + _FILES_BESIDE, f"files of {name}")
        self._under(tables.objects, objects_in_use_max + entries_max, f"objects of {name}")
        waiting_max = waiting_total_max + waiting_of_one_min * len(tables.sessions)
        self._under(len(tables.waiting), waiting_max, f"GETs that wait on {name}")
        counted = sum(len(directory.opening) for directory in tables.directories.values())
        self._under(tables.openings, counted, f"counted openings of {name}")
        for directory in tables.directories.values():
            for state in directory.objects.values():
                self._under(len(state.index), index_entries_max, f"entries of the index of {state.name}")

    def _under(self, number: int, cap: int, what: str) -> None:
        if number > cap:
            self.object(f"{number} {what}, {cap} are allowed")
