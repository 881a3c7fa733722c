"""A whole region in one thread: the real circuits and schedules of N workers, with links, store and
coordinator replaced by plain lists, and every interleaving chosen by the test.

As in a real region, frames of one sender arrive in order on one link. A checkpoint counts after every worker
has voted for it. A reset restores the last checkpoint that counted in all workers, with its state blocks, the
files of operators as of it, and the input divisions that all workers have.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from checkpoint import TakenPart
from checkpoint.core.links.frames import ChannelFrame
from checkpoint.core.records.divisions import Division
from checkpoint.core.records.layout import even_layout
from checkpoint.core.records.manifest import WorkerCheckpoint
from checkpoint.core.records.outputs import OutputDecision, OutputSequence
from dataflow.graph.builder import Graph
from dataflow.limits import WorkerLimits
from dataflow.state.operator_directory import Handover
from dataflow.worker.circuit_thread import CircuitIncarnation, RestoreCircuit
from dataflow.worker.companion import RunningOperator
from dataflow.worker.layout_change import LayoutChange
from dataflow.worker.messages import (
    CheckpointTaken,
    DirectoryCheckpoint,
    FilesChanged,
    OutputMade,
    Shared,
    SourceWaits,
    StageEnded,
    ToLinks,
)
from dataflow.worker.spec import Clock, Identity
from journal import Position, Record
from journal.files.directory import snapshot_of
from journal.files.tree import Rebuilding

Choose = Callable[[int], int]
"""choose(n) is a number below n: where the interleaving comes from."""


@dataclass
class StoredCheckpoint:
    """A committed checkpoint."""

    number: int
    step: int
    final: bool
    parts: dict[int, WorkerCheckpoint]


@dataclass
class WorkerState:
    """The state of one worker: what outlives an incarnation, and what does not."""

    blocks: list[tuple[int, str, bytes]] = field(default_factory=list)
    divisions: dict[int, Division] = field(default_factory=dict)
    """Durable ones, also those that an incarnation before has divided and this one will divide anew."""
    durable_step: int = 0
    """The last step whose division of this incarnation, or that it replays, is durable."""
    recorded: deque[Division] = field(default_factory=deque)
    """Not durable yet: a reset may lose them."""
    shared: Shared = field(default_factory=Shared)
    shown: list[OutputMade] = field(default_factory=list)
    """The output log of the one sink that publishes by step: never taken back."""
    line: OutputSequence | None = None
    unpublished: deque[OutputMade] = field(default_factory=deque)
    """Output whose step has a division that is not durable on all workers yet."""
    files: dict[str, list[Record]] = field(default_factory=dict)
    """Operator -> the changes of its files."""
    files_at: dict[str, dict[int, list[Record]]] = field(default_factory=dict)
    """Operator -> checkpoint -> the changes, or a snapshot, that make its files."""
    paths: dict[str, Path] = field(default_factory=dict)
    run: CircuitIncarnation | None = None
    commits: deque[StoredCheckpoint] = field(default_factory=deque)
    """In transit: a commit precedes its notification, and a reset may come between."""
    inbound: dict[int, deque[ChannelFrame]] = field(default_factory=dict)


class OneThreadRegion:
    """A region whose coordinator and workers run in the calling thread, interleaved by `choose`."""

    def __init__(
        self,
        graph: Graph,
        workers: int,
        choose: Choose,
        limits: WorkerLimits | None = None,
        *,
        folder: Path | None = None,
        clock: Clock | None = None,
    ) -> None:
        """folder: where the files of operators are."""
        self.clock = clock
        self.folder = folder
        self.plan = graph.plan()
        self.workers = workers
        self.choose = choose
        self.limits = limits
        self.layout = even_layout(workers)
        self.sides = [WorkerState() for _ in range(workers)]
        self.incarnation = 0
        self.checkpoint: StoredCheckpoint | None = None
        self.votes: dict[int, dict[int, CheckpointTaken]] = {}
        self.last_number = 0
        self.asked = 0
        self.steps_replayed = 0
        self.states_kept = 0
        """How often a worker continued from a checkpoint with the state that it had."""
        self.checkpoint_requested = False
        """An operator waits for a checkpoint: `request_checkpoint` is to be called."""
        self._checkpoint_wanted_at = 0
        """The last step that such a checkpoint must contain."""

    # --- the coordinator's part ---------------------------------------------------------------------------

    def restore(self) -> None:
        """Restore all workers to the last committed checkpoint."""
        self.incarnation += 1
        self._checkpoint_wanted_at = 0
        self.votes.clear()
        at = self.checkpoint
        step, checkpoint = (at.step, at.number) if at else (0, 0)
        for index, side in enumerate(self.sides):
            order = self.order_of(index)
            held = None if side.run is None else side.run.hold(order)
            self.states_kept += held is not None
            if side.run is not None:
                side.run.close()
            side.inbound = {peer: deque() for peer in range(self.workers) if peer != index}
            side.shared.peers_at = 0
            side.shared.incarnation = self.incarnation
            side.unpublished.clear()
            side.commits.clear()
            side.recorded.clear()
            side.line = OutputSequence("shown", step)
            for output in side.shown:
                side.line.add(output.step, output.digest, Position(1, output.step, 0))
            side.run = CircuitIncarnation(
                self.plan,
                Identity("region", index),
                order,
                worker_limits=self.limits or self._any_limits(),
                shared=side.shared,
                post=self._post_of(index),
                clock=self.clock,
                held=held,
            )
            side.blocks = [block for block in side.blocks if block[0] <= checkpoint]
            for number, operator, data in side.blocks if side.run.reads else ():
                side.run.load(number, operator, data)
            for of_part, (number, operator, data) in self.parts_of(index):
                side.run.load(number, operator, data, of_part)
            side.run.loaded(self._directories(index, checkpoint))
        until = min(self._last_recorded(side, step) for side in self.sides)
        for side in self.sides:
            assert side.run is not None
            divisions = tuple(side.divisions[n] for n in range(step + 1, until + 1))
            self.steps_replayed += len(divisions)
            side.durable_step = until
            side.run.start(divisions)
        self._tell_durable()

    def order_of(self, index: int) -> RestoreCircuit:
        """The order to restore the last committed checkpoint."""
        at, number = self.checkpoint, self.incarnation
        part = at.parts.get(index) if at else None
        return RestoreCircuit(
            number,
            at.step if at else 0,
            at.number if at else 0,
            part,
            self.layout,
            b"s" * 16,
            change=self.change_of(index),
            voted=part is not None and part.state.epoch == number - 1,
        )

    def change_of(self, index: int) -> LayoutChange | None:
        """The duties of a worker, if the layout is another one than in the checkpoint."""
        return None

    def parts_of(self, index: int) -> Iterable[tuple[TakenPart, tuple[int, str, bytes]]]:
        """The blocks of other workers from which a worker takes over."""
        return ()

    def _directories(self, index: int, checkpoint: int) -> dict[str, Handover]:
        """The files as of the checkpoint, in a place of this incarnation's own."""
        side = self.sides[index]
        found = {}
        for name, spec in self.plan.specs.items():
            if spec.keeps_files:
                assert self.folder is not None, "operators of this graph keep files"
                side.files[name] = list(side.files_at.get(name, {}).get(checkpoint, []))
                path = self.folder / f"{self.incarnation}" / f"{index}" / name
                with Rebuilding(path) as rebuilding:
                    rebuilding.replay.take(enumerate(side.files[name], 1))
                    rebuilding.put()
                side.paths[name] = path
                found[name] = Handover(path, 1 << 30)
                found[name].snapshot_due = not self.choose(2)
        return found

    def _any_limits(self) -> WorkerLimits:
        """What a step takes is a matter of time, and so of chance: a step divided anew is another one."""
        return WorkerLimits(step_bytes_max=32 * (1 + self.choose(4)), batch_bytes_max=32)

    @staticmethod
    def _last_recorded(side: WorkerState, step: int) -> int:
        while step + 1 in side.divisions:
            step += 1
        return step

    def request_checkpoint(self, *, final: bool = False, all_workers: bool = False) -> None:
        """Ask some workers now; those left out are asked when the next checkpoint is."""
        self.last_number += 1
        self.asked = self.last_number
        for side in self.sides:
            if final or all_workers or self.choose(3):
                assert side.run is not None
                side.run.request_checkpoint(self.last_number, final=final)

    def _post_of(self, index: int) -> Callable[[ToLinks], None]:
        def post(message: ToLinks) -> None:
            if isinstance(message, StageEnded):
                self._stage_ended(index, message)
            elif isinstance(message, SourceWaits):
                self.checkpoint_requested = True
                self._checkpoint_wanted_at = max(self._checkpoint_wanted_at, message.step)
            elif isinstance(message, OutputMade):
                self.sides[index].unpublished.append(message)
                self._show(self.sides[index])
            elif isinstance(message, FilesChanged):
                self.sides[index].files[message.operator].extend(message.records)
            elif isinstance(message, DirectoryCheckpoint):
                self._directory_checkpoint(self.sides[index], message)
            elif isinstance(message, CheckpointTaken):
                self._checkpoint_taken(index, message)

        return post

    def _directory_checkpoint(self, side: WorkerState, message: DirectoryCheckpoint) -> None:
        name, copy = message.operator, message.copy
        if copy is not None:
            side.files[name] = list(snapshot_of(copy, message.sizes))
        side.files_at.setdefault(name, {})[message.checkpoint] = list(side.files[name])

    def _sync(self, side: WorkerState) -> bool:
        """The oldest division that is recorded becomes durable."""
        division = side.recorded.popleft()
        for later in [step for step in side.divisions if step >= division.step]:
            del side.divisions[later]
        side.divisions[division.step] = division
        side.durable_step = division.step
        for one in self.sides:
            self._show(one)
        self._tell_durable()
        self._count_votes()
        return True

    def _tell_durable(self) -> None:
        """Divisions are durable at all workers."""
        step = min(side.durable_step for side in self.sides)
        for side in self.sides:
            assert side.run is not None
            side.run.divisions_durable(step)

    def _show(self, side: WorkerState) -> None:
        """Output by step, as far as divisions are durable at all workers."""
        while side.unpublished and all(side.unpublished[0].step <= one.durable_step for one in self.sides):
            output = side.unpublished.popleft()
            assert side.line is not None
            if side.line.judge(output.step, output.digest) is OutputDecision.APPEND:
                side.line.add(output.step, output.digest, Position(1, output.step, 0))
                side.shown.append(output)

    def _stage_ended(self, index: int, message: StageEnded) -> None:
        side = self.sides[index]
        if message.sources is not None:
            side.recorded.append(Division(message.step, message.time_ms, message.sources))
        for peer, frames in message.frames.items():
            self.sides[peer].inbound[index].extend(frames)

    def _checkpoint_taken(self, index: int, message: CheckpointTaken) -> None:
        number = message.barrier.checkpoint
        for writer in message.writers.values():
            writer.sync()
        self.sides[index].blocks += [(number, *block[:2]) for block in message.blocks]
        votes = self.votes.setdefault(number, {})
        votes[index] = message
        self._count_votes()

    def _count_votes(self) -> None:
        """A vote waits for the division of its step, and for the output up to there."""
        for number in sorted(self.votes):
            votes = self.votes[number]
            sides = [(self.sides[index], vote) for index, vote in votes.items()]
            ready = all(vote.step <= side.durable_step and not side.unpublished for side, vote in sides)
            if len(votes) == self.workers and ready:
                del self.votes[number]
                self._commit(number, votes)

    def _commit(self, number: int, votes: dict[int, CheckpointTaken]) -> None:
        assert len({vote.step for vote in votes.values()}) == 1, "a checkpoint is at one step"
        at = Position(self.incarnation, number, 0)
        parts = {
            worker: WorkerCheckpoint(
                state=at, steps=at, sources=vote.sources, sinks=vote.voted(RunningOperator())
            )
            for worker, vote in votes.items()
        }
        last = votes[0]
        if (
            number == self.last_number and self._checkpoint_wanted_at > last.step
        ):  # wanted while this was under way
            self.checkpoint_requested = True
        self.checkpoint = StoredCheckpoint(number, last.step, last.barrier.final, parts)
        for side in self.sides:
            side.commits.append(self.checkpoint)

    # --- time advances ------------------------------------------------------------------------------------

    def turn(self) -> bool:
        """Some worker does one thing, or some frame arrives. False if nothing can happen any more."""
        moves = self.moves()
        start = self.choose(len(moves))
        return any(move() for move in moves[start:] + moves[:start])

    def moves(self) -> list[Callable[[], Any]]:
        """What can happen next. One that returns False has changed nothing."""
        moves: list[Callable[[], Any]] = []
        for index, side in enumerate(self.sides):
            moves.append(lambda index=index: self.sides[index].run.advance())  # type: ignore[misc, union-attr]
            if side.recorded:
                moves.append(lambda side=side: self._sync(side))  # type: ignore[misc]
            if side.commits:
                moves.append(lambda side=side: self._hear_commit(side))  # type: ignore[misc]
            for peer, queue in side.inbound.items():
                if queue:
                    moves.append(lambda index=index, peer=peer: self._arrive(index, peer))  # type: ignore[misc]
        return moves

    @staticmethod
    def _hear_commit(side: WorkerState) -> bool:
        assert side.run is not None
        at = side.commits.popleft()
        side.run.publish(at.number, final=at.final, step=at.step)
        return True

    def _arrive(self, index: int, peer: int) -> bool:
        side = self.sides[index]
        frame = side.inbound[peer].popleft()
        if frame.type.name == "STEP_END":
            side.shared.peers_at = max(side.shared.peers_at, frame.step)
        assert side.run is not None
        side.run.arrived(frame)
        return True

    def run_with_trouble(self, rng: Random, rounds: int, turns: int, checkpoints: float = 0.5) -> None:
        """Make less than `turns` turns, then a checkpoint or a reset, `rounds` times; then run to the end."""
        self.restore()
        for _ in range(rounds):
            for _ in range(rng.randrange(turns)):
                self.turn()
            self.request_checkpoint() if rng.random() < checkpoints else self.restore()
        self.finish()

    def exhausted(self) -> bool:
        return all(side.shared.exhausted for side in self.sides)

    def finish(self) -> None:
        """Run to the end and take the final checkpoint; perhaps with a reset between its commit and its
        end.
        """
        while not self.exhausted():
            going = self.turn() or self.exhausted()  # that all was read may be noticed in doing nothing
            assert going, "the region is stuck before its sources are exhausted"
        dies_last = not self.choose(3)
        while self.checkpoint is None or not self.checkpoint.final:
            self.request_checkpoint(final=True)
            while self.turn():
                if dies_last and self.checkpoint is not None and self.checkpoint.final:
                    dies_last = False
                    self.restore()  # of those that have not heard of the final checkpoint, nobody will
        assert not any(side.commits for side in self.sides), "what is committed is heard in the end"
        self.close()

    def close(self) -> None:
        for side in self.sides:
            if side.run is not None:
                side.run.close()
                side.run = None
