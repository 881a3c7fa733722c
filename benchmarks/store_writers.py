"""Measure many writers of a store of three, acknowledged by two, beside a cluster of three etcd.

python benchmarks/store_writers.py [--pairs 3] [--appends 200] [--rounds 30] [--folder DIR] [--json]

- *writers*: 64 writers, each with a directory of its own, append 1 KiB and wait until it is durable; each
  writer of etcd puts 1 KiB at its own key, by the JSON gateway of the leader, and waits for the answer.
- *checkpoint*: 2 or 100 workers append a record of 4 KiB at the same moment, as at a barrier. It ends when
  all records are durable: the sync phase of a checkpoint.

One process has all writers, so the rate is limited by the client, too: that of etcd is a plain loop over
sockets, which costs less than ours. Processor time is that of all processes, the client's included. Servers
with a group log, servers without one and etcd alternate (A B C A B C). The figures are medians.
"""

import argparse
import base64
import json
import os
import secrets
import selectors
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import trio
from dataflow_meter import cpu_seconds
from store_stream import running_servers
from yardsticks import Address, etcd_program, running_etcd

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from dos_client import ObjectWriter, init_store, open_store  # noqa: E402

WRITERS = 64
WORKERS = (2, 100)
BLOCK, STATE = os.urandom(1_024), os.urandom(4_096)
Figures = dict[str, float]


async def append_each(writer: ObjectWriter, data: bytes, count: int, times: list[float]) -> None:
    """Append and wait, so many times. The milliseconds of each go to `times`."""
    for _ in range(count):
        begin = time.perf_counter()
        await writer.wait_synced(writer.append(data))
        times.append(1_000 * (time.perf_counter() - begin))


async def all_at_once(writers: list[ObjectWriter], data: bytes, count: int) -> tuple[float, list[float]]:
    """Return the seconds until all writers have made so many appends, and the milliseconds of each append."""
    times: list[float] = []
    begin = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for writer in writers:
            nursery.start_soon(append_each, writer, data, count, times)
    return time.perf_counter() - begin, times


async def measure(url: str, pids: list[int], appends: int, rounds: int) -> Figures:
    """Measure one store, whose servers are these processes."""
    await init_store(url)
    async with open_store(url, client="store_writers") as store, AsyncExitStack() as stack:
        writers = []
        for number in range(max(WRITERS, *WORKERS)):
            claim = await store.claim(f"bench.w{number:04d}", 1, secrets.token_bytes(16))
            writers.append((await stack.enter_async_context(claim)).open_object("records"))
        await all_at_once(writers, BLOCK, 5)
        used = _used(pids)
        seconds, times = await all_at_once(writers[:WRITERS], BLOCK, appends)
        found = _figures(seconds, times, _used(pids) - used)
        for count in WORKERS:
            phases = [1_000 * (await all_at_once(writers[:count], STATE, 1))[0] for _ in range(rounds)]
            found[f"checkpoint_{count}_ms"] = statistics.median(phases)
        return found


def measure_etcd(address: Address, pids: list[int], appends: int) -> Figures:
    """Measure a cluster of etcd, whose members are these processes."""
    put_each(address, 5)
    used = _used(pids)
    seconds, times = put_each(address, appends)
    return _figures(seconds, times, _used(pids) - used)


def put_each(address: Address, count: int) -> tuple[float, list[float]]:
    """Put 1 KiB at 64 keys, so many times each. Return the seconds, and the milliseconds of each put."""
    times: list[float] = []
    with selectors.DefaultSelector() as ready, ExitStack() as stack:
        requests, begun, left = dict[socket.socket, bytes](), dict[socket.socket, float](), {}
        for number in range(WRITERS):
            key, value = (base64.b64encode(text).decode() for text in (b"writer-%d" % number, BLOCK))
            body = json.dumps({"key": key, "value": value}).encode()
            head = f"POST /v3/kv/put HTTP/1.1\r\nHost: etcd\r\nContent-Length: {len(body)}\r\n\r\n"
            sock = stack.enter_context(socket.create_connection(address))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            requests[sock], left[sock] = head.encode() + body, count
            ready.register(sock, selectors.EVENT_READ)
        begin = time.perf_counter()
        for sock, request in requests.items():
            begun[sock] = time.perf_counter()
            sock.sendall(request)
        while left:
            for key, _ in ready.select():
                sock = key.fileobj
                answer = sock.recv(65_536)
                # an answer is one small write of the leader: less than all of it is an error here
                if not (answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"}")):
                    raise RuntimeError(f"etcd did not put: {answer[:300]!r}")
                now = time.perf_counter()
                times.append(1_000 * (now - begun[sock]))
                left[sock] -= 1
                if left[sock]:
                    begun[sock] = now
                    sock.sendall(requests[sock])
                else:
                    ready.unregister(sock)
                    del left[sock]
        return time.perf_counter() - begin, times


def _used(pids: list[int]) -> float:
    """Return the processor seconds of servers and of this process."""
    return cpu_seconds(pids) + time.process_time()


def _figures(seconds: float, times: list[float], used: float) -> Figures:
    cuts = statistics.quantiles(times, n=100)
    return {
        "rate": len(times) / seconds,
        "p50_ms": cuts[49],
        "p99_ms": cuts[98],
        "cpu_us": 1e6 * used / len(times),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--appends", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, list[Figures]] = {"log": [], "without": []}
    program = etcd_program()
    for _ in range(options.pairs):
        for case, more in (("log", ()), ("without", ("--group-log", "0"))):
            with (
                tempfile.TemporaryDirectory(dir=options.folder) as data,
                running_servers(Path(data), 3, *more) as (url, pids),
            ):
                found[case].append(trio.run(measure, url, pids, options.appends, options.rounds))
        if program is not None:
            with (
                tempfile.TemporaryDirectory(dir=options.folder) as data,
                running_etcd(program, Path(data), 3) as members,
            ):
                pids = [member.pid for member in members]
                figures = measure_etcd(members[0].address, pids, options.appends)
                found.setdefault("etcd", []).append(figures)
        for case, runs in found.items():
            print(case, runs[-1], file=sys.stderr, flush=True)
    medians = {case: over(runs, statistics.median) for case, runs in found.items()}
    if options.json:
        print(json.dumps(medians))
    else:
        for case, figures in medians.items():
            print(f"{case:<8}", "   ".join(f"{key} {value:,.1f}" for key, value in figures.items()))


def over(runs: list[Figures], of: Callable[[list[float]], float]) -> Figures:
    """Return the figures of all runs as one."""
    return {key: of([run[key] for run in runs]) for key in runs[0]}


if __name__ == "__main__":
    main()
