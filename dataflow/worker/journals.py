"""The chains of a worker in one incarnation, and the order in which their data becomes durable.

1. A restore opens the state chain at the ordered checkpoint, and the steps chain at its head, or also at the
   checkpoint if a line of history begins there.
2. An input division is recorded before the frames of its step are sent.
3. A vote means that outputs, state and the division of the step are on stable storage or on the quorum
   (`made_durable`).
4. Output of a sink with publish="step" is appended once the division of its step is durable on all workers
   (DURABLE(n)). In an at-most-once region, and with local recovery, the circuit and all sinks wait for this.
5. Chains of state are deleted as soon as their release is known; an output log only after its trimmer has
   read the register of its consumers again.
"""

import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Protocol

import msgspec
import trio

from checkpoint import (
    NO_MARK,
    OUTPUT_CHAIN_PREFIX,
    Committed,
    Division,
    FrameType,
    Mark,
    OutputDecision,
    Publish,
    Restore,
    RetentionRule,
    Rolling,
    SplitPosition,
    WorkerCheckpoint,
    limits,
    output_chain,
    output_register,
    worker_directory,
)
from checkpoint.chains.consumer_register import TrimPlanner
from checkpoint.chains.output_log import OutputLog
from checkpoint.chains.output_reading import split_of
from checkpoint.chains.state_store import STATE_CHAIN, StateStore
from checkpoint.chains.steps_log import STEPS_CHAIN, StepsLog
from checkpoint.errors import ManifestError
from checkpoint.runtime import runtime
from dataflow.core.schedule import DurableSteps
from dataflow.graph.plan import GraphPlan
from dataflow.sinks.base import SinkWriter
from dataflow.sinks.log import LogSink
from dataflow.worker.companion import RunningOperator
from dataflow.worker.directories import Directories
from dataflow.worker.exchange import Exchange
from dataflow.worker.failures import naming
from dataflow.worker.layout_change import after_step, log_position
from dataflow.worker.messages import CheckpointTaken, OutputMade, StageEnded
from dos_client import Store
from dos_protocol.errors import ClosedError, DosError, FencedError
from journal import NO_FLOOR, Floor, Gaps, Position, Scratch, below_or_within
from journal.ports import ClaimPort

# --- what may be deleted ------------------------------------------------------------------------------------


class FloorCollector:
    """The floors under one claim. `released`: of output logs, as the last checkpoint has released them."""

    def __init__(self, claim: ClaimPort) -> None:
        self._claim = claim
        self._floors: dict[str, Floor] = {}
        self._gaps: Gaps = {}
        self.released: dict[str, Floor] = {}

    def release(self, floors: Mapping[str, Floor], gaps: Gaps) -> None:
        """Take what the retained checkpoints do not need. Its release is acknowledged (R14)."""
        for chain, floor in floors.items():
            (self.released if chain.startswith(OUTPUT_CHAIN_PREFIX) else self._floors)[chain] = floor
        self._gaps = gaps
        self._collect()

    def permit(self, chain: str, floor: Floor) -> None:
        """Delete an output log below a floor, too, which must be released. Raises FencedError."""
        self._floors[chain] = floor
        self._collect()

    def _collect(self) -> None:
        self._claim.collect(below_or_within(dict(self._floors), self._gaps))


# --- state and steps ----------------------------------------------------------------------------------------


class RunAll(Protocol):
    """Runs all of some works, and returns when the last one has ended."""

    async def __call__(self, *works: Callable[[], Awaitable[None]]) -> None: ...


async def one_by_one(*works: Callable[[], Awaitable[None]]) -> None:
    """Run works in their order: a `RunAll`."""
    for work in works:
        await work()


