"""Which operators are in which consistent region (consistent-regions, "Selecting a consistent region")."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow import CallSink, FileSink, FileSource, Graph, GraphError, InputSource, autonomous, consistent
from dataflow.core.plan import NodeSpec, OperatorKind
from dataflow.core.regions import Annotation, Choice, choose_regions, region_options
from tests.dataflow.support import word_count


def node(name: str, kind: OperatorKind, *inputs: int) -> NodeSpec:
    return NodeSpec(name, kind, inputs)


CHAIN = [
    node("op1", OperatorKind.SOURCE),
    node("op2", OperatorKind.MAP, 0),
    node("op3", OperatorKind.SINK, 1),
    node("op4", OperatorKind.FILTER, 0),
    node("op5", OperatorKind.SINK, 3),
]


def members(choice: Choice) -> list[set[str]]:
    return [set(region.members) for region in choice.regions]


def test_a_graph_without_annotations_is_one_region() -> None:
    choice = choose_regions(CHAIN, {})
    (region,) = choice.regions
    assert region.members == ("op1", "op2", "op3", "op4", "op5")
    assert (region.starts, region.ends, choice.outside) == (("op1",), ("op3", "op5"), ())
    assert region.settings == consistent()


def test_consistent_takes_in_what_is_reached_and_autonomous_takes_its_part_out() -> None:
    assert members(choose_regions(CHAIN, {0: consistent()})) == [{"op1", "op2", "op3", "op4", "op5"}]
    choice = choose_regions(CHAIN, {0: consistent(period=30), 3: autonomous})
    (region,) = choice.regions
    assert region.members == ("op1", "op2", "op3")
    assert region.ends == ("op1", "op3"), "a stream of op1 leaves the region"
    assert choice.outside == ("op4", "op5")


def test_consistent_takes_precedence_where_both_reach() -> None:
    graph = [
        node("op1", OperatorKind.SOURCE),
        node("op2", OperatorKind.MAP, 0),
        node("op3", OperatorKind.MAP, 0),
        node("op4", OperatorKind.UNION, 1, 2),
        node("op5", OperatorKind.SINK, 3),
    ]
    choice = choose_regions(graph, {0: consistent(), 2: autonomous})
    assert members(choice) == [{"op1", "op2", "op4", "op5"}]
    assert choice.outside == ("op3",)
    (problem,) = choice.problems
    assert "union 'op4' is in a consistent region and takes input from 'op3', which is not" in problem


def test_regions_apart_are_two_and_regions_that_meet_are_one() -> None:
    apart = [
        node("a", OperatorKind.SOURCE),
        node("b", OperatorKind.SOURCE),
        node("x", OperatorKind.SINK, 0),
        node("y", OperatorKind.SINK, 1),
    ]
    choice = choose_regions(apart, {0: consistent(period=1), 1: consistent(period=60)})
    assert members(choice) == [{"a", "x"}, {"b", "y"}]
    assert [region.settings.period for region in choice.regions] == [1, 60]
    meet = [
        node("a", OperatorKind.SOURCE),
        node("b", OperatorKind.SOURCE),
        node("u", OperatorKind.UNION, 0, 1),
        node("x", OperatorKind.SINK, 2),
    ]
    both = choose_regions(meet, {0: consistent(), 1: consistent()})
    assert (members(both), both.problems) == ([{"a", "b", "u", "x"}], ())
    assert both.regions[0].starts == ("a", "b")
    (problem,) = choose_regions(meet, {0: consistent(period=1), 1: consistent(period=2)}).problems
    assert "operators 'a' and 'b' start one region" in problem
    assert "period 1 and 2" in problem


def test_autonomous_alone_leaves_no_region() -> None:
    choice = choose_regions(CHAIN, {0: autonomous})
    assert (choice.regions, set(choice.outside)) == ((), {one.name for one in CHAIN})


@st.composite
def annotated(draw: st.DrawFn) -> tuple[list[NodeSpec], dict[int, Annotation]]:
    rng = random.Random(draw(st.integers(0, 2**32)))
    count = draw(st.integers(1, 14))
    nodes = []
    for index in range(count):
        inputs = sorted({rng.randrange(index) for _ in range(rng.randint(0, 2))}) if index else []
        kind = (OperatorKind.SOURCE, OperatorKind.MAP, OperatorKind.UNION)[len(inputs)]
        nodes.append(node(f"n{index}", kind, *inputs))
    annotations: dict[int, Annotation] = {
        index: rng.choice([consistent(), autonomous]) for index in range(count) if rng.random() < 0.4
    }
    return nodes, annotations


@given(annotated())
def test_every_operator_is_in_one_region_or_outside_as_paths_say(
    drawn: tuple[list[NodeSpec], dict[int, Annotation]],
) -> None:
    nodes, annotations = drawn
    choice = choose_regions(nodes, annotations)
    seen = [name for region in choice.regions for name in region.members] + list(choice.outside)
    assert sorted(seen) == sorted(one.name for one in nodes)
    if not annotations:
        return
    inside: dict[int, bool] = {}
    for index, one in enumerate(nodes):  # inputs come first
        said = annotations.get(index)
        inside[index] = said == consistent() or (
            said is None and any(inside[source] for source in one.inputs)
        )
    assert {nodes[index].name for index, there in inside.items() if there} == {
        name for region in choice.regions for name in region.members
    }
    of = {name: number for number, region in enumerate(choice.regions) for name in region.members}
    for one in nodes:
        regions = {of.get(nodes[source].name) for source in one.inputs} - {None}
        if one.name in of and annotations.get(nodes.index(one)) != autonomous:
            assert regions <= {of[one.name]}, "an edge between two regions"


def test_a_graph_explains_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = Graph("calls")
    lines = graph.source("records", FileSource([tmp_path / "a"])).annotate(consistent(period=30))
    lines.key_by("by_number", "line").count("calls").sink("bills", FileSink(tmp_path / "bills"))
    lines.map("shown", lambda row: row["line"]).sink("board", CallSink(print))
    graph.annotate("shown", autonomous)
    graph.explain()
    assert (
        capsys.readouterr().out
        == """\
