"""The output of a run in a form that does not depend on how steps fell: equal digests mean equal output.

Two sinks. `rows` has each input row once: its lines sorted. `counts` has a key and its count so far for each
step that met the key: the last line of each key, sorted; and the counts of a key must increase in the order
of the file, or something was written twice, or not cut back.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path


class WrongOutputError(Exception):
    """The output contradicts itself, before it is compared with anything."""


def digest(folder: Path) -> str:
    """Of what a run wrote. Raises WrongOutputError."""
    return _digest_of(_lines(folder / "rows"), last_counts(folder / "counts"))


def true_digest(paths: Iterable[Path]) -> str:
    """The expected output of these inputs, by `Counter`."""
    lines = [line for path in paths for line in path.read_bytes().splitlines()]
    rows = (line.replace(b" ", b"\t") for line in lines)
    return _digest_of(rows, dict(Counter(line.split()[0] for line in lines)))


def last_counts(folder: Path) -> dict[bytes, int]:
    """Key -> its last count. Raises WrongOutputError when a key's counts do not increase."""
    last: dict[bytes, int] = {}
    for line in _lines(folder):
        key, count = line.split(b"\t")
        if int(count) <= last.get(key, 0):
            raise WrongOutputError(f"{key.decode()}: {int(count)} written after {last[key]}")
        last[key] = int(count)
    return last


def _lines(folder: Path) -> Iterator[bytes]:
    for part in sorted(folder.glob("part-w*.tsv")):
        text = part.read_bytes()
        if text and not text.endswith(b"\n"):
            raise WrongOutputError(f"{part} ends within a row")
        yield from text.splitlines()


def _digest_of(rows: Iterable[bytes], counts: dict[bytes, int]) -> str:
    lines = [*sorted(rows), b"--", *(b"%b\t%d" % (key, counts[key]) for key in sorted(counts))]
    return sha256(b"\n".join(lines)).hexdigest()
