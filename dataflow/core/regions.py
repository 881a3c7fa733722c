"""Assign operators to consistent regions from the annotations of a few of them. Pure.

1. `@consistent` on an operator starts a region, which includes everything reachable from it
   (consistent-regions, "Selecting a consistent region"); `@autonomous` removes an operator and everything
   reachable from it. Consistent takes precedence.
2. `@consistent(own_region=True)` also ends the paths of the regions above it: it reads their output from logs
   in the store.
3. Regions that share an operator are one region and must have the same settings.
4. A broadcast table reaches the operators that read it. All other operators are outside of any region.
5. A graph without annotations is one region with the settings of `run`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import isfinite
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

from checkpoint import Recovery
from checkpoint.limits import drain_timeout_s, reset_attempts_max, reset_timeout_s
from dataflow.core.plan import NodeSpec, OperatorKind, in_order
from dataflow.limits import peer_silent_s

# --- delivery -----------------------------------------------------------------------------------------------
#
# How often the sinks of a region publish a row when workers fail.
#
#     exactly-once    a row is published when it can no longer be rolled back, or a reset rolls it back
#     at-least-once   a row is published when its step ends, and again if a reset replays the step
#     at-most-once    a row is published when it is durable that it was read; a reset does not replay it
#
# This module only defines the names. Each sink implements them (`SinkSpec.delivers`).
# `worker/circuit_thread.py` decides which steps are replayed.
#
# In all three, the state of a checkpoint and the positions of its sources are consistent. With at-most-once,
# a reset continues after the last input that was read: rows after the last checkpoint are then missing from
# the state, and perhaps from the sinks.

Delivery: TypeAlias = Literal["at-most-once", "at-least-once", "exactly-once"]
DELIVERIES: Final = ("at-most-once", "at-least-once", "exactly-once")


# --- regions ------------------------------------------------------------------------------------------------

Trigger: TypeAlias = Literal["periodic", "operator"]
TRIGGERS: Final = ("periodic", "operator")
RECOVERIES: Final[tuple[Recovery, ...]] = ("global", "local")
Target = TypeVar("Target")

ANNOTATION: Final = "__dos_region__"
"""The attribute in which a decorated function or class carries its annotation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Consistent:
    """The annotation that an operator starts a consistent region. Times are seconds.

    trigger: "periodic" takes a checkpoint every `period` (None: the `checkpoint_interval` of `run`);
    "operator" when the start operator requests it, for example after a file. delivery: how often sinks
    publish a row when workers fail; None is exactly-once, or at-least-once for sinks that support no more.
    own_region: the region begins here even if its input comes from another region. recovery: what follows the
    loss of a worker; None: as `run`. silence_timeout: with global recovery, how long the host of a worker may
    be silent before it counts as lost. The others are those of the paper, "Configuring a consistent region".
    """

    trigger: Trigger = "periodic"
    period: float | None = None
    drain_timeout: float = drain_timeout_s
    reset_timeout: float = reset_timeout_s
    max_consecutive_reset_attempts: int = reset_attempts_max
    delivery: Delivery | None = None
    own_region: bool = False
    recovery: Recovery | None = None
    silence_timeout: float = peer_silent_s

    def __post_init__(self) -> None:
        if self.trigger not in TRIGGERS:
            raise ValueError(f"trigger is {' or '.join(map(repr, TRIGGERS))}, got {self.trigger!r}")
        if self.delivery not in (None, *DELIVERIES):
            known = " or ".join(map(repr, DELIVERIES))
            raise ValueError(f"delivery is {known}, got {self.delivery!r}")
        if self.recovery not in (None, *RECOVERIES):
            known = " or ".join(map(repr, RECOVERIES))
            raise ValueError(f"recovery is {known}, got {self.recovery!r}")
        if self.trigger == "operator" and self.period is not None:
            raise ValueError("a period is for trigger='periodic'; leave it out where an operator triggers")
        for name in ("period", "drain_timeout", "reset_timeout", "silence_timeout"):
            value = getattr(self, name)
            if value is not None and not (isfinite(value) and value > 0):
                raise ValueError(f"{name} is a time above 0 in seconds, not {value}")
        if self.max_consecutive_reset_attempts < 0:
            given = self.max_consecutive_reset_attempts
            raise ValueError(f"max_consecutive_reset_attempts is 0 or more, not {given}")

    def __call__(self, target: Target) -> Target:
        """Annotate a user function or an operator class; used as a decorator."""
        setattr(target, ANNOTATION, self)
        return target

    def __str__(self) -> str:
        when = "when its start operator requests it"
        if self.trigger == "periodic":
            when = "at the interval of `run`" if self.period is None else f"every {self.period:g} s"
        attempts = self.max_consecutive_reset_attempts
        return (
            f"checkpoint {when}; drain within {self.drain_timeout:g} s, reset within"
            f" {self.reset_timeout:g} s, max {attempts} resets in a row"
            f"{f', delivery {self.delivery}' if self.delivery else ''}"
            f"{', own region' if self.own_region else ''}"
            f"{f', {self.recovery} recovery' if self.recovery else ''}"
        )


