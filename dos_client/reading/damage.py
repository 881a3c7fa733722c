"""What readers found wrong, per member and object: reported once, avoided, waited for by those who mend it.

Rules of this file: a register, for people and for repair. It judges nothing and reads nothing: who notes
something has made sure of it. Nothing here is kept on disk; another client finds it out for itself.

A note is about one copy: one object on one member. A member whose copy is noted is asked for that object
only when nobody else can answer, and never when its bytes are *different*: what it gives would look sound.
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
    """What is wrong with a copy."""

    DAMAGED = "its disk gives other bytes than were stored: it says so itself"
    """CORRUPT. The bytes below `offset` are good."""
    POISONED = "a write or sync of it failed: it says so itself"
    DIFFERENT = "its bytes look sound there and are not those that a quorum holds"


@dataclass(frozen=True, slots=True)
class DamageReport:
    """One copy with something wrong. `offset`: below it nothing wrong was seen. `number`: counts the notes
    of this store, from 1."""

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
    """See the module. One for each `Store`, as `store.damage`. `found`: how many wrong copies so far."""

    def __init__(self) -> None:
        self._reports: dict[tuple[bytes, str, str], DamageReport] = {}
        self.found = 0
        self._noted = 0
        self._news = trio.Event()

    def note(self, server_id: bytes, directory: str, name: str, offset: int, why: CopyFault) -> bool:
        """A copy is wrong from `offset` on. True if that is news: a copy is reported once, and again only
        when it turns out to be DIFFERENT, or wrong from an earlier byte."""
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
        self._news.set()
        self._news = trio.Event()
        return True

    def reports(self) -> list[DamageReport]:
        """Every copy that is wrong as far as is known here, in the order of their notes."""
        return sorted(self._reports.values(), key=lambda report: report.number)

    def of_member(self, server_id: bytes) -> DamageReport | None:
        """The first report about a member, if there is one."""
        return next((report for report in self.reports() if report.server_id == server_id), None)

    def avoid(self, server_id: bytes, directory: str, name: str) -> bool:
        """Whether that copy should not be read while another one can be."""
        return (server_id, directory, name) in self._reports

    def refuse(self, server_id: bytes, directory: str, name: str) -> bool:
        """Whether that copy must not be read at all: its bytes look sound and are not."""
        report = self._reports.get((server_id, directory, name))
        return report is not None and report.why is CopyFault.DIFFERENT

    async def wait_new(self, seen: int) -> list[DamageReport]:
        """Wait until there is a report with a number above `seen`, and return those; no note is missed by
        who passes the highest number of the answer next time."""
        while not (news := [report for report in self.reports() if report.number > seen]):
            await self._news.wait()
        return news

    def repaired(self, server_id: bytes, directory: str, name: str) -> None:
        """The copy was put right, and checked: it may be read again."""
        report = self._reports.pop((server_id, directory, name), None)
        if report is not None:
            log.warning("%s/%s on %s is mended", directory, name, id_text(server_id))

    def keep_only(self, server_ids: Collection[bytes]) -> None:
        """Forget copies of servers that are no members any more."""
        self._reports = {key: report for key, report in self._reports.items() if key[0] in server_ids}
