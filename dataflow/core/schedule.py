"""What a worker does next: which stage of which step, or nothing until something arrives.

Rules of this file: numbers of steps and cuts; no rows, no threads, no clock. It is made anew for each
incarnation.

Theory. Three things move on their own: sources (stage 0 *produces* step p), later stages (stage k has *done*
step d_k), and what has arrived on the channels. The order is

    p >= d_1 >= d_2 >= ... >= d_last        and        p <= d_last + steps_ahead

Of all that could run, the highest stage runs first: what is furthest along leaves memory first, and a worker
that waits for its peers never holds them up. A step is produced when there is something to read, when the
recorded divisions say so, when a peer has ended that step (it waits for ours), or when a cut is asked for:
an idle region makes no steps.

A cut is asked for in the next STEP_END that this worker sends, once. The alignment of stage 1 says at which
step it happens; that may be an earlier one, because a peer asked first. After the final cut nothing is
produced any more.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from dataflow.core.plan import CircuitPlan


class Produce(NamedTuple):
    """Run stage 0 of this step: read (or replay), send, end it with these marks."""

    step: int
    replay: bool


class RunStage(NamedTuple):
    """Run a later stage of this step; its channels are complete."""

    stage: int
    step: int


class Wait(NamedTuple):
    """Nothing can run until something arrives. `why` is for people."""

    why: str


Action: TypeAlias = Produce | RunStage | Wait


class Barrier(NamedTuple):
    """What a STEP_END carries: the cut asked for, 0 none."""

    cut: int = 0
    final: bool = False


NO_CUT = Barrier()


@dataclass(slots=True)
class Schedule:
    """One incarnation of one worker. The owner reports what happens and asks `next_action`.

    Invariant: what is said in the theory above about p and d.
    """

    plan: CircuitPlan
    first_step: int
    last_cut: int
    replay_until: int
    steps_ahead: int
    produced: int = field(init=False)
    done: list[int] = field(init=False)
    """done[k] is the last step that stage k has run, for k >= 1; done[0] is `produced`'s twin."""
    wanted: Barrier = NO_CUT
    """Asked for by the coordinator and not yet sent with a STEP_END of ours."""
    paused: bool = False
    """No step is begun for input: only for a peer's, for a cut, or to replay."""
    ended: bool = False
    """The final cut has been taken: nothing follows."""
    cuts: dict[int, Barrier] = field(default_factory=dict)
    """Step -> its cut, from stage 1 until the last stage has run it."""

    def __post_init__(self) -> None:
        self.produced = self.first_step - 1
        self.done = [self.first_step - 1] * len(self.plan.stages)

    @property
    def consumed(self) -> int:
        """The last step that is through all stages here. (A sink is in stage 1 or later: there are two.)"""
        return self.done[-1]

    def request_cut(self, cut: int, *, final: bool) -> None:
        """The coordinator asks. A number not above the last cut is an old request."""
        if cut > self.last_cut and cut > self.wanted.cut:
            self.wanted = Barrier(cut, final)

    def next_action(
        self, is_complete: Callable[[int, int], bool], *, input_waits: bool, room: bool, peers_at: int
    ) -> Action:
        """What to do now.

        is_complete: whether all senders have ended a step on a channel. input_waits: a source has more to
        read. room: the store takes more bytes. peers_at: the highest step that any peer has ended.
        """
        for stage in range(len(self.plan.stages) - 1, 0, -1):
            step = self.done[stage] + 1
            receives = self.plan.stages[stage].receives
            if self.done[stage - 1] >= step and all(is_complete(channel, step) for channel in receives):
                return RunStage(stage, step)
        return self._maybe_produce(input_waits=input_waits, room=room, peers_at=peers_at)

    @property
    def replaying(self) -> bool:
        """Whether recorded steps are still to be made."""
        return self.produced < self.replay_until

    def _maybe_produce(self, *, input_waits: bool, room: bool, peers_at: int) -> Action:
        step = self.produced + 1
        if self.ended:
            return Wait("the final cut is taken")
        if self.produced - self.consumed >= self.steps_ahead:
            return Wait(f"step {self.consumed + 1} is not complete")
        if self.replaying:
            return Produce(step, replay=True)
        if (input_waits and room and not self.paused) or peers_at >= step or self.wanted.cut:
            return Produce(step, replay=False)
        if self.paused:
            return Wait("the region is paused")
        return Wait("the store has no room" if input_waits else "there is no input")

    def step_produced(self) -> Barrier:
        """Stage 0 of the next step is run; returns what its STEP_ENDs carry."""
        self.produced += 1
        self.done[0] = self.produced
        barrier, self.wanted = self.wanted, NO_CUT
        return barrier

    def step_aligned(self, step: int, barrier: Barrier) -> None:
        """Stage 1 is about to run the step, and this is what its channels say about a cut."""
        if barrier.cut:
            self.cuts[step] = barrier
            self.last_cut = max(self.last_cut, barrier.cut)
            if self.wanted.cut <= barrier.cut:
                self.wanted = NO_CUT  # a peer asked before us: it happens here
            self.ended = self.ended or barrier.final

    def cut_at(self, step: int) -> Barrier:
        """The cut at the end of a step that stage 1 has aligned."""
        return self.cuts.get(step, NO_CUT)

    def stage_done(self, stage: int, step: int) -> bool:
        """A later stage has run the step. True if that was the last one: the step is over here."""
        assert self.done[stage] == step - 1, "stages run steps in order"
        self.done[stage] = step
        return stage == len(self.plan.stages) - 1

    def forget(self, step: int) -> Barrier:
        """The step is over; returns its cut, to be voted for."""
        return self.cuts.pop(step, NO_CUT)
