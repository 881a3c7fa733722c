"""The process at one site: starts and stops the replicas that the deployment places there.

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_site, description, "wisc")

It reads the deployment from the entry store every second, and reports every 30 s. While the entry store does
not answer, everything continues as it was. When it is cancelled, it stops its regions, each with a last
checkpoint.

A region runs as local processes, or as `start` runs it. On Spark, in the driver:

    run_site(description, "wisc", start=partial(dos.run, spark))

This is the only file of the package that imports `dataflow` and `checkpoint`.
"""

import importlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

import trio

from checkpoint.maintenance.region_copying import copy_region
from dataflow.graph.builder import Graph
from dataflow.graph.parts import parts_of
from dataflow.local import run_local
from dataflow.merging.order import ReplicaPlace
from dataflow.merging.replica_stream import withdraw
from dataflow.sources.inputs import InputSource
from dataflow.sources.merged_log import MergedLogSource
from dos_client import Store, open_store
from dos_protocol.errors import DosError
from sites.core.deployed import Deployed
from sites.core.description import Description, FixedPlace, ReplicatedRegion
from sites.core.measuring import LinkMeter, Usage, UsageMeter
from sites.core.observed import REPORT_S, SiteReport
from sites.core.reader_reports import ReaderMeter, SourceCounters, bytes_of, passed_mark
from sites.core.site_work import ReplicaContext, StartedReplica, contexts_at, steps
from sites.errors import GraphRefusedError
from sites.probing import probe_links
from sites.records import ReaderReporter, now_ms, read_deployed, write_report

logger: Final = logging.getLogger("dos.sites")
POLL_S: Final = 1.0
"""How often the deployment is read."""


class StartedRegion(Protocol):
    """The handle of a region, as `run_local` and `spark_integration.run` return it."""

    @property
    def status(self) -> Any: ...

    def stop(self) -> None: ...


StartRegion = Callable[..., Any]
"""Called with a graph, and `name`, `store`, `token` and `workers` by keyword; returns a `StartedRegion`."""


@dataclass(slots=True)
class _Region:
    context: ReplicaContext
    handle: StartedRegion | None
    merged: dict[str, MergedLogSource]
    """Source -> what it merges."""
    inputs: dict[str, str]
    """Source -> the input handle that it reads."""
    meter: ReaderMeter = field(default_factory=ReaderMeter)
    usage: UsageMeter = field(default_factory=UsageMeter)
    load: float = 0.0
    """As it was reported last."""
    ended_at: float | None = None

    @property
    def state(self) -> str:
        return "FAILED" if self.handle is None else str(self.handle.status.state.value)

    @property
    def _workers(self) -> tuple[Any, ...]:
        return () if self.handle is None else tuple(self.handle.status.workers)

    def used(self, sources: tuple[SourceCounters, ...]) -> Usage:
        """Return what its workers have used. A handle is measured if it is named as a source of the
        description is.
        """
        workers = self._workers
        read = {
            port[0].sender: sum(one.counters.operators.get(name, {}).get("bytes_in", 0) for one in workers)
            for name, handle in self.inputs.items()
            if (port := self.context.ports.get(handle))
        }
        return Usage(sum(one.counters.busy_s for one in workers), read | bytes_of(sources))

    def counters(self) -> tuple[SourceCounters, ...]:
        """Return what its merged sources count."""
        nodes = {port[0].region: node for node, port in self.context.ports.items()}
        return tuple(
            SourceCounters(nodes[source.region], found)
            for name, source in sorted(self.merged.items())
            for worker in self._workers
            if "mark_us" in (found := worker.counters.operators.get(name, {})) and source.region in nodes
        )


