"""The process at one site: starts and stops the replicas that the deployment places there.

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_site, description, "wisc")

It reads the deployment from the entry store every second, and reports every 30 s. While the entry store does
not answer, everything continues as it was. When it is cancelled, it stops its regions, each with a last
checkpoint.

A region runs as local processes, or as `start` runs it. On Spark, in the driver: `run_site(description,
"wisc", start=partial(dos.run, spark))`. Only this file imports `dataflow` and `checkpoint`.
"""

import importlib
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import trio

from checkpoint import Checkpoint, Register, RegisterPlace, input_register, output_register, with_query
from checkpoint.chains.consumer_register import change_register, read_register, settled_register
from checkpoint.chains.manifest_log import StoreHost, read_manifest
from checkpoint.errors import NoRegionError
from checkpoint.maintenance.backup_restoring import copy_region
from checkpoint.maintenance.retention import InputRows, Retention
from dataflow.graph.builder import Graph, parts_of
from dataflow.local import run_local
from dataflow.merging.merge import is_whole_above
from dataflow.merging.recording import passed_mark
from dataflow.sinks.log import LogSink
from dataflow.sources.stored import InputSource, MergedLogSource, handle_of
from dos_client import Store, open_store
from dos_client.urls import parse_url, split_address
from dos_protocol.errors import DosError
from sites.core.deployed import Deployed
from sites.core.deployment import RegionReplica
from sites.core.description import Description, FixedPlace, ReplicatedRegion
from sites.core.observed import (
    REPORT_S,
    LinkMeter,
    ReaderMeter,
    SiteReport,
    SourceCounters,
    Usage,
    UsageMeter,
    bytes_of,
    input_counters,
)
from sites.core.site_work import ReplicaContext, StartedReplica, check_ports, contexts_at, gone_readers, steps
from sites.errors import GraphRefusedError
from sites.records import PATIENCE_S, ReaderReporter, now_ms, read_deployed, read_reports, write_report

PROBE_S: Final = 10.0
_WAIT_S_MAX: Final = 5.0


async def probe_links(description: Description, site: str, meter: LinkMeter) -> None:
    """Measure until cancelled."""
    stores = {one.name: one.store for one in description.sites if one.store and one.name != site}
    addresses = {name: parse_url(url).servers for name, url in stores.items()}

    async def probe(other: str) -> None:
        # The servers of a site are near each other: the nearest answer has waited least for anything else.
        found = [one for one in [await round_trip_s(address) for address in addresses[other]] if one]
        if found:
            meter.add(other, trio.current_time(), min(found) / 2)

    while True:
        async with trio.open_nursery() as nursery:
            for other in addresses:
                nursery.start_soon(probe, other)
        await trio.sleep(PROBE_S)


async def round_trip_s(address: str) -> float | None:
    """Return the time to open a TCP connection: the server's kernel answers, whatever the server does."""
    with suppress(OSError), trio.move_on_after(_WAIT_S_MAX):
        found = await trio.socket.getaddrinfo(*split_address(address), type=trio.socket.SOCK_STREAM)
        family, kind, protocol, _, place = found[0]
        with trio.socket.socket(family, kind, protocol) as connection:
            begun = time.perf_counter()
            await connection.connect(place)
            return time.perf_counter() - begun
    return None


class StartedRegion(Protocol):
    """The handle of a region, as `run_local` and `spark_integration.run` return it."""

    @property
    def status(self) -> Any: ...

    def stop(self) -> None: ...


Spec = TypeVar("Spec")
StartRegion = Callable[..., Any]
"""Called with a graph, and `name`, `store`, `token` and `workers` by keyword; returns a `StartedRegion`."""


