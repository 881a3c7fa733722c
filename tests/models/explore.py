"""The engine: visits every state that a model can reach, breadth first, until one is a loss.

It knows nothing of servers or rules. A model supplies a start, the steps from a state, a canonical form
(indistinguishable states have the same one), and what is lost in a state. Because the search is breadth
first, the story that it prints is a shortest one.

How to read a story: each line is one step of a participant; between them time passes, and a participant that
is not named did nothing, for instance because it was dead, paused or cut off. The last line says who would
now read, and what is missing. The story is replayed from the start, on states that are not canonical, so
that a server keeps its name.
"""

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

State = Any
"""A state of the model: hashable, compared by value."""
Step = tuple[Any, ...]
"""A step, in the form that `describe` of the model takes. Only the steps of a story are described."""


Progress = Callable[[int, int], None]
"""(steps from the start, states met until now)"""


def ignore_progress(_depth: int, _states: int) -> None:
    """Report nothing."""


class Model(Protocol):
    """A model to explore."""

    def start(self) -> State: ...

    def steps(self, state: State) -> Iterable[tuple[Step, State]]:
        """Yield each possible step, with the state after it, which need not be canonical."""
        ...

    def canonical(self, state: State) -> State:
        """Return the representative of all states that are indistinguishable from this one."""
        ...

    def loss(self, state: State) -> str:
        """Describe what is lost in this state; "" if nothing is."""
        ...

    def describe(self, step: Step) -> str:
        """Return the text of a step, for a story."""
        ...


@dataclass(frozen=True, slots=True)
class Result:
    """What an exploration found.

    states: met, the start included. depth: steps of the longest shortest way. loss: the first one, or ''.
    story: the steps to it. complete: every state that can be reached was looked at, and none is a loss.
    """

    states: int
    depth: int
    loss: str = ""
    story: tuple[str, ...] = ()
    complete: bool = False

    @property
    def verdict(self) -> str:
        return "loss" if self.loss else "complete, safe" if self.complete else "stopped, safe so far"


@contextmanager
def no_collecting() -> Iterator[None]:
    """States hold no cycles, and there are many of them: looking for cycles takes a third of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@no_collecting()
def explore(model: Model, states_max: int, progress: Progress = ignore_progress) -> Result:
    """Explore a model up to that many states. `progress` is called after each level."""
    first = model.canonical(model.start())
    reached_from: dict[State, State] = {first: None}
    if found := model.loss(first):
        return Result(1, 0, found)
    steps, canonical, loss = model.steps, model.canonical, model.loss
    level, depth = [first], 0
    while level:
        reached = []
        depth += 1
        for state in level:
            for _, raw in steps(state):
                after = canonical(raw)
                if after in reached_from:
                    continue
                reached_from[after] = state
                reached.append(after)
                if found := loss(after):
                    lines, last = story(model, reached_from, after)
                    return Result(len(reached_from), depth, model.loss(last) or found, lines)
            if len(reached_from) >= states_max:
                return Result(len(reached_from), depth)
        level = reached
        progress(depth, len(reached_from))
    return Result(len(reached_from), depth - 1, complete=True)


@no_collecting()
def explore_by_hash(model: Model, states_max: int, progress: Progress = ignore_progress) -> Result:
    """As `explore`, but it remembers 64-bit hashes only: less memory and no story, for long runs by hand.

    Two states with one hash would be taken for one; among ten million states the chance of that is below 1
    in 300,000.
    """
    first = model.canonical(model.start())
    seen = {hash(first)}
    level, depth = [first], 0
    while level:
        reached = []
        depth += 1
        for state in level:
            for _, raw in model.steps(state):
                after = model.canonical(raw)
                number = hash(after)
                if number in seen:
                    continue
                seen.add(number)
                reached.append(after)
                if found := model.loss(after):
                    return Result(len(seen), depth, found, (repr(after),))
            if len(seen) >= states_max:
                return Result(len(seen), depth)
        level = reached
        progress(depth, len(seen))
    return Result(len(seen), depth - 1, complete=True)


def story(model: Model, reached_from: dict[State, State], last: State) -> tuple[tuple[str, ...], State]:
    """Return the texts of the steps to a state, and the state with the names of its servers."""
    path = [last]
    while (before := reached_from[path[-1]]) is not None:
        path.append(before)
    path.reverse()
    lines, state = [], model.start()
    for wanted in path[1:]:
        step, state = next((s, raw) for s, raw in model.steps(state) if model.canonical(raw) == wanted)
        lines.append(model.describe(step))
    return tuple(lines), state
