"""Rows that operators dropped: counters of several workers merged, and stated in words. Pure.

Operators decide what to drop, and count it. The suffix of a counter's name has a meaning:

| suffix | meaning |
|---|---|
| `RULE_rows_dropped` | rows dropped by RULE since the region began; part of the operator's state |
| `_max` | a maximum: merged by `max`, not by addition |
"""

from collections.abc import Iterable, Mapping
from typing import Final

DROPPED_SUFFIX: Final = "_rows_dropped"
MAX_SUFFIX: Final = "_max"
LATE_BY: Final = "late_by_us_max"
BUSY: Final = "busy_us"
"""The time of an operator's calls."""

REMEDIES: Final = {
    "ahead": "their event time is too far ahead of the clock; to keep them, set a larger max_ahead, or"
    " on_ahead='side' and read side output 'ahead'",
    "late": "give event_time a larger lateness, or read the side output 'late' of the operator",
    "null": "their key or event time is null; to keep them, set on_null='side' and read side output 'null'",
}
"""Rule -> how to avoid that rows are dropped by it."""
_US: Final = 1e6


def merge_counters(into: dict[str, int], other: Mapping[str, int]) -> None:
    """Add the counters of another worker or output of the same operator to `into`."""
    for name, value in other.items():
        before = into.get(name, 0)
        into[name] = max(before, value) if name.endswith(MAX_SUFFIX) else before + value


def dropped_rows(workers: Iterable[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    """Return rule ("late", "null", "ahead") -> operator -> rows dropped since the region began.

    `workers` has the operators' counters of each worker.
    """
    found: dict[str, dict[str, int]] = {}
    for operators in workers:
        for operator, counters in operators.items():
            for name, value in counters.items():
                if value and name.endswith(DROPPED_SUFFIX):
                    by_operator = found.setdefault(name.removesuffix(DROPPED_SUFFIX), {})
                    by_operator[operator] = by_operator.get(operator, 0) + value
    return found


def dropped_text(dropped: Mapping[str, Mapping[str, int]]) -> str:
    """Return in words how many rows which operators dropped, and the remedy; empty if none was dropped."""
    texts = []
    for rule, operators in sorted(dropped.items()):
        listed = ", ".join(f"{name!r} {count:,}" for name, count in sorted(operators.items()))
        rows = sum(operators.values())
        what = f"{rows:,} {rule} row{'s were' if rows != 1 else ' was'} dropped by {listed}"
        texts.append(f"{what}: {REMEDIES[rule]}" if rule in REMEDIES else what)
    return "; ".join(texts)


def end_text(dropped: Mapping[str, Mapping[str, int]]) -> str:
    """Return the reason of a region that ended because its input did."""
    lost = dropped_text(dropped)
    return f"all input is read, but {lost}" if lost else "all input is processed"


def late_by_text(counters: Mapping[str, int]) -> str:
    """Return how far behind the watermark late rows were; empty if none was late."""
    behind_us = counters.get(LATE_BY, 0)
    return f", up to {behind_us / _US:g} s behind the watermark" if behind_us else ""


__all__ = [
    "BUSY",
    "DROPPED_SUFFIX",
    "dropped_rows",
    "dropped_text",
    "end_text",
    "late_by_text",
    "merge_counters",
]
