"""Reads a region's journals at the end of a run: the manifest's checkpoints, the state of each worker at one,
the files of its operators there, and its output logs.
"""

from contextlib import aclosing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import trio

from checkpoint.chains.directory_store import DirectoryStore
from checkpoint.chains.manifest_log import CHAIN, checkpoints_in
from checkpoint.chains.state_store import StateStore
from checkpoint.core.records.manifest import Checkpoint
from checkpoint.core.region import coordinator_directory, worker_directory
from dataflow.outputs import StepRows, read_output
from dos_client import Claim, QuorumUnavailableError, Store, StoreNotReadyError, open_store
from journal import Position, inspect_chain, read_records
from tests.journal.journaled_files import files as content
from tests.shells.region.process import RegionProcess
from tests.sim.regions.audit import retained_of

if TYPE_CHECKING:
    from tests.shells.region.region import ShellRegion

_AWAY = (QuorumUnavailableError, StoreNotReadyError)


class Auditor(RegionProcess):
    """The audit of one region. `checkpoints`: the manifest's checkpoints; `counts`: (checkpoint, worker) ->
    word -> count; `files`: (checkpoint, worker) -> name -> content; `done`: everything is read.
    """

    kind = "auditor"

    def __init__(self, region: "ShellRegion", name: str) -> None:
        super().__init__(region, name)
        self.checkpoints: list[Checkpoint] = []
        self.counts: dict[tuple[int, int], dict[str, int]] = {}
        self.files: dict[tuple[int, int], dict[str, bytes]] = {}
        self.done = False

    async def work(self) -> None:
        while not self.done:
            try:
                async with open_store(self.cluster.url, client=self.name) as store:
                    await self._audit(store)
            except _AWAY:
                await trio.sleep(1.0)

    async def _audit(self, store: Store) -> None:
        name = self.region.spec.name
        directory = coordinator_directory(name)
        chain = await inspect_chain(store, directory, CHAIN)
        async with aclosing(checkpoints_in(read_records(store, chain, directory=directory))) as checkpoints:
            self.checkpoints = [checkpoint async for checkpoint in checkpoints]
        for sink, kind in self.region.kinds.items():
            if kind != "file":
                self.region.output.logs[sink] = await read_all(store, name, sink)
        for worker in range(self.region.spec.workers):
            for checkpoint in retained_of(self.checkpoints):
                self.counts[checkpoint.number, worker] = await self._state(store, checkpoint, worker)
        self.done = True

    async def _state(self, store: Store, checkpoint: Checkpoint, worker: int) -> dict[str, int]:
        directory = worker_directory(self.region.spec.name, worker)
        view = await store.inspect(directory)
        claim = await store.claim(directory, view.epoch_seen + 1, self.rng.randbytes(16))
        async with claim:
            generation = store.record.generation
            at = checkpoint.workers[worker].state
            state = await StateStore.open(claim, version=checkpoint.number, at=at, generation=generation)
            async with aclosing(state):
                block = (await state.load()).get("count")
            for operator, position in checkpoint.workers[worker].directories.items():
                self.files[checkpoint.number, worker] = await _files_at(claim, operator, position, generation)
        if block is None:
            return {}
        words, counts = block.column("word").to_pylist(), block.column("count").to_pylist()
        return dict(zip(words, counts, strict=True))


async def _files_at(claim: Claim, operator: str, at: Position, generation: int) -> dict[str, bytes]:
    with TemporaryDirectory() as folder:
        store = await DirectoryStore.open(claim, operator, at=at, generation=generation)
        async with aclosing(store):
            await store.rebuild(root := Path(folder, operator))
        return content(root)


async def read_all(store: Store, region: str, sink: str) -> list[StepRows]:
    """Return all steps of a log."""
    async with aclosing(read_output(store, region, sink)) as steps:
        return [step async for step in steps]
