"""Measure the speed and memory of encoding, replaying, restoring and archiving journaled files.

python benchmarks/journal_speed.py [--megabytes 1000] [--s3-megabytes 350] [--pairs 3] [--json]

encode records to bytes, in one process, in memory only replay a journal file in the page cache to files,
like `dos journal replay FILE --into DIR`: every checksum is verified, and every write is made. Records of
4 KiB, and of 100 B restore the same from a server over loopback, in a process of its own, whose peak
resident memory is reported: a directory of 32 MB that was overwritten until its journal had the given
size, with and without snapshots (`recovery_bytes_max`). Half and a quarter of the journal show whether
memory grows archive a chain from a server to an S3 bucket (moto, over HTTP, in a process of its own). Each
segment is read back and verified. Then the restore from the bucket alone. Both are compared with boto3
alone, for as many bytes in objects of the same size: to store and read them, and to read them in the same
parts

Medians of the rounds are reported. MB are 10^6 bytes of journal. In addition to elapsed time, the
processor time of the measured process is reported (for a restore: of the process that restores, without
the server), which is more reliable on a shared machine.
"""

import argparse
import functools
import json
import logging
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from dos_client.store import init_store, open_store  # noqa: E402
from examples.demo.memory import peak_memory_mb  # noqa: E402
from journal import Directory, Op, Record, restore  # noqa: E402
from journal.archive.archiving import archive_chain  # noqa: E402
from journal.archive.bucket import Bucket, parse_s3_url  # noqa: E402
from journal.core.record import encode_v1  # noqa: E402
from journal.files.tree import Rebuilding  # noqa: E402
from journal.files_cli import replay_target  # noqa: E402
from journal.inspecting import archived_chain  # noqa: E402
from journal.limits import archive_read_bytes, files_segment_bytes_max  # noqa: E402

LIVE_BYTES = 32_000_000
WRITE_BYTES = 4000
FILES = 8
ALL_BYTES = 1 << 62
"""A limit for the journal bytes read by a restore that is never reached: no snapshot is ever due."""
KEYS = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_DEFAULT_REGION": "us-east-1"}


@contextmanager
def running(command: list[str], address: str) -> Iterator[str]:
    """Run a process that prints its address in its first line. Yields the address."""
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None
        match = re.search(address, process.stdout.readline())
        assert match is not None, f"{command} did not start"
        yield match[1]
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def running_server(data: Path) -> Iterator[str]:
    command = ["-m", "dos_cli", "serve", "--data", str(data), "--listen", "127.0.0.1:0"]
    with running(command, r"at ([\d.]+:\d+),") as address:
        yield f"dos://{address}"


def run_s3() -> None:
    """Serve a bucket `bench` until killed."""
    import boto3
    from moto.moto_server.threaded_moto_server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    service = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    service.start()
    host, port = service.get_host_and_port()
    os.environ.update(KEYS)
    boto3.client("s3", endpoint_url=f"http://{host}:{port}").create_bucket(Bucket="bench")
    print(f"at http://{host}:{port}", flush=True)
    trio.run(trio.sleep_forever)


# --- in one process ---------------------------------------------------------------------------------------


