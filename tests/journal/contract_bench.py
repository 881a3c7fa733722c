"""The stores on which the contract of chains is tested: in memory, on the local disk, and of real servers."""

import os
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dos_client.store import open_store
from journal import (
    ChainState,
    ChainWriter,
    LocalClaim,
    LocalStore,
    Op,
    Position,
    Record,
    inspect_chain,
    read_records,
    take_over,
)
from tests.journal.memory_store import MemoryStore


@dataclass
class Bench:
    """One directory of one store, real or not."""

    store: Any
    directory: str
    local: LocalClaim | None = None

    async def claim(self, epoch: int) -> Any:
        if isinstance(self.store, MemoryStore):
            return self.store.claim(epoch, directory=self.directory)
        if isinstance(self.store, LocalStore):
            return self.local_claim(epoch)
        return await self.store.claim(self.directory, epoch, os.urandom(16))

    def local_claim(self, epoch: int) -> LocalClaim:
        """The claim of the disk. A lock takes the place of fencing, so the claim before it is closed."""
        if self.local is not None:
            self.local.close()
        self.local = LocalClaim(self.store.path)
        self.local.epoch = max(epoch, self.local.epoch)
        return self.local

    async def take_over(self, epoch: int, at: Position | None = None) -> tuple[Any, ChainState]:
        claim = await self.claim(epoch)
        return claim, await take_over(claim, "J", at=at, generation=1)

    async def write(self, epoch: int, texts: Iterable[str], at: Position | None = None) -> ChainWriter:
        """Take over, append these, wait until they are synced."""
        claim, state = await self.take_over(epoch, at)
        writer = await ChainWriter.open(claim, "J", state, 1)
        for text in texts:
            writer.append(note(text))
        await writer.wait_synced()
        return writer

    async def inspect(self, stop: Position | None = None) -> list[str]:
        state = await inspect_chain(self.store, self.directory, "J")
        return await self.read(state, stop=stop)

    async def read(self, state: ChainState, **options: Any) -> list[str]:
        steps = read_records(self.store, state, directory=self.directory, **options)
        return [record.strings[0].decode() async for _, record in steps if record.op is Op.OUTPUT]


@pytest.fixture(params=["memory", "disk", pytest.param("servers", marks=pytest.mark.process)])
def url(request: pytest.FixtureRequest) -> str:
    """Of the store of real servers; otherwise the name of another kind of store."""
    return request.getfixturevalue("store_url") if request.param == "servers" else request.param


@pytest.fixture
async def bench(url: str, tmp_path: Path) -> AsyncIterator[Bench]:
    directory = "t" + os.urandom(6).hex()
    if url == "memory":
        yield Bench(MemoryStore(), directory)
    elif url == "disk":
        yield Bench(LocalStore(tmp_path / "journal"), directory)
    else:
        async with open_store(url) as store:
            yield Bench(store, directory)


NOT_ON_DISK = pytest.mark.parametrize(
    "url", ["memory", pytest.param("servers", marks=pytest.mark.process)], indirect=True
)
"""A lock excludes a second writer of a disk, and a disk has nothing to fill from other members."""


def note(text: str) -> Record:
    return Record(Op.OUTPUT, strings=(text.encode(),))
