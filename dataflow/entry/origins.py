"""The origins that one entry point serves: their claims, their marks, and those that nobody else marks.

`checkpoint/core/records/inputs.py` decides; this file reads the store and performs. Rows come from
`serving.py`.

1. Claiming an origin fences the entry point that served it. What was recorded is found in its chain, and time
   continues above it.
2. A task of each origin marks it, also without rows, as long as this clock is good.
3. Another task reads the list of origins, and claims those whose chains do not grow.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import trio

from checkpoint import (
    INPUT_CHAIN,
    AttendedOrigins,
    ClockCheck,
    EntryOrigins,
    EntrySettings,
    OriginMark,
    OriginTime,
    checked_settings,
    floor_of_new_origin,
    input_register,
    may_stamp,
    producer_directory,
    with_entry,
)
from checkpoint import limits as checkpoint_limits
from checkpoint.chains.consumer_register import change_register, settled_register
from checkpoint.chains.input_log import InputLog, last_recorded
from checkpoint.chains.manifest_log import StoreHost
from checkpoint.errors import InputClosedError
from dataflow import limits
from dos_client import Store, randomness
from dos_protocol.errors import ClosedError, DosError, FencedError
from journal import size_seen

logger = logging.getLogger("dos.dataflow")


class EntryClock:
    """This machine's clock, and how far it is from those of the peers.

    wall_ns: nanoseconds since 1970.
    """

    def __init__(self, peers: Sequence[str], error_max_us: int, wall_ns: Callable[[], int]) -> None:
        self.check = ClockCheck(peers, error_max_us)
        self._wall_ns = wall_ns

    def now_us(self) -> int:
        return self._wall_ns() // 1000

    def is_good(self) -> bool:
        """Return whether this clock may give times."""
        return self.check.is_good(self.now_us(), trio.current_time())

    def errors(self) -> dict[str, tuple[int, int]]:
        """Return peer -> (offset, bound) in microseconds."""
        found = self.check.errors(self.now_us(), trio.current_time())
        return {peer: (error.offset_us, error.bound_us) for peer, error in found.items()}


class ServedOrigin:
    """One origin that is claimed here. `lock` is held from giving a time, or a mark, to its place in the
    chain, so that the chain has them in their order.
    """

    def __init__(self, name: str, log: InputLog, time: OriginTime) -> None:
        self.name, self.log, self.time = name, log, time
        self.lock = trio.Lock()
        self.producer: trio.CancelScope | None = None
        """Its producer's connection, if there is one."""
        self.older: dict[int, OriginMark] = {}
        """For a new origin: number -> a committed mark of an older origin that knows the new one."""


