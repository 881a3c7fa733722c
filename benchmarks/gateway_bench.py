"""Measure a gateway on a store of three server processes: Spark's own checkpoints by WebHDFS.

batches     micro-batches of each kind of query, beside a checkpoint in a local directory
processor   processor time of the gateway: of a GETFILESTATUS, and of the requests of a micro-batch
takeover    the gap in the writes of a raw client around the SIGKILL of the gateway that serves
tree        memory, replay, snapshot and listing of a tree of the largest of --files
body        a large file in and out

With --batches N it runs only a soak instead: N micro-batches of queries with RocksDB and a changelog, in one
session of Spark, or with --raw the same requests without Spark. It shows latency, memory and space for each
tenth of the run, and whether they are flat:

latency     the median of the last third is at most 1.25 times that of the middle third
memory      the resident memory at the end of the last tenth is at most 1.25 times the highest of the middle
            third
chain       no longer, at any time, than 2 times the live bytes + 64 MiB, and two segments of 32 MiB
data        of one server: no more than that and its group log, 64 MiB, at any time
"""

import argparse
import http.client
import itertools
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final

from dataflow_bench import listed
from dataflow_meter import cpu_seconds
from gateway_load import KeptConnection, MicroBatches, RefusedError, fill, measure_tree
from rows import ROOT, Row, Section, json_lines, printed_at_the_end, say
from spark_stored import running_store
from yardsticks import Running, raise_at_sigterm, running_gateway

from dos_gateway.limits import segment_bytes, slack_bytes
from dos_protocol.limits import MIB

PLACE: Final = Section(
    "gateway",
    "Spark's own checkpoints through a gateway",
    """\
A gateway on a store of three servers, synced on two. Measured on {date} with no other benchmark running,
{rounds}. The load average at the end was {load:.1f}, including the benchmark itself. A ratio is the median of
those of the rounds.""",
)
EXAMPLES: Final = """\
examples:
  ./run bench gateway                                   everything, and the section of the page
  ./run bench gateway --only takeover --kills 5         one part; the figures are only printed
  ./run bench gateway --quick                           a quick look at each part
  ./run bench gateway --batches 10000 --queries 2       a soak through Spark, about an hour
  ./run bench gateway --batches 10000 --raw             the same requests without Spark
"""
PROGRAM: Final = "benchmarks/gateway_program.py"
KINDS: Final = {
    "stateless": "without state",
    "hdfs": "HDFS-backed state",
    "rocksdb": "RocksDB",
    "changelog": "RocksDB with a changelog",
    "format2": "the same, checkpoint format 2",
    "files": "sink of Parquet files",
    "join": "stream-stream join",
    "transform": "transformWithStateInPandas",
}
"""Each kind of query of the program, as the page names it."""
PARTS: Final = ("batches", "processor", "takeover", "tree", "body")
SIZES: Final = {"rounds": 3, "micro-batches": 30, "statuses": 5_000, "kills": 50, "megabytes": 300}
QUICK: Final = {"rounds": 1, "micro-batches": 3, "statuses": 200, "kills": 1, "megabytes": 8}
QUICK_KINDS: Final = ["hdfs"]
FILES: Final = (1_000, 20_000, 200_000)
LARGE_FILES: Final = 100_000
LARGE_KILLS: Final = 10
"""From so many files on, take-overs have no aim, and are repeated at most so often."""
GAP_S_AIM: Final = 3.0
GAP_S_MAX: Final = 120.0
BATCH_CPU_BATCHES: Final = 100
SPARK_S_MAX: Final = 12 * 3_600.0
TENTHS: Final = 10
FLAT: Final = 1.25
GROUP_LOG_BYTES: Final = 64 * MIB
CHAIN_ROOM_BYTES: Final = slack_bytes + 2 * segment_bytes
Record = dict[str, Any]


