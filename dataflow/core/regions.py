"""Which operators belong to which consistent region, from what the user said about a few of them.

Rules of this file: it sees operators as (name, kind, inputs) and annotations; it starts nothing.

Theory (consistent-regions, "Selecting a consistent region"). `@consistent` on an operator makes it the start
of a region, which takes in all that can be reached from it. `@autonomous` takes an operator and what can be
reached from it out again. What is reached both ways is in the region: consistent takes precedence, so an
autonomous operator stops a path, not those beside it. Regions that meet in an operator are one region, and
must have been given the same settings. Operators nobody put into a region are outside any. A control table
reaches the operators that read it.

A graph without annotations is one region with the settings of `run`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import isfinite
from typing import Any, Final, Literal, TypeAlias, TypeVar

from checkpoint.limits import drain_timeout_s, reset_attempts_max, reset_timeout_s
from dataflow.core.delivery import DELIVERIES, Delivery
from dataflow.core.plan import NodeSpec, OperatorKind, in_order

Trigger: TypeAlias = Literal["periodic", "operator"]
TRIGGERS: Final = ("periodic", "operator")
Target = TypeVar("Target")

ANNOTATION: Final = "__dos_region__"
"""The attribute by which a decorated function or class carries its annotation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Consistent:
    """An operator starts a consistent region. Times are seconds.

    trigger: "periodic", a cut each `period`; "operator", when the start operator says so (after a file, for
    one). period: None takes the `checkpoint_interval` of `run`. delivery: how often sinks show a row when
    workers fail (`core/delivery.py`); None is exactly-once, and at-least-once of sinks that can do no better.
    The others are as in the paper, "Configuring a consistent region".
    """

    trigger: Trigger = "periodic"
    period: float | None = None
    drain_timeout: float = drain_timeout_s
    reset_timeout: float = reset_timeout_s
    max_consecutive_reset_attempts: int = reset_attempts_max
    delivery: Delivery | None = None

    def __post_init__(self) -> None:
        if self.trigger not in TRIGGERS:
            raise ValueError(f"trigger is {' or '.join(map(repr, TRIGGERS))}, not {self.trigger!r}")
        if self.delivery not in (None, *DELIVERIES):
            known = " or ".join(map(repr, DELIVERIES))
            raise ValueError(f"delivery is {known}, not {self.delivery!r}")
        if self.trigger == "operator" and self.period is not None:
            raise ValueError("a period is for trigger='periodic'; leave it out where an operator triggers")
        for name in ("period", "drain_timeout", "reset_timeout"):
            value = getattr(self, name)
            if value is not None and not (isfinite(value) and value > 0):
                raise ValueError(f"{name} is a time above 0 in seconds, not {value}")
        if self.max_consecutive_reset_attempts < 0:
            given = self.max_consecutive_reset_attempts
            raise ValueError(f"max_consecutive_reset_attempts is 0 or more, not {given}")

    def __call__(self, target: Target) -> Target:
        """As a decorator, of a user function or a class of operators."""
        setattr(target, ANNOTATION, self)
        return target

    def __str__(self) -> str:
        when = "when its start operator says so"
        if self.trigger == "periodic":
            when = "as often as `run` says" if self.period is None else f"every {self.period:g} s"
        attempts = self.max_consecutive_reset_attempts
        return (
            f"a cut {when}; drain within {self.drain_timeout:g} s, reset within {self.reset_timeout:g} s,"
            f" at most {attempts} resets in a row{f', delivery {self.delivery}' if self.delivery else ''}"
        )


