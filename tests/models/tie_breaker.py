"""The model of a store of two members with two spares: who may decide that one member continues without the
other (docs/decisions/0223).

What is modelled. Members a and b both acknowledge. The first spare is the tie-breaker. Runs that change the
store each use a record that is confirmed, claim the record log on a quorum, adopt what they find there or
propose one change, have it accepted server by server, and send it when a quorum has accepted it. A run may
stand still from any step on; another one may begin at any time, also with an older record. The changes: a
member is left out and a spare is added for it; the added member, filled, counts; the first spare is removed.
A dead member, and one that cannot be reached, is one that takes no more steps.

What is demanded: servers that may work hold all that was ever acknowledged; if two are "in", each of them.

What is abstracted: a quorum of data works in one step, as in `restored_disks.py`; every quorum of data is all
of its servers.
"""

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple, TypeVar

from tests.models.explore import Step

X = TypeVar("X")
A, B, S, T = range(4)
NAMES = "abst"


class TieRules(NamedTuple):
    """The rules. Each can be switched off."""

    one_spare_decides: bool = True
    """Only the first spare counts where records are decided; without it, any spare."""
    two_decide: bool = True
    """A record needs two of the deciding servers; without it, one."""
    older_generations_are_refused: bool = True
    """A server accepts nothing at another generation than its own."""
    filled_first: bool = True
    """The added member holds everything before it counts."""
    decided_first: bool = True
    """A record is sent only after it was decided."""


class Record(NamedTuple):
    """A store record."""

    generation: int
    members: tuple[int, ...]
    adding: tuple[int, ...]
    spares: tuple[int, ...]

    @property
    def working(self) -> tuple[int, ...]:
        return self.members + self.adding


class Run(NamedTuple):
    """A run that changes the store: the record that it uses, its epoch, and how far it is."""

    record: Record
    epoch: int
    proposal: Record | None = None
    accepted: tuple[int, ...] = ()


class TieState(NamedTuple):
    """The whole state. Per server: the record it has, how much data, the epoch of the record log, and the
    entry for the next generation, with its epoch."""

    held: tuple[Record, ...]
    sizes: tuple[int, ...]
    epochs: tuple[int, ...]
    entries: tuple[tuple[int, Record] | None, ...]
    runs: tuple[Run, ...] = ()
    sent: frozenset[Record] = frozenset()
    epochs_used: int = 0
    acknowledged: int = 0
    lost: str = ""


class TieSetup(NamedTuple):
    """The size of the model."""

    epochs: int = 2
    generations: int = 3
    records: int = 1


def _put(values: tuple[X, ...], index: int, value: X) -> tuple[X, ...]:
    return (*values[:index], value, *values[index + 1 :])


