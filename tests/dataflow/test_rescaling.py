"""Another number of workers continues from a checkpoint: every state table keeps what it had, once.

`play_with_trouble` does the same at random in the property tests of all operators.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkpoint import TakenPart
from dataflow import (
    CallSink,
    FileSource,
    Graph,
    GraphError,
    InputSource,
    IteratorSource,
    LogSource,
    RateSource,
    RuntimeContext,
    SchemaError,
    Stream,
    Sum,
    Tumbling,
    UserOperator,
)
from dataflow.core.event_time import UNKNOWN
from dataflow.errors import InputListChangedError, OperatorError
from dataflow.operators.base import OperatorContext
from dataflow.operators.event_time import WatermarkTable
from dataflow.sources import base
from dataflow.sources.rate import RateReader
from dataflow.state.base import Share
from dataflow.state.key_index import Slots
from dataflow.state.key_states import NONE, KeyStates
from dataflow.testing import Trial
from tests.dataflow.test_generated_sources import Clock
from tests.dataflow.trials import SCHEMA, row, second
from tests.stories.markers.words import Words

CHANGES = [(1, 3), (2, 1), (2, 3), (3, 2), (4, 1), (3, 5)]
WORDS = [f"w{number}" for number in range(40)]
LATENESS = timedelta(seconds=5)
TEN_SECONDS = Tumbling("at", timedelta(seconds=10))


def timed(lateness: timedelta = LATENESS) -> tuple[Graph, Stream]:
    graph = Graph("g")
    rows = graph.source("rows", InputSource("rows", SCHEMA))
    return graph, rows.event_time("timed", "at", lateness=lateness)


def dealt(rows: Sequence[dict[str, Any]], parts: int = 4) -> list[list[dict[str, Any]]]:
    """The rows as batches, which are dealt to the workers in turn."""
    return [list(rows[part::parts]) for part in range(parts)]


def rescaled(graph: Graph, old: int, new: int, rows: Sequence[dict[str, Any]]) -> Trial:
    """A trial whose `old` workers took these rows, and that continues with `new` ones; they crash once."""
    trial = Trial(graph, workers=old)
    trial.step({"rows": dealt(rows)}, checkpoint=True)
    assert trial.rescale(new) == 1
    assert trial.crash() == 1, "the change was a checkpoint"
    return trial


def total(trial: Trial, operator: str, counter: str) -> int:
    return sum(worker[operator].get(counter, 0) for worker in trial.counters())


@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_every_key_is_on_one_worker_with_its_state(old: int, new: int) -> None:
    graph = Graph("words")
    graph.source("rows", InputSource("rows", "word string")).key_by("by", "word").count("counts").sink(
        "out", CallSink(print)
    )
    rows = [{"word": word} for word in WORDS]
    trial = rescaled(graph, old, new, rows)
    trial.step({"rows": dealt(rows)}, checkpoint=True, snapshot=True)
    assert total(trial, "counts", "keys") == len(WORDS)
    assert Counter(one["count"] for one in trial.rows("out")) == {1: 40, 2: 40}
    assert trial.rescale(old) == 2
    assert total(trial, "counts", "keys") == len(WORDS)
    trial.step({"rows": dealt(rows)})
    assert Counter(one["count"] for one in trial.rows("out")) == {1: 40, 2: 40, 3: 40}


@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_rows_that_wait_for_their_window_are_not_mixed_up(old: int, new: int) -> None:
    """Rows have numbers that are unique in one worker only, and rows that are taken delete their numbers."""
    graph, rows = timed(timedelta(seconds=25))
    keyed = rows.key_by("by", "key")
    keyed.top_k("best", TEN_SECONDS, 99, by="x").sink("out", CallSink(print))
    trial = rescaled(graph, old, new, [row(n % 30, WORDS[n % 7], float(n)) for n in range(120)])
    assert total(trial, "best", "rows") == 120
    trial.step({"rows": dealt([row(36, "z")] * new, new)}, checkpoint=True)
    assert len(trial.rows("out")) == 40, "the first of three windows is over"
    assert trial.crash() == 2
    assert total(trial, "best", "rows") == 80 + new
    trial.step({}, end=True)
    found = Counter(one["x"] for one in trial.rows("out") if one["key"] != "z")
    assert found == Counter(float(n) for n in range(120))


@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_rows_that_wait_without_a_key_have_one_heir(old: int, new: int) -> None:
    graph, rows = timed()
    rows.sort("sorted", "at").sink("out", CallSink(print))
    given = [row(number, "a") for number in range(20)]
    trial = rescaled(graph, old, new, given)
    trial.step({"rows": dealt([row(17.5, "b")])}, checkpoint=True)
    trial.crash()
    trial.step({}, end=True)
    assert sorted(one["at"] for one in trial.rows("out") if one["key"] == "a") == [one["at"] for one in given]
    assert total(trial, "sorted", "late_rows") == 0, "each worker's time follows from its splits"


@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_a_window_that_is_over_stays_over(old: int, new: int) -> None:
    """The watermark behind an exchange moves to every worker, also to new ones."""
    graph, rows = timed()
    summed = rows.key_by("by", "key").aggregate("summed", TEN_SECONDS, x=Sum("x"))
    summed.sink("out", CallSink(print))
    summed.side_output("late", "late").sink("late_out", CallSink(print))
    trial = Trial(graph, workers=old)
    given = [row(number, word, 1.0) for number in (2, 30) for word in WORDS]
    trial.step({"rows": dealt(given)}, checkpoint=True)
    trial.step({"rows": dealt([row(3, word) for word in WORDS[:7]])}, checkpoint=True)
    assert len(trial.rows("out")) == 40
    trial.rescale(new)
    trial.crash()
    assert total(trial, "summed", "late_rows") == 7, "totals are reported once"
    trial.step({"rows": dealt([row(4, word) for word in WORDS])}, checkpoint=True)
    assert len(trial.rows("out")) == 40
    assert len(trial.rows("late_out")) == 47
    trial.crash()
    assert total(trial, "summed", "late_rows") == 47


def test_a_new_worker_has_the_least_watermark_of_the_others() -> None:
    share = Share((TakenPart(0, (), False), TakenPart(1, (), False)), ((0, 1),), 16, False, 2, 3)
    for watermarks, least in (((30, 20), 20), ((30, None), UNKNOWN)):
        table = WatermarkTable(1)
        for part, watermark in zip(share.parts, watermarks, strict=True):
            if watermark is not None:
                table.restore_part(WatermarkTable.block({0: watermark}), part, share)
        table.parts_restored(share)
        assert table.watermarks == [least]
        again = WatermarkTable(1)
        again.restore(table.checkpoint())
        assert again.watermarks == [least]
        assert table.checkpoint().num_rows == 0, "what is stored is not stored again"


@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_a_broadcast_table_is_whole_everywhere(old: int, new: int) -> None:
    graph = Graph("prices")
    prices = graph.source("prices", InputSource("prices", "word string, price bigint"))
    table = graph.broadcast_table("newest", prices, "word")
    words = graph.source("rows", InputSource("rows", "word string"))

    def priced(one: dict[str, Any], newest: Mapping[str, Any]) -> tuple[str, int]:
        return one["word"], newest[one["word"]]["price"]

    words.map("priced", priced, schema="word string, price bigint", broadcast=table).sink(
        "out", CallSink(print)
    )
    trial = Trial(graph, workers=old)
    trial.step(
        {"prices": [{"word": word, "price": n} for n, word in enumerate(WORDS)]},
        checkpoint=True,
        snapshot=True,
    )
    trial.step({"prices": [{"word": "w0", "price": 100}]}, checkpoint=True)
    trial.rescale(new)
    trial.crash()
    assert [worker["newest"]["keys"] for worker in trial.counters()] == [40] * new
    trial.step({"rows": dealt([{"word": word} for word in WORDS])})
    assert {one["word"]: one["price"] for one in trial.rows("out")} == {
        word: n or 100 for n, word in enumerate(WORDS)
    }


@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_dropped_rows_are_counted_once(old: int, new: int) -> None:
    graph = Graph("nulls")
    rows = graph.source("rows", InputSource("rows", SCHEMA)).event_time(
        "timed", "at", lateness=LATENESS, on_null="drop"
    )
    rows.sort("sorted", "at").sink("out", CallSink(print))
    trial = rescaled(graph, old, new, [{**row(1), "at": None}] * 10)
    trial.step({"rows": [{**row(1), "at": None}]})
    assert total(trial, "timed", "null_rows_dropped") == 11


def counts_and_timers(old: int, new: int, state_on: Any, change: AbstractContextManager[Any]) -> Counter[int]:
    """Return how often each count was shown, negative by a timer. change: surrounds the change of layout."""
    graph, rows = timed()

    def on_row(one: dict[str, Any], state: Any) -> Iterator[tuple[str, int]]:
        state.value = {"n": (state.value["n"] if state.value else 0) + 1}
        if state.value["n"] == 1:  # later ones find the timer where they are
            state.timer = second(60)
        yield one["key"], state.value["n"]

    def on_timer(key: dict[str, Any], _: Any, state: Any) -> Iterator[tuple[str, int]]:
        yield key["key"], -state.value["n"]

    made = rows.key_by("by", "key").map_state(
        "seen", on_row, time="at", schema="key string, n bigint", state="n bigint", on_timer=on_timer,
        state_on=state_on,
    )  # fmt: skip
    made.sink("out", CallSink(print))
    with change:
        trial = rescaled(graph, old, new, [row(number, word) for number in (1, 20) for word in WORDS])
    trial.step({"rows": dealt([row(50, word) for word in WORDS])}, checkpoint=True)
    trial.crash()
    trial.step({"rows": dealt([row(90, "z")])}, end=True)
    return Counter(one["n"] for one in trial.rows("out") if one["key"] != "z")


@pytest.mark.parametrize("state_on", ["memory", "disk"])
@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_states_and_timers_of_keys_move(old: int, new: int, state_on: Any) -> None:
    assert counts_and_timers(old, new, state_on, nullcontext()) == {1: 40, 2: 40, 3: 40, -3: 40}


def test_timers_that_are_left_behind_are_found() -> None:
    load = KeyStates.load

    def without_timers(self: KeyStates, slots: Slots, columns: Sequence[pa.Array]) -> None:
        load(self, slots, columns)
        self.timers.values[slots] = NONE

    planted = mock.patch.object(KeyStates, "load", without_timers)
    assert counts_and_timers(2, 3, "memory", planted) != {1: 40, 2: 40, 3: 40, -3: 40}


OPENED: list["Kept"] = []
"""The copies of the operator that workers have opened, oldest first."""


class Kept(UserOperator):
    """Keeps every word that it has seen, and tells how many words it holds."""

    needs = "word string"
    schema = "held bigint"
    state = "word string"

    def __init__(self) -> None:
        self.words: list[str] = []

    def open(self, ctx: RuntimeContext) -> None:
        OPENED.append(self)

    def process(self, batch: pa.RecordBatch) -> Iterator[int]:
        self.words += batch.column("word").to_pylist()
        yield len(self.words)

    def checkpoint(self) -> list[str]:
        return self.words

    def reset(self, state: pa.RecordBatch) -> None:
        self.words = state.column("word").to_pylist()


class Split(Kept):
    redistribute = "split"
    split_by = ("word",)


class Everything(Kept):
    redistribute = "union"


class Dealt(Kept):
    """Its own rule: words are dealt by their length of the list."""

    def redistribute(self, states: Mapping[int, pa.RecordBatch], worker: int, workers: int) -> list[str]:  # type: ignore[override]
        return sorted(word for rows in states.values() for word in rows.column("word").to_pylist())[
            worker::workers
        ]


def kept(operator: UserOperator, *, keyed: bool) -> Graph:
    graph = Graph("kept")
    words = graph.source("rows", InputSource("rows", "word string"))
    stream = words.key_by("by", "word") if keyed else words
    stream.apply("kept", operator).sink("out", CallSink(print))
    return graph


def held(operator: UserOperator, old: int, new: int, *, keyed: bool) -> int:
    """How many words the workers hold together after a change and crashes, with and without a snapshot."""
    rows = [{"word": word} for word in WORDS]
    trial = rescaled(kept(operator, keyed=keyed), old, new, rows)
    for snapshot in (False, True):
        trial.step({"rows": dealt(rows)}, checkpoint=True, snapshot=snapshot)
        trial.crash()
    return sum(len(one.words) for one in OPENED[-new:])


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_the_state_of_a_users_operator_is_divided_as_it_declares(old: int, new: int, keyed: bool) -> None:
    assert held(Split(), old, new, keyed=keyed) == 3 * len(WORDS)
    assert held(Dealt(), old, new, keyed=keyed) == 3 * len(WORDS)
    assert held(Everything(), old, new, keyed=keyed) == (new + 2) * len(WORDS)


def test_a_split_state_is_where_the_rows_of_its_key_are() -> None:
    class Known(Split):
        def process(self, batch: pa.RecordBatch) -> Iterator[int]:
            yield from (int(word in self.words) for word in batch.column("word").to_pylist())
            self.words += [word for word in batch.column("word").to_pylist() if word not in self.words]

    trial = rescaled(kept(Known(), keyed=True), 2, 3, [{"word": word} for word in WORDS])
    trial.step({"rows": dealt([{"word": word} for word in WORDS])})
    assert Counter(one["held"] for one in trial.rows("out")) == {0: 40, 1: 40}


def test_a_state_without_a_rule_is_refused_before_anything_happens() -> None:
    trial = Trial(kept(Kept(), keyed=True), workers=2)
    trial.step({"rows": dealt([{"word": word} for word in WORDS])}, checkpoint=True)
    with pytest.raises(
        OperatorError, match="operator 'kept' failed at another number of workers: Kept has a"
    ):
        trial.rescale(3)
    assert len(trial.counters()) == 2
    trial.step({"rows": [{"word": "w0"}]})
    assert trial.rows("out")[-1]["held"] > 1


def test_a_declaration_that_does_not_fit_is_refused() -> None:
    class Wrong(Kept):
        pass

    for rule, columns, text in [
        ("join", (), "redistribute = 'join'; write 'split', 'union' or a method"),
        ("split", (), "'split' needs columns"),
        ("union", ("word",), "'split' needs columns, and nothing else uses them"),
        ("split", ("price",), "splits its state by 'price', which is no column of the state"),
    ]:
        Wrong.redistribute, Wrong.split_by = rule, columns  # type: ignore[assignment]
        with pytest.raises(GraphError, match=text):
            kept(Wrong(), keyed=True).plan()


def test_a_change_needs_a_checkpoint() -> None:
    trial = Trial(kept(Split(), keyed=True), workers=2)
    with pytest.raises(ValueError, match="after a checkpoint, and there is none yet"):
        trial.rescale(3)
    trial.step({"rows": [{"word": "a"}]}, checkpoint=True)
    with pytest.raises(ValueError, match="at least 1"):
        trial.rescale(0)
    assert [trial.rescale(workers) for workers in (3, 2, 4)] == [1, 1, 1]


def test_watermarks_of_splits_move_with_them() -> None:
    """A split that is behind holds event time back, wherever it is read, and no longer when it is done."""
    graph, rows = timed()
    rows.key_by("by", "key").aggregate("summed", TEN_SECONDS, x=Sum("x")).sink("out", CallSink(print))
    trial = Trial(graph, workers=2, splits={"rows": ["a", "b", "c"]})
    given = {"a": [row(50, "x", 1.0)], "b": [row(2, "y", 1.0)], "c": [row(60, "x", 1.0)]}
    trial.step({"rows": given}, checkpoint=True)
    trial.rescale(3)
    trial.step({"rows": {"b": [row(4, "y", 1.0)]}}, checkpoint=True)
    assert trial.rows("out") == [], "split b is at 4 seconds"
    trial.step({}, done={"rows": ["b"]})
    assert [(one["key"], one["x"]) for one in trial.rows("out")] == [("y", 2.0)], (
        "the others are at 50 and 60"
    )
    assert total(trial, "summed", "late_rows") == 0


@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_before_an_exchange_a_split_that_is_behind_is_not_late_on_another_worker(old: int, new: int) -> None:
    """Each worker has its own event time there, which must not stay where its former splits had it."""
    graph, rows = timed()
    rows.sort("sorted", "at").sink("out", CallSink(print))
    splits = [f"s{number}" for number in range(12)]
    trial = Trial(graph, workers=old, splits={"rows": splits})
    given = {split: [row(1100 - 100 * number, split)] for number, split in enumerate(splits)}
    trial.step({"rows": given}, checkpoint=True)
    trial.rescale(new)
    again = {split: [row(1101 - 100 * number, split)] for number, split in enumerate(splits)}
    trial.step({"rows": again}, checkpoint=True)
    trial.step({}, end=True)
    assert total(trial, "sorted", "late_rows") == 0
    assert len(trial.rows("out")) == 24


# --- the splits of sources continue on another number of workers --------------------------------------------


LIVES = st.lists(
    st.tuples(st.integers(1, 6), st.lists(st.integers(0, 4), min_size=6, max_size=6)), min_size=1
)
"""Numbers of workers, one after the other, and how many batches each of them reads."""
SMALL = 40
"""Bytes that one read takes, about."""


def context(worker: int, workers: int) -> OperatorContext:
    return OperatorContext("g", "rows", worker, workers, bytes(16), (), None)


def read_in_lives(
    spec: base.SourceSpec,
    lives: list[tuple[int, list[int]]],
    *,
    opened: Callable[[int, int], base.SourceReader] | None = None,
    by_time: bool = False,
    ended: Callable[[base.SourceReader], bool] = lambda reader: reader.exhausted,
) -> Counter[Any]:
    """All rows that are read when the workers change again and again, the last ones to the end."""
    rows: Counter[Any] = Counter()
    before: list[base.Positions] = [{}]
    for life, (workers, batches) in enumerate([*lives, (lives[-1][0], [])]):
        at: list[base.Positions] = []
        for worker in range(workers):
            reader = opened(worker, workers) if opened else spec.open(context(worker, workers))
            assert isinstance(reader, base.SourceReader)
            if by_time:
                reader.reached = lambda _: 0
            same = len(before) == workers  # a reset: each continues with its own
            reader.reset_to(before[worker] if same else spec.redeal(before, worker, workers) if life else {})
            for _ in range(batches[worker] if batches else 10_000):
                if (batch := reader.read(SMALL)) is not None:
                    rows.update(tuple(row.values()) for row in batch.batch.to_pylist())
                elif ended(reader):
                    break
                reader.take_division()
            at.append(reader.positions())
            assert batches or ended(reader)
            reader.close()
        before = at
    return rows


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("files")
    found = []
    for number in range(9):
        found.append(folder / f"f{number}.txt")
        found[-1].write_text("".join(f"{number}-{line}\n" for line in range(3 * number)))
    return found


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lives=LIVES, repeat=st.integers(1, 3), by_time=st.booleans())
def test_every_line_of_files_is_read_once(
    files: list[Path], lives: list[tuple[int, list[int]]], repeat: int, by_time: bool
) -> None:
    rows = read_in_lives(FileSource(files, repeat=repeat), lives, by_time=by_time)
    lines = [line for file in files for line in file.read_text().splitlines()]
    assert rows == Counter({(line,): repeat for line in lines})


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lives=LIVES)
def test_every_line_of_a_directory_is_read_once(
    files: list[Path], lives: list[tuple[int, list[int]]]
) -> None:
    def ended(reader: base.SourceReader) -> bool:
        return not reader.has_input

    spec = FileSource(f"{files[0].parent}/*.txt", watch=True, poll_s=0.001)
    rows = read_in_lives(spec, lives, ended=ended)
    assert rows == Counter((line,) for file in files for line in file.read_text().splitlines())


@settings(max_examples=30)
@given(lives=LIVES, by_time=st.booleans())
def test_every_row_of_an_iterator_is_read_once(lives: list[tuple[int, list[int]]], by_time: bool) -> None:
    def rows_of(split: str, at: int) -> Iterator[tuple[int, dict[str, Any]]]:
        yield from ((n + 1, {"split": split, "n": n}) for n in range(at, 12))

    spec = IteratorSource(rows_of, "split string, n bigint", splits=["a", "b", "c", "d"])
    rows = read_in_lives(spec, lives, by_time=by_time)
    assert rows == Counter((split, n) for split in "abcd" for n in range(12))


class Ticking(Clock):
    """Three milliseconds pass with each look at it."""

    def __call__(self) -> int:
        self.now += 3000
        return self.now


@settings(max_examples=60)
@given(lives=LIVES, total=st.integers(0, 40))
def test_every_number_of_a_rate_source_is_generated_once(
    lives: list[tuple[int, list[int]]], total: int
) -> None:
    clock, spec = Ticking(), RateSource(1000, rows=total)
    rows = read_in_lives(spec, lives, opened=lambda *place: RateReader(spec, *place, clock))
    assert Counter(value for _, value in rows.elements()) == Counter(range(total))


def test_splits_that_are_known_by_name_go_to_their_owner() -> None:
    for spec, splits in (
        (InputSource("orders", pa.schema([("n", pa.int64())])), ["alice", "bob", "carol", "dave"]),
        (LogSource("out", "n bigint", region="other"), ["w0000", "w0001", "w0002", "w0007"]),
    ):
        positions = [
            {splits[0]: base.SplitPosition(1)},
            {split: base.SplitPosition(2) for split in splits[1:]},
        ]
        for workers in (1, 2, 3, 5):
            dealt = [spec.redeal(positions, worker, workers) for worker in range(workers)]
            assert sum(len(one) for one in dealt) == 4
            for worker, own in enumerate(dealt):
                assert all(spec.owner(split, workers) == worker for split in own)


def test_a_list_of_files_that_changed_is_noticed(files: list[Path]) -> None:
    spec = FileSource(files)
    reader = spec.open(context(0, 2))
    reader.reset_to({})
    while not reader.exhausted:
        reader.read(SMALL)
    positions = [reader.positions(), {}]
    reader.close()
    assert spec.redeal(positions, 0, 1)
    other = FileSource([*files[1:], files[0]])
    with pytest.raises(InputListChangedError, match="the 5 inputs that worker 0 has fully read are no"):
        other.redeal(positions, 0, 1)


def test_a_source_without_a_rule_is_refused() -> None:
    with pytest.raises(SchemaError, match="Words does not define how its splits are dealt"):
        Words().redeal([{}], 0, 2)
