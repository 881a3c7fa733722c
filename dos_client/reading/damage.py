"""The register of damaged and different copies that readers found: to report each once, to avoid it in reads,
and to repair it. Callers note only what they have verified. Nothing is stored on disk.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Final

import trio

from dos_client.limits import damage_reports_max
from dos_protocol.names import id_text

log: Final = logging.getLogger("dos.client")


class CopyFault(Enum):
    DAMAGED = "its disk returns other bytes than were stored, as its server reports"
    """CORRUPT. The bytes before `offset` are good."""
    POISONED = "a write or sync of it failed, as its server reports"
    DIFFERENT = "its bytes look sound but are not those that a quorum holds"


@dataclass(frozen=True, slots=True)
class DamageReport:
    """One damaged or different copy, good before `offset`. `number`: counts this store's notes from 1."""

    number: int
    server_id: bytes
    directory: str
    name: str
    offset: int
    why: CopyFault

    def __str__(self) -> str:
        copy = f"{self.directory}/{self.name} on {id_text(self.server_id)}"
        return f"{copy}, from byte {self.offset}: {self.why.value}"


class Damage:
    def __init__(self) -> None:
        self._reports: dict[tuple[bytes, str, str], DamageReport] = {}
        self.found = 0
        self._noted = 0
        self._new_report = trio.Event()

    def note(self, server_id: bytes, directory: str, name: str, offset: int, why: CopyFault) -> bool:
        """Note that a copy is damaged or different from `offset` on. Returns whether that is new."""
        key = (server_id, directory, name)
        known = self._reports.get(key)
        if known is not None:
            if known.offset <= offset and (known.why is why or why is not CopyFault.DIFFERENT):
                return False
            offset = min(offset, known.offset)
            why = known.why if known.why is CopyFault.DIFFERENT else why
        elif len(self._reports) >= damage_reports_max:
            del self._reports[next(iter(self._reports))]
        self._noted += 1
        report = self._reports[key] = DamageReport(self._noted, server_id, directory, name, offset, why)
        if known is None:
            self.found += 1
            log.warning("%s", report)
        self._new_report.set()
        self._new_report = trio.Event()
        return True

    def reports(self) -> list[DamageReport]:
        return sorted(self._reports.values(), key=lambda report: report.number)

    def of_member(self, server_id: bytes) -> DamageReport | None:
        return next((report for report in self.reports() if report.server_id == server_id), None)

    def avoid(self, server_id: bytes, directory: str, name: str) -> bool:
        return (server_id, directory, name) in self._reports

    def refuse(self, server_id: bytes, directory: str, name: str) -> bool:
        """Return whether that copy must not be read at all, because its bytes pass all checks of its server
        but are not the quorum's.
        """
        report = self._reports.get((server_id, directory, name))
        return report is not None and report.why is CopyFault.DIFFERENT

    async def wait_new(self, seen: int) -> list[DamageReport]:
        """Wait for reports with a number above `seen` and return them: no note is missed."""
        while not (new := [report for report in self.reports() if report.number > seen]):
            await self._new_report.wait()
        return new

    def repaired(self, server_id: bytes, directory: str, name: str) -> None:
        report = self._reports.pop((server_id, directory, name), None)
        if report is not None:
            log.warning("%s/%s on %s was repaired", directory, name, id_text(server_id))

    def keep_only(self, server_ids: Collection[bytes]) -> None:
        self._reports = {key: report for key, report in self._reports.items() if key[0] in server_ids}
