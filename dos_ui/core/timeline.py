"""Committed checkpoints by phase and worker, for a chart. Pure: no I/O."""

from collections.abc import Iterable
from typing import Any, Final

from checkpoint import Cut, checkpoint_row

TIMELINE_MAX: Final = 60


def timeline(cuts: Iterable[Cut]) -> list[dict[str, Any]]:
    """Return the newest checkpoints, oldest first, with the seconds of each phase of each worker."""
    return [
        checkpoint_row(cut)
        | {
            "workers": {
                str(worker): {phase: round(seconds, 6) for phase, seconds in phases.items()}
                for worker, phases in sorted(cut.phases_s.items())
            },
        }
        for cut in list(cuts)[-TIMELINE_MAX:]
    ]
