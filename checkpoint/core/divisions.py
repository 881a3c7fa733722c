"""Divisions: which input each step of a worker had. What is recorded, and what a replay makes of the records.

Rules of this file: values and a fold. The chain that holds them is kept by `steps_log.py`.

A division is one record DIVISION in the worker's `steps` chain, ints = [step, time_ms], strings = [JSON of
its sources]. The chain is only ever rolled forward. After a reset the steps up to the one that all workers
have are replayed exactly; later ones are divided anew and recorded again under the same numbers. So a
record for step n makes all earlier records for steps >= n void: the newest line counts, and it has no
holes.
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from checkpoint.errors import ManifestError

Sources = dict[str, dict[str, tuple[int, ...]]]
"""source -> split -> (from, to, ...), positions in the source's own unit, half open; what follows them is the
source's own (a digest of what was read, so that a replay of other bytes is noticed). Splits that gave nothing
may be left out.
"""


class Division(NamedTuple):
    """The input of one step of one worker."""

    step: int
    time_ms: int
    """The step's recorded time: what operators may use as 'now'."""
    sources: Sources


_decoder: "msgspec.json.Decoder[Sources]" = msgspec.json.Decoder(Sources)


def encode_sources(sources: Sources) -> bytes:
    """The JSON of a division."""
    return msgspec.json.encode(sources)


def decode_division(ints: Iterable[int], text: bytes) -> Division:
    """The division in a record. Raises ManifestError: the record passed its checksum, so its writer was
    wrong.
    """
    numbers = tuple(ints)
    if len(numbers) != 2:
        raise ManifestError(f"a division has a step and a time, not {list(numbers)}")
    try:
        sources = _decoder.decode(text)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise ManifestError(f"the division of step {numbers[0]} does not decode: {error}") from error
    for source, splits in sources.items():
        for split, part in splits.items():
            if len(part) < 2 or not 0 <= part[0] <= part[1]:
                raise ManifestError(f"step {numbers[0]}: split {split!r} of {source!r} goes {list(part)}")
    return Division(numbers[0], numbers[1], sources)


class DivisionFold:
    """The newest line of divisions behind step `after`. Invariant: the steps kept follow one another
    without a hole.
    """

    def __init__(self, after: int = 0) -> None:
        self.after = after
        self._kept: list[Division] = []

    @property
    def last_step(self) -> int:
        """The highest step known; `after` when none is."""
        return self._kept[-1].step if self._kept else self.after

    def add(self, division: Division) -> None:
        """Take the next record of the chain. Raises ManifestError for a hole in the line."""
        step = division.step
        if step <= self.after:
            self._kept.clear()  # the line went back below what is kept here: nothing above counts any more
            return
        del self._kept[step - self.after - 1 :]
        if step == self.last_step + 1:
            self._kept.append(division)
        elif self._kept:
            raise ManifestError(f"the division of step {step} follows that of step {self.last_step}")
        # else: the chain begins above `after` (trimmed), so nothing can be replayed exactly

    def between(self, after: int, until: int) -> list[Division]:
        """The divisions of steps after+1 .. until, as many as are known."""
        return [division for division in self._kept if after < division.step <= until]

    def forget(self, until: int) -> None:
        """Steps up to `until` are below every retained cut."""
        until = min(until, self.last_step)
        self._kept = [division for division in self._kept if division.step > until]
        self.after = max(self.after, until)
