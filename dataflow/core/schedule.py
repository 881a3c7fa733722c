"""Decide what a worker does next: a stage of a step, or nothing until something arrives. Pure.

Sources (stage 0 *produces* step p), later stages (stage k has *done* step d_k) and frames advance
independently:

    p >= d_1 >= d_2 >= ... >= d_last        and        p <= d_last + steps_ahead

Of all stages that can run, the highest runs first, so rows leave memory early and a waiting worker never
delays its peers.

Local recovery: a worker that has taken another one over is behind its peers, which wait for its rows and not
for its state. So it makes the steps that it *owes* them further ahead: those of its chain, and those that a
peer has ended. If it can also run steps, it runs two for each that it owes, so it is not behind for long.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from dataflow.core.plan import CircuitPlan


class Produce(NamedTuple):
    """Run stage 0 of this step: read or replay input, send the results, end the step."""

    step: int
    replay: bool


class RunStage(NamedTuple):
    """Run a later stage of this step. Its channels are complete."""

    stage: int
    step: int


class Wait(NamedTuple):
    """Nothing can run until something arrives. `why` is for people."""

    why: str


Action: TypeAlias = Produce | RunStage | Wait


class Barrier(NamedTuple):
    """The checkpoint request that a STEP_END carries; 0 for none."""

    checkpoint: int = 0
    final: bool = False


NO_CHECKPOINT = Barrier()

_RUNS_PER_OWED_STEP: Final = 2


@dataclass(slots=True)
class Schedule:
    """The schedule of one worker in one incarnation. Its owner reports events and calls `next_action`."""

    plan: CircuitPlan
    first_step: int
    last_checkpoint: int
    replay_until: int
    steps_ahead: int
    owed_ahead: int = 0
    """How many steps it may be ahead with a step that it owes; 0 unless it takes a worker over."""
    produced: int = field(init=False)
    done: list[int] = field(init=False)
    """done[k] is the last step that stage k has run, for k >= 1; done[0] equals `produced`."""
    wanted: Barrier = NO_CHECKPOINT
    """Requested by the coordinator and not yet sent with a STEP_END of this worker."""
    wanted_from: int = 0
    """The first step whose STEP_END may carry it."""
    paused: bool = False
    """No step is begun for input, only for a peer, for a checkpoint or to replay."""
    ended: bool = False
    """The final checkpoint has been taken: nothing follows."""
    checkpoints: dict[int, Barrier] = field(default_factory=dict)
    """Step -> its checkpoint, from stage 1 until the last stage has run it."""
    owes_from: int = 0
    """When this step is consumed, a step that is owed comes first."""

    def __post_init__(self) -> None:
        self.produced = self.first_step - 1
        self.done = [self.first_step - 1] * len(self.plan.stages)

    @property
    def consumed(self) -> int:
        """The last step that has passed all stages here. There are at least two: sinks are in stage 1 or
        later.
        """
        return self.done[-1]

    def request_checkpoint(self, checkpoint: int, *, final: bool, step: int = 0) -> None:
        """Take a request of the coordinator: not before this step. A number not above the last checkpoint is
        obsolete.
        """
        if checkpoint > self.last_checkpoint and checkpoint > self.wanted.checkpoint:
            self.wanted, self.wanted_from = Barrier(checkpoint, final), step

    def next_action(
        self,
        is_complete: Callable[[int, int], bool],
        *,
        input_waits: bool,
        room: bool,
        peers_at: int,
        has_memory: bool = True,
    ) -> Action:
        """Return what to do now. is_complete: whether all senders ended a step on a channel. input_waits: a
        source has more. room: the store accepts more data. peers_at: the highest step that any peer has
        ended. has_memory: for further steps that are owed.
        """
        # A step is made only for input, a recorded division, a checkpoint, or a peer that has ended it and
        # waits for this worker: an idle region makes none. After the final checkpoint nothing may be
        # produced.
        owed = has_memory and self._owes(peers_at)
        first = owed and self.consumed >= self.owes_from
        for stage in () if first else range(len(self.plan.stages) - 1, 0, -1):
            step = self.done[stage] + 1
            receives = self.plan.stages[stage].receives
            if self.done[stage - 1] >= step and all(is_complete(channel, step) for channel in receives):
                return RunStage(stage, step)
        if owed:
            return Produce(self.produced + 1, replay=self.replaying)
        return self._maybe_produce(input_waits=input_waits, room=room, peers_at=peers_at)

    def _owes(self, peers_at: int) -> bool:
        """Whether peers wait for the next step of a worker that is behind."""
        ahead = self.produced - self.consumed
        waited_for = self.replaying or peers_at > self.produced
        return waited_for and not self.ended and self.steps_ahead <= ahead < self.owed_ahead

    @property
    def replaying(self) -> bool:
        """Whether recorded steps remain to be replayed."""
        return self.produced < self.replay_until

    def _maybe_produce(self, *, input_waits: bool, room: bool, peers_at: int) -> Action:
        step = self.produced + 1
        if self.ended:
            return Wait("the final checkpoint is taken")
        if self.produced - self.consumed >= self.steps_ahead:
            return Wait(f"step {self.consumed + 1} is not complete")
        if self.replaying:
            return Produce(step, replay=True)
        if (input_waits and room and not self.paused) or peers_at >= step or self.wanted.checkpoint:
            return Produce(step, replay=False)
        if self.paused:
            return Wait("the region is paused")
        return Wait("the store has no room" if input_waits else "there is no input")

    def step_produced(self, recorded: Barrier | None = None) -> Barrier:
        """Note that stage 0 of the next step has run. Return what its STEP_ENDs carry: what is recorded of a
        step that is made again with local recovery, otherwise the request, if there is one.
        """
        # A requested checkpoint is attached once. The alignment of stage 1 decides its step, which may be an
        # earlier one: a peer may have sent the request first.
        self.produced += 1
        self.done[0] = self.produced
        self.owes_from = self.consumed + _RUNS_PER_OWED_STEP
        if recorded is not None:
            if self.wanted.checkpoint <= recorded.checkpoint:
                self.wanted = NO_CHECKPOINT  # the checkpoint was attached before this process began
            return recorded
        if self.produced < self.wanted_from:
            return NO_CHECKPOINT
        barrier, self.wanted = self.wanted, NO_CHECKPOINT
        return barrier

    def step_aligned(self, step: int, barrier: Barrier) -> None:
        """Note that stage 1 is about to run the step, with the checkpoint request of its channels."""
        if barrier.checkpoint:
            self.checkpoints[step] = barrier
            self.last_checkpoint = max(self.last_checkpoint, barrier.checkpoint)
            if self.wanted.checkpoint <= barrier.checkpoint:
                self.wanted = NO_CHECKPOINT  # a peer's request came first: the checkpoint is here
            self.ended = self.ended or barrier.final

    def checkpoint_at(self, step: int) -> Barrier:
        """Return the checkpoint at the end of a step that stage 1 has aligned."""
        return self.checkpoints.get(step, NO_CHECKPOINT)

    def stage_done(self, stage: int, step: int) -> bool:
        """Note that a later stage has run the step. Return True if it was the last stage."""
        assert self.done[stage] == step - 1, "stages run steps in order"
        self.done[stage] = step
        return stage == len(self.plan.stages) - 1

    def forget(self, step: int) -> Barrier:
        """Forget a step that has ended; return its checkpoint, to vote for."""
        return self.checkpoints.pop(step, NO_CHECKPOINT)


# --- the fixed cost of steps --------------------------------------------------------------------------------
#
# How much of the time in which a circuit works is a fixed cost of its steps, not the work for rows. Pure.
#
# Steps are as small as the input allows: with little input they are many, and each costs a millisecond or so
# whatever it contains. Under more load they become fewer and larger, so this cost says nothing about how
# much a worker could read. `AutoScale` must not count it.
#
# The estimate is the intercept of a line through (rows, seconds) of the recent runs of each stage. It is 0 if
# these runs had nearly equal numbers of rows, because the two parts cannot be separated then, and at most
# `fixed_s_max`, because a longer time is never the cost of an empty run.

fixed_s_max: Final = 0.005
_DECAY: Final = 0.98
"""The weight of a run relative to the next one: about 50 runs count."""
_RUNS_MIN: Final = 10
_SPREAD_MIN: Final = 0.2
"""The least standard deviation of the numbers of rows, as a share of their mean."""


class FixedCost:
    """The fixed cost of the runs of each stage of one circuit."""

    def __init__(self) -> None:
        self._sums: dict[int, list[float]] = defaultdict(lambda: [0.0] * 5)
        """Stage -> weighted sums of 1, rows, seconds, rows * rows, rows * seconds."""

    def of_run(self, stage: int, rows: int, seconds: float) -> float:
        """Note a run of a stage. Return how many of its seconds are fixed cost."""
        sums = self._sums[stage]
        for index, value in enumerate((1.0, rows, seconds, rows * rows, rows * seconds)):
            sums[index] = sums[index] * _DECAY + value
        weight = sums[0]
        mean_rows, mean_s = sums[1] / weight, sums[2] / weight
        variance = sums[3] / weight - mean_rows**2
        if weight < _RUNS_MIN or variance <= (_SPREAD_MIN * mean_rows) ** 2:
            return 0.0
        slope = max(0.0, (sums[4] / weight - mean_rows * mean_s) / variance)
        return min(max(0.0, mean_s - slope * mean_rows), fixed_s_max, seconds)


class DurableSteps:
    """The durable steps of all workers. Numbers never decrease. `peers`: the number of other workers."""

    def __init__(self, peers: int) -> None:
        self._peers = peers
        self._floor = 0
        self._own = 0
        self._steps_of_peers: dict[int, int] = {}

    def floor(self, step: int) -> None:
        """Note that all workers' divisions up to this step were durable when the incarnation began."""
        self._floor = max(self._floor, step)

    def own(self, step: int) -> None:
        """Note that this worker's divisions are durable up to this step."""
        self._own = max(self._own, step)

    def of_peer(self, peer: int, step: int) -> None:
        """Note that a peer's divisions are durable up to this step."""
        self._steps_of_peers[peer] = max(self._steps_of_peers.get(peer, 0), step)

    @property
    def everywhere(self) -> int:
        """The step up to which the divisions of all workers are durable."""
        if len(self._steps_of_peers) < self._peers:
            return self._floor  # of some peer nothing beyond the floor is known
        return max(self._floor, min([self._own, *self._steps_of_peers.values()]))
