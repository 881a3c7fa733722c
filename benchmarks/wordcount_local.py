"""Measure the demo's word count without Spark and without faults: the speed of region and store alone.

benchmarks/wordcount_local.py [--passes N] [--workers N] [--servers N] [--json]

It runs real servers and workers, each a process, on the text of the Python standard library. Words per
second are measured from RUNNING to the final checkpoint. Processor seconds are those of the processes from
start to end; they distinguish a busy machine from a slow program.
"""

import argparse
import contextlib
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import trio

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from checkpoint.core.region import CheckpointCommitted, RegionEvent, RegionState, StateChanged  # noqa: E402
from dataflow import FileSink, FileSource, Graph  # noqa: E402
from dataflow.limits import MIB, WorkerLimits, step_bytes_max  # noqa: E402
from dataflow.local import run_local  # noqa: E402
from dos_client import init_store  # noqa: E402
from examples.demo.corpus import make_corpus  # noqa: E402
from tests.support.servers import ServerProcess, url_of  # noqa: E402


def split(batch: Any) -> Any:
    words = pc.list_flatten(pc.ascii_split_whitespace(batch["line"]))
    return words.filter(pc.not_equal(words, ""))


def word_count(paths: list[Path], out: Path, passes: int) -> Graph:
    graph = Graph("wordcount")
    lines = graph.source("lines", FileSource(paths, repeat=passes))
    words = lines.flat_map("words", split, schema="word string", takes="batch")
    words.key_by("by_word", "word").count("counts").sink("out", FileSink(out))
    return graph


class Clock:
    """Records when the region began to run, and the durations of its checkpoints."""

    def __init__(self) -> None:
        self.began = self.ended = 0.0
        self.checkpoints: list[CheckpointCommitted] = []

    def __call__(self, event: RegionEvent) -> None:
        if isinstance(event, StateChanged) and event.state is RegionState.RUNNING:
            self.began = time.perf_counter()
        elif isinstance(event, CheckpointCommitted):
            self.checkpoints.append(event)
            self.ended = time.perf_counter()


def children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(
    passes: int,
    workers: int,
    servers: int,
    folder: Path,
    limits: WorkerLimits,
    server_options: tuple[str, ...] = (),
) -> dict[str, Any]:
    corpus = make_corpus(folder / "corpus", 8)
    clock = Clock()
    with contextlib.ExitStack() as stack:
        store = [
            stack.enter_context(ServerProcess(folder / f"s{i}", options=server_options))
            for i in range(servers)
        ]
        url = url_of(store)
        trio.run(lambda: init_store(url))
        before = children_cpu_s()
        graph = word_count(list(corpus.paths), folder / "out", passes)
        control = run_local(
            graph,
            name="wordcount",
            workers=workers,
            store=url,
            on_event=clock,
            logs=folder / "logs",
            worker_limits=limits,
        )
        control.wait()
        if control.status.state is not RegionState.FINISHED:
            raise RuntimeError(f"the region ended as {control.status}: {control.exception()}")
        time.sleep(0.5)  # the launcher's threads wait for the processes
        workers_cpu_s = children_cpu_s() - before
        for server in store:
            server.stop()
        servers_cpu_s = children_cpu_s() - before - workers_cpu_s
    words, seconds = corpus.words * passes, clock.ended - clock.began
    checkpoint_s = sorted(one.seconds for one in clock.checkpoints)
    return {
        "words_per_s": round(words / seconds),
        "seconds": round(seconds, 2),
        "words": words,
        "checkpoints": len(clock.checkpoints),
        "checkpoint_s_median": round(checkpoint_s[len(checkpoint_s) // 2], 3),
        "checkpoint_phases_s": clock.checkpoints[len(clock.checkpoints) // 2].phases_s,
        "workers_cpu_s": round(workers_cpu_s, 2),
        "servers_cpu_s": round(servers_cpu_s, 2),
        "workers_cpu_ns_per_word": round(workers_cpu_s / words * 1e9),
        "servers_cpu_ns_per_word": round(servers_cpu_s / words * 1e9),
        "counter_words_per_s": round(corpus.words / corpus.counting_s),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--passes", type=int, default=15)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--step-mib", type=int, default=step_bytes_max // MIB, help="input of one step")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dos-bench-") as name:
        figures = measure(
            options.passes,
            options.workers,
            options.servers,
            Path(name),
            WorkerLimits(step_bytes_max=options.step_mib * MIB),
        )
    if options.json:
        print(json.dumps(figures))
    else:
        for key, value in figures.items():
            print(f"{key:24} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
