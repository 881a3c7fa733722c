"""A checkpoint after each file: a checkpoint contains whole files, so no reset divides a file."""

from pathlib import Path

import dos
from examples.cookbook.crashing_word_count import split

LAST_OF_KEY = True
"""A count is emitted each time it changes: the last line of each word is the result."""


def make_graph(data: Path, out: Path) -> dos.Graph:
    graph = dos.Graph("checkpoint_after_each_file")
    lines = graph.source("lines", dos.FileSource(data / "poems" / "*.txt"))
    lines = lines.annotate(dos.consistent(trigger="operator"))
    words = lines.flat_map("words", split, schema="word string", takes="batch")
    words.key_by("by_word", "word").count("counts").sink("out", dos.FileSink(out / "counts"))
    return graph
