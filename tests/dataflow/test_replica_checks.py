"""What a replica must not contain: each operator that is refused gives other rows in an example, or rows
behind a watermark that was published before them. What is accepted: `test_replica_consistency.py`.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pytest

from dataflow import (
    CallSink,
    Count,
    CountWindow,
    FileSource,
    Graph,
    GraphError,
    InputSource,
    IteratorSource,
    LogSink,
    LogSource,
    Max,
    Min,
    OperatorError,
    ParquetSink,
    RateSource,
    Sliding,
    Stream,
    Sum,
    Tumbling,
    UserOperator,
    autonomous,
    consistent,
)
from dataflow.core.plan import OperatorKind
from dataflow.errors import ReplicaError
from dataflow.operators.aggregates import Aggregate
from dataflow.sinks.base import SinkSpec
from dataflow.sources.base import SourceSpec
from dataflow.sources.rate import RateReader
from dataflow.state.accumulators import Accumulator, ExtremeAccumulator
from dataflow.state.key_index import Slots
from dataflow.testing import Trial
from tests.dataflow.fed_circuit import FedCircuit, a_piece
from tests.dataflow.fed_circuit import row as row_of_second
from tests.dataflow.replica_arrangements import (
    SCHEMA,
    SplitStep,
    behind_watermarks,
    canonical,
    entered,
    mark,
    micro,
    play,
    row,
    timed,
    timed_log,
)
from tests.dataflow.test_replica_consistency import ACCEPTED, Case, joined, keyed, of_one
from tests.dataflow.trials import Row

# --- operators that a replica must not contain, each with the problem that is reporte -----------------------


SIZE = micro(4)


def step_of(*rows: Row, source: str = "a") -> SplitStep:
    return {source: {"s0": list(rows)}}


class Numbered(UserOperator):
    """Numbers the rows in the order of arrival."""

    schema = "t timestamp, number bigint"
    count = 0

    def process(self, batch: pa.RecordBatch) -> Iterator[Any]:
        for time in batch.column("t").to_pylist():
            self.count += 1
            yield time, self.count


class Sampled(Numbered):
    deterministic = False


class FirstAccumulator(ExtremeAccumulator):
    def update(self, slots: Slots, column: pa.Array | None) -> None:
        assert column is not None
        new = ~self._any.values[slots]
        super().update(slots[new][:1], column.filter(pa.array(new))[:1])


class First(Aggregate):
    """An aggregate that depends on the order, and does not state that it does not."""

    def __init__(self, column: str) -> None:
        self.column = column

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        assert column is not None
        return column

    def open(self, name: str, column: pa.DataType | None) -> Accumulator:
        assert column is not None
        return FirstAccumulator(name, column, largest=True)


def ranked(batch: pa.RecordBatch) -> dict[str, Any]:
    return {"t": batch.column("t"), "rank": pa.array(range(batch.num_rows))}


def counted(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield pd.DataFrame({"t": frame["t"].iloc[:1], "n": [len(frame)]})


def read_by(added: Callable[[Stream, Any], Stream]) -> Case:
    """An operator that reads a broadcast table, made from the right stream."""

    def build(left: Stream, right: Stream) -> Stream:
        return added(left, right.graph.broadcast_table("table", right, "k"))  # type: ignore[attr-defined]

    return Case(build)


counter = itertools.count()
ONE, TWO = row(1, x=1.0), row(2, x=2.0)
PAST: list[list[SplitStep]] = [[step_of(mark(4)), step_of(ONE)], [step_of(ONE), step_of(mark(4))]]
"""A row that a watermark promised not to come, and the same row before the watermark."""
STEPS = [[step_of(ONE, TWO)], [step_of(ONE), step_of(TWO)]]
ORDERS = [[step_of(ONE), step_of(TWO)], [step_of(TWO), step_of(ONE)]]


class Refused(NamedTuple):
    case: Case
    problem: str
    remedy: str
    replicas: list[list[SplitStep]]
    """The same rows as two replicas get them."""


DIFFER: dict[str, Refused] = {
    "count": Refused(
        keyed(lambda s: s.count("op")), r"count 'op' has no window", "use aggregate with a window", STEPS
    ),
    "aggregate": Refused(
        keyed(lambda s: s.aggregate("op", n=Count())),
        r"aggregate 'op' has no window",
        "give it a window",
        STEPS,
    ),
    "dedup": Refused(
        keyed(lambda s: s.dedup("op")),
        r"dedup 'op' .* differ in 't', 'mark', 'x', 'n'",
        "to its key_by",
        ORDERS,
    ),
    "dedup with a window": Refused(
        keyed(lambda s: s.dedup("op", Tumbling("t", SIZE))), r"window_dedup 'op' emits the first", "", ORDERS
    ),
    "broadcast table": Refused(
        read_by(lambda s, table: s.filter("f", lambda one, table: one["k"] in table, broadcast=table)),
        r"control 'table' is a broadcast table",
        "join the rows",
        [
            [step_of(ONE, source="b"), step_of(TWO)],
            [step_of(TWO), step_of(ONE, source="b")],
        ],
    ),
    "late rows": Refused(
        keyed(lambda s: s.aggregate("w", Tumbling("t", SIZE), n=Count()).side_output("op", "late")),
        r"side 'op' reads the late rows of 'w'",
        "late log of the entry point",
        PAST,
    ),
    "late rows of map_state": Refused(
        keyed(
            lambda s: s.map_state(
                "m", lambda one, state: None, time="t", state="n bigint", schema="n bigint"
            ).side_output("op", "late")
        ),
        r"side 'op' reads the late rows of 'm'",
        "late log of the entry point",
        PAST,
    ),
    "apply": Refused(
        of_one(lambda s: s.apply("op", Numbered())),
        r"apply 'op' runs Numbered",
        "replica_consistent = True",
        ORDERS,
    ),
    "an operator that is not deterministic": Refused(
        of_one(lambda s: s.apply("op", Sampled())),
        r"apply 'op' is not deterministic",
        "random numbers",
        ORDERS,
    ),
    "a function that is not deterministic": Refused(
        of_one(
            lambda s: s.map(
                "op",
                lambda one: (one["t"], next(counter)),
                schema="t timestamp, c bigint",
                deterministic=False,
            )
        ),
        r"map 'op' is not deterministic",
        "random numbers",
        [STEPS[0]] * 2,
    ),
    "a function of batches": Refused(
        of_one(lambda s: s.map("op", ranked, schema="t timestamp, rank bigint", takes="batch")),
        r"map 'op' has a function of batches",
        'use takes="row"; or declare replica_consistent=True',
        STEPS,
    ),
    "a call for a group": Refused(
        keyed(
            lambda s: s.apply_in_pandas_with_state(
                "op", counted, "t timestamp, n bigint", "n bigint", "append", time="t", calls="group"
            )
        ),
        r"map_state 'op' gets the rows of a key that a step releases in one call",
        'use calls="row"',
        [[step_of(ONE, TWO, mark(2))], [step_of(ONE, mark(1)), step_of(TWO, mark(2))]],
    ),
    "an aggregate that depends on the order": Refused(
        keyed(lambda s: s.aggregate("op", Tumbling("t", SIZE), first=First("x")), "window_end"),
        r"window 'op' has the result 'first'",
        "order_independent = True",
        ORDERS,
    ),
}

BEHIND: dict[str, Refused] = {
    "top_k": Refused(
        keyed(lambda s: s.top_k("op", Tumbling("t", SIZE), 1, by="x")),
        r"top_k 'op' emits rows of a window after it is over",
        "window_end",
        [[step_of(ONE, mark(2))]],
    ),
    "count window": Refused(
        keyed(lambda s: s.aggregate("op", CountWindow("t", 2), t=Min("t"))),
        r"count_window 'op' emits results that have no time",
        "window_end",
        [[step_of(ONE, mark(1)), step_of(TWO)]],
    ),
    "window_start": Refused(
        keyed(lambda s: s.aggregate("w", Tumbling("t", SIZE), n=Count()), "window_start"),
        r"sink 'out' has the time 'window_start', which may be behind",
        r"use time=\['window_end'\]",
        [[step_of(ONE, mark(2))]],
    ),
    "the latest time in a window": Refused(
        keyed(lambda s: s.aggregate("w", Tumbling("t", SIZE), last=Max("t")), "last"),
        r"sink 'out' has the time 'last', which may be behind",
        r"use time=\['window_end'\]",
        [[step_of(ONE, mark(2))]],
    ),
    "one time of a pair": Refused(
        Case(joined, ("t",)),
        r"sink 'out' has the time 't', which may be behind",
        r"use time=\['t', 't_r'\]",
        [[{"a": {"s0": [ONE, mark(2)]}, "b": {"s0": [mark(2)]}}, {"b": {"s0": [row(4)]}}]],
    ),
    "another column than that of the event time": Refused(
        of_one(lambda s: s.filter("f", lambda one: True), "mark"),
        r"sink 'out' has the time 'mark', which may be behind",
        r"use time=\['t'\]",
        [],
    ),
}


@pytest.mark.parametrize("name", [*DIFFER, *BEHIND])
def test_a_refusal_names_the_operator_the_reason_and_the_remedy(name: str) -> None:
    refused = (DIFFER | BEHIND)[name]
    with pytest.raises(ReplicaError, match=refused.problem) as raised:
        refused.case.graph().plan()
    assert len(raised.value.problems) == 1, "what follows from a problem is not reported"
    assert refused.remedy.replace("\\", "") in raised.value.problems[0]
    assert str(raised.value).startswith("graph 'g' cannot run as replicas at several sites: ")


@pytest.mark.parametrize("name", DIFFER)
def test_a_refused_operator_gives_other_rows_at_another_replica(name: str) -> None:
    refused = DIFFER[name]
    graph = refused.case.graph(CallSink(print))
    one, other = (canonical(play(graph, steps)) for steps in refused.replicas)
    assert one != other


@pytest.mark.parametrize("name", [name for name, refused in BEHIND.items() if refused.replicas])
def test_a_refused_output_has_rows_behind_a_watermark_that_was_published_before(name: str) -> None:
    refused = BEHIND[name]
    times = refused.case.times
    assert behind_watermarks(refused.case.graph(CallSink(print)), refused.replicas[0], times)


def test_every_kind_of_operator_is_accepted_or_refused_here() -> None:
    graphs = [case.graph(CallSink(print)) for case in [*ACCEPTED.values()]]
    graphs += [refused.case.graph(CallSink(print)) for refused in [*DIFFER.values(), *BEHIND.values()]]
    kinds = {node.kind for graph in graphs for node in graph.plan().plan.nodes}
    assert kinds == set(OperatorKind)


def test_all_problems_are_reported_together() -> None:
    graph = Graph("g")
    stream = graph.source("lines", FileSource("lines.txt"))
    stream.key_by("by", "line").count("counts").sink("files", ParquetSink("out"))
    stream.sink("out", timed_log("line"))
    with pytest.raises(ReplicaError) as raised:
        graph.plan()
    named = [problem.split(" ")[1] for problem in raised.value.problems]
    assert sorted(named) == ["'counts'", "'files'", "'lines'"]
    assert isinstance(raised.value, GraphError)


# --- sources and time ---------------------------------------------------------------------------------


def reading(source: SourceSpec, sink: SinkSpec | None = None, **options: Any) -> Graph:
    graph = Graph("g")
    stream = graph.source("a", source)
    if options:
        stream = stream.event_time("timed", "t", **options)
        stream = stream.key_by("by", "k").aggregate("w", Tumbling("t", SIZE), n=Count())
    stream.sink("out", sink or timed_log("window_end" if options else "t"))
    return graph


@pytest.mark.parametrize(
    "source",
    [
        FileSource("lines.txt"),
        FileSource("*.lines", watch=True),
        IteratorSource(lambda split, position: iter([]), SCHEMA),
        RateSource(10),
        LogSource("out", SCHEMA, region="other"),
        entered("a", begin="retained"),
        InputSource("a", SCHEMA),
    ],
    ids=lambda source: type(source).__name__,
)
def test_a_source_that_other_sites_do_not_read_alike_is_refused(source: SourceSpec) -> None:
    with pytest.raises(
        ReplicaError, match=r"source 'a' (is a|reads rows that only this site has|has begin='retained')"
    ) as raised:
        reading(source).plan()
    assert len(raised.value.problems) == 1


def test_watermarks_of_a_refused_source_are_not_reported_too() -> None:
    with pytest.raises(ReplicaError) as raised:
        reading(LogSource("out", SCHEMA, region="other"), lateness=micro(0)).plan()
    assert len(raised.value.problems) == 1


def test_two_readers_of_a_rate_give_rows_of_other_times() -> None:
    batches = [RateReader(RateSource(10, rows=1), 0, 1, lambda now=now: now).read(100) for now in (5, 6)]
    assert batches[0] is not None
    assert batches[1] is not None
    assert batches[0].batch.to_pylist() != batches[1].batch.to_pylist()


def late_by_steps(graph: Graph) -> bool:
    """Whether a row that is behind an earlier one counts if both come in one step, and not if in two."""
    rows = [row(6), row(2)]
    one, other = (play(graph, steps) for steps in ([step_of(*rows)], [step_of(one) for one in rows]))
    return canonical(one) != canonical(other)


def test_lateness_is_refused_because_what_is_late_depends_on_the_steps() -> None:
    source = entered("a")
    with pytest.raises(ReplicaError, match=r"event_time 'timed' has lateness=0:00:00.000001, .*entry point"):
        reading(source, lateness=micro(1)).plan()
    assert late_by_steps(reading(source, CallSink(print), lateness=micro(1)))


class Merged(InputSource):
    """A source whose rows are in no order, as those of merged logs."""

    times_rise = False


def test_watermarks_are_taken_from_rows_only_where_these_are_in_the_order_of_their_times() -> None:
    merged = Merged("a", SCHEMA, entry="dos://e1:1", time="t")
    with pytest.raises(
        ReplicaError, match=r"event_time 'timed' takes watermarks from rows of 'a', .*punctuation="
    ):
        reading(merged, lateness=micro(0)).plan()
    assert late_by_steps(reading(merged, CallSink(print), lateness=micro(0)))
    replica = reading(merged, punctuation="mark").plan()
    assert replica.is_replica
    assert "stop all of them" in replica.stored()["keeps_graph"], "no other graph continues its state"
    assert reading(entered("a"), lateness=micro(0)).plan().is_replica, "entry points stamp the rows"


def test_idle_after_is_refused_because_it_depends_on_a_clock() -> None:
    options: dict[str, Any] = {"punctuation": "mark", "idle_after": micro(60_000_000)}
    with pytest.raises(
        ReplicaError, match=r"event_time 'timed' has idle_after=0:01:00, .*depends on a clock"
    ):
        reading(entered("a"), **options).plan()
    watermarks = []
    for now in (59.0, 61.0):
        fed = FedCircuit(idle_after=options["idle_after"])
        fed.buffer.known(["p", "q"])
        for split, second in (("p", 50), ("q", 3)):
            fed.buffer.put(a_piece(split, 1, [row_of_second(second)]))
            fed.buffer.polled(split, caught_up=True)
        fed.step()
        fed.now = now
        fed.buffer.put(a_piece("p", 2, [row_of_second(51)]))
        watermarks.append(fed.step()[0])
    assert watermarks == [3, 51]


@pytest.mark.parametrize("form", ["no event_time", "rows without a time"])
def test_an_output_without_event_time_is_refused(form: str) -> None:
    graph = Graph("g")
    stream = graph.source("a", entered("a"))
    if form == "rows without a time":
        timed_rows = stream.event_time("timed", "t", punctuation="mark", on_null="side")
        stream = timed_rows.side_output("nulls", "null").map("same", lambda one: one)
        timed_rows.sink("rows", LogSink())
    stream.sink("out", timed_log("t"))
    with pytest.raises(
        ReplicaError, match=r"sink 'out' has the time 't', and its rows have no event time; put"
    ):
        graph.plan()


def test_the_time_of_a_union_must_be_one_of_each_input() -> None:
    def united(*times: str) -> Graph:
        graph = Graph("g")
        other = graph.source("b", entered("b")).event_time("by_mark", "mark", lateness=micro(0))
        timed(graph, "a").union("both", other).sink("out", timed_log(*times))
        return graph

    for times in [("t",), ("mark",)]:
        with pytest.raises(ReplicaError, match=r"may be behind .* use time=\['mark', 't'\]"):
            united(*times).plan()
    assert united("t", "mark").plan().is_replica
    assert united("t", "mark", "x").plan().is_replica, "more columns make the time later"


def test_the_time_of_a_side_output_of_a_function_is_checked_when_its_rows_arrive() -> None:
    graph = Graph("g")
    options: dict[str, Any] = {"side_outputs": {"odd": "at timestamp"}}
    kept = timed(graph, "a").filter("f", lambda one, emit: True, **options)
    kept.sink("kept", timed_log("t"))
    kept.side_output("odd", "odd").sink("odd_out", timed_log("at"))
    assert graph.plan().is_replica


# --- the region ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("delivery", ["at-least-once", "at-most-once"])
def test_a_region_that_is_not_exactly_once_is_refused(delivery: Any) -> None:
    graph = Graph("g")
    timed(graph, "a").sink("out", LogSink())
    graph.annotate("a", consistent(delivery=delivery))
    assert not graph.plan().is_replica
    assert graph.plan().stored()["keeps_graph"] == ""
    graph = Graph("g")
    timed(graph, "a").sink("out", timed_log("t"))
    graph.annotate("a", consistent(delivery=delivery))
    with pytest.raises((ReplicaError, GraphError), match=rf"delivery='{delivery}'"):
        graph.plan()


def test_a_replica_is_one_region() -> None:
    graph = Graph("g")
    timed(graph, "a").sink("out", timed_log("t"))
    timed(graph, "b").sink("more", LogSink())
    graph.annotate("a", consistent())
    graph.annotate("b", consistent())
    with pytest.raises(
        ReplicaError, match="a replica is one consistent region, and the graph has 2, with 0 "
    ):
        graph.plan()
    outside = Graph("g")
    timed(outside, "a").sink("out", timed_log("t"))
    outside.annotate("a", autonomous)
    with pytest.raises(GraphError):
        outside.plan()


def test_a_sink_that_every_replica_would_write_is_refused() -> None:
    graph = Graph("g")
    stream = timed(graph, "a")
    stream.sink("out", timed_log("t"))
    stream.sink("files", ParquetSink("out"))
    with pytest.raises(
        ReplicaError, match=r"sink 'files' is a ParquetSink, to which every replica .*LogSink with"
    ):
        graph.plan()


# --- late rows ----------------------------------------------------------------------------------------


def moved_back(sink: SinkSpec, added: Callable[[Any], Stream]) -> Trial:
    """A function sets times that are behind a watermark."""
    graph = Graph("g")
    back = timed(graph, "a").map("back", lambda one: {**one, "t": one["t"] - micro(5)})
    added(back).sink("out", sink)
    trial = Trial(graph, splits={"a": ["s0"]})
    trial.step(step_of(row(6), mark(7)))
    trial.step(step_of(row(8)))
    return trial


LATE: dict[str, Callable[[Any], Stream]] = {
    "tumbling window": lambda s: s.key_by("by", "k").aggregate("op", Tumbling("t", SIZE), n=Count()),
    "sliding window that is open": lambda s: s.key_by("by", "k").aggregate(
        "op", Sliding("t", micro(20), micro(10)), n=Sum("n")
    ),
    "sort": lambda s: s.sort("op", "t"),
    "map_state": lambda s: s.key_by("by", "k").map_state(
        "op", lambda one, state: None, time="t", state="n bigint", schema="t timestamp"
    ),
    "join": lambda s: s.key_by("by", "k").join("op", s.key_by("by2", "k"), times=("t", "t"), within=SIZE),
    "dedup": lambda s: (
        s.map("keys", lambda one: (one["t"], one["k"]), schema="t timestamp, k string")
        .key_by("by", "k", "t")
        .dedup("op", Tumbling("t", micro(20)))
    ),
}


@pytest.mark.parametrize("name", LATE)
def test_a_row_behind_the_watermark_stops_a_replica_and_no_other_region(name: str) -> None:
    moved_back(CallSink(print), LATE[name])
    times = ("t",) if name in ("map_state", "dedup") else ("t", "window_end", "t_right")
    sink = timed_log(*times)
    with pytest.raises(
        OperatorError, match=r"operator 'op' failed .* another replica, whose watermark"
    ) as raised:
        moved_back(sink, LATE[name])
    assert "correct the function above it that sets the time" in str(raised.value)


# --- fingerprints -------------------------------------------------------------------------------------


def test_replicas_of_one_graph_have_one_fingerprint_wherever_they_run() -> None:
    """It names neither region nor store. Functions, and what has no state, are not part of it."""
    one, same = (ACCEPTED["tumbling windows"].graph().plan() for _ in range(2))
    assert one.fingerprint == same.fingerprint
    other = keyed(lambda s: s.aggregate("w", Tumbling("t", SIZE), n=Count()), "window_end").graph().plan()
    assert one.fingerprint != other.fingerprint
    forms: list[dict[str, Any]] = [{"lateness": micro(0)}, {"punctuation": "mark"}]
    times = {reading(entered("a"), **form).plan().fingerprint for form in forms}
    assert len(times) == 1, "it does not show that watermarks differ"
