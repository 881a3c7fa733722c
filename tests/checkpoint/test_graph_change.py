"""What differs between two graphs, and which differences are refused (`checkpoint/core/graph_change.py`)."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.core.graph_change import (
    STATELESS,
    DeclaredState,
    OperatorNote,
    check_compatible,
    compare,
    fingerprint,
)
from checkpoint.errors import GraphChangeRefusedError
from tests.checkpoint.manifest_samples import notes

Graph = dict[str, OperatorNote]

LASTING = ("count", "aggregate", "window", "join", "map_state", "apply", "event_time")


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Graphs of some sources, and operators that read one or two operators before them."""
    graph: Graph = {}
    lineage: dict[str, set[str]] = {}
    for number in range(draw(st.integers(1, 3))):
        graph[f"in{number}"] = OperatorNote(kind="source", detail=f"input {number}", gives="n int")
        lineage[f"in{number}"] = {f"in{number}"}
    for number in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from([*sorted(STATELESS), *LASTING]))
        ports = 2 if kind in ("union", "join") else 1
        inputs = tuple(draw(st.sampled_from(sorted(graph))) for _ in range(ports))
        above = tuple(tuple(sorted(lineage[one])) for one in inputs)
        graph[f"op{number}"] = OperatorNote(
            kind=kind,
            inputs=inputs,
            lineage=above,
            stored=() if kind in STATELESS else ("n int",) * ports,
            detail=draw(st.sampled_from(["", "key (n)"])),
        )
        lineage[f"op{number}"] = {source for one in above for source in one}
    return graph


def reordered(graph: Graph, order: list[str]) -> Graph:
    return {name: graph[name] for name in order}


@given(graphs(), st.data())
def test_a_graph_does_not_differ_from_itself_in_any_order(graph: Graph, data: st.DataObject) -> None:
    other = reordered(graph, data.draw(st.permutations(sorted(graph))))
    change = compare(graph, other)
    assert (change.new, change.gone, change.refused) == ((), (), ())
    assert set(change.kept) == {name for name, note in graph.items() if not note.is_stateless}
    assert fingerprint(other) == fingerprint(graph)


@given(graphs(), graphs(), st.data())
def test_a_change_does_not_depend_on_the_order_of_operators(
    one: Graph, two: Graph, data: st.DataObject
) -> None:
    orders = [data.draw(st.permutations(sorted(graph))) for graph in (one, two)]
    assert compare(one, two) == compare(reordered(one, orders[0]), reordered(two, orders[1]))
    assert (fingerprint(one) == fingerprint(two)) == (one == two)


@given(graphs())
def test_stateless_operators_are_renamed_freely(graph: Graph) -> None:
    """Where no two inputs of one operator have the same sources: there, names tell which is which."""

    def renamed(name: str) -> str:
        return f"new-{name}" if graph[name].is_stateless else name

    other = {
        renamed(name): msgspec.structs.replace(note, inputs=tuple(map(renamed, note.inputs)))
        for name, note in graph.items()
    }
    unclear = {name for name, note in graph.items() if len(set(note.lineage)) < len(note.lineage)}
    change = compare(graph, other)
    assert {name for name, _ in change.refused} <= unclear
    assert set(change.gone) == {name for name, note in graph.items() if note.is_stateless}


@given(graphs(), st.data())
def test_what_a_graph_lacks_is_refused_by_name_unless_it_was_named(graph: Graph, data: st.DataObject) -> None:
    lost = data.draw(st.sets(st.sampled_from(sorted(graph))))
    other = {name: note for name, note in graph.items() if name not in lost}
    expected = {name for name in lost if not graph[name].is_stateless}
    for one, two in ((graph, other), (other, graph)):
        change = compare(one, two)
        assert {name for name, _ in change.refused} == expected
        assert not set(change.kept) & lost
    assert compare(graph, other, dropped=lost).refused == ()
    assert compare(other, graph, added=lost).refused == ()


COUNT = OperatorNote(
    kind="count", inputs=("by",), lineage=(("orders",),), stored=("item string",), detail="key (item)"
)
JOIN = OperatorNote(
    kind="join",
    inputs=("left", "right"),
    lineage=(("orders",), ("prices",)),
    stored=("item string", "item string"),
    detail="key (item)",
)
SINK = OperatorNote(kind="sink", inputs=("count",), lineage=(("orders",),), stored=("item string",))


