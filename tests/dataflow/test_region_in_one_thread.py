"""Regions under every interleaving and with resets at any moment: the output is that of a run without
failures.
"""

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow import FileSink, FileSource, Graph, LogSink
from dataflow.sinks.log import LogWriter
from dataflow.worker.messages import OutputMade
from tests.dataflow.region_in_one_thread import OneThreadRegion
from tests.dataflow.support import last_counts, rows_of, true_counts, word_count

_words = st.sampled_from(["a", "b", "cc", "the", "quick", "fox", "x" * 20, "é", "日本", ""])
_texts = st.lists(st.lists(_words, max_size=6).map(" ".join), max_size=25).map("\n".join)


def write_files(directory: Path, texts: list[str]) -> list[Path]:
    paths = []
    for index, text in enumerate(texts):
        path = directory / f"in{index}.txt"
        path.write_text(text, encoding="utf-8", newline="")
        paths.append(path)
    return paths


def run_with_trouble(graph: Graph, workers: int, draw: Any, troubles: int) -> None:
    """Turns, checkpoints and resets in any order, then to the end."""
    region = OneThreadRegion(graph, workers, lambda n: draw(st.integers(0, n - 1)))
    region.restore()
    for _ in range(draw(st.integers(0, troubles))):
        for _ in range(draw(st.integers(0, 40))):
            region.turn()
        if draw(st.booleans()):
            region.request_checkpoint()
        else:
            region.restore()
    region.finish()


# EVIDENCE-OF: P-7
@given(data=st.data(), texts=st.lists(_texts, min_size=1, max_size=4), workers=st.integers(1, 3))
@settings(max_examples=60)
def test_a_word_count_is_exact_in_any_order_and_however_often_it_is_reset(
    data: st.DataObject, texts: list[str], workers: int
) -> None:
    with TemporaryDirectory() as directory:
        paths = write_files(Path(directory), texts)
        out = Path(directory) / "out"
        run_with_trouble(word_count(paths, out, repeat=2), workers, data.draw, troubles=8)
        assert last_counts(out) == dict(true_counts(paths, repeat=2))


def two_exchanges(paths: list[Path], out: Path) -> Graph:
    """How many words have which count so far: an exchange behind an exchange, a union, two sinks, row
    functions.
    """
    graph = Graph("histogram")
    half = len(paths) // 2
    first = graph.source("first", FileSource(paths[: half + 1]))
    second = graph.source("second", FileSource(paths[half + 1 :])) if len(paths) > half + 1 else first
    lines = first.union("both", second) if second is not first else first
    words = lines.flat_map("words", lambda row: row["line"].split(), schema="word string")
    counts = words.key_by("by_word", "word").count("counts")
    lengths = words.map(
        "lengths", lambda row: (len(row["word"]), row["word"][:1]), schema="n bigint, c string"
    )
    per_length = lengths.key_by("by_length", "n", "c").count("per_length")
    counts.sink("words_out", FileSink(out / "words"))
    news = counts.filter("news", lambda row: row["count"] == 1)
    news.key_by("by_count", "count").map("bare", lambda row: row["word"], schema="word string").sink(
        "news_out", FileSink(out / "news")
    )
    per_length.sink("lengths_out", FileSink(out / "lengths"))
    return graph


# EVIDENCE-OF: P-7
@given(data=st.data(), texts=st.lists(_texts, min_size=1, max_size=4), workers=st.integers(1, 3))
@settings(max_examples=40)
def test_exchanges_after_exchanges_take_their_checkpoints_at_the_same_step(
    data: st.DataObject, texts: list[str], workers: int
) -> None:
    with TemporaryDirectory() as directory:
        paths = write_files(Path(directory), texts)
        out = Path(directory) / "out"
        run_with_trouble(two_exchanges(paths, out), workers, data.draw, troubles=6)
        counts = true_counts(paths)
        assert last_counts(out / "words") == dict(counts)
        lengths: Counter[tuple[str, str]] = Counter()
        for word, count in counts.items():
            lengths[str(len(word)), word[:1]] += count
        final = {(row[0], row[1]): int(row[2] or 0) for _, row in rows_of(out / "lengths")}
        assert final == dict(lengths)


