"""Read the output of a region: the output logs of a sink from all its workers, step by step.

    table = collect_output("dos://h1,h2,h3", "wordcount", "counts")

It makes no claims and returns only committed output (`checkpoint/chains/visible_log.py`). A step is returned
when the parts of all workers that made it are available: each record states their number, so it does not
matter when a worker joined.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass

import pyarrow as pa
import trio

from checkpoint import (
    Checkpoint,
    Output,
    coordinator_directory,
    parting,
    taken_back,
    worker_directory,
)
from checkpoint.chains.manifest_log import CHAIN as MANIFEST_CHAIN
from checkpoint.chains.manifest_log import checkpoints_in, regions_of
from checkpoint.chains.output_reading import PublishedOutput, is_taken_back
from checkpoint.chains.visible_log import VisibleLog
from checkpoint.errors import OutputRewoundError
from dataflow.errors import NoOutputError
from dos_client import Store, open_store
from journal import (
    ChainState,
    Op,
    Position,
    Record,
    inspect_chain,
    read_batches_since,
    read_records,
    report_unproved,
)


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

    All steps of one call are of one line of history. Of a sink that was removed, the steps are those up to
    the end of its log. Raises OutputRewoundError if what was read up to
    `after_step` was taken back by a restore of the region; without `line` that is not noticed. Raises
    InputTrimmedError if steps above `after_step` were trimmed, NoOutputError if the region has no such log,
    QuorumUnavailableError where only members that are unavailable know whether there are more, and
    CorruptDataError and read errors. Steps yielded before an error remain valid: logs are checked segment by
    segment, so a step counts when the next one was yielded or the iteration has ended.
    """
    checkpoints = await _checkpoints(store, region)
    checkpoint = checkpoints[-1] if checkpoints else None
    present_line, uid = (
        (0, sink) if checkpoint is None else (checkpoint.line, checkpoint.log_of(sink) or sink)
    )
    if line is not None and after_step:
        if line > present_line:
            return  # the record of that line cannot be proved committed now, so nothing after it can be
        _refuse_taken_back(checkpoint, region, sink, after_step, line)
    published = PublishedOutput(store, region, sink)
    if checkpoint is not None and is_taken_back(checkpoint, uid):
        raise published.rewound(checkpoint, read=after_step)
    workers = await _workers(store, region, uid, checkpoint)
    if not workers:
        raise NoOutputError(region, sink, await _why_none(store, region, sink, checkpoint))
    begin = _begin(checkpoints, after_step)
    begun = False
    async with AsyncExitStack() as stack:
        logs = _Logs(
            stack, lambda worker: _WorkerLog(store, region, worker, uid, checkpoint, begin, after_step)
        )
        await logs.open(workers)
        if not any(log.exists for log in logs.by_worker.values()):
            raise NoOutputError(region, sink, await _why_none(store, region, sink, checkpoint))
        while (step := logs.next_step) is not None:
            whole, visible = await logs.parts(step)
            if not visible:
                return
            if begun and not whole:
                raise await published.trimmed_steps(step, step)
            if whole and not begun and 0 < after_step < step - 1:
                raise await published.trimmed_steps(after_step + 1, step - 1)
            if whole:  # otherwise a log begins later, because logs are trimmed in whole segments
                begun = True
                yield _step_of(whole, present_line)
            await logs.pass_step(step)


async def _why_none(store: Store, region: str, sink: str, checkpoint: Checkpoint | None) -> str:
    if checkpoint is None and region not in (regions := await regions_of(store)):
        return f"there is no such region; the store has {', '.join(map(repr, sorted(regions))) or 'none'}"
    if checkpoint and (dropped := checkpoint.ended.get(checkpoint.log_of(sink) or "")) is not None:
        return f"it was removed at checkpoint {dropped.checkpoint}, and {dropped.dropped_by} dropped its log"
    sinks = (
        [name for name, note in checkpoint.operators.items() if note.kind == "sink"] if checkpoint else [sink]
    )
    if sink in sinks:
        return "the region has just begun and has shown nothing yet; try again"
    return f"its sinks are {', '.join(map(repr, sorted(sinks))) or 'none'}"


def _refuse_taken_back(checkpoint: Checkpoint | None, region: str, sink: str, step: int, line: int) -> None:
    rewind = None if checkpoint is None else taken_back(checkpoint, line, step)
    if checkpoint is None or rewind is None:
        return
    raise OutputRewoundError(
        region,
        sink,
        line=rewind.line,
        checkpoint=rewind.to,
        step=rewind.step + 1,
        read=step,
        remedy=f"discard the steps from {rewind.step + 1} on, and read on with"
        f" after_step={rewind.step}, line={checkpoint.line}",
    )


