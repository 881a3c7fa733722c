"""The demo's input: every word of the running Python's own standard library, in a few text files.

It is real text that every machine has: about 31 MB and 2.8 million words where the library is whole (Debian's
python3 leaves its tests out: then it is a third of that).
"""

import os
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

NOT_ITS_OWN = {"site-packages", "dist-packages", "__pycache__"}


@dataclass(frozen=True, slots=True)
class Corpus:
    """The input files, and the true counts of one pass over them."""

    paths: tuple[Path, ...]
    size_bytes: int
    counts: Counter[bytes]
    words: int
    counting_s: float
    """How long `Counter` took: a measure of this machine's speed."""


def library_files(root: Path | None = None) -> Iterator[Path]:
    """Yield every source file of the standard library, always in the same order."""
    for directory, names, files in os.walk(root or sysconfig.get_paths()["stdlib"]):
        names[:] = sorted(name for name in names if name not in NOT_ITS_OWN)
        yield from (Path(directory, name) for name in sorted(files) if name.endswith(".py"))


def make_corpus(directory: Path, parts: int, root: Path | None = None) -> Corpus:
    """Write the corpus as `parts` files of about equal size into `directory`, and count its words.

    Each file ends with a newline, so no word is joined to the next file's first one.
    """
    texts = [path.read_bytes().decode("utf-8", "replace").encode() + b"\n" for path in library_files(root)]
    total = sum(map(len, texts))
    directory.mkdir(parents=True, exist_ok=True)
    paths, waiting, part_bytes = [], iter(texts), 0
    counts: Counter[bytes] = Counter()
    counting_s = 0.0
    for index in range(parts):
        path = directory / f"part-{index}.txt"
        part = []
        for text in waiting:
            part.append(text)
            part_bytes += len(text)
            if part_bytes >= total * (index + 1) / parts:
                break
        content = b"".join(part)
        path.write_bytes(content)
        started = perf_counter()
        counts.update(content.split())
        counting_s += perf_counter() - started
        paths.append(path)
    return Corpus(tuple(paths), total, counts, counts.total(), counting_s)
