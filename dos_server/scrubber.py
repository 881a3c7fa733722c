"""The clock and the thread of the scrub: performs the effects of `core.scrub`.

It reads one part at a time, in a thread of its own, so that clients never queue after it for a thread.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import trio

from dos_server.core import scrub_reads
from dos_server.core import vocabulary as v
from dos_server.ports import Ports
from dos_server.storage import Storage

logger = logging.getLogger("dos.server")


class Scrubber:
    """The scrub of one server. `feed` passes an event to the core; `is_busy`: the disk works for clients."""

    def __init__(
        self, storage: Storage, feed: Callable[[v.Event], None], is_busy: Callable[[], bool], ports: Ports
    ) -> None:
        self._storage = storage
        self._ports = ports
        self._feed = feed
        self._is_busy = is_busy
        self._limiter = trio.CapacityLimiter(1)
        self._nursery: trio.Nursery | None = None
        self._pause = trio.CancelScope()

    def begin(self, nursery: trio.Nursery, first_seconds: float) -> None:
        """Schedule the first read after so many seconds. Everything runs in the nursery."""
        self._nursery = nursery
        nursery.start_soon(self._wait, first_seconds)

    @property
    def performs(self) -> dict[type[Any], Callable[[Any], None]]:
        """The methods that perform the scrub's effects, by effect type."""
        return {
            scrub_reads.ScrubRead: self._read,
            scrub_reads.ScrubLater: self._later,
            scrub_reads.ScrubNow: lambda _: self._pause.cancel(),
            scrub_reads.LogNotice: self._log,
        }

    def _later(self, effect: scrub_reads.ScrubLater) -> None:
        assert self._nursery is not None, "not serving"
        self._nursery.start_soon(self._wait, effect.seconds)

    async def _wait(self, seconds: float) -> None:
        with trio.CancelScope() as self._pause:
            await trio.sleep(seconds)
        self._feed(scrub_reads.ScrubDue(self._is_busy()))

    def _read(self, effect: scrub_reads.ScrubRead) -> None:
        assert self._nursery is not None, "not serving"
        self._nursery.start_soon(self._read_in_thread, effect)

    async def _read_in_thread(self, effect: scrub_reads.ScrubRead) -> None:
        read = partial(self._storage.scrub_read, effect, self._ports.monotonic)
        result = await self._ports.in_thread(read, self._limiter)
        self._feed(result)

    def _log(self, effect: scrub_reads.LogNotice) -> None:
        logger.log(logging.WARNING if effect.bad else logging.INFO, "%s", effect.text)
