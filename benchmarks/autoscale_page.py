"""The policy of `autoscale` over recorded loads (`./run bench autoscale`), as a section of
docs/benchmarks.md.

Nothing is measured: the policy runs with a model of a region, the same as in the tests
(`tests/support/autoscale_plant.py`). The tests assert what this page shows.
"""

from collections.abc import Sequence
from typing import Final

from rows import DOCS, Effort, Row, Section, table_lines

from checkpoint.core.coordination.autoscaling import AutoscalePolicy
from checkpoint.core.region import AutoScale
from journal.pictures import HEAD_PX, INK, drawn, points
from tests.support.autoscale_plant import MB, Plant, Run, recorded, simulate

PLACE = Section("autoscale")
SECTION = """\
{begin}
## Autoscale over recorded loads

`AutoScale({minimum}, {maximum})` with its defaults, over three loads, simulated: one worker reads
{one:.0f} MB/s, N workers N to the power of {speed_up:g} times as much. A worker takes {launch} s to launch,
and a change pauses the region for {pause} s. Each second has noise of {noise:.0%}. *Input waits*: more than
arrives in 5 s. *Enough*: the fewest workers whose load is at most 85%, if their number could follow the load
without delay.

| load | changes, and of these in another direction | input waits | workers on average, and enough |
|---|---|---|---|
{rows}

![load, input that waits and workers](benchmarks/autoscale.svg)
{end}"""
SPEC: Final = AutoScale(1, 10)
PLANT: Final = Plant()
LOADS: Final = {"step": "a step", "spike": "a spike of two minutes", "day": "a day, six times as fast"}
WIDTH, HEIGHT = 960, 520
LOAD_COLOUR, CAPACITY_COLOUR, BACKLOG_COLOUR, WORKERS_COLOUR = "#1b6ca8", "#588157", "#c8553d", "#7b2d8b"


def runs() -> dict[str, Run]:
    """Return what the policy does with each load."""
    return {name: simulate(AutoscalePolicy(SPEC), recorded(name), plant=PLANT) for name in LOADS}


def enough(rate: float) -> int:
    """Return the lowest number of workers whose load is at most 85%."""
    return next(count for count in range(1, 100) if rate <= 0.85 * PLANT.capacity(count))


def measure_autoscale(_effort: Effort) -> list[Row]:
    """Return a row for each load."""
    rows = []
    for name, run in runs().items():
        rates = [rate for _, rate in recorded(name)]
        waits_s = sum(one.backlog > 5 * one.arrived for one in run.seconds)
        average = run.worker_seconds / len(run.seconds)
        least = sum(map(enough, rates)) / len(rates)
        rows.append(
            Row(
                LOADS[name],
                f"{len(run.changes)}, {run.turns}",
                f"{waits_s} of {len(run.seconds):,} s",
                f"{average:.1f}, {least:.1f}",
            )
        )
    return rows


def draw() -> None:
    """Draw each load, what waits, and the workers over time."""
    path = DOCS / "benchmarks" / "autoscale.svg"
    with drawn(path, "autoscale over recorded loads", WIDTH, HEIGHT) as picture:
        for column, (name, run) in enumerate(runs().items()):
            times = [one.at / 60 for one in run.seconds]
            smooth = max(1, len(times) // 200)
            for row, (label, lines) in enumerate(curves(run).items()):
                axes = picture.figure.add_axes((0.07 + 0.315 * column, 0.68 - 0.29 * row, 0.27, 0.23))
                axes.grid(visible=True)
                for text, colour, values in lines:
                    (line,) = axes.plot(times[::smooth], values[::smooth], color=colour, label=text, lw=1.2)
                    line.set_drawstyle("steps-post" if row == 2 else "default")
                    picture.describe(line, "line", text)
                axes.set_ylim(0, (18, 400, 11)[row])  # the same in each column
                if row == 0:
                    axes.set_title(LOADS[name], loc="left", size=points(HEAD_PX), color=INK)
                if column == 0:
                    axes.set_ylabel(label)
                if row == 2:
                    axes.set_yticks(range(0, 11, 2))
                    axes.set_xlabel("minutes")
                if column == 0 and row == 0:
                    axes.legend(loc="lower right", frameon=False)


def curves(run: Run) -> dict[str, list[tuple[str, str, list[float]]]]:
    """Return the lines of each row of the picture: their name, color and values."""
    arrives = [one.arrived / MB for one in run.seconds]
    capacity = [PLANT.capacity(one.workers) / MB for one in run.seconds]
    return {
        "MB/s": [("arrives", LOAD_COLOUR, arrives), ("workers can read", CAPACITY_COLOUR, capacity)],
        "MB that wait": [("waits", BACKLOG_COLOUR, [one.backlog / MB for one in run.seconds])],
        "workers": [("workers", WORKERS_COLOUR, [float(one.workers) for one in run.seconds])],
    }


def written(rows: list[Row], _effort: Effort) -> str:
    """Draw the picture, and return the text of the section."""
    draw()
    return section_of(rows)


def section_of(rows: Sequence[Row]) -> str:
    """Return the text of the section."""
    return PLACE.filled(
        SECTION,
        1,
        rows=table_lines(rows),
        minimum=SPEC.minimum,
        maximum=SPEC.maximum,
        one=PLANT.one_worker / MB,
        speed_up=PLANT.speed_up,
        launch=PLANT.launch_s,
        pause=PLANT.pause_s,
        noise=PLANT.noise,
    )
