"""Committed checkpoints by phase and worker, for a chart. Pure: no I/O."""

from collections.abc import Iterable
from typing import Any, Final

from checkpoint import Checkpoint, checkpoint_row

TIMELINE_MAX: Final = 60


def timeline(checkpoints: Iterable[Checkpoint]) -> list[dict[str, Any]]:
    """Return the newest checkpoints, oldest first, with the seconds of each phase of each worker."""
    return [
        checkpoint_row(checkpoint)
        | {
            "workers": {
                str(worker): {phase: round(seconds, 6) for phase, seconds in phases.items()}
                for worker, phases in sorted(checkpoint.phases_s.items())
            },
        }
        for checkpoint in list(checkpoints)[-TIMELINE_MAX:]
    ]
