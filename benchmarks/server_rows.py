"""The table rows about one server: its speed compared with a plain copy and with Redis, and its memory."""

from collections.abc import Mapping
from typing import Any

from rows import Effort, Row, run_json, say
from server_speed import CASES, REDIS, WITHOUT_LOG, Case

Found = Mapping[str, Any]

_YARDSTICKS = {
    "file": "plain copy with a sync every 64 MB",
    "socket": "plain copy from the page cache",
    "ping": "plain write, sync and reply",
    REDIS: "Redis, `appendfsync always`",
    WITHOUT_LOG: "the same without a group log",
}


def measure_server(effort: Effort) -> list[Row]:
    """Measure the speed, then the memory."""
    options = ["--json", "--pairs", str(effort.pairs), "--scale", str(effort.server_scale)]
    found = run_json("benchmarks/server_speed.py", *options)["cases"]
    return [*(_speed_row(case, found[name]) for name, case in CASES.items()), *_memory_rows(effort)]


def _speed_row(case: Case, found: Found) -> Row:
    if "not_measured" in found:
        say(f"{case.what}: not measured: {found['not_measured']}")
        return Row(f"{case.what}, one server", f"not measured: {found['not_measured']}", "", "")
    beside = f"{_YARDSTICKS[case.yardstick]}: {_figure(case, found['theirs'])}, ratio {found['ratio']:.2f}"
    return Row(f"{case.what}, one server", _figure(case, found["ours"]), beside, f"ratio {case.aim}")


def _figure(case: Case, figures: Found) -> str:
    text = f"{figures['rate']:,.0f} {case.unit}"
    if "p99_ms" in figures:
        text += f", p50 {figures['p50_ms']:.2f} ms, p99 {figures['p99_ms']:.2f} ms"
    return text


def _memory_rows(effort: Effort) -> list[Row]:
    found = run_json("benchmarks/server_memory.py", "--json", "--gigabytes", str(effort.growth_gb))
    idle, growth = found["idle"], found["growth"]
    what = f"growth of a server's memory while an object grows to {growth['gigabytes']:.1f} GB"
    if growth["gigabytes"] < 0.99 * growth["wanted_gigabytes"]:
        what += f" (not {growth['wanted_gigabytes']:.0f} GB: the disk has not enough space)"
    return [
        Row(
            f"memory of a server with {idle['connections']:,} idle connections",
            f"{idle['resident_mb']:.0f} MB",
            f"without connections: {idle['before_mb']:.0f} MB",
            "under 100 MB",
        ),
        Row(
            what,
            f"{growth['mb_per_gb']:+.2f} MB per GB",
            f"peak {growth['peak_mb']:.0f} MB",
            "flat",
        ),
    ]
