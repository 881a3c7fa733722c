"""Rows that operators dropped: how counters of several workers become one, and what people are told. Pure.

Rules of this file: counters in, numbers and words out. What is dropped, and counted, is an operator's affair.

A counter that ends with `_rows_dropped` says how many rows an operator dropped since the region began (it is
part of the operator's state); the word before that says by which rule. `_max` at the end: a maximum.
"""

from collections.abc import Iterable, Mapping
from typing import Final

DROPPED_SUFFIX: Final = "_rows_dropped"
MAX_SUFFIX: Final = "_max"
LATE_BY: Final = "late_by_us_max"

REMEDIES: Final = {
    "late": "give event_time a larger lateness, or take the side output 'late' of such an operator",
    "null": "their key or event time is null; on_null='side' and a taker of the side output 'null' keep them",
}
"""Rule -> what to do so that no row is dropped by it."""
_US: Final = 1e6


def merge_counters(into: dict[str, int], other: Mapping[str, int]) -> None:
    """Add the counters of another worker, or of another output, of the same operator."""
    for name, value in other.items():
        before = into.get(name, 0)
        into[name] = max(before, value) if name.endswith(MAX_SUFFIX) else before + value


def dropped_rows(workers: Iterable[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    """Rule ("late", "null") -> operator -> rows that it dropped since the region began. `workers`: of each,
    its operators' counters.
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
    """For people: how many rows were dropped, by which operators, and what to do; '' for none."""
    texts = []
    for rule, operators in sorted(dropped.items()):
        listed = ", ".join(f"{name!r} {count:,}" for name, count in sorted(operators.items()))
        rows = sum(operators.values())
        what = f"{rows:,} {rule} row{'s were' if rows != 1 else ' was'} dropped by {listed}"
        texts.append(f"{what}: {REMEDIES[rule]}" if rule in REMEDIES else what)
    return "; ".join(texts)


def end_text(dropped: Mapping[str, Mapping[str, int]]) -> str:
    """The reason of a region that has read its input to the end."""
    lost = dropped_text(dropped)
    return f"all input is read, but {lost}" if lost else "all input is processed"


def late_by_text(counters: Mapping[str, int]) -> str:
    """How far behind the watermark late rows were; '' if none was late."""
    behind_us = counters.get(LATE_BY, 0)
    return f", up to {behind_us / _US:g} s behind the watermark" if behind_us else ""


__all__ = [
    "DROPPED_SUFFIX",
    "dropped_rows",
    "dropped_text",
    "end_text",
    "late_by_text",
    "merge_counters",
]
