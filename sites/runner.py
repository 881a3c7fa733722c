"""The process at one site: starts and stops the replicas that the deployment places there.

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_site, description, "wisc")

It reads the deployment from the entry store every second, and reports every 30 s. While the entry store does
not answer, everything continues as it was. When it is cancelled, it stops its regions, each with a last
checkpoint.

A region runs as local processes, or as `start` runs it. On Spark, in the driver:

    run_site(description, "wisc", start=partial(dos.run, spark))

Only this file, `replica.py` and `beginning.py` import `dataflow` and `checkpoint`.
"""

import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import trio

from checkpoint import Register, RegisterPlace, input_register, output_register, with_query
from checkpoint.chains.consumer_register import change_register, read_register, settled_register
from checkpoint.chains.manifest_log import StoreHost
from dataflow.local import run_local
from dataflow.sinks.log import LogSink
from dataflow.sources.stored import MergedLogSource, handle_of
from dos_client import Store, open_store
from dos_protocol.errors import DosError
from sites.beginning import prepare
from sites.core.deployed import Deployed
from sites.core.description import Description
from sites.core.measuring import LinkMeter
from sites.core.observed import REPORT_S, SiteReport
from sites.core.site_work import ReplicaContext, StartedReplica, contexts_at, gone_readers, steps
from sites.errors import GraphRefusedError
from sites.probing import probe_links
from sites.records import PATIENCE_S, ReaderReporter, now_ms, read_deployed, read_reports, write_report
from sites.replica import RunningReplica, StartRegion, graph_of, region_of

logger: Final = logging.getLogger("dos.sites")
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
        """Find out whether a region has failed because what it reads differs, which its merged sources have
        noted. Until that is known, it is not started again.
        """
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
        """Let a replica begin where it can, and state before which store it is in."""
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
        """Stop regions, each with a last checkpoint, at the same time."""

        async def stop(one: RunningReplica) -> None:
            if one.handle is not None:
                await trio.to_thread.run_sync(one.handle.stop)

        async with trio.open_nursery() as nursery:
            for region in regions:
                nursery.start_soon(stop, self._regions.pop(region))

    async def _forget_readers(self, one: RunningReplica) -> None:
        """Remove the readers that read a replica no more from the registers of its output, or what they have
        not read would be kept for ever.
        """
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
        """Return the wall clock, or a time that has passed if it is behind: others compare it with theirs."""
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
        """Return the load of this machine without the regions; None if they run elsewhere."""
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
