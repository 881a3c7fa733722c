"""Rows that are written into the state of operators, compared with plain dicts: what an edit makes of them,
what is refused, and that the region continues as one whose state that was.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint.chains.state_blocks import StateFold, decode_block
from checkpoint.core.records.layout import even_layout
from checkpoint.errors import EditRefusedError
from dataflow import (
    CallSink,
    Count,
    FileSink,
    FileSource,
    Graph,
    InputSource,
    Max,
    Mean,
    Sum,
    Tumbling,
    limits,
)
from dataflow.core.event_time import END
from dataflow.editing import NO_STATE, PlannedEdit, StoredState, as_table, edited_tables, planned
from dataflow.graph.plan import GraphPlan
from dataflow.operators.aggregates import AggregateSpec, open_all
from tests.dataflow.region_in_one_thread import OneThreadRegion, StoredCheckpoint
from tests.dataflow.user_operators import Seen

NINE = datetime(2026, 5, 1, 9, tzinfo=UTC)
NINE_US = int(NINE.timestamp()) * 1_000_000


def remember(row: Mapping[str, Any], state: Any) -> Any:
    state.value = {"total": (state.value or {"total": 0})["total"] + row["v"]}
    return ()


def all_kinds() -> Graph:
    graph = Graph("kinds")
    rows = graph.source("rows", InputSource("rows", "at timestamp, k string, v bigint, d double"))
    limits_given = graph.source("given", InputSource("given", "k string, most bigint"))
    table = graph.broadcast_table("limits", limits_given, "k")
    timed = rows.filter("below", lambda row, most: True, broadcast=table).event_time(
        "timed", "at", lateness=timedelta(0)
    )
    keyed, out = timed.key_by("by_k", "k"), CallSink(print)
    keyed.count("counts").sink("a", out)
    keyed.aggregate("sums", n=Count(), total=Sum("v"), mean=Mean("d"), top=Max("v")).sink("b", out)
    keyed.dedup("firsts").sink("c", out)
    keyed.map_state("states", remember, time="at", state="total bigint", schema="k string").sink("d", out)
    aging = keyed.map_state(
        "aging", remember, time="at", state="total bigint", schema="k string", ttl=timedelta(hours=1)
    )
    aging.sink("e", out)
    keyed.aggregate("hourly", Tumbling("at", timedelta(hours=1)), n=Count()).sink("f", out)
    timed.sort("sorted", "at").sink("g", out)
    timed.map("words", lambda row: row["k"], schema="word string").apply("own", Seen()).sink("h", out)
    return graph


@pytest.fixture(scope="module")
def kinds() -> GraphPlan:
    return all_kinds().plan()


def plan(
    graph: GraphPlan, operator: str, rows: Any, stored: StoredState = NO_STATE, workers: int = 1
) -> PlannedEdit:
    tables = {operator: as_table(operator, rows)}
    return planned(edited_tables(graph, "region", tables), tables, stored, even_layout(workers))


def block_of(edit: PlannedEdit) -> pa.RecordBatch:
    """The rows of an edit of one operator on one worker."""
    (((_, data),),) = edit.rows.values()
    return decode_block(data)


def rows_in(edit: PlannedEdit) -> list[dict[str, Any]]:
    """The same, without hash."""
    return [
        {name: value for name, value in row.items() if name != "_hash"} for row in block_of(edit).to_pylist()
    ]


# --- what is refused ----------------------------------------------------------------------------------------

K = {"k": "x"}


@pytest.mark.parametrize(
    ("operator", "rows", "why"),
    [
        ("count", [K], r"operator 'count': the region has no such operator \(did you mean 'counts'\?\); "),
        ("by_k", [K], r"its state \(key_by\) cannot be edited: it keeps no state"),
        (
            "hourly",
            [K],
            r"its state \(window\) cannot be edited: its windows belong together with its watermark",
        ),
        ("sorted", [K], r"its state \(sort\) cannot be edited: its rows wait for event time"),
        ("timed", [K], r"its state \(event_time\) cannot be edited: a watermark follows from the input"),
        ("own", [K], r"its state \(apply\) cannot be edited: only its own code knows what the state"),
        ("states~rows", [K], "this table cannot be edited: the rows of this table wait for event time"),
        ("states~time", [K], "this table cannot be edited: its watermarks follow from the input"),
        ("counts", [{"k": None, "count": 1}], "operator 'counts': the key column 'k' is null in row 0"),
        ("counts", [{"count": 1}], "operator 'counts': the key column 'k' is missing"),
        ("counts", [K], "operator 'counts': the column 'count' is missing"),
        ("counts", [{**K, "count": 0}], r"operator 'counts', key \(k='x'\): 'count' must be above 0"),
        ("counts", [{**K, "count": None}], r"key \(k='x'\): 'count' must be above 0"),
        ("counts", [{**K, "count": 1.5}], "row 0: column 'count' is bigint, which holds whole numbers"),
        ("counts", [{**K, "count": 1, "cuont": 2}], r"has no column 'cuont' \(did you mean 'count'\?\)"),
        (
            "counts",
            [{**K, "count": 1}, {**K, "count": 2}],
            r"\(k='x'\): the key occurs twice, in rows 0 and 1",
        ),
        ("counts", "rows", "its rows are a builtins.str"),
        (
            "sums",
            [{**K, "n": -1, "total": 1, "mean": None, "mean.rows": 0, "top": 1}],
            "'n' must be a count of 0",
        ),
        ("sums", [{**K, "n": 1, "total": 1, "mean": 1.0, "top": 1}], "the mean 'mean' is given as the sum"),
        ("sums", [{**K, "n": 1, "total": 1.5, "mean": 1.0, "mean.rows": 1, "top": 1}], "'total' is bigint"),
        (
            "states",
            [{**K, "total": 1, "_timer": NINE_US}],
            r"\(k='x'\): its timer is not above the watermark",
        ),
        ("states", [{**K, "total": None, "_is_set": False}], "it has neither a state nor a timer"),
        ("limits", [{**K, "most": None}], r"\(k='x'\): all of its values are null"),
        ("limits", [{"k": None, "most": 1}], "the key column 'k' is null"),
    ],
    ids=lambda one: one if isinstance(one, str) and len(one) < 12 else "",
)
def test_what_no_checkpoint_could_hold_is_refused_with_operator_key_rule_and_remedy(
    kinds: GraphPlan, operator: str, rows: Any, why: str
) -> None:
    stored = StoredState({}, {"states": NINE_US})
    with pytest.raises(EditRefusedError, match=why) as refused:
        plan(kinds, operator, rows, stored)
    assert refused.value.remedy


def test_a_sum_in_a_form_that_no_sum_has_and_a_table_that_is_too_large_are_refused(
    kinds: GraphPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = rows_in(plan(kinds, "sums", [{**K, "n": 1, "total": 1, "mean": 1.0, "mean.rows": 1, "top": 1}]))
    for wrong in ([], [10**9, 1], [0, 1 << 40], [0, None]):
        with pytest.raises(EditRefusedError, match="'total' is no stored sum"):
            plan(kinds, "sums", pa.Table.from_pylist([{**full[0], "total": wrong}]))
    monkeypatch.setattr(limits, "broadcast_rows_max", 1)
    with pytest.raises(EditRefusedError, match="at most 1 rows, these would be 2"):
        plan(kinds, "limits", [{"k": "a", "most": 1}, {"k": "b", "most": 2}])


def test_timers_are_refused_when_all_input_has_ended_and_a_state_with_a_time_to_live_needs_a_time(
    kinds: GraphPlan,
) -> None:
    timer = pa.table({"k": ["x"], "total": [1], "_timer": pa.array([NINE], pa.timestamp("us", "UTC"))})
    (row,) = rows_in(plan(kinds, "states", timer))
    assert (row["_timer"], row["_is_set"]) == (NINE_US, True)
    with pytest.raises(EditRefusedError, match="its timer is not above the watermark"):
        plan(kinds, "states", timer, StoredState({}, {"states": END}))
    with pytest.raises(EditRefusedError, match="its state has a time to live, and '_called' is not given"):
        plan(kinds, "aging", [{**K, "total": 1}])
    (row,) = rows_in(plan(kinds, "aging", [{**K, "total": 1}], StoredState({}, {"aging": NINE_US})))
    assert row["_called"] == NINE_US


# --- what is written ----------------------------------------------------------------------------------------


def test_the_hash_comes_from_the_key_and_never_from_the_rows(kinds: GraphPlan) -> None:
    rows = [{"k": key, "count": 1} for key in "abcdef"]
    right = plan(kinds, "counts", rows, workers=3)
    forged = [{**row, "_hash": 0, "_worker": 2} for row in rows]
    assert plan(kinds, "counts", forged, workers=3).rows == right.rows
    assert len(right.rows) > 1, "several workers have them"


def test_sums_are_given_as_numbers_or_as_they_are_stored(kinds: GraphPlan) -> None:
    row = {"n": 3, "total": 7, "mean": 1.5, "mean.rows": 3, "top": 4}
    frame = pd.DataFrame([{"k": "x", **row}, {"k": "y", **row, "total": -(2**62)}])
    block = block_of(plan(kinds, "sums", frame))
    again = plan(kinds, "sums", pa.Table.from_batches([block]), StoredState({"sums": block}, {}))
    assert (again.tables["sums"].unchanged, again.rows) == (2, {})
    spec = kinds.specs["sums"]
    assert isinstance(spec, AggregateSpec)
    (columns,) = kinds.inputs_of("sums")
    results = []
    for name, accumulator in zip(
        dict(spec.aggregates), open_all(dict(spec.aggregates), columns), strict=True
    ):
        accumulator.reach(2)
        accumulator.load(np.arange(2), [block.column(field.name) for field in accumulator.fields()])
        results.append((name, accumulator.results(np.arange(2)).to_pylist()))
    order = [block.column("k").to_pylist().index(key) for key in ("x", "y")]
    assert {name: [values[at] for at in order] for name, values in results} == {
        "n": [3, 3],
        "total": [7, -(2**62)],
        "mean": [0.5, 0.5],
        "top": [4, 4],
    }


def test_columns_of_the_framework_stay_as_they_are_if_they_are_left_out(kinds: GraphPlan) -> None:
    later = NINE_US + 1
    first = plan(
        kinds,
        "states",
        [
            {"k": "both", "total": 1, "_is_set": True, "_timer": later},
            {"k": "timer", "total": None, "_is_set": False, "_timer": later},
        ],
    )
    stored = StoredState({"states": block_of(first)}, {"states": NINE_US})
    as_read = [{"k": "both", "total": 5}, {"k": "timer", "total": None}]
    edit = plan(kinds, "states", pa.Table.from_pylist(as_read), stored)
    assert (edit.tables["states"].changed, edit.tables["states"].unchanged) == (1, 1)
    (row,) = rows_in(edit)
    assert row == {"k": "both", "total": 5, "_is_set": True, "_timer": later, "_deleted": False}
    moved = plan(kinds, "states", [{"k": "both", "_timer": later + 1}], stored)
    assert rows_in(moved)[0]["total"] == 1


def test_a_column_that_only_a_later_row_has_counts(kinds: GraphPlan) -> None:
    first = plan(kinds, "counts", [{"k": "a", "count": 1}, {"k": "b", "count": 1}])
    stored = StoredState({"counts": block_of(first)}, {})
    edit = plan(kinds, "counts", [{"k": "a", "count": 2}, {"k": "b", "_deleted": True}], stored)
    assert (edit.tables["counts"].changed, edit.tables["counts"].deleted) == (1, 1)
    with pytest.raises(EditRefusedError, match=r"row 1: column 'count' is bigint, .* given str 'three'"):
        plan(kinds, "counts", [{"k": "a", "count": 2}, {"k": "b", "count": "three"}])


def test_a_broadcast_table_goes_to_every_worker(kinds: GraphPlan) -> None:
    edit = plan(kinds, "limits", [{"k": "a", "most": 1}], workers=3)
    assert set(edit.rows) == {0, 1, 2}
    assert len({data for rows in edit.rows.values() for _, data in rows}) == 1


# --- against a dict, and then the region continues ---------------------------------------------------------


def continuing(paths: Sequence[Path], out: Path) -> Graph:
    graph = Graph("continuing")
    words = graph.source("lines", FileSource([*map(str, paths)])).flat_map(
        "words", lambda row: row["line"].split(), schema="word string"
    )
    keyed = words.key_by("by_word", "word")
    counted = keyed.count("counts")
    counted.sink("out", FileSink(out / "counts"))
    lengths = words.map(
        "lengths", lambda row: (row["word"], len(row["word"])), schema="word string, n bigint"
    )
    sums = lengths.key_by("by_word_too", "word").aggregate("sums", n=Count(), total=Sum("n"))
    sums.sink("sums_out", FileSink(out / "sums"))
    keyed.dedup("firsts").sink("firsts_out", FileSink(out / "firsts"))
    return graph


WORDS = ["a", "bb", "ccc", "the", "é", "日本"]
_edits = st.dictionaries(st.sampled_from([*WORDS, "new", "other"]), st.none() | st.integers(1, 9), max_size=8)


def state_in(region: OneThreadRegion, operator: str) -> dict[str, pa.RecordBatch]:
    """The stored state of an operator on all workers; each key must be with its owner, and only there."""
    fold, layout = StateFold(), even_layout(region.workers)
    for index, side in enumerate(region.sides):
        for number, name, data in side.blocks:
            if name == operator and region.checkpoint is not None and number <= region.checkpoint.number:
                block = decode_block(data)
                assert all(layout.worker_of(one) == index for one in block.column("_hash").to_pylist())
                fold.add(name, block)
    found = fold.take(operator)
    return {} if found is None else {operator: found}


def write_edit(region: OneThreadRegion, tables: Mapping[str, Any]) -> PlannedEdit:
    """Write rows into the last checkpoint, as record E does: the next restore begins with them."""
    assert region.checkpoint is not None
    stored = {name: block for operator in tables for name, block in state_in(region, operator).items()}
    given_tables = {name: as_table(name, rows) for name, rows in tables.items()}
    rules = edited_tables(region.plan, "region", given_tables)
    edit = planned(rules, given_tables, StoredState(stored, {}), even_layout(region.workers))
    region.last_number = number = max(region.last_number, region.checkpoint.number) + 1
    for worker, rows in edit.rows.items():
        region.sides[worker].blocks = [
            *(one for one in region.sides[worker].blocks if one[0] <= region.checkpoint.number),
            *((number, name, data) for name, data in rows),
        ]
    region.checkpoint = StoredCheckpoint(number, region.checkpoint.step, False, region.checkpoint.parts)
    for side in region.sides:  # the recorded steps of the old line are void
        side.divisions = {step: one for step, one in side.divisions.items() if step <= region.checkpoint.step}
        side.recorded.clear()
    return edit


def counts_of(region: OneThreadRegion, operator: str = "counts", value: str = "count") -> dict[str, int]:
    block = state_in(region, operator).get(operator)
    return (
        {}
        if block is None
        else dict(zip(block.column("word").to_pylist(), block.column(value).to_pylist(), strict=True))
    )


@given(edits=_edits, seed=st.integers(0, 1 << 30), workers=st.integers(1, 3), turns=st.integers(0, 120))
@settings(max_examples=30)
def test_a_region_continues_from_an_edit_as_from_a_state_that_always_was_so(
    edits: dict[str, int | None],
    seed: int,
    workers: int,
    turns: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("edited")
    rng = random.Random(seed)
    paths = []
    for index in range(2):
        paths.append(folder / f"{index}.txt")
        lines = [" ".join(rng.choices(WORDS, k=rng.randrange(5))) for _ in range(12)]
        paths[-1].write_text("\n".join(lines))
    truth = Counter(word for path in paths for word in path.read_text().split())
    region = OneThreadRegion(continuing(paths, folder / "out"), workers, rng.randrange)
    region.restore()
    for _ in range(turns):
        region.turn()
    region.request_checkpoint(all_workers=True)
    while region.checkpoint is None and region.turn():
        pass
    before = counts_of(region)
    rows = [
        {"word": word, "count": number or 1, "_deleted": number is None} for word, number in edits.items()
    ]
    sums = [
        {"word": word, "n": number or 0, "total": 100 * (number or 0), "_deleted": number is None}
        for word, number in edits.items()
    ]
    firsts = [{"word": word, "_deleted": number is None} for word, number in edits.items()]
    if rows and region.checkpoint is not None:
        edit = write_edit(region, {"counts": rows, "sums": sums, "firsts": firsts})
        after = {word: number for word, number in {**before, **edits}.items() if number is not None}
        assert counts_of(region) == after
        counts = edit.tables["counts"]
        assert counts.added == len(after.keys() - before.keys())
        assert counts.deleted == len(before.keys() - after.keys())
        assert counts.changed == sum(before[word] != after[word] for word in before.keys() & after.keys())
        assert counts.unchanged == len(rows) - counts.added - counts.deleted - counts.changed
    else:
        after = before
    rest = {word: truth[word] - before.get(word, 0) for word in truth}
    region.restore()
    region.finish()
    expected = Counter(after) + Counter(rest)
    assert counts_of(region) == dict(expected)
    assert counts_of(region, "sums", "n") == dict(expected)
    assert set(counts_of(region, "firsts", "word")) == set(expected)


def test_a_sum_and_a_mean_of_decimals_are_given_as_numbers_or_as_they_are_stored() -> None:
    graph = Graph("prices")
    rows = graph.source("rows", InputSource("rows", "k string, p decimal(10,2)"))
    made = rows.key_by("by_k", "k").aggregate("sums", total=Sum("p"), mean=Mean("p"))
    made.sink("out", CallSink(print))
    plan_ = graph.plan()
    given_ = {**K, "total": Decimal("1.50"), "mean": Decimal("4.50"), "mean.rows": 3}
    (stored,) = rows_in(plan(plan_, "sums", [given_]))
    assert stored == {**K, "total": "150", "mean": "450", "mean.rows": 3, "_deleted": False}
    assert rows_in(plan(plan_, "sums", [{**K, "total": "150", "mean": "450", "mean.rows": 3}])) == [stored]
    for wrong, why in (
        ({"total": "1.5"}, "'total' is no stored sum"),
        ({"mean": "x"}, "'mean' is no stored sum"),
        ({"mean.rows": -1}, "'mean.rows' must be a count of 0 or more"),
    ):
        with pytest.raises(EditRefusedError, match=why):
            plan(plan_, "sums", [{**K, "total": "150", "mean": "450", "mean.rows": 3, **wrong}])
