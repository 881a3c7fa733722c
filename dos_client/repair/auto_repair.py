"""Automatic repair: a store that is written through repairs the damaged copies that its readers find.

It repairs one copy at a time, at a limited rate. A copy that cannot be repaired is retried with growing
pauses, and finally left to `dos store repair`, with a warning in the log. What may be done to a copy is
decided elsewhere.
"""

import logging
from typing import Final

import trio

from dos_client.limits import (
    auto_repair_attempts_max,
    auto_repair_bytes_per_s,
    auto_repair_pause_max_s,
    auto_repair_pause_s,
)
from dos_client.live_store import Store
from dos_client.reading.damage import CopyFault, DamageReport
from dos_client.repair.repairing import Repair, RepairOutcome, repair_object
from dos_protocol.errors import DosError

log: Final = logging.getLogger("dos.client")


async def auto_repair(store: Store) -> None:
    """Repair noted copies. Runs as a task: begins when the store is first claimed for writing, and ends with
    the store.
    """
    await store.wrote.wait()
    seen = 0
    waiting: dict[DamageReport, int] = {}
    while True:
        pause = auto_repair_pause_s * 2.0 ** min(waiting.values(), default=0)
        with trio.move_on_after(min(pause, auto_repair_pause_max_s) if waiting else float("inf")):
            for report in await store.damage.wait_new(seen):
                seen = max(seen, report.number)
                waiting[report] = 0
        for report, attempts in list(waiting.items()):
            if await _repair(store, report):
                del waiting[report]
            elif attempts + 1 >= auto_repair_attempts_max:
                del waiting[report]
                log.warning(
                    "%s: not repaired after %d attempts; run `dos store repair`", report, attempts + 1
                )
            else:
                waiting[report] = attempts + 1


async def _repair(store: Store, report: DamageReport) -> bool:
    """Try one repair. Returns whether nothing is left to do."""
    if store.record.member(report.server_id) is None:
        return True
    try:
        repair = await repair_object(
            store, report.server_id, report.directory, report.name, suspect_at=report.offset
        )
    except DosError as error:
        log.info("%s: %s", report, error)
        return False
    if repair is None:
        if report.why is not CopyFault.DIFFERENT:
            store.damage.repaired(report.server_id, report.directory, report.name)
        return True
    return await _finish(report, repair)


async def _finish(report: DamageReport, repair: Repair) -> bool:
    if repair.outcome is not RepairOutcome.REPAIRED:
        log.info("%s: %s %s", report, repair.outcome.value, repair.reason)
        return False
    await trio.sleep(auto_repair_pause_s + repair.size / auto_repair_bytes_per_s)
    return True
