"""The figures of a run (acknowledgements per second, gaps without any, latencies) and its report. Pure.

Memory is bounded. All times are seconds since the start of the run. The verdict is first: a person who was
called at night reads the first line, and the list below it if the run was not good.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from math import log2
from typing import Any, Final

from dos_chaos.core.checker import VIOLATIONS, Verdict

GAP_S_MIN: Final = 0.1
"""Shorter gaps are not kept: with paced writers they occur without faults."""
_STEPS: Final = 8
"""Buckets of latencies for each doubling: a percentile is at most 9 % too high."""


class LatencyHistogram:
    """A histogram of latencies from 10 microseconds on."""

    def __init__(self) -> None:
        self.count = 0
        self._buckets: dict[int, int] = {}

    def add(self, latency_s: float) -> None:
        index = max(0, int(_STEPS * log2(max(latency_s, 1e-5) / 1e-5)))
        self._buckets[index] = self._buckets.get(index, 0) + 1
        self.count += 1

    def percentile_ms(self, fraction: float) -> float | None:
        """Return the latency in ms that this fraction of the samples does not exceed, None without any."""
        wanted, seen = fraction * self.count, 0
        for index, count in sorted(self._buckets.items()):
            seen += count
            if seen >= wanted:
                return float(1e-2 * 2.0 ** ((index + 1) / _STEPS))
        return None


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which one chain had nothing acknowledged."""

    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class FaultWindow:
    """A fault that was injected. `servers`: names. `note`: what was observed, such as refused appends."""

    kind: str
    servers: tuple[str, ...]
    start_s: float
    end_s: float
    quorum_left: bool
    note: str = ""


@dataclass(slots=True)
class Phase:
    """The figures of one part of the run: without faults, or during them."""

    seconds: float = 0.0
    acknowledged: int = 0
    latencies: LatencyHistogram = field(default_factory=LatencyHistogram)

    @property
    def rate(self) -> float:
        return self.acknowledged / self.seconds if self.seconds else 0.0


class Measures:
    """The figures, fed by the writers and the faults while the run goes on."""

    def __init__(self) -> None:
        self.calm = Phase()
        self.faulty = Phase()
        self.per_second: list[int] = []
        self.gaps: list[Gap] = []
        self.acknowledged = 0
        self.by_directory: dict[str, int] = {}
        self._last: dict[str, float] = {}
        self._fault_from: float | None = None
        self._fault_until = -1.0
        self._changed = 0.0

    def begin(self, directory: str, now: float) -> None:
        """A writer of a directory begins: gaps are measured from here."""
        self._last[directory] = now

    def fault_begins(self, now: float) -> None:
        self.calm.seconds += now - self._changed
        self._fault_from, self._changed = now, now

    def fault_ends(self, now: float) -> None:
        self.faulty.seconds += now - self._changed
        self._fault_until, self._changed = now, now

    def add(self, directory: str, now: float, sent_s: Iterable[float]) -> None:
        """Records of a directory were acknowledged that were appended at these times."""
        during = self._during_fault(now)
        count = 0
        for sent in sent_s:
            count += 1
            hit = during or (self._fault_from is not None and sent <= self._fault_until)
            (self.faulty if hit else self.calm).latencies.add(now - sent)
        (self.faulty if during else self.calm).acknowledged += count
        second = int(now)
        self.per_second += [0] * (second + 1 - len(self.per_second))
        self.per_second[second] += count
        self.acknowledged += count
        self.by_directory[directory] = self.by_directory.get(directory, 0) + count
        self._close_gap(directory, now)
        self._last[directory] = now

    def finish(self, now: float) -> None:
        """The writers end now: the time since their last acknowledgement counts as a gap."""
        for directory in self._last:
            self._close_gap(directory, now)
        if self._during_fault(now):
            self.fault_ends(now)
        else:
            self.calm.seconds += now - self._changed
            self._changed = now

    def silent_s(self, now: float) -> float:
        return max((now - last for last in self._last.values()), default=0.0)

    def longest_gap(self, start_s: float = 0.0, end_s: float = float("inf")) -> Gap | None:
        """Return the longest gap between these times. Of a gap partly outside, the part inside counts."""
        parts = (Gap(max(gap.start_s, start_s), min(gap.end_s, end_s)) for gap in self.gaps)
        found = [gap for gap in parts if gap.seconds >= GAP_S_MIN]
        return max(found, key=lambda gap: gap.seconds, default=None)

    def _during_fault(self, now: float) -> bool:
        return self._fault_from is not None and self._fault_until < self._fault_from <= now

    def _close_gap(self, directory: str, now: float) -> None:
        if now - self._last.get(directory, now) >= GAP_S_MIN:
            self.gaps.append(Gap(self._last[directory], now))


