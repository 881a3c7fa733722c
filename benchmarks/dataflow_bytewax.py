"""Measure Bytewax with recovery, for `./run bench dataflow`: a `stateful_map` in Python, row by row.

dataflow_bytewax.py FOLDER KEYS ROWS [--workers N] [--cap SECONDS]

It runs with the Python of a separate environment (`own_environment.py`). It starts N processes of one
worker each, with a snapshot every second into as many SQLite files on the local disk. Prints one line of
JSON.
"""

import argparse
import os
import struct
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dataflow_meter import Meter
from dataflow_program import FILE_ROWS, free_port, input_files, linked, run

FLOW = Path(__file__).parent / "dataflow_bytewax_flow.py"


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    paths = input_files(options)
    source, recovery, counts = linked(paths, folder), folder / "recovery", folder / "counts"
    for one in (recovery, counts):
        one.mkdir()
    subprocess.run([sys.executable, "-m", "bytewax.recovery", recovery, str(options.workers)], check=True)
    addresses = ";".join(f"127.0.0.1:{free_port()}" for _ in range(options.workers))
    environment = {**os.environ, "DOS_BENCH_INPUT": str(source), "DOS_BENCH_COUNTS": str(counts)}
    run = [sys.executable, "-m", "bytewax.run", str(FLOW), "-r", str(recovery), "-s", "1", "-b", "0"]

    def rows_so_far() -> int:
        return sum(struct.unpack("q", path.read_bytes())[0] for path in counts.iterdir())

    with ExitStack() as stack:
        processes = []
        for number in range(options.workers):
            more = [] if options.workers == 1 else ["-i", str(number), "-a", addresses]
            process = stack.enter_context(subprocess.Popen([*run, *more], env=environment, cwd=folder))
            stack.callback(process.kill)
            processes.append(process)
        figures = Meter(len(paths) * FILE_ROWS, options.cap).watch(
            rows_so_far, lambda: any(process.poll() is not None for process in processes)
        )
    if any(process.returncode > 0 for process in processes):
        raise RuntimeError(f"Bytewax ended with {[process.returncode for process in processes]}")
    return {**figures, "version": version()}


def version() -> str:
    from importlib.metadata import version as version_of

    return version_of("bytewax")


if __name__ == "__main__":
    run(measure, __doc__)
