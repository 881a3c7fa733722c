"""The checks of a graph, and its cut into stages."""

from hypothesis import given
from hypothesis import strategies as st

from dataflow.core.plan import KIND_RULES, NodeSpec, OperatorKind, find_problems, in_order, make_plan


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