@pytest.mark.parametrize(
    ("old", "fields", "why"),
    [
        (COUNT, {"kind": "aggregate"}, "was count of (item string) ..., is aggregate of (item string) ..."),
        (
            COUNT,
            {"detail": "key (shop)"},
            "was count ... (item string) key (item), is count ... (item string",
        ),
        (COUNT, {"stored": ("item bigint",)}, "was count of (item string) key (item), is count of (item big"),
        (COUNT, {"stored": ("changes item string",)}, "is count of (changes item string) key (item)"),
        (COUNT, {"lineage": (("sales",),)}, "reads 'sales', and its state was made of 'orders'"),
        (SINK, {"stored": ("item string, n int",)}, "was sink of (item string), is sink of (item string, n"),
        (SINK, {"detail": "table other"}, "was sink of (item string), is sink of (item string) table other"),
        (JOIN, {"lineage": (("prices",), ("orders",))}, "reads 'prices', and its state was made of 'orders'"),
        (JOIN, {"lineage": (("orders",), ("orders",))}, "reads 'orders', and its state was made of 'prices'"),
    ],
    ids=[
        *("kind", "key", "column of another type", "changes", "another source"),
        *("columns of a sink", "place of a sink", "inputs exchanged", "one source twice"),
    ],
)
def test_what_the_state_of_an_operator_stands_on_cannot_change(
    old: OperatorNote, fields: dict[str, Any], why: str
) -> None:
    change = compare({"op": old}, {"op": msgspec.structs.replace(old, **fields)})
    ((name, said),) = change.refused
    assert name == "op"
    assert why in said
    with pytest.raises(GraphChangeRefusedError) as caught:
        check_compatible(change, region="shop", checkpoint=9)
    assert caught.value.operators == ("op",)
    assert "checkpoint 9 of region 'shop' was made by another graph: operator 'op'" in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"inputs": ("cheap",)},
        {"lineage": (("orders", "sales"),)},
        {"gives": "item string, count bigint"},
    ],
)
def test_what_is_above_an_operator_may_change(fields: dict[str, Any]) -> None:
    change = compare({"op": COUNT}, {"op": msgspec.structs.replace(COUNT, **fields)})
    assert (change.refused, change.kept) == ((), ("op",))


def test_inputs_that_their_sources_do_not_tell_apart_are_told_apart_by_name() -> None:
    old = msgspec.structs.replace(JOIN, lineage=(("orders",), ("orders",)))
    assert compare({"op": old}, {"op": old}).refused == ()
    new = msgspec.structs.replace(old, inputs=("right", "left"))
    ((_, why),) = compare({"op": old}, {"op": new}).refused
    assert "which continues which cannot be decided" in why
    was = msgspec.structs.replace(JOIN, lineage=(("orders", "prices"), ("prices",)))
    now = msgspec.structs.replace(JOIN, lineage=(("prices",), ("orders", "prices")))
    ((_, why),) = compare({"op": was}, {"op": now}).refused
    assert "its inputs are exchanged" in why


def test_a_source_keeps_its_columns_and_a_stateless_operator_needs_nothing() -> None:
    source = OperatorNote(kind="source", detail="batches with zone=UTC", gives="a int, b int, c int, d int")
    ((_, why),) = compare({"in": source}, {"in": msgspec.structs.replace(source, gives="a int")}).refused
    assert why == (
        "was source ... zone=UTC gives (a int, b int, c int, d int), is source ... zone=UTC gives (a int)"
    )
    other = msgspec.structs.replace(source, detail="batches with zone=CET")
    ((_, why),) = compare({"in": source}, {"in": other}).refused
    assert why == (
        "was source batches with zone=UTC gives (a int, ..., is source batches with zone=CET gives (a"
        " int, ..."
    )
    change = compare(notes(a="map", b="filter"), notes(b="flat_map", c="key_by"))
    assert (change.new, change.gone, change.refused, change.kept) == (("c",), ("a",), (), ())


def test_a_declared_state_that_differs_is_told_with_the_migration_that_it_needs() -> None:
    def why(old: DeclaredState | None, new: DeclaredState | None, *takes: DeclaredState) -> str:
        stored = {"op": OperatorNote(kind="apply", state=old)}
        return "".join(
            text
            for _, text in compare(stored, {"op": OperatorNote(kind="apply", state=new, takes=takes)}).refused
        )

    state: Callable[..., DeclaredState] = DeclaredState
    assert "state_version=2 and Migration(1," in why(state("n"), state("m"))
    assert "state_version=3 and Migration(1," in why(state("n"), state("m", 3))
    assert "state_version=3 and Migration(2," in why(state("n", 2), state("m", 2))
    assert why(state("n", 3), state("n", 2)).endswith("run a graph that declares version 3")
    assert why(state("n"), state("m", 2), state("n")) == ""
    assert why(state("n", ttl=True), state("n"), state("n", ttl=True)) == ""
    assert why(None, state("n")) == "was apply, is apply state (n)"
    assert why(state("n"), None) == "was apply state (n), is apply"


def test_a_fingerprint_is_of_all_that_is_noted() -> None:
    assert fingerprint({}) == "831154110e30ac6a"
    for fields in ({"gives": "n int"}, {"inputs": ("other",)}, {"lineage": (("other",),)}):
        assert fingerprint({"op": msgspec.structs.replace(COUNT, **fields)}) != fingerprint({"op": COUNT})
