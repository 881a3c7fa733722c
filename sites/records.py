"""The records of an application in its entry store: the deployment, and the reports of readers and sites.

Each is a chain with one state (`journal/whole_state.py`). The deployment is replaced under a claim that a
majority of the entry store grants, so two coordinators never decide on the same state. This file does the
I/O; `core/deployed.py` and `core/observed.py` have the meaning.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec
import trio

from dos_client import QuorumUnavailableError, Store
from dos_protocol.errors import DosError
from journal import (
    Op,
    Record,
    StatePlace,
    StateRecord,
    StoreStateHost,
    UnsettledStateError,
    change_state,
    read_state,
)
from sites.core.deployed import CHAIN, Deployed, deployment_directory
from sites.core.deployment import RegionReplica
from sites.core.description import Description
from sites.core.observed import (
    REPORT_S,
    REPORTS_CHAIN,
    Ranks,
    ReaderReport,
    Report,
    SiteReport,
    StreamReport,
    decode_record,
    encode_record,
    is_doubtful,
    reader_directory,
    site_directory,
)

logger: Final = logging.getLogger("dos.sites")
PATIENCE_S: Final = 30.0
"""How long a change waits for a majority of the entry store."""
RENEWED_S: Final = REPORT_S + 5.0
"""How long a report that is not of now, by the clocks, may take to be replaced."""


def now_ms() -> int:
    """Return the wall clock, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


async def read_deployed(store: Store, application: str) -> Deployed:
    """Return what is deployed; `number` is 0 if nothing is. Raises BadNameError, CorruptDataError,
    UnsettledStateError while another decision is being recorded, and what reading a chain raises.
    """
    place = StatePlace(deployment_directory(application), CHAIN, Op.DEPLOYMENT)
    return _decoded(await read_state(store, place), place)


def _decoded(found: StateRecord | None, place: StatePlace) -> Deployed:
    if found is None:
        return Deployed()
    return decode_record(Deployed, found.record.strings, where=place.directory, at=found.end)


async def change_deployed(
    store: Store,
    application: str,
    change: Callable[[Deployed], Deployed],
    *,
    patience_s: float = PATIENCE_S,
) -> Deployed:
    """Record what `change` returns for the present state, once, and return it when a majority holds it.
    `change` may be called several times; if it returns its argument, nothing is recorded.

    Raises what `change` raises, with nothing recorded, and QuorumUnavailableError if no majority has granted
    the claim in `patience_s`: the decision may be recorded or not then, and the next change finds out.
    """
    place = StatePlace(deployment_directory(application), CHAIN, Op.DEPLOYMENT)
    results = dict[Record | None, Deployed]()

    def changed(before: StateRecord | None) -> Record | None:
        present = _decoded(before, place)
        after = change(present)
        record = None
        if after is not present:
            record = Record(Op.DEPLOYMENT, ints=(now_ms(),), strings=(encode_record(after),))
        results[record] = after
        return record

    return results[await _replaced(store, place, changed, patience_s)]


async def _replaced(
    store: Store, place: StatePlace, change: Callable[[StateRecord | None], Record | None], patience_s: float
) -> Record | None:
    with trio.move_on_after(patience_s):
        return await change_state(StoreStateHost(store), place, change)
    raise QuorumUnavailableError(
        f"no majority of the entry store has recorded a change of {place.directory} in {patience_s:.0f} s"
    )


# --- reports --------------------------------------------------------------------------------------------


async def write_report(
    store: Store, application: str, report: ReaderReport | SiteReport, *, patience_s: float = PATIENCE_S
) -> None:
    """Replace the report of a reader or a site. Raises as `change_deployed` does."""
    record = Record(Op.REPORT, ints=(now_ms(),), strings=(encode_record(report),))
    await _replaced(store, _place(application, report), lambda _: record, patience_s)


def _place(application: str, report: ReaderReport | SiteReport) -> StatePlace:
    if isinstance(report, ReaderReport):
        return StatePlace(reader_directory(application, report.reader), REPORTS_CHAIN, Op.REPORT)
    return StatePlace(site_directory(application, report.site), REPORTS_CHAIN, Op.REPORT)


async def read_reports(
    store: Store, description: Description, deployed: Deployed
) -> tuple[list[ReaderReport], list[SiteReport]]:
    """Return the last report of each replica and exit, and of each site, as far as they can be read."""
    readers = {RegionReplica(region, site) for region, sites in deployed.replicas.items() for site in sites}
    readers |= {RegionReplica(place.name, place.site) for place in description.exits}
    application = description.application
    found_readers, found_sites = list[ReaderReport](), list[SiteReport]()
    async with trio.open_nursery() as nursery:
        for reader in sorted(readers):
            directory = reader_directory(application, reader)
            nursery.start_soon(_read_one, store, directory, ReaderReport, found_readers)
        for site in description.sites:
            nursery.start_soon(
                _read_one, store, site_directory(application, site.name), SiteReport, found_sites
            )
    return sorted(found_readers, key=lambda one: one.reader), sorted(found_sites, key=lambda one: one.site)


