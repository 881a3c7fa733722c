"""Building graphs: what a user writes, what it means, what is refused before anything starts."""

import pickle
import re
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pytest

from dataflow import (
    ApproxDistinct,
    CallSink,
    Count,
    CountWindow,
    FileSink,
    FileSource,
    Graph,
    GraphError,
    InputSource,
    LogSink,
    Mean,
    SchemaError,
    Sum,
    Tumbling,
    autonomous,
    consistent,
)
from tests.dataflow.support import word_count


def test_a_word_count_is_a_graph_of_five_named_operators(tmp_path: Path) -> None:
    plan = word_count([tmp_path / "a"], tmp_path / "out").plan()
    assert list(plan.operators) == ["lines", "words", "by_word", "counts", "out"]
    assert plan.schemas["counts"] == pa.schema([("word", pa.string()), ("count", pa.int64())])
    text = "count from (by_word) key (word) gives (word string, count bigint)"
    assert str(plan.operators["counts"]) == text


def test_the_fingerprint_does_not_change_with_the_function_and_does_with_name_key_and_schema(
    tmp_path: Path,
) -> None:
    def build(
        name: str = "words", schema: str = "word string, n int", key: str = "word", bonus: int = 0
    ) -> str:
        graph = Graph("g")
        lines = graph.source("lines", FileSource([tmp_path / "a"]))
        words = lines.flat_map(name, lambda row: [(row["line"], bonus)], schema=schema)
        words.key_by("k", key).count("c").sink("out", FileSink(tmp_path))
        return graph.plan().fingerprint

    assert build() == build(bonus=1)
    others = {build(name="w"), build(schema="word string, n bigint"), build(key="n")}
    assert len(others | {build()}) == 4


def test_the_description_of_an_operator_has_the_columns_of_the_rows_that_it_stores() -> None:
    """Also those that its output does not have: its stored table has them."""

    def build(columns: str, **options: Any) -> dict[str, str]:
        graph = Graph("g")
        rows = graph.source("rows", InputSource("rows", columns))
        keyed = rows.event_time("timed", "at", lateness=timedelta(0)).key_by("by_key", "key")
        keyed.map_state("state", print, time="at", schema="key string", state="n int").sink("a", LogSink())
        counted = keyed.aggregate("counted", CountWindow("at", 3), rows=Count())
        counted.sink("b", LogSink(**options))
        return {name: note.meaning for name, note in graph.plan().operators.items()}

    before = build("key string, at timestamp")
    after = build("key string, at timestamp, more int")
    changed = {name for name in before if before[name] != after[name]}
    assert {"state", "counted"} <= changed
    assert not changed & {"a", "b"}
    by_step = build("key string, at timestamp", publish="step")
    assert {name for name in before if before[name] != by_step[name]} == {"b"}


def test_what_an_operator_stores_depends_on_these_columns_of_its_input() -> None:
    """And on whether its rows are changes: what was made for rows keeps too little of them for changes."""

    def stored(columns: str) -> dict[str, tuple[str, ...]]:
        graph = Graph("g")
        rows = graph.source("rows", InputSource("rows", columns))
        timed = rows.event_time("timed", "at", lateness=timedelta(0))
        keyed = timed.key_by("by_key", "key")
        window = Tumbling("at", timedelta(hours=1))
        keyed.aggregate("hourly", window, mean=Mean("n")).sink("a", LogSink())
        keyed.aggregate("all", mean=Mean("n")).sink("b", LogSink())
        keyed.count("counts").sink("c", LogSink())
        keyed.dedup("once").sink("d", LogSink())
        keyed.top_k("top", window, 2, by="n").sink("e", LogSink())
        return {name: note.stored for name, note in graph.plan().operators.items()}

    found = stored("key string, at timestamp, n int, more int")
    assert {name: found[name] for name in ("hourly", "all", "counts", "once")} == {
        "hourly": ("key string, at timestamp",),
        "all": ("key string",),
        "counts": ("key string",),
        "once": ("key string",),
    }
    assert found["top"] == ("key string, at timestamp, n int, more int",)
    assert found["timed"] == ("at timestamp",)
    assert found["by_key"] == ()
    assert found["c"] == ("changes",)
    assert found["a"] == (), "each column of a log is noted on its own"
    assert stored("key string, at timestamp, n bigint")["top"] != found["top"]


