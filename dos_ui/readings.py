"""Readings of a store and its regions, for one screen or for many viewers of a page.

A reading is as old as `REGION_S` or `STORE_S` at most, and all viewers share it: ten open pages ask the
servers and the driver no more often than one. Nothing is read while nobody looks.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from math import inf
from typing import Any, Final

import trio

from checkpoint.chains.manifest_reading import ManifestView, read_manifest
from checkpoint.cli.listing import input_rows, region_rows
from checkpoint.requests.reading import RegionReader, RegionReading
from checkpoint.runtime import this_driver, wall_time_ms
from dos_client import Store, backoff_s, open_store
from dos_client.cli.status import status_json
from dos_client.membership.status import store_status
from dos_client.tasks import background_tasks
from dos_protocol.errors import DosError
from dos_ui.core.graph import graph_of
from dos_ui.core.pressure import pressure
from dos_ui.core.rates import RegionRates
from dos_ui.core.timeline import timeline

REGION_S: Final = 2.0
STORE_S: Final = 5.0
_PATIENCE_S: Final = 4.0
"""How long a driver has to answer before a reading says that none did."""

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

    async def run(self) -> None:
        """Open the store, again and again until that succeeds, and keep it open until cancelled."""
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

    async def lists(self) -> Reading:
        """Read the lists of regions and inputs. Raises DosError."""
        return await self._share("lists", STORE_S, self._read_lists)

    async def region(self, name: str) -> Reading:
        """Read a region: what `dos region status --json` prints, and its graph, rates, recent history and
        timeline. Raises DosError.
        """
        return await self._share(f"region {name}", REGION_S, lambda: self._read_region(name))

    async def _share(self, what: str, age_s: float, read: Callable[[], Awaitable[Reading]]) -> Reading:
        return await self._shared.setdefault(what, _Shared()).get(age_s, read)

    async def _read_store(self) -> Reading:
        return status_json(await store_status(self.servers, token=self.token, client="dos ui"))

    async def _read_lists(self) -> Reading:
        store = await self.opened()
        return {"regions": await region_rows(store), "inputs": await input_rows(store)}

    async def _read_region(self, name: str) -> Reading:
        if (report := self._local.get(name)) is not None:
            return await self._read_region_here(name, report)
        reader = self._readers.get(name) or RegionReader(await self.opened(), name)
        reading = await reader.read(patience_s=_PATIENCE_S)
        self._readers[name] = reader  # only now: the region exists
        return self._region_json(name, reading)

    async def _read_region_here(self, name: str, report: LocalStatus) -> Reading:
        """Read a region of this process. What the manifest has is left out while the store is unavailable."""
        try:
            store = await self.opened()
            with trio.fail_after(_PATIENCE_S):
                found = RegionReading(await read_manifest(store, name))
        except (DosError, trio.TooSlowError) as error:
            found = RegionReading(ManifestView(name, 0), silence=f"the manifest cannot be read: {error}")
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
            "graph": [] if view.last is None else graph_of(view.last.operators),
            "timeline": timeline(view.cuts),
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
        self._found: Reading | DosError = {}

    async def get(self, age_s: float, read: Callable[[], Awaitable[Reading]]) -> Reading:
        async with self._lock:
            if trio.current_time() - self._at >= age_s:
                try:
                    self._found = await read()
                except DosError as error:
                    self._found = error
                self._at = trio.current_time()
            if isinstance(self._found, DosError):
                raise self._found
            return self._found


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
