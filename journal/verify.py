"""`dos journal verify`: read all records, and report whether they are sound, or the first fault."""

import msgspec

from journal.core.rendering import fault_fields, fault_text
from journal.inspecting import InspectionOutcome


def accept(_: object) -> bool:
    """Accept all records: the consumer of a verification, which only has to read everything."""
    return True


def verdict_text(outcome: InspectionOutcome) -> str:
    """Format the outcome as text: one line if it is sound, otherwise the fault, one field per line."""
    tally = outcome.tally
    seen = f"{tally.records} records in {tally.segments} segment{'s' * (tally.segments != 1)}"
    extent = f"offsets {tally.first_offset or 0} to {tally.end_offset}, {tally.bytes} bytes"
    version = "" if tally.version is None else f", version {tally.version}"
    if outcome.fault is None and outcome.not_verified:
        so_far = "is there" if outcome.missing else "can be proved"
        lines = [f"sound as far as it {so_far}: {outcome.target}: {seen}, {extent}{version}"]
        return "\n".join([*lines, *(f"not verified: {text}" for text in outcome.not_verified)])
    if outcome.fault is None:
        return f"sound: {outcome.target}: {seen}, {extent}{version}"
    return (
        f"fault in {outcome.target}, after {seen}, {extent}{version}\n"
        f"{fault_text(outcome.fault, outcome.base)}"
    )


def verdict_json(outcome: InspectionOutcome) -> str:
    """Format the outcome as one JSON object."""
    tally = outcome.tally
    verdict: dict[str, object] = {
        "target": outcome.target,
        "what": outcome.kind,
        "sound": outcome.fault is None and not outcome.not_verified,
        "version": tally.version,
        "segments": tally.segments,
        "records": tally.records,
        "bytes": tally.bytes,
        "first_offset": tally.first_offset or 0,
        "end_offset": tally.end_offset,
        "end": outcome.end,
        "committed_only": outcome.committed_only,
    }
    if outcome.unproved:
        verdict["unproved"] = outcome.unproved
    if outcome.missing:
        verdict["missing"] = outcome.missing
    if outcome.fault is not None:
        verdict["fault"] = fault_fields(outcome.fault, outcome.base)
    return msgspec.json.encode(verdict).decode()