class Origins:
    """The origins of a handle, and those of them that are served here. Create it with `open`."""

    def __init__(
        self,
        store: Store,
        application: str,
        handle: str,
        clock: EntryClock,
        listed: EntryOrigins,
        nursery: trio.Nursery,
    ) -> None:
        self._store, self._application, self._handle = store, application, handle
        self._clock = clock
        self._nursery = nursery
        self._listed = listed
        self._watch = AttendedOrigins()
        self._claiming: dict[str, trio.Lock] = {}
        self._marks: dict[str, int] = {}
        """Origin -> its newest mark, as far as this entry point has heard."""
        self._read_at: dict[str, float] = {}
        self.served: dict[str, ServedOrigin] = {}

    @classmethod
    async def open(
        cls,
        store: Store,
        application: str,
        handle: str,
        clock: EntryClock,
        settings: EntrySettings | None,
        nursery: trio.Nursery,
    ) -> "Origins":
        """Record the settings of a new handle, or check them. Raises EntryRefusedError if they differ."""
        place = input_register(application, handle)
        known = (await settled_register(store, place)).entry
        listed = checked_settings(known, settings)
        if known is None:
            changed = await change_register(
                StoreHost(store),
                place,
                lambda register: with_entry(register, checked_settings(register.entry, settings)),
            )
            assert changed.entry is not None
            listed = changed.entry
        return cls(store, application, handle, clock, listed, nursery)

    @property
    def settings(self) -> EntrySettings:
        return self._listed.settings

    # --- claims -------------------------------------------------------------------------------------------

    async def claim(self, name: str, *, session: bytes = b"") -> ServedOrigin:
        """Serve an origin from now on, and mark it. session: of a producer program that opens the name, which
        is recorded with the mark.

        Raises BadNameError, EntryRefusedError, InputClosedError, NotEnoughAnswersError (a new origin needs
        every member of the entry store). Waits without a quorum.
        """
        async with self._claiming.setdefault(name, trio.Lock()):
            await self.drop(name)
            log = await InputLog.open(self._store, self._application, self._handle, name)
            if not self._listed.number(name):
                # After its chain is there, which needs every member: the marks of all others wait for a
                # registered origin, which can be served with a majority then.
                await self._register(name, log)
            if session:
                log.last_mark = session + log.last_mark[len(session) :]
            time = OriginTime(self.settings, self._listed.number(name), log.origin_mark, log.last_time)
            served = self.served[name] = ServedOrigin(name, log, time)
            try:
                if time.begun:
                    await self.mark(served, restated=True)
            except BaseException:
                await self.drop(name)
                raise
            self._nursery.start_soon(self._keep_marked, served)
            return served

    async def _register(self, name: str, log: InputLog) -> None:
        try:
            changed = await change_register(
                StoreHost(self._store),
                input_register(self._application, self._handle),
                lambda register: with_entry(
                    register, checked_settings(register.entry, self.settings).with_origin(name)
                ),
            )
        except BaseException:
            with trio.CancelScope(shield=True):
                await log.aclose()
            raise
        assert changed.entry is not None
        self._listed = changed.entry

    async def drop(self, name: str) -> None:
        """Serve an origin no more: its producer moves, and another entry point claims it."""
        served = self.served.pop(name, None)
        if served is not None:
            if served.producer is not None:
                served.producer.cancel()
            with trio.CancelScope(shield=True):
                await served.log.aclose()

    async def drop_all(self) -> None:
        """Serve nothing more."""
        for name in list(self.served):
            await self.drop(name)

    # --- marks --------------------------------------------------------------------------------------------

    async def mark(self, served: ServedOrigin, *, restated: bool = False) -> None:
        """Append the mark that is due, if one is. Raises FencedError, ClosedError."""
        if not self._clock.is_good():
            return
        async with served.lock:
            if not served.time.begun:
                floor = await self._floor(served)
                if floor is None:
                    return
                served.time.begin(floor)
                restated = True
            now = self._clock.now_us()
            mark = served.time.next_mark(now, version=self._listed.version, restated=restated)
            if mark is not None:
                await served.log.append_mark(mark)
                self.heard({served.name: mark.mark})

    async def _floor(self, new: ServedOrigin) -> int | None:
        """Return the time above which a new origin begins, from what is committed of the older ones."""
        for number, name in enumerate(self._listed.origins[: new.time.number - 1], 1):
            if number not in new.older:
                mark = (await last_recorded(self._store, self._application, self._handle, name)).newest_mark
                if mark is not None and mark.version >= new.time.number:
                    new.older[number] = mark
        return floor_of_new_origin(new.time.number, new.older)

    async def _keep_marked(self, served: ServedOrigin) -> None:
        try:
            while self.served.get(served.name) is served:
                try:
                    await self.mark(served)
                except (FencedError, ClosedError):
                    raise
                except DosError as error:  # an older origin cannot be read now
                    logger.info("origin %s waits: %s", served.name, error)
                await trio.sleep(self._pause_s(served))
        except (FencedError, ClosedError):
            logger.info("origin %s is served elsewhere", served.name)
            if self.served.get(served.name) is served:
                await self.drop(served.name)

    def _pause_s(self, served: ServedOrigin) -> float:
        """Return the seconds until the next mark of an origin is due."""
        if not served.time.begun:
            return limits.entry_poll_s / 5
        every = self.settings.marks_every_us
        elapsed = (self._clock.now_us() - (self.settings.lateness_us or 0)) % every
        return min((every - elapsed) / 1e6 + 0.001, limits.entry_poll_s)

    def heard(self, marks: Mapping[str, int]) -> None:
        """Note marks that this entry point gave, or heard of."""
        for name, mark in marks.items():
            self._marks[name] = max(mark, self._marks.get(name, 0))

    def may_stamp(self, served: ServedOrigin) -> bool:
        """Return whether rows of an origin may get times now."""
        if not served.time.begun or not self._clock.is_good():
            return False
        known = {name: mark for name, mark in self._marks.items() if mark}
        return may_stamp(self._clock.now_us(), known, self._listed.origins)

    # --- unattended origins -------------------------------------------------------------------------------

    async def watch_all(self) -> None:
        """Read the list at intervals; claim origins that nobody marks. Raises InputClosedError."""
        while True:
            try:
                await self._watch_once()
            except InputClosedError:
                raise
            except DosError as error:  # too few members answer now
                logger.info("the origins of %s cannot be watched now: %s", self._handle, error)
            # Not all at once: of entry points that find the same origin, the first one marks it.
            await trio.sleep(limits.entry_poll_s * (0.5 + randomness.jitter()))

    async def _watch_once(self) -> None:
        entry = (await settled_register(self._store, input_register(self._application, self._handle))).entry
        if entry is not None and entry.version >= self._listed.version:
            self._listed = entry
        if not self._clock.is_good():
            await self.drop_all()  # their producers move, and other entry points mark them
            return
        for name in self._listed.origins:
            if name in self.served:
                self._watch.forget(name)
                continue
            directory = producer_directory(self._application, self._handle, name)
            size = await size_seen(self._store, directory, INPUT_CHAIN)
            self._watch.saw(name, size, trio.current_time())
            await self._read_mark(name)
        for name in self._watch.unattended(trio.current_time()):
            self._watch.forget(name)
            if name not in self.served:
                logger.info("origin %s is unattended and claimed", name)
                await self.claim(name)

    async def _read_mark(self, name: str) -> None:
        """Read the mark of an origin from the store, if no peer has reported it for long."""
        now_s, old = trio.current_time(), self._clock.now_us() - checkpoint_limits.entry_horizon_us // 2
        if self._marks.get(name, 0) < old and now_s >= self._read_at.get(name, now_s):
            self._read_at[name] = now_s + limits.entry_read_marks_s
            with suppress(DosError):
                line = await last_recorded(self._store, self._application, self._handle, name)
                self.heard({name: 0 if line.newest_mark is None else line.newest_mark.mark})
