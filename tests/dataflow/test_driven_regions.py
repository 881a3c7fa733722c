"""Regions that the micro-batches of a query drive: their records, and what they refuse before they start."""

import random
from collections import Counter
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest

from checkpoint import RetentionRule
from dataflow import Count, FileSource, Graph, GraphError, InputSource, LogSink, autonomous, consistent
from dataflow.core.regions import Autonomous, Consistent
from dataflow.limits import WorkerLimits
from dataflow.local import run_local
from dataflow.sources.batches import BatchSource
from dataflow.worker.exchange import Exchange
from dataflow.worker.journals import Outputs
from tests.dataflow.driven_region import DrivenRegion

WORDS = pa.schema([("word", pa.string())])


def driven(sink: LogSink | None = None, settings: Consistent | Autonomous | None = None) -> Graph:
    graph = Graph("words")
    lines = graph.source("lines", BatchSource(WORDS))
    if settings is not None:
        lines = lines.annotate(settings)
    lines.sink("out", sink or LogSink())
    return graph


def refusal(graph: Graph) -> str:
    with pytest.raises(GraphError) as raised:
        graph.plan()
    return str(raised.value)


def test_a_graph_of_batches_only_is_a_plan() -> None:
    assert driven().plan().fed_by_batches == ("lines",)
    assert BatchSource(WORDS, settings="zone=UTC").detail() == "batches with zone=UTC"


def test_rows_that_are_shown_before_the_record_of_their_batch_are_refused() -> None:
    said = refusal(driven(LogSink(publish="step")))
    assert "sink 'out' shows rows of a step" in said
    assert "use LogSink(publish='checkpoint')" in said


def test_a_source_that_the_query_does_not_feed_is_refused(tmp_path: Path) -> None:
    graph = driven()
    graph.source("files", FileSource(tmp_path, watch=True)).sink("kept", LogSink())
    said = refusal(graph)
    assert "source 'files' is not fed by the query that feeds 'lines'" in said


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"delivery": "at-most-once"}, 'delivery="at-most-once" repeats nothing; leave delivery out'),
        ({"recovery": "local"}, 'is gone with it; use recovery="global"'),
    ],
)
def test_settings_of_a_region_that_would_lose_a_batch_are_refused(settings: dict, words: str) -> None:
    assert words in refusal(driven(settings=consistent(**settings)))


def test_an_operator_outside_of_the_region_is_refused() -> None:
    graph = driven(settings=autonomous)
    assert "operator 'lines' is outside of any consistent region, where no checkpoint commits" in refusal(
        graph
    )


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"recovery": "local"}, 'words: recovery="local" replaces one worker.*use recovery="global"'),
        ({"hand_over": True}, "words: hand_over=True takes a region from a running driver.*stop the query"),
    ],
)
def test_options_that_exclude_a_query_are_refused_before_anything_starts(option: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        run_local(driven(), store="dos://127.0.0.1:1", **option)


@pytest.mark.parametrize("seed", range(12))
def test_the_record_of_a_batch_has_all_of_its_rows_however_far_a_worker_is_behind(seed: int) -> None:
    graph = Graph("words")
    words = graph.source("words", BatchSource(WORDS)).key_by("by_word", "word")
    words.aggregate("counts", n=Count()).sink("out", LogSink())
    rng = random.Random(seed)
    small_steps = WorkerLimits(step_bytes_max=64, batch_bytes_max=64)
    region = DrivenRegion(graph, 1 + seed % 3, rng.randrange, small_steps)
    counts: Counter[str] = Counter()
    for _ in range(4):
        given = rng.choices("abcdefgh", k=rng.randrange(12))
        resets = [rng.randrange(60) for _ in range(rng.randrange(3))]
        output = region.batch({"words": [{"word": word} for word in given]}, resets_after=resets)
        counts.update(given)
        last = {row["word"]: row["n"] for row in output.get("out", ())}
        assert last == {word: counts[word] for word in given}
        if rng.random() < 0.3:
            region.savepoint()
        if rng.random() < 0.3:
            region.rescale(rng.randint(1, 3))
    region.close()


@pytest.mark.parametrize("retain", ["all", "unread"])
def test_the_log_of_a_driven_region_does_not_grow_for_ever(retain: str) -> None:
    def rule(graph: Graph) -> RetentionRule:
        none = cast("Exchange", None)
        outputs = Outputs(graph.plan(), none, 0, gates=False, durable=lambda _: None, uids={"out": "out"})
        return outputs._rule_of("out")

    assert rule(driven(LogSink(retain=retain, max_age=60.0))) == RetentionRule(age_max_s=60.0)
    plain = Graph("words")
    plain.source("lines", InputSource("lines", WORDS)).sink("out", LogSink(retain=retain))
    assert rule(plain).by_consumers == (retain == "unread")
