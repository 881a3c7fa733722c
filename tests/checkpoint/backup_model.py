"""A region on a store in memory whose chains the test writes, and a target of backups that fails on request.

The servers, the store, the chains, the manifest and the registers are real. Only the workers are missing:
their part is to append to the chains and to commit checkpoints.
"""

import hashlib
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing, asynccontextmanager

import msgspec
import trio

from checkpoint.chains.consumer_register import register_consumer
from checkpoint.chains.input_log import InputLog
from checkpoint.chains.manifest_log import StoreHost, read_manifest
from checkpoint.core.coordination.vocabulary import AppendCheckpoint
from checkpoint.core.records.backups import PIECE_PREFIX
from checkpoint.core.records.consumers import input_register
from checkpoint.core.records.layout import even_layout
from checkpoint.core.records.manifest import SplitPosition, WorkerCheckpoint
from checkpoint.core.region import worker_directory
from checkpoint.errors import BackupDamagedError
from checkpoint.maintenance.backup import back_up, backups_of
from checkpoint.maintenance.stopped_region import SavepointMaker, hold_manifest
from dos_client import randomness
from dos_protocol.digests import prefix_digest
from journal import ChainWriter, Op, Record, inspect_chain_at, parse_segment_name, read_records
from tests.checkpoint.manifest_samples import a_checkpoint

REGION = "orders"
APPLICATION, HANDLE, PRODUCER = "shop", "numbers", "p"
WORKER = worker_directory(REGION, 0)
INPUT = f"{APPLICATION}.in.{HANDLE}.{PRODUCER}"
CHAINS = ("state", "steps", "files-kept", "out-shown")


class BrokenError(Exception):
    """The process that makes or restores a backup ends here."""