class Journals:
    """The state chain and the steps chain of a worker. Use `open`; call `aclose` before closing the claim."""

    def __init__(
        self, claim: ClaimPort, order: Restore, state: StateStore, steps: StepsLog, collecting: FloorCollector
    ) -> None:
        self._claim = claim
        self._collecting = collecting
        self._state = state
        self._steps = steps
        self._after = after_step(order)
        self._local = order.is_local
        self._region_incarnation = order.incarnation
        self._takes_over = order.takes_over
        self._forks = order.forks

    @classmethod
    async def open(
        cls,
        claim: ClaimPort,
        order: Restore,
        *,
        generation: int,
        scratch: Scratch | None = None,
        rolling: Rolling | None = None,
        collecting: FloorCollector | None = None,
        shows_steps: bool = False,
        run_all: RunAll = one_by_one,
    ) -> "Journals":
        """Open both chains for the ordered checkpoint, by `run_all`; `all_open` follows. shows_steps: output
        of recorded steps may be visible. Raises as `StateStore.open` and `StepsLog.open`; ManifestError if
        output may be visible that another number of workers made before the first checkpoint.
        """
        own = None if order.restore is None or order.forks else order.restore.workers.get(order.worker)
        at, version = (None, 0) if own is None else (own.state, order.checkpoint)
        rewound = order.restore is not None and order.restore.rewound
        opened: dict[str, StateStore | StepsLog] = {}

        async def open_state() -> None:
            opened[STATE_CHAIN] = await StateStore.open(
                claim, version=version, at=at, generation=generation, scratch=scratch, rolling=rolling
            )

        async def open_steps() -> None:
            opened[STEPS_CHAIN] = await StepsLog.open(
                claim,
                at=own.steps if own is not None and rewound else None,
                after_step=after_step(order),
                workers=len(order.layout.workers) if order.restore is None else 0,
                generation=generation,
                scratch=scratch,
                rolling=rolling,
            )

        try:
            await run_all(open_state, open_steps)
            state, steps = opened[STATE_CHAIN], opened[STEPS_CHAIN]
            assert isinstance(state, StateStore)
            assert isinstance(steps, StepsLog)
            if steps.of_others and shows_steps:
                raise ManifestError(
                    f"the region has no checkpoint, and another number of workers than"
                    f" {len(order.layout.workers)} has made output that may be visible",
                    remedy="run it with that number until its first checkpoint, or under another name",
                )
        except BaseException:
            for one in opened.values():
                await one.aclose()
            raise
        return cls(claim, order, state, steps, collecting or FloorCollector(claim))

    def all_open(self, order: Restore) -> None:
        """Delete in the background what lies below the floors of the order. Call it when every chain of the
        worker is open: a chain that is being taken over may read below its floor.
        """
        self._release(order)

    @property
    def replayed_bytes(self) -> int:
        return self._state.replayed_bytes + self._steps.replayed_bytes

    @property
    def state_bytes(self) -> int:
        """The bytes that `blocks` reads."""
        return self._state.replayed_bytes

    @property
    def last_step(self) -> int:
        """The highest step whose input division is recorded here."""
        return self._steps.last_step

    @property
    def snapshot_due(self) -> bool:
        return self._state.snapshot_due

    def blocks(self) -> AsyncGenerator[tuple[int, str, bytes], None]:
        """Return the state blocks of the checkpoint, as `StateStore.blocks` does."""
        return self._state.blocks()

    def divisions(self, until: int) -> tuple[Division, ...]:
        """Return the divisions of the steps to replay exactly."""
        return self._marks(self._steps.divisions(self._after, until))

    def _marks(self, divisions: Iterable[Division]) -> tuple[Division, ...]:
        # After a reset nobody has requested these checkpoints: a replay that made them would vote for
        # nothing.
        number = self._region_incarnation if self._takes_over else -1
        return tuple(
            division if division.mark.incarnation == number else division._replace(mark=NO_MARK)
            for division in divisions
        )

    def record(self, ended: StageEnded) -> None:
        """Record the division of a stage. Call it before the frames of the stage are sent."""
        if ended.sources is not None:
            self._steps.record(ended.step, ended.time_ms, ended.sources, self._mark_of(ended))

    def _mark_of(self, ended: StageEnded) -> Mark:
        marked = self._local and ended.barrier.checkpoint
        return Mark(*ended.barrier, self._region_incarnation) if marked else NO_MARK

    async def division_synced(self, step: int) -> None:
        """Wait until the divisions up to `step` are synced on the quorum. Raises FencedError."""
        await self._steps.synced(step)

    async def prepare(self, taken: CheckpointTaken) -> WorkerCheckpoint:
        """Make the data of a checkpoint durable; return the vote, valid once the sinks are synced too."""
        if self._is_whole(taken) and taken.snapshot is not None:
            state = await self._state.commit_whole(
                taken.barrier.checkpoint, taken.snapshot, taken.snapshot.entries
            )
        else:
            state = await self._state.commit(taken.barrier.checkpoint, taken.blocks)
        if taken.step == self._after:
            # What the former layout had recorded ahead would be replayed by workers that own other splits
            # now.
            self._steps.void(taken.step)  # the layout changes
        steps = await self._steps.synced(taken.step)
        floors = {STATE_CHAIN: self._state.floor, STEPS_CHAIN: self._steps.floor}
        return WorkerCheckpoint(
            state=state, steps=steps, sources=taken.sources, sinks=taken.sinks, floors=floors
        )

    def _is_whole(self, taken: CheckpointTaken) -> bool:
        """Return whether it is the first checkpoint of a fork, whose chain has nothing before it."""
        return self._forks and taken.step == self._after

    async def voted(self, taken: CheckpointTaken) -> None:
        """Append the snapshot of the checkpoint, if any. It follows the vote so as not to delay it."""
        # After the vote: the checkpoint needs only the changes, and a snapshot would delay its commit.
        if taken.snapshot is not None and not self._is_whole(taken):
            await self._state.snapshot(taken.snapshot, taken.snapshot.entries)

    async def released(self, order: Committed) -> None:
        """Delete in the background what only released checkpoints need. The release is acknowledged (R14)."""
        self._release(order)
        await self._steps.forget(order.steps_kept_after)

    def _release(self, order: Restore | Committed) -> None:
        # All chains are open in this incarnation and their starts are acknowledged: no retained checkpoint
        # needs what lies below the floors, nor does anything that follows one.
        self._collecting.release(order.floors, order.gaps)

    async def aclose(self) -> None:
        await self._steps.aclose()
        await self._state.aclose()


