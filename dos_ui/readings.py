"""Readings of a store and its regions, for one screen or for many viewers of a page.

A reading is as old as `REGION_S`, `STORE_S` or `TREES_S` at most, and all viewers share it: ten open pages
ask the servers and the driver no more often than one. Nothing is read while nobody looks. If the store
becomes unavailable, the last reading stays, with its time (`stale`).
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from math import inf
from typing import Any, Final

import trio

from checkpoint.chains.manifest_log import ManifestView, read_manifest
from checkpoint.cli.listing import input_rows, region_rows
from checkpoint.requests.client import RegionReader, RegionReading
from checkpoint.runtime import this_driver, wall_time_ms
from dos_client import QuorumUnavailableError, Store, StoreNotReadyError, backoff_s, open_store
from dos_client.cli.store import status_json
from dos_client.membership.status import store_status
from dos_client.tasks import background_tasks
from dos_gateway.status import tree_rows
from dos_protocol.errors import BrokenConnectionError, DosError
from dos_ui.core.shown import RegionRates, graph_of, pressure, shown_state, slow, timeline, unreadable_state

REGION_S: Final = 2.0
STORE_S: Final = 5.0
TREES_S: Final = 30.0
"""A reading of a tree reads its newest snapshot and all after it, up to some 70 MB."""
_PATIENCE_S: Final = 4.0
"""How long a driver has to answer before a reading says that none did."""
LISTS_WAIT_S: Final = 1.0
"""How long a list of regions waits for the drivers. Those that are silent are asked on."""
ASKED_S: Final = 60.0
"""More than a list of many silent regions takes: for a reading that is printed once."""
_ASKED_MAX: Final = 16
"""Regions of a list that are asked at the same time."""
_UNAVAILABLE: Final = (QuorumUnavailableError, BrokenConnectionError, StoreNotReadyError)

Reading = dict[str, Any]
LocalStatus = Callable[[], dict[str, Any]]
"""Returns the status of a region that runs in this process, as its driver would answer."""


class Readings:
    """The readings of one store. On one trio thread. `open_readings` makes it."""

    def __init__(self, servers: Sequence[str], token: bytes, local: dict[str, LocalStatus]) -> None:
        self.servers = tuple(servers)
        self.url = f"dos://{','.join(servers)}"
        self.token = token
        self._local = local
        self._opened: Store | None = None
        self._problem: DosError | None = None
        self._tried = trio.Event()
        self._shared: dict[str, _Shared] = {}
        self._readers: dict[str, RegionReader] = {}
        self._rates: dict[str, RegionRates] = {}
        self._views: dict[str, ManifestView] = {}
        """Region of this process -> its manifest, as it was read last."""
        self._asked: dict[str, trio.Event] = {}
        """Region of a list that is being asked -> its end."""
        self._states: dict[str, tuple[float, Reading]] = {}
        """Region -> when its state was read, and the state."""
        self._asking = trio.CapacityLimiter(_ASKED_MAX)
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Open the store, again and again until that succeeds, and keep it open until cancelled."""
        async with background_tasks() as self._nursery:
            await self._keep_open()

    async def _keep_open(self) -> None:
        attempt = 0
        while True:
            attempt += 1
            try:
                async with open_store(self.url, token=self.token, client="dos ui") as self._opened:
                    self._tried.set()
                    await trio.sleep_forever()
            except DosError as error:
                self._opened, self._problem = None, error
                self._tried.set()
            await trio.sleep(backoff_s(attempt, 1.0))

    async def opened(self) -> Store:
        """Return the store. Raises the DosError that keeps it from being opened."""
        await self._tried.wait()
        if self._opened is None:
            assert self._problem is not None
            raise self._problem
        return self._opened

    async def store(self) -> Reading:
        """Read the store as `dos store status --json` prints it. Also without a quorum."""
        return await self._share("store", STORE_S, self._read_store)

    async def lists(self, wait_s: float = LISTS_WAIT_S) -> Reading:
        """Read the lists of regions and inputs. Raises DosError. `shown`: None if the driver of a region was
        not heard in `wait_s` seconds: the next lists have it.
        """
        found = await self._share("lists", STORE_S, self._read_lists)
        names = [one["region"] for one in found["regions"]]
        waits = [self._ask(name) for name in names if self._state_age(name) >= STORE_S]
        with trio.move_on_after(wait_s):
            for one in waits:
                await one.wait()
        states = {name: self._states[name][1] for name in names if name in self._states}
        return found | {"regions": [one | {"shown": states.get(one["region"])} for one in found["regions"]]}

    async def trees(self) -> Reading:
        """Read the trees of the store as `dos gateway status --json` prints each. Raises DosError."""
        return await self._share("trees", TREES_S, self._read_trees)

    def _state_age(self, region: str) -> float:
        return trio.current_time() - self._states[region][0] if region in self._states else inf

    def _ask(self, region: str) -> trio.Event:
        if (done := self._asked.get(region)) is None:
            assert self._nursery is not None, "the store was opened"
            done = self._asked[region] = trio.Event()
            self._nursery.start_soon(self._read_state, region, done)
        return done

    async def _read_state(self, region: str, done: trio.Event) -> None:
        try:
            async with self._asking:
                shown = (await self.region(region))["shown"]
        except DosError as error:
            shown = unreadable_state(str(error))
        self._states[region] = trio.current_time(), shown
        del self._asked[region]
        done.set()

    async def region(self, name: str) -> Reading:
        """Read what `dos region status --json` prints, and more. Raises DosError."""
        found = await self._share(f"region {name}", REGION_S, lambda: self._read_region(name))
        return found | {"shown": shown_state(found)}

    async def _share(self, what: str, age_s: float, read: Callable[[], Awaitable[Reading]]) -> Reading:
        return await self._shared.setdefault(what, _Shared()).get(age_s, read)

    async def _read_store(self) -> Reading:
        return status_json(await store_status(self.servers, token=self.token, client="dos ui"))

    async def _read_lists(self) -> Reading:
        store = await self.opened()
        return {"regions": await region_rows(store), "inputs": await input_rows(store)}

    async def _read_trees(self) -> Reading:
        return {"trees": await tree_rows(await self.opened())}

    async def _read_region(self, name: str) -> Reading:
        if (report := self._local.get(name)) is not None:
            return await self._read_region_here(name, report)
        reader = self._readers.get(name) or RegionReader(await self.opened(), name)
        reading = await reader.read(patience_s=_PATIENCE_S)
        self._readers[name] = reader  # only now: the region exists
        return self._region_json(name, reading)

    async def _read_region_here(self, name: str, report: LocalStatus) -> Reading:
        # What the manifest has is of the last reading while the store is unavailable.
        try:
            store = await self.opened()
            with trio.fail_after(_PATIENCE_S):
                found = RegionReading(await read_manifest(store, name))
            self._views[name] = found.view
        except (DosError, trio.TooSlowError) as error:
            view = self._views.get(name) or ManifestView(name, 0)
            found = RegionReading(view, silence=f"the manifest cannot be read: {error}")
        return self._region_json(name, found, report())

    def _region_json(self, name: str, reading: RegionReading, local: dict[str, Any] | None = None) -> Reading:
        found, view = reading.as_json(), reading.view
        if local is not None:
            found |= {"answered": True, "driver": this_driver(), "status": local}
        status = found["status"] if found["answered"] else None
        rates = self._rates.setdefault(name, RegionRates())
        now = rates.update(status, trio.current_time(), wall_time_ms())
        return found | {
            "timeMs": wall_time_ms(),
            "slow": slow(status),
            "graph": [] if view.last is None else graph_of(view.last.operators),
            "timeline": timeline(view.checkpoints),
            "retained": list(view.retained),
            "savepoints": {} if view.last is None else dict(view.last.savepoints),
            "rates": now,
            "pressure": pressure(status, now),
            "history": list(rates.history),
        }


