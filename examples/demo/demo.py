"""The demo itself: prepare, run, break, judge. Each step is a method; what it uses is in the files beside."""

import contextlib
import json
import math
import shutil
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dos
from checkpoint.core.region import (
    CheckpointCommitted,
    RegionEvent,
    RegionState,
    RegionStatus,
    ResetReport,
    StateChanged,
    WorkerLost,
)
from examples.demo.cluster import Cluster
from examples.demo.corpus import Corpus, make_corpus
from examples.demo.display import Display, Picture, WorkerPicture
from examples.demo.engine import Speedometer, load_example, start_spark
from examples.demo.faults import draw_faults
from examples.demo.injector import Injector
from examples.demo.memory import peak_memory_mb
from examples.demo.verdict import Verdict, judge

REGION = "wordcount"
AIM_S = 60.0
"""How long the counting should last by the default number of passes: at least 40 s and 15 checkpoints."""
SPEED_OF_COUNTER = 0.7
"""A region's words/s as a part of what `Counter` does on one core: what the default number of passes rests
on.
"""
PASSES_MIN = 4
POLL_S = 0.1
DISPLAY_EVERY_S = 0.25
STUCK_S = 120.0


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line."""

    seed: int
    workers: int
    passes: int | None
    faults: bool
    truncate: bool
    out: Path | None
    keep: Path | None
    report: Path | None
    plain: bool


class DemoError(Exception):
    """The demo could not show what it is for; the message has the reason."""


class Demo:
    """One run. `run` returns whether the verdict is right."""

    def __init__(self, options: Options, display: Display) -> None:
        self.options = options
        self.display = display
        self._resets: list[ResetReport] = []
        self._memory_mb: dict[str, float] = {}
        self._checkpoints = 0
        self._checkpoint_s: list[float] = []
        self._listening = threading.Event()
        self._listening.set()
        """Cleared at the end: events of a region that is being stopped are not displayed."""
        self._began = math.nan
        self._ended = math.nan

    def run(self) -> bool:
        """Run the demo. Raises DemoError, and what the region failed with."""
        with contextlib.ExitStack() as cleanup:
            directory = self._directory(cleanup)
            out = (self.options.out or directory / "out").resolve()
            corpus = make_corpus(directory / "corpus", parts=self.options.workers)
            passes = self.options.passes or default_passes(corpus)
            self._report_corpus(corpus, passes)
            cluster = Cluster(directory)
            cleanup.callback(cluster.stop)
            self.display.happened(f"3 servers, a store of them: {cluster.url} (2 of 3 acknowledge)")
            spark = start_spark(directory / "spark", self.options.workers)
            cleanup.callback(spark.stop)
            self.display.happened(f"Spark {spark.version} on {spark.sparkContext.master}")
            source = dos.FileSource([str(path) for path in corpus.paths], repeat=passes)
            sink = dos.FileSink(str(out), truncate_on_reset=self.options.truncate)
            region = dos.run(
                spark,
                load_example().wordcount(source, sink),
                name=REGION,
                workers=self.options.workers,
                store=cluster.url,
                scratch=directory / "scratch",
                on_event=self._on_event,
            )
            cleanup.callback(self._listening.clear)
            self._watch(region, cluster, corpus, passes)
            return self._conclude(out, corpus, passes, self._ended - self._began)

    # --- before ---------------------------------------------------------------------------------------------

    def _directory(self, cleanup: contextlib.ExitStack) -> Path:
        keep = self.options.keep
        if keep is None:
            directory = Path(tempfile.mkdtemp(prefix="dos-demo-"))
            cleanup.callback(shutil.rmtree, directory, ignore_errors=True)
            return directory
        if keep.exists() and any(keep.iterdir()):
            raise DemoError(f"{keep} is not empty: name a new directory")
        keep.mkdir(parents=True, exist_ok=True)
        return keep.resolve()

    def _report_corpus(self, corpus: Corpus, passes: int) -> None:
        self.display.happened(
            f"input: {corpus.words:,} words of Python's standard library ({corpus.size_bytes / 1e6:.1f} MB,"
            f" {len(corpus.counts):,} distinct), read {passes} times"
        )

    # --- meanwhile ------------------------------------------------------------------------------------------

    def _watch(self, region: dos.RegionHandle, cluster: Cluster, corpus: Corpus, passes: int) -> None:
        """Display the region and inject faults until it has ended."""
        options = self.options
        faults = draw_faults(options.seed, workers=options.workers, servers=3) if options.faults else []
        injector = Injector(faults, cluster, lambda text: self.display.happened(text, "bold"))
        if faults:
            self.display.happened(f"seed {options.seed}: will lose {', '.join(map(str, faults))}")
        speed, displayed_at = Speedometer(), 0.0
        while region.isActive:
            now, status = time.monotonic(), region.status
            speed.sample(status, now)
            injector.inspect(status, speed.position_bytes / (corpus.size_bytes * passes))
            if now - displayed_at >= DISPLAY_EVERY_S:
                displayed_at = now
                self.display.show(picture_of(status, speed, corpus, cluster, injector))
                self._note_memory(status, cluster)
            region.awaitTermination(POLL_S)
        region.awaitTermination(STUCK_S)
        injector.finish()
        if injector.waiting:
            raise DemoError(
                f"the run was over before {', '.join(map(str, injector.waiting))} could be injected:"
                f" {passes} passes are too few on this machine, give more with --passes"
            )

    def _on_event(self, event: RegionEvent) -> None:
        if not self._listening.is_set():
            return
        match event:
            case StateChanged(state=RegionState.RUNNING) if math.isnan(self._began):
                self._began = time.monotonic()
            case StateChanged(state=RegionState.FINISHED):
                self._ended = time.monotonic()
            case CheckpointCommitted(seconds=seconds):
                self._checkpoints += 1
                self._checkpoint_s.append(seconds)
            case WorkerLost(worker=worker, reason=reason):
                first = reason.strip().splitlines()[-1] if reason.strip() else "no reason given"
                self.display.happened(f"worker {worker} is lost: {first[:100]}", "yellow")
            case ResetReport() as reset:
                self._resets.append(reset)
                self.display.happened(
                    f"back at checkpoint {reset.checkpoint} after {reset.seconds:.1f} s,"
                    f" {reset.bytes / 1e6:.1f} MB replayed (incarnation {reset.incarnation})",
                    "green",
                )
            case _:
                pass

    def _note_memory(self, status: RegionStatus, cluster: Cluster) -> None:
        for server in cluster.started:
            if server.alive:
                self._memory_mb[f"server {server.number}"] = peak_memory_mb(server.process.pid)
        for worker in status.workers:
            if worker.pid:
                self._memory_mb[f"worker {worker.index}"] = peak_memory_mb(worker.pid)

    # --- afterwards -----------------------------------------------------------------------------------------

    def _conclude(self, out: Path, corpus: Corpus, passes: int, seconds: float) -> bool:
        words = corpus.words * passes
        self.display.happened(
            f"counted {words:,} words in {seconds:.1f} s: {words / seconds / 1e6:.2f} M words/s,"
            f" {self._checkpoints} checkpoints, {len(self._resets)} resets"
        )
        verdict = judge(out.glob("part-w*.tsv"), corpus.counts, passes)
        self._report_verdict(verdict)
        if self.options.report is not None:
            self.options.report.write_text(json.dumps(self._report(verdict, words, seconds), indent=1))
        return verdict.right

    def _report_verdict(self, verdict: Verdict) -> None:
        self.display.happened(
            f"{verdict.lines:,} lines of output, {verdict.distinct:,} distinct words,"
            f" sha256 of their final counts {verdict.fingerprint[:16]}"
        )
        if verdict.right:
            self.display.happened("RIGHT: the same as collections.Counter, byte for byte", "bold green")
            return
        self.display.happened(
            f"WRONG: {verdict.wrong_counts:,} words have another count than collections.Counter says,"
            f" {verdict.not_increasing:,} lines do not increase",
            "bold red",
        )
        for example in verdict.examples:
            self.display.happened(f"  {example}", "red")

    def _report(self, verdict: Verdict, words: int, seconds: float) -> dict[str, Any]:
        durations = sorted(self._checkpoint_s)
        return {
            "right": verdict.right,
            "words": words,
            "seconds": round(seconds, 3),
            "words_per_s": round(words / seconds),
            "checkpoints": self._checkpoints,
            "checkpoint_s_median": round(durations[len(durations) // 2], 4) if durations else None,
            "resets": [{"seconds": reset.seconds, "bytes": reset.bytes} for reset in self._resets],
            "output_lines": verdict.lines,
            "peak_memory_mb": self._memory_mb,
        }


def default_passes(corpus: Corpus) -> int:
    """Return so many passes that counting takes about `AIM_S` at the speed that was measured."""
    words_per_s = SPEED_OF_COUNTER * corpus.words / corpus.counting_s
    return max(PASSES_MIN, round(AIM_S * words_per_s / corpus.words))


def picture_of(
    status: RegionStatus, speed: Speedometer, corpus: Corpus, cluster: Cluster, injector: Injector
) -> Picture:
    """Return what to display. The number of words is an estimate: bytes read times the words per byte."""
    words_per_byte = corpus.words / corpus.size_bytes
    servers = [
        (f"{server.number} at {server.address}", "serving" if server.alive else "lost, data deleted")
        for server in cluster.started
    ]
    if injector.filling:
        servers.append(("replacement", injector.filling))
    return Picture(
        state=status.state.value,
        words=round(speed.position_bytes * words_per_byte),
        words_per_s=speed.bytes_per_s * words_per_byte,
        step=status.step,
        checkpoint=status.last_checkpoint,
        incarnation=status.incarnation,
        workers=tuple(
            WorkerPicture(w.index, w.state, w.pid, w.attempt, w.step, w.lag_bytes) for w in status.workers
        ),
        servers=tuple(servers),
    )
