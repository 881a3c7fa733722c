"""`read_output` on a store in memory: which steps are whole, and where it begins to read."""

from collections.abc import Mapping
from typing import Any, cast

import msgspec
import pyarrow as pa
import pytest

from checkpoint.chains import visible_log
from checkpoint.chains.manifest_log import CHAIN, checkpoint_record
from checkpoint.chains.output_log import OutputLog
from checkpoint.core.records.layout import even_layout
from checkpoint.core.records.manifest import Checkpoint, RetiredWorker, WorkerCheckpoint
from checkpoint.core.records.outputs import Publish, output_chain
from checkpoint.core.region import coordinator_directory, worker_directory
from checkpoint.errors import InputTrimmedError
from dataflow.outputs import read_output
from dos_client import Store
from dos_client.errors import QuorumUnavailableError
from journal import ChainWriter, Position
from tests.checkpoint.manifest_samples import notes
from tests.dataflow.test_output_after_failed_resets import RegionStore

REGION, SINK = "counts", "x"
pytestmark = pytest.mark.trio


class Region:
    """The logs and the manifest of a region. Each row of the output is its worker and step."""

    def __init__(self) -> None:
        self.store = RegionStore()
        self.logs: dict[int, OutputLog] = {}
        self.incarnation = 0
        self.manifest: ChainWriter | None = None
        self.checkpoints = 0

    async def begin(self, workers: int, step: int, at: Mapping[int, Position] | None = None) -> None:
        """An incarnation with so many workers continues after a step."""
        self.incarnation += 1
        former, self.logs = self.logs, {}
        for worker in range(workers):
            claim = self.store.claim(self.incarnation, directory=worker_directory(REGION, worker))
            self.logs[worker] = await OutputLog.open(
                claim,
                SINK,
                Publish.STEP,
                after_step=step,
                at=(at or {}).get(worker),
                generation=1,
                workers=workers,
            )
            if worker not in former and step:
                await self.logs[worker].begin_after(SINK, step)

    async def make(self, step: int, *workers: int) -> None:
        for worker in workers or self.logs:
            data = pa.BufferOutputStream()
            table = pa.table({"worker": [worker], "step": [step]})
            with pa.ipc.new_stream(data, table.schema) as stream:
                stream.write_table(table)
            log = self.logs[worker]
            await log.append(SINK, step, 1, step, data.getvalue().to_pybytes(), {})

    async def commit(
        self, step: int, *, retired: Mapping[int, RetiredWorker] | None = None
    ) -> dict[int, Position]:
        """Commit a checkpoint; return how far it covers each log."""
        if self.manifest is None:
            claim = self.store.claim(1, directory=coordinator_directory(REGION))
            self.manifest = await ChainWriter.open(claim, CHAIN, None, 1, pipelined=False)
        ends = {worker: await log.synced(step) for worker, log in self.logs.items()}
        floors = {output_chain(SINK): (1, 0)}
        self.checkpoints += 1
        checkpoint = Checkpoint(
            number=self.checkpoints,
            step=step,
            incarnation=self.incarnation,
            final=False,
            wall_time_ms=0,
            workers={
                worker: WorkerCheckpoint(
                    state=end, steps=end, sinks={SINK: msgspec.to_builtins(end)}, floors=floors
                )
                for worker, end in ends.items()
            },
            layout=even_layout(len(ends)),
            operators=notes(count="count"),
            parent=self.checkpoints - 1,
            retained=(self.checkpoints,),
            irrevocable={},
            retired=dict(retired or {}),
        )
        self.manifest.append(checkpoint_record(checkpoint))
        await self.manifest.wait_synced()
        return ends

    async def read(self, after_step: int = 0) -> list[tuple[int, list[int]]]:
        """Return each step with the workers of its rows."""
        found = []
        async for one in read_output(cast("Store", self.store), REGION, SINK, after_step=after_step):
            assert one.table is not None
            rows: list[dict[str, Any]] = one.table.to_pylist()
            assert {row["step"] for row in rows} == {one.step}
            found.append((one.step, [row["worker"] for row in rows]))
        return found


async def test_a_step_has_the_rows_of_a_worker_that_joined() -> None:
    # EVIDENCE-OF: P-6
    region = Region()
    await region.begin(2, 0)
    for step in (1, 2):
        await region.make(step)
    ends = await region.commit(2)
    # A layout is committed before any of its steps.
    await region.begin(3, 2, ends)
    await region.commit(2)
    await region.make(3)
    await region.make(4, 0, 1)
    two, three = [0, 1], [0, 1, 2]
    assert await region.read() == [(1, two), (2, two), (3, three)], "step 4 lacks worker 2"
    await region.make(4, 2)
    assert await region.read(after_step=2) == [(3, three), (4, three)]
    await region.begin(1, 4, await region.commit(4))
    await region.make(5)
    assert await region.read(after_step=3) == [(4, three), (5, [0])], "two workers left after step 4"


async def test_a_log_is_read_from_the_last_checkpoint_that_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    region = Region()
    await region.begin(2, 0)
    for step in range(1, 41):
        await region.make(step)
        if step % 10 == 0:
            await region.commit(step)
    read = 0
    decode = visible_log.decode_output

    def counted(*given: Any, **where: Any) -> Any:
        nonlocal read
        read += 1
        return decode(*given, **where)

    monkeypatch.setattr(visible_log, "decode_output", counted)
    for after, decoded in ((0, 40), (30, 10), (39, 10), (40, 0)):
        read = 0
        assert [step for step, _ in await region.read(after)] == list(range(after + 1, 41))
        assert read == 2 * (decoded + 1), "of each log what follows the checkpoint, and its first record"


async def test_steps_whose_rows_were_trimmed_on_one_log_are_left_out_or_refused() -> None:
    region = Region()
    await region.begin(3, 0)
    for step in (1, 2):
        await region.make(step)
    ends = await region.commit(2)
    await region.begin(3, 2, ends)
    await region.make(3)
    former = {worker: ends[worker] for worker in (1, 2)}
    last = await region.commit(3)
    await region.begin(1, 3, last)
    await region.make(4)
    gone = {
        worker: RetiredWorker(
            sinks={SINK: msgspec.to_builtins(last[worker])}, floors={output_chain(SINK): (2, end.size)}
        )
        for worker, end in former.items()
    }
    await region.commit(4, retired=gone)
    for worker in former:
        for server in region.store.servers:
            objects = server.objects[worker_directory(REGION, worker)]
            del objects[min(objects)]
    assert await region.read() == [(3, [0, 1, 2]), (4, [0])], "workers 1 and 2 have no step 1 and 2 any more"
    with pytest.raises(InputTrimmedError, match="2 to 2"):
        await region.read(after_step=1)


async def test_output_that_only_an_unavailable_member_can_prove_is_refused_after_what_is_proved() -> None:
    # EVIDENCE-OF: P-5
    region = Region()
    await region.begin(1, 0)
    await region.make(1)
    await region.commit(1)
    region.store.servers[2].up = False  # it misses what follows
    await region.make(2)
    await region.logs[0].synced(2)
    region.store.servers[2].up = True
    region.store.servers[1].up = False
    steps = read_output(cast("Store", region.store), REGION, SINK)
    assert (await anext(steps)).step == 1
    with pytest.raises(QuorumUnavailableError, match="only members that did not answer know"):
        await anext(steps)
