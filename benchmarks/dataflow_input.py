"""The input of `./run bench dataflow`: text files of lines `key,number`, the same for every system.

It uses only the standard library and numpy. Keys are drawn uniformly, as `k0000123`. The number is the
index of the line over all files, from 0. It also serves as an event time in milliseconds, which increases
within each file.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from dataflow_program import FILE_ROWS

_KEY_DIGITS = 7
_NUMBER_DIGITS = 9
_SEED = 20_26


@dataclass(frozen=True, slots=True)
class Input:
    """Files `0000.csv`, `0001.csv`, ... of FILE_ROWS lines each."""

    folder: Path
    files: int
    keys: int

    @property
    def rows(self) -> int:
        return self.files * FILE_ROWS


def make_input(folder: Path, rows: int, keys: int) -> Input:
    """Write as many whole files as `rows` needs into a new folder."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(_SEED)
    files = -(-rows // FILE_ROWS)
    for number in range(files):
        drawn = rng.integers(0, keys, FILE_ROWS)
        first = number * FILE_ROWS
        (folder / f"{number:04d}.csv").write_bytes(_lines(drawn, np.arange(first, first + FILE_ROWS)))
    return Input(folder, files, keys)


def _lines(keys: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64]) -> bytes:
    """Return the lines as bytes. All lines have one length, so they are a table of bytes."""
    width = 1 + _KEY_DIGITS + 1 + _NUMBER_DIGITS + 1
    table = np.empty((len(keys), width), np.uint8)
    table[:, 0] = ord("k")
    table[:, 1 + _KEY_DIGITS] = ord(",")
    table[:, -1] = ord("\n")
    for values, begin, digits in ((keys, 1, _KEY_DIGITS), (numbers, 2 + _KEY_DIGITS, _NUMBER_DIGITS)):
        left = values.copy()
        for place in range(begin + digits - 1, begin - 1, -1):
            table[:, place] = left % 10 + ord("0")
            left //= 10
    return table.tobytes()