def test_what_makes_a_result_is_its_aggregate_its_column_and_the_type_of_that() -> None:
    def results(kind: str) -> dict[str, str]:
        graph = Graph("g")
        rows = graph.source("rows", InputSource("rows", f"key string, n {kind}"))
        sums = rows.key_by("by_key", "key").aggregate("all", sum=Sum("n"), n=Count(), few=ApproxDistinct("n"))
        sums.sink("out", LogSink())
        return {one.name: one.made_by for one in graph.plan().operators["all"].results}

    assert results("int") == {"sum": "Sum(n) int", "n": "Count()", "few": "ApproxDistinct(n, 12) int"}
    assert results("bigint")["sum"] == "Sum(n) bigint"


def test_a_graph_says_what_it_changes_in_a_region_of_another_one() -> None:
    def graph(key: str = "key", *, even: bool = False) -> Graph:
        made = Graph("g")
        rows = made.source("rows", InputSource("rows", "key string, n int"))
        if even:
            rows = rows.filter("even", lambda row: row["n"] % 2 == 0)
        rows.key_by("by_key", key).count("counts").sink("out", LogSink())
        return made

    assert str(graph(even=True).compare(graph())).splitlines() == [
        "kept     counts, out, rows",
        "renamed  -",
        "new      even",
        "gone     -",
        "dropped  -",
        "removed  -",
        "refused  -",
    ]
    change = graph("n").compare(graph(even=True))
    assert [name for name, _ in change.refused] == ["counts", "out"]
    count = "was count of (key string) key (key), is count of (n int) key (n)"
    assert str(change).splitlines()[3:7] == [
        "gone     even",
        "dropped  -",
        "removed  -",
        f'refused  counts: {count}. To drop its state: drop_state=("counts",)',
    ]


def test_a_graph_survives_pickling_with_the_same_plan(tmp_path: Path) -> None:
    graph = word_count([tmp_path / "a"], tmp_path / "out", repeat=3)
    twin = pickle.loads(pickle.dumps(graph))
    assert twin.plan().fingerprint == graph.plan().fingerprint
    assert twin.plan().plan == graph.plan().plan


def test_a_stream_may_be_named_before_it_is_given(tmp_path: Path) -> None:
    graph = Graph("g")
    graph.sink("out", FileSink(tmp_path), graph.stream("upper"))
    lines = graph.source("lines", FileSource([tmp_path / "a"]))
    lines.map("upper", lambda row: row["line"].upper())
    assert [node.name for node in graph.plan().plan.nodes] == ["lines", "upper", "out"]


def test_a_cycle_built_by_names_is_refused(tmp_path: Path) -> None:
    graph = Graph("g")
    lines = graph.source("lines", FileSource([tmp_path / "a"]))
    both = lines.union("both", graph.stream("again"))
    both.map("again", lambda row: row["line"]).sink("out", FileSink(tmp_path))
    with pytest.raises(GraphError, match="cycle") as caught:
        graph.plan()
    assert "again" in str(caught.value)


def test_a_sink_declared_without_a_stream_is_refused(tmp_path: Path) -> None:
    graph = Graph("g")
    graph.source("lines", FileSource([tmp_path / "a"])).sink("out", FileSink(tmp_path))
    graph.sink("lonely", FileSink(tmp_path / "x"))
    with pytest.raises(GraphError, match="sink 'lonely' has no input"):
        graph.plan()


def test_streams_of_two_graphs_do_not_mix(tmp_path: Path) -> None:
    one, two = Graph("one"), Graph("two")
    lines = one.source("lines", FileSource([tmp_path / "a"]))
    with pytest.raises(GraphError, match="stream of graph 'one'"):
        two.sink("out", FileSink(tmp_path), lines)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (
            lambda s: s.key_by("k", "nope").count("c"),
            "key column 'nope' does not exist; the columns are line",
        ),
        (lambda s: s.key_by("k").count("c"), "at least one column"),
        (lambda s: s.key_by("k", "line", "line").count("c"), "named only once"),
        (
            lambda s: s.map("f", lambda r: [1.5], schema="x array<double>").key_by("k", "x").count("c"),
            "array<double> cannot be a key",
        ),
        (
            lambda s: s.map("n", lambda r: "a", schema="count string").key_by("k", "count").count("c"),
            "named 'count' like the result",
        ),
        (lambda s: s.union("u", s.map("n", lambda r: 1, schema="n int")), "one schema"),
        (lambda s: s.map("l", lambda r: [1], schema="l array<int>"), "no text form"),
        (lambda s: s.map("b", lambda r: b"", schema="b binary"), "no text form"),
    ],
)
def test_operators_that_do_not_fit_their_input_are_refused_by_name(build, words: str, tmp_path: Path) -> None:
    graph = Graph("g")
    build(graph.source("lines", FileSource([tmp_path / "a"]))).sink("out", FileSink(tmp_path))
    with pytest.raises(GraphError) as caught:
        graph.plan()
    assert words in str(caught.value)


