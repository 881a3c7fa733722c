"""Regions that the micro-batches of a query drive: what they refuse before they start."""

from pathlib import Path

import pyarrow as pa
import pytest

from dataflow import FileSource, Graph, GraphError, LogSink, autonomous, consistent
from dataflow.core.regions import Autonomous, Consistent
from dataflow.local import run_local
from dataflow.sources.batches import BatchSource

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


def test_rows_that_are_shown_before_the_record_of_their_batch_are_refused() -> None:
    said = refusal(driven(LogSink(publish="step")))
    assert "sink 'out' shows rows of a step" in said
    assert "use LogSink(publish='checkpoint')" in said


def test_a_source_that_the_query_does_not_feed_is_refused(tmp_path: Path) -> None:
    graph = driven()
    graph.source("files", FileSource(tmp_path)).sink("kept", LogSink())
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
