"""Measure the copy of a region to a bucket beside the same bytes put by boto3 alone, and the size of the next
backup after a part of the keys has changed.

python benchmarks/backup_speed.py [--keys 1000000] [--changed 0.01] [--pairs 3] [--json]

The state is written as a worker writes it: one block of all keys in the first checkpoint, one of the
changed keys in the second. The service is moto in a process of its own, the store is one server. boto3
puts the same pieces, as many at a time, from memory. It runs alternately with the backup, in an order that
changes from round to round, in two ways:

- alone: nothing is read, verified or read back. boto3 itself computes a CRC32, and a SHA-256 to sign. -
with the same digests: each piece has its SHA-256 in the request, and the MD5 that the service returns is
compared. That is all the verification of a backup in a service that returns an MD5: it reads nothing back
either. What remains is the work on the side of the store: to read and verify the committed bytes.
"""

import argparse
import hashlib
import json
import os
import re
import secrets
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import pyarrow as pa
import trio

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from checkpoint import OperatorNote, limits  # noqa: E402
from checkpoint.chains.manifest_log import StoreHost  # noqa: E402
from checkpoint.chains.state_blocks import block_schema, encode_block, make_block  # noqa: E402
from checkpoint.chains.state_store import StateStore  # noqa: E402
from checkpoint.core.coordination.vocabulary import AppendCheckpoint  # noqa: E402
from checkpoint.core.records.layout import even_layout  # noqa: E402
from checkpoint.core.records.manifest import Checkpoint, WorkerCheckpoint  # noqa: E402
from checkpoint.core.region import worker_directory  # noqa: E402
from checkpoint.key_hash import hash_keys  # noqa: E402
from checkpoint.maintenance.backup import BackupDone, back_up  # noqa: E402
from checkpoint.maintenance.backup_target import open_target  # noqa: E402
from checkpoint.maintenance.stopped_region import SavepointMaker, hold_manifest  # noqa: E402
from dos_client import Store, init_store, open_store  # noqa: E402
from journal import ChainWriter, Op, Record  # noqa: E402

REGION = "bench"
BUCKET = "backups"
SCHEMA = block_schema(
    pa.schema([("key", pa.int64())]), pa.schema([("count", pa.int64()), ("at", pa.int64())])
)


@contextmanager
def process(*command: str, ready: str) -> Iterator[tuple[str, int]]:
    """Run a process in the context. Yields what the group of `ready` matches in one of its first lines, and
    the process id.
    """
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
    ) as one:
        try:
            assert one.stdout is not None
            found = next(match for line in one.stdout if (match := re.search(ready, line)))
            threading.Thread(target=one.stdout.read, daemon=True).start()  # a full pipe would block it
            yield found[1], one.pid
        finally:
            one.kill()