class NoJournals(Journals):
    """The journals of a worker without checkpoints: it records nothing and restores nothing."""

    replayed_bytes = state_bytes = 0
    last_step = 0
    snapshot_due = False

    def __init__(self) -> None:
        """There is nothing to hold."""

    def all_open(self, order: Restore) -> None:
        """There is nothing to delete."""

    async def blocks(self) -> AsyncGenerator[tuple[int, str, bytes], None]:
        empty: tuple[tuple[int, str, bytes], ...] = ()
        for block in empty:
            yield block

    def divisions(self, until: int) -> tuple[Division, ...]:
        del until
        return ()

    def record(self, ended: StageEnded) -> None:
        """Record nothing: the input is read once and never again."""

    async def division_synced(self, step: int) -> None:
        """Return at once."""

    async def released(self, order: Committed) -> None:
        """There is nothing to delete."""

    async def aclose(self) -> None:
        """There is nothing to stop."""


# --- output logs --------------------------------------------------------------------------------------------

logger = logging.getLogger("dos.dataflow")


class Outputs:
    """The output logs of a worker. Call `open`, then run `publish_all` and `announce` in tasks."""

    def __init__(
        self,
        graph: GraphPlan,
        exchange: Exchange,
        peers: int,
        *,
        gates: bool,
        durable: Callable[[int], None],
        uids: Mapping[str, str],
    ) -> None:
        """gates: the circuit waits for divisions that are durable everywhere; `durable` is called with their
        step. uids: sink -> the name under which its log is stored.
        """
        self._sinks = {name: spec for name, spec in graph.specs.items() if isinstance(spec, LogSink)}
        self._uids = {name: uids[name] for name in self._sinks}
        self._driven = bool(graph.fed_by_batches)
        self._exchange = exchange
        self._logs: dict[str, OutputLog] = {}
        self._durable = DurableSteps(peers)
        self._reports_to_circuit = gates
        self._report_to_circuit = durable
        self._reported_to_circuit = 0
        self._to_publish, self._made = trio.open_memory_channel[OutputMade](math.inf)
        self._changed = trio.Event()
        self._recorded = 0
        self._handled: dict[str, int] = {}
        """Sink -> the last step that was appended or discarded."""

    @property
    def replayed_bytes(self) -> int:
        return sum(log.replayed_bytes for log in self._logs.values())

    async def open(
        self,
        claim: ClaimPort,
        part: WorkerCheckpoint | None,
        *,
        after_step: int,
        generation: int,
        scratch: Scratch | None,
        floors: Mapping[str, Floor],
        joins: bool = False,
        line: int = 0,
        rewound: bool = False,
        workers: int,
    ) -> None:
        """Open all logs at their positions, at once. floors: what the manifest has released of each chain.
        joins: the checkpoint did not have this worker. line: of the checkpoint; rewound: it begins with it.
        Raises what `OutputLog.open` raises, in a group.
        """

        async def open_one(name: str, spec: LogSink) -> None:
            uid, at = self._uids[name], None if part is None else log_position(name, part.sinks.get(name))
            # Also a log that the checkpoint does not have, because its sink comes with this graph.
            begins = joins or (part is not None and at is None)
            log = await OutputLog.open(
                claim,
                uid,
                spec.publish,
                after_step=after_step,
                at=at,
                generation=generation,
                scratch=scratch,
                released=floors.get(output_chain(uid), NO_FLOOR),
                line=line,
                rewound=rewound or begins,  # it may have steps of a line that was left before this worker was
                workers=workers,
                driven=self._driven,
            )
            self._logs[name] = log
            if begins:
                prepared = None if part is None else part.sinks.get(name)
                await log.begin_after(name, after_step, spec.time_in(prepared))

        self._handled = dict.fromkeys(self._sinks, after_step)
        async with trio.open_nursery() as opening:
            for name, spec in self._sinks.items():
                opening.start_soon(open_one, name, spec)

    async def aclose(self) -> None:
        for log in self._logs.values():
            await log.aclose()

    # --- from the circuit and the peers -------------------------------------------------------------------

    def take(self, message: OutputMade) -> None:
        """Queue the output of a step. Never blocks."""
        self._to_publish.send_nowait(message)

    def replays_until(self, step: int, *, everywhere: bool) -> None:
        """Note that divisions up to this step are durable: of this worker, or everywhere."""
        if everywhere:
            self._durable.floor(step)
        self._durable.own(step)
        self._wake()

    def recorded(self, step: int) -> None:
        """Note that this worker's division of the step is in the steps log, but not yet synced."""
        self._recorded = max(self._recorded, step)
        self._wake()

    def on_peer_durable(self, peer: int, step: int) -> None:
        """Note a peer's DURABLE(step)."""
        self._durable.of_peer(peer, step)
        self._wake()

    def _wake(self) -> None:
        durable = self._durable.everywhere
        if self._reports_to_circuit and durable > self._reported_to_circuit:
            self._reported_to_circuit = durable
            self._report_to_circuit(durable)
        self._changed.set()
        self._changed = trio.Event()

    # --- tasks --------------------------------------------------------------------------------------------

    async def announce(self, division_synced: Callable[[int], Awaitable[None]]) -> None:
        """Announce to the peers how far this worker's divisions are durable, if anything waits for that."""
        by_step = any(spec.publish is Publish.STEP for spec in self._sinks.values())
        if not by_step and not self._reports_to_circuit:
            return
        announced = 0
        while True:
            while self._recorded <= announced:
                await self._changed.wait()
            announced = self._recorded
            await division_synced(announced)
            # Only after the sync: a peer publishes on this word, and a lost division could be read
            # differently again.
            self._durable.own(announced)
            self._exchange.announce(FrameType.DURABLE, announced)
            self._wake()

    async def publish_all(self) -> None:
        """Append the queued output in order. A step that may not be visible yet delays the steps after it."""
        async for made in self._made:
            log = self._logs[made.sink]
            if log.judge(made.step, made.digest) is OutputDecision.APPEND:
                if self._sinks[made.sink].publish is Publish.STEP:
                    # Visible at once, so it must be the same after a reset: all inputs are durable first.
                    while self._durable.everywhere < made.step:
                        await self._changed.wait()
                ends = _ends(made.inputs)
                await log.append(
                    made.sink, made.step, made.rows, made.digest, made.data, ends, time=made.time
                )
            self._handled[made.sink] = made.step
            self._wake()

    async def trim_all(self, store: Store, region: str, worker: int, collecting: FloorCollector) -> None:
        """Trim the logs at intervals: delete what checkpoints have released and no consumer needs."""
        directory, split = worker_directory(region, worker), split_of(worker)
        trimmers = {
            name: log.trimmer(
                TrimPlanner(store, output_register(region, self._uids[name]), self._rule_of(name)),
                partial(collecting.permit, output_chain(self._uids[name])),
            )
            for name, log in self._logs.items()
        }
        while trimmers:
            await trio.sleep(limits.trim_poll_s)
            for name, trimmer in trimmers.items():
                allowed = collecting.released.get(output_chain(self._uids[name]), NO_FLOOR)
                try:
                    await self._logs[name].trim(trimmer, directory, split, allowed)
                except (FencedError, ClosedError):
                    raise
                except DosError as error:  # what is needed is unknown now, so nothing more is deleted
                    logger.info("output %s of %s is not trimmed now: %s", name, directory, error)

    def _rule_of(self, sink: str) -> RetentionRule:
        """Return the rule of a log, unless a person has set one."""
        rule = self._sinks[sink].rule
        # The query takes the output back, and its sink keeps it: the log would only grow.
        return msgspec.structs.replace(rule, by_consumers=True) if self._driven else rule

    def batch_processed(self) -> None:
        """Note that the checkpoint of the last `synced` is committed, and is that of a batch of a query."""
        for log in self._logs.values():
            log.batch_processed()

    def floors(self) -> dict[str, Floor]:
        """Return chain -> the lowest segment that the checkpoint of the last `synced` keeps."""
        return {output_chain(self._uids[name]): log.vote_floor for name, log in self._logs.items()}

    async def synced(self, step: int, prepared: Mapping[str, Any]) -> dict[str, Any]:
        """Wait until the output up to a step is on the quorum; return sink -> what the checkpoint stores of
        it.
        """
        parts = {}
        for name, log in self._logs.items():
            while self._handled[name] < step:
                await self._changed.wait()
            parts[name] = log_part(await log.synced(step), prepared[name])
        return parts


