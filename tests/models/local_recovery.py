"""The model of local recovery: one worker is lost, and another process takes its index over, while the others
keep what they have (docs/decisions/0233).

What is modelled. Workers exchange steps, all to all. A worker *divides* a step: it decides what input the
step has, appends that to its chain, and sends the frames of the step to all. When the chain is synced it
sends DURABLE. It *runs* a step that it has of all workers. A checkpoint is requested by number; the worker
that divides next marks its step with it, and every worker votes at the end of that step. The coordinator
appends the votes to the manifest, in two steps, and then everything before the checkpoint may be purged.

    a loss           a worker loses everything but what is synced in its chain; what it sent may still arrive
    a take-over      the coordinator raises the term of the index; another process continues at the last
                     committed checkpoint; each of the others connects to it at any later time (VIEW), and
                     sends again what it retained; the new process makes the steps of its chain again, and
                     divides further ones anew, both perhaps before it has loaded its state, without which it
                     runs none

Two connections of one pair of workers are in no order: what a newer one brings may come first.

What is demanded, in every state: all uses of a step, in all lives of all workers, have the same input; a
committed checkpoint is the end of one step at all workers, and its votes are those of processes that can
publish what they prepared; nothing that a new process needs was purged; and something can always happen until
all is done.

What is abstracted: the input of a step is the term in which it was divided, so two divisions of one step
always differ. Frames of a step are one message. A worker that is never lost syncs with what it appends. The
two ends of the manifest's append are steps of their own; everything else of the coordinator happens at once.
"""

from typing import NamedTuple


class LocalRules(NamedTuple):
    """The rules. Each can be switched off."""

    run_after_durable: bool = True
    """A worker runs a step once the divisions of all are durable; without it, when it has the frames."""
    not_used_is_dropped: bool = True
    """With VIEW, a worker drops steps of the lost one that it has, but has not run."""
    newer_terms_wait: bool = True
    """What a newer connection brings waits for VIEW; without it, it is taken at once."""
    marks_in_the_chain: bool = True
    """A division records the checkpoint that its step is marked with."""
    own_votes_of_the_term: bool = True
    """Only votes of the present terms count."""
    appends_are_settled: bool = True
    """An append to the manifest that is under way ends before a base is chosen."""
    purge_at_the_commit: bool = True
    """Steps are purged when a checkpoint after them is committed; without it, when all have run them."""
    remade_is_retained: bool = True
    """A step that is made again is retained like any other."""
    run_after_load: bool = True
    """A new process runs steps once it has its state; without it, when it has their frames."""
    waits_for_all: bool = True
    """A worker runs a step when it has that of every worker; without it, shards that use no rows of
    each other run their steps alone.
    """
    full_takes_no_input: bool = True
    """A worker whose retained steps reach their bound divides steps without input; without it, none."""


class LocalSetup(NamedTuple):
    """The size of the model. retained_max: how many steps a worker retains before it is full. ahead: how many
    it divides before it has run them. owed: how many it divides before that if the others have divided them,
    after it has taken a worker over. may_be_lost: the workers that may be lost.
    """

    workers: int = 2
    steps: int = 2
    losses: int = 1
    checkpoints: int = 0
    retained_max: int = 9
    ahead: int = 2
    owed: int = 0
    may_be_lost: tuple[int, ...] = (1,)


class Division(NamedTuple):
    """A step in a chain, and in the frames: its input, and the checkpoint that it is marked with, or 0."""

    input: int
    mark: int = 0


class Frame(NamedTuple):
    """A step as it is sent, `step` 0 if it brings none; and DURABLE: the steps up to `upto` are."""

    term: int
    step: int
    division: Division
    upto: int = 0


NOTHING = Division(0)
"""A step without input: every division of it is equal."""


class Worker(NamedTuple):
    """One index. Lists of other workers are by index."""

    term: int = 1
    up: bool = True
    chain: tuple[Division, ...] = ()
    """Synced: survives a loss."""
    tail: tuple[Division, ...] = ()
    """Appended, and not synced."""
    base: int = 0
    """The step of the checkpoint at which this life began."""
    ran: tuple[tuple[int, ...], ...] = ()
    """Of each step: the inputs of all workers that it used, its state and output."""
    held: tuple[tuple[Frame | None, ...], ...] = ()
    """By sender, then by step: what it holds and has not used."""
    durable: tuple[tuple[int, int], ...] = ()
    """By sender: (term, last durable step)."""
    views: tuple[int, ...] = ()
    """By worker: the term that it knows."""
    asked: int = 0
    """The checkpoint that it was asked for."""
    voted: int = 0
    purged: int = 0
    remade: bool = True
    """The steps of its chain are made again."""
    loaded: bool = True
    """It has the state of its base."""
    again: int = 0
    """The last step that this life has made again, and not divided."""

    @property
    def produced(self) -> tuple[Division, ...]:
        return self.chain + self.tail


Vote = tuple[int, int, int, int, tuple[tuple[int, ...], ...]]
"""(worker, term, checkpoint, step, what it used)"""


class Committed(NamedTuple):
    """A checkpoint in the manifest, or on its way there."""

    number: int
    step: int
    used: tuple[tuple[int, ...], ...]


class LocalState(NamedTuple):
    """The whole state."""

    workers: tuple[Worker, ...]
    queues: tuple[tuple[tuple[Frame, ...], ...], ...]
    """By sender, then by receiver. Of one term in order; terms are different connections."""
    requested: int = 0
    votes: frozenset[Vote] = frozenset()
    appending: Committed | None = None
    committed: tuple[Committed, ...] = ()
    losses: int = 0
    shown: tuple[tuple[int, ...], ...] = ()
    """Of each step: the inputs that its first run has used."""
    wrong: str = ""
