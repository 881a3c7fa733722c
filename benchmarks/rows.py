"""What the measures of `./run bench` share: a line of the table, how much is measured, and running a
benchmark of this directory.

Rules of this file: no figure is taken here.
"""

import json
import subprocess
import sys
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


def run_json(*command: str | Path) -> dict[str, Any]:
    """Run a benchmark of this directory and read the JSON of its last line. Its other words are passed on."""
    done = subprocess.run([sys.executable, *map(str, command)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    lines = done.stdout.strip().splitlines()
    if not lines or not lines[-1].startswith("{"):
        raise RuntimeError(f"{command[0]} ended with {done.returncode} and no figures")
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
