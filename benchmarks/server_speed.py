"""Compare one server with a plain copy and with Redis: `./run bench server` without the memory.

    python benchmarks/server_speed.py [CASE ...] [--pairs 5] [--scale 1.0] [--folder DIR] [--json]

Every case runs alternately with the system that it is compared with (A B A B). It reports medians, and the
median of the ratios of the pairs. The figures vary with the disk and with other load, so the ratio is more
reliable. Redis runs with `appendonly yes` and `appendfsync always`, on its own port and directory, and the
same generator sends its requests. If Redis or the plain copy is missing, a case reports that it was not
measured, with the reason. Exit code 0; 1 if a ratio is below its aim.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import load
from load import Load, run_apart
from load_sessions import ClaimSession, DosSession, RedisSession
from streams import durable_stream, get_object, version0_stream
from yardsticks import (
    BARE_COPY,
    Running,
    bare_seconds,
    raise_at_sigterm,
    redis_program,
    running_dos,
    running_redis,
)

from dos_bench.core.figures import percentile

KIB: Final = 1024
STREAM_BYTES: Final = 512 << 20
PIPELINED: Final = 60_000
DEPTH: Final = 1_000
WRITES: Final = 20_000
PINGS: Final = 3_000
DIRECTORIES: Final = 100

Figures = dict[str, float]
Address = tuple[str, int]
SessionType = type[DosSession] | type[RedisSession]


@dataclass(frozen=True, slots=True)
class Bench:
    """The servers, the folder and the amount to measure. `redis` is None if there is no Redis.
    `without_log`: a DOS server that syncs each object in its own file.
    """

    dos: Running
    without_log: Running
    redis: Running | None
    folder: Path
    scale: float
    round: int

    def of(self, amount: int) -> int:
        return max(1, int(amount * self.scale))


# The sides of a pair. Each returns figures, including `rate`.


def stream_64k(bench: Bench) -> Figures:
    return _stream(bench, 64 * KIB)


def stream_1m(bench: Bench) -> Figures:
    return _stream(bench, KIB * KIB)


def _stream(bench: Bench, append_bytes: int) -> Figures:
    total = bench.of(STREAM_BYTES) // append_bytes * append_bytes
    with _own_server(bench) as dos:
        done: Load = run_apart(durable_stream, dos.address, total, append_bytes)
        return {"rate": total / done.seconds / 1e6, "busy": done.busy, "peak_mb": dos.peak_mb}


def stream_v0(bench: Bench) -> Figures:
    total = bench.of(STREAM_BYTES) // (64 * KIB) * 64 * KIB
    with _own_server(bench) as dos:
        done: Load = run_apart(version0_stream, dos.address, total, 64 * KIB)
        return {"rate": total / done.seconds / 1e6, "busy": done.busy, "peak_mb": dos.peak_mb}


def get(bench: Bench) -> Figures:
    total = bench.of(STREAM_BYTES) // (64 * KIB) * 64 * KIB
    with _own_server(bench) as dos:
        run_apart(durable_stream, dos.address, total, 64 * KIB)
        done: Load = run_apart(get_object, dos.address, total)
        return {"rate": total / done.seconds / 1e6, "busy": done.busy, "peak_mb": dos.peak_mb}


@contextlib.contextmanager
def _own_server(bench: Bench) -> Iterator[Running]:
    """Run a server for one case: its peak memory belongs to that case. Its data is removed at the end."""
    with tempfile.TemporaryDirectory(dir=bench.folder) as data, running_dos(Path(data) / "server") as dos:
        yield dos


def bare_file_64k(bench: Bench) -> Figures:
    return _bare(bench, "file", 64 * KIB)


def bare_file_1m(bench: Bench) -> Figures:
    return _bare(bench, "file", KIB * KIB)


def bare_socket(bench: Bench) -> Figures:
    return _bare(bench, "socket", 64 * KIB)


def _bare(bench: Bench, mode: str, chunk: int) -> Figures:
    total = bench.of(STREAM_BYTES) // chunk * chunk
    return {"rate": total / bare_seconds(mode, total, chunk, bench.folder) / 1e6}


def bare_ping(bench: Bench) -> Figures:
    count = bench.of(PINGS)
    return {"rate": count / bare_seconds("ping", count, 100, bench.folder)}


def dos_pipelined(bench: Bench) -> Figures:
    return _timed(run_apart(_pipelined, DosSession, bench.dos.address, bench.round, bench.of(PIPELINED)))


def redis_pipelined(bench: Bench) -> Figures:
    assert bench.redis is not None
    return _timed(run_apart(_pipelined, RedisSession, bench.redis.address, bench.round, bench.of(PIPELINED)))


def _pipelined(kind: SessionType, address: Address, number: int, count: int) -> Load:
    return load.pipelined(kind(address, f"pipelined{number}", "object", os.urandom(100), count + 1), DEPTH)


def dos_one(bench: Bench) -> Figures:
    return _timed(run_apart(_one, DosSession, bench.dos.address, bench.round, bench.of(PINGS)))


def _one(kind: SessionType, address: Address, number: int, count: int) -> Load:
    return load.one_at_a_time(kind(address, f"one{number}", "object", os.urandom(100), count + 1))


def dos_16(bench: Bench) -> Figures:
    return _many(bench, DosSession, bench.dos, 16)


def dos_64(bench: Bench) -> Figures:
    return _many(bench, DosSession, bench.dos, 64)


def dos_256(bench: Bench) -> Figures:
    return _many(bench, DosSession, bench.dos, 256)


def with_log_64(bench: Bench) -> Figures:
    return _many(bench, DosSession, bench.dos, 64, folder="beside")


def without_log_64(bench: Bench) -> Figures:
    return _many(bench, DosSession, bench.without_log, 64, folder="beside")


def claims(bench: Bench) -> Figures:
    return _claims(bench, bench.dos)


def claims_without_log(bench: Bench) -> Figures:
    return _claims(bench, bench.without_log)


def _claims(bench: Bench, server: Running) -> Figures:
    count = bench.of(DIRECTORIES)
    return _timed(run_apart(_claim_all, server.address, bench.round, count))


def _claim_all(address: Address, number: int, count: int) -> Load:
    return load.writers([ClaimSession(address, f"claims{number}.{index}") for index in range(count)])


def redis_256(bench: Bench) -> Figures:
    return _many(bench, RedisSession, bench.redis, 256)


def redis_16(bench: Bench) -> Figures:
    return _many(bench, RedisSession, bench.redis, 16)


def redis_64(bench: Bench) -> Figures:
    return _many(bench, RedisSession, bench.redis, 64)


def _many(
    bench: Bench, kind: SessionType, server: Running | None, count: int, *, folder: str = "writers"
) -> Figures:
    assert server is not None
    each = bench.of(WRITES) // count
    return _timed(run_apart(_writers, kind, server.address, f"{folder}{count}.{bench.round}", count, each))


def _writers(kind: SessionType, address: Address, folder: str, count: int, each: int) -> Load:
    block = os.urandom(KIB)
    sessions = [kind(address, folder, f"object{index}", block, each + 1) for index in range(count)]
    return load.writers(sessions)


def _timed(done: Load) -> Figures:
    figures = {"rate": done.rate, "busy": done.busy}
    if done.times_s:
        figures |= {f"p{part}_ms": 1_000 * percentile(sorted(done.times_s), part / 100) for part in (50, 99)}
    return figures


# The cases


@dataclass(frozen=True, slots=True)
class Case:
    """`ours` and `theirs` run alternately; the ratio of the rates should be at least `aim`."""

    what: str
    unit: str
    ours: Callable[[Bench], Figures]
    theirs: Callable[[Bench], Figures]
    yardstick: str
    aim: float


REDIS: Final = "redis"
WITHOUT_LOG: Final = "without a log"
CASES: Final = {
    "stream-64k": Case("durable stream of 64 KiB appends", "MB/s", stream_64k, bare_file_64k, "file", 1.0),
    "stream-1m": Case("durable stream of 1 MiB appends", "MB/s", stream_1m, bare_file_1m, "file", 1.0),
    "stream-v0": Case("version 0 stream", "MB/s", stream_v0, bare_file_64k, "file", 1.0),
    "pipelined": Case(
        "100 B appends, 1,000 in flight", "appends/s", dos_pipelined, redis_pipelined, REDIS, 0.7
    ),
    "writers-16": Case(
        "1 KiB appends by 16 writers, each to its own object", "appends/s", dos_16, redis_16, REDIS, 0.5
    ),
    "writers-64": Case(
        "1 KiB appends by 64 writers, each to its own object", "appends/s", dos_64, redis_64, REDIS, 0.5
    ),
    "writers-256": Case(
        "1 KiB appends by 256 writers, each to its own object", "appends/s", dos_256, redis_256, REDIS, 0.5
    ),
    "log-64": Case(
        "1 KiB appends by 64 writers, with a group log",
        "appends/s",
        with_log_64,
        without_log_64,
        WITHOUT_LOG,
        1.0,
    ),
    "claims": Case(
        "claims of 100 directories at once, each with its first record",
        "steps/s",
        claims,
        claims_without_log,
        WITHOUT_LOG,
        1.0,
    ),
    "one": Case("100 B appends, one at a time", "appends/s", dos_one, bare_ping, "ping", 0.5),
    "get": Case("GET of an object of 512 MiB", "MB/s", get, bare_socket, "socket", 0.6),
}


def run_cases(names: list[str], pairs: int, scale: float, folder: Path) -> dict[str, dict[str, Any]]:
    """Measure the cases. Returns, for each case, its medians and pairs, or `not_measured` with the reason."""
    program = redis_program()
    found: dict[str, dict[str, Any]] = {}
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dos-bench-", dir=folder)))
        dos = stack.enter_context(running_dos(work / "dos"))
        without_log = stack.enter_context(running_dos(work / "without-log", "--group-log", "0"))
        wanted = program is not None and any(CASES[name].yardstick == REDIS for name in names)
        redis = stack.enter_context(running_redis(program, work / "redis")) if wanted and program else None
        for name in names:
            why = _why_not(CASES[name], redis)
            if why:
                found[name] = {"not_measured": why}
                print(f"{name}: not measured: {why}", file=sys.stderr, flush=True)
                continue
            begin = time.monotonic()
            rounds = [Bench(dos, without_log, redis, work, scale, number) for number in range(pairs)]
            found[name] = _run_pairs(name, CASES[name], rounds)
            found[name]["took_s"] = time.monotonic() - begin
    return found


def _why_not(case: Case, redis: Running | None) -> str:
    if case.yardstick == WITHOUT_LOG:
        return ""
    if case.yardstick == REDIS:
        return "" if redis is not None else "no redis-server"
    return "" if BARE_COPY.exists() else f"{BARE_COPY.name} does not exist; set DOS_BARE_COPY to its path"


def _run_pairs(name: str, case: Case, rounds: list[Bench]) -> dict[str, Any]:
    pairs = []
    for bench in rounds:
        ours, theirs = case.ours(bench), case.theirs(bench)
        ratio = ours["rate"] / theirs["rate"]
        pairs.append({"ours": ours, "theirs": theirs, "ratio": ratio})
        text = f"{name}: {_words(ours)} {case.unit}; {case.yardstick} {_words(theirs)}; ratio {ratio:.2f}"
        print(text, file=sys.stderr, flush=True)
    ours, theirs = (
        {key: statistics.median(pair[side][key] for pair in pairs) for key in pairs[0][side]}
        for side in ("ours", "theirs")
    )
    ratio = statistics.median(pair["ratio"] for pair in pairs)
    return {"ours": ours, "theirs": theirs, "ratio": ratio, "aim": case.aim, "pairs": pairs}


def _words(figures: Figures) -> str:
    rest = " ".join(f"{key} {value:.2f}" for key, value in figures.items() if key != "rate")
    return f"{figures['rate']:,.0f}" + (f" ({rest})" if rest else "")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        help="factor for the amount that is measured; 1.0 is the usual amount",
    )
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()), help="folder for all data"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    raise_at_sigterm()
    if unknown := set(options.cases) - set(CASES):
        parser.error(f"no case named {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    found = run_cases(options.cases or list(CASES), options.pairs, options.scale, options.folder)
    if options.json:
        print(json.dumps({"name": "server_speed", "cases": found}))
    else:
        for name, one in found.items():
            if "ratio" in one:
                print(
                    f"{name}: {_words(one['ours'])} {CASES[name].unit}; {CASES[name].yardstick}"
                    f" {_words(one['theirs'])}; ratio {one['ratio']:.2f}, aim {one['aim']}"
                )
    return 0 if all(one.get("ratio", 9) >= one.get("aim", 0) for one in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