class MemoryPlace:
    """A place in memory, to which several processes can write at the same time, as to a bucket.

    `test_backups.py` runs the same tests on this place and on the real ones.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def where(self, name: str) -> str:
        return f"memory/{name}"

    async def sizes(self, prefix: str) -> dict[str, int]:
        await trio.lowlevel.checkpoint()
        return {name: len(data) for name, data in self.objects.items() if name.startswith(prefix)}

    async def contents(self, names: Sequence[str]) -> AsyncGenerator[bytes]:
        for name in names:
            await trio.lowlevel.checkpoint()
            if name not in self.objects:
                raise BackupDamagedError(self.where(name), "there is no such object")
            yield self.objects[name]

    async def put(self, name: str, data: bytes, sha256: bytes) -> bool:
        await trio.lowlevel.checkpoint()
        assert hashlib.sha256(data).digest() == sha256
        return self.objects.setdefault(name, data) == data

    async def delete(self, names: Collection[str]) -> bool:
        await trio.lowlevel.checkpoint()
        for name in names:
            self.objects.pop(name, None)
        return True


class Failing:
    """Counts calls, and ends the process before the one numbered `fails_at`. So each call but the last one is
    also the last that had an effect.
    """

    def __init__(self, fails_at: int) -> None:
        self.fails_at, self.calls = fails_at, 0

    def call(self) -> None:
        self.calls += 1
        if self.calls == self.fails_at:
            raise BrokenError(f"before call {self.calls}")


class FailingPlace:
    """A place that fails as `Failing` says."""

    def __init__(self, place, failing: Failing) -> None:
        self._place, self._failing = place, failing

    def where(self, name: str) -> str:
        return self._place.where(name)

    async def sizes(self, prefix: str) -> dict[str, int]:
        return await self._call(self._place.sizes, prefix)

    async def put(self, name: str, data: bytes, sha256: bytes) -> bool:
        return await self._call(self._place.put, name, data, sha256)

    async def delete(self, names: Collection[str]) -> bool:
        for name in names:  # one after the other, so that it can fail in between
            await self._call(self._place.delete, [name])
        return True

    async def contents(self, names: Sequence[str]) -> AsyncGenerator[bytes]:
        async with aclosing(self._place.contents(names)) as contents:
            async for data in contents:
                self._failing.call()
                yield data

    async def _call(self, call, *arguments):
        self._failing.call()
        return await call(*arguments)


class RememberedSavepoints:
    """Savepoints that no record of the manifest has: for runs whose number makes a manifest long."""

    def __init__(self, region: "BackedUpRegion") -> None:
        self._region = region
        self.held: set[str] = set()

    async def make(self, name: str, *, why: str, checkpoint: int = 0, fork: str = "") -> int:
        del why, checkpoint, fork
        self.held.add(name)
        await trio.lowlevel.checkpoint()
        return self._region.last.number

    async def drop(self, name: str) -> None:
        await trio.lowlevel.checkpoint()
        self.held.remove(name)


class FailingStore:
    """A store whose claims fail as `Failing` says."""

    def __init__(self, store, failing: Failing) -> None:
        self._store, self._failing = store, failing

    def __getattr__(self, name):
        found = getattr(self._store, name)
        if name != "claim":
            return found

        async def claim(*arguments):
            self._failing.call()
            return await found(*arguments)

        return claim


class BackedUpRegion:
    """The region: `advance` appends to all of its chains and commits a checkpoint."""

    def __init__(self, store) -> None:
        self.store = store
        self.number, self.step = 0, 0
        self.writers: dict[str, ChainWriter] = {}
        self.last = None

    @classmethod
    @asynccontextmanager
    async def open(cls, store):
        model = cls(store)
        async with (
            await store.claim(WORKER, 1, randomness.fresh_id()) as claim,
            await InputLog.open(store, APPLICATION, HANDLE, PRODUCER) as model.input,
        ):
            for chain in CHAINS:
                model.writers[chain] = await ChainWriter.open(claim, chain, None, store.record.generation)
            await register_consumer(store, input_register(APPLICATION, HANDLE), REGION, "taken")
            await model.advance()
            yield model

    async def advance(self, rolls: bool = False, size: int = 500) -> None:
        """Append to all chains, commit a checkpoint, and append more, which the checkpoint does not have."""
        ends = {}
        for chain, writer in self.writers.items():
            if rolls:
                await writer.roll()
            self._append(writer, size)
            ends[chain] = writer.end
            await writer.wait_synced(writer.end)
            self._append(writer, 99)
        await self.send()
        part = WorkerCheckpoint(
            state=ends["state"],
            steps=ends["steps"],
            directories={"kept": ends["files-kept"]},
            sources={"taken": {PRODUCER: SplitPosition(self.input.last_end, self.input._digest)}},
            sinks={"shown": msgspec.to_builtins(ends["out-shown"]), "file": {"size": 7}},
            floors={chain: writer.floor for chain, writer in self.writers.items()},
        )
        await self.send()
        self.step += 10
        async with hold_manifest(StoreHost(self.store), REGION) as held:
            kept = held.opened.kept
            last = kept[-1] if kept else None
            number = last.number + 1 if last else 1
            pinned = last.savepoints if last else {}
            retained = [one.number for one in kept[-1:]] + [number]
            checkpoint = a_checkpoint(
                number=number,
                step=self.step,
                incarnation=held.opened.incarnation,
                workers={0: part},
                layout=even_layout(1),
                parent=last.number if last else 0,
                savepoints=pinned,
                retained=tuple(sorted({*retained, *pinned.values()})),
            )
            await held.log.append(AppendCheckpoint(checkpoint))
        self.last = checkpoint

    def _append(self, writer: ChainWriter, size: int) -> None:
        self.number += 1
        data = self.number.to_bytes(4) * (size // 4)
        writer.append(Record(Op.WRITE, ints=(0,), strings=(b"path", data)))

    async def send(self) -> None:
        number = self.input.last + 1
        await self.input.append([(1, b"row %d" % number * 20)], number=number)
        await self.input.recorded(number)

    async def back_up(self, place, savepoints=None, **options):
        savepoints = savepoints or SavepointMaker(self.store, REGION, stopped=True)
        return await back_up(self.store, REGION, place, savepoints, **options)

    async def savepoints(self) -> dict[str, int]:
        last = (await read_manifest(self.store, REGION)).last
        return last.savepoints


async def whole(place) -> list[int]:
    """The backups of a place, after checking each byte of each of them."""
    found = await backups_of(place)
    for record in found:
        for chain in record.chains:
            for segment in chain.segments:
                async with aclosing(place.contents([one.name for one in segment.pieces])) as contents:
                    parts = [data async for data in contents]
                shas = [hashlib.sha256(part).hexdigest() for part in parts]
                assert shas == [piece.sha256 for piece in segment.pieces]
                data = b"".join(parts)
                assert (len(data), prefix_digest(data)) == (segment.length, segment.digest)
    return [record.number for record in found]


async def pieces_there(place) -> set[str]:
    return set(await place.sizes(PIECE_PREFIX))


async def records_at(store, checkpoint) -> dict[str, list[bytes]]:
    """Chain -> what a restore of the checkpoint reads of it."""
    part = checkpoint.workers[0]
    positions = {"state": part.state, "steps": part.steps, "files-kept": part.directories["kept"]}
    positions["out-shown"] = msgspec.convert(part.sinks["shown"], type(part.state))
    found = {}
    for chain, at in positions.items():
        state = await inspect_chain_at(store, WORKER, chain, at, floor=part.floors[chain][1])
        async with aclosing(read_records(store, state, directory=WORKER)) as records:
            found[chain] = [record.strings[1] async for _, record in records if record.op is Op.WRITE]
        assert state.end == at
    return found


def lowest_of(segments) -> tuple[int, int]:
    parsed = parse_segment_name(segments[0].name)
    assert parsed is not None
    return parsed.order


def run(function, *arguments):
    """In a trio run whose clock jumps ahead."""
    return trio.run(function, *arguments, clock=trio.testing.MockClock(autojump_threshold=0))
