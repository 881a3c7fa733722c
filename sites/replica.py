"""One replica that runs at a site: its graph, from the function that the description names; its handle, and
what its sources and sinks count.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import trio

from dataflow.graph.builder import Graph, parts_of
from dataflow.sinks.log import LogSink
from dataflow.sources.stored import InputSource, MergedLogSource
from sites.core.deployment import RegionReplica
from sites.core.description import Description, FixedPlace, ReplicatedRegion
from sites.core.measuring import Usage, UsageMeter
from sites.core.reader_reports import ReaderMeter, SourceCounters, bytes_of, input_counters
from sites.core.site_work import ReplicaContext, check_ports
from sites.errors import GraphRefusedError


class StartedRegion(Protocol):
    """The handle of a region, as `run_local` and `spark_integration.run` return it."""

    @property
    def status(self) -> Any: ...

    def stop(self) -> None: ...


Spec = TypeVar("Spec")
StartRegion = Callable[..., Any]
"""Called with a graph, and `name`, `store`, `token` and `workers` by keyword; returns a `StartedRegion`."""


@dataclass(slots=True)
class RunningReplica:
    """A replica that was started at this site, and what it counts."""

    context: ReplicaContext
    handle: StartedRegion | None = None
    specs: Mapping[str, Any] = field(default_factory=dict)
    """Operator -> its description."""
    error: str = ""
    """Why it could not be started."""
    meter: ReaderMeter = field(default_factory=ReaderMeter)
    usage: UsageMeter = field(default_factory=UsageMeter)
    load: float = 0.0
    """As it was reported last."""
    ended_at: float | None = None
    differs: bool | None = None
    """Whether it has failed because the replicas that it reads differ; None: not known yet."""

    @property
    def state(self) -> str:
        return "FAILED" if self.handle is None else str(self.handle.status.state.value)

    @property
    def reason(self) -> str:
        """Why it does not run, "" if it does."""
        if self.handle is None:
            return self.error
        if self.state == "RUNNING":
            return ""
        held = "; it is not started again before its streams change, or `dos sites run` is started again"
        return f"{self.handle.status.reason}{held if self.differs else ''}"

    def of_kind(self, kind: type[Spec]) -> dict[str, Spec]:
        """Return the operators that are sources or sinks of a kind."""
        return {name: one for name, one in self.specs.items() if isinstance(one, kind)}

    def _sender(self, source: InputSource) -> RegionReplica:
        return self.context.ports[source.name][0].sender

    def _counted(self, operator: str) -> list[Mapping[str, int]]:
        """Return what the workers count of an operator."""
        if self.handle is None:
            return []
        return [one.counters.operators.get(operator, {}) for one in self.handle.status.workers]

    def _mark(self, operator: str) -> int | None:
        """Return the least mark that workers count; one that has none gets no rows."""
        return min((one["mark_us"] for one in self._counted(operator) if "mark_us" in one), default=None)

    def used(self, sources: Sequence[SourceCounters]) -> Usage:
        """Return what its workers have used."""
        read = {
            self._sender(one): sum(found.get("bytes_in", 0) for found in self._counted(name))
            for name, one in self.of_kind(InputSource).items()
        }
        workers = () if self.handle is None else self.handle.status.workers
        return Usage(sum(one.counters.busy_s for one in workers), read | bytes_of(sources))

    def counters(self) -> list[SourceCounters]:
        """Return what its sources count, and note how far they are."""
        if self.state != "RUNNING":
            return []
        nodes = {port[0].region: node for node, port in self.context.ports.items()}
        sources = [
            SourceCounters(nodes[source.region], found)
            for name, source in sorted(self.of_kind(MergedLogSource).items())
            for found in self._counted(name)
            if "mark_us" in found
        ]
        sources += [
            input_counters(self._sender(one), self._mark(name))
            for name, one in sorted(self.of_kind(InputSource).items())
            if not one.late
        ]
        given = [self._mark(name) for name, one in self.of_kind(LogSink).items() if one.time]
        self.meter.note(sources, given, trio.current_time())
        return sources


def region_of(description: Description, context: ReplicaContext) -> ReplicatedRegion | FixedPlace:
    """Return the region of a replica, or the exit."""
    every: tuple[ReplicatedRegion | FixedPlace, ...] = (*description.regions, *description.exits)
    return next(one for one in every if one.name == context.replica.node)


def graph_of(description: Description, context: ReplicaContext) -> Graph:
    """Return the graph of a replica. Raises GraphRefusedError, and what the function raises."""
    region = region_of(description, context)
    if region.graph is None:
        raise GraphRefusedError(f"region {region.name!r} names no graph")
    module, _, name = region.graph.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise GraphRefusedError(f"graph {region.graph!r} of region {region.name!r}: {error}") from error
    graph = function(context)
    if not isinstance(graph, Graph):
        raise GraphRefusedError(f"{region.graph} returned {type(graph).__name__}, not a graph")
    if len(parts_of(graph, context.name)) != 1:
        raise GraphRefusedError(
            f"{region.graph} returned a graph of several regions; describe each as a region"
        )
    specs = graph.plan().specs.values()
    check_ports(
        context,
        [one.name for one in specs if isinstance(one, InputSource)],
        [one.region for one in specs if isinstance(one, MergedLogSource)],
    )
    return graph
