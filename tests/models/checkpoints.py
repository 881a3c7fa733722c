"""The model of checkpoints: positions, votes and releases of two workers, under coordinators that replace one
another.

The manifest is one list, to which only the holder of the newest incarnation appends. Each worker has one
journal, which keeps everything that was synced. `take_over.py` shows that a few servers can provide both. A
coordinator requests a checkpoint. A worker adds one record for it and votes with its position. When all votes
are in, the checkpoint is committed. At any time a new incarnation may begin: it restores the last checkpoint
and orders the workers to its positions; or a person rolls back to an older one. Workers receive orders at any
later time.

    a zombie that wakes up     a worker that is not notified continues in its incarnation; its votes arrive
                               at any time
    a contender that dies      no step is ever required; a new incarnation may begin at any time

The promises checked in every state (P-6, P-7): a committed checkpoint is *one* history (both workers have the
same records, of the same incarnations, and it continues the checkpoint that was restored or committed before
it), and each checkpoint that is still retained can be restored exactly.

What is abstracted: a step of the region and a checkpoint are the same (one record each); output is handled
like state. Votes are kept for ever: a vote that arrives late, or twice, is a vote that is used late.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tests.models.explore import Step

Position = tuple[int, int]
"""(incarnation whose segment it lies in, records up to it); (0, 0) is before everything."""
ORIGIN: Position = (0, 0)
WORKERS = (0, 1)


class CheckpointRules(NamedTuple):
    """The rules of docs/decisions/0003 that checkpoints need. Each can be switched off."""

    r11_claim_before_reading: bool = True
    """A coordinator holds the manifest before it reads what to restore, and before it sends orders."""
    r12_positions_name_their_line: bool = True
    """A position names its segment; without it, it is a size on the newest line of history."""
    r12_votes_of_this_incarnation: bool = True
    """Only votes of the coordinator's own incarnation count."""
    r13_base_is_the_position_ordered: bool = True
    """A worker continues at the ordered position; without it, at the end of its longest history."""
    r14_release_is_a_record: bool = True
    """Workers delete what older checkpoints need after the manifest records the release; without it, when the
    coordinator orders it.
    """


class CheckpointSetup(NamedTuple):
    """The size of the model: the number of incarnations, and of checkpoints that may be requested."""

    incarnations: int = 3
    checkpoints: int = 2


class Checkpoint(NamedTuple):
    """An entry of the manifest. `back`: not a new checkpoint, but a rollback by a person to an older one."""

    number: int
    incarnation: int
    positions: tuple[Position, ...]
    back: bool = False


class Segment(NamedTuple):
    """The records that a worker added in one incarnation, after `base`: the numbers of their checkpoints."""

    base: Position
    checkpoints: tuple[int, ...] = ()


class CheckpointState(NamedTuple):
    """The whole state. Lists are by incarnation, from 1 on."""

    manifest: tuple[Checkpoint, ...] = ()
    incarnation: int = 1
    orders: tuple[tuple[Position, ...], ...] = ((ORIGIN, ORIGIN),)
    """The positions to which each incarnation orders the workers."""
    requested: tuple[int, ...] = (0,)
    """The number of the last checkpoint that each incarnation requested."""
    segments: tuple[tuple[Segment | None, ...], ...] = ((None,), (None,))
    """By worker, then by incarnation."""
    votes: frozenset[tuple[int, int, int, Position]] = frozenset()
    """(worker, incarnation, checkpoint, position)"""
    released: int = 0
    """The manifest has released the checkpoints below this number."""
    deleted: tuple[int, ...] = (0, 0)
    """By worker: the number below which it has deleted what checkpoints need."""


