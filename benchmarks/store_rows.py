"""The table rows about a store of three servers, of which two must acknowledge."""

from collections.abc import Mapping

from rows import Effort, Row, run_json, say

Times = Mapping[str, float]


def measure_store(effort: Effort) -> list[Row]:
    """Measure appends, reads and take-over."""
    return [*_stream(effort), *_writers(effort), *_stopped(effort), *_reads(effort), *_take_over(effort)]


def _stream(effort: Effort) -> list[Row]:
    options = ["--json", "--members", "3", "--pairs", str(effort.pairs), "--megabytes", str(effort.stream_mb)]
    what = "durable stream of 64 KiB appends, store of three, acknowledged by two"
    try:
        median = run_json("benchmarks/store_stream.py", *options)["median"]
    except RuntimeError as error:
        say(f"{what}: not measured ({error}; does the program bare_copy.py exist?)")
        return [Row(what, "not measured", "plain copy: program not found", "")]
    beside = f"three plain copies, complete when two are: {median['bare']:.0f} MB/s"
    return [
        Row(what, f"{median['ours']:.0f} MB/s", f"{beside}, ratio {median['ratio']:.2f}", "ratio 0.7"),
        Row("peak memory of a server during that stream", f"{median['server_mb']:.0f} MB", "", "flat"),
    ]


def _writers(effort: Effort) -> list[Row]:
    found = run_json("benchmarks/store_writers.py", "--json", "--pairs", str(effort.pairs))
    log, without = found["log"], found["without"]
    rows = [
        Row(
            "1 KiB appends by 64 writers, each with its own directory, store of three",
            _rate(log),
            f"without group logs: {_rate(without)}, ratio {log['rate'] / without['rate']:.2f}",
            "",
        )
    ]
    for count in (2, 100):
        key = f"checkpoint_{count}_ms"
        what = f"sync phase of a checkpoint: records of {count} workers at once, until all are durable"
        rows.append(Row(what, f"{log[key]:.0f} ms", f"without group logs: {without[key]:.0f} ms", ""))
    return rows


def _rate(found: Times) -> str:
    return f"{found['rate']:,.0f} appends/s, p50 {found['p50_ms']:.1f} ms, p99 {found['p99_ms']:.1f} ms"


def _stopped(effort: Effort) -> list[Row]:
    found = run_json("benchmarks/store_latency.py", "--json", "--rounds", str(effort.pairs))
    running, stopped = found["all_running"], found["one_stopped"]
    return [
        Row(
            "p99 of appends of 100 bytes, one at a time, with one of three members stopped",
            f"{stopped['p99_ms']:.2f} ms",
            f"all members running: {running['p99_ms']:.2f} ms, ratio {found['ratio']:.2f}",
            "ratio 1.5",
        )
    ]


def _reads(effort: Effort) -> list[Row]:
    found = run_json("benchmarks/store_reads.py", "--json", "--megabytes", str(effort.large_object_mb))
    rows = [
        Row(
            f"verified restore of {effort.large_object_mb} MB from {members}",
            f"{one['mb_per_s']:.0f} MB/s",
            f"memory: client {one['client_mb']:.0f} MB, a server {one['server_mb']:.0f} MB",
            "memory flat",
        )
        for members, one in found["restore"].items()
    ]
    gets = found["gets"]
    all_running = gets["all running"]
    rows.append(Row("GET of 64 KiB, all members running", _times(all_running), _hedged(all_running), ""))
    for case, state in (("paused", "paused for 50 ms in every 200 ms"), ("stopped", "stopped")):
        without = f"without hedging: {_times(gets[f'{case}, not hedged'])}"
        what = f"GET of 64 KiB, one member {state}"
        rows.append(Row(what, _times(gets[case]), f"{without}; {_hedged(gets[case])}", ""))
    follow = found["follow"]
    rows.append(
        Row(
            "from an append until a follower has verified it",
            _times(follow["followed"]),
            f"until the writer receives the acknowledgement of the quorum: {_times(follow['acknowledged'])}",
            "",
        )
    )
    return rows


def _times(found: Times) -> str:
    return f"p50 {found['p50_ms']:.1f} ms, p99 {found['p99_ms']:.1f} ms, max {found['max_ms']:.0f} ms"


def _hedged(found: Times) -> str:
    return f"{found['hedged_percent']:.1f} % sent to a second member"


def _take_over(effort: Effort) -> list[Row]:
    lengths = f"10,{effort.chain_mb}"
    found = run_json("benchmarks/take_over.py", "--json", "--megabytes", lengths, "--rounds", "5")
    rows = []
    for one in found["results"]:
        total = {name: case["total_ms"] for name, case in one["cases"].items()}
        others = [f"{name}: {_middle(times)}" for name, times in total.items() if name != "all running"]
        rows.append(
            Row(
                f"take-over of a chain of {one['megabytes']} MB in segments of {one['segment_mb']} MB",
                _middle(total["all running"]),
                "; ".join(others),
                "",
            )
        )
    return rows


def _middle(times: Times) -> str:
    return f"p50 {times['p50']:.0f} ms, max {times['max']:.0f} ms"