def gap_of(measures: Measures, faults: Sequence[FaultWindow], index: int) -> Gap | None:
    until = faults[index + 1].start_s if index + 1 < len(faults) else float("inf")
    return measures.longest_gap(faults[index].start_s, until)


_BARS: Final = " ▁▂▃▄▅▆▇█"


def timeline(
    per_second: Sequence[int], faults: Sequence[FaultWindow], seconds: float, width: int = 60
) -> str:
    """Return a picture of the run: acknowledged records over time, and a line for each kind of fault."""
    step_s = max(seconds / width, 1.0)
    columns = max(1, min(width, int(seconds / step_s + 0.999)))
    sums = [0.0] * columns
    for second, count in enumerate(per_second):
        sums[min(columns - 1, int(second / step_s))] += count
    peak = max(sums) or 1.0
    bars = "".join(_BARS[0 if not one else max(1, round(one / peak * (len(_BARS) - 1)))] for one in sums)
    lines = [f"{'acknowledged':<12} |{bars}|"]
    for kind in dict.fromkeys(one.kind for one in faults):
        row = [" "] * columns
        for one in faults:
            if one.kind == kind:
                first, last = int(one.start_s / step_s), int(one.end_s / step_s)
                for column in range(min(first, columns - 1), min(last, columns - 1) + 1):
                    row[column] = "x"
        lines.append(f"{kind:<12} |{''.join(row)}|")
    end = f"{seconds:.0f} s"
    return "\n".join([*lines, f"{'':<12}  0 s{end:>{max(1, columns - 3)}}"])


GOOD: Final = "good"
VIOLATION: Final = "violation"
NOT_RECOVERED: Final = "not recovered"

VERDICTS: Final = {
    GOOD: "Every acknowledged record was found, exactly as written, once and in order. All copies are equal.",
    VIOLATION: "The store broke a promise. The list below has the first violations.",
    NOT_RECOVERED: "The store did not recover in time, so the records could not be compared. Nothing is"
    " known to be lost.",
}
"""Outcome -> what it means."""


@dataclass(slots=True)
class ChaosResult:
    """One run. `violations`: errors that a store must not have. `problems`: what did not recover, and why.
    `environment`: name and value, as shown. `kept`: the directory of the evidence, empty if it was deleted.
    """

    again: str
    seconds: float = 0.0
    verdict: Verdict = field(default_factory=Verdict)
    measures: Measures = field(default_factory=Measures)
    faults: list[FaultWindow] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    environment: list[tuple[str, str]] = field(default_factory=list)
    healed_s: float = 0.0
    budget_bytes: int = 0
    used_bytes_max: int = 0
    kept: str = ""

    @property
    def outcome(self) -> str:
        """What the run showed: a violation outweighs a missing recovery."""
        if self.violations or not self.verdict.good:
            return VIOLATION
        return NOT_RECOVERED if self.problems else GOOD


def as_json(result: ChaosResult) -> dict[str, Any]:
    verdict = asdict(result.verdict)
    examples = verdict.pop("examples")
    return {
        "outcome": result.outcome,
        "seconds": round(result.seconds, 3),
        "checked": verdict,
        "examples": [*result.violations, *examples],
        "problems": result.problems,
        "notes": result.notes,
        "faults": [
            {**asdict(one), "gap_s": _gap_s(result, index)} for index, one in enumerate(result.faults)
        ],
        "without_faults": _phase_json(result.measures.calm),
        "during_faults": _phase_json(result.measures.faulty),
        "per_second": result.measures.per_second,
        "longest_gap_s": _longest_s(result.measures),
        "healed_s": round(result.healed_s, 3),
        "budget_bytes": result.budget_bytes,
        "used_bytes_max": result.used_bytes_max,
        "environment": dict(result.environment),
        "kept": result.kept,
        "again": result.again,
    }


