"""graph.diagram: a graph as text that other programs draw."""

import re
from collections import Counter
from datetime import timedelta

import pytest

from dataflow import (
    CallSink,
    Count,
    Graph,
    GraphError,
    InputSource,
    LogSink,
    Tumbling,
    autonomous,
    consistent,
)


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


def word_count() -> Graph:
    graph = Graph("words")
    words = graph.source("words", InputSource("words", "word string"))
    words.annotate(consistent(period=5))
    words.key_by("by_word", "word").count("counts").sink("out", CallSink(print))
    return graph


def test_a_small_graph_is_this_mermaid() -> None:
    assert word_count().diagram().splitlines() == [
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
    assert word_count().diagram("dot").splitlines() == [
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


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="form must be 'mermaid' or 'dot', got 'svg'"):
        shop().diagram("svg")  # type: ignore[arg-type]
    with pytest.raises(GraphError):
        Graph("nothing").diagram()