@dataclass(slots=True)
class RunningReplica:
    """A replica that was started at this site, and what it counts."""

    context: ReplicaContext
    handle: StartedRegion | None = None
    specs: Mapping[str, Any] = field(default_factory=dict)
    """Operator -> its description."""
    error: str = ""
    """Why it could not be started."""
    meter: ReaderMeter = field(default_factory=ReaderMeter)
    usage: UsageMeter = field(default_factory=UsageMeter)
    load: float = 0.0
    """As it was reported last."""
    ended_at: float | None = None
    differs: bool | None = None
    """Whether it has failed because the replicas that it reads differ; None: not known yet."""

    @property
    def state(self) -> str:
        return "FAILED" if self.handle is None else str(self.handle.status.state.value)

    @property
    def reason(self) -> str:
        """Why it does not run, "" if it does."""
        if self.handle is None:
            return self.error
        if self.state == "RUNNING":
            return ""
        held = "; it is not started again before its streams change, or `dos sites run` is started again"
        return f"{self.handle.status.reason}{held if self.differs else ''}"

    def of_kind(self, kind: type[Spec]) -> dict[str, Spec]:
        return {name: one for name, one in self.specs.items() if isinstance(one, kind)}

    def _sender(self, source: InputSource) -> RegionReplica:
        return self.context.ports[source.name][0].sender

    def _counted(self, operator: str) -> list[Mapping[str, int]]:
        if self.handle is None:
            return []
        return [one.counters.operators.get(operator, {}) for one in self.handle.status.workers]

    def _mark(self, operator: str) -> int | None:
        # One that has none gets no rows.
        return min((one["mark_us"] for one in self._counted(operator) if "mark_us" in one), default=None)

    def used(self, sources: Sequence[SourceCounters]) -> Usage:
        read = {
            self._sender(one): sum(found.get("bytes_in", 0) for found in self._counted(name))
            for name, one in self.of_kind(InputSource).items()
        }
        workers = () if self.handle is None else self.handle.status.workers
        return Usage(sum(one.counters.busy_s for one in workers), read | bytes_of(sources))

    def counters(self) -> list[SourceCounters]:
        """Return what its sources count, and note how far they are."""
        if self.state != "RUNNING":
            return []
        nodes = {port[0].region: node for node, port in self.context.ports.items()}
        sources = [
            SourceCounters(nodes[source.region], found)
            for name, source in sorted(self.of_kind(MergedLogSource).items())
            for found in self._counted(name)
            if "mark_us" in found
        ]
        sources += [
            input_counters(self._sender(one), self._mark(name))
            for name, one in sorted(self.of_kind(InputSource).items())
            if not one.late
        ]
        given = [self._mark(name) for name, one in self.of_kind(LogSink).items() if one.time]
        self.meter.note(sources, given, trio.current_time())
        return sources


def region_of(description: Description, context: ReplicaContext) -> ReplicatedRegion | FixedPlace:
    every: tuple[ReplicatedRegion | FixedPlace, ...] = (*description.regions, *description.exits)
    return next(one for one in every if one.name == context.replica.node)


def graph_of(description: Description, context: ReplicaContext) -> Graph:
    """Return the graph of a replica. Raises GraphRefusedError, and what the function raises."""
    region = region_of(description, context)
    if region.graph is None:
        raise GraphRefusedError(f"region {region.name!r} names no graph")
    module, _, name = region.graph.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise GraphRefusedError(f"graph {region.graph!r} of region {region.name!r}: {error}") from error
    graph = function(context)
    if not isinstance(graph, Graph):
        raise GraphRefusedError(f"{region.graph} returned {type(graph).__name__}, not a graph")
    if len(parts_of(graph, context.name)) != 1:
        raise GraphRefusedError(
            f"{region.graph} returned a graph of several regions; describe each as a region"
        )
    specs = graph.plan().specs.values()
    check_ports(
        context,
        [one.name for one in specs if isinstance(one, InputSource)],
        [one.region for one in specs if isinstance(one, MergedLogSource)],
    )
    return graph


logger: Final = logging.getLogger("dos.sites")


