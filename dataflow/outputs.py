"""Read the output of a region: the output logs of a sink from all its workers, step by step.

    table = collect_output("dos://h1,h2,h3", "wordcount", "counts")

It makes no claims and returns only committed output:

1. Of a log with publish="step": what a quorum holds.
2. Of a log with publish="checkpoint": what the last committed checkpoint covers. This is readable even
   while a worker's directory is claimed by an attempt that never opened its log.
3. A step is returned when the parts of all workers that the region had then are available.
4. If the region was restored to an older checkpoint, only output of its present line of history: what the
   last committed checkpoint covers, and what was appended on its line after that. A log may still end with
   steps that were taken back, until its worker has opened it again.
"""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import trio

from checkpoint import (
    Cut,
    Output,
    Publish,
    coordinator_directory,
    decode_output,
    output_chain,
    taken_back,
    worker_directory,
)
from checkpoint.chains.output_following import PublishedOutput, begin_in
from checkpoint.coordinator.manifest_log import CHAIN as MANIFEST_CHAIN
from checkpoint.coordinator.manifest_log import cuts_in
from checkpoint.errors import OutputRewoundError
from dataflow.errors import NoOutputError
from dos_client import Store, open_store
from journal import ChainState, Op, Position, inspect_chain, read_records


@dataclass(frozen=True, slots=True)
class StepRows:
    """The output of one step. `parts`: worker -> its rows, None for none.

    `inputs`: source -> split -> how far it had been read at the end of the step. The output up to this step
    is the result of the input up to these positions.

    `line`: the line of history on which it was read. A restore of the region to an older checkpoint begins
    another line; with `step`, it determines whether this output is still valid then.
    """

    step: int
    time_ms: int
    parts: dict[int, pa.Table | None]
    inputs: dict[str, dict[str, int]]
    line: int = 0

    @property
    def table(self) -> pa.Table | None:
        """All rows, those of worker 0 first; None if there are none."""
        tables = [self.parts[worker] for worker in sorted(self.parts)]
        nonempty = [table for table in tables if table is not None]
        return pa.concat_tables(nonempty) if nonempty else None


async def read_output(
    store: Store, region: str, sink: str, *, after_step: int = 0, line: int | None = None
) -> AsyncGenerator[StepRows]:
    """Yield the currently committed steps above `after_step`, in order, up to the last one that every worker
    has. With 0, begin with the oldest step that is retained. line: the `line` of the last step that the
    caller has read; None: not checked.

    All steps of one call are of one line of history. Raises OutputRewoundError if what was read up to
    `after_step` was taken back by a restore of the region; without `line` that is not noticed. Raises
    InputTrimmedError if steps above `after_step` were trimmed, NoOutputError if the region has no such log,
    CorruptDataError, and read errors. Steps yielded before an error remain valid: logs are checked segment by
    segment, so a step counts when the next one was yielded or the iteration has ended.
    """
    cut = await _last_cut(store, region)
    present_line = 0 if cut is None else cut.line
    if line is not None and after_step:
        if line > present_line:
            return  # the record of that line cannot be proved committed now, so nothing after it can be
        _refuse_taken_back(cut, region, sink, after_step, line)
    workers = await _workers(store, region, sink, cut)
    if not workers:
        raise NoOutputError(region, sink)
    present = set(workers if cut is None else cut.workers)
    async with AsyncExitStack() as stack:
        logs = [
            await stack.enter_async_context(
                aclosing(_WorkerLog(store, region, worker, sink, cut, after_step))
            )
            for worker in workers
        ]
        for log in logs:
            await log.advance()
        # Logs are trimmed in whole segments: they need not begin with the same step.
        first = max((log.head.step for log in logs if log.head is not None and log.begin), default=0)
        if 0 < after_step < first - 1:
            raise await PublishedOutput(store, region, sink).trimmed_steps(after_step + 1, first - 1)
        for log in logs:
            while log.head is not None and log.head.step < first:
                await log.advance()
        while heads := {log.worker: log.head for log in logs if log.head is not None}:
            step = min(output.step for output in heads.values())
            if any(log.worker in present and log.head is None and log.reached < step for log in logs):
                return  # it is not visible yet
            # A log whose next step is later is of a worker that the region did not have in this step.
            parts = {worker: output for worker, output in heads.items() if output.step == step}
            yield _step_of(parts, present_line)
            for log in logs:
                if log.head is not None and log.head.step == step:
                    await log.advance()


def _refuse_taken_back(cut: Cut | None, region: str, sink: str, step: int, line: int) -> None:
    rewind = None if cut is None else taken_back(cut, line, step)
    if cut is None or rewind is None:
        return
    raise OutputRewoundError(
        region,
        sink,
        line=rewind.line,
        checkpoint=rewind.to,
        step=rewind.step + 1,
        read=step,
        remedy=f"discard the steps from {rewind.step + 1} on, and read on with"
        f" after_step={rewind.step}, line={cut.line}",
    )


