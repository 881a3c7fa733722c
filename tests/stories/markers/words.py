"""The input of these stories, words for a worker, and the text of rows and frames.

A source that reads what is there. A position is the number of words read.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from checkpoint.core.links.frames import ChannelFrame, FrameType
from checkpoint.core.records.manifest import SplitPosition
from dataflow import Graph, LogSink
from dataflow.operators.base import OperatorContext
from dataflow.sources import base
from tests.stories.store.copies import in_words

SCHEMA = pa.schema([("word", pa.string())])


class Words(base.SourceSpec):
    """What each worker was given so far."""

    def __init__(self) -> None:
        self.given: dict[int, list[str]] = defaultdict(list)

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        del inputs
        return SCHEMA

    def open(self, context: OperatorContext) -> "WordsReader":
        return WordsReader(self.given[context.worker])


class WordsReader(base.SourceReader):
    """All that is there goes into one step."""

    def __init__(self, given: list[str]) -> None:
        self._given = given
        self._at = self._began = 0

    def reset_to(self, positions: Mapping[str, SplitPosition]) -> None:
        self._at = self._began = positions["words"].position if positions else 0

    def read(self, bytes_max: int) -> base.SourceBatch | None:
        del bytes_max
        return self._upto(len(self._given)) if self.has_input else None

    def replay(self, division: base.SourceDivision) -> list[base.SourceBatch]:
        part = division.get("words")
        return [] if part is None or part.end == part.begin else [self._upto(part.end)]

    def _upto(self, end: int) -> base.SourceBatch:
        words = self._given[self._at : end]
        self._at = end
        return base.SourceBatch(pa.record_batch([pa.array(words)], schema=SCHEMA), (), len(words))

    def take_division(self) -> base.SourceDivision:
        began, self._began = self._began, self._at
        return {"words": base.SplitDivision(began, self._at, 0)}

    def positions(self) -> base.Positions:
        return {"words": SplitPosition(self._at)}

    @property
    def exhausted(self) -> bool:
        return False

    @property
    def has_input(self) -> bool:
        return self._at < len(self._given)

    def describe(self, source: base.SourceBatch, row: int | None) -> str:
        return "a word"


def counting(words: Words) -> Graph:
    """How often each word came, on the worker that owns it."""
    graph = Graph("words")
    keyed = graph.source("words", words).key_by("by_word", "word")
    keyed.count("counts").sink("shown", LogSink(publish="step"))
    return graph


def rows_of(data: bytes) -> list[dict[str, object]]:
    """Of an Arrow stream, none of an empty one."""
    return list(pa.ipc.open_stream(data).read_all().to_pylist()) if data else []


def words_in(frames: Iterable[ChannelFrame]) -> str:
    """The words that they carry: `a, and b twice`; '' for none."""
    sent: Counter[str] = Counter()
    for frame in frames:
        if frame.type is FrameType.DATA:
            for row in rows_of(bytes(frame.payload)):
                sent[str(row["word"])] += int(str(row["_weight"]))
    times = {1: "", 2: " twice"}
    told = [f"{word}{times.get(count, f' {count} times')}" for word, count in sent.items()]
    return in_words(told) if told else ""


def counts_in(data: Iterable[bytes]) -> str:
    """`a 2 and b 1`, in the order of the words; 'nothing'."""
    rows = sorted((str(row["word"]), row["count"]) for one in data for row in rows_of(one))
    return in_words(f"{word} {count}" for word, count in rows) if rows else "nothing"
