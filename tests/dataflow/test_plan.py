"""The checks of a graph, and its cut into stages."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow import (
    CallSink,
    Count,
    CountWindow,
    Graph,
    GraphError,
    InputSource,
    LogSink,
    LogSource,
    Max,
    Stream,
    Sum,
    Tumbling,
    consistent,
)
from dataflow.core.plan import (
    KIND_RULES,
    ON_UPDATES,
    NodeSpec,
    OnUpdates,
    OperatorKind,
    find_problems,
    in_order,
    make_plan,
)


def node(name: str, kind: OperatorKind, *inputs: int) -> NodeSpec:
    return NodeSpec(name, kind, inputs)


WORD_COUNT = [
    node("lines", OperatorKind.SOURCE),
    node("words", OperatorKind.FLAT_MAP, 0),
    node("by_word", OperatorKind.KEY_BY, 1),
    node("counts", OperatorKind.COUNT, 2),
    node("out", OperatorKind.SINK, 3),
]


def test_the_word_count_has_two_stages_with_one_channel_between() -> None:
    assert find_problems(WORD_COUNT) == []
    plan = make_plan(WORD_COUNT)
    assert [[n.name for n in stage.nodes] for stage in plan.stages] == [
        ["lines", "words", "by_word"],
        ["counts", "out"],
    ]
    assert (plan.stages[0].sends, plan.stages[1].receives, plan.channels) == ((0,), (0,), 1)


def test_a_graph_without_an_exchange_still_has_a_barrier_before_its_sink() -> None:
    plan = make_plan([node("lines", OperatorKind.SOURCE), node("out", OperatorKind.SINK, 0)])
    assert [[n.name for n in stage.nodes] for stage in plan.stages] == [["lines"], ["out"]]
    assert (plan.stages[0].sends, plan.stages[1].receives, plan.channels) == ((0,), (0,), 1)


def test_a_union_of_two_stages_runs_in_the_later_one() -> None:
    plan = make_plan(
        [
            node("lines", OperatorKind.SOURCE),
            node("keyed", OperatorKind.KEY_BY, 0),
            node("both", OperatorKind.UNION, 0, 1),
            node("out", OperatorKind.SINK, 2),
        ]
    )
    assert plan.node("both").stage == 1


def problems_of(*nodes: NodeSpec) -> str:
    return "\n".join(find_problems(nodes))


def test_a_cycle_through_data_ports_is_refused_with_the_names_on_it() -> None:
    said = problems_of(
        node("lines", OperatorKind.SOURCE),
        node("both", OperatorKind.UNION, 0, 3),
        node("a", OperatorKind.MAP, 1),
        node("b", OperatorKind.MAP, 2),
        node("out", OperatorKind.SINK, 3),
    )
    assert "cycle" in said
    assert "a -> b -> both -> a" in said or "both -> a -> b -> both" in said or "b -> both -> a -> b" in said


def test_an_operator_that_is_its_own_input_is_a_cycle() -> None:
    assert "a -> a" in problems_of(
        node("a", OperatorKind.MAP, 0), node("out", OperatorKind.SINK, 0), node("lines", OperatorKind.SOURCE)
    )


def test_an_unnamed_operator_is_refused() -> None:
    said = problems_of(
        node("lines", OperatorKind.SOURCE), node("", OperatorKind.MAP, 0), node("out", OperatorKind.SINK, 1)
    )
    assert "the map without a name (number 2)" in said


def test_a_name_given_twice_is_refused_with_both_kinds() -> None:
    said = problems_of(
        node("x", OperatorKind.SOURCE), node("x", OperatorKind.MAP, 0), node("out", OperatorKind.SINK, 1)
    )
    assert "'x' is used twice (a source and a map)" in said


def test_a_name_outside_the_grammar_is_refused() -> None:
    assert "outside" in problems_of(node("x/../y", OperatorKind.SOURCE), node("out", OperatorKind.SINK, 0))


def test_a_sink_without_input_is_refused() -> None:
    said = problems_of(
        node("lines", OperatorKind.SOURCE), node("o1", OperatorKind.SINK, 0), node("o2", OperatorKind.SINK)
    )
    assert "sink 'o2' has no input and needs an input" in said


def test_a_stream_that_goes_nowhere_is_refused() -> None:
    said = problems_of(
        node("lines", OperatorKind.SOURCE), node("m", OperatorKind.MAP, 0), node("out", OperatorKind.SINK, 0)
    )
    assert "the output of map 'm' is not used" in said


def test_an_input_that_nobody_gives_is_refused_with_the_names_that_are_known() -> None:
    said = problems_of(node("lines", OperatorKind.SOURCE), NodeSpec("out", OperatorKind.SINK, (), ("linse",)))
    assert "'linse'" in said
    assert "'lines'" in said


def test_a_count_of_a_stream_without_a_key_is_refused() -> None:
    said = problems_of(
        node("lines", OperatorKind.SOURCE),
        node("c", OperatorKind.COUNT, 0),
        node("out", OperatorKind.SINK, 1),
    )
    assert "put a key_by before it" in said


def test_an_empty_graph_and_one_without_a_source_are_refused() -> None:
    assert "empty" in problems_of()
    assert "at least one source" in problems_of(NodeSpec("out", OperatorKind.SINK, ()))


def test_all_problems_are_reported_at_once() -> None:
    said = find_problems(
        [node("", OperatorKind.SOURCE), node("out", OperatorKind.SINK), node("out", OperatorKind.SINK)]
    )
    assert len(said) >= 4


@st.composite
def graphs(draw: st.DrawFn) -> list[NodeSpec]:
    """Any list of nodes, mostly wrong."""
    count = draw(st.integers(1, 8))
    names = st.sampled_from(["a", "b", "c", "d", "", "x y"])
    kinds = st.sampled_from(list(OperatorKind))
    inputs = st.lists(st.integers(0, count - 1), max_size=3).map(tuple)
    return [NodeSpec(draw(names), draw(kinds), draw(inputs)) for _ in range(count)]


@given(graphs())
def test_any_graph_is_refused_with_reasons_or_can_be_planned(nodes: list[NodeSpec]) -> None:
    problems = find_problems(nodes)
    if problems:
        assert all(problem and problem[0].islower() for problem in problems)
        return
    order = in_order(nodes)
    assert sorted(order) == list(range(len(nodes)))
    plan = make_plan(nodes)
    seen: set[str] = set()
    for stage in plan.stages:
        for planned in stage.nodes:
            assert set(planned.inputs) <= seen
            assert all(plan.node(name).output_stage <= planned.stage for name in planned.inputs)
            assert not (KIND_RULES[planned.kind].has_effect and stage.index == 0)
            seen.add(planned.name)


# --- streams of updates -------------------------------------------------------------------------------------


SIZE = timedelta(seconds=10)
SCHEMA = "at timestamp, key string, x bigint"


def rows(graph: Graph) -> Stream:
    source = graph.source("rows", InputSource("rows", SCHEMA))
    return source.event_time("timed", "at", lateness=timedelta(0))


def running(graph: Graph) -> Stream:
    return rows(graph).key_by("by_key", "key").aggregate("running", at=Max("at"), x=Max("x"))


REFUSING: dict[OperatorKind, Callable[[Stream], Stream]] = {
    OperatorKind.COUNT: lambda stream: stream.key_by("k", "key").count("refuses"),
    OperatorKind.AGGREGATE: lambda stream: stream.key_by("k", "key").aggregate("refuses", sum=Sum("x")),
    OperatorKind.WINDOW: lambda stream: stream.key_by("k", "key").aggregate(
        "refuses", Tumbling("at", SIZE), n=Count()
    ),
    OperatorKind.COUNT_WINDOW: lambda stream: stream.key_by("k", "key").aggregate(
        "refuses", CountWindow("at", 2), n=Count()
    ),
    OperatorKind.SORT: lambda stream: stream.sort("refuses", "at"),
    OperatorKind.JOIN: lambda stream: stream.key_by("k", "key").join(
        "refuses", stream.key_by("l", "key"), times=("at", "at"), within=SIZE
    ),
    OperatorKind.TOP_K: lambda stream: stream.key_by("k", "key").top_k(
        "refuses", Tumbling("at", SIZE), 1, by="x"
    ),
    OperatorKind.MAP_STATE: lambda stream: stream.key_by("k", "key").map_state(
        "refuses", lambda row, state: None, time="at", state="n bigint", schema="n bigint"
    ),
    OperatorKind.DEDUP: lambda stream: stream.key_by("k", "key").dedup("refuses"),
    OperatorKind.WINDOW_DEDUP: lambda stream: stream.key_by("k", "key").dedup(
        "refuses", Tumbling("at", SIZE)
    ),
}


def test_every_kind_that_refuses_is_tried() -> None:
    assert {kind for kind, rule in ON_UPDATES.items() if rule is OnUpdates.REFUSES} == set(REFUSING)


@pytest.mark.parametrize("kind", REFUSING)
@pytest.mark.parametrize("between", [False, True], ids=["at once", "behind functions"])
def test_an_operator_that_would_be_wrong_on_updates_names_itself_and_who_makes_them(
    kind: OperatorKind, between: bool
) -> None:
    graph = Graph("g")
    stream = running(graph)
    if between:
        stream = stream.filter("some", lambda row: True).map("same", lambda row: row)
        stream = stream.union("both", stream)
    REFUSING[kind](stream).sink("out", CallSink(print))
    with pytest.raises(
        GraphError, match=f"{kind.value} 'refuses' takes .* aggregate 'running' above it emits updates"
    ) as raised:
        graph.plan()
    assert "give 'running' a window" in str(raised.value), "the remedy"


@pytest.mark.parametrize("kind", REFUSING)
def test_the_same_operators_take_rows(kind: OperatorKind) -> None:
    graph = Graph("g")
    REFUSING[kind](rows(graph)).sink("out", CallSink(print))
    updates = graph.plan().updates
    assert updates == ({"refuses"} if kind in (OperatorKind.COUNT, OperatorKind.AGGREGATE) else set())


def test_sinks_and_control_tables_take_updates() -> None:
    graph = Graph("g")
    stream = running(graph)
    stream.sink("out", CallSink(print))
    newest = graph.broadcast_table("newest", stream, "key")
    seen = graph.stream("timed").map("seen", lambda row, table: row, broadcast=newest)
    seen.key_by("k", "key").count("counts").sink("seen_out", CallSink(print))
    plan = graph.plan()
    assert {"running", "counts", "newest.rows"} == plan.updates


def test_a_log_of_updates_that_another_region_reads_carries_updates() -> None:
    graph = Graph("g")
    stream = running(graph)
    graph.annotate("rows", consistent())
    stream.sink("log", LogSink())
    read = graph.source("read", LogSource("log", "key string, at timestamp, x bigint"))
    graph.annotate("read", consistent())
    read.key_by("k", "key").aggregate("again", sum=Sum("x")).sink("out", CallSink(print))
    with pytest.raises(GraphError, match=r"aggregate 'again' takes .* aggregate 'running' above"):
        graph.plan()
