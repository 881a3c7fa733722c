"""Logs warnings in the driver about dropped rows: the operator, the number, the delay, and the remedy.

This file formats and rate-limits log messages, by the caller's clock. Operators count the rows.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from checkpoint import limits
from checkpoint.core.progress import dropped_rows, dropped_text, late_by_text, merge_counters

logger: Final = logging.getLogger("dos.checkpoint")


class DropLog:
    """The warnings of one region."""

    def __init__(self, region: str) -> None:
        self._region = region
        self._reported: dict[str, dict[str, int]] = {}
        self._next_check = 0.0

    def inspect(self, workers: Iterable[Mapping[str, Mapping[str, int]]], now: float) -> None:
        """Log a warning about rows dropped since the last warning, if there are any and that warning is old
        enough. `workers`: per worker, its operators' counters.
        """
        if now < self._next_check:
            return
        self._next_check = now + limits.heartbeat_s
        operators: dict[str, dict[str, int]] = {}
        for worker in workers:
            for name, counters in worker.items():
                merge_counters(operators.setdefault(name, {}), counters)
        dropped = dropped_rows([operators])
        for rule, by_operator in dropped.items():
            for name, count in by_operator.items():
                more = count - self._reported.get(rule, {}).get(name, 0)
                if more > 0:
                    self._next_check = now + limits.drop_warnings_s
                    behind = late_by_text(operators[name]) if rule == "late" else ""
                    logger.warning(
                        "region %s: %s (%s since the region started%s)",
                        self._region,
                        dropped_text({rule: {name: more}}),
                        f"{count:,}",
                        behind,
                    )
        self._reported = dropped