class _Shared:
    """One reading that several viewers share."""

    def __init__(self) -> None:
        self._lock = trio.Lock()
        self._at = -inf
        self._found: Reading = {}
        self._found_ms = 0
        self._problem: DosError | None = None

    async def get(self, age_s: float, read: Callable[[], Awaitable[Reading]]) -> Reading:
        """Return the reading; `stale` is None, or since when the store is unavailable and why."""
        async with self._lock:
            if trio.current_time() - self._at >= age_s:
                try:
                    self._found, self._found_ms, self._problem = await read(), wall_time_ms(), None
                except DosError as error:
                    self._problem = error
                self._at = trio.current_time()
            if self._problem is None:
                return self._found | {"stale": None}
            if not self._found or not isinstance(self._problem, _UNAVAILABLE):
                raise self._problem
            return self._found | {"stale": {"timeMs": self._found_ms, "problem": str(self._problem)}}


@asynccontextmanager
async def open_readings(
    servers: Sequence[str], *, token: bytes = b"", local: dict[str, LocalStatus] | None = None
) -> AsyncGenerator[Readings]:
    """Read the store of these servers during the block. It need not be usable at the beginning.

    local: the regions that run in this process, whose status needs no request.
    """
    readings = Readings(servers, token, local or {})
    async with background_tasks() as nursery:
        nursery.start_soon(readings.run)
        yield readings
