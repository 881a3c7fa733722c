"""The result of a run, as Markdown for people and as JSON. Pure.

The verdict is first. A person who was called at night reads the first line, and the list below it if the run
was not good.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from dos_chaos.core.checker import VIOLATIONS, Verdict
from dos_chaos.core.measures import FaultWindow, Measures, Phase, gap_of, timeline

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
        """Return what the run showed: a violation outweighs a missing recovery."""
        if self.violations or not self.verdict.good:
            return VIOLATION
        return NOT_RECOVERED if self.problems else GOOD


def as_json(result: ChaosResult) -> dict[str, Any]:
    """Return the result for programs."""
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
    """Return the report."""
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
