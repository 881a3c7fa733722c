"""How the files of a `FileSource` are dealt to another number of workers. Pure: positions in, positions out.

A position states how many splits at the beginning of a worker's list are done, which later ones are done,
and where those that are being read are (`files.py`). Lists differ with the number of workers, so a list of
the new layout may have splits that nobody began before some that are done: these count as being read, from
byte 0.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import islice
from typing import Final, Protocol

from checkpoint import SplitPosition
from dataflow.errors import InputListChangedError
from dataflow.sources.base import DONE_SPLITS, Positions
from dataflow.sources.ranges import ranges_of_text, text_of_ranges
from dos_protocol.digests import digest64

DONE_LATER: Final = ">"
"""The first character of the key whose rest names the splits that are done, by their number in the list,
although one before them is not.
"""


class DealtFiles(Protocol):
    """The files of a source, and which of them a worker reads in which order."""

    @property
    def paths(self) -> tuple[str, ...]: ...

    def splits_of(self, worker: int, workers: int) -> Iterable[tuple[str, str]]:
        """Yield (split, path) of one worker, in the order in which it reads them."""
        ...


def redealt(files: DealtFiles, positions: Sequence[Positions], worker: int, workers: int) -> Positions:
    """Return the positions of one worker from those of all workers of another layout.

    Raises InputListChangedError if the splits that they read are others now.
    """
    done: set[str] = set()
    reading: Positions = {}
    for place, at in enumerate(positions):
        done |= _done(files, at, place, len(positions))
        reading |= {name: one for name, one in at.items() if name != DONE_SPLITS and name[:1] != DONE_LATER}
    number = {path: index for index, path in enumerate(files.paths)}

    def reads(split: str) -> bool:
        index, _, path = split.partition(":")
        return (number[path] + int(index)) % workers == worker

    return _positions(
        files.splits_of(worker, workers),
        {one for one in done if reads(one)},
        {name: at for name, at in reading.items() if reads(name)},
    )


def later_in(positions: Mapping[str, SplitPosition]) -> tuple[str, set[int]]:
    """Return the key of the later splits that are done, "" if there are none, and their numbers."""
    key = next((key for key in positions if key.startswith(DONE_LATER)), "")
    return key, ranges_of_text(key[1:])


def later_key(numbers: Iterable[int]) -> str:
    """Return the key for these numbers."""
    return DONE_LATER + text_of_ranges(sorted(numbers))


def chained(digest: int, name: str) -> int:
    """Return the digest of the splits that are done first, with one more."""
    return digest64(name.encode(), digest)


def combined(digest: int, name: str) -> int:
    """Return the digest of the later splits that are done, with one more or one less: their order does not
    matter.
    """
    return digest ^ digest64(name.encode())


def _done(files: DealtFiles, at: Positions, place: int, workers: int) -> set[str]:
    """Return the splits that a worker of the former layout has read to their end."""
    first = at.get(DONE_SPLITS, SplitPosition(0, done=True))
    key, numbers = later_in(at)
    count = max([first.position, *(number + 1 for number in numbers)])
    names = [name for name, _ in islice(files.splits_of(place, workers), count)]
    first_names = names[: first.position]
    later_names = [names[number] for number in numbers if number < len(names)]
    differs = reduce(chained, first_names, 0) != first.digest
    if len(names) < count or differs or (key and reduce(combined, later_names, 0) != at[key].digest):
        raise InputListChangedError(
            f"the {count} inputs that worker {place} of {workers} has begun are no longer the first of its"
            " list"
        )
    return {*first_names, *later_names}


def _positions(splits: Iterable[tuple[str, str]], done: set[str], reading: Positions) -> Positions:
    """Return positions for a list of which these are done and being read."""
    left = len(done) + len(reading)
    first: list[str] = []
    later: dict[int, str] = {}
    found: Positions = {}
    for index, (name, _) in enumerate(splits):
        if not left:
            break
        if name in done and index == len(first):
            first.append(name)
        elif name in done:
            later[index] = name
        else:
            found[name] = reading.get(name, SplitPosition(0))
        left -= name in done or name in reading
    positions = {DONE_SPLITS: SplitPosition(len(first), reduce(chained, first, 0), done=True)}
    if later:
        digest = reduce(combined, later.values(), 0)
        positions[later_key(later)] = SplitPosition(len(later), digest, done=True)
    return positions | found
