"""The retention of an input or an output, for people: who reads it and how far, what nobody needs, and the
changes that a person makes. While a writer runs, it deletes automatically.
"""

import logging
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec

from checkpoint import limits
from checkpoint.chains.consumer_register import (
    RowsChain,
    TrimPlanner,
    change_register,
    read_output_of,
    segments_of,
    settled_register,
)
from checkpoint.chains.input_log import InputHandle, InputLog, last_recorded
from checkpoint.chains.manifest_log import StoreHost, read_manifest, retained_checkpoints
from checkpoint.chains.output_reading import PublishedOutput, split_of
from checkpoint.core.graph_change import stored_under
from checkpoint.core.records.consumers import (
    INPUT_REGISTERS,
    OUTPUT_REGISTERS,
    QUERY_PREFIX,
    Consumer,
    OutputOf,
    Register,
    RegisteredQuery,
    RegisterPlace,
    RetentionRule,
    input_register,
    need_of,
    output_register,
    query_need,
    still_read,
    with_rule,
    without_consumer,
)
from checkpoint.core.records.inputs import INPUT_CHAIN, producer_directory
from checkpoint.core.records.lines import log_sizes
from checkpoint.core.records.manifest import Checkpoint, floors_of
from checkpoint.core.records.outputs import output_chain
from checkpoint.core.region import worker_directory
from checkpoint.errors import ConsumerRefusedError, NoInputError, NoSinkError
from checkpoint.maintenance.garbage import UnneededObject, objects_below
from checkpoint.maintenance.stopped_region import hold_manifest
from checkpoint.requests.client import running_text
from checkpoint.runtime import runtime, wall_time_ms
from dos_client import Store
from dos_client.tasks import read_each
from journal import NO_FLOOR, ChainState, Floor, below, inspect_chain

logger = logging.getLogger("dos.checkpoint")


class RetainedRows(Protocol):
    """Rows in chains, one for each split. `split_word`: what a split is, for people."""

    place: RegisterPlace
    chain: str
    split_word: str
    default: RetentionRule

    async def splits(self) -> list[str]:
        """Return the splits, none if there are none."""
        ...

    async def refuse_unknown(self) -> None:
        """Raise the error that names what there is instead."""
        ...

    def directory(self, split: str) -> str:
        """Return the directory of a split's chain."""
        ...

    async def inspect(self, split: str) -> ChainState:
        """Return the committed chain of a split, from the lowest segment that is retained on."""
        ...

    async def last_end(self, split: str) -> int:
        """Return the position to which the writer may return."""
        ...

    async def released(self, split: str) -> Floor | None:
        """Return the floor below which the writer may delete; None if the writer decides that alone."""
        ...

    async def trim_stopped(self, splits: list[str], wait_s: float) -> bool:
        """As the writer of these splits, delete what nobody needs. Return False if a member is late."""
        ...


class InputRows:
    """The rows of an input."""

    chain = INPUT_CHAIN
    split_word = "producer"
    default = RetentionRule()

    def __init__(self, store: Store, application: str, handle: str) -> None:
        self._store = store
        self.application, self.handle = application, handle
        self.place = input_register(application, handle)

    async def splits(self) -> list[str]:
        return await InputHandle(self._store, self.application, self.handle).splits()

    async def refuse_unknown(self) -> None:
        prefix = f"{self.application}.in."
        names = await self._store.list_directories(prefix)
        handles = {name.removeprefix(prefix).partition(".")[0] for name in names}
        raise NoInputError(self.application, self.handle, sorted(handles))

    def directory(self, split: str) -> str:
        return producer_directory(self.application, self.handle, split)

    async def inspect(self, split: str) -> ChainState:
        return await inspect_chain(self._store, self.directory(split), INPUT_CHAIN, measured=False)

    async def last_end(self, split: str) -> int:
        return (await last_recorded(self._store, self.application, self.handle, split)).end

    async def released(self, split: str) -> Floor | None:
        del split
        return None

    async def trim_stopped(self, splits: list[str], wait_s: float) -> bool:
        clean = True
        for split in splits:
            log = await InputLog.open_even_if_closed(self._store, self.application, self.handle, split)
            async with log:
                clean &= await log.trim_completely(wait_s)
        return clean


