"""A cut after each file: a cut holds whole files, so going back never cuts a file in two."""

from pathlib import Path

import dos
from examples.cookbook.crashing_word_count import split

LAST_OF_KEY = True
"""A count comes out each time that it changed: what counts is the last line of each word."""


def make_graph(data: Path, out: Path) -> dos.Graph:
    graph = dos.Graph("cut_after_each_file")
    lines = graph.source("lines", dos.FileSource(data / "poems" / "*.txt"))
    lines = lines.annotate(dos.consistent(trigger="operator"))
    words = lines.flat_map("words", split, schema="word string", takes="batch")
    words.key_by("by_word", "word").count("counts").sink("out", dos.FileSink(out / "counts"))
    return graph
