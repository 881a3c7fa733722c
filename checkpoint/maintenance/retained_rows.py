"""The two kinds of rows that have consumers: inputs, whose producers trim them, and output logs of regions.

This file knows where their chains are and who deletes them if nobody runs. `retention.py` does the rest.
"""

from typing import Protocol

from checkpoint import limits
from checkpoint.chains.consumer_register import settled_register
from checkpoint.chains.input_log import InputLog, last_recorded
from checkpoint.chains.input_reading import InputHandle
from checkpoint.chains.manifest_reading import read_manifest, retained_checkpoints
from checkpoint.chains.output_following import PublishedOutput, split_of
from checkpoint.chains.trimming import RowsChain, TrimPlanner, segments_of
from checkpoint.coordinator.manifest_host import StoreHost
from checkpoint.core.consumers import (
    INPUT_REGISTERS,
    OUTPUT_REGISTERS,
    Consumer,
    RegisterPlace,
    RetentionRule,
    input_register,
    output_register,
)
from checkpoint.core.inputs import INPUT_CHAIN, producer_directory
from checkpoint.core.lines import log_sizes
from checkpoint.core.outputs import output_chain
from checkpoint.core.region import worker_directory
from checkpoint.core.retention import floors_of
from checkpoint.errors import NoInputError, NoSinkError
from checkpoint.maintenance.stopped_region import hold_manifest
from checkpoint.runtime import wall_time_ms
from dos_client import Store
from journal import NO_FLOOR, ChainState, Floor, below, inspect_chain


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
        """Be the writer of these splits for a moment, and delete what nobody needs. Return False if an
        available member has not done so within `wait_s` seconds. Fences a writer that runs after all.
        """
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

    def __init__(self, store: Store, region: str, sink: str) -> None:
        self._store = store
        self.region, self.sink = region, sink
        self._output = PublishedOutput(store, region, sink)
        self.place = output_register(region, sink)
        self.chain = output_chain(sink)

    async def splits(self) -> list[str]:
        last = (await retained_checkpoints(self._store, self.region))[-1:]
        return [
            split_of(one)
            for checkpoint in last
            for one, part in checkpoint.outputs().items()
            if self.sink in part.sinks
        ]

    async def refuse_unknown(self) -> None:
        last = (await read_manifest(self._store, self.region)).last  # raises NoRegionError
        parts = last.outputs().values() if last is not None else ()
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


async def all_rows(store: Store) -> list[InputRows | OutputRows]:
    """Return every input, and every output log, that has a register of consumers. Raises what reading a
    manifest raises.
    """
    found: list[InputRows | OutputRows] = []
    for name in await store.list_directories():
        application, is_input, handle = name.rpartition(INPUT_REGISTERS)
        if is_input:
            found.append(InputRows(store, application, handle))
        elif name.endswith(OUTPUT_REGISTERS):
            region = name.removesuffix(OUTPUT_REGISTERS)
            last = (await retained_checkpoints(store, region))[-1:]
            sinks = {sink for checkpoint in last for logs in log_sizes(checkpoint).values() for sink in logs}
            found += [OutputRows(store, region, sink) for sink in sorted(sinks)]
    return found


async def read_by(store: Store, region: str) -> list[tuple[InputRows | OutputRows, Consumer]]:
    """Return every input and output log in whose register a region is, with its entry. Claims nothing, unless
    a process died while it changed a register. Raises what reading raises.
    """
    found = []
    for rows in await all_rows(store):
        consumer = (await settled_register(store, rows.place)).consumers.get(region)
        if consumer is not None:
            found.append((rows, consumer))
    return found