def test_what_cannot_be_a_function_or_a_source_is_refused_where_it_is_written(tmp_path: Path) -> None:
    lines = Graph("g").source("lines", FileSource([tmp_path / "a"]))
    with pytest.raises(SchemaError, match="needs a function, not str"):
        lines.map("m", "upper")  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="'row', 'batch' or 'pandas'"):
        lines.map("m", len, takes="rows")  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="takes must be 'row' or 'batch', not 'pandas'"):
        CallSink(print, takes="pandas")  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="at least one file"):
        FileSource([])
    with pytest.raises(SchemaError, match=r"no file matches '/.*/\*\.nothing'"):
        FileSource(str(tmp_path / "*.nothing"))
    with pytest.raises(SchemaError, match="given twice"):
        FileSource([tmp_path / "a", tmp_path / "a"])
    with pytest.raises(SchemaError, match="an integer of 1 or more"):
        FileSource([tmp_path / "a"], repeat=0)


# --- graph.diagram ------------------------------------------------------------------------------------------


def shop() -> Graph:
    """Two regions and an outside; a join, a union, side outputs, a broadcast table in a cycle."""
    graph = Graph("shop <of> tea & more")
    clicks = graph.source("clicks", InputSource("clicks", "at timestamp, who string, page string"))
    orders = graph.source("orders", InputSource("orders", "at timestamp, who string, price double"))
    odd = {"odd": "who string"}
    clean = clicks.filter("clean", lambda row, emit: True, side_outputs=odd)
    clean.side_output("odd_clicks", "odd").sink("odd_out", CallSink(print))
    by_who = clean.event_time("clicks_timed", "at", lateness=timedelta(minutes=1)).key_by("by_who", "who")
    timed = orders.event_time("orders_timed", "at", lateness=timedelta(minutes=1))
    limits = graph.broadcast_table("limits", graph.stream("new_limits"), "who")
    checked = timed.filter("checked", lambda row, limits: True, broadcast=limits)
    sold = checked.key_by("by_customer", "who")
    pairs = by_who.join("bought", sold, times=("at", "at"), within=timedelta(minutes=30), suffix="_order")
    pairs.sink("pairs_out", CallSink(print))
    hourly = sold.aggregate("hourly", Tumbling("at", timedelta(hours=1)), orders=Count())
    hourly.map("new_limits", lambda row: (row["who"], 1.0), schema="who string, max double")
    hourly.side_output("too_late", "late").sink("late_out", CallSink(print))
    more = graph.source("more", InputSource("more", "at timestamp, who string, page string"))
    more.annotate(consistent())
    clean.union("both", more).sink("all", CallSink(print))
    rates = graph.source("rates", InputSource("rates", "key string, rate double"))
    rates.annotate(consistent(period=5)).sink("rates_out", LogSink())
    clicks.annotate(consistent())
    orders.annotate(consistent())
    ticks = graph.source("ticks_of_a_clock_with_a_name_that_is_long", InputSource("ticks", "n bigint"))
    ticks.annotate(autonomous).sink("ticks_out", CallSink(print))
    return graph


def drawn_word_count() -> Graph:
    graph = Graph("words")
    words = graph.source("words", InputSource("words", "word string"))
    words.annotate(consistent(period=5))
    words.key_by("by_word", "word").count("counts").sink("out", CallSink(print))
    return graph


def test_a_small_graph_is_this_mermaid() -> None:
    assert drawn_word_count().diagram().splitlines() == [
        "flowchart LR",
        '  subgraph g0["region 1: checkpoint every 5 s"]',
        '    n0(["words<br/>source"])',
        '    n1{{"by_word<br/>exchange: key_by word"}}',
        '    n2["counts<br/>count"]',
        '    n3(["out<br/>sink"])',
        "  end",
        "  n0 --> n1",
        "  n1 ==> n2",
        "  n2 --> n3",
        "  classDef side stroke-dasharray: 5 3",
    ]


def test_a_small_graph_is_this_dot() -> None:
    assert drawn_word_count().diagram("dot").splitlines() == [
        'digraph "words" {',
        "  rankdir=LR;",
        "  subgraph cluster_0 {",
        '    label="region 1: checkpoint every 5 s";',
        '    n0 [label="words\\nsource", shape=box, style=rounded, tooltip="source: word string"];',
        '    n1 [label="by_word\\nexchange: key_by word", shape=hexagon, tooltip="exchange: key_by word: word string"];',  # noqa: E501
        '    n2 [label="counts\\ncount", shape=box, tooltip="count: word string, count bigint"];',
        '    n3 [label="out\\nsink", shape=box, style=rounded, tooltip="sink"];',
        "  }",
        "  n0 -> n1 [style=solid];",
        "  n1 -> n2 [style=bold];",
        "  n2 -> n3 [style=solid];",
        "}",
    ]