def shown_word_count(paths: list[Path], publish: str = "step") -> Graph:
    graph = Graph("shown")
    words = graph.source("lines", FileSource(paths, repeat=2)).flat_map(
        "words", lambda row: row["line"].split(), schema="word string"
    )
    words.key_by("by_word", "word").count("counts").sink("shown", LogSink(publish=publish))
    return graph


# EVIDENCE-OF: P-7
@pytest.mark.parametrize("first", [0, 20])
def test_output_published_by_step_is_made_again_as_it_was(first: int, tmp_path: Path) -> None:
    """Of 40 such runs some five show other output, if a step is shown before its division is durable at all
    workers.
    """
    for seed in range(first, first + 20):
        rng = random.Random(seed)
        words = [" ".join(rng.choices(["a", "b", "cc", "the", "fox"], k=5)) for _ in range(60)]
        paths = write_files(tmp_path, ["\n".join(words[index::3]) for index in range(3)])
        last: dict[str, int] = {}
        for row in shown_in_spite_of_resets(shown_word_count(paths), rng):
            assert row["count"] > last.get(row["word"], 0)
            last[row["word"]] = row["count"]
        assert last == dict(true_counts(paths, repeat=2))


def shown_in_spite_of_resets(graph: Graph, rng: random.Random) -> list[dict[str, Any]]:
    """Run the graph with checkpoints and resets; OutputDiffersError says what a replay made otherwise."""
    region = OneThreadRegion(graph, 2, rng.randrange)
    region.restore()
    for _ in range(8):
        for _ in range(rng.randrange(60)):
            region.turn()
        if rng.random() < 0.4:
            region.request_checkpoint()
        else:
            region.restore()
    region.finish()
    for side in region.sides:
        steps = [output.step for output in side.shown]
        assert steps == list(range(1, len(steps) + 1)), "no hole, none twice"
    return [row for side in region.sides for row in rows_shown(side.shown)]


