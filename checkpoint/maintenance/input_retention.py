"""The retention of an input, for people: who reads it and how far, what nobody needs, and the changes that a
person makes. `core/consumers.py` decides; while a producer runs, it deletes automatically.
"""

import logging
from dataclasses import dataclass

from checkpoint.chains.consumer_register import change_register, read_register
from checkpoint.chains.input_log import InputLog, last_recorded
from checkpoint.chains.input_reading import InputHandle
from checkpoint.chains.manifest_reading import retained_cuts
from checkpoint.chains.trimming import RowsChain, TrimPlanner, segments_of
from checkpoint.coordinator.manifest_host import StoreHost
from checkpoint.core.consumers import (
    NOTHING,
    Register,
    RetentionRule,
    input_register,
    need_of,
    with_rule,
    without_consumer,
)
from checkpoint.core.inputs import INPUT_CHAIN, producer_directory
from checkpoint.errors import ConsumerRefusedError, NoAnswerError, NoInputError
from checkpoint.maintenance.trimming import UnneededObject, objects_below
from checkpoint.requests.client import RequestClient
from checkpoint.runtime import runtime, wall_time_ms
from dos_client import Store
from journal import inspect_chain

logger = logging.getLogger("dos.checkpoint")


@dataclass(frozen=True, slots=True)
class ProducerStatus:
    """The chain of a producer. begin, end: the logical offsets between which it is stored."""

    producer: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """A registered region. oldest, last: its oldest retained and its last checkpoint, 0 for none.

    read: producer -> the position in the last checkpoint. needs: producer -> the lowest position of all
    retained ones.
    """

    region: str
    sources: tuple[str, ...]
    since_ms: int
    oldest: int
    last: int
    read: dict[str, int]
    needs: dict[str, int]


@dataclass(frozen=True, slots=True)
class InputStatus:
    """The retention of an input."""

    rule: RetentionRule
    producers: tuple[ProducerStatus, ...]
    consumers: tuple[ConsumerStatus, ...]


class InputRetention:
    """The retention of one input."""

    def __init__(self, store: Store, application: str, handle: str) -> None:
        self._store = store
        self._application, self._handle = application, handle
        self._place = input_register(application, handle)

    async def status(self) -> InputStatus:
        """Return who reads the input, and how far. Claims nothing.

        Raises NoInputError, ManifestError, and what reading chains raises.
        """
        register = await read_register(self._store, self._place)
        names = await self._producers(register)
        producers = [await self._producer(name) for name in names]
        return InputStatus(
            register.rule or RetentionRule(),
            tuple(producers),
            tuple([await self._consumer(region, register, names) for region in sorted(register.consumers)]),
        )

    async def _producers(self, register: Register) -> list[str]:
        names = await InputHandle(self._store, self._application, self._handle).splits()
        if not names and not register.consumers and register.rule is None:
            prefix = f"{self._application}.in."
            directories = await self._store.list_directories(prefix)
            handles = {name.removeprefix(prefix).partition(".")[0] for name in directories}
            raise NoInputError(self._application, self._handle, sorted(handles))
        return names

    async def _producer(self, name: str) -> ProducerStatus:
        chain = await inspect_chain(self._store, self._chain_directory(name), INPUT_CHAIN, measured=False)
        if chain.end is None or not chain.segments:
            return ProducerStatus(name, 0, 0)
        return ProducerStatus(name, chain.segments[0].base, chain.end.size)

    async def _consumer(self, region: str, register: Register, producers: list[str]) -> ConsumerStatus:
        consumer = register.consumers[region]
        kept = await retained_cuts(self._store, region)
        return ConsumerStatus(
            region,
            consumer.sources,
            consumer.since_ms,
            kept[0].cut if kept else 0,
            kept[-1].cut if kept else 0,
            {name: need_of(kept[-1:], consumer.sources, name) for name in producers},
            {name: need_of(kept, consumer.sources, name) for name in producers},
        )

    def _chain_directory(self, producer: str) -> str:
        return producer_directory(self._application, self._handle, producer)

    async def set_rule(self, bytes_max: int | None, age_max_s: float | None) -> RetentionRule:
        """Set the limits; None: no limit. Returns when the quorum holds the rule."""
        who = f"{runtime().user_name()}@{runtime().host_name()}"
        rule = RetentionRule(bytes_max=bytes_max, age_max_s=age_max_s, set_by=who, set_ms=wall_time_ms())
        await change_register(StoreHost(self._store), self._place, lambda register: with_rule(register, rule))
        return rule

    async def forget(self, region: str, patience_s: float, *, apply: bool) -> None:
        """Remove a region that is gone for ever from the consumers; without `apply`, only check that it can
        be removed. What only that region needs is then deleted.

        Raises ConsumerRefusedError if it is not registered, or if a driver of it answers within `patience_s`
        seconds. Nothing was changed then.
        """
        without_consumer(await read_register(self._store, self._place), region)
        try:
            reply = await RequestClient(self._store, region).send("status", patience_s=patience_s)
        except NoAnswerError as silence:
            logger.info("%s", silence)
        else:
            raise ConsumerRefusedError(
                f"region {region!r} is running: {reply.answer.driver} answered, in incarnation"
                f" {reply.answer.incarnation}",
                remedy=f"stop it first: dos region stop URL {region}",
            )
        if apply:
            await change_register(
                StoreHost(self._store), self._place, lambda register: without_consumer(register, region)
            )

    async def unneeded(self) -> list[UnneededObject]:
        """Return the segments that nobody needs, as F members report them. Claims nothing. Raises as
        `status`.
        """
        planner = TrimPlanner(self._store, self._place)
        found = []
        for name in await self._producers(await read_register(self._store, self._place)):
            directory = self._chain_directory(name)
            chain = await inspect_chain(self._store, directory, INPUT_CHAIN, measured=False)
            if chain.end is None:
                continue
            last = await last_recorded(self._store, self._application, self._handle, name)
            segments = tuple(segments_of(chain))
            now = RowsChain(directory, INPUT_CHAIN, name, segments, chain.end.size, last.end)
            floor = (await planner.plan(now, wall_time_ms())).floor
            if floor != NOTHING:
                found += await objects_below(self._store, directory, {INPUT_CHAIN: floor})
        return found

    async def trim_stopped(self, unneeded: list[UnneededObject], wait_s: float) -> bool:
        """Become the producers of these objects for a moment, and delete what nobody needs. Return False if
        an available member has not deleted everything within `wait_s` seconds.

        Fences a producer that is running after all; what it had recorded remains. Raises what
        `InputLog.open` raises, except InputClosedError. If cancelled, a part is deleted.
        """
        prefix = self._chain_directory("x")[:-1]
        clean = True
        for directory in dict.fromkeys(one.directory for one in unneeded):
            log = await InputLog.open_even_if_closed(
                self._store, self._application, self._handle, directory.removeprefix(prefix)
            )
            async with log:
                clean &= await log.trim_completely(wait_s)
        return clean