@pytest.mark.parametrize("form", ["mermaid", "dot"])
def test_a_graph_with_everything_is_complete(form: str) -> None:
    graph = shop()
    plan = graph.plan()
    text = graph.diagram(form)  # type: ignore[arg-type]
    box = r'(n\d+) \[label="(\S+)\\n' if form == "dot" else r'(n\d+)\W+"(\S+)<br/>'
    ids = {name: node for node, name in re.findall(box, text)}
    assert ids.keys() == plan.specs.keys()
    arrows = re.findall(r"(n\d+) (?:-->|==>|-\.->|->) (n\d+)", text)
    wanted = [(above, node.name) for node in plan.plan.nodes for above in dict.fromkeys(node.inputs)]
    wanted += [(table, node.name) for node in plan.plan.nodes for table in node.broadcast_tables]
    assert Counter(arrows) == Counter((ids[above], ids[below]) for above, below in wanted)
    groups = re.split(r"subgraph", text)[1:]
    assert len(groups) == len(plan.choice.regions) + 1
    for group, members in zip(
        groups, [*(one.members for one in plan.choice.regions), plan.choice.outside], strict=True
    ):
        assert all(re.search(rf"\b{ids[name]}\W+(?:label)?", group.partition("\n  }")[0]) for name in members)
    assert "outside of any region: no checkpoints" in groups[-1]


def test_each_kind_of_operator_and_arrow_has_a_look_of_its_own() -> None:
    text = shop().diagram("dot")
    assert re.search(r'label="limits\\nbroadcast table", shape=cylinder', text)
    assert re.search(r'label="limits.rows\\nexchange: to all", shape=hexagon', text)
    assert re.search(r'label="too_late\\nside output late", shape=box, style=dashed', text)
    looks = Counter(re.findall(r"-> n\d+ \[style=(\w+)\]", text))
    assert (looks["dashed"], looks["dotted"]) == (2, 1)


def test_characters_with_a_meaning_in_the_text_are_escaped() -> None:
    graph = Graph('a "b" \\ <c> & #d')
    graph.source("rows", InputSource("rows", "n bigint")).sink("out", CallSink(print))
    assert graph.diagram("dot").startswith('digraph "a \\"b\\" \\\\ <c> & #d" {')
    odd = Graph("odd")
    rows = odd.source("rows", InputSource("rows", '`a"b<` string'))
    rows.key_by("by", 'a"b<').count("counts").sink("out", CallSink(print))
    assert "exchange: key_by a#34;b#60;" in odd.diagram()


def test_a_notebook_draws_each_operator_and_arrow_of_a_graph() -> None:
    """Also one that goes back: a broadcast table may close a cycle."""
    drawn = ElementTree.fromstring(shop().diagram("svg"))
    space = "{http://www.w3.org/2000/svg}"
    plan = shop().plan().plan
    boxes = {one.findtext(f"{space}title").split(",")[0]: one for one in drawn.iter(f"{space}g")}  # type: ignore[union-attr]
    assert boxes.keys() == {node.name for node in plan.nodes}
    arrows = [one for one in drawn.iter(f"{space}path") if one.get("fill") == "none"]
    assert len(arrows) == shop().diagram("dot").count(" -> ")
    assert len({one.get("transform") for one in boxes.values()}) == len(boxes), "none covers another"
    odd = Graph("<odd>")
    odd.source("rows", InputSource("rows", '`a"b<` string')).key_by("by", 'a"b<').count("counts")
    assert "&lt;odd&gt;" in odd._repr_html_()
    assert "graph &#x27;&lt;odd&gt;&#x27; cannot run: " in odd._repr_html_(), "it has no sink yet"


def test_a_graph_and_its_streams_are_short_in_a_terminal() -> None:
    graph = drawn_word_count()
    assert repr(graph) == "<Graph 'words': words by_word counts out>"
    assert repr(graph.stream("counts")) == "<Stream 'counts' of graph 'words'>"
    more = graph.stream("counts")
    for number in range(9):
        more = more.filter(f"f{number}", bool)
    assert repr(graph) == "<Graph 'words': words by_word counts out f0 f1 f2 f3 ... 5 more>"
    assert repr(more.key_by("again", "word")) == "<KeyedStream 'again' of graph 'words'>"


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="form must be 'mermaid' or 'dot' or 'svg', got 'png'"):
        shop().diagram("png")  # type: ignore[arg-type]
    with pytest.raises(GraphError):
        Graph("nothing").diagram()