class OutputRows:
    """The rows of an output log. The manifest of its region releases them, as it does state."""

    split_word = "log"
    default = RetentionRule(by_consumers=False)

    def __init__(self, store: Store, region: str, sink: str, uid: str = "") -> None:
        """uid: under which the log is stored (`Checkpoint.uids`); "": under the name of the sink."""
        self._store = store
        self._output = PublishedOutput(store, region, sink, uid=uid)
        uid = uid or sink
        self.region, self.sink, self._uid = region, sink, uid
        self.place = output_register(region, uid)
        self.chain = output_chain(uid)

    async def splits(self) -> list[str]:
        last = (await retained_checkpoints(self._store, self.region))[-1:]
        return [
            split_of(one)
            for checkpoint in last
            for one, part in checkpoint.outputs().items()
            if self._uid in part.sinks
        ]

    async def refuse_unknown(self) -> None:
        last = (await read_manifest(self._store, self.region)).last  # raises NoRegionError
        parts = last.by_name().outputs().values() if last is not None else ()
        raise NoSinkError(self.region, self.sink, sorted({sink for part in parts for sink in part.sinks}))

    def directory(self, split: str) -> str:
        return worker_directory(self.region, int(split[1:]))

    async def inspect(self, split: str) -> ChainState:
        proved = await self._output.position(split)
        floor = await self._output.begin(split)
        return await inspect_chain(self._store, self.directory(split), self.chain, proved=proved, floor=floor)

    async def last_end(self, split: str) -> int:
        at = await self._output.position(split)
        return 0 if at is None else at.size

    async def released(self, split: str) -> Floor | None:
        kept = await retained_checkpoints(self._store, self.region)
        return floors_of(kept, int(split[1:])).get(self.chain, NO_FLOOR)

    async def trim_stopped(self, splits: list[str], wait_s: float) -> bool:
        clean = True
        host = StoreHost(self._store)
        async with hold_manifest(host, self.region) as (_, opened, _):
            for split in splits:
                worker = int(split[1:])
                released = floors_of(opened.kept, worker).get(self.chain, NO_FLOOR)
                needed = await self._needed(split)  # after the release, which the held manifest proves
                directory = self.directory(split)
                claim = await host.claim(directory, opened.incarnation, limits.claim_patience_s)
                if claim is None:
                    clean = False
                    continue
                try:
                    claim.collect(below({self.chain: min(released, needed)}))
                    clean &= await claim.wait_collected(wait_s)
                finally:
                    await claim.aclose()
        return clean

    async def _needed(self, split: str) -> Floor:
        state, end = await self.inspect(split), await self.last_end(split)
        segments = tuple(segments_of(state))
        now = RowsChain(self.directory(split), self.chain, split, segments, end, end)
        return (await TrimPlanner(self._store, self.place, self.default).plan(now, wall_time_ms())).floor


async def output_rows(store: Store, region: str, sink: str) -> OutputRows:
    """Return the rows of an output log by the name of its sink. Raises ManifestError, and what reading
    raises.
    """
    last = (await retained_checkpoints(store, region))[-1:]
    return OutputRows(store, region, sink, (last[0].log_of(sink) if last else None) or sink)


async def all_rows(store: Store) -> list[InputRows | OutputRows]:
    """Return every input and output log with a register of consumers. Raises what reading raises."""

    async def rows_of(name: str) -> list[InputRows | OutputRows]:
        application, is_input, handle = name.rpartition(INPUT_REGISTERS)
        if is_input:
            return [InputRows(store, application, handle)]
        region = name.removesuffix(OUTPUT_REGISTERS)
        found: list[InputRows | OutputRows] = []
        for checkpoint in (await retained_checkpoints(store, region))[-1:]:
            logs = {uid for logs in log_sizes(checkpoint).values() for uid in logs}
            stored = stored_under(checkpoint.operators, checkpoint.uids)
            ended = checkpoint.ended.items()
            names = {uid: log.sink for uid, log in ended if log.sink not in stored}
            names |= {uid: name for name, uid in stored.items()}
            found += [OutputRows(store, region, names.get(uid, uid), uid) for uid in sorted(logs)]
        return found

    registers = [
        name
        for name in await store.list_directories()
        if INPUT_REGISTERS in name or name.endswith(OUTPUT_REGISTERS)
    ]
    return [rows for found in (await read_each(registers, rows_of)).values() for rows in found]


async def read_by(store: Store, region: str) -> list[tuple[InputRows | OutputRows, Consumer]]:
    """Return every input and output log that a region reads, with its entry. Raises what reading raises."""
    rows = {"/".join(one.place): one for one in await all_rows(store)}

    async def entry(name: str) -> Consumer | None:
        return (await settled_register(store, rows[name].place)).consumers.get(region)

    entries = await read_each(rows, entry)
    return [(one, consumer) for name, one in rows.items() if (consumer := entries[name]) is not None]


