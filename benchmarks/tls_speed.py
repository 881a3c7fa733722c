"""Measure the cost of TLS: the same work over plain text and over TLS with certificates at both ends.

    python benchmarks/tls_speed.py [--pairs 3] [--megabytes 256] [--appends 100] [--passes 6] [--json]

- *session*: open a session with one server and close it, in ms: for TLS with the handshake.
- *stream*: a durable stream of 64 KiB appends to one server, in MB/s.
- *processor*: the processor time of the client and the server for that, in seconds for each GB.
- *read*: a large object of one server, read once by the client, in MB/s.
- *writers*: 64 writers of a store of three, each with 1 KiB and a wait until it is durable, in appends per
  second.
- *words*: the word count of `wordcount_local.py` with two workers and three servers, in words per second.

All processes are on one machine, so the processor time of both ends of each connection is in the figures.
"""

import argparse
import json
import os
import secrets
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

import trio
from store_stream import running_servers, stream
from store_writers import BLOCK, WRITERS, all_at_once
from wordcount_local import measure as count_words

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from dataflow.limits import WorkerLimits  # noqa: E402
from dos_client import init_store, open_connection, open_store  # noqa: E402
from dos_tls.authority import Authority  # noqa: E402

SESSIONS = 200
READ_BYTES = 1 << 20


async def sessions_ms(url: str) -> float:
    """Return the milliseconds of a session that is opened and closed."""
    address = url.removeprefix("dos://")
    begin = time.perf_counter()
    for _ in range(SESSIONS):
        async with open_connection(address):
            pass
    return 1_000 * (time.perf_counter() - begin) / SESSIONS


async def read_rate(url: str, total: int) -> float:
    """Return the MB/s of a read of the object that `stream` has written."""
    async with open_store(url, client="tls_speed") as store:
        begin, at = time.perf_counter(), 0
        while at < total:
            at += len(await store.read("bench", "stream", at, READ_BYTES))
        return total / 1e6 / (time.perf_counter() - begin)


async def writers_rate(url: str, appends: int) -> float:
    """Return how many durable appends 64 writers make in a second."""
    await init_store(url)
    async with open_store(url, client="tls_speed") as store, AsyncExitStack() as stack:
        writers = []
        for number in range(WRITERS):
            claim = await store.claim(f"bench.w{number:04d}", 1, secrets.token_bytes(16))
            writers.append((await stack.enter_async_context(claim)).open_object("records"))
        await all_at_once(writers, BLOCK, 5)
        seconds, times = await all_at_once(writers, BLOCK, appends)
        return len(times) / seconds


def processor_s(pids: list[int]) -> float:
    """Return the processor time of this process and of the servers."""
    ticks = os.sysconf("SC_CLK_TCK")
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return time.process_time() + sum(int(one[11]) + int(one[12]) for one in fields) / ticks


def measure(folder: Path, options: argparse.Namespace, *server_options: str) -> dict[str, float]:
    """Measure everything once."""
    found: dict[str, float] = {}
    total = options.megabytes * 1_000_000 // 65_536 * 65_536
    with running_servers(folder / "one", 1, *server_options) as (url, pids):
        found["session"] = trio.run(sessions_ms, url)
        before = processor_s(pids)
        found["stream"] = total / 1e6 / trio.run(stream, url, total)
        found["processor"] = (processor_s(pids) - before) / (total / 1e9)
        found["read"] = trio.run(read_rate, url, total)
    with running_servers(folder / "three", 3, *server_options) as (url, _):
        found["writers"] = trio.run(writers_rate, url, options.appends)
    words = folder / "words"
    words.mkdir()
    counted = count_words(options.passes, 2, 3, words, WorkerLimits(), server_options)
    found["words"] = float(counted["words_per_s"])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--appends", type=int, default=100)
    parser.add_argument("--passes", type=int, default=6)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {"plain": [], "tls": []}
    with tempfile.TemporaryDirectory(prefix="dos-bench-") as name:
        authority = Authority.create(Path(name, "tls"))
        server, client = authority.add_server(["127.0.0.1"]), authority.add_client()
        for number in range(options.pairs):
            for case in found:
                folder = Path(name, f"{case}-{number}")
                folder.mkdir()
                os.environ.pop("DOS_TLS", None)
                given: tuple[str, ...] = ()
                if case == "tls":
                    os.environ["DOS_TLS"] = str(client)
                    given = ("--tls", str(server), "--tls-client-auth")
                found[case].append(measure(folder, options, *given))
                print(case, found[case][-1], file=sys.stderr, flush=True)
    medians = {
        case: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        for case, runs in found.items()
    }
    pairs = list(zip(found["tls"], found["plain"], strict=True))
    medians["ratio"] = {
        key: statistics.median(tls[key] / plain[key] for tls, plain in pairs) for key in pairs[0][0]
    }
    print(json.dumps(medians) if options.json else medians)


if __name__ == "__main__":
    main()