graph 'calls': 1 consistent region, 2 outside

region 1 (NAME.records): checkpoint every 30 s; drain within 180 s, reset within 180 s, max 5 resets in a row
  start+end  records    source
             by_number  key_by from records
             calls      count from by_number
  end        bills      sink from calls, exactly-once

outside of any region: no checkpoints; after a failure it starts again at the current input
             shown      map from records
             board      sink from shown, at-most-once

logs in the store, with what committed checkpoints cover:
  records    from NAME.records to NAME.shown
"""
    )
    with pytest.raises(GraphError, match="it has 1 consistent region, with 'shown', 'board' outside"):
        graph.plan().the_region()


def test_annotations_are_given_by_name_by_stream_or_on_the_function(tmp_path: Path) -> None:
    @autonomous
    def shout(row: dict[str, str]) -> str:
        return row["line"].upper()

    graph = Graph("g")
    lines = graph.source("lines", FileSource([tmp_path / "a"]))
    lines.map("loud", shout).sink("out", FileSink(tmp_path))
    graph.annotate("lines", consistent())
    assert graph.plan().choice.outside == ("loud", "out")
    graph.annotate("loud", consistent())
    assert graph.plan().choice.outside == (), (
        "what is said of the operator goes before what its function says"
    )
    graph.annotate("lines", consistent())
    with pytest.raises(
        GraphError, match=r"'lines' is annotated as checkpoint at the interval of `run`.* and as autonomous"
    ):
        graph.annotate("lines", autonomous)
    graph.annotate("nobody", autonomous)
    with pytest.raises(GraphError, match="annotations name unknown operators: 'nobody'"):
        graph.plan()
    with pytest.raises(GraphError, match=r"an annotation is consistent\(...\) or autonomous, not 5"):
        graph.annotate("lines", 5)  # type: ignore[arg-type]


def test_settings_of_a_region_are_those_of_the_run(tmp_path: Path) -> None:
    graph = word_count([tmp_path / "a"], tmp_path / "out")
    assert graph.plan().the_region() == consistent()
    assert "checkpoint_interval_s" not in region_options(consistent())
    graph.annotate(
        "lines", consistent(period=7, drain_timeout=8, reset_timeout=9, max_consecutive_reset_attempts=2)
    )
    assert region_options(graph.plan().the_region()) == {
        "trigger": "periodic",
        "checkpoint_interval_s": 7,
        "drain_timeout_s": 8,
        "reset_timeout_s": 9,
        "max_consecutive_reset_attempts": 2,
    }


@pytest.mark.parametrize(
    "settings",
    [
        {"trigger": "sometimes"},
        {"period": 0},
        {"period": float("nan")},
        {"drain_timeout": -1},
        {"reset_timeout": float("inf")},
        {"max_consecutive_reset_attempts": -1},
        {"trigger": "operator", "period": 1},
    ],
)
def test_settings_out_of_their_range_are_refused_at_once(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings)) if len(settings) == 1 else "period"):
        consistent(**settings)  # type: ignore[arg-type]


def test_operators_trigger_checkpoints_where_a_source_can(tmp_path: Path) -> None:
    graph = word_count([tmp_path / "a"], tmp_path / "out")
    graph.annotate("lines", consistent(trigger="operator"))
    assert graph.plan().the_region().trigger == "operator"
    rows = Graph("rows")
    source = rows.source("rows", InputSource("x", "word string"))
    source.annotate(consistent(trigger="operator")).sink("out", FileSink(tmp_path / "out"))
    with pytest.raises(GraphError, match=r"an operator that requests checkpoints.* and 'rows' never does"):
        rows.plan().the_region()