@contextmanager
def served(url: str, name: str) -> Iterator[tuple[Running, KeptConnection]]:
    """Run a gateway of a tree, which serves it in the block, and a connection to it."""
    with running_gateway(f"{url}/{name}") as gateway, KeptConnection(gateway.address[1]) as connection:
        wait_until_it_serves(connection)
        yield gateway, connection


def wait_until_it_serves(connection: KeptConnection) -> None:
    end = time.monotonic() + GAP_S_MAX
    while True:
        try:
            connection.ask("GET", "GETFILESTATUS", "/")
        except (OSError, http.client.HTTPException, RefusedError) as error:
            # A member that was behind may still receive what its last gateway has written; and a process that
            # stands still while it starts ends its connections.
            is_other = isinstance(error, RefusedError) and error.java != "StandbyException"
            if is_other or time.monotonic() > end:
                raise
        else:
            return


# --- micro-batches of Spark ---------------------------------------------------------------------------------


@contextmanager
def places_file(folder: Path, url: str, name: str, gateway: Running) -> Iterator[Path]:
    """Write what the program needs to know of a gateway."""
    at = f"{gateway.address[0]}:{gateway.address[1]}"
    command = [sys.executable, "-m", "dos_cli", "gateway", "confs", f"{url}/{name}", at, "--json"]
    confs = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout)
    places = {"gateway": f"webhdfs://{confs['dfs.nameservices']}", "local": (folder / "local").as_uri()}
    path = folder / "places.json"
    path.write_text(json.dumps({**places, "confs": confs, "pid": gateway.pid}))
    yield path


def measure_batches(url: str, folder: Path, options: argparse.Namespace) -> Iterator[Record]:
    """Measure each kind of query in both places, in alternating rounds."""
    with served(url, "batches") as (gateway, _), places_file(folder, url, "batches", gateway) as places:
        command = [
            PROGRAM,
            "kinds",
            "--places",
            places,
            "--folder",
            folder,
            "--only",
            ",".join(options.kinds),
        ]
        command += ["--rounds", str(options.rounds), "--batches", str(options.micro_batches)]
        with closing(json_lines(*command, timeout_s=SPARK_S_MAX)) as lines:
            for one in lines:
                times = {name: statistics.median(one[name]) for name in TIMES}
                yield {**{key: one[key] for key in ("kind", "round", "place", "cpu_ms")}, **times}


TIMES: Final = {
    "batch_ms": "p50",
    "wal_ms": "walCommit",
    "commit_ms": "commitOffsets",
    "state_ms": "state commit",
}


def batch_rows(records: Sequence[Record]) -> Iterator[Row]:
    for kind in dict.fromkeys(record["kind"] for record in records):
        of_kind = [record for record in records if record["kind"] == kind]
        ours, theirs = ([one for one in of_kind if one["place"] == place] for place in ("gateway", "local"))
        pairs = zip(ours, theirs, strict=True)  # each in the order of the rounds
        ratio = statistics.median(one["batch_ms"] / other["batch_ms"] for one, other in pairs)
        beside = f"local directory: {_times(theirs)}, ratio {ratio:.2f}"
        yield Row(f"micro-batch, {KINDS[kind]}", _times(ours), beside, "ratio 1.5")
        cpu = statistics.median(one["cpu_ms"] for one in ours)
        yield Row(f"processor time of the gateway for it, {KINDS[kind]}", f"{cpu:.1f} ms", "", "15 ms")


def _times(records: Sequence[Record]) -> str:
    medians = {name: statistics.median(one[name] for one in records) for name in TIMES}
    return ", ".join(f"{text} {medians[name]:.0f} ms" for name, text in TIMES.items() if medians[name])


# --- processor time -----------------------------------------------------------------------------------------