async def unread_bytes(store: Store, region: str, checkpoint: Checkpoint) -> dict[str, int]:
    """Return uid of a source -> the bytes of its inputs and logs in the store that the checkpoint has not
    read. Raises what reading raises.
    """
    found: dict[str, int] = {}
    for rows, consumer in await read_by(store, region):
        splits = (await Retention(store, rows).status()).splits
        for source in consumer.sources:
            read = [(one.end, need_of([checkpoint], [source], one.split)) for one in splits]
            ours = [end - at for end, at in read if at is not None]
            if ours or not read:
                found[source] = found.get(source, 0) + sum(ours)
    return found


@dataclass(frozen=True, slots=True)
class SplitStatus:
    """The chain of a split. begin, end: the logical offsets between which it is retained."""

    split: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """A registered region. oldest, last: its oldest retained and its last checkpoint, 0 for none. read,
    needs: split -> the position in the last one, and the lowest of all retained ones.
    """

    region: str
    sources: tuple[str, ...]
    since_ms: int
    oldest: int
    last: int
    read: dict[str, int]
    needs: dict[str, int]


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """A registered streaming query. published_ms: when it last published. read, needs: split -> the position
    published last, and from where on it needs the split.
    """

    name: str
    since_ms: int
    published_ms: int
    read: dict[str, int]
    needs: dict[str, int]


@dataclass(frozen=True, slots=True)
class RetentionStatus:
    """The retention of an input or an output. rule: as a person has set it; None: the default."""

    rule: RetentionRule | None
    splits: tuple[SplitStatus, ...]
    consumers: tuple[ConsumerStatus, ...]
    queries: tuple[QueryStatus, ...] = ()

    def needs(self, split: str) -> dict[str, int]:
        """Return consumer -> the position from which on it needs a split."""
        queries = {QUERY_PREFIX + one.name: one.needs[split] for one in self.queries}
        return {**{one.region: one.needs[split] for one in self.consumers}, **queries}


class TrimmedInput(NamedTuple):
    """Input that a checkpoint has not read and that is deleted: of a split, from `needs` to `begin`."""

    source: str
    split: str
    needs: int
    begin: int