async def run_site(
    description: Description,
    site: str,
    *,
    token: bytes = b"",
    start: StartRegion = run_local,
    changed: Callable[[dict[str, str]], None] = lambda _: None,
) -> None:
    """Run the replicas of a site until cancelled. token: of the entry store and of the site's store. changed:
    called with region -> state when that has changed.

    Raises GraphRefusedError if the site has no store, and what opening the entry store raises. A replica that
    cannot be started is reported as FAILED, and tried again every 30 s.
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
        self._regions: dict[str, _Region] = {}
        self._deployed = Deployed()
        self._shown: dict[str, str] | None = None
        self._report_now = trio.Event()
        self._reporters: dict[str, ReaderReporter] = {}
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
        wanted = contexts_at(self._description, self._deployed, self._site)
        todo = steps(wanted, {region: self._running(one) for region, one in self._regions.items()})
        stopped = [self._regions[region] for region in todo.stop]
        await self._stop(todo.stop)
        for one in stopped:
            await self._withdraw(one, wanted.get(one.context.replica.node))
        for region in todo.start:
            self._regions[region] = await self._started(wanted[region])

    def _running(self, one: _Region) -> StartedReplica:
        if one.ended_at is None and (one.handle is None or one.handle.status.state.is_end):
            one.ended_at = trio.current_time()
        ended_s = None if one.ended_at is None else trio.current_time() - one.ended_at
        return StartedReplica(one.context, one.state, ended_s)

    async def _started(self, context: ReplicaContext) -> _Region:
        region = context.replica.node
        try:
            graph = graph_of(self._description, context)
            await self._copy_checkpoint(context)
            workers = region_of(self._description, context).workers
            start = partial(
                self._start, graph, name=context.name, store=context.store, token=self._token, workers=workers
            )
            specs = graph.plan().specs
            merged = {name: one for name, one in specs.items() if isinstance(one, MergedLogSource)}
            inputs = {name: one.name for name, one in specs.items() if isinstance(one, InputSource)}
            return _Region(context, await trio.to_thread.run_sync(start), merged, inputs)
        except Exception:  # of the user's function, or of the region: others run
            logger.exception("region %s cannot be started", region)
            return _Region(context, None, {}, {})

    async def _copy_checkpoint(self, context: ReplicaContext) -> None:
        """Begin a new replica with the checkpoint that the deployment names, if one is named."""
        source = self._deployed.starts.get(str(context.replica))
        if source is None:
            return
        site = source.partition("@")[2]
        store = next((one.store for one in self._description.sites if one.name == site), None)
        if store is None:
            raise GraphRefusedError(
                f"{context.replica} starts with a checkpoint of {source}, whose site has no store",
                remedy="add `store` to the site",
            )
        directory = f"{context.application}.copies"
        if await copy_region(store, context.store, context.name, directory, token=self._token):
            logger.info("%s begins with a checkpoint of %s", context.replica, source)

    async def _stop(self, regions: tuple[str, ...]) -> None:
        """Stop regions, each with a last checkpoint, at the same time."""

        async def stop(one: _Region) -> None:
            if one.handle is not None:
                await trio.to_thread.run_sync(one.handle.stop)

        async with trio.open_nursery() as nursery:
            for region in regions:
                nursery.start_soon(stop, self._regions.pop(region))

    async def _withdraw(self, one: _Region, continues: ReplicaContext | None) -> None:
        """Withdraw from the logs that a replica reads no more: nothing is kept there for it."""
        ports = {} if continues is None else continues.ports
        left = {stream for port in ports.values() for stream in port}
        gone = {stream for port in one.context.ports.values() for stream in port} - left
        for name, source in one.merged.items():
            for stream in gone:
                if stream.region != source.region or stream.store is None:
                    continue
                place = ReplicaPlace(stream.sender.site, stream.store, source.region, source.sink)
                try:
                    await withdraw(place, one.context.name, name, one.context.store, token=self._token)
                except DosError as error:
                    logger.warning(
                        "%s reads the output of %s no more, and is still registered there: %s; remove it with"
                        " `dos output forget`, or its log is not trimmed",
                        one.context.replica,
                        stream.sender,
                        error,
                    )

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
            report = SiteReport(
                site=self._site,
                at_ms=now_ms(),
                number=self._deployed.number,
                regions={region: one.state for region, one in sorted(self._regions.items())},
                links=self._links.reports(trio.current_time()),
                other_load=self._other_load(),
            )
            try:
                await write_report(self._store, self._description.application, report, patience_s=REPORT_S)
            except DosError as error:
                logger.warning("the report of site %s was not written: %s", self._site, error)
            for one in [*self._regions.values()]:
                await self._report_reader(one)

    def _other_load(self) -> float | None:
        """Return the load of this machine without the regions; None if they run elsewhere."""
        if not self._runs_here:
            return None
        _, five_minutes, _ = os.getloadavg()
        return max(0.0, five_minutes - sum(one.load for one in self._regions.values()))

    async def _report_reader(self, one: _Region) -> None:
        sources = one.counters()
        load, rates = one.usage.add(trio.current_time(), one.used(sources))
        one.load = load or 0.0
        if one.handle is None or (not sources and load is None):
            return
        name = str(one.context.replica)
        if name not in self._reporters:
            self._reporters[name] = ReaderReporter(self._store, one.context.application, one.context.replica)
        mark, moved_s = passed_mark(sources)
        streams = one.meter.streams(sources, 1000 * now_ms())
        await self._reporters[name].write(streams, mark=mark, moved_s=moved_s, load=load, rates=rates)


def region_of(description: Description, context: ReplicaContext) -> ReplicatedRegion | FixedPlace:
    """Return the region of a replica, or the exit."""
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
    return graph