@dataclass(frozen=True, slots=True)
class Autonomous:
    """The annotation that an operator and everything reachable from it is in no region. No settings."""

    def __call__(self, target: Target) -> Target:
        setattr(target, ANNOTATION, self)
        return target

    def __str__(self) -> str:
        return "autonomous"


Annotation: TypeAlias = Consistent | Autonomous
autonomous: Final = Autonomous()


def consistent(
    *,
    trigger: Trigger = "periodic",
    period: float | None = None,
    drain_timeout: float = drain_timeout_s,
    reset_timeout: float = reset_timeout_s,
    max_consecutive_reset_attempts: int = reset_attempts_max,
    delivery: Delivery | None = None,
    own_region: bool = False,
    recovery: Recovery | None = None,
    silence_timeout: float = peer_silent_s,
) -> Consistent:
    """Start a consistent region at an operator, with the settings of `Consistent`. Raises ValueError.

    Example:

        logs = graph.source("logs", FileSource(["a.txt"])).annotate(consistent(period=5))

        @consistent(period=5)
        def parsed(row):
            return row

        logs.map("parsed", parsed)
    """
    return Consistent(
        trigger=trigger,
        period=period,
        drain_timeout=drain_timeout,
        reset_timeout=reset_timeout,
        max_consecutive_reset_attempts=max_consecutive_reset_attempts,
        delivery=delivery,
        own_region=own_region,
        recovery=recovery,
        silence_timeout=silence_timeout,
    )


def region_options(settings: Consistent) -> dict[str, Any]:
    """Return the settings as fields of `checkpoint.core.region.RegionSpec`."""
    options: dict[str, Any] = {
        "trigger": settings.trigger,
        "drain_timeout_s": settings.drain_timeout,
        "reset_timeout_s": settings.reset_timeout,
        "max_consecutive_reset_attempts": settings.max_consecutive_reset_attempts,
    }
    if settings.period is not None:
        options["checkpoint_interval_s"] = settings.period
    if settings.recovery is not None:
        options["recovery"] = settings.recovery
    return options


@dataclass(frozen=True, slots=True)
class Region:
    """One consistent region: its `members`, inputs first; `starts`, its sources and `@consistent` operators;
    `ends`, the operators whose output is not used or leaves the region.
    """

    members: tuple[str, ...]
    starts: tuple[str, ...]
    ends: tuple[str, ...]
    settings: Consistent


@dataclass(frozen=True, slots=True)
class Choice:
    """The assignment of each operator to one region or none. `problems`: a line for each violated rule."""

    regions: tuple[Region, ...]
    outside: tuple[str, ...]
    problems: tuple[str, ...] = ()


def choose_regions(nodes: Sequence[NodeSpec], annotations: Mapping[int, Annotation]) -> Choice:
    """Return the regions of a graph in which `find_problems` found none. Keys are indices into `nodes`."""
    order = in_order(nodes)
    starts = [index for index in order if isinstance(annotations.get(index), Consistent)]
    if not starts:
        if annotations:
            return Choice((), tuple(nodes[index].name for index in order))
        return Choice((_region(nodes, order, set(order), Consistent(), starts=set()),), ())
    consumers = consumers_of(nodes)

    def begins_own(index: int) -> bool:
        annotation = annotations.get(index)
        return isinstance(annotation, Consistent) and annotation.own_region

    def stops(index: int) -> bool:
        return isinstance(annotations.get(index), Autonomous) or begins_own(index)

    groups = _merged([(start, _reached(start, consumers, stops)) for start in starts])
    problems: list[str] = []
    regions = []
    for group_starts, members in groups:
        start_annotations = {start: annotations[start] for start in group_starts}
        problems += _disagreements(nodes, start_annotations)
        settings = start_annotations[group_starts[0]]
        assert isinstance(settings, Consistent)
        regions.append(_region(nodes, order, members, settings, starts=set(group_starts)))
    inside = set().union(*(members for _, members in groups))
    problems += _entered(nodes, groups, begins_own)
    problems += _not_separate(nodes, groups, begins_own)
    outside = tuple(nodes[index].name for index in order if index not in inside)
    return Choice(tuple(regions), outside, tuple(problems))


def consumers_of(nodes: Sequence[NodeSpec]) -> list[list[int]]:
    """Return for each operator the operators that get its rows or read the broadcast table that it is."""
    consumers: list[list[int]] = [[] for _ in nodes]
    for index, node in enumerate(nodes):
        for source in (*node.inputs, *node.broadcast_tables):
            consumers[source].append(index)
    return consumers