class Retention:
    """The retention of one input or output."""

    def __init__(self, store: Store, rows: RetainedRows) -> None:
        self._store = store
        self._rows = rows

    async def status(self) -> RetentionStatus:
        """Return who reads it, and how far. Raises NoInputError or NoRegionError, ManifestError, and what
        reading raises.
        """
        register = await self._register()
        names = await self._splits(register)
        output = await read_output_of(self._store, self._rows.place)
        regions = [
            await self._consumer(region, register, names, output) for region in sorted(register.consumers)
        ]
        return RetentionStatus(
            register.rule,
            tuple([await self._split(name) for name in names]),
            tuple(one for one in regions if one.sources),
            tuple(_query(name, register.queries[name], names, output) for name in sorted(register.queries)),
        )

    async def _register(self) -> Register:
        return await settled_register(self._store, self._rows.place)

    async def _splits(self, register: Register) -> list[str]:
        names = await self._rows.splits()
        if not names and register == Register():
            await self._rows.refuse_unknown()
        return names

    async def trimmed(self, region: str, checkpoint: Checkpoint) -> list[TrimmedInput]:
        """Return what a restore of a region to this checkpoint would read here and that is deleted. Raises as
        `status`.
        """
        register = await self._register()
        consumer = register.consumers.get(region)
        if consumer is None:
            return []
        return [one for source in consumer.sources for one in await self.trimmed_of(source, checkpoint)]

    async def trimmed_of(self, source: str, checkpoint: Checkpoint | None) -> list[TrimmedInput]:
        """Return what a region would read here and that is deleted, at a checkpoint; None: at its begin."""
        found, output = [], await read_output_of(self._store, self._rows.place)
        for split in [await self._split(name) for name in await self._splits(await self._register())]:
            needs = 0 if checkpoint is None else need_of([checkpoint], [source], split.split, output)
            if needs is not None and needs < split.begin:
                found.append(TrimmedInput(source, split.split, needs, split.begin))
        return found

    async def _split(self, name: str) -> SplitStatus:
        chain = await self._rows.inspect(name)
        if chain.end is None or not chain.segments:
            return SplitStatus(name, 0, 0)
        return SplitStatus(name, chain.segments[0].base, chain.end.size)

    async def _consumer(
        self, region: str, register: Register, splits: list[str], output: OutputOf | None
    ) -> ConsumerStatus:
        consumer = register.consumers[region]
        kept = await retained_checkpoints(self._store, region)
        needs = {name: need_of(kept, consumer.sources, name, output, region=region) or 0 for name in splits}
        read = {name: need_of(kept[-1:], consumer.sources, name) for name in splits}
        return ConsumerStatus(
            region,
            still_read(kept, consumer.sources, region),
            consumer.since_ms,
            kept[0].number if kept else 0,
            kept[-1].number if kept else 0,
            {name: needs[name] if at is None else at for name, at in read.items()},
            needs,
        )

    async def set_rule(self, rule: RetentionRule | None) -> RetentionRule | None:
        """Set the rule; None: the default. Returns the rule, signed, when the quorum holds it."""
        if rule is not None:
            who = f"{runtime().user_name()}@{runtime().host_name()}"
            rule = msgspec.structs.replace(rule, set_by=who, set_ms=wall_time_ms())
        await change_register(
            StoreHost(self._store), self._rows.place, lambda register: with_rule(register, rule)
        )
        return rule

    async def forget(self, region: str, patience_s: float, *, apply: bool) -> None:
        """Remove a region, or `query:NAME`, from the consumers for ever; without `apply`, only check that it
        is possible.

        Raises ConsumerRefusedError, with nothing changed, if it is not registered, a driver answers within
        `patience_s` seconds, or the query published recently.
        """
        register = await self._register()
        without_consumer(register, region)
        if region.startswith(QUERY_PREFIX):
            _refuse_running(region, register.queries[region.removeprefix(QUERY_PREFIX)])
        else:
            if running := await running_text(self._store, region, patience_s):
                raise ConsumerRefusedError(running, remedy=f"stop it first: dos region stop URL {region}")
        if apply:
            await change_register(
                StoreHost(self._store), self._rows.place, lambda register: without_consumer(register, region)
            )

    async def unneeded(self) -> list[UnneededObject]:
        """Return the segments that nobody needs. Claims nothing. Raises as `status`."""
        planner = TrimPlanner(self._store, self._rows.place, self._rows.default)
        found = []
        for name in await self._splits(await self._register()):
            directory, chain = self._rows.directory(name), await self._rows.inspect(name)
            if chain.end is None:
                continue
            last_end = await self._rows.last_end(name)
            segments = tuple(segments_of(chain))
            now = RowsChain(directory, self._rows.chain, name, segments, chain.end.size, last_end)
            floor = (await planner.plan(now, wall_time_ms())).floor
            released = await self._rows.released(name)
            if released is not None:
                floor = min(floor, released)
            if floor != NO_FLOOR:
                found += await objects_below(self._store, directory, {self._rows.chain: floor})
        return found

    async def trim_stopped(self, unneeded: list[UnneededObject], wait_s: float) -> bool:
        """As the writers of these objects, delete what nobody needs. Return False if a member is late.

        Fences a writer that runs after all; what it had recorded remains. Raises what taking its chain over
        raises.
        """
        directories = {one.directory for one in unneeded}
        splits = [name for name in await self._rows.splits() if self._rows.directory(name) in directories]
        return await self._rows.trim_stopped(splits, wait_s)


async def trimmed_since(store: Store, region: str, checkpoint: Checkpoint) -> list[TrimmedInput]:
    """Return the input in the store that a restore of this checkpoint would read and that a limit has deleted
    (`RetentionRule`). Claims nothing. Raises what reading raises.
    """
    return [
        one
        for rows in await all_rows(store)
        for one in await Retention(store, rows).trimmed(region, checkpoint)
    ]


def _query(name: str, query: RegisteredQuery, splits: list[str], output: OutputOf | None) -> QueryStatus:
    return QueryStatus(
        name,
        query.since_ms,
        query.published_ms,
        {split: query.read(split) for split in splits},
        {split: query_need(query, split, output) for split in splits},
    )


# Nothing can ask a query, and one that has had no input for a while looks like one that is stopped.
def _refuse_running(name: str, query: RegisteredQuery) -> None:
    """Raise ConsumerRefusedError if the query published a position recently."""
    ago_s = (wall_time_ms() - query.published_ms) / 1000
    if 0 <= ago_s < limits.query_running_s:
        raise ConsumerRefusedError(
            f"{name!r} published a position {ago_s:.0f} s ago: it seems to run",
            remedy=f"stop the query, and wait until {limits.query_running_s:.0f} s have passed",
        )
