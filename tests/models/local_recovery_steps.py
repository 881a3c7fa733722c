"""The steps of the model of local recovery (`local_recovery.py`), and what is wrong in a state."""

from collections.abc import Iterator

from tests.models.explore import Step
from tests.models.local_recovery import (
    NOTHING,
    Committed,
    Division,
    Frame,
    LocalRules,
    LocalSetup,
    LocalState,
    Vote,
    Worker,
)


class LocalRecovery:
    """The model of local recovery: an `explore.Model`."""

    def __init__(self, setup: LocalSetup, rules: LocalRules) -> None:
        self.setup, self.rules = setup, rules
        self.all = range(setup.workers)

    def start(self) -> LocalState:
        count, steps = self.setup.workers, self.setup.steps
        one = Worker(held=((None,) * steps,) * count, durable=((1, 0),) * count, views=(1,) * count)
        return LocalState((one,) * count, (((),) * count,) * count)

    def canonical(self, state: LocalState) -> LocalState:
        return state

    # --- what is lost ---------------------------------------------------------------------------------------

    def loss(self, state: LocalState) -> str:
        if state.wrong:
            return state.wrong
        done = all(one.up and len(one.ran) == self.setup.steps for one in state.workers)
        if not done and next(self._progress(state), None) is None:
            return "nothing can happen any more, and not every step has run"
        return ""

    # --- steps ----------------------------------------------------------------------------------------------

    def steps(self, state: LocalState) -> Iterator[tuple[Step, LocalState]]:
        yield from self._progress(state)
        for index in self.setup.may_be_lost:
            if state.workers[index].up and state.losses < self.setup.losses:
                yield ("is lost", index), self._lost(state, index)

    def _progress(self, state: LocalState) -> Iterator[tuple[Step, LocalState]]:
        """Yield all steps but losses."""
        yield from self._coordinator(state)
        for index in self.all:
            if not state.workers[index].up:
                if state.appending is None or not self.rules.appends_are_settled:
                    yield ("is taken over", index), self._taken_over(state, index)
                continue
            yield from self._of_worker(state, index)
            for sender in self.all:
                yield from self._received(state, index, sender)

    def _coordinator(self, state: LocalState) -> Iterator[tuple[Step, LocalState]]:
        last = state.committed[-1].number if state.committed else 0
        if state.appending is not None:
            committed = (*state.committed, state.appending)
            yield ("commits", state.appending.number), state._replace(committed=committed, appending=None)
            return
        can_mark = all(len(one.produced) < self.setup.steps for one in state.workers)
        if state.requested == last < self.setup.checkpoints and can_mark:
            yield ("requests", last + 1), state._replace(requested=last + 1)
        if state.requested > last:
            yield from self._append(state)

    def _append(self, state: LocalState) -> Iterator[tuple[Step, LocalState]]:
        """Yield the append of the requested checkpoint, if there is a vote of every worker for it."""
        counted: list[Vote] = []
        for index in self.all:
            term = state.workers[index].term
            own = [
                vote
                for vote in sorted(state.votes)
                if (vote[0], vote[2]) == (index, state.requested)
                and (vote[1] == term or not self.rules.own_votes_of_the_term)
            ]
            if not own:
                return
            counted.append(own[0])
        wrong = ""
        if len({vote[3:] if self.rules.waits_for_all else vote[3] for vote in counted}) > 1:
            wrong = f"checkpoint {state.requested} is a mixture of different steps"
        elif stale := [vote for vote in counted if vote[1] != state.workers[vote[0]].term]:
            wrong = (
                f"what worker {stale[0][0]} prepared for checkpoint {state.requested} is published by nobody"
            )
        _, _, number, step, used = counted[0]
        yield (
            ("has all votes", number),
            state._replace(appending=Committed(number, step, used), wrong=wrong),
        )

    def _of_worker(self, state: LocalState, index: int) -> Iterator[tuple[Step, LocalState]]:
        one = state.workers[index]
        if state.requested > max(one.asked, one.voted):
            yield ("is asked", index, state.requested), self._with(state, index, asked=state.requested)
        if one.remade and len(one.produced) < min(self.setup.steps, self._ahead_of(state, one)):
            yield from self._divides(state, index)
        if not one.loaded:
            yield ("loads its state", index), self._with(state, index, loaded=True)
        if one.tail:
            chain = (*one.chain, one.tail[0])
            synced = self._with(state, index, chain=chain, tail=one.tail[1:])
            yield ("syncs", index, len(chain)), self._sent(synced, index, self._durable(one.term, len(chain)))
        if not one.remade:
            yield ("makes its steps again", index), self._remade(state, index)
        for other in self.all:
            if other != index and state.workers[other].up and one.views[other] < state.workers[other].term:
                yield ("connects to", index, other), self._view(state, index, other)
        may_run = one.remade and (one.loaded or not self.rules.run_after_load)
        if may_run and (used := self._next_inputs(one, index)) is not None:
            yield ("runs", index, len(one.ran) + 1), self._ran(state, index, used)
        purged = self._purgeable(state)
        if purged > one.purged:
            yield ("purges", index, purged), self._with(state, index, purged=purged)

    def _ahead_of(self, state: LocalState, one: Worker) -> int:
        """Return the last step that a worker may divide now."""
        owed = len(one.produced) + 1 if one.term > 1 and self._is_owed(state, one) else 0
        return max(len(one.ran) + self.setup.ahead, min(owed, len(one.ran) + self.setup.owed))

    def _is_owed(self, state: LocalState, one: Worker) -> bool:
        """Whether another worker has divided the next step of this one."""
        return any(len(other.produced) > len(one.produced) for other in state.workers)

    def _divides(self, state: LocalState, index: int) -> Iterator[tuple[Step, LocalState]]:
        one = state.workers[index]
        mark = one.asked if one.asked > max([one.voted, *(d.mark for d in one.produced)]) else 0
        step = len(one.produced) + 1
        full = step - 1 - one.purged >= self.setup.retained_max
        wanted = mark or any(len(other.produced) >= step for other in state.workers)
        if full and not (wanted and self.rules.full_takes_no_input):
            return
        division = Division(NOTHING.input if full else one.term, mark)
        if index in self.setup.may_be_lost:
            divided = self._with(state, index, tail=(*one.tail, division))
            frame = Frame(one.term, step, division)
        else:  # nobody can tell when it is synced
            divided = self._with(state, index, chain=(*one.chain, division))
            frame = Frame(one.term, step, division, step)
        yield ("divides", index, step), self._sent(divided, index, frame)

    def _next_inputs(self, one: Worker, index: int) -> tuple[Division, ...] | None:
        """Return the divisions of the next step of all workers, None if it cannot run."""
        step = len(one.ran)
        if step >= self.setup.steps:
            return None
        own = one.chain if self.rules.run_after_durable else one.produced
        found = []
        for sender in self.all:
            if sender == index:
                if len(own) <= step:
                    return None
                found.append(own[step])
                continue
            if not self.rules.waits_for_all:
                found.append(NOTHING)
                continue
            frame = one.held[sender][step]
            if frame is None:
                return None
            if self.rules.run_after_durable and not self._is_durable(one, sender, frame):
                return None
            found.append(frame.division)
        return tuple(found)

    def _is_durable(self, one: Worker, sender: int, frame: Frame) -> bool:
        term, upto = one.durable[sender]
        return upto >= frame.step and term == frame.term

    def _ran(self, state: LocalState, index: int, used: tuple[Division, ...]) -> LocalState:
        one = state.workers[index]
        inputs = tuple(division.input for division in used)
        step = len(one.ran) + 1
        shown, wrong = state.shown, ""
        if len(shown) < step:
            shown = (*shown, inputs)
        elif shown[step - 1] != inputs and self.rules.waits_for_all:
            wrong = f"worker {index} uses another input of step {step} than was used before"
        if not one.loaded:
            wrong = f"worker {index} runs step {step} on a state that it has not loaded"
        ran = (*one.ran, inputs)
        held = tuple((*of[: step - 1], None, *of[step:]) for of in one.held)
        mark = max(division.mark for division in used)
        votes, voted = state.votes, one.voted
        if mark > voted:
            votes, voted = votes | {(index, one.term, mark, step, ran)}, mark
        after = self._with(state, index, ran=ran, held=held, voted=voted)
        return after._replace(shown=shown, votes=votes, wrong=wrong)

    def _purgeable(self, state: LocalState) -> int:
        """Return the step up to which retained steps may be purged."""
        if self.rules.purge_at_the_commit:
            return state.committed[-1].step if state.committed else 0
        return min(len(one.ran) for one in state.workers)

    # --- messages -------------------------------------------------------------------------------------------

    def _durable(self, term: int, upto: int) -> Frame:
        return Frame(term, 0, NOTHING, upto)

    def _received(self, state: LocalState, index: int, sender: int) -> Iterator[tuple[Step, LocalState]]:
        """Yield the arrival of the next message of each connection from a sender."""
        one, queue = state.workers[index], state.queues[sender][index]
        if sender == index or (state.workers[sender].up and state.workers[sender].views[index] < one.term):
            return  # the sender has not connected to this process
        known = one.views[sender]
        for term in sorted({frame.term for frame in queue}):
            if term > known and self.rules.newer_terms_wait:
                continue
            at = next(n for n, frame in enumerate(queue) if frame.term == term)
            after = self._queued(state, sender, index, (*queue[:at], *queue[at + 1 :]))
            frame = queue[at]
            if term >= known:
                after = self._taken(after, index, sender, frame)
            yield ("receives", index, sender, frame.step or frame.upto), after

    def _taken(self, state: LocalState, index: int, sender: int, frame: Frame) -> LocalState:
        one = state.workers[index]
        held, durable = one.held[sender], one.durable[sender]
        if (
            frame.step > len(one.ran) and held[frame.step - 1] is None
        ):  # else used, or held: it was made again
            held = (*held[: frame.step - 1], frame, *held[frame.step :])
        durable = max(durable, (frame.term, frame.upto)) if frame.upto else durable
        return self._with(
            state,
            index,
            held=(*one.held[:sender], held, *one.held[sender + 1 :]),
            durable=(*one.durable[:sender], durable, *one.durable[sender + 1 :]),
        )

    def _sent(self, state: LocalState, index: int, *frames: Frame) -> LocalState:
        """Send to all others. What goes to a process that is gone is dropped when its successor is known."""
        for other in self.all:
            if other != index:
                state = self._queued(state, index, other, (*state.queues[index][other], *frames))
        return state

    def _queued(self, state: LocalState, sender: int, to: int, queue: tuple[Frame, ...]) -> LocalState:
        own = state.queues[sender]
        own = (*own[:to], queue, *own[to + 1 :])
        return state._replace(queues=(*state.queues[:sender], own, *state.queues[sender + 1 :]))

    def _with(self, state: LocalState, index: int, **fields: object) -> LocalState:
        changed = state.workers[index]._replace(**fields)  # type: ignore[arg-type]
        return state._replace(workers=(*state.workers[:index], changed, *state.workers[index + 1 :]))

    # --- a loss and the take-over ---------------------------------------------------------------------------

    def _lost(self, state: LocalState, index: int) -> LocalState:
        one = state.workers[index]
        gone = Worker(
            term=one.term, up=False, chain=one.chain, held=one.held, durable=one.durable, views=one.views
        )
        workers = (*state.workers[:index], gone, *state.workers[index + 1 :])
        return state._replace(workers=workers, losses=state.losses + 1)

    def _taken_over(self, state: LocalState, index: int) -> LocalState:
        """Another process begins at the last committed checkpoint, in a new term."""
        count, steps = self.setup.workers, self.setup.steps
        before, base = state.workers[index], state.committed[-1] if state.committed else Committed(0, 0, ())
        terms = tuple(one.term + (number == index) for number, one in enumerate(state.workers))
        new = Worker(
            term=before.term + 1,
            chain=before.chain
            if self.rules.marks_in_the_chain
            else tuple(Division(d.input) for d in before.chain),
            base=base.step,
            ran=base.used,
            held=((None,) * steps,) * count,
            durable=((0, 0),) * count,
            views=terms,
            voted=base.number,
            purged=base.step,
            remade=False,
            loaded=False,
            again=len(before.chain),
        )
        return state._replace(workers=(*state.workers[:index], new, *state.workers[index + 1 :]))

    def _view(self, state: LocalState, index: int, other: int) -> LocalState:
        """A worker connects to a process that has taken over, and sends again what it retained."""
        one, host = state.workers[index], state.workers[other]
        held = one.held[other]
        if self.rules.not_used_is_dropped:
            held = (None,) * len(held)
        views = (*one.views[:other], host.term, *one.views[other + 1 :])
        after = self._with(state, index, views=views, held=(*one.held[:other], held, *one.held[other + 1 :]))
        old = tuple(frame for frame in state.queues[other][index] if frame.term >= host.term)
        after = self._queued(after, other, index, old)
        if one.purged > host.base:
            return after._replace(wrong=f"worker {index} has purged what worker {other} needs to continue")
        return self._queued(after, index, other, self._retained(one, host.base))

    def _retained(self, one: Worker, base: int) -> tuple[Frame, ...]:
        """Return what a worker sends to one that begins after a step: its steps, and which are durable."""
        if not one.remade:
            return ()  # all of it comes when it is made again
        first = base + 1 if self.rules.remade_is_retained else max(base, one.again) + 1
        frames = (
            Frame(one.term, step, one.produced[step - 1]) for step in range(first, len(one.produced) + 1)
        )
        return (*frames, self._durable(one.term, len(one.chain)))

    def _remade(self, state: LocalState, index: int) -> LocalState:
        """Make the steps of its chain again, and send them to all that have connected; the others ask."""
        one = state.workers[index]
        chain, first = one.chain, one.base + 1
        frames = (Frame(one.term, step, chain[step - 1]) for step in range(first, len(chain) + 1))
        after = self._with(state, index, remade=True)
        return self._sent(after, index, *frames, self._durable(one.term, len(chain)))

    # --- texts ----------------------------------------------------------------------------------------------

    def describe(self, step: Step) -> str:
        what, *who = step
        if what in ("requests", "commits", "has all votes"):
            return f"the coordinator {what} checkpoint {who[0]}"
        if what == "receives":
            return f"worker {who[0]} receives step {who[2]} of worker {who[1]}, or that it is durable"
        rest = " ".join(map(str, who[1:]))
        return f"worker {who[0]} {what} {rest}".rstrip()
