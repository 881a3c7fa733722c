"""Reads a region's journals at the end of a run: the manifest's checkpoints, and the state of each worker at
one.

It uses the journal's own code, as a restore does, and checks nothing.
"""

from collections.abc import Iterable
from contextlib import aclosing

from checkpoint.chains.state_blocks import StateFold, decode_block
from checkpoint.core.records.manifest import Checkpoint, decode_checkpoint
from checkpoint.core.region import coordinator_directory, worker_directory
from dos_client.errors import QuorumUnavailableError
from journal import Op, Record, read_records, take_over
from tests.sim.engine.environment import Process
from tests.sim.regions.claiming import Host, RegionClaim
from tests.sim.regions.region import Region


def retained_of(checkpoints: list[Checkpoint]) -> list[Checkpoint]:
    """Return the checkpoints that a manifest with these checkpoints retains."""
    return [checkpoint for checkpoint in checkpoints if checkpoint.number in checkpoints[-1].retained]


def counts_in(records: Iterable[Record]) -> dict[str, int]:
    """Return word -> count, as a restore of these records of a state chain has it."""
    fold = StateFold()
    for record in records:
        if record.op is Op.STATE_BLOCK:
            fold.add(record.strings[0].decode(), decode_block(record.strings[1], where="an audit"))
    if "count" not in fold.operators():
        return {}
    block = fold.take("count")
    return dict(zip(block.column("word").to_pylist(), block.column("count").to_pylist(), strict=True))


class Auditor(Process):
    """The audit of one region. `checkpoints`: the manifest's checkpoints; `counts`: (checkpoint, worker) ->
    word -> count; `done`: everything is read.
    """

    def __init__(self, region: Region) -> None:
        super().__init__(region.env, "auditor")
        self.region = region
        self.checkpoints: list[Checkpoint] = []
        self.counts: dict[tuple[int, int], dict[str, int]] = {}
        self.done = False
        rng = region.rng.stream("auditor")
        self._host = Host(self, region.network, region.store, region.history, rng)
        self.start("audit", self._audit())

    async def _audit(self) -> None:
        name = self.region.spec.name
        claim = await self._claim(coordinator_directory(name))
        chain = await take_over(claim, "manifest", generation=self.region.store.generation)
        async with aclosing(read_records(claim, chain)) as records:
            async for _, record in records:
                if record.op is Op.CHECKPOINT:
                    self.checkpoints.append(decode_checkpoint(record.flags, record.ints, record.strings[0]))
        claim.close()
        for checkpoint in retained_of(self.checkpoints):
            for worker in checkpoint.workers:
                claim = await self._claim(worker_directory(checkpoint.chains_of(name), worker))
                self.counts[checkpoint.number, worker] = await self._state(claim, checkpoint, worker)
                claim.close()
        self.done = True

    async def _claim(self, directory: str) -> RegionClaim:
        while True:
            try:
                view = await self._host.inspect(directory)
                break
            except QuorumUnavailableError:
                await self.sleep(1.0)
        claim = await self._host.claim(directory, view.epoch_seen + 1)
        assert claim is not None, "it waits without a limit"
        return claim

    async def _state(self, claim: RegionClaim, checkpoint: Checkpoint, worker: int) -> dict[str, int]:
        at = checkpoint.workers[worker].state
        chain = await take_over(claim, "state", at=at, generation=self.region.store.generation)
        async with aclosing(read_records(claim, chain)) as records:
            return counts_in([record async for _, record in records])
