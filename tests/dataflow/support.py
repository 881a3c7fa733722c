"""What several tests of the dataflow share: inputs, readers of output, a word count."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import trio

from dataflow import FileSink, FileSource, Graph
from dataflow.sinks.files import parse_row
from dos_client import init_store
from tests.support.servers import ServerProcess, url_of


def split_words(batch: pa.RecordBatch) -> pa.Array:
    """A batch function: lines to words, split at ASCII white space."""
    words = pc.ascii_split_whitespace(batch.column("line")).flatten()
    return words.filter(pc.greater(pc.binary_length(words), 0))


def word_count(paths: Iterable[Path], out: Path, *, repeat: int = 1, truncate: bool = True) -> Graph:
    graph = Graph("wordcount")
    lines = graph.source("lines", FileSource([*paths], repeat=repeat, errors="replace"))
    words = lines.flat_map("words", split_words, schema="word string", takes="batch")
    sink = FileSink(out, truncate_on_reset=truncate)
    words.key_by("by_word", "word").count("counts").sink("out", sink)
    return graph


def true_counts(paths: Iterable[Path], repeat: int = 1) -> Counter[str]:
    counts: Counter[str] = Counter()
    for path in paths:
        text = path.read_bytes().decode("utf-8", "replace").encode()
        counts.update(word.decode() for word in text.split())
    return Counter({word: repeat * count for word, count in counts.items()})


def rows_of(directory: Path) -> list[tuple[Path, list[str | None]]]:
    """Every row of every part, with its part, in order."""
    rows = []
    for part in sorted(directory.glob("part-w*.tsv")):
        text = part.read_bytes().decode()
        assert not text or text.endswith("\n"), f"{part} ends within a row"
        rows += [(part, parse_row(line)) for line in text.split("\n")[:-1]]
    return rows


def last_counts(directory: Path) -> dict[str, int]:
    """Word -> its last count. Fails if a word's counts do not strictly increase, or it is in two parts."""
    last: dict[str, int] = {}
    part_of: dict[str, Path] = {}
    for part, (word, count) in rows_of(directory):
        assert word is not None
        assert count is not None
        assert part_of.setdefault(word, part) == part, f"{word!r} is in {part_of[word]} and {part}"
        assert int(count) > last.get(word, 0), f"{word!r}: {count} after {last.get(word, 0)}"
        last[word] = int(count)
    return last


def made(servers: list[ServerProcess]) -> str:
    """The URL of a new store of these servers."""
    url = url_of(servers)
    trio.run(lambda: init_store(url))
    return url