def _phase_json(phase: Phase) -> dict[str, Any]:
    latency = {f"p{round(100 * one)}_ms": phase.latencies.percentile_ms(one) for one in (0.5, 0.99)}
    return {
        "seconds": round(phase.seconds, 3),
        "acknowledged": phase.acknowledged,
        "per_second": round(phase.rate, 1),
        **latency,
        "max_ms": phase.latencies.percentile_ms(1.0),
    }


def _longest_s(measures: Measures) -> float:
    longest = measures.longest_gap()
    return 0.0 if longest is None else round(longest.seconds, 3)


def _gap_s(result: ChaosResult, index: int) -> float | None:
    gap = gap_of(result.measures, result.faults, index)
    return None if gap is None else round(gap.seconds, 3)


def as_markdown(result: ChaosResult) -> str:
    parts = [
        f"# dos chaos: {result.outcome.upper()}",
        VERDICTS[result.outcome],
        *_wrong(result),
        _checked(result.verdict),
        "## Faults",
        _faults(result),
        "```text\n" + timeline(result.measures.per_second, result.faults, result.seconds) + "\n```",
        "## Figures",
        _figures(result),
        "## Environment",
        _table(("what", "value"), [(name, value) for name, value in result.environment]),
        f"Run again:\n\n    {result.again}",
    ]
    return "\n\n".join(parts) + "\n"


def _wrong(result: ChaosResult) -> list[str]:
    lines = [*result.violations, *result.verdict.examples, *result.problems]
    parts = ["\n".join(f"- {' '.join(line.split())}" for line in lines)] if lines else []
    if result.kept:
        parts.append(f"Evidence (data, logs, acknowledgements): `{result.kept}`")
    return parts + [f"Note: {note}" for note in result.notes]


def _checked(verdict: Verdict) -> str:
    counts = [f"{getattr(verdict, name):,} {name}" for name in VIOLATIONS]
    return (
        f"Checked: {verdict.acknowledged:,} acknowledged records against {verdict.found:,} found;"
        f" {verdict.copies:,} copies of segments against the chain;"
        f" {verdict.committed_reads:,} committed reads.\n\nViolations: {', '.join(counts)}."
    )


def _faults(result: ChaosResult) -> str:
    if not result.faults:
        return "No fault occurred."
    rows = []
    for index, one in enumerate(result.faults):
        gap = gap_of(result.measures, result.faults, index)
        shown, after = "-", "-"
        if gap is not None:
            shown = f"{gap.seconds:.1f} s"
            after = f"{max(0.0, gap.end_s - max(one.end_s, gap.start_s)):.1f} s"
        quorum = "yes" if one.quorum_left else "no"
        rows.append(
            (
                f"{one.start_s:.1f} s",
                one.kind,
                " ".join(one.servers),
                f"{one.end_s - one.start_s:.1f} s",
                quorum,
                shown,
                after,
                one.note,
            )
        )
    columns = (
        "at",
        "fault",
        "servers",
        "lasts",
        "quorum left",
        "longest gap",
        "of it after",
        "observed",
    )
    return (
        _table(columns, rows)
        + "\n\nA gap is a time in which one of the chains had no record acknowledged, *of it after* its part"
        " after the end of the fault. Gaps below 0.1 s are not shown. Without a quorum, a store must wait: it"
        " acknowledges nothing until enough servers are back."
    )


def _figures(result: ChaosResult) -> str:
    rows = []
    for name, phase in (("without faults", result.measures.calm), ("during faults", result.measures.faulty)):
        latencies = [phase.latencies.percentile_ms(one) for one in (0.5, 0.99, 1.0)]
        shown = ["-" if one is None else f"{one:,.1f} ms" for one in latencies]
        rows.append(
            (name, f"{phase.seconds:.0f} s", f"{phase.acknowledged:,}", f"{phase.rate:,.0f}/s", *shown)
        )
    columns = ("", "time", "acknowledged", "rate", "latency p50", "p99", "max")
    used, budget = result.used_bytes_max / (1 << 20), result.budget_bytes / (1 << 20)
    return (
        _table(columns, rows)
        + f"\n\nLongest gap: {_longest_s(result.measures):.1f} s. First records after the last fault:"
        f" {result.healed_s:.1f} s. Disk space: at most {used:,.0f} of {budget:,.0f} MiB. The rate is set"
        " by this budget, not by the speed of the store."
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |"
        for line in lines
    )