def records(total: int, record_bytes: int) -> list[Record]:
    """Return consecutive writes to a few files. Each record has about `record_bytes` in total."""
    paths = [f"file-{number}".encode() for number in range(FILES)]
    data = os.urandom(record_bytes - 24 - 8 - 3 * 8 - len(paths[0]))
    return [
        Record(Op.WRITE, number, (number // FILES * len(data),), (paths[number % FILES], data))
        for number in range(total // record_bytes)
    ]


class Clock:
    """Measures elapsed time, and the processor time of this process with its threads, since its creation."""

    def __init__(self) -> None:
        self._begun = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        return time.perf_counter() - self._begun[0], time.process_time() - self._begun[1]


def rates(clock: Clock, size: int, count: int) -> dict[str, float]:
    """Return the rates of that many bytes and records until now."""
    seconds, cpu_s = clock.read()
    return {
        "mb_per_s": size / seconds / 1e6,
        "mb_per_cpu_s": size / cpu_s / 1e6,
        "records_per_s": count / seconds,
        "records_per_cpu_s": count / cpu_s,
    }


def encoded(path: Path, total: int, record_bytes: int) -> dict[str, float]:
    """Measure the encoding. The journal is written to `path` after the clock has stopped."""
    given = records(total, record_bytes)
    clock = Clock()
    parts = list(map(encode_v1, given))
    found = rates(clock, sum(map(len, parts)), len(given))
    path.write_bytes(b"".join(parts))
    return found


def replayed(path: Path, into: Path) -> dict[str, float]:
    clock = Clock()
    with Rebuilding(into) as rebuilding:
        outcome = replay_target(str(path), rebuilding.replay, b"", lambda *_: None)
        rebuilding.put()
    found = rates(clock, path.stat().st_size, rebuilding.replay.records)
    assert outcome is not None
    assert outcome.fault is None
    shutil.rmtree(into)
    return found


# --- from servers and buckets -----------------------------------------------------------------------------


async def write_directory(url: str, name: str, folder: Path, total: int, recovery_bytes: int | None) -> int:
    """Overwrite a directory of LIVE_BYTES until its journal has `total` bytes. Returns the journal's size."""
    data, per_file = os.urandom(WRITE_BYTES), LIVE_BYTES // FILES // WRITE_BYTES
    options = {} if recovery_bytes is None else {"recovery_bytes": recovery_bytes}
    async with (
        open_store(url) as store,
        await store.claim(name, 1, os.urandom(16)) as claim,
        await Directory.open(folder / f"live-{name}", claim, **options) as directory,
    ):
        number = 0
        while directory.end.size < total:
            offset = number // FILES % per_file * WRITE_BYTES
            await directory.write_at(f"file-{number % FILES}", offset, data)
            number += 1
        await directory.wait_synced()
        return directory.end.size


def restored_alone(target: str, name: str, into: Path) -> dict[str, Any]:
    """Restore in a process of its own. Returns what `restore_here` prints."""
    command = [sys.executable, __file__, "--restore", target, name, str(into)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


async def restore_here(target: str, name: str, into: Path) -> dict[str, float]:
    if not target.startswith("dos://"):
        import boto3  # noqa: F401 - imported before the clock starts, like every other module
    clock = Clock()
    if target.startswith("dos://"):
        async with open_store(target) as store:
            found = await restore(into, store, name)
    else:
        found = await restore(into, await archived_chain(target, None, name, "files"), name)
    seconds, cpu_s = clock.read()
    shutil.rmtree(into)
    read_mb = found.bytes_read / 1e6
    return {
        "seconds": seconds,
        "mb_per_s": read_mb / seconds,
        "mb_per_cpu_s": read_mb / cpu_s,
        "read_mb": read_mb,
        "peak_mb": peak_memory_mb(os.getpid()),
    }


async def archived(url: str, name: str, bucket: str) -> dict[str, float]:
    opened = await trio.to_thread.run_sync(Bucket, parse_s3_url(bucket))
    clock = Clock()
    async with open_store(url) as store:
        done = await archive_chain(store, name, "files", opened)
    seconds, _ = clock.read()
    return {"seconds": seconds, "mb_per_s": done.end / seconds / 1e6}


def boto3_alone(total: int) -> dict[str, float]:
    """Return the MB/s of storing and reading as many bytes, and of reading them in parts, one at a time."""
    import boto3

    size, step = files_segment_bytes_max, archive_read_bytes
    client, data = boto3.client("s3"), os.urandom(size)
    names = [f"alone-{number}" for number in range(max(total // size, 1))]
    parts = [f"bytes={at}-{at + step - 1}" for at in range(0, size, step)]
    clock = Clock()
    for name in names:
        client.put_object(Bucket="bench", Key=name, Body=data)
        client.get_object(Bucket="bench", Key=name)["Body"].read()
    both_s, _ = clock.read()
    clock = Clock()
    for name in names:
        for part in parts:
            client.get_object(Bucket="bench", Key=name, Range=part)["Body"].read()
    parts_s, _ = clock.read()
    size_mb = len(names) * size / 1e6
    return {"put_get_mb_per_s": size_mb / both_s, "get_mb_per_s": size_mb / parts_s}


# --- everything --------------------------------------------------------------------------------------------


def median_of(pairs: int, measure: Callable[[int], dict[str, float]]) -> dict[str, float]:
    found = [measure(number) for number in range(pairs)]
    return {key: round(statistics.median(one[key] for one in found), 3) for key in found[0]}


def measure_files(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    figures = {}
    for size, total in ((4096, 200_000_000), (100, 20_000_000)):
        total = min(total, options.megabytes * 1_000_000)
        path = folder / f"{size}.journal"
        encode = functools.partial(encoded, path, total, size)
        replay = functools.partial(replayed, path)
        figures[f"encode_{size}"] = median_of(options.pairs, lambda _, work=encode: work())
        figures[f"replay_{size}"] = median_of(
            options.pairs, lambda number, work=replay, into=f"{size}-": work(folder / f"{into}{number}")
        )
    return figures


def measure_servers(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    total = options.megabytes * 1_000_000
    chains = {
        "quarter": (total // 4, ALL_BYTES),
        "half": (total // 2, ALL_BYTES),
        "all": (total, ALL_BYTES),
        "snapshots": (total, None),
    }
    figures = {}
    with running_server(folder / "server") as url:
        trio.run(init_store, url)
        for name, (size, recovery) in chains.items():
            end = trio.run(write_directory, url, name, folder, size, recovery)
            found = median_of(
                options.pairs, lambda number, n=name: restored_alone(url, n, folder / f"into-{n}-{number}")
            )
            figures[f"restore_{name}"] = {"journal_mb": end / 1e6, **found}
        figures |= measure_archive(options, folder, url)
    return figures


def measure_archive(options: argparse.Namespace, folder: Path, url: str) -> dict[str, Any]:
    os.environ.update(KEYS)
    total = options.s3_megabytes * 1_000_000
    trio.run(write_directory, url, "archived", folder, total, ALL_BYTES)
    with running([__file__, "--s3"], r"at (\S+)") as endpoint:
        os.environ["AWS_ENDPOINT_URL"] = endpoint

        def in_turn(number: int) -> dict[str, Any]:
            prefix = f"s3://bench/{number}"
            return {
                "alone": boto3_alone(total),
                "archive": trio.run(archived, url, "archived", prefix),
                "restore_s3": restored_alone(prefix, "archived", folder / f"s3-{number}"),
            }

        rounds = [in_turn(number) for number in range(options.pairs)]
    del os.environ["AWS_ENDPOINT_URL"]
    return {name: median_of(options.pairs, lambda number, n=name: rounds[number][n]) for name in rounds[0]}


def figures_text(figures: dict[str, dict[str, float]]) -> str:
    return "\n".join(
        f"{name:<18} " + ", ".join(f"{key} {value:,.1f}" for key, value in found.items())
        for name, found in figures.items()
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--s3-megabytes", type=int, default=350)
    parser.add_argument("--pairs", type=int, default=3, help="rounds of each measurement")
    parser.add_argument("--folder", type=Path, default=None, help="folder for journals and files")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--restore", nargs=3, metavar=("TARGET", "NAME", "INTO"), help=argparse.SUPPRESS)
    parser.add_argument("--s3", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.s3:
        run_s3()
    if options.restore:
        target, name, into = options.restore
        print(json.dumps(trio.run(restore_here, target, name, Path(into))))
        return 0
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        figures = {**measure_files(options, Path(place)), **measure_servers(options, Path(place))}
    print(json.dumps(figures) if options.json else figures_text(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
