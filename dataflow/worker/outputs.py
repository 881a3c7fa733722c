"""The output logs of one worker in one incarnation: when a step's output is appended, and each log's
position.

It runs on trio only. `checkpoint.core.outputs` decides whether output is appended or discarded. A sink with
publish="step" waits until the input division of the step is durable on all workers. Each worker announces
that with DURABLE(n): its divisions up to step n are synced on the quorum. In an at-most-once region, and with
local recovery, the circuit waits for this, and so do all sinks.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import msgspec
import trio

from checkpoint import (
    FrameType,
    OutputDecision,
    Publish,
    SplitPosition,
    WorkerCheckpoint,
    limits,
    output_chain,
    output_register,
    worker_directory,
)
from checkpoint.chains.output_following import split_of
from checkpoint.chains.output_log import OutputLog
from checkpoint.chains.trimming import TrimPlanner
from dataflow.core.durable_steps import DurableSteps
from dataflow.graph.plan import GraphPlan
from dataflow.sinks.log import LogSink
from dataflow.worker.collecting import FloorCollector
from dataflow.worker.messages import OutputMade
from dataflow.worker.peer_exchange import PeerExchange
from dos_client import Store
from dos_protocol.errors import ClosedError, CorruptDataError, DosError, FencedError
from journal import NO_FLOOR, Floor, Position, Scratch
from journal.ports import ClaimPort

logger = logging.getLogger("dos.dataflow")


class Outputs:
    """The output logs of a worker. Call `open`, then run `publish_all` and `announce` in tasks."""

    def __init__(
        self,
        graph: GraphPlan,
        exchange: PeerExchange,
        peers: int,
        *,
        gates: bool,
        durable: Callable[[int], None],
    ) -> None:
        """gates: the circuit waits until the divisions of a step are durable on all workers. durable: called
        then with the step up to which they are.
        """
        self._sinks = {name: spec for name, spec in graph.specs.items() if isinstance(spec, LogSink)}
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
        joins: the region did not have this worker in the checkpoint. line: the line of history of the
        checkpoint; rewound: it begins with it. workers: how many the region has.

        Raises what `OutputLog.open` raises, in a group; call `aclose` then too.
        """

        async def open_one(name: str, spec: LogSink) -> None:
            at = None if part is None else log_position(name, part.sinks.get(name))
            log = await OutputLog.open(
                claim,
                name,
                spec.publish,
                after_step=after_step,
                at=at,
                generation=generation,
                scratch=scratch,
                released=floors.get(output_chain(name), NO_FLOOR),
                line=line,
                rewound=rewound or joins,  # it may have steps of a line that was left before this worker was
                workers=workers,
            )
            self._logs[name] = log
            if joins:
                prepared = None if part is None else part.sinks.get(name)
                await log.begin_after(name, after_step, spec.time_in(prepared))

        self._handled = dict.fromkeys(self._sinks, after_step)
        async with trio.open_nursery() as opening:
            for name, spec in self._sinks.items():
                opening.start_soon(open_one, name, spec)

    async def aclose(self) -> None:
        """Stop appending."""
        for log in self._logs.values():
            await log.aclose()

    # --- from the circuit and the peers -------------------------------------------------------------------

    def take(self, message: OutputMade) -> None:
        """Queue the output of a step. Never blocks."""
        self._to_publish.send_nowait(message)

    def replays_until(self, step: int, *, everywhere: bool) -> None:
        """Note that divisions up to this step are durable: of this worker, or everywhere, as the coordinator
        has found.
        """
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
        """Trim the logs at intervals: find what their consumers need, for the next votes, and delete what
        checkpoints have released and nobody needs.
        """
        directory, split = worker_directory(region, worker), split_of(worker)
        trimmers = {
            name: log.trimmer(
                TrimPlanner(store, output_register(region, name), self._sinks[name].rule),
                partial(collecting.permit, output_chain(name)),
            )
            for name, log in self._logs.items()
        }
        while trimmers:
            await trio.sleep(limits.trim_poll_s)
            for name, trimmer in trimmers.items():
                allowed = collecting.released.get(output_chain(name), NO_FLOOR)
                try:
                    await self._logs[name].trim(trimmer, directory, split, allowed)
                except (FencedError, ClosedError):
                    raise
                except DosError as error:  # what is needed is unknown now, so nothing more is deleted
                    logger.info("output %s of %s is not trimmed now: %s", name, directory, error)

    def floors(self) -> dict[str, Floor]:
        """Return chain -> the lowest segment that the checkpoint of the last `synced` keeps."""
        return {output_chain(name): log.vote_floor for name, log in self._logs.items()}

    async def synced(self, step: int, prepared: Mapping[str, Any]) -> dict[str, Any]:
        """Wait until the output up to a step is synced on the quorum; return sink -> what the checkpoint
        stores of it. prepared: what the sinks prepared for the checkpoint.
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


def log_position(sink: str, prepared: Any) -> Position | None:
    """Return the position of an output log that a checkpoint stores. Raises CorruptDataError."""
    if prepared is None:
        return None
    try:
        return msgspec.convert(prepared, Position)
    except msgspec.ValidationError as error:
        raise CorruptDataError(f"sink {sink}", 0, "the position of an output log", str(error)) from error


def _ends(sources: Mapping[str, Mapping[str, SplitPosition]]) -> dict[str, dict[str, int]]:
    return {name: {split: at.position for split, at in splits.items()} for name, splits in sources.items()}
