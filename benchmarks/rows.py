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
    """The amount to measure in each benchmark."""

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
    trace_days: int
    managed_h: float


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table. `beside`: the figures that it is compared with; `aim`: the target."""

    what: str
    figure: str
    beside: str
    aim: str


def table_lines(rows: Iterable[Row]) -> str:
    """Return the lines of a table with these rows."""
    return "\n".join(f"| {row.what} | {row.figure} | {row.beside} | {row.aim} |" for row in rows)


def run_json(
    *command: str | Path,
    python: str | Path = sys.executable,
    timeout_s: float | None = None,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run a benchmark of this directory and return the JSON of its last line. Its standard error is kept.

    Raises RuntimeError if it prints no figures, or not in time. The processes that it started are killed
    then.
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
                raise RuntimeError(f"{command[0]} printed no figures within {timeout_s:.0f} s") from error
            raise
    lines = output.strip().splitlines()
    if not lines or not lines[-1].startswith("{"):
        raise RuntimeError(f"{command[0]} ended with {process.returncode} without figures")
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def json_lines(*command: str | Path, timeout_s: float) -> Generator[dict[str, Any]]:
    """Run a benchmark of this directory and yield each of its lines of JSON when it is printed.

    Raises RuntimeError if it fails, or does not end in time. The processes that it started are killed then,
    and also when the generator is closed.
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
def printed_at_the_end(lines: Callable[[], Iterable[str]]) -> Iterator[None]:
    """Print the results so far at the end, also after an error or an interrupt."""
    try:
        yield
    except KeyboardInterrupt:
        say("interrupted; the results so far follow")
        raise
    finally:
        for line in lines():
            print(line, flush=True)
