"""What is sampled of real processes: bytes and files of each directory, open files, memory."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

MIB = 1 << 20


def disk(data: Iterable[Path]) -> dict[str, float]:
    """Return the bytes and the number of files of each directory of the store, over all servers."""
    found: dict[str, float] = defaultdict(float)
    for root in data:
        for path in root.rglob("*"):
            try:
                if not path.is_file():
                    continue
                size = path.stat().st_size
            except FileNotFoundError:
                continue  # deleted meanwhile
            inner = path.relative_to(root).parts
            directory = inner[1] if inner[0] == "d" and len(inner) > 2 else "/"
            found[f"disk bytes: {directory}"] += size
            found[f"disk files: {directory}"] += 1
    return dict(found)


def processes(pids: Mapping[str, int]) -> dict[str, float]:
    """Return the open files, threads and memory of processes by their names. Those that have ended have
    none."""
    found: dict[str, float] = {}
    for name, pid in pids.items():
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                found[f"open files: {name}"] = process.num_fds()
                found[f"threads: {name}"] = process.num_threads()
                found[f"memory MiB: {name}"] = process.memory_info().rss / MIB
        except psutil.NoSuchProcess:
            continue
    return found
