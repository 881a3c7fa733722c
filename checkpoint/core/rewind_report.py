"""What a restore to an older checkpoint would take back, as JSON values, before anybody decides. Pure."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from checkpoint.core.damaged import ChainDamage
from checkpoint.core.records.lines import republished
from checkpoint.core.records.manifest import Checkpoint
from checkpoint.core.records.views import checkpoint_diff


def rewind_report(
    last: Checkpoint,
    target: Checkpoint,
    *,
    trimmed: Sequence[dict[str, Any]] = (),
    damaged: Sequence[ChainDamage] | None = None,
) -> dict[str, Any]:
    """Return what a restore of `target` takes back of a region whose last checkpoint is `last`.

    trimmed: rows for `trimmed_text`. damaged: the chains of `target` that do not read whole; None: it was not
    read.

    - `steps`, `seconds`: between the two checkpoints.
    - `splits`: the input that is read again, in the unit of its source.
    - `sinks`: worker and sink whose output changed since, with what both checkpoints store of it.
    - `trimmed`: input that would be read again and is deleted.
    - `damaged`: chains that do not read whole; null if that was not verified.
    - `staysVisible`: sink -> why its rows stay and come again.
    """
    difference = checkpoint_diff(target, last)
    return {
        "checkpoint": target.voted_as,
        "step": target.step,
        "timeMs": target.wall_time_ms,
        "last": last.number,
        "lastStep": last.step,
        "steps": difference["steps"],
        "seconds": difference["seconds"],
        "splits": difference["splits"],
        "sinks": difference["sinks"],
        "workers": [len(last.workers), len(target.workers)],
        "trimmed": list(trimmed),
        "damaged": None if damaged is None else [asdict(one) for one in damaged],
        "staysVisible": republished(last, target),
    }


def trimmed_text(source: str, split: str, needs: int, begin: int) -> str:
    """Return one row of `trimmed` as a line for people."""
    return f"not there any more: {source!r} needs split {split} from {needs:,} on, and it begins at {begin:,}"


def damaged_text(row: dict[str, Any]) -> str:
    """Return one row of `damaged` as a line for people."""
    return f"does not read whole: {ChainDamage(**row)}"


def report_text(report: dict[str, Any]) -> list[str]:
    """Return the report as lines for people."""
    before, after = report["workers"]
    back = f"{report['steps']:,} steps and {report['seconds']:,.1f} s before checkpoint {report['last']}"
    lines = [f"back to checkpoint {report['checkpoint']} at step {report['step']}: {back}"]
    if before != after:
        lines.append(f"it had {after} workers then, and has {before} now")
    for row in report["splits"]:
        advanced = row["advanced"]
        amount = "everything" if advanced is None else f"{advanced:,}"
        lines.append(f"read again: {amount} of split {row['split']} of {row['source']!r}")
    lines += [trimmed_text(**row) for row in report["trimmed"]]
    if report["damaged"] is not None:
        lines += [damaged_text(row) for row in report["damaged"]] or ["all of its chains read whole"]
    stays: dict[str, str] = report["staysVisible"]
    taken_back = sorted({row["sink"] for row in report["sinks"]} - stays.keys())
    lines += [f"taken back: what {sink!r} has written since" for sink in taken_back]
    lines += [f"not taken back: rows of {sink!r} stay and come again: {why}" for sink, why in stays.items()]
    return lines