class Checkpoints:
    """The model of checkpoints: an `explore.Model`."""

    def __init__(self, setup: CheckpointSetup, rules: CheckpointRules) -> None:
        self.setup, self.rules = setup, rules

    def start(self) -> CheckpointState:
        return CheckpointState()

    def canonical(self, state: CheckpointState) -> CheckpointState:
        return state

    # --- histories ------------------------------------------------------------------------------------------

    def history(self, state: CheckpointState, worker: int, at: Position) -> tuple[tuple[int, int], ...]:
        """Return the records up to a position, each as (checkpoint, incarnation)."""
        incarnation, size = at
        if not incarnation:
            return ()
        segment = state.segments[worker][incarnation - 1]
        assert segment is not None, "a position lies in a segment that was begun"
        count = size - segment.base[1]
        own = tuple((checkpoint, incarnation) for checkpoint in segment.checkpoints[:count])
        return (*self.history(state, worker, segment.base), *own)

    def end(self, state: CheckpointState, worker: int) -> Position:
        """Return the end of the newest segment."""
        for incarnation in range(state.incarnation + 1, 0, -1):
            if len(state.orders) >= incarnation and (segment := state.segments[worker][incarnation - 1]):
                return incarnation, segment.base[1] + len(segment.checkpoints)
        return ORIGIN

    def named(self, state: CheckpointState, worker: int, at: Position) -> Position | None:
        """Return the position that a record with this one refers to now (R12); None if there is none."""
        if self.rules.r12_positions_name_their_line:
            return at
        found, size = self.end(state, worker), at[1]
        if found[1] < size:
            return None
        while found[0] and (segment := state.segments[worker][found[0] - 1]) and segment.base[1] >= size:
            found = segment.base
        return found[0], size

    # --- what is lost ---------------------------------------------------------------------------------------

    def loss(self, state: CheckpointState) -> str:
        before: tuple[tuple[int, int], ...] = ()
        for checkpoint in state.manifest:
            histories = [self.history(state, worker, checkpoint.positions[worker]) for worker in WORKERS]
            if histories[0] != histories[1]:
                return f"checkpoint {checkpoint.number} is a mixture: {self._histories_text(histories)}"
            if not checkpoint.back and histories[0] != (*before, (checkpoint.number, checkpoint.incarnation)):
                return (
                    f"checkpoint {checkpoint.number} does not continue the checkpoint before it:"
                    f" {self._histories_text(histories)}"
                )
            before = histories[0]
            if checkpoint.number >= state.released and (lost := self._unrestorable(state, checkpoint)):
                return lost
        return ""

    def _unrestorable(self, state: CheckpointState, checkpoint: Checkpoint) -> str:
        for worker in WORKERS:
            if state.deleted[worker] > checkpoint.number:
                return (
                    f"worker {worker} has deleted what checkpoint {checkpoint.number} needs, which is"
                    f" retained"
                )
            found = self.named(state, worker, checkpoint.positions[worker])
            if found is None or self.history(state, worker, found) != self.history(
                state, worker, checkpoint.positions[worker]
            ):
                return (
                    f"worker {worker} restores something else for checkpoint {checkpoint.number} than"
                    f" what was committed"
                )
        return ""

    def _histories_text(self, histories: list[tuple[tuple[int, int], ...]]) -> str:
        lines = [
            f"worker {worker} "
            + (
                ", ".join(f"checkpoint {checkpoint} of life {life}" for checkpoint, life in history)
                or "nothing"
            )
            for worker, history in enumerate(histories)
        ]
        return "; ".join(lines)

    # --- steps ----------------------------------------------------------------------------------------------

    def steps(self, state: CheckpointState) -> Iterator[tuple[Step, CheckpointState]]:
        yield from self._coordinator(state)
        yield from self._incarnations(state)
        for worker in WORKERS:
            yield from self._worker(state, worker)

    def _coordinator(self, state: CheckpointState) -> Iterator[tuple[Step, CheckpointState]]:
        """Yield the steps of the manifest's holder: it requests a checkpoint, commits it, releases old
        ones.
        """
        now, number = (
            state.incarnation,
            max((checkpoint.number for checkpoint in state.manifest), default=0) + 1,
        )
        if state.requested[now - 1] < number <= self.setup.checkpoints:
            requested = (*state.requested[: now - 1], number, *state.requested[now:])
            yield ("ask", now, number), state._replace(requested=requested)
        if state.requested[now - 1] == number:
            for positions in self._votes_for(state, number):
                checkpoint = Checkpoint(number, now, positions)
                yield ("commit", now, number), state._replace(manifest=(*state.manifest, checkpoint))
        if state.released < number - 1:
            yield ("release", now, number - 1), state._replace(released=number - 1)

    def _votes_for(self, state: CheckpointState, number: int) -> list[tuple[Position, ...]]:
        """Return the positions that complete a checkpoint, for each combination of votes."""
        by_worker = [
            [
                position
                for voter, incarnation, checkpoint, position in sorted(state.votes)
                if voter == worker
                and checkpoint == number
                and (incarnation == state.incarnation or not self.rules.r12_votes_of_this_incarnation)
            ]
            for worker in WORKERS
        ]
        return [(first, second) for first in by_worker[0] for second in by_worker[1]]

    def _incarnations(self, state: CheckpointState) -> Iterator[tuple[Step, CheckpointState]]:
        """Yield the steps of a new coordinator: it orders the workers to the last checkpoint, or rolls
        back.
        """
        newest = len(state.orders)
        if newest > state.incarnation:
            yield ("open", newest), state._replace(incarnation=newest)
        if newest > state.incarnation or newest == self.setup.incarnations:
            return
        last = state.manifest[-1].positions if state.manifest else (ORIGIN, ORIGIN)
        began = self._began(state, last)
        if self.rules.r11_claim_before_reading:
            yield ("begin", newest + 1), began._replace(incarnation=newest + 1)
        else:
            yield ("read", newest + 1), began
        for checkpoint in state.manifest[:-1]:
            if not checkpoint.back and checkpoint.number >= state.released and checkpoint.positions != last:
                back = Checkpoint(checkpoint.number, newest + 1, checkpoint.positions, back=True)
                restored = self._began(state, checkpoint.positions)._replace(incarnation=newest + 1)
                yield (
                    ("back", newest + 1, checkpoint.number),
                    restored._replace(manifest=(*state.manifest, back)),
                )

    def _began(self, state: CheckpointState, positions: tuple[Position, ...]) -> CheckpointState:
        return state._replace(
            orders=(*state.orders, positions),
            requested=(*state.requested, 0),
            segments=tuple((*segments, None) for segments in state.segments),
        )

    def _worker(self, state: CheckpointState, worker: int) -> Iterator[tuple[Step, CheckpointState]]:
        at = self.end(state, worker)[0]
        for incarnation in range(at + 1, len(state.orders) + 1):
            base = self._base(state, worker, state.orders[incarnation - 1][worker])
            if base is not None:
                yield (
                    ("join", worker, incarnation, base[1]),
                    self._set(state, worker, incarnation, Segment(base)),
                )
        if at and (segment := state.segments[worker][at - 1]) is not None:
            requested = state.requested[at - 1]
            if requested and requested not in segment.checkpoints:
                grown = segment._replace(checkpoints=(*segment.checkpoints, requested))
                position = (at, segment.base[1] + len(grown.checkpoints))
                after = self._set(state, worker, at, grown)
                yield (
                    ("vote", worker, requested, at),
                    after._replace(votes=state.votes | {(worker, at, requested, position)}),
                )
        newest = max((checkpoint.number for checkpoint in state.manifest), default=0)
        released_below = state.released if self.rules.r14_release_is_a_record else newest
        if state.deleted[worker] < released_below:
            deleted = tuple(
                released_below if one == worker else below for one, below in enumerate(state.deleted)
            )
            yield ("delete", worker, released_below), state._replace(deleted=deleted)

    def _base(self, state: CheckpointState, worker: int, ordered: Position) -> Position | None:
        """Return the position at which a worker opens its segment (R13)."""
        if self.rules.r13_base_is_the_position_ordered:
            return self.named(state, worker, ordered)
        return max((self.end(state, worker), ordered), key=lambda position: position[1])

    def _set(
        self, state: CheckpointState, worker: int, incarnation: int, segment: Segment
    ) -> CheckpointState:
        own = state.segments[worker]
        changed = (*own[: incarnation - 1], segment, *own[incarnation:])
        segments = (changed, state.segments[1]) if worker == 0 else (state.segments[0], changed)
        return state._replace(segments=segments)

    def describe(self, step: Step) -> str:
        what, *numbers = step
        return STORIES[what].format(*numbers)


STORIES = {
    "ask": "coordinator {0} asks for checkpoint {1}",
    "commit": "coordinator {0} has all votes, and appends checkpoint {1} to the manifest",
    "release": "coordinator {0} records that checkpoints below {1} are released",
    "read": "coordinator {0} reads the manifest without a claim, and orders the workers to its last"
    " checkpoint",
    "open": "coordinator {0} claims the manifest",
    "begin": "coordinator {0} takes the manifest over, and orders the workers to its last checkpoint",
    "back": "coordinator {0} takes the manifest over and records that a person goes back to checkpoint {1}",
    "join": "worker {0} joins incarnation {1}, behind {2} records",
    "vote": "worker {0} has its record for checkpoint {1} synced, and votes, in incarnation {2}",
    "delete": "worker {0} deletes what checkpoints below {1} need",
}