@dataclass(frozen=True, slots=True)
class Autonomous:
    """An operator, and what is reached from it, is in no region. Has no settings."""

    def __call__(self, target: Target) -> Target:
        """As a decorator."""
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
) -> Consistent:
    """Start a consistent region at an operator. See `Consistent`; raises ValueError for a setting out of its
    range.

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
    )


def region_options(settings: Consistent) -> dict[str, Any]:
    """The settings as fields of `checkpoint.core.region.RegionSpec`."""
    options: dict[str, Any] = {
        "trigger": settings.trigger,
        "drain_timeout_s": settings.drain_timeout,
        "reset_timeout_s": settings.reset_timeout,
        "max_consecutive_reset_attempts": settings.max_consecutive_reset_attempts,
    }
    if settings.period is not None:
        options["checkpoint_interval_s"] = settings.period
    return options


@dataclass(frozen=True, slots=True)
class Region:
    """One consistent region. `members` are in an order in which inputs come first; `starts` those with
    `@consistent` and the sources; `ends` those whose output goes nowhere, or leaves the region.
    """

    members: tuple[str, ...]
    starts: tuple[str, ...]
    ends: tuple[str, ...]
    settings: Consistent


@dataclass(frozen=True, slots=True)
class Choice:
    """Every operator is in one region, or outside. `problems`: rules broken, each as one line."""

    regions: tuple[Region, ...]
    outside: tuple[str, ...]
    problems: tuple[str, ...] = ()


def choose_regions(nodes: Sequence[NodeSpec], annotations: Mapping[int, Annotation]) -> Choice:
    """The regions of a graph in which `find_problems` found none. Operators are indices into `nodes`."""
    order = in_order(nodes)
    starts = [index for index in order if isinstance(annotations.get(index), Consistent)]
    if not starts:
        if annotations:
            return Choice((), tuple(nodes[index].name for index in order))
        return Choice((_region(nodes, order, set(order), Consistent(), starts=set()),), ())
    consumers = consumers_of(nodes)

    def stops(index: int) -> bool:
        return isinstance(annotations.get(index), Autonomous)

    groups = _merged([(start, _reached(start, consumers, stops)) for start in starts])
    problems: list[str] = []
    regions = []
    for begun, members in groups:
        given = {start: annotations[start] for start in begun}
        problems += _disagreements(nodes, given)
        settings = given[begun[0]]
        assert isinstance(settings, Consistent)
        regions.append(_region(nodes, order, members, settings, starts=set(begun)))
    inside = set().union(*(members for _, members in groups))
    problems += _entered(nodes, groups)
    outside = tuple(nodes[index].name for index in order if index not in inside)
    return Choice(tuple(regions), outside, tuple(problems))


def consumers_of(nodes: Sequence[NodeSpec]) -> list[list[int]]:
    """For each operator those that get its rows, or read the control table that it is."""
    consumers: list[list[int]] = [[] for _ in nodes]
    for index, node in enumerate(nodes):
        for source in (*node.inputs, *node.broadcast_tables):
            consumers[source].append(index)
    return consumers


def _reached(start: int, consumers: Sequence[Sequence[int]], stops: Callable[[int], bool]) -> set[int]:
    """The start and what data from it comes to, without going through an autonomous operator."""
    found, todo = {start}, [start]
    while todo:
        for index in consumers[todo.pop()]:
            if index not in found and not stops(index):
                found.add(index)
                todo.append(index)
    return found


def _merged(reached: Sequence[tuple[int, set[int]]]) -> list[tuple[list[int], set[int]]]:
    """Sets that have an operator in common are one; in the order of their first start."""
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


def _disagreements(nodes: Sequence[NodeSpec], given: Mapping[int, Any]) -> list[str]:
    first, *others = given
    problems = []
    for other in others:
        differing = [
            f"{field.name} {getattr(given[first], field.name)!r} and {getattr(given[other], field.name)!r}"
            for field in fields(Consistent)
            if getattr(given[first], field.name) != getattr(given[other], field.name)
        ]
        if differing:
            problems.append(
                f"operators {nodes[first].name!r} and {nodes[other].name!r} start one region, since what they"
                f" reach meets, and ask for {', '.join(differing)}; give both the same settings"
            )
    return problems


def _entered(nodes: Sequence[NodeSpec], groups: Sequence[tuple[list[int], set[int]]]) -> list[str]:
    """What comes into a region from outside can not be had again after a reset."""
    return [
        _entry(nodes[index], nodes[source].name)
        for _, members in groups
        for index in sorted(members)
        for source in (*nodes[index].inputs, *nodes[index].broadcast_tables)
        if source not in members
    ]


def _entry(node: NodeSpec, source: str) -> str:
    return (
        f"{node.kind.value} {node.name!r} is in a consistent region and takes input from {source!r}, which is"
        " not: nobody could give it again after a reset; annotate"
        f" {source!r} as consistent, or {node.name!r} as autonomous"
    )
