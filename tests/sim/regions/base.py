"""What the regions of both tiers have in common: their specification, counted events, invalid rows, ends."""

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, ClassVar, Final

from checkpoint.core.coordination.vocabulary import End, SavepointWanted
from checkpoint.core.links.messages import CopyAhead, Restore, ToTask, ToWorker
from checkpoint.core.records.manifest import Checkpoint
from checkpoint.core.region import RegionSpec, RegionState, SavepointSettled
from dataflow.graph.plan import GraphPlan
from dataflow.worker.messages import CircuitFailed
from tests.sim.history import History, ViolationError
from tests.sim.regions.output import Part
from tests.sim.regions.record import Record

SINKS: Final = ("rows", "counts")
SOURCES: Final = ("lines",)
FORK: Final = "fork"
TRAITS: Final = (
    *("scales", "makes_savepoints", "replaces", "goes_back", "forks", "is_spoiled", "edits", "backs_up"),
    *("recovers_locally", "stands_by", "trims"),
)
_FOR_A_PERSON: Final = ("consecutive resets", "did not join within")
"""Ends after which an operator starts the region again. No fault explains any other failure."""
_INVALID_ROW: Final = "a row cannot be read"
_TRIMMED: Final = "it is trimmed to"


def region_spec(
    plan: GraphPlan, workers: int, *, store_url: str, job_key: bytes, checkpoint_interval_s: float
) -> RegionSpec:
    """Return the specification of a region with the time limits of the simulator."""
    return RegionSpec(
        name="region",
        workers=workers,
        store_url=store_url,
        job_key=job_key,
        operators=plan.operators,
        checkpoint_interval_s=checkpoint_interval_s,
        drain_timeout_s=15.0,
        reset_timeout_s=20.0,
        start_timeout_s=30.0,
        suspect_after_s=4.0,
        orphan_timeout_s=8.0,
    )


def edits_in(checkpoint: Checkpoint) -> list[tuple[str, int]]:
    """Return (word, what was added) of each edit that a checkpoint contains, oldest first."""
    known, line, found = {rewind.line: rewind for rewind in checkpoint.rewinds}, checkpoint.line, []
    while line:
        rewind = known[line]
        if rewind.edited:
            word, _, added = rewind.edited.partition("+")
            found.append((word, int(added)))
        line = rewind.of
    return found[::-1]


class SavepointRequests:
    """The requests for savepoints of one region. `held`: name -> checkpoint of those that were acknowledged,
    until a person requests to drop them."""

    def __init__(self, region: "RegionBase", rng: Random) -> None:
        self.held: dict[str, int] = {}
        self._region = region
        self._rng = rng
        self._requested = 0
        self._dropped: set[str] = set()

    def request(self, post: Callable[[SavepointWanted], None]) -> None:
        """Make a savepoint of the last checkpoint or of an earlier one now and then, or drop one."""
        drawn, committed = self._rng.random(), self._region.record.committed
        if drawn < 0.4 and committed:
            self._requested += 1
            numbers = [0, 0, *(checkpoint.number for checkpoint in committed[-2:-1])]
            post(SavepointWanted(f"s{self._requested}", self._rng.choice(numbers)))
        elif drawn < 0.5 and self.held:
            name = self._rng.choice(sorted(self.held))
            del self.held[name]
            self._dropped.add(name)
            post(SavepointWanted(name, on=False))

    def settled(self, event: SavepointSettled) -> None:
        """Note the answer to a request."""
        self._region.saw("a savepoint is settled" if not event.error else "a savepoint is refused")
        if not event.error and event.name not in self._dropped and event.name[1:].isdecimal():
            self.held[event.name] = event.checkpoint

    def check(self, last: Checkpoint) -> None:
        """Check that the last checkpoint of the manifest has the savepoints that were acknowledged."""
        for name, checkpoint in self.held.items():
            if last.savepoints.get(name) != checkpoint or checkpoint not in last.retained:
                raise ViolationError(
                    "O7",
                    f"savepoint {name} holds checkpoint {checkpoint}; checkpoint {last.number} has"
                    f" {last.savepoints} and retains {list(last.retained)}",
                )


def no_part(worker: int) -> Part:
    """Stand in for the parts of the shared plan, which no worker runs."""
    raise AssertionError(f"worker {worker} runs no plan of its own")


