"""Measure a durable stream of 64 KiB appends through the trio client, to one server or to a store of three,
compared with a plain copy.

python benchmarks/store_stream.py [--members 1|3] [--megabytes 512] [--pairs 5] [--bare
../shared/bench/bare_copy.py] [--json] [--aim 0.7]

The writer uses the calls of an application: `open_store`, a claim, `append`, `wait_room`, and at the end
`wait_synced`, which returns when a quorum (1 of 1, 2 of 3) has everything on stable storage. It is
compared with `bare_copy.py file` for one server and `bare_copy.py three` for three: a plain copy of the
same bytes from sockets to files, complete when one or two have replied. The pairs alternate and medians
are reported. The ratio is more reliable than the figures, because both vary with the disk. Exit code 0; 1
if the ratio is below `--aim`.
"""

import argparse
import json
import os
import re
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from dos_client import init_store, open_store  # noqa: E402

APPEND_BYTES = 64 * 1024


@contextmanager
def running_servers(folder: Path, count: int, *options: str) -> Iterator[tuple[str, list[int]]]:
    """Start servers with options. Yields their URL and process ids."""
    processes: list[subprocess.Popen[str]] = []
    addresses = []
    try:
        for index in range(count):
            command = [sys.executable, "-m", "dos_cli", "serve", "--data", str(folder / f"server-{index}")]
            process = subprocess.Popen(
                [*command, "--listen", "127.0.0.1:0", *options], stdout=subprocess.PIPE, text=True, cwd=ROOT
            )
            processes.append(process)
            assert process.stdout is not None
            match = re.search(r"at ([\d.]+:\d+),", process.stdout.readline())
            assert match is not None, "a server did not start"
            addresses.append(match[1])
        yield "dos://" + ",".join(addresses), [process.pid for process in processes]
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(30)


async def stream(url: str, total: int) -> float:
    """Return the seconds until everything is durable on a quorum."""
    block = os.urandom(APPEND_BYTES)
    await init_store(url)
    async with (
        open_store(url, client="store_stream") as store,
        await store.claim("bench", 1, secrets.token_bytes(16)) as claim,
    ):
        writer = claim.open_object("stream")
        begin = time.perf_counter()
        while writer.size < total:
            writer.append(block)
            await writer.wait_room()
        await writer.wait_synced(writer.size)
        return time.perf_counter() - begin


def our_rate(total: int, folder: Path, members: int) -> tuple[float, float]:
    """Return the MB/s through the client, and the peak resident MB of a server."""
    with tempfile.TemporaryDirectory(dir=folder) as data, running_servers(Path(data), members) as (url, pids):
        seconds = trio.run(stream, url, total)
        return total / seconds / 1e6, max(resident_mb(pid) for pid in pids)


def resident_mb(pid: int) -> float:
    """Return the peak resident memory of a process, in MB."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(match[1]) / 1000 if match else 0.0


def bare_rate(total: int, folder: Path, script: Path, members: int) -> float:
    """Return the MB/s of the plain copy."""
    mode = "file" if members == 1 else "three"
    command = [sys.executable, str(script), mode, str(total), str(APPEND_BYTES), str(folder)]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout
    match = re.search(r"(\d+) MB/s", text)
    assert match is not None, text
    return float(match[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--members", type=int, choices=(1, 3), default=1)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--bare", type=Path, default=ROOT.parent / "shared/bench/bare_copy.py")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--aim", type=float, default=0.7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    total = options.megabytes * 1_000_000 // APPEND_BYTES * APPEND_BYTES
    pairs = []
    for _ in range(options.pairs):
        ours, server_mb = our_rate(total, options.folder, options.members)
        bare = bare_rate(total, options.folder, options.bare, options.members)
        pairs.append({"ours": ours, "bare": bare, "ratio": ours / bare, "server_mb": server_mb})
        if not options.json:
            print(f"ours {ours:.0f} MB/s, bare {bare:.0f} MB/s, ratio {ours / bare:.2f}", flush=True)
    median = {key: statistics.median(pair[key] for pair in pairs) for key in pairs[0]}
    if options.json:
        print(json.dumps({"members": options.members, "pairs": pairs, "median": median}))
    else:
        rates = f"ours {median['ours']:.0f} MB/s, bare {median['bare']:.0f} MB/s"
        print(f"median: {rates}, ratio {median['ratio']:.2f}")
    sys.exit(0 if median["ratio"] >= options.aim else 1)


if __name__ == "__main__":
    main()
