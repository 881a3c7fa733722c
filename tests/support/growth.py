"""Decides whether anything grows: samples of many figures over a run, and the rule that compares its parts.

The rule. The samples of each figure are divided into four quarters. The first one is warm-up. A figure grows
if the *median* of the last quarter is above the *maximum* of the second quarter, times 1.05, plus a slack of
2.

- A figure that only fluctuates never does this: its median is not above its maximum, however large the
  fluctuations are. The condition is that a quarter contains at least one whole period of each saw tooth.
- A leak of g per sample does it as soon as g times the samples of a quarter and a half exceeds the
  fluctuation
  and the slack. So every steady leak is found if the run is long enough.
- The 5 % are for numbers that need more digits, and so more bytes, as they count up.

Figures that are not stationary by nature (such as the memory of a process, in which the allocator keeps free
pages) are judged with a higher tolerance: `loose` names the factor by the beginning of the name of the
figure.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

SAMPLES_MIN: Final = 16
"""With fewer samples a quarter is too short to be compared."""
FACTOR: Final = 1.05
SLACK: Final = 2.0


class Compared(NamedTuple):
    """One figure: the maximum of the second quarter, the median of the last one, and the limit for it."""

    name: str
    second: float
    last: float
    limit: float

    @property
    def grows(self) -> bool:
        return self.last > self.limit


class Samples:
    """The samples of one run. A figure that a sample does not contain was 0 then.

    limit: (factor, slack) of the limit. loose: the same by the beginning of a name, for those that differ.
    """

    def __init__(
        self,
        loose: Mapping[str, tuple[float, float]] | None = None,
        *,
        limit: tuple[float, float] = (FACTOR, SLACK),
    ) -> None:
        self._limit = limit
        self.times: list[float] = []
        self._values: dict[str, list[float]] = {}
        self._loose = dict(loose or {})

    def __len__(self) -> int:
        return len(self.times)

    def add(self, time: float, figures: Mapping[str, float]) -> None:
        """Add a sample. time: seconds, or a count of checkpoints; it only labels the sample."""
        before = len(self.times)
        self.times.append(time)
        for name in figures.keys() - self._values.keys():
            self._values[name] = [0.0] * before
        for name, values in self._values.items():
            values.append(float(figures.get(name, 0.0)))

    def of(self, name: str) -> list[float]:
        """Return the values of one figure."""
        return self._values[name]

    def names(self) -> list[str]:
        return sorted(self._values)

    def compared(self) -> list[Compared]:
        """Return each figure with its quarters, by name. Raises ValueError if there are too few samples."""
        count = len(self.times)
        if count < SAMPLES_MIN:
            raise ValueError(f"{count} samples are too few to compare, at least {SAMPLES_MIN} are needed")
        second = slice(count // 4, count // 2)
        last = slice(3 * count // 4, count)
        return [
            self._compare(name, values[second], values[last]) for name, values in sorted(self._values.items())
        ]

    def _compare(self, name: str, second: Sequence[float], last: Sequence[float]) -> Compared:
        factor, slack = next(
            (limit for begin, limit in self._loose.items() if name.startswith(begin)), self._limit
        )
        return Compared(name, max(second), median(last), factor * max(second) + slack)

    def grown(self) -> list[Compared]:
        """Return the figures that grow. Raises ValueError if there are too few samples."""
        return [one for one in self.compared() if one.grows]

    def as_json(self) -> dict[str, Any]:
        """Return everything, for a file."""
        compared = self.compared() if len(self) >= SAMPLES_MIN else []
        return {
            "times": self.times,
            "figures": self._values,
            "compared": {
                one.name: {"second": one.second, "last": one.last, "limit": one.limit} for one in compared
            },
            "grown": [one.name for one in compared if one.grows],
        }

    def table(self, names: Iterable[str] | None = None) -> str:
        """Return a table of the figures, as Markdown. names: only these."""
        chosen = None if names is None else set(names)
        lines = ["| figure | second quarter, maximum | last quarter, median | |", "|---|---|---|---|"]
        for one in self.compared():
            if chosen is None or one.name in chosen:
                verdict = "grows" if one.grows else ""
                lines.append(f"| {one.name} | {one.second:,.6g} | {one.last:,.6g} | {verdict} |")
        return "\n".join(lines)

    def write_json(self, path: Path) -> None:
        path.write_text(json.dumps(self.as_json()), encoding="utf-8")

    def plot(self, path: Path, unit: str, groups: Mapping[str, Sequence[str]]) -> None:
        """Write a PNG with one panel for each group of figures. unit: of the times. Needs matplotlib."""
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot as plt

        shown = {title: [name for name in names if name in self._values] for title, names in groups.items()}
        shown = {title: names for title, names in shown.items() if names}
        figure, axes = plt.subplots(len(shown), 1, figsize=(9, 2.6 * len(shown)), sharex=True, squeeze=False)
        for (title, names), axis in zip(shown.items(), axes[:, 0], strict=True):
            for name in names:
                axis.plot(self.times, self._values[name], linewidth=0.8, label=name)
            axis.set_title(title, fontsize=9, loc="left")
            axis.set_ylim(bottom=0)
            axis.legend(fontsize=6, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        axes[-1, 0].set_xlabel(unit)
        figure.savefig(path, dpi=110, bbox_inches="tight")
        plt.close(figure)
