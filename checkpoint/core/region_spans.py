"""Spans of a region, from the events that it reports. Pure.

A worker's phases are durations in its vote. When the vote arrived is known here, so its last phase is shown
to end there: the time that the vote needed on the network is part of the phases' beginning.
"""

from checkpoint.core.region import ResetReport
from checkpoint.core.region_events import CheckpointCommitted, RegionEvent
from dos_monitoring import SpanRecord, in_sequence


def span_of(region: str, event: RegionEvent) -> SpanRecord | None:
    """Return the trace of a checkpoint or a recovery that has just ended; None for any other event."""
    if isinstance(event, CheckpointCommitted):
        return _checkpoint(region, event)
    if isinstance(event, ResetReport):
        return _recovery(region, event)
    return None


def _checkpoint(region: str, event: CheckpointCommitted) -> SpanRecord:
    workers = tuple(
        _vote(worker, event.votes_s.get(worker, event.seconds), phases_s)
        for worker, phases_s in event.worker_phases_s.items()
    )
    voted_s = max((one.end_s for one in workers), default=0.0)
    return SpanRecord(
        "dos.checkpoint",
        0.0,
        event.seconds,
        {
            "dos.region": region,
            "dos.checkpoint": event.checkpoint,
            "dos.step": event.step,
            "dos.final": event.final,
        },
        (*workers, SpanRecord("dos.checkpoint.commit", voted_s, event.seconds)),
    )


def _vote(worker: int, voted_s: float, phases_s: dict[str, float]) -> SpanRecord:
    begin_s = max(voted_s - sum(phases_s.values()), 0.0)
    phases = in_sequence("dos.checkpoint", phases_s, begin_s=begin_s, end_s=voted_s)
    return SpanRecord("dos.checkpoint.vote", 0.0, voted_s, {"dos.worker": worker}, phases)


def _recovery(region: str, event: ResetReport) -> SpanRecord:
    return SpanRecord(
        "dos.take_over" if event.term else "dos.recovery",
        0.0,
        event.seconds,
        {
            "dos.region": region,
            "dos.worker": event.worker,
            "dos.reason": event.reason,
            "dos.incarnation": event.incarnation,
            "dos.checkpoint": event.checkpoint,
            "dos.replayed_bytes": event.bytes,
        },
        in_sequence("dos.recovery", event.phases_s, begin_s=0.0, end_s=event.seconds),
    )