def collect_output(url: str, region: str, sink: str, *, token: bytes = b"") -> pa.Table | None:
    """Return all published rows of the sink in the order of steps; None if there are none. A column that the
    sink gained later is null before.

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
    return pa.concat_tables(tables, promote_options="default") if tables else None


async def _checkpoints(store: Store, region: str) -> list[Checkpoint]:
    """Return the committed checkpoints, oldest first, from the newest snapshot of the manifest on."""
    directory = coordinator_directory(region)
    chain = await inspect_chain(store, directory, MANIFEST_CHAIN)
    report_unproved(directory, chain)
    async with aclosing(checkpoints_in(read_records(store, chain, directory=directory))) as checkpoints:
        return [checkpoint async for checkpoint in checkpoints]


def _begin(checkpoints: Sequence[Checkpoint], after_step: int) -> Checkpoint | None:
    """Return the newest checkpoint of this line of history that is not after a step: its logs are read from
    there on.
    """
    for checkpoint in reversed(checkpoints):
        parted = parting(checkpoints[-1], checkpoint.line)
        # At the step where the lines part, the logs of a line that was left may have begun other segments.
        if checkpoint.step <= after_step and (parted is None or checkpoint.step < parted.step):
            return checkpoint
    return None


async def _workers(store: Store, region: str, sink: str, checkpoint: Checkpoint | None) -> list[int]:
    if checkpoint is not None:
        return sorted(worker for worker, part in checkpoint.outputs().items() if sink in part.sinks)
    prefix = worker_directory(region, 0)[:-4]
    names = [name.removeprefix(prefix) for name in await store.list_directories(prefix)]
    return sorted(int(name) for name in names if len(name) == 4 and name.isdigit())


class _Logs:
    """The logs of the workers that made the next step."""

    def __init__(self, stack: AsyncExitStack, log_of: Callable[[int], "_WorkerLog"]) -> None:
        self.by_worker: dict[int, _WorkerLog] = {}
        self._stack = stack
        self._log_of = log_of

    async def open(self, workers: Iterable[int]) -> None:
        """Open the logs of these workers, if they are not open, at their first step."""
        for worker in workers:
            if worker not in self.by_worker:
                log = self.by_worker[worker] = self._log_of(worker)
                await self._stack.enter_async_context(aclosing(log))
                await log.advance()

    @property
    def next_step(self) -> int | None:
        heads = (log.head.step for log in self.by_worker.values() if log.head is not None)
        return min(heads, default=None)

    async def parts(self, step: int) -> tuple[dict[int, Output], bool]:
        """Return worker -> its output of the next step if all workers that made it have it, otherwise none;
        and whether that is so for good, because no log ends before it.
        """
        heads = [log.head for log in self.by_worker.values() if log.head is not None]
        made_by = range(next(head.head.workers for head in heads if head.step == step))
        await self.open(made_by)  # some may have joined after the checkpoint was read
        found = {worker: self.by_worker[worker].head for worker in made_by}
        whole = {worker: head for worker, head in found.items() if head is not None and head.step == step}
        return (whole if len(whole) == len(made_by) else {}), None not in found.values()

    async def pass_step(self, step: int) -> None:
        for log in self.by_worker.values():
            if log.head is not None and log.head.step == step:
                await log.advance()


class _WorkerLog:
    """The committed output of one worker above a step, in order. Call `advance` first.

    checkpoint: the last checkpoint. begin: an earlier one, from whose position on the log is read.
    """

    def __init__(
        self,
        store: Store,
        region: str,
        worker: int,
        sink: str,
        checkpoint: Checkpoint | None,
        begin: Checkpoint | None,
        after_step: int,
    ) -> None:
        self.head: Output | None = None
        """The next step, None at the end of what is visible."""
        self.exists = False
        self._store = store
        self._log = VisibleLog.of(checkpoint, region, worker, sink)
        self._from = VisibleLog.of(begin, region, worker, sink).covered
        self._after_step = after_step
        self._outputs = self._read()

    async def advance(self) -> None:
        """Go to the next step. Raises CorruptDataError, QuorumUnavailableError, and read errors."""
        self.head = None
        async for output in self._outputs:
            if output.step > self._after_step and not output.head.begins:
                self.head = output
                return

    async def aclose(self) -> None:
        await self._outputs.aclose()

    async def _read(self) -> AsyncGenerator[Output]:
        log = self._log
        # The segment of the byte before the position: a chain that begins after it does not hold it.
        floor = max(log.begin, 0 if self._from is None else self._from.size - 1)
        chain = await inspect_chain(self._store, log.directory, log.chain, proved=log.covered, floor=floor)
        self.exists = chain.seen > 0
        async with aclosing(_ends(read_records(self._store, chain, directory=log.directory))) as records:
            first = await log.first_of(records)
        by_step = first is not None and not log.ends_with_checkpoint(first.head.publish)
        if not by_step and log.covered is None:
            return
        visible = chain if by_step or log.covered is None else chain.up_to(log.covered)
        async with aclosing(self._records(visible)) as records:
            async for end, record in records:
                if record.op is Op.OUTPUT:
                    output = log.output(record, end)
                    if not log.counts(end, output.head.line):
                        return
                    yield output
        if by_step:
            report_unproved(log.directory, chain)

    def _records(self, chain: ChainState) -> AsyncGenerator[tuple[int, Record]]:
        """Return the records with the offset just past each: those above the earlier checkpoint, if any."""
        log = self._log
        if self._from is None or self._from.size <= log.begin:
            return _ends(read_records(self._store, chain, directory=log.directory))
        return _each(read_batches_since(self._store, chain, self._from, directory=log.directory))


async def _ends(records: AsyncGenerator[tuple[Position, Record]]) -> AsyncGenerator[tuple[int, Record]]:
    async with aclosing(records):
        async for end, record in records:
            yield end.size, record


async def _each(batches: AsyncGenerator[list[tuple[int, Record]]]) -> AsyncGenerator[tuple[int, Record]]:
    async with aclosing(batches):
        async for batch in batches:
            for found in batch:
                yield found


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