async def read_current_reports(
    store: Store, description: Description, deployed: Deployed, *, gone: str = ""
) -> tuple[list[ReaderReport], list[SiteReport]]:
    """Return the last reports, with `at_ms` by the clock of this machine. gone: a site that is not waited
    for.
    """
    # The clocks of other machines decide only if they agree with this one. A report of a site for which they
    # do not is waited for: if it is replaced, it is one of now, and shows how wrong the clock of the site is,
    # for all its reports; if not, they count as old. Reports of its readers are not waited for: a replica
    # that was collected or has failed writes none.
    readers, sites = await read_reports(store, description, deployed)
    now, judged = now_ms(), dict[str, ReaderReport | SiteReport]()
    for one in _every(readers, sites):  # a site without a report is judged by its first reader
        judged.setdefault(_site_of(one), one)
    doubtful = {
        site: one
        for site, one in sorted(judged.items())
        if site not in (*deployed.forgotten, gone) and is_doubtful(one, now)
    }
    ahead_ms = dict[str, int]()
    """Site -> by how much its clock is ahead of this one."""
    if doubtful:
        logger.warning(
            "by the clock of this machine, the reports of %s are not of now; waiting for up to %.0f s for"
            " others (a site that is gone for good is not waited for after `dos sites forget`)",
            ", ".join(doubtful),
            RENEWED_S,
        )
    with trio.move_on_after(RENEWED_S):
        while len(ahead_ms) < len(doubtful):
            await trio.sleep(1.0)
            readers, sites = await read_reports(store, description, deployed)
            for one in _every(readers, sites):
                old = doubtful.get(site := _site_of(one))
                if old is not None and site not in ahead_ms and _key(one) == _key(old) and one != old:
                    ahead_ms[site] = one.at_ms - now_ms()

    def in_own_time(one: Report) -> Report:
        site = _site_of(one)
        own = one
        if site in ahead_ms:
            own = msgspec.structs.replace(one, at_ms=one.at_ms - ahead_ms[site])
        current = (site in ahead_ms or site not in doubtful) and not is_doubtful(own, now_ms())
        return own if current else msgspec.structs.replace(own, at_ms=0)

    return [in_own_time(one) for one in readers], [in_own_time(one) for one in sites]


def _every(readers: list[ReaderReport], sites: list[SiteReport]) -> list[ReaderReport | SiteReport]:
    return [*sites, *readers]


def _key(one: ReaderReport | SiteReport) -> str:
    return str(one.reader) if isinstance(one, ReaderReport) else one.site


def _site_of(one: ReaderReport | SiteReport) -> str:
    return one.reader.site if isinstance(one, ReaderReport) else one.site


async def _read_one(store: Store, directory: str, kind: type[Report], found: list[Report]) -> None:
    try:
        state = await read_state(store, StatePlace(directory, REPORTS_CHAIN, Op.REPORT))
        if state is not None:
            found.append(decode_record(kind, state.record.strings, where=directory, at=state.end))
    except (UnsettledStateError, QuorumUnavailableError) as error:
        logger.warning("a report is not used: %s", error)


class ReaderReporter:
    """Writes the reports of one reader. Call `write` every `REPORT_S`."""

    def __init__(self, store: Store, application: str, reader: RegionReplica) -> None:
        self._store, self._application, self._reader = store, application, reader
        self._ranks = Ranks()

    async def write(
        self,
        streams: Iterable[StreamReport],
        *,
        at_ms: int | None = None,
        mark: int | None,
        moved_s: float | None,
        load: float | None = None,
        rates: Mapping[str, float] | None = None,
    ) -> None:
        """Write a report, or log that it cannot be. streams: `ranks`: since the call before."""
        listed = sorted(streams, key=lambda one: one.sender)
        ranks = self._ranks.add({one.sender: one.ranks for one in listed})
        report = ReaderReport(
            reader=self._reader,
            at_ms=now_ms() if at_ms is None else at_ms,
            mark=mark,
            moved_s=moved_s,
            load=load,
            rates=dict(rates or {}),
            streams=tuple(msgspec.structs.replace(one, ranks=ranks[one.sender]) for one in listed),
        )
        try:
            await write_report(self._store, self._application, report, patience_s=REPORT_S)
        except DosError as error:
            logger.warning("the report of %s was not written: %s", self._reader, error)