async def prepare(
    store: Store,
    context: ReplicaContext,
    sources: Mapping[str, object],
    copies: Sequence[tuple[str, str]],
    *,
    begins_with_copy: bool,
    token: bytes,
) -> None:
    """Copy a checkpoint of another replica into the store of the site, if this one cannot begin without it.

    copies: (replica, URL of its store) of those that run; the first one that answers is copied.
    begins_with_copy: copy one too if this replica has no checkpoint. Raises DosError if none can be
    copied.
    """
    # A replica may be new, or its site may have been away, or have lost its disks, for longer than others
    # retain rows: it would skip what is gone if it continued with what it has.
    checkpoint = await _last_checkpoint(store, context.name)
    gone = await _what_is_gone(store, context, sources, checkpoint, token)
    if gone is None and (checkpoint is not None or not begins_with_copy):
        return
    why = gone or "it has no checkpoint"
    reasons = []
    for replica, url in copies:
        try:
            await copy_region(url, context.store, context.name, f"{context.application}.copies", token=token)
        except DosError as error:
            reasons.append(f"{replica}: {error}")
        else:
            logger.info("%s begins with a checkpoint of %s: %s", context.replica, replica, why)
            return
    raise DosError(
        f"{context.replica} begins with a checkpoint of another replica ({why}), and none can be copied:"
        f" {'; '.join(reasons) or 'no other one is deployed'}",
        remedy="start a site that has a replica of the region; if there is none any more, the rows that are"
        " gone are lost: found the stores again, and apply the deployment under another name",
    )


async def _last_checkpoint(store: Store, region: str) -> Checkpoint | None:
    try:
        return (await read_manifest(store, region)).last
    except NoRegionError:
        return None


async def _what_is_gone(
    store: Store,
    context: ReplicaContext,
    sources: Mapping[str, object],
    checkpoint: Checkpoint | None,
    token: bytes,
) -> str | None:
    for name, source in sources.items():
        found = None
        if isinstance(source, InputSource):
            found = await _input_that_is_gone(name, source, context, checkpoint, token)
        elif isinstance(source, MergedLogSource):
            found = await _rows_that_are_gone(store, name, source, context, token)
        if found is not None:
            return found
    return None


async def _input_that_is_gone(
    name: str, source: InputSource, context: ReplicaContext, checkpoint: Checkpoint | None, token: bytes
) -> str | None:
    application = source.application or context.name
    url = source.store_url or context.store
    try:
        async with open_store(url, token=token, client="dos sites") as entry:
            rows = InputRows(entry, application, source.name)
            for one in await Retention(entry, rows).trimmed_of(name, checkpoint):
                where = f"producer {one.split!r} of input {source.name!r}"
                return f"{where} is retained from {one.begin} on, and needed from {one.needs} on"
    except DosError as error:  # the region waits for it
        logger.info("what %s retains is not known now: %s", url, error)
    return None


async def _rows_that_are_gone(
    store: Store, name: str, source: MergedLogSource, context: ReplicaContext, token: bytes
) -> str | None:
    mark = await passed_mark(store, context.name, handle_of(name))
    found = []
    for place in source.order.places:
        try:
            async with open_store(place.url, token=token, client="dos sites") as sender:
                whole = await is_whole_above(sender, place, mark)
        except DosError as error:
            logger.info("what %s retains of %s is not known now: %s", place.site, place.region, error)
            continue
        if whole:
            return None
        found += [place.site] if whole is not None else []
    return f"none of {', '.join(found)} retains all rows of {source.region}" if found else None


POLL_S: Final = 1.0
"""How often the deployment is read."""


async def run_site(
    description: Description,
    site: str,
    *,
    token: bytes = b"",
    start: StartRegion = run_local,
    changed: Callable[[dict[str, str]], None] = lambda _: None,
) -> None:
    """Run the replicas of a site until cancelled. token: of the entry store and of the site's store. changed:
    called with region -> state when that has changed. Raises GraphRefusedError if the site has no store, and
    what opening the entry store raises. A replica that cannot be started is FAILED, and tried again every 30
    s.
    """
    places = {one.name: one for one in description.sites}
    if site not in places or places[site].store is None:
        raise GraphRefusedError(f"site {site!r} has no store", remedy="add `store` to the site")
    async with open_store(description.entry_store or "", token=token, client="dos sites") as store:
        await _Site(store, description, site, start, token, changed).run()