class TieBreaker:
    """The model of one setup under some rules: an `explore.Model`."""

    def __init__(self, setup: TieSetup, rules: TieRules) -> None:
        self.setup, self.rules = setup, rules

    def start(self) -> TieState:
        record = Record(1, (A, B), (), (S, T))
        return TieState((record,) * 4, (0,) * 4, (0,) * 4, (None,) * 4)

    def canonical(self, state: TieState) -> TieState:
        return state._replace(runs=tuple(sorted(state.runs, key=lambda run: run.epoch)))

    def loss(self, state: TieState) -> str:
        return state.lost

    def describe(self, step: Step) -> str:
        return str(step[0])

    def deciding(self, record: Record) -> tuple[int, ...]:
        if record.adding or len(record.members) != 2:
            return record.working
        return record.members + (record.spares[:1] if self.rules.one_spare_decides else record.spares)

    def needed(self, record: Record) -> int:
        if not self.rules.two_decide:
            return 1
        return len(record.working) if record.adding or len(record.members) == 1 else 2

    def confirmed(self, state: TieState) -> list[Record]:
        """Return the records that clients may use: reported by enough of their own servers."""
        return [
            record
            for record in dict.fromkeys(state.held)
            if sum(
                state.held[one] == record
                for one in (record.members if record.adding else self.deciding(record))
            )
            >= (1 if record.adding else self.needed(record))
        ]

    def steps(self, state: TieState) -> Iterator[tuple[Step, TieState]]:
        yield from self._work(state)
        for index in range(len(state.runs)):
            yield from self._advance(state, index)
        if state.epochs_used < self.setup.epochs:
            for record in self.confirmed(state):
                run = Run(record, state.epochs_used + 1)
                yield (
                    (f"run {run.epoch} begins at generation {record.generation}",),
                    state._replace(runs=(*state.runs, run), epochs_used=run.epoch),
                )
        for record in state.sent:
            for one in range(4):
                if state.held[one].generation < record.generation:
                    text = f"{NAMES[one]} receives {record}"
                    yield (
                        (text,),
                        state._replace(
                            held=_put(state.held, one, record), entries=_put(state.entries, one, None)
                        ),
                    )

    def _work(self, state: TieState) -> Iterator[tuple[Step, TieState]]:
        for record in self.confirmed(state):
            working = record.working
            if not all(state.held[one] == record for one in working):
                continue
            for new in record.adding:
                if state.sizes[new] < state.sizes[record.members[0]]:
                    yield (
                        (f"{NAMES[new]} is filled",),
                        state._replace(sizes=_put(state.sizes, new, state.sizes[record.members[0]])),
                    )
            longest = max(state.sizes[one] for one in working)
            who = " and ".join(NAMES[one] for one in working)
            least = longest if record.adding else min(state.sizes[one] for one in working)
            if least < state.acknowledged:
                lost = f"{who} hold {least} of {state.acknowledged} acknowledged records, and go on"
                yield (f"a writer takes over on {who}",), state._replace(lost=lost)
            elif state.acknowledged < self.setup.records:
                sizes = tuple(longest + 1 if one in working else size for one, size in enumerate(state.sizes))
                yield (
                    (f"{who} acknowledge record {longest + 1}",),
                    state._replace(sizes=sizes, acknowledged=longest + 1),
                )

    def _advance(self, state: TieState, index: int) -> Iterator[tuple[Step, TieState]]:
        run = state.runs[index]

        def after(run: Run | None) -> tuple[Run, ...]:
            kept = (*state.runs[:index], *state.runs[index + 1 :])
            return kept if run is None else (*kept, run)

        deciding, needed = self.deciding(run.record), self.needed(run.record)
        admitting = [one for one in deciding if self._admits(state, one, run.record)]
        if run.proposal is None:
            for chosen in combinations([one for one in admitting if state.epochs[one] < run.epoch], needed):
                entries = [entry for one in chosen if (entry := state.entries[one]) is not None]
                found = max(entries, key=lambda entry: entry[0], default=None)
                epochs = tuple(run.epoch if one in chosen else held for one, held in enumerate(state.epochs))
                for wish in self._wishes(state, run.record) if found is None else [found[1]]:
                    claimed = run._replace(proposal=wish)
                    who = " and ".join(NAMES[one] for one in chosen)
                    yield (
                        (f"run {run.epoch} claims {who}, and proposes {wish}",),
                        state._replace(runs=after(claimed), epochs=epochs),
                    )
            return
        for one in admitting:
            if one not in run.accepted and state.epochs[one] == run.epoch:
                accepted = run._replace(accepted=tuple(sorted((*run.accepted, one))))
                decided = len(accepted.accepted) >= needed or not self.rules.decided_first
                yield (
                    (f"{NAMES[one]} accepts {run.proposal} of run {run.epoch}",),
                    state._replace(
                        entries=_put(state.entries, one, (run.epoch, run.proposal)),
                        runs=after(None if decided else accepted),
                        sent=state.sent | ({run.proposal} if decided else set()),
                    ),
                )

    def _admits(self, state: TieState, one: int, record: Record) -> bool:
        return state.held[one] == record or not self.rules.older_generations_are_refused

    def _wishes(self, state: TieState, record: Record) -> Iterator[Record]:
        generation = record.generation + 1
        if generation > self.setup.generations:
            return
        if record.adding:
            (other,), (new,) = record.members, record.adding
            filled = state.sizes[new] == state.sizes[other] and all(
                state.held[one] == record for one in record.working
            )
            if filled or not self.rules.filled_first:
                yield Record(generation, (other, new), (), record.spares)
        elif len(record.members) == 2:
            for other in record.members:
                for new in record.spares:
                    spares = tuple(one for one in record.spares if one != new)
                    yield Record(generation, (other,), (new,), spares)
            if record.spares:
                yield Record(generation, record.members, (), record.spares[1:])
