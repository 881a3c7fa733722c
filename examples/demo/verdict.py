"""Whether the word count was right: the output files against `collections.Counter`, which knows nothing of
us.

Two things are asked of the output, which holds (word, new count) for every word of every step:

1. The last count of each word is the true one: the sorted final lines are, byte for byte, those of the
  Counter.
2. The counts of each word strictly increase. An output that was not cut back after a loss, or was written
   twice, goes back to counts that it had already.

This file reads bytes and knows the TSV form only: word, tab, count; a backslash in a word is written twice.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

EXAMPLES_MAX = 5
BLOCK_BYTES = 1 << 24


@dataclass(slots=True)
class Verdict:
    """What was found. `right` is the answer; the rest is for the reader."""

    lines: int = 0
    distinct: int = 0
    fingerprint: str = ""
    wrong_counts: int = 0
    not_increasing: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        return not self.wrong_counts and not self.not_increasing

    def note(self, text: str) -> None:
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(text)


def judge(outputs: Iterable[Path], counts: Counter[bytes], passes: int) -> Verdict:
    """Read every output file whole and compare. `counts` are of one pass."""
    verdict = Verdict()
    last: dict[bytes, int] = {}
    for path in sorted(outputs):
        _read(path, last, verdict)
    truth = {word.replace(b"\\", b"\\\\"): count * passes for word, count in counts.items()}
    found, expected = b"".join(_final_lines(last)), b"".join(_final_lines(truth))
    verdict.distinct = len(last)
    verdict.fingerprint = sha256(found).hexdigest()
    if found != expected:
        for word in sorted(truth.keys() | last.keys()):
            if truth.get(word) != last.get(word):
                verdict.wrong_counts += 1
                verdict.note(f"{_shown(word)}: counted {last.get(word)}, true is {truth.get(word)}")
    return verdict


def _read(path: Path, last: dict[bytes, int], verdict: Verdict) -> None:
    for block in _blocks(path):
        for line in block:
            word, _, number = line.rpartition(b"\t")
            count = int(number)
            before = last.get(word, 0)
            if count <= before:
                verdict.not_increasing += 1
                verdict.note(f"{_shown(word)}: {count} written after {before}, in {path.name}")
            last[word] = count
        verdict.lines += len(block)


def _blocks(path: Path) -> Iterator[list[bytes]]:
    """The file's lines, in lists of about `BLOCK_BYTES`."""
    with path.open("rb") as file:
        rest = b""
        while data := file.read(BLOCK_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            yield lines
    if rest:
        yield [rest]


def _final_lines(counts: dict[bytes, int]) -> Iterator[bytes]:
    return (b"%b\t%d\n" % (word, counts[word]) for word in sorted(counts))


def _shown(word: bytes) -> str:
    return repr(word.decode("utf-8", "replace"))[:60]
