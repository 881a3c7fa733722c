"""Whether the word count was right: the output files against `collections.Counter`, which knows nothing of
us.

Two conditions are checked of the output, which holds (word, new count) for every word of every step:

1. The last count of each word is the true one: the sorted final lines are, byte for byte, those of the
  Counter.
2. The counts of each word strictly increase. An output that was not truncated after a loss, or was written
   twice, returns to counts that it had before.

This file reads bytes and knows the TSV form only: word, tab, count; a backslash in a word is written twice.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv as pa_csv

IntArray: TypeAlias = NDArray[Any]

EXAMPLES_MAX = 5
BLOCK_BYTES = 1 << 26


@dataclass(slots=True)
class Verdict:
    """The result. `right` is the verdict; the rest is for the reader."""

    lines: int = 0
    distinct: int = 0
    fingerprint: str = ""
    wrong_counts: int = 0
    not_increasing: int = 0
    unreadable: int = 0
    """Files with a line that is not word, tab, count."""
    examples: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        return not (self.wrong_counts or self.not_increasing or self.unreadable)

    def note(self, text: str) -> None:
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(text)


def judge(outputs: Iterable[Path], counts: Counter[bytes], passes: int) -> Verdict:
    """Read every output file whole and compare. `counts` are of one pass."""
    verdict = Verdict()
    last: dict[bytes, int] = {}
    for path in sorted(outputs):
        try:
            _read(path, last, verdict)
        except pa.ArrowInvalid as error:
            verdict.unreadable += 1
            verdict.note(f"{path.name} cannot be read: {error}")
    truth = {word.replace(b"\\", b"\\\\"): count * passes for word, count in counts.items()}
    actual, expected = b"".join(_final_lines(last)), b"".join(_final_lines(truth))
    verdict.distinct = len(last)
    verdict.fingerprint = sha256(actual).hexdigest()
    if actual != expected:
        for word in sorted(truth.keys() | last.keys()):
            if truth.get(word) != last.get(word):
                verdict.wrong_counts += 1
                verdict.note(f"{_quoted(word)}: counted {last.get(word)}, true is {truth.get(word)}")
    return verdict


def _read(path: Path, last: dict[bytes, int], verdict: Verdict) -> None:
    if not path.stat().st_size:
        return
    with pa_csv.open_csv(
        path,
        read_options=pa_csv.ReadOptions(column_names=["word", "count"], block_size=BLOCK_BYTES),
        parse_options=pa_csv.ParseOptions(delimiter="\t", quote_char=False),
        convert_options=pa_csv.ConvertOptions(column_types={"word": pa.binary(), "count": pa.int64()}),
    ) as blocks:
        for block in blocks:
            words = block.column("word").dictionary_encode()
            _check_block(
                words.dictionary.to_pylist(),
                words.indices.to_numpy(),
                block.column("count").to_numpy(),
                last,
                lambda word, count, before: _complain(verdict, path, word, count, before),
            )
            verdict.lines += block.num_rows


def _check_block(
    names: list[bytes],
    words: IntArray,
    counts: IntArray,
    last: dict[bytes, int],
    complain: Callable[[bytes, int, int], None],
) -> None:
    """Lines are in the order of the file, `words` index `names`, `last` gets the last count of each word."""
    order = np.argsort(words, kind="stable")  # by word, and for each word in the order of the file
    words, counts = words[order], counts[order]
    same_word = words[1:] == words[:-1]
    for position in np.flatnonzero(same_word & (counts[1:] <= counts[:-1])):
        complain(names[words[position]], int(counts[position + 1]), int(counts[position]))
    firsts = np.flatnonzero(np.concatenate([[True], ~same_word]))
    lasts = np.flatnonzero(np.concatenate([~same_word, [True]]))
    for word, first, end in zip(
        words[firsts].tolist(), counts[firsts].tolist(), counts[lasts].tolist(), strict=True
    ):
        name = names[word]
        before = last.get(name, 0)
        if first <= before:
            complain(name, first, before)
        last[name] = end


def _complain(verdict: Verdict, path: Path, word: bytes, count: int, before: int) -> None:
    verdict.not_increasing += 1
    verdict.note(f"{_quoted(word)}: {count} written after {before}, in {path.name}")


def _final_lines(counts: dict[bytes, int]) -> Iterator[bytes]:
    return (b"%b\t%d\n" % (word, counts[word]) for word in sorted(counts))


def _quoted(word: bytes) -> str:
    return repr(word.decode("utf-8", "replace"))[:60]
