"""Measure the memory of one server: with many idle connections, and while an object grows.

python benchmarks/server_memory.py [--connections 1000] [--gigabytes 1] [--folder DIR] [--json]

Idle connections have sent HELLO and entered a directory, and have sent nothing since. The object grows by
durable appends of 1 MiB. The resident memory is read ten times meanwhile, and its slope over the last half
is reported: an index or a queue that grows with the object would be visible there. If the disk has not
enough space for the object and a tenth more, the object grows to the free space, and the figures contain
that size. Everything is removed at the end.
"""

import argparse
import json
import os
import resource
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from load_sessions import Watermarks, dos_login
from streams import WINDOW_BYTES
from yardsticks import Running, raise_at_sigterm, running_dos

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from dos_protocol import messages as m  # noqa: E402
from dos_protocol.digests import PrefixDigest  # noqa: E402
from dos_protocol.frames import frame_head  # noqa: E402
from dos_protocol.limits import MIB  # noqa: E402

SAMPLES: Final = 10
SPARE: Final = 1.1
"""This factor times the size of the object must be free on the disk."""


def idle(folder: Path, count: int) -> dict[str, Any]:
    """Return the resident MB before any connection, and with `count` idle connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, count + 256)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard < 0 else min(hard, wanted), hard))
    with running_dos(folder / "idle") as dos:
        before = dos.resident_mb
        socks = [dos_login(dos.address, "idle") for _ in range(count)]
        found = {"connections": count, "before_mb": before, "resident_mb": dos.resident_mb}
        for sock in socks:
            sock.close()
    return found


def growth(folder: Path, gigabytes: float) -> dict[str, Any]:
    """Return the resident MB while an object grows, and the increase in MB per GB."""
    room = shutil.disk_usage(folder).free / SPARE / 1e9
    goal = min(gigabytes, room)
    with running_dos(folder / "growth") as dos:
        samples = _grow(dos, int(goal * 1e9))
        peak = dos.peak_mb
    half = samples[len(samples) // 2 :]
    slope = (half[-1][1] - half[0][1]) / max(half[-1][0] - half[0][0], 1e-9)
    return {
        "gigabytes": samples[-1][0],
        "wanted_gigabytes": gigabytes,
        "peak_mb": peak,
        "mb_per_gb": slope,
        "samples": samples,
    }


def _grow(dos: Running, total: int) -> list[tuple[float, float]]:
    sock, block = dos_login(dos.address, "growth"), os.urandom(MIB)
    fold, watermarks, samples = PrefixDigest(), Watermarks(), []
    for part in range(1, SAMPLES + 1):
        goal = total * part // SAMPLES
        while fold.size < goal:
            head = frame_head(m.encode(m.Append("object", fold.size, fold.value, block), 1))
            sock.sendall(head)
            sock.sendall(block)
            fold.update(block)
            while fold.size - watermarks.synced > WINDOW_BYTES:
                watermarks.take(sock.recv(65_536))
        while watermarks.synced < fold.size:
            watermarks.take(sock.recv(65_536))
        samples.append((fold.size / 1e9, dos.resident_mb))
        print(f"object of {samples[-1][0]:.1f} GB: {samples[-1][1]:.1f} MB", file=sys.stderr, flush=True)
    return samples


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--connections", type=int, default=1_000)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()), help="folder for all data"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    raise_at_sigterm()
    with tempfile.TemporaryDirectory(prefix="dos-bench-", dir=options.folder) as name:
        found = {
            "idle": idle(Path(name), options.connections),
            "growth": growth(Path(name), options.gigabytes),
        }
    if options.json:
        print(json.dumps({"name": "server_memory", **found}))
    else:
        print(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