def log_part(position: Position, prepared: Any) -> dict[str, Any]:
    """Return what a checkpoint stores of an output log: its position, and what its writer prepared."""
    return {**(prepared or {}), **msgspec.to_builtins(position)}


def _ends(sources: Mapping[str, Mapping[str, SplitPosition]]) -> dict[str, dict[str, int]]:
    return {name: {split: at.position for split, at in splits.items()} for name, splits in sources.items()}


# --- a vote -------------------------------------------------------------------------------------------------


async def made_durable(
    taken: CheckpointTaken,
    journals: Journals,
    outputs: Outputs,
    directories: Directories,
    running: RunningOperator,
) -> WorkerCheckpoint:
    """Return the positions to vote, once all that they refer to is on stable storage or on the quorum.
    running: notes the sinks whose code runs. Raises FencedError, and what the sinks raise.
    """
    async with trio.open_nursery() as nursery:
        for name, writer in taken.writers.items():
            nursery.start_soon(synced, name, writer, running)
        positions = await journals.prepare(taken)
        shown = await outputs.synced(taken.step, taken.sinks)
        files = await directories.synced(taken.barrier.checkpoint)
    # After the nursery: the vote is a promise that a commit builds on, so no sink may still be syncing.
    return msgspec.structs.replace(
        positions,
        sinks={**taken.voted(running), **shown},
        directories=files.positions,
        floors={**positions.floors, **files.floors, **outputs.floors()},
    )


async def synced(name: str, writer: SinkWriter, running: RunningOperator) -> None:
    """Sync one sink. Raises OperatorError, and what has a rule of its own."""
    with naming(name, "a checkpoint"), running.making_durable(name):
        await runtime().in_thread(writer.sync)  # fsync may block
