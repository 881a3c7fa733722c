"""The rows of `./run bench dadstorm`: messages, times, bytes and kills, beside the figures of the paper."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rows import Effort, Row, run_json, say

from dataflow.core.regions import DELIVERIES

Figures = dict[str, Any]
REPLICAS: Final = (2, 4)
OPERATORS: Final = 2
TUPLES: Final = 1_000
KILLS: Final = 8
MEASURED_S_MAX: Final = 600.0
RECORD_BYTES: Final = 16
"""The size of a tuple record in the paper's section 6.1."""
ALGORITHMS: Final = {"0": "tuple by tuple", "100": "by step"}
PAPER_S: Final = {"0/100": "0.6 and 3.3 s", "0/1000": "1.4 and 4.2 s"}
"""Table 2 of the paper, with 2 and with 4 replicas."""
PROMISES: Final = dict(zip(DELIVERIES, ("none twice", "none missing", "each once"), strict=True))
KINDS: Final = {"RECORD": "R - 1", "PURGE": "R - 1", "DELETE": "1", "CONFIRM of TUPLE": "1"}
"""The messages of the steps 2, 5 and 8 of section 5.3, and how many of each a replica sends for a tuple."""


@dataclass(frozen=True, slots=True)
class DadstormRow(Row):
    """A row of one of the four tables. `table`: messages, seconds, bytes or killed. `drawn`: figures for the
    picture by the name of their line or bar.
    """

    table: str
    drawn: Mapping[str, float] = field(default_factory=dict)


def records_bytes(replicas: int) -> int:
    """Return the bytes for a tuple by the formula of section 6.1: (R + 1) records at each operator."""
    return (replicas + 1) * RECORD_BYTES * OPERATORS


def mirror_bytes(replicas: int, tuple_bytes: int) -> int:
    """Return the bytes for a tuple if the other replicas of each operator receive all of it."""
    return (replicas - 1) * tuple_bytes * OPERATORS


def measure_dadstorm(effort: Effort) -> list[Row]:
    """Measure in processes of their own. Raises RuntimeError if a semantics does not hold, or without figures
    in time.
    """
    tuples, kills = (max(2, int(one * effort.checkpoint_scale)) for one in (TUPLES, KILLS))
    numbers = map(str, (tuples, effort.recoveries, kills))
    figures = run_json("benchmarks/dadstorm_run.py", *numbers, timeout_s=MEASURED_S_MAX)
    say(f"dadstorm: {figures}")
    return rows_of(figures)


def rows_of(figures: Figures) -> list[Row]:
    """Return the rows of these figures."""
    return [
        *message_rows(figures["messages"]),
        *time_rows(figures["seconds"]),
        *byte_rows(figures["bytes"]),
        *kill_rows(figures["killed"]),
    ]


def message_rows(messages: Mapping[str, Mapping[str, int]]) -> list[Row]:
    """Return a row for each kind of message, their sums, those of the paper, and those by step."""

    def row(what: str, kinds: Sequence[str], each: str, per_step: str = "0") -> Row:
        counts = [messages[f"{replicas}/{per_step}"] for replicas in REPLICAS]
        sums = [f"{sum(count.get(kind, 0) for kind in kinds):,}" for count in counts]
        return DadstormRow(what, *sums, each, "messages")

    rest = [f"CONFIRM of {kind}" for kind in ("RECORD", "PURGE", "DELETE")]
    everything = [*KINDS, *rest, "TUPLE"]
    frames = ["DATA", "STEP_END", "DURABLE"]
    return [
        *(row(kind, [kind], each) for kind, each in KINDS.items()),
        row("**these four, steps 2, 5 and 8 of section 5.3**", list(KINDS), "2 R"),
        row("CONFIRM of the first three", rest, "2 R - 1"),
        row("TUPLE", ["TUPLE"], "1"),
        row("**all messages, tuple by tuple**", everything, "4 R"),
        DadstormRow("table 1 of the paper", "400", "2,400", "R (R - 1)", "messages"),
        DadstormRow("formula of section 6.1", "600", "1,000", "R + 1", "messages"),
        row("DATA, 1 step of 100 tuples", ["DATA"], "", "100"),
        row("STEP_END", ["STEP_END"], "", "100"),
        row("DURABLE", ["DURABLE"], "", "100"),
        row("**all frames, 1 step of 100 tuples**", frames, "", "100"),
        row("**all frames, 10 steps of 10 tuples**", frames, "", "10"),
    ]


def time_rows(seconds: Mapping[str, Sequence[float]]) -> list[Row]:
    """Return a row for each algorithm and size of a tuple."""
    rows: list[Row] = []
    for per_step, algorithm in ALGORITHMS.items():
        for size in (100, 1_000):
            cells, added = [], {}
            for replicas in REPLICAS:
                times = [seconds[f"{replicas}/{per_step}/{size}/{delivery}"] for delivery in DELIVERIES]
                difference = statistics.median(last - first for first, _, last in zip(*times, strict=True))
                added[f"R = {replicas}, {size:,} B"] = difference
                medians = ", ".join(f"{statistics.median(one):.3f}" for one in times)
                cells.append(f"{medians}: **{difference:+.3f} s**")
            paper = PAPER_S.get(f"{per_step}/{size}", "")
            rows.append(DadstormRow(f"{algorithm}, {size:,} B", cells[0], cells[1], paper, "seconds", added))
    return rows


def byte_rows(sent: Mapping[str, Sequence[tuple[int, float]]]) -> list[Row]:
    """Return a row for each size of a tuple, with the additional bytes for each tuple."""
    rows: list[Row] = []
    for at, (size, _) in enumerate(sent["2/records"]):
        drawn = {name: line[at][1] for name, line in sent.items()}
        cells = {
            name: " and ".join(f"{drawn[f'{replicas}/{name}']:,.0f}" for replicas in REPLICAS)
            for name in ("records", "confirmed", "mirror", "step")
        }
        mirror = " and ".join(f"{mirror_bytes(replicas, size):,}" for replicas in REPLICAS)
        rows.append(
            DadstormRow(
                f"{size:,}",
                f"{cells['records']}; with all CONFIRM {cells['confirmed']}",
                f"{cells['mirror']} (formula: {mirror})",
                cells["step"],
                "bytes",
                drawn,
            )
        )
    return rows


def kill_rows(killed: Mapping[str, Sequence[int]]) -> list[Row]:
    """Return a row for each semantics."""
    rows: list[Row] = []
    for delivery, promise in PROMISES.items():
        cells = []
        for replicas in REPLICAS:
            tuples, missing, again = killed[f"{replicas}/{delivery}"]
            cells.append(f"{missing:,} missing, {again:,} twice, of {tuples:,}")
        rows.append(DadstormRow(delivery, *cells, promise, "killed"))
    return rows
