"""What `dos input` and `dos output` print about consumers and retention, as text and as JSON."""

from typing import Any

from checkpoint.core.consumers import QUERY_PREFIX, RetentionRule
from checkpoint.maintenance.garbage import UnneededObject
from checkpoint.maintenance.retention import ConsumerStatus, QueryStatus, RetentionStatus
from checkpoint.runtime import wall_time_ms
from dos_client.cli.kit import ago_text, count_text, print_json, print_table


def print_garbage(found: list[UnneededObject], *, apply: bool, as_json: bool) -> None:
    """Print what is, or was, unneeded."""
    size = sum(one.bytes * one.copies for one in found)
    if as_json:
        garbage = [
            {"directory": one.directory, "object": one.name, "bytes": one.bytes, "copies": one.copies}
            for one in found
        ]
        print_json({"garbage": garbage, "bytes": size, "deleted": apply})
        return
    print_table(
        ("directory", "object", "#bytes", "#copies"),
        [(one.directory, one.name, count_text(one.bytes), one.copies) for one in found],
    )
    what = f"{len(found)} segments, {count_text(size)} on all members"
    hint = f"{what}; --apply --stopped deletes them, if their writers do not run"
    print(f"deleted {what}" if apply else (hint if found else "nothing to delete"))


def needed_only_by(status: RetentionStatus, region: str) -> int:
    """Return the bytes that this region keeps, and no other one does."""
    freed = 0
    for one in status.splits:
        needs = status.needs(one.split)
        others = [need for name, need in needs.items() if name != region]
        upto = min(others) if others else one.begin
        freed += max(0, upto - max(needs.get(region, 0), one.begin))
    return freed


def rule_json(rule: RetentionRule | None) -> dict[str, Any]:
    """Return a rule for programs; null in each field if nobody has set one."""
    if rule is None:
        return {"keep": None, "maxBytes": None, "maxAgeSeconds": None, "setBy": None, "setMs": None}
    return {
        "keep": "unread" if rule.by_consumers else "all",
        "maxBytes": rule.bytes_max,
        "maxAgeSeconds": rule.age_max_s,
        "setBy": rule.set_by,
        "setMs": rule.set_ms,
    }


def rule_text(rule: RetentionRule | None, default: str) -> str:
    """Return a rule for people. default: the text of the default rule."""
    if rule is None:
        return f"rule: the default: {default}"
    kept = "keeps what a consumer has not read" if rule.by_consumers else "keeps everything"
    limit = f"; limit: {rule}, even if a consumer needs more" if rule.limits_anything else ""
    return f"rule: {kept}{limit}; set by {rule.set_by} {ago_text(rule.set_ms, wall_time_ms())}"


def status_json(status: RetentionStatus) -> dict[str, Any]:
    """Return the status for programs."""
    return {
        "rule": rule_json(status.rule),
        "splits": [{"split": one.split, "begin": one.begin, "end": one.end} for one in status.splits],
        "consumers": [
            {
                "region": one.region,
                "sources": list(one.sources),
                "sinceMs": one.since_ms,
                "oldestCheckpoint": one.oldest,
                "lastCheckpoint": one.last,
                "positions": _positions_json(one, status),
            }
            for one in status.consumers
        ],
        "queries": [
            {
                "name": one.name,
                "sinceMs": one.since_ms,
                "publishedMs": one.published_ms,
                "positions": _positions_json(one, status),
            }
            for one in status.queries
        ],
    }


def _positions_json(one: ConsumerStatus | QueryStatus, status: RetentionStatus) -> dict[str, Any]:
    return {
        of.split: {
            "read": one.read[of.split],
            "needs": one.needs[of.split],
            "lagBytes": of.end - one.read[of.split],
        }
        for of in status.splits
    }


def print_status(status: RetentionStatus, word: str, default: str) -> None:
    """Print the tables. word: what a split is. default: the text of the default rule."""
    now_ms = wall_time_ms()
    consumers: list[tuple[str, str, ConsumerStatus | QueryStatus]] = [
        (one.region, f"checkpoints {one.oldest} to {one.last}" if one.last else "no checkpoint yet", one)
        for one in status.consumers
    ]
    consumers += [
        (QUERY_PREFIX + one.name, f"published {ago_text(one.published_ms, now_ms)}", one)
        for one in status.queries
    ]
    print_table(
        ("consumer", "as of", word, "#needs from", "#read to", "#lag"),
        [
            (
                name,
                as_of,
                of.split,
                one.needs[of.split],
                one.read[of.split],
                count_text(of.end - one.read[of.split]),
            )
            for name, as_of, one in consumers
            for of in status.splits
        ],
    )
    print_table(
        (word, "#stored from", "#to", "#bytes"),
        [(one.split, one.begin, one.end, count_text(one.end - one.begin)) for one in status.splits],
    )
    if not status.consumers and not status.queries:
        print("no region is registered as a consumer")
    print(rule_text(status.rule, default))