def collect_output(url: str, region: str, sink: str, *, token: bytes = b"") -> pa.Table | None:
    """Return all published rows of the sink in the order of steps; None if there are none.

    For scripts and notebooks: blocks, and holds all rows in memory. Raises as `open_store` and `read_output`
    do.
    """

    async def collect() -> list[pa.Table]:
        async with (
            open_store(url, token=token, client=f"output of {region}") as store,
            aclosing(read_output(store, region, sink)) as steps,
        ):
            return [table async for step in steps if (table := step.table) is not None]

    tables = trio.run(collect)
    return pa.concat_tables(tables) if tables else None


async def _last_cut(store: Store, region: str) -> Cut | None:
    directory = coordinator_directory(region)
    chain = await inspect_chain(store, directory, MANIFEST_CHAIN)
    last = None
    async with aclosing(cuts_in(read_records(store, chain, directory=directory))) as cuts:
        async for cut in cuts:
            last = cut
    return last


async def _workers(store: Store, region: str, sink: str, cut: Cut | None) -> list[int]:
    if cut is not None:
        return sorted(worker for worker, part in cut.outputs().items() if sink in part.sinks)
    prefix = worker_directory(region, 0)[:-4]
    names = [name.removeprefix(prefix) for name in await store.list_directories(prefix)]
    return sorted(int(name) for name in names if len(name) == 4 and name.isdigit())


class _WorkerLog:
    """The committed output of one worker above a step, in order. Call `advance` first."""

    def __init__(
        self, store: Store, region: str, worker: int, sink: str, cut: Cut | None, after_step: int
    ) -> None:
        self.worker = worker
        self.begin = 0 if cut is None else begin_in(cut, worker, sink)
        """The offset below which it is trimmed."""
        self.head: Output | None = None
        """The next step, None at the end of what is visible."""
        self.reached = 0
        """The last step of this log, or before its beginning, that was passed."""
        self._store, self._region, self._sink = store, region, sink
        self._in_cut = _end_in(cut, worker, sink)
        self._line = 0 if cut is None else cut.line
        self._after_step = after_step
        self._outputs = self._read()

    async def advance(self) -> None:
        """Go to the next step. Raises NoOutputError, CorruptDataError, and read errors."""
        self.head = None
        async for output in self._outputs:
            self.reached = output.step
            if output.step > self._after_step and not output.head.begins:
                self.head = output
                return

    async def aclose(self) -> None:
        """Stop reading."""
        await self._outputs.aclose()

    async def _read(self) -> AsyncGenerator[Output]:
        directory, chain_name = worker_directory(self._region, self.worker), output_chain(self._sink)
        chain = await inspect_chain(self._store, directory, chain_name, proved=self._in_cut, floor=self.begin)
        if not chain.seen:
            raise NoOutputError(self._region, self._sink)
        visible = await _visible(self._store, directory, chain, self._in_cut)
        covered = 0 if self._in_cut is None else self._in_cut.size
        async with aclosing(read_records(self._store, visible, directory=directory)) as records:
            async for end, record in records:
                if record.op is Op.OUTPUT:
                    output = decode_output(record.ints, record.strings, where=chain_name, at=end.size)
                    # The chain contains the position in the checkpoint, so what is below it is of the line.
                    # After it follows what was taken back, until the worker opens the log on the new line;
                    # or a line that began after the checkpoint was read.
                    if end.size > covered and output.head.of_line != self._line:
                        return
                    yield output


def _end_in(cut: Cut | None, worker: int, sink: str) -> Position | None:
    prepared = None if cut is None else cut.outputs()[worker].sinks.get(sink)
    return None if prepared is None else msgspec.convert(prepared, Position)


async def _visible(store: Store, directory: str, chain: ChainState, in_cut: Position | None) -> ChainState:
    """Return the visible part of the chain, according to the publish mode in its first record."""
    async with aclosing(read_records(store, chain, directory=directory)) as records:
        async for end, record in records:
            if record.op is Op.OUTPUT:
                output = decode_output(record.ints, record.strings, where=chain.chain, at=end.size)
                if output.head.publish is Publish.STEP:
                    return chain
                break
    if in_cut is None:
        return ChainState(chain.chain)
    return chain.up_to(in_cut)


def _step_of(outputs: dict[int, Output], line: int) -> StepRows:
    steps = {output.step for output in outputs.values()}
    assert len(steps) == 1, f"workers have a hole in their steps: {steps}"
    inputs: dict[str, dict[str, int]] = {}
    for output in outputs.values():
        for source, splits in output.head.inputs.items():
            inputs.setdefault(source, {}).update(splits)
    parts = {worker: _rows(output.data) for worker, output in outputs.items()}
    return StepRows(steps.pop(), max(output.time_ms for output in outputs.values()), parts, inputs, line)


def _rows(data: bytes) -> pa.Table | None:
    if not data:
        return None
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()