class RegionBase:
    """One region. `made`: all its journals exist; `finished`: a driver reported its end; `broken`: reading
    fails now, because of an invalid row; `finishing`: after the heal, work is fast, by the factor
    `finishing_pace`."""

    scales: ClassVar[bool] = False
    """Whether its number of workers changes. A test sets it, so that all other runs stay as they are."""
    makes_savepoints: ClassVar[bool] = False
    """Whether a person makes and drops savepoints. A test sets it, too."""
    replaces: ClassVar[bool] = False
    """Whether its workers are replaced by other processes, and its driver by another one, while it runs."""
    goes_back: ClassVar[bool] = False
    """Whether a person restores it to older checkpoints. A test sets it, too."""
    forks: ClassVar[bool] = False
    """Whether a person forks it. A test sets it, too."""
    is_spoiled: ClassVar[bool] = False
    """Whether its last checkpoints are damaged now and then, and it goes back to others. A test sets it."""
    edits: ClassVar[bool] = False
    """Whether a person edits its state. A test sets it, too."""
    backs_up: ClassVar[bool] = False
    """Whether processes back it up to a bucket. A test sets it, too."""
    recovers_locally: ClassVar[bool] = False
    """Whether lost workers are taken over while the others continue. A test sets it, too."""
    stands_by: ClassVar[bool] = False
    """Whether its workers have stand-bys with state. A test sets it, too."""
    trims: ClassVar[bool] = False
    """Whether a producer trims its input. A test sets it, too."""
    finishing_pace: float
    pace_s: float
    record: Record

    def __init__(self, history: History) -> None:
        self.history = history
        self.made = False
        self.finished = False
        self.broken = False
        self.finishing = False
        self.first: Checkpoint | None = None
        """Of a fork: its first record."""
        self.forker: Any = None
        """The person who forks it, if one does."""
        self._standing_by: set[tuple[str, int]] = set()
        """(driver, link) of the processes that were ordered to load a state ahead."""
        self._at_next: dict[str, list[Callable[[], None]]] = {}
        self._readers = 0

    def edits_shown(self) -> list[tuple[str, int]]:
        """Return the edits that its last checkpoint contains: the counts that it has shown since include
        them, those that it has shown before do not.
        """
        return edits_in(self.record.committed[-1]) if self.edits and self.record.committed else []

    @property
    def lives(self) -> bool:
        """Whether it lives through more than losses."""
        return any(getattr(self, trait) for trait in TRAITS)

    @property
    def sometimes(self) -> Counter[str]:
        return self.history.sometimes

    def next_reader(self, worker: int) -> str:
        """Return the name of the random stream of the next reader."""
        self._readers += 1
        return f"reader {self._readers} of worker {worker}"

    def work_s(self, rng: Random, *, produced: bool) -> float:
        """Draw the length of a piece of work."""
        pace = self.pace_s * (self.finishing_pace if self.finishing else 1.0)
        return pace * (0.5 + rng.random()) if produced else 0.002 * (0.5 + rng.random())

    def sent(self, driver: str, link: int, message: ToWorker | ToTask) -> None:
        """Note what a driver sends on a link."""
        self.saw(f"sent: {type(message).__name__}")
        if isinstance(message, CopyAhead) and message.opens:
            self._standing_by.add((driver, link))
        elif isinstance(message, Restore) and (driver, link) in self._standing_by:
            self._standing_by.remove((driver, link))
            self.saw("a stand-by takes the place of its worker")

    def saw(self, what: str) -> None:
        """Count an event, and make the calls that wait for it."""
        self.sometimes[what] += 1
        for call in self._at_next.pop(what, ()):
            call()

    def at_next(self, what: str, call: Callable[[], None]) -> None:
        """Make the call when the event happens next."""
        self._at_next.setdefault(what, []).append(call)

    def circuit_failed(self, failure: CircuitFailed, worker: int = -1) -> None:
        """Raises ViolationError unless an invalid row or a newer incarnation explains the failure."""
        terms = (term for (_, of), term in self.record.terms.items() if of == worker)
        superseded = failure.incarnation < max([*self.record.opened, *terms])
        kind, text = failure.report.kind, failure.report.message
        if kind == "operator" and _INVALID_ROW in text:
            self.saw("a row failed")
        elif text.startswith("SinkFencedError") and superseded:
            self.saw("an old worker was fenced from its output")
        elif _TRIMMED in text and superseded:
            self.saw("an old worker found its input trimmed")
        else:
            raise ViolationError("O7", f"a circuit failed ({kind}): {text}")

    def check_end(self, end: End) -> None:
        """Record the end of a driver. Raises ViolationError if no fault explains it."""
        if end.state is RegionState.FINISHED:
            self.finished = True
        elif end.state is RegionState.FAILED:
            if _INVALID_ROW in end.reason:
                self.broken = False  # a person corrected the row
            elif not any(text in end.reason for text in _FOR_A_PERSON):
                raise ViolationError("O7", f"the region failed: {end.reason}")
