"""Shared code of `./run bench`: table lines, the amount to measure, and running a benchmark of this
directory.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured of each."""

    pairs: int
    stream_mb: int
    server_scale: float
    growth_gb: float
    passes: int
    baseline_s: float
    large_object_mb: int
    chain_mb: int
    checkpoint_scale: float
    recoveries: int
    latency_s: float


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    what: str
    figure: str
    beside: str
    aim: str


def run_json(
    *command: str | Path,
    python: str | Path = sys.executable,
    timeout_s: float | None = None,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run a benchmark of this directory and read the JSON of its last line. Its other words are passed on.

    Raises RuntimeError when it gives no figures, or not in time; then what it started is ended with it.
    """
    with subprocess.Popen(
        [python, *map(str, command)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise RuntimeError(f"{command[0]} gave no figures in {timeout_s:.0f} s") from error
            raise
    lines = output.strip().splitlines()
    if not lines or not lines[-1].startswith("{"):
        raise RuntimeError(f"{command[0]} ended with {process.returncode} and no figures")
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def json_lines(*command: str | Path, timeout_s: float) -> Generator[dict[str, Any]]:
    """Run a benchmark of this directory and give each of its lines of JSON as it comes.

    Raises RuntimeError when it ends badly, or not in time; then, and when nobody asks for more, what it
    started is ended with it.
    """
    with subprocess.Popen(
        [sys.executable, *map(str, command)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        watchdog = threading.Timer(timeout_s, os.killpg, (process.pid, signal.SIGKILL))
        watchdog.start()
        try:
            assert process.stdout is not None, "a pipe"
            for line in process.stdout:
                if line.startswith("{"):
                    yield json.loads(line)
            if process.wait() != 0:
                raise RuntimeError(f"{command[0]} ended with {process.returncode}")
        finally:
            watchdog.cancel()
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def told_at_the_end(lines: Callable[[], Iterable[str]]) -> Iterator[None]:
    """Report the results so far in any case."""
    try:
        yield
    except KeyboardInterrupt:
        say("interrupted: this is what was measured so far")
        raise
    finally:
        for line in lines():
            print(line, flush=True)
