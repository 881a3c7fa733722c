"""Write what is needed to examine a failing run later.

There is one JSON file for each failing seed. `./run sim --seed` repeats the run on the same code.
"""

import json
import subprocess
from dataclasses import asdict
from pathlib import Path

from tests.sim.nemesis import Fault
from tests.sim.result import Result
from tests.sim.run import ROOT
from tests.sim.shrink import numbers


def line_of(seed: int, faults: list[Fault] | None) -> str:
    """Return the command that repeats the run; `faults`: only these of the plan."""
    only = "" if faults is None else f" --faults {numbers(faults) or '-1'}"
    return f"./run sim --seed {seed}{only} --trace"


def commit() -> str:
    """Return the commit of the code that ran, as git reports it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:  # git is not installed
        return "unknown"
    return done.stdout.strip() or "unknown"


def keep(folder: Path, result: Result, faults: list[Fault]) -> Path:
    """Write a failing run to a file and return its path. `result`: the run with only `faults`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"seed-{result.seed}.json"
    kept = {
        "seed": result.seed,
        "commit": commit(),
        "violation": result.violation,
        "again": line_of(result.seed, faults),
        "faults": [asdict(fault) for fault in faults],
        "digest": result.digest,
        "sometimes": dict(sorted(result.history.sometimes.items())),
        "trace": result.lines,
    }
    path.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    return path
