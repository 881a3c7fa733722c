"""The table lines about a store of three servers, of which two must acknowledge."""

from collections.abc import Mapping

from rows import Effort, Row, run_json, say

Times = Mapping[str, float]


def measure_store(effort: Effort) -> list[Row]:
    """Appends, reads and take-over."""
    return [*_stream(effort), *_stopped(effort), *_reads(effort), *_take_over(effort)]


def _stream(effort: Effort) -> list[Row]:
    options = ["--json", "--members", "3", "--pairs", str(effort.pairs), "--megabytes", str(effort.stream_mb)]
    what = "durable stream of 64 KiB appends, store of three, two acknowledge"
    try:
        median = run_json("benchmarks/store_stream.py", *options)["median"]
    except RuntimeError as error:
        say(f"{what}: not measured ({error}; is the yardstick bare_copy.py there?)")
        return [Row(what, "not measured", "bare copy not found", "")]
    beside = f"bare copy to three, done when two have it: {median['bare']:.0f} MB/s"
    return [
        Row(what, f"{median['ours']:.0f} MB/s", f"{beside}, ratio {median['ratio']:.2f}", "ratio 0.7"),
        Row("peak memory of a server in that stream", f"{median['server_mb']:.0f} MB", "", "flat"),
    ]


def _stopped(effort: Effort) -> list[Row]:
    found = run_json("benchmarks/store_latency.py", "--json", "--rounds", str(effort.pairs))
    there, stopped = found["all_there"], found["one_stopped"]
    return [
        Row(
            "appends of 100 bytes, one after the other, one member of three stopped: p99",
            f"{stopped['p99_ms']:.2f} ms",
            f"all there: {there['p99_ms']:.2f} ms, ratio {found['ratio']:.2f}",
            "ratio 1.5",
        )
    ]


def _reads(effort: Effort) -> list[Row]:
    found = run_json("benchmarks/store_reads.py", "--json", "--megabytes", str(effort.large_object_mb))
    rows = [
        Row(
            f"restore of {effort.large_object_mb} MB from {members}, checked",
            f"{one['mb_per_s']:.0f} MB/s",
            f"memory: client {one['client_mb']:.0f} MB, a server {one['server_mb']:.0f} MB",
            "memory flat",
        )
        for members, one in found["restore"].items()
    ]
    gets = found["gets"]
    well = gets["all well"]
    rows.append(Row("GET of 64 KiB, all well", _times(well), _hedged(well), ""))
    for case in ("stutters", "stopped"):
        without = gets[f"{case}, not hedged"]
        what = f"GET of 64 KiB, one member {case if case == 'stutters' else 'is stopped'}"
        rows.append(
            Row(what, _times(gets[case]), f"not hedged: {_times(without)}; {_hedged(gets[case])}", "")
        )
    follow = found["follow"]
    rows.append(
        Row(
            "from an append until a follower has it, checked",
            _times(follow["followed"]),
            f"until its writer hears of the quorum: {_times(follow['acknowledged'])}",
            "",
        )
    )
    return rows


def _times(found: Times) -> str:
    return f"p50 {found['p50_ms']:.1f} ms, p99 {found['p99_ms']:.1f} ms, most {found['max_ms']:.0f} ms"


def _hedged(found: Times) -> str:
    return f"{found['hedged_percent']:.1f} % were asked of a second member"


def _take_over(effort: Effort) -> list[Row]:
    lengths = f"10,{effort.chain_mb}"
    found = run_json("benchmarks/take_over.py", "--json", "--megabytes", lengths, "--rounds", "5")
    rows = []
    for one in found["results"]:
        total = {name: case["total_ms"] for name, case in one["cases"].items()}
        others = [f"{name}: {_middle(times)}" for name, times in total.items() if name != "all there"]
        rows.append(
            Row(
                f"take-over of a chain of {one['megabytes']} MB in segments of {one['segment_mb']} MB",
                _middle(total["all there"]),
                "; ".join(others),
                "",
            )
        )
    return rows


def _middle(times: Times) -> str:
    return f"p50 {times['p50']:.0f} ms, most {times['max']:.0f} ms"
