"""Input divisions: which input ranges each step of a worker took, as recorded, and the fold of the records.
Pure.

One record DIVISION in the `steps` chain: ints = [step, time_ms], strings = [JSON of its sources]; with local
recovery three more ints, those of its `Mark`. After a reset, the steps that all workers have recorded are
replayed exactly; later ones are recorded again under the same numbers. So a record for step n voids all
earlier ones for steps >= n, and one for step 0, when the layout changes, voids all. Before the first
checkpoint each record states the number of workers; those of another number are void.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from checkpoint.errors import ManifestError
from dos_protocol.errors import MALFORMED_JSON

Sources = dict[str, dict[str, tuple[int, ...]]]
"""source -> split -> (from, to, ...): a half-open range of positions in the source's own unit.

The numbers after `to` belong to the source, such as a digest of the content, which detects a replay of other
bytes. Splits without input may be left out.
"""


class Mark(NamedTuple):
    """The checkpoint that the STEP_ENDs of a step request, in this incarnation only, not in replays."""

    checkpoint: int = 0
    """0 for none."""
    final: bool = False
    incarnation: int = 0


NO_MARK: Final = Mark()


class Division(NamedTuple):
    """The input of one step of one worker."""

    step: int
    time_ms: int
    """The recorded time of the step, which operators may use as 'now'."""
    sources: Sources
    workers: int = 0
    """The number of workers; 0 after the first checkpoint."""
    mark: Mark = NO_MARK


_decoder: "msgspec.json.Decoder[Sources]" = msgspec.json.Decoder(Sources)
_INTS: Final = (2, 5)


class DivisionRecord(NamedTuple):
    """The arguments of the journal record of a division, whose op is DIVISION."""

    ints: tuple[int, ...]
    strings: tuple[bytes, ...]


def encode_division(division: Division) -> DivisionRecord:
    """Return the record of a division."""
    text = msgspec.json.encode(division.sources)
    workers = (str(division.workers).encode(),) if division.workers else ()
    mark = tuple(map(int, division.mark)) if division.mark.checkpoint else ()
    return DivisionRecord((division.step, division.time_ms, *mark), (text, *workers))


def decode_division(ints: Iterable[int], strings: Sequence[bytes]) -> Division:
    """Return the division in a record. Raises ManifestError for an invalid one."""
    numbers = tuple(ints)
    if len(numbers) not in _INTS:
        raise ManifestError(
            f"expected the step and the time of a division, possibly a checkpoint, got {list(numbers)}"
        )
    try:
        sources = _decoder.decode(strings[0])
        workers = int(strings[1]) if len(strings) > 1 else 0
    except MALFORMED_JSON as error:
        raise ManifestError(f"the input division of step {numbers[0]} does not decode: {error}") from error
    for source, splits in sources.items():
        for split, part in splits.items():
            if len(part) < 2 or not 0 <= part[0] <= part[1]:
                raise ManifestError(f"step {numbers[0]}: split {split!r} of {source!r} is {list(part)}")
    mark = Mark(numbers[2], bool(numbers[3]), numbers[4]) if numbers[2:] else NO_MARK
    return Division(numbers[0], numbers[1], sources, workers, mark)


class DivisionFold:
    """The divisions that count, of the steps above `after`, without a gap. workers: of a region without a
    checkpoint, otherwise 0. others: a record of another number was void.
    """

    def __init__(self, after: int = 0, workers: int = 0) -> None:
        self.after = after
        self.others = False
        self._workers = workers
        self._kept: list[Division] = []

    @property
    def last_step(self) -> int:
        """The highest step known, `after` if there is none."""
        return self._kept[-1].step if self._kept else self.after

    def add(self, division: Division) -> None:
        """Take the next record of the chain. Raises ManifestError if it leaves a gap."""
        step = division.step
        if self._workers and division.workers != self._workers:
            self.others = True
            self._kept.clear()
            return
        if step <= self.after:
            self._kept.clear()  # recorded again at or below `after`: the records above no longer count
            return
        del self._kept[step - self.after - 1 :]
        if step == self.last_step + 1:
            self._kept.append(division)
        elif self._kept:
            raise ManifestError(f"the input division of step {step} follows that of step {self.last_step}")
        # otherwise the chain was trimmed and begins above `after`: no step can be replayed exactly

    def between(self, after: int, until: int) -> list[Division]:
        """Return the known divisions of steps after+1 to `until`."""
        return [division for division in self._kept if after < division.step <= until]

    def forget(self, until: int) -> None:
        """Drop the steps up to `until`: no retained checkpoint needs them."""
        until = min(until, self.last_step)
        self._kept = [division for division in self._kept if division.step > until]
        self.after = max(self.after, until)