def processor_s(pid: int) -> float:
    """Return the processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def blocks_of(keys: "np.ndarray[Any, Any]", rng: np.random.Generator) -> list[bytes]:
    """Return the state blocks of these keys."""
    column = pa.array(keys)
    values = [pa.array(rng.integers(0, 1 << 40, len(keys))) for _ in range(2)]
    made = make_block(SCHEMA, [column], hash_keys([column]), values, np.zeros(len(keys), dtype=bool))
    return list(encode_block(made))


async def commit(
    store: Store, state: StateStore, steps: ChainWriter, number: int, keys: "np.ndarray[Any, Any]"
) -> None:
    """Commit a checkpoint in which these keys have changed."""
    steps.append(Record(Op.MARK, ints=(number,)))
    await steps.wait_synced(steps.end)
    rng = np.random.default_rng(number)
    pieces = np.array_split(keys, max(len(keys) // 200_000, 1))
    at = await state.commit(number, [("counts", data) for piece in pieces for data in blocks_of(piece, rng)])
    async with hold_manifest(StoreHost(store), REGION) as held:
        kept = held.opened.kept
        last = kept[-1].number if kept else 0
        checkpoint = Checkpoint(
            number=last + 1,
            step=number,
            incarnation=held.opened.incarnation,
            final=False,
            wall_time_ms=0,
            workers={0: WorkerCheckpoint(state=at, steps=steps.end, floors={"state": state.floor})},
            layout=even_layout(1),
            operators={"counts": OperatorNote(kind="count")},
            parent=last,
            retained=(*(one.number for one in kept), last + 1),
            irrevocable={},
        )
        await held.log.append(AppendCheckpoint(checkpoint))


Runs = dict[str, list[dict[str, float]]]


async def measure(
    url: str, pids: dict[str, int], keys: int, changed: float, pairs: int
) -> tuple[Runs, BackupDone]:
    """Return the figures of each way in each round, and the backup after some keys have changed."""
    runs: Runs = {"backup": [], "boto3": [], "boto3_checked": []}
    pids = {"client": os.getpid()} | pids
    async with open_store(url) as store:
        directory = worker_directory(REGION, 0)
        async with await store.claim(directory, 1, secrets.token_bytes(16)) as claim:
            state = await StateStore.open(claim, version=0, at=None, generation=store.record.generation)
            steps = await ChainWriter.open(claim, "steps", None, store.record.generation)
            await commit(store, state, steps, 1, np.arange(keys))
            done = await copied(store, f"s3://{BUCKET}/first")  # also the first requests of all processes
            for number in range(pairs):
                ways = list(runs)[number % 3 :] + list(runs)[: number % 3]
                for way in ways if number % 2 else reversed(ways):
                    clock = partial(measured, runs[way], pids, done.copied_bytes / 1e6)
                    if way == "backup":
                        await copied(store, f"s3://{BUCKET}/again", clock)
                    else:
                        put = put_plain if way == "boto3" else put_checked
                        await trio.to_thread.run_sync(put_all, put, done.copied_bytes, clock)
                    print(way, runs[way][-1], file=sys.stderr, flush=True)
                    await trio.to_thread.run_sync(delete_all, "again/")
            runs["state"] = [{"mb": done.copied_bytes / 1e6}]
            some = np.random.default_rng(7).choice(keys, int(keys * changed), replace=False)
            await commit(store, state, steps, 2, some)
            second = await copied(store, f"s3://{BUCKET}/first")
            await state.aclose()
    return runs, second


def summary(runs: Runs, second: BackupDone) -> dict[str, Any]:
    """Return the medians, and the medians of the ratios in each round."""
    found: dict[str, Any] = {"state_mb": runs.pop("state")[0]["mb"]}
    for way, each in runs.items():
        for key in each[0]:
            found[f"{way}_{key}"] = statistics.median(one[key] for one in each)
    for name, other in (("ratio", "boto3"), ("ratio_checked", "boto3_checked")):
        rounds = zip(runs["backup"], runs[other], strict=True)
        found[name] = statistics.median(ours["mb_per_s"] / theirs["mb_per_s"] for ours, theirs in rounds)
    return found | {"incremental_mb": second.copied_bytes / 1e6, "incremental_s": second.seconds}


Clock = Callable[[], AbstractContextManager[None]]


@contextmanager
def measured(into: list[dict[str, float]], pids: dict[str, int], megabytes: float) -> Iterator[None]:
    """Add the rate and the processor times of the context. Clients are opened, and bytes made, before it."""
    before, began = {name: processor_s(pid) for name, pid in pids.items()}, time.perf_counter()
    yield
    found = {"mb_per_s": megabytes / (time.perf_counter() - began)}
    for name, pid in pids.items():
        found[f"{name}_ms_per_mb"] = 1_000 * (processor_s(pid) - before[name]) / megabytes
    into.append(found)


async def copied(store: Store, url: str, clock: Clock = nullcontext) -> BackupDone:
    async with open_target(url) as target, target.place(REGION) as place:
        with clock():
            return await back_up(store, REGION, place, SavepointMaker(store, REGION, stopped=True))


def put_plain(client: Any, key: str, data: bytes) -> None:
    client.put_object(Bucket=BUCKET, Key=key, Body=data)


def put_checked(client: Any, key: str, data: bytes) -> None:
    sha256 = b64encode(hashlib.sha256(data).digest()).decode()
    done = client.put_object(Bucket=BUCKET, Key=key, Body=data, ChecksumSHA256=sha256)
    assert done["ETag"].strip('"') == hashlib.md5(data, usedforsecurity=False).hexdigest()


def put_all(put: Callable[[Any, str, bytes], None], count: int, clock: Clock) -> None:
    """Put as many bytes by boto3, in pieces of the same size."""
    client = boto3.session.Session().client("s3")
    size = limits.backup_piece_bytes_max
    pieces = [os.urandom(min(size, count - begin)) for begin in range(0, count, size)]
    with clock(), ThreadPoolExecutor(limits.backup_copies_max) as pool:
        list(pool.map(put, [client] * len(pieces), [f"again/{one}" for one in range(len(pieces))], pieces))


def delete_all(prefix: str) -> None:
    boto3.session.Session().resource("s3").Bucket(BUCKET).objects.filter(Prefix=prefix).delete()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--changed", type=float, default=0.01)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="dos-bench-") as folder,
        process(
            sys.executable,
            "-m",
            "dos_cli",
            "serve",
            "--data",
            folder,
            "--listen",
            "127.0.0.1:0",
            ready=r" at (\S+),",
        ) as (server, store_pid),
        process(sys.executable, "-m", "moto.server", "-p", "0", ready=r"(http://127\S+)") as (
            endpoint,
            service_pid,
        ),
    ):
        os.environ |= {
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL_S3": endpoint,
        }
        boto3.session.Session().client("s3").create_bucket(Bucket=BUCKET)
        trio.run(init_store, f"dos://{server}")
        pids = {"service": service_pid, "store": store_pid}
        arguments = (f"dos://{server}", pids, options.keys, options.changed, options.pairs)
        found = summary(*trio.run(measure, *arguments))
    if options.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name}: {value:.2f}")


if __name__ == "__main__":
    main()