def measure_processor(url: str, folder: Path, options: argparse.Namespace) -> Iterator[Record]:
    """Measure requests on connections that are kept alive, by the accounting of the kernel."""
    del folder
    with served(url, "processor") as (gateway, connection):
        ask = connection.ask

        def creates(count: int) -> None:
            for number in range(count):
                connection.put(f"/created/{number}", b"x" * 1_000)

        def renames(count: int) -> None:
            for number in range(count):
                ask("PUT", "RENAME", f"/created/{number}", destination=f"/{number}", renameoptions="NONE")

        def statuses(count: int) -> None:
            for _ in range(count):
                ask("GET", "GETFILESTATUS", "/there/a")

        def batches(count: int) -> None:
            for number in range(count):
                made.run(number + first)

        connection.put("/there/a", b"x")
        made, first = MicroBatches(connection, "/query"), 0
        several = max(options.statuses // 10, 10)
        for number in range(options.rounds):
            first = number * BATCH_CPU_BATCHES
            works: dict[str, tuple[Callable[[int], None], int]] = {
                "status": (statuses, options.statuses),
                "create": (creates, several),
                "rename": (renames, several),
                "batch": (batches, min(BATCH_CPU_BATCHES, several)),
            }
            found: Record = {"round": number}
            for name, (work, count) in works.items():
                before = cpu_seconds([gateway.pid])
                work(count)
                found[name] = 1_000 * (cpu_seconds([gateway.pid]) - before) / count
            ask("DELETE", "DELETE", "/created", recursive="true")
            for entry in range(several):
                ask("DELETE", "DELETE", f"/{entry}")
            yield found


WORKS: Final = {
    "status": ("a GETFILESTATUS", "0.15 ms"),
    "create": ("a CREATE of 1,000 B, both legs", ""),
    "rename": ("a RENAME", ""),
    "batch": ("the 44 requests of a micro-batch with HDFS-backed state, and 4 deletions", "15 ms"),
}


def processor_rows(records: Sequence[Record]) -> Iterator[Row]:
    for name, (what, aim) in WORKS.items():
        figure = statistics.median(one[name] for one in records)
        yield Row(f"processor time of {what}", f"{figure:.{3 if figure < 1 else 1}f} ms", "", aim)


# --- take-overs ---------------------------------------------------------------------------------------------


def measure_take_overs(url: str, folder: Path, options: argparse.Namespace) -> Iterator[Record]:
    """Measure the gap around each kill. A standby is a new process for each, so it has seen no take-over."""
    del folder
    for files in options.files:
        kills = options.kills if files < LARGE_FILES else min(options.kills, LARGE_KILLS)
        name = f"takeover-{files}"
        say(f"takeover: a tree of {files:,} files ...")
        fill(url, name, "/files", files)
        with ExitStack() as active:
            gateway, _ = active.enter_context(served(url, name))
            for number in range(kills):
                with ExitStack() as standby:
                    other = standby.enter_context(running_gateway(f"{url}/{name}"))
                    wait_until_it_watches(other)
                    found = gap_of(gateway, other, f"/written/{number}")
                    say(f"    {json.dumps(found)}")
                    yield {"files": files, "kill": number, **found}
                    active.close()
                    active.enter_context(standby.pop_all())
                    gateway = other


def wait_until_it_watches(standby: Running) -> None:
    """Return when it has seen that another gateway serves."""
    with KeptConnection(standby.address[1]) as connection:
        try:
            connection.ask("GET", "GETFILESTATUS", "/")
        except RefusedError as error:
            if error.java == "StandbyException":
                return
            raise
    raise RuntimeError("the standby serves, though the other gateway runs")


def gap_of(active: Running, standby: Running, folder: str) -> Record:
    """Write files one after the other, and kill the gateway that takes them: from the last acknowledgement of
    it to the first one of the other gateway.
    """
    killer = threading.Timer(random.uniform(0.3, 0.7), os.kill, (active.pid, signal.SIGKILL))
    with KeptConnection(active.address[1]) as first, KeptConnection(standby.address[1]) as second:
        connection, count, before = first, 0, time.monotonic()
        killer.start()
        while True:
            try:
                connection.put(f"{folder}/{count}", b"x" * 100)
            except (OSError, http.client.HTTPException, RefusedError) as error:
                if isinstance(error, RefusedError) and error.java != "StandbyException":
                    raise
                if time.monotonic() > before + GAP_S_MAX:
                    raise RuntimeError(f"no gateway serves for {GAP_S_MAX:.0f} s") from error
                connection = second
                continue
            now = time.monotonic()
            gap, before, count = now - before, now, count + 1
            if connection is second:
                break
        answer = second.ask("GET", "LISTSTATUS", folder)
    found = len(json.loads(answer.body)["FileStatuses"]["FileStatus"])
    return {"gap_s": gap, "written": count, "missing": count - found, "mb": standby.resident_mb}


def take_over_rows(records: Sequence[Record]) -> Iterator[Row]:
    for files in dict.fromkeys(record["files"] for record in records):
        kills = [record for record in records if record["files"] == files]
        gaps = [one["gap_s"] for one in kills]
        in_time = sum(gap <= GAP_S_AIM for gap in gaps)
        lost, written = (sum(one[name] for one in kills) for name in ("missing", "written"))
        yield Row(
            f"take-over after a SIGKILL, {files:,} files",
            f"p50 {statistics.median(gaps):.2f} s, max {max(gaps):.2f} s;"
            f" {in_time} of {len(gaps)} within {GAP_S_AIM:.0f} s",
            f"{lost} of {written:,} acknowledged files missing;"
            f" gateway {statistics.median(one['mb'] for one in kills):.0f} MB",
            f"all within {GAP_S_AIM:.0f} s" if files < LARGE_FILES else "",
        )


# --- a large tree -------------------------------------------------------------------------------------------


class Prober:
    """Asks for a status again and again while the block runs. worst_ms: the longest answer. ended: how often
    the gateway ended the connection, because its process stood still for a second.
    """

    def __init__(self, port: int) -> None:
        self._connection = KeptConnection(port)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.worst_ms, self.ended = 0.0, 0

    def _run(self) -> None:
        with self._connection as connection:
            while not self._ended.is_set():
                begun = time.perf_counter()
                try:
                    connection.ask("GET", "GETFILESTATUS", "/")
                except (OSError, http.client.HTTPException):
                    self.ended += 1
                self.worst_ms = max(self.worst_ms, 1_000 * (time.perf_counter() - begun))

    def __enter__(self) -> "Prober":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def measure_large_tree(url: str, folder: Path, options: argparse.Namespace) -> Iterator[Record]:
    """Measure a directory of many files, and how long others wait meanwhile."""
    del folder
    files, name = max(options.files), "tree"
    say(f"tree: {files:,} files ...")
    fill(url, name, "/files", files)
    found: Record = {"files": files, **measure_tree(url, name)}
    with served(url, name) as (gateway, connection):
        found["resident_mb"] = gateway.resident_mb

        def listing() -> None:
            body = connection.ask("GET", "LISTSTATUS", "/files").body
            found["listing_mb"] = len(body) / 1e6

        def listing_in_batches() -> None:
            after, remaining = "", 1
            while remaining:
                answer = connection.ask("GET", "LISTSTATUS_BATCH", "/files", startafter=after)
                part = json.loads(answer.body)["DirectoryListing"]
                entries = part["partialListing"]["FileStatuses"]["FileStatus"]
                after, remaining = entries[-1]["pathSuffix"], part["remainingEntries"]

        def roll() -> None:
            connection.put("/large", (bytes(MIB) for _ in range(40)), 40 * MIB)

        def move() -> None:
            ask("PUT", "RENAME", "/files", destination="/moved", renameoptions="NONE")

        def delete() -> None:
            ask("DELETE", "DELETE", "/moved", recursive="true")

        ask = connection.ask
        for work in (listing, listing_in_batches, roll, move, delete):
            with Prober(gateway.address[1]) as prober:
                begun = time.perf_counter()
                again(work)
                found[f"{work.__name__}_s"] = time.perf_counter() - begun
            found[f"{work.__name__}_worst_ms"] = prober.worst_ms
            found[f"{work.__name__}_ended"] = prober.ended
    yield found


def again(work: Callable[[], None]) -> None:
    """Repeat a request whose connection the gateway has ended, as Hadoop's client does."""
    end = time.monotonic() + GAP_S_MAX
    while True:
        try:
            return work()
        except (OSError, http.client.HTTPException):
            if time.monotonic() > end:
                raise


def tree_rows(records: Sequence[Record]) -> Iterator[Row]:
    for one in records:
        files = f"{one['files']:,} files"
        yield Row(
            f"a gateway of {files}",
            f"{one['resident_mb']:.0f} MB resident",
            f"replay {one['replay_s']:.2f} s;"
            f" snapshot {one['snapshot_s']:.2f} s, {one['snapshot_mb']:.0f} MB",
            "",
        )
        works = {
            "listing": f"listing of a directory of {files}, {one['listing_mb']:.0f} MB",
            "listing_in_batches": "the same in batches of 1,000",
            "roll": "40 MiB written beside them, with a snapshot",
            "move": f"rename of a directory of {files}",
            "delete": f"deletion of a directory of {files}",
        }
        for name, what in works.items():
            worst = f"longest status meanwhile {one[f'{name}_worst_ms']:.0f} ms"
            if ended := one[f"{name}_ended"]:
                worst += f"; its connection was ended {ended} times: the gateway stood still"
            yield Row(what, f"{one[f'{name}_s']:.2f} s", worst, "")


# --- a large body -------------------------------------------------------------------------------------------


def measure_body(url: str, folder: Path, options: argparse.Namespace) -> Iterator[Record]:
    """Measure a large file, and how the resident memory of the gateway grows at most."""
    del folder
    block, size = os.urandom(MIB), options.megabytes * MIB
    for number in range(options.rounds):
        with served(url, f"body-{number}") as (gateway, connection):
            before, begun = gateway.resident_mb, time.perf_counter()
            connection.put("/large", (block for _ in range(options.megabytes)), size)
            put = time.perf_counter()
            if connection.get_size("/large") != size:
                raise RuntimeError("the file is not as long as it was written")
            got = time.perf_counter()
            grown_mib = (gateway.peak_mb - before) * 1e6 / MIB
            yield {"round": number, "in_s": put - begun, "out_s": got - put, "grown_mib": grown_mib}


def body_rows(records: Sequence[Record], mebibytes: int) -> Iterator[Row]:
    in_s, out_s = (statistics.median(one[name] for one in records) for name in ("in_s", "out_s"))
    grown = max(one["grown_mib"] for one in records)
    what = f"a file of {mebibytes} MiB"
    yield Row(f"{what}: in, synced; out", f"{in_s:.1f} s; {out_s:.1f} s", "", "")
    yield Row(f"{what}: growth of the gateway's resident memory", f"{grown:.0f} MiB", "", "under 64 MiB")


# --- a soak -------------------------------------------------------------------------------------------------


def measure_soak(url: str, folder: Path, options: argparse.Namespace) -> Iterator[Record]:
    """Yield the figures of each tenth of the run."""
    name, tenth = "soak", max(options.batches // TENTHS, 1)
    with ExitStack() as stack:
        gateway, connection = stack.enter_context(served(url, name))
        if options.raw:
            parts = raw_batches(connection)
        else:
            places = stack.enter_context(places_file(folder, url, name, gateway))
            parts = spark_batches(places, folder, options)
        stack.enter_context(closing(parts))
        done, waiting, before = 0, list[float](), cpu_seconds([gateway.pid])
        while done + tenth <= options.batches:
            waiting += next(parts)
            while len(waiting) >= tenth and done + tenth <= options.batches:
                now_s = cpu_seconds([gateway.pid])
                done += tenth
                yield {
                    "batches": done,
                    "p50_ms": statistics.median(waiting[:tenth]),
                    "p99_ms": sorted(waiting[:tenth])[int(tenth * 0.99)],
                    "cpu_ms": 1_000 * (now_s - before) / tenth,
                    "gateway_mb": gateway.resident_mb,
                    **space_of(url, name, folder),
                }
                before = cpu_seconds([gateway.pid])
                del waiting[:tenth]


def raw_batches(connection: KeptConnection) -> Generator[list[float]]:
    """Yield the milliseconds of one micro-batch after the other."""
    made = MicroBatches(connection, "/query")
    for number in itertools.count():
        yield [1_000 * made.run(number)]


def spark_batches(places: Path, folder: Path, options: argparse.Namespace) -> Generator[list[float]]:
    """Yield the milliseconds of micro-batches as the program reports them."""
    command = [PROGRAM, "soak", "--places", places, "--folder", folder]
    command += ["--batches", str(options.batches), "--queries", str(options.queries)]
    with closing(json_lines(*command, timeout_s=SPARK_S_MAX)) as lines:
        for one in lines:
            yield one["batch_ms"]


def space_of(url: str, name: str, folder: Path) -> dict[str, float]:
    """Return the MiB of a tree: alive, its chain, and the data of the largest server."""
    command = [sys.executable, "-m", "dos_cli", "gateway", "du", f"{url}/{name}", "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout)
    servers = [path for path in folder.iterdir() if re.fullmatch(r"s\d", path.name)]
    data = max(disk_bytes(path) for path in servers)
    live, chain = found["liveBytes"], found["chainBytes"]
    return {"live_mib": live / MIB, "chain_mib": chain / MIB, "data_mib": data / MIB}


def disk_bytes(folder: Path) -> int:
    """Return the bytes on disk below a folder in which files may be deleted meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total


def flatness(records: Sequence[Record]) -> Mapping[str, bool]:
    """Return whether each figure of a soak is flat, by the rules of this file."""
    count = len(records)
    middle, last = records[count // 3 : 2 * count // 3], records[2 * count // 3 :]
    if not middle:
        raise RuntimeError("the run is too short for a verdict")
    early, late = (statistics.median(one["p50_ms"] for one in part) for part in (middle, last))
    room = CHAIN_ROOM_BYTES / MIB
    log = GROUP_LOG_BYTES / MIB
    return {
        "latency": late <= FLAT * early,
        "memory": last[-1]["gateway_mb"] <= FLAT * max(one["gateway_mb"] for one in middle),
        "chain": all(one["chain_mib"] <= 2 * one["live_mib"] + room for one in records),
        "data": all(one["data_mib"] <= 2 * one["live_mib"] + room + log for one in records),
    }


def soak_line(one: Record) -> str:
    return (
        f"{one['batches']:,} micro-batches: p50 {one['p50_ms']:.0f} ms, p99 {one['p99_ms']:.0f} ms,"
        f" {one['cpu_ms']:.1f} ms of processor each; gateway {one['gateway_mb']:.0f} MB;"
        f" {one['live_mib']:.1f} MiB alive, chain {one['chain_mib']:.0f} MiB,"
        f" a server {one['data_mib']:.0f} MiB"
    )


def soak(url: str, folder: Path, options: argparse.Namespace) -> int:
    """Return 1 if a figure is not flat."""
    found = list[Record]()
    for one in measure_soak(url, folder, options):
        found.append(one)
        print(soak_line(one), flush=True)
        written(options, {"soak": found})
    verdict = flatness(found)
    print(", ".join(f"{name} {'flat' if flat else 'NOT FLAT'}" for name, flat in verdict.items()), flush=True)
    return 0 if all(verdict.values()) else 1


# --- the command --------------------------------------------------------------------------------------------

MEASURES: Final[dict[str, Callable[[str, Path, argparse.Namespace], Iterator[Record]]]] = {
    "batches": measure_batches,
    "processor": measure_processor,
    "takeover": measure_take_overs,
    "tree": measure_large_tree,
    "body": measure_body,
}


def rows_of(found: Mapping[str, Sequence[Record]], mebibytes: int) -> list[Row]:
    """Return the rows of the parts that have records."""
    rows: dict[str, Callable[[Sequence[Record]], Iterator[Row]]] = {
        "batches": batch_rows,
        "processor": processor_rows,
        "takeover": take_over_rows,
        "tree": tree_rows,
        "body": lambda records: body_rows(records, mebibytes),
    }
    return [row for part, make in rows.items() if found.get(part) for row in make(found[part])]


def options_of(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="./run bench gateway",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", type=listed(list(PARTS)), default=list(PARTS), metavar=",".join(PARTS))
    parser.add_argument("--kinds", type=listed(list(KINDS)), metavar=",".join(KINDS))
    helps = {
        "rounds": "rounds of batches, processor and body",
        "micro-batches": "micro-batches of each kind in each place and round",
        "statuses": "GETFILESTATUS of which the processor time is measured",
        "kills": f"kills for each number of files, at most {LARGE_KILLS} from {LARGE_FILES:,} files on",
        "megabytes": "MiB of the large file",
    }
    for name, value in SIZES.items():
        parser.add_argument(f"--{name}", type=int, help=f"{helps[name]} ({value:,})")
    parser.add_argument(
        "--files", type=numbers, metavar="N,...", help="files of the trees (1000,20000,200000)"
    )
    parser.add_argument("--batches", type=int, default=0, metavar="N", help="run a soak of N micro-batches")
    parser.add_argument("--queries", type=int, default=1, help="queries of the soak, in one session (1)")
    parser.add_argument("--raw", action="store_true", help="a soak without Spark")
    parser.add_argument("--quick", action="store_true", help="measure less; nothing is written")
    parser.add_argument("--page", action="store_true", help="write the section of the page for any sizes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write each measurement there")
    options = parser.parse_args(arguments)
    sizes = QUICK if options.quick else SIZES
    for name in SIZES:
        attribute = name.replace("-", "_")
        given = getattr(options, attribute)
        if given is not None and given < 1:
            parser.error(f"--{name} must be at least 1, not {given}")
        setattr(options, attribute, given or sizes[name])
    options.kinds = options.kinds or (QUICK_KINDS if options.quick else list(KINDS))
    options.files = options.files or ([200] if options.quick else list(FILES))
    return options


def numbers(text: str) -> list[int]:
    found = [int(part) for part in text.split(",")]
    if min(found) < 1:
        raise argparse.ArgumentTypeError("a tree has at least one file")
    return found


def is_for_the_page(options: argparse.Namespace) -> bool:
    """Whether the section is written."""
    whole = set(options.only) == set(PARTS) and set(options.kinds) == set(KINDS)
    sizes = all(getattr(options, name.replace("-", "_")) >= size for name, size in SIZES.items())
    return options.page or (whole and sizes and set(FILES) <= set(options.files))


def written(options: argparse.Namespace, found: Mapping[str, Sequence[Record]]) -> None:
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def main(arguments: Sequence[str]) -> int:
    options = options_of(arguments)
    raise_at_sigterm()
    found: dict[str, list[Record]] = {}

    def lines() -> list[str]:
        rows = rows_of(found, options.megabytes)
        return [f"{row.what}: {row.figure}" + (f" ({row.beside})" if row.beside else "") for row in rows]

    with tempfile.TemporaryDirectory(prefix="dos-bench-") as name, running_store(Path(name)) as url:
        if options.batches:
            return soak(url, Path(name), options)
        try:
            with printed_at_the_end(lines):
                for part in options.only:
                    say(f"measuring {part}")
                    for record in MEASURES[part](url, Path(name), options):
                        found.setdefault(part, []).append(record)
                        written(options, found)
        except KeyboardInterrupt:
            return 130
    if is_for_the_page(options):
        PLACE.write(PLACE.table(rows_of(found, options.megabytes), options.rounds))
        say("wrote the section of docs/benchmarks.md on gateways")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