def counted_in_groups(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """Tells how many rows each call gets, and when its timer comes between them."""
    n = state.get[0] if state.exists else 0
    numbers = [number for frame in frames for number in frame["n"]]
    state.update((n + len(numbers),))
    if numbers and numbers[-1] % 3 == 0:
        state.setTimeoutTimestamp(1000 * numbers[-1] + 2500)
    yield pd.DataFrame({"word": key[0], "count": [n + len(numbers)], "rows": [len(numbers)]})


def shown_groups(paths: list[Path]) -> Graph:
    """Each line is a number, which is its time in seconds, and a word."""

    def parsed(row: dict[str, Any]) -> Any:
        number, word = row["line"].split()
        return datetime.fromtimestamp(int(number), UTC), word, int(number)

    graph = Graph("groups")
    lines = graph.source("lines", FileSource(paths))
    rows = lines.map("parsed", parsed, schema="at timestamp, word string, n bigint")
    keyed = rows.event_time("timed", "at", lateness=timedelta(seconds=3)).key_by("by_word", "word")
    keyed.apply_in_pandas_with_state(
        "counted", counted_in_groups, "word string, count bigint, rows bigint", "n bigint", "append",
        "EventTimeTimeout", time="at", calls="group",
    ).sink("shown", LogSink(publish="step"))  # fmt: skip
    return graph


# EVIDENCE-OF: P-7
def test_a_replayed_step_calls_a_function_with_the_groups_that_it_had(tmp_path: Path) -> None:
    """`rows` is in the output, and a replay that divides rows otherwise is OutputDiffersError."""
    groups = 0
    for seed in range(12):
        rng = random.Random(seed)
        words = rng.choices("abc", k=240)
        lines = [f"{number} {word}" for number, word in enumerate(words)]
        paths = write_files(tmp_path, ["\n".join(lines[index::3]) for index in range(3)])
        shown = shown_in_spite_of_resets(shown_groups(paths), rng)
        called = Counter(word for row in shown for word in [row["word"]] * row["rows"])
        assert called == Counter(words)
        groups += sum(row["rows"] > 1 for row in shown)
    assert groups > 100, "most calls get several rows"


def rows_shown(outputs: list[OutputMade]) -> list[dict[str, Any]]:
    return [
        row
        for output in outputs
        if output.data
        for row in pa.ipc.open_stream(output.data).read_all().to_pylist()
    ]


def test_the_final_checkpoint_waits_for_rows_of_a_worker_that_is_a_step_ahead(tmp_path: Path) -> None:
    """Found by the test above: a worker without input flagged step 2 as final while another had rows in step
    3.
    """
    paths = write_files(tmp_path, ["a\n" * 200, ""])
    order = iter([1, *[0] * 40])  # worker 1, without input, is exhausted first
    region = OneThreadRegion(word_count(paths, tmp_path / "out"), 2, lambda n: next(order, 0) % n)
    region.restore()
    while not region.sides[1].shared.exhausted:
        assert region.turn()
    region.finish()
    assert last_counts(tmp_path / "out") == {"a": 200}


def test_a_graph_without_an_exchange_is_checkpoint_and_reset_like_any_other(tmp_path: Path) -> None:
    paths = write_files(tmp_path, ["one\ntwo\nthree\n" * 30, "four\nfive\n" * 30])
    graph = Graph("copy")
    graph.source("lines", FileSource(paths)).sink("out", FileSink(tmp_path / "out"))
    region = OneThreadRegion(graph, 2, lambda n: 0)
    region.restore()
    for round_ in range(6):
        for _ in range(5):
            region.turn()
        region.request_checkpoint() if round_ % 2 else region.restore()
    region.finish()
    found = Counter(row[0] for _, row in rows_of(tmp_path / "out"))
    assert found == Counter({"one": 30, "two": 30, "three": 30, "four": 30, "five": 30})


def test_a_reset_replays_the_steps_that_all_had_divided(tmp_path: Path) -> None:
    paths = write_files(tmp_path, ["a b c\n" * 100, "c d e\n" * 100])
    turns = itertools.count()
    region = OneThreadRegion(word_count(paths, tmp_path / "out"), 2, lambda n: next(turns) % n)
    region.restore()
    for _ in range(40):
        region.turn()
    region.restore()
    assert region.steps_replayed > 0
    region.finish()
    assert last_counts(tmp_path / "out") == {"a": 100, "b": 100, "c": 200, "d": 100, "e": 100}


def test_a_sink_that_is_not_cut_back_shows_words_twice(tmp_path: Path) -> None:
    """The check above does notice: without truncation the counts of a word stop increasing."""
    paths = write_files(tmp_path, ["a b c\n" * 100, "c d e\n" * 100])
    region = OneThreadRegion(word_count(paths, tmp_path / "out", truncate=False), 2, lambda n: 0)
    region.restore()
    for _ in range(12):
        region.turn()
    region.restore()
    region.finish()
    with pytest.raises(AssertionError, match="after"):
        last_counts(tmp_path / "out")


@pytest.mark.parametrize("changed", ["word", "count", "order"])
def test_a_log_that_shows_steps_tells_rows_apart_by_every_column(changed: str) -> None:
    """A replay that makes other rows than were shown is found by this digest, and by nothing else."""
    schema = pa.schema([("word", pa.string()), ("count", pa.int64())])
    shown = [{"word": "a", "count": 1}, {"word": "b", "count": 2}]
    again = {
        "word": [{"word": "x", "count": 1}, shown[1]],
        "count": [shown[0], {"word": "b", "count": 3}],
        "order": shown[::-1],
    }[changed]

    def digest_of(rows: list[dict[str, object]]) -> int:
        writer = LogWriter(LogSink(publish="step"), schema)
        writer.process(pa.RecordBatch.from_pylist(rows, schema))
        writer.end_step()
        return writer.take_step().digest

    assert digest_of(again) != digest_of(shown) == digest_of(shown)