class _Site:
    """The regions that run."""

    def __init__(
        self,
        store: Store,
        description: Description,
        site: str,
        start: StartRegion,
        token: bytes,
        changed: Callable[[dict[str, str]], None],
    ) -> None:
        self._store, self._description, self._site = store, description, site
        self._start, self._token, self._changed = start, token, changed
        self._regions: dict[str, RunningReplica] = {}
        self._stopped: dict[str, RunningReplica] = {}
        """Those that ran here and do not any more: a reader may register once more before it ends."""
        self._deployed = Deployed()
        self._shown: dict[str, str] | None = None
        self._report_now = trio.Event()
        self._reporters: dict[str, ReaderReporter] = {}
        self._store_id = ""
        self._links = LinkMeter()
        self._runs_here = any(one.name == site and one.runs == "local" for one in description.sites)

    async def run(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._report)
                nursery.start_soon(probe_links, self._description, self._site, self._links)
                while True:
                    await self._read()
                    await self._act()
                    self._show()
                    await trio.sleep(POLL_S)
        finally:
            with trio.CancelScope(shield=True):
                await self._stop(tuple(self._regions))

    async def _read(self) -> None:
        try:
            self._deployed = await read_deployed(self._store, self._description.application)
        except DosError as error:
            logger.warning("the deployment cannot be read now, everything continues as it was: %s", error)

    async def _act(self) -> None:
        for one in self._regions.values():
            one.counters()
            await self._look_for_difference(one)
        wanted = contexts_at(self._description, self._deployed, self._site)
        todo = steps(wanted, {region: self._running(one) for region, one in self._regions.items()})
        self._stopped |= {region: self._regions[region] for region in todo.stop}
        await self._stop(todo.stop)
        for region in todo.start:
            self._regions[region] = await self._started(wanted[region])
            self._stopped.pop(region, None)

    def _running(self, one: RunningReplica) -> StartedReplica:
        if one.ended_at is None and (one.handle is None or one.handle.status.state.is_end):
            one.ended_at = trio.current_time()
        ended_s = None if one.ended_at is None else trio.current_time() - one.ended_at
        return StartedReplica(one.context, one.state, ended_s, differs=one.differs is not False)

    async def _look_for_difference(self, one: RunningReplica) -> None:
        # Whether it has failed because what it reads differs, which its merged sources have noted: started
        # again, it would pass rows of both. So until that is known, it is not.
        if one.differs is not None and (one.handle is None or one.state == "FAILED"):
            return
        merged = one.of_kind(MergedLogSource)
        if one.handle is None or not merged:
            one.differs = False
        elif one.state == "FAILED":
            try:
                async with open_store(one.context.store, token=self._token, client="dos sites") as store:
                    registers = [
                        await read_register(store, input_register(one.context.name, handle_of(name)))
                        for name in merged
                    ]
            except DosError as error:
                logger.warning("it is not known why %s has failed: %s", one.context.replica, error)
                return
            reason = one.handle.status.reason
            one.differs = any(found.difference and found.difference in reason for found in registers)

    async def _started(self, context: ReplicaContext) -> RunningReplica:
        try:
            graph = graph_of(self._description, context)
            specs = graph.plan().specs
            await self._prepare(context, specs)
            workers = region_of(self._description, context).workers
            start = partial(
                self._start, graph, name=context.name, store=context.store, token=self._token, workers=workers
            )
            return RunningReplica(context, await trio.to_thread.run_sync(start), specs)
        except Exception as error:  # of the user's function, or of the region: others run
            logger.exception("region %s cannot be started", context.replica.node)
            return RunningReplica(context, error=f"{type(error).__name__}: {error}")

    async def _prepare(self, context: ReplicaContext, specs: Mapping[str, Any]) -> None:
        name = str(context.replica)
        starts = self._deployed.starts.get(name)
        others = [str(one) for one in sorted(self._deployed.running()) if one.node == context.replica.node]
        urls = {site.name: site.store for site in self._description.sites}
        copies = [
            (one, url)
            for one in dict.fromkeys([*([starts] if starts else []), *others])
            if one != name and (url := urls.get(one.partition("@")[2])) is not None
        ]
        async with open_store(context.store, token=self._token, client="dos sites") as store:
            if self._store_id != (store_id := store.record.store_id.hex()):
                self._store_id = store_id
                await self._report_site()
            begins_with_copy = starts is not None and starts != name
            await prepare(store, context, specs, copies, begins_with_copy=begins_with_copy, token=self._token)

    async def _stop(self, regions: tuple[str, ...]) -> None:

        async def stop(one: RunningReplica) -> None:
            if one.handle is not None:
                await trio.to_thread.run_sync(one.handle.stop)

        async with trio.open_nursery() as nursery:
            for region in regions:
                nursery.start_soon(stop, self._regions.pop(region))

    async def _forget_readers(self, one: RunningReplica) -> None:
        # They read it no more, and what they have not read would be kept for ever.
        places = [output_register(one.context.name, name) for name in one.of_kind(LogSink)]
        try:
            with trio.move_on_after(PATIENCE_S):  # a change waits for a quorum
                async with open_store(one.context.store, token=self._token, client="dos sites") as store:
                    for place in places:
                        await self._forget_readers_in(store, place, one.context)
        except DosError as error:
            logger.info("the readers of %s are not known now: %s", one.context.replica, error)

    async def _forget_readers_in(self, store: Store, place: RegisterPlace, context: ReplicaContext) -> None:
        registered = [*(await settled_register(store, place)).queries]
        # Read after the register: a reader registers after it was deployed, and after its site has reported.
        deployed = await read_deployed(self._store, context.application)
        _, sites = await read_reports(self._store, self._description, deployed)
        ids = {report.site: report.store_id for report in sites if report.store_id}
        gone = gone_readers(self._description, deployed, context.replica, registered, ids)

        def without(register: Register) -> Register:
            for reader in gone:
                register = with_query(register, reader, None)
            return register

        if gone:
            logger.info("%s is not read any more by %s", context.replica, ", ".join(gone))
            await change_register(StoreHost(store), place, without)

    # --- reports --------------------------------------------------------------------------------------------

    def _show(self) -> None:
        states = {region: one.state for region, one in sorted(self._regions.items())}
        if states != self._shown:
            self._shown = states
            self._report_now.set()
            self._changed(states)

    async def _report(self) -> None:
        while True:
            with trio.move_on_after(REPORT_S):
                await self._report_now.wait()
            self._report_now = trio.Event()
            await self._report_site()
            for one in [*self._regions.values()]:
                await self._report_reader(one)
            for one in [*self._regions.values(), *self._stopped.values()]:
                await self._forget_readers(one)

    def _now_ms(self) -> int:
        # If the wall clock is behind a time that has passed, that one: others compare it with theirs.
        now_s = trio.current_time()
        return max([now_ms(), *(one.meter.time_us(now_s) // 1000 for one in self._regions.values())])

    async def _report_site(self) -> None:
        regions = sorted(self._regions.items())
        report = SiteReport(
            site=self._site,
            at_ms=self._now_ms(),
            number=self._deployed.number,
            regions={region: one.state for region, one in regions},
            reasons={region: one.reason for region, one in regions if one.reason},
            store_id=self._store_id,
            links=self._links.reports(trio.current_time()),
            other_load=self._other_load(),
        )
        try:
            await write_report(self._store, self._description.application, report)
        except DosError as error:
            logger.warning("the report of site %s was not written: %s", self._site, error)

    def _other_load(self) -> float | None:
        if not self._runs_here:
            return None
        _, five_minutes, _ = os.getloadavg()
        return max(0.0, five_minutes - sum(one.load for one in self._regions.values()))

    async def _report_reader(self, one: RunningReplica) -> None:
        sources = one.counters()
        load, rates = one.usage.add(trio.current_time(), one.used(sources))
        one.load = load or 0.0
        if one.handle is None or (not sources and load is None):
            return
        name = str(one.context.replica)
        if name not in self._reporters:
            self._reporters[name] = ReaderReporter(self._store, one.context.application, one.context.replica)
        now_s = trio.current_time()
        await self._reporters[name].write(
            one.meter.streams(sources, 1000 * self._now_ms(), now_s),
            at_ms=self._now_ms(),
            mark=one.meter.mark,
            moved_s=one.meter.moved_s(now_s),
            load=load,
            rates=rates,
        )
