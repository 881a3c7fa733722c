"""What differs between two graphs, and which differences are refused (`checkpoint/core/graph_change.py`)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.core.graph_change import (
    STATELESS,
    DeclaredState,
    GraphOptions,
    OperatorNote,
    ResultNote,
    born_with,
    check_compatible,
    compare,
    fingerprint,
    result_uids,
)
from checkpoint.errors import GraphChangeRefusedError
from tests.checkpoint.manifest_samples import notes

Graph = dict[str, OperatorNote]

LASTING = ("count", "aggregate", "window", "join", "map_state", "apply", "event_time")


results_of: st.SearchStrategy[tuple[ResultNote, ...]] = st.lists(
    st.builds(ResultNote, st.sampled_from("abcd"), st.sampled_from(["Count()", "Sum(n) int"])),
    max_size=4,
    unique_by=lambda result: result.name,
).map(tuple)


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
            results=draw(results_of) if kind in ("aggregate", "window") else (),
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
    with_state = {name for name in lost if graph[name].has_state}
    others = {name for name in lost if graph[name].kind in ("source", "sink")}
    change = compare(graph, other)
    assert {name for name, _ in change.refused} == with_state | others
    assert not set(change.kept) & lost
    dropped = compare(graph, other, options=GraphOptions(drop_state=tuple(lost)))
    assert {name for name, _ in dropped.refused} == others
    assert set(dropped.dropped) == with_state


@given(graphs(), st.data())
def test_what_a_graph_adds_begins_without_anything_of_that_name(graph: Graph, data: st.DataObject) -> None:
    added = data.draw(st.sets(st.sampled_from(sorted(graph))))
    before = {name: note for name, note in graph.items() if name not in added}
    change = compare(before, graph, born="_1f-")
    lasting = {name for name, note in graph.items() if not note.is_stateless}
    fits = {name for name in lasting - added if name not in dict(change.refused)}
    assert set(change.kept) == fits
    assert change.uids == {name: f"_1f-{name}" for name in lasting - fits}
    again = compare(graph, dict(reversed(graph.items())), uids=change.uids, born="_2a-")
    assert again.uids == change.uids


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


def test_rows_of_other_sources_continue_a_state_if_that_is_permitted_but_not_exchanged_inputs() -> None:
    moved = msgspec.structs.replace(COUNT, lineage=(("sales",),))
    ((_, why),) = compare({"op": COUNT}, {"op": moved}).refused
    assert 'rewired=("op",)' in why
    permitted = GraphOptions.of({"rewired": ["op"]})
    change = compare({"op": COUNT}, {"op": moved}, options=permitted)
    assert (change.refused, change.kept) == ((), ("op",))
    for lineage in ((("prices",), ("orders",)), (("orders",), ("orders",))):
        exchanged = msgspec.structs.replace(JOIN, lineage=lineage)
        ((_, why),) = compare({"op": JOIN}, {"op": exchanged}, options=permitted).refused
        assert "its inputs are exchanged" in why
    with pytest.raises(TypeError, match="rewired must be the names of operators"):
        GraphOptions.of({"rewired": "op"})


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
    assert why.startswith(
        "was source ... zone=UTC gives (a int, b int, c int, d int), is source ... zone=UTC gives (a int)."
    )
    other = msgspec.structs.replace(source, detail="batches with zone=CET")
    ((_, why),) = compare({"in": source}, {"in": other}).refused
    assert why.startswith(
        "was source batches with zone=UTC gives (a int, ..., is source batches with zone=CET gives (a"
        " int, ...."
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
    assert "run a graph that declares version 3. To drop" in why(state("n", 3), state("n", 2))
    assert why(state("n"), state("m", 2), state("n")) == ""
    assert why(state("n", ttl=True), state("n"), state("n", ttl=True)) == ""
    assert why(None, state("n")).startswith("was apply, is apply state (n). To drop its state: ")
    assert why(state("n"), None).startswith("was apply state (n), is apply. ")


def test_a_fingerprint_is_of_all_that_is_noted() -> None:
    assert fingerprint({}) == "831154110e30ac6a"
    for fields in ({"gives": "n int"}, {"inputs": ("other",)}, {"lineage": (("other",),)}):
        assert fingerprint({"op": msgspec.structs.replace(COUNT, **fields)}) != fingerprint({"op": COUNT})


BY_ITEM = notes(orders="source", counts="count", top="top_k", out="sink")


def refused_of(stored: Graph, present: Graph, **options: Any) -> dict[str, str]:
    return dict(compare(stored, present, options=GraphOptions(**options)).refused)


def test_a_state_that_does_not_fit_begins_anew_under_another_uid_if_it_was_named() -> None:
    other = BY_ITEM | {"counts": OperatorNote(kind="count", detail="key (shop)")}
    assert 'drop_state=("counts",)' in refused_of(BY_ITEM, other)["counts"]
    change = compare(BY_ITEM, other, options=GraphOptions(drop_state=("counts", "top")), born="_1f-")
    assert (change.dropped, change.new) == (("counts",), ("counts",))
    assert change.kept == ("orders", "out", "top"), "what fits is kept, although it was named"
    assert change.uids == {"counts": "_1f-counts"}
    assert str(change).splitlines()[4] == "dropped  counts"


def test_options_that_were_carried_out_may_stay() -> None:
    gone = {name: note for name, note in BY_ITEM.items() if name != "top"}
    options = GraphOptions(drop_state=("top",), renamed={"counts": "tallies"})
    renamed = {("tallies" if name == "counts" else name): note for name, note in gone.items()}
    first = compare(BY_ITEM, renamed, options=options, born="_1f-")
    assert (first.renamed, first.dropped, first.refused) == ((("counts", "tallies"),), ("top",), ())
    assert first.uids == {"tallies": "counts"}
    for later in (renamed, renamed | notes(cheap="filter", counts="map")):
        change = compare(renamed, later, options=options, uids=first.uids, born="_2a-")
        assert (change.dropped, change.renamed, change.refused) == ((), (), ())
        assert change.uids == first.uids


def test_a_name_that_comes_back_does_not_find_what_it_left() -> None:
    gone = {name: note for name, note in BY_ITEM.items() if name != "top"}
    options = GraphOptions(drop_state=("top",))
    without = compare(BY_ITEM, gone, options=options, born=born_with("shop", 7))
    back = compare(gone, BY_ITEM, uids=without.uids, born=born_with("shop", 9))
    assert back.uids == {"top": f"{born_with('shop', 9)}top"}
    assert len({born_with("shop", 9), born_with("shop", 7), born_with("fork", 9)}) == 3


@pytest.mark.parametrize(
    ("renamed", "graph", "why"),
    [
        ({"counts": "top"}, notes(orders="source", top="top_k", out="sink"), "which the checkpoint has, too"),
        ({"counts": "top", "top": "counts"}, BY_ITEM | notes(a="map"), "this graph has it still"),
        ({"counts": "tallies"}, notes(orders="source", top="top_k", out="sink"), "no such operator"),
        (
            {"counts": "one", "top": "one"},
            notes(orders="source", one="count", out="sink"),
            "which the checkpoint has, too",
        ),
    ],
    ids=["onto another one", "exchanged", "to nothing", "two to one"],
)
def test_a_rename_that_is_no_rename_is_refused(renamed: dict[str, str], graph: Graph, why: str) -> None:
    assert why in " ".join(refused_of(BY_ITEM, graph, renamed=renamed).values())


def test_an_operator_that_is_renamed_must_fit() -> None:
    other = {name: note for name, note in BY_ITEM.items() if name != "counts"}
    other["tallies"] = OperatorNote(kind="count", detail="key (shop)")
    refused = refused_of(BY_ITEM, other, renamed={"counts": "tallies"})
    assert "is count key (shop)" in refused["tallies"]
    assert 'drop_state=("counts",)' in refused["tallies"]


def test_a_renamed_source_is_the_same_source_for_the_state_below_it() -> None:
    def graph(source: str) -> Graph:
        return {
            source: OperatorNote(kind="source", gives="n int"),
            "counts": OperatorNote(kind="count", inputs=(source,), lineage=((source,),), stored=("n int",)),
        }

    assert "reads 'sales'" in refused_of(graph("orders"), graph("sales"))["counts"]
    assert refused_of(graph("orders"), graph("sales"), renamed={"orders": "sales"}) == {}


def test_a_source_that_was_renamed_twice_is_still_the_same_for_the_state_below_it() -> None:
    """Also if another source has the name that it had first."""

    def graph(*sources: str) -> Graph:
        above = OperatorNote(kind="count", inputs=("by",), lineage=((sources[0],),), stored=("n int",))
        return notes(**dict.fromkeys(sources, "source")) | {"counts": above}

    uids = {"sales": "orders", "orders": "_1f-orders"}
    again = compare(
        graph("sales", "orders"),
        graph("sold", "orders"),
        options=GraphOptions(renamed={"sales": "sold"}),
        uids=uids,
    )
    assert (again.refused, again.uids) == ((), {"sold": "orders", "orders": "_1f-orders"})
    other = compare(graph("sales", "orders"), graph("orders", "sales"), uids=uids)
    assert "reads 'orders', and its state was made of 'sales'" in dict(other.refused)["counts"]


def test_a_uid_is_of_one_operator_and_fits_the_name_of_a_chain() -> None:
    taken = compare(notes(a="count"), notes(a="count", b="count"), uids={"a": "_1f-b"}, born="_1f-")
    assert "as another operator is" in dict(taken.refused)["b"]
    long = "n" * 80
    assert (
        "at most 78 characters"
        in dict(compare({}, notes(**{long: "count"}), born="_00000000-").refused)[long]
    )


def test_a_source_is_removed_if_it_is_named_and_begins_anew_when_it_comes_back() -> None:
    gone = {name: note for name, note in BY_ITEM.items() if name != "orders"}
    assert 'or remove it: removed={"orders": None}' in refused_of(BY_ITEM, gone)["orders"]
    removed = GraphOptions.of({"removed": {"orders": None}})
    change = compare(BY_ITEM, gone, options=removed)
    assert (change.refused, change.removed, change.gone) == ((), ("orders",), ())
    back = compare(gone, BY_ITEM, uids=change.uids, born="_1f-")
    assert back.uids == {"orders": "_1f-orders"}
    same = compare(BY_ITEM, BY_ITEM | notes(a="map"), options=removed)
    assert (same.removed, same.new) == ((), ("a",)), "what fits is kept, although it was named"


def test_a_source_at_another_place_is_another_source_if_the_former_is_removed() -> None:
    """So the state below it continues only if it is said to."""

    def graph(place: str) -> Graph:
        source = OperatorNote(kind="source", detail=place, gives="n int")
        return {"orders": source, "op": COUNT}

    options = GraphOptions.of({"removed": {"orders": None}})
    assert "FileSource /a" in refused_of(graph("FileSource /a"), graph("FileSource /b"))["orders"]
    change = compare(graph("a"), graph("b"), options=options, born="_1f-")
    assert [name for name, _ in change.refused] == ["op"]
    rewired = GraphOptions.of({"removed": {"orders": None}, "rewired": ["op"]})
    change = compare(graph("a"), graph("b"), options=rewired, born="_1f-")
    assert (change.refused, change.removed, change.new) == ((), ("orders",), ("orders",))
    assert change.uids == {"orders": "_1f-orders"}


class Named(NamedTuple):
    """A specification of a sink, as far as graphs are compared."""

    text: str

    def detail(self) -> str:
        return self.text


class Other(Named):
    """One of another class."""


def test_a_sink_outside_of_the_store_is_removed_with_the_specification_that_it_had() -> None:
    sink = OperatorNote(kind="sink", detail="in /data/a", removed_with="Named")
    stored = BY_ITEM | {"audit": sink}
    (why,) = refused_of(stored, BY_ITEM).values()
    assert why.endswith('Give it its former name and settings, or remove it: removed={"audit": Named(...)}')
    (why,) = refused_of(stored, BY_ITEM, removed={"audit": None}).values()
    assert why.startswith("may have rows outside of the store that only its specification makes visible")
    (why,) = refused_of(stored, BY_ITEM, removed={"audit": Named("in /data/b")}).values()
    assert why.startswith("is in /data/a, and removed= has one that is in /data/b: give the sink")
    assert "audit" in refused_of(stored, BY_ITEM, removed={"audit": Other("in /data/a")})
    given = {"audit": Named("in /data/a")}
    change = compare(stored, BY_ITEM, options=GraphOptions(removed=given))
    assert (change.refused, change.removed, change.gone) == ((), ("audit",), ())
    moved = stored | {"audit": msgspec.structs.replace(sink, detail="in /data/b")}
    change = compare(stored, moved, options=GraphOptions(removed=given), born="_1f-")
    assert (change.refused, change.removed, change.new) == ((), ("audit",), ("audit",))
    assert change.uids == {"audit": "_1f-audit"}
    fork = compare(stored, BY_ITEM, options=GraphOptions(removed=given), outputs_begin=True)
    assert (fork.removed, fork.gone) == ((), ("audit",)), "its output is the original's"
    dry_run = GraphOptions(removed={"audit": None}, without_specs=True)
    assert compare(stored, BY_ITEM, options=dry_run).removed == ("audit",)


def test_only_what_is_a_source_or_sink_is_removed() -> None:
    graph = {name: note for name, note in BY_ITEM.items() if name != "top"}
    why = refused_of(BY_ITEM, graph, removed={"top": None})["top"]
    assert why == 'is no source and no sink. To drop its state: drop_state=("top",)'
    assert refused_of(BY_ITEM, BY_ITEM | notes(a="map"), removed={"out": None, "counts": None}) == {}


def test_a_log_is_removed_if_it_is_named_and_another_one_begins_if_its_name_comes_back() -> None:
    log = OperatorNote(kind="sink", stored=("n int",), detail="LogSink")
    before = BY_ITEM | {"audit": log}
    assert 'or remove it: removed={"audit": None}' in refused_of(before, BY_ITEM)["audit"]
    removed = GraphOptions.of({"removed": {"audit": None}})
    change = compare(before, BY_ITEM, options=removed)
    assert (change.refused, change.removed) == ((), ("audit",))
    # Other columns are another log, under the same name.
    wider = before | {"audit": OperatorNote(kind="sink", stored=("n int, m int",), detail="LogSink")}
    change = compare(before, wider, options=removed, born="_1f-")
    assert (change.refused, change.removed, change.uids) == ((), ("audit",), {"audit": "_1f-audit"})


def aggregation(**results: str) -> Graph:
    """A graph with one aggregation. results: name -> what makes it."""
    made = tuple(ResultNote(name, by) for name, by in results.items())
    note = OperatorNote(kind="aggregate", inputs=("by",), lineage=(("orders",),), results=made)
    return notes(orders="source") | {"sold": note}


BEFORE = aggregation(n="Count()", s="Sum(price) int")


def test_a_result_that_comes_is_refused_unless_it_was_named_and_has_another_uid() -> None:
    after = aggregation(top="Max(price) int", s="Sum(price) int", n="Count()")
    why = "has the new result 'top', Max(price) int, which would be of later rows only"
    assert refused_of(BEFORE, after)["sold"] == (
        f'{why}: new_aggregates=("sold:top",) permits it. To drop its state: drop_state=("sold",)'
    )
    change = compare(BEFORE, after, options=GraphOptions(new_aggregates=("sold:top",)), born="_1f-")
    assert (change.kept, change.new, change.dropped) == (("orders", "sold"), ("sold:top",), ())
    assert change.uids == {"sold:top": "_1f-top"}
    assert result_uids("sold", change.uids) == {"top": "_1f-top"}
    again = compare(after, after, uids=change.uids, born="_2a-")
    assert again.uids == change.uids, "it keeps it"


def test_a_result_that_goes_and_comes_back_does_not_have_the_uid_of_the_one_that_went() -> None:
    without = aggregation(n="Count()")
    assert "'s', Sum(price) int, which this graph lacks" in refused_of(BEFORE, without)["sold"]
    options = GraphOptions(drop_state=("sold:s",), new_aggregates=("sold:s",))
    gone = compare(BEFORE, without, options=options, born="_1f-")
    assert (gone.dropped, gone.uids) == (("sold:s",), {})
    back = compare(without, BEFORE, options=options, uids=gone.uids, born="_2a-")
    assert back.uids == {"sold:s": "_2a-s"}


def test_a_result_of_another_aggregate_begins_anew_under_another_uid_if_it_was_named() -> None:
    other = aggregation(n="Count()", s="Sum(price) double")
    assert "'s', Sum(price) int, and has Sum(price) double" in refused_of(BEFORE, other)["sold"]
    change = compare(BEFORE, other, options=GraphOptions(drop_state=("sold:s",)), born="_1f-")
    assert (change.dropped, change.new) == (("sold:s",), ("sold:s",))
    assert change.uids == {"sold:s": "_1f-s"}
    whole = compare(BEFORE, other, options=GraphOptions(drop_state=("sold",)), born="_1f-")
    assert (whole.dropped, whole.uids) == (("sold",), {"sold": "_1f-sold"}), "all of it begins anew"


def test_a_result_that_is_renamed_keeps_its_uid() -> None:
    other = aggregation(n="Count()", total="Sum(price) int")
    options = GraphOptions(renamed={"sold:s": "sold:total"})
    change = compare(BEFORE, other, options=options)
    assert (change.renamed, change.uids) == ((("sold:s", "sold:total"),), {"sold:total": "s"})
    assert compare(other, other, options=options, uids=change.uids).uids == change.uids
    moved = {("made" if name == "sold" else name): note for name, note in other.items()}
    both = GraphOptions(renamed={"sold": "made", "sold:s": "made:total"})
    assert compare(BEFORE, moved, options=both).uids == {"made": "sold", "made:total": "s"}


@pytest.mark.parametrize(
    ("given", "after"),
    [
        ("sold:n", aggregation(n="Count()")),
        ("sold:missing", aggregation(n="Count()")),
        ("total", aggregation(n="Count()", total="Sum(price) int")),
        ("sold:total", aggregation(n="Count()", total="Sum(price) int", s="Count()")),
    ],
    ids=["onto another one", "to nothing", "without its operator", "and stays"],
)
def test_a_rename_of_a_result_that_is_no_rename_is_refused(given: str, after: Graph) -> None:
    options = {"renamed": {"sold:s": given}, "drop_state": ("sold:s",), "new_aggregates": ("sold:total",)}
    assert "one name goes and the other comes" in refused_of(BEFORE, after, **options)["sold"]


def test_a_result_is_not_stored_under_the_uid_of_another_one() -> None:
    uids, options = {"sold:n": "_1f-x"}, GraphOptions(new_aggregates=("sold:x",))
    change = compare(BEFORE, aggregation(**NAMED, x="Count()"), options=options, uids=uids, born="_1f-")
    assert "as another one" in dict(change.refused)["sold"]


def log(*columns: str, kind: str = "sink") -> Graph:
    note = OperatorNote(kind=kind, lineage=(("orders",),), columns=columns, gives=", ".join(columns))
    return {"out": note}


@pytest.mark.parametrize("kind", ["sink", "source"])
def test_rows_that_readers_fit_may_gain_columns_that_allow_null(kind: str) -> None:
    before = log("item string", "n bigint NOT NULL", kind=kind)
    for more in ((), ("x int",), ("x int", "y struct<a:int,b:int>")):
        after = log("n bigint", *more, "item string", kind=kind)
        change = compare(before, after)
        assert (change.refused, change.kept, change.uids) == ((), ("out",), {})
    for columns, why in [
        (("item string", "n bigint", "x int NOT NULL"), "and has (x int NOT NULL)"),
        (("item string",), "had the columns (n bigint), and has (no others)"),
        (("item string", "n int"), "had the columns (n bigint), and has (n int)"),
        (("item string", "m bigint"), "had the columns (n bigint), and has (m bigint)"),
    ]:
        assert why in refused_of(before, log(*columns, kind=kind))["out"]


NAMED = {one.name: one.made_by for one in BEFORE["sold"].results}


@given(results_of, results_of)
def test_the_options_that_a_change_of_results_names_permit_it(
    one: tuple[ResultNote, ...], two: tuple[ResultNote, ...]
) -> None:
    before, after = (notes(op="aggregate") for _ in range(2))
    before["op"] = msgspec.structs.replace(before["op"], results=one)
    after["op"] = msgspec.structs.replace(after["op"], results=two)
    refused = compare(before, after)
    assert bool(refused.refused) == ({*one} != {*two}), "their order is free"
    named = {
        option: tuple(name for wanted, name in refused.permitted_by if wanted == option)
        for option in ("drop_state", "new_aggregates")
    }
    change = compare(before, after, options=GraphOptions(**named), born="_1f-")
    assert (change.refused, change.kept) == ((), ("op",))
    kept = {result.name for result in {*one} & {*two}}
    assert set(result_uids("op", change.uids)) == {result.name for result in two} - kept


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"new_aggregates": "sold:top"}, "new_aggregates must be the names"),
        ({"drop_state": "counts"}, "drop_state must be the names"),
        ({"begins": {"orders": "end"}}, "where being 'first' or 'latest', got"),
        ({"begins": "orders"}, "begins must be"),
        ({"bootstrap": {"counts": []}}, "bootstrap must be"),
        ({"renamed": ("a", "b")}, "renamed must be"),
        ({"renamed": {"a": 1}}, "renamed must be"),
        ({"removed": ("a",)}, "removed must be"),
        ({"removed": {"a": "/data/a"}}, "removed must be"),
    ],
)
def test_options_of_another_form_are_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(TypeError, match=problem):
        GraphOptions.of(given)


def test_a_new_source_begins_where_the_program_says_and_a_known_one_where_it_is() -> None:
    options = GraphOptions.of({"begins": {"prices": "latest", "orders": "latest", "rates": "first"}})
    wide = BY_ITEM | notes(prices="source", rates="source")
    change = compare(BY_ITEM, wide, options=options)
    assert (change.latest, change.new) == (("prices",), ("prices", "rates"))
    assert "new      prices (begins at its end), rates" in str(change)
    assert compare(wide, wide, options=options).latest == (), "it is known now"
    assert compare(wide, wide | notes(cheap="filter"), options=options).latest == ()


def test_a_place_to_begin_is_of_a_source_that_has_it() -> None:
    options = GraphOptions.of({"begins": {"orders": "latest"}})
    options.check_names(BY_ITEM, {"rate": "it is generated"})
    for operators, why in ((BY_ITEM, "it has no end"), ({"counts": COUNT}, "it has nothing")):
        with pytest.raises(ValueError, match=why):
            options.check_names(operators, {"orders": "it has no end"})
    GraphOptions.of({"begins": {"orders": "first"}}).check_names(BY_ITEM, {"orders": "it has no end"})


def test_rows_are_for_a_state_that_is_new_or_begins_anew() -> None:
    options = {"bootstrap": ("checkpoint:7", {"counts": [], "rates": []})}
    wide = BY_ITEM | notes(rates="count")
    refused = refused_of(BY_ITEM, wide, bootstrap_of="checkpoint:7", bootstrap={"counts": []})
    assert "keeps the state that it has, so it does not begin with the rows" in refused["counts"]
    anew = wide | {"counts": OperatorNote(kind="count", detail="key (shop)")}
    permitted = GraphOptions.of({**options, "drop_state": ("counts",)})
    change = compare(BY_ITEM, anew, options=permitted, born="_1f-")
    assert change.bootstrapped == {"counts": "_1f-counts", "rates": "_1f-rates"}
    assert "new      counts (bootstrap), rates (bootstrap)" in str(change)
    assert compare(anew, anew, options=permitted).bootstrapped == {}, "they have them"
    text = refused_of(BY_ITEM, anew)["counts"]
    assert "bootstrap" not in text, "two graphs have no checkpoint"
    text = dict(compare(BY_ITEM, anew, checkpoint=812).refused)["counts"]
    assert "(dos-state, checkpoint 812 if it is the last one)" in text
    assert text.endswith('add bootstrap=("checkpoint:812", {"counts": rows})')
    with pytest.raises(ValueError, match="bootstrap has 'rates', which is no operator with a state"):
        permitted.check_names(BY_ITEM, {})