def _reached(start: int, consumers: Sequence[Sequence[int]], stops: Callable[[int], bool]) -> set[int]:
    """Return `start` and everything reachable from it without passing an autonomous operator."""
    reached, todo = {start}, [start]
    while todo:
        for index in consumers[todo.pop()]:
            if index not in reached and not stops(index):
                reached.add(index)
                todo.append(index)
    return reached


def _merged(reached: Sequence[tuple[int, set[int]]]) -> list[tuple[list[int], set[int]]]:
    """Merge sets that share an operator. The result is sorted by first start."""
    groups: list[tuple[list[int], set[int]]] = []
    for start, members in reached:
        meeting = [group for group in groups if group[1] & members]
        starts = sorted([start, *(one for group in meeting for one in group[0])])
        groups = [group for group in groups if group not in meeting]
        groups.append((starts, members.union(*(group[1] for group in meeting))))
    return sorted(groups, key=lambda group: group[0][0])


def _region(
    nodes: Sequence[NodeSpec],
    order: Sequence[int],
    members: set[int],
    settings: Consistent,
    *,
    starts: set[int],
) -> Region:
    inner = [index for index in order if index in members]
    consumers = consumers_of(nodes)
    leaves = [i for i in inner if not consumers[i] or any(c not in members for c in consumers[i])]
    begins = [i for i in inner if i in starts or nodes[i].kind is OperatorKind.SOURCE]

    def names(some: Sequence[int]) -> tuple[str, ...]:
        return tuple(nodes[index].name for index in some)

    return Region(names(inner), names(begins), names(leaves), settings)


def _disagreements(nodes: Sequence[NodeSpec], annotations: Mapping[int, Any]) -> list[str]:
    first, *others = annotations
    problems = []
    for other in others:
        pairs = [
            (field.name, getattr(annotations[first], field.name), getattr(annotations[other], field.name))
            for field in fields(Consistent)
            if field.name != "own_region"
        ]
        differing = [f"{name} {one!r} and {another!r}" for name, one, another in pairs if one != another]
        if differing:
            problems.append(
                f"operators {nodes[first].name!r} and {nodes[other].name!r} start one region, because their"
                f" paths meet, but differ in {', '.join(differing)}; give both the same settings"
            )
    return problems


Groups: TypeAlias = Sequence[tuple[list[int], set[int]]]
"""For each region its start operators, and its members."""


def _entered(nodes: Sequence[NodeSpec], groups: Groups, begins_own: Callable[[int], bool]) -> list[str]:
    """Return a problem for each input from outside, which could not be replayed after a reset."""
    inside = set().union(*(members for _, members in groups))
    return [
        _entry(nodes[index], nodes[source].name)
        for _, members in groups
        for index in sorted(members)
        for source in (*nodes[index].inputs, *nodes[index].broadcast_tables)
        if source not in members and not (begins_own(index) and source in inside)
    ]


def _not_separate(nodes: Sequence[NodeSpec], groups: Groups, begins_own: Callable[[int], bool]) -> list[str]:
    """Return a problem for each start of an own region that is in one region with its input."""
    return [
        f"operator {nodes[start].name!r} has own_region=True, and its input {nodes[source].name!r} is in the"
        " same region, because paths from both meet; give the operator where they meet own_region=True too,"
        f" or leave it out at {nodes[start].name!r}"
        for starts, members in groups
        for start in starts
        if begins_own(start)
        for source in nodes[start].inputs
        if source in members
    ]


def _entry(node: NodeSpec, source: str) -> str:
    return (
        f"{node.kind.value} {node.name!r} is in a consistent region and takes input from {source!r}, which is"
        " not, so a reset could not replay that input; annotate"
        f" {source!r} as consistent, or {node.name!r} as autonomous"
    )


# --- determinism --------------------------------------------------------------------------------------------
#
# Operators that may return other rows when they run again, or when they run at another site. Pure.
#
#     deterministic        the same rows in the same order and steps give the same rows: a replay does
#     replica consistent   the same rows with the same times, in any order and division into steps, and with
#                          watermarks that advance in any steps, give the same multiset of rows: replicas do
#
# Replica consistency is definition 2 of replication-transparency. It implies the first.


class ReplicaProblem(NamedTuple):
    """Why two replicas of an operator may return other rows, as text after its name, and what to write
    instead.
    """

    reason: str
    remedy: str


def not_deterministic(nodes: Sequence[NodeSpec], starts: Iterable[int]) -> dict[int, str]:
    """Return the operators `starts` and everything downstream of them -> one of `starts` above it."""
    consumers = consumers_of(nodes)
    todo = [(index, nodes[index].name) for index in starts]
    found: dict[int, str] = {}
    while todo:
        index, above = todo.pop()
        if index not in found:
            found[index] = above
            todo += [(consumer, above) for consumer in consumers[index]]
    return found
