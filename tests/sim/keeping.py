"""What is kept of a failing run: a directory with everything needed to examine it later.

One JSON file for each failing seed, for people. `./run sim --seed` repeats the run on the same code.
"""

import json
import subprocess
from dataclasses import asdict
from pathlib import Path

from tests.sim.nemesis import Fault
from tests.sim.run import ROOT, Result
from tests.sim.shrink import numbers


def line_of(seed: int, faults: list[Fault] | None) -> str:
    """The command that shows the run again; `faults`: only these of the plan."""
    only = "" if faults is None else f" --faults {numbers(faults) or '-1'}"
    return f"./run sim --seed {seed}{only} --trace"


def commit() -> str:
    """Of the code that ran, as far as git knows it."""
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
    except OSError:  # there is no git here
        return "unknown"
    return done.stdout.strip() or "unknown"


def keep(folder: Path, result: Result, faults: list[Fault]) -> Path:
    """Write what is known of a failing run; where. `result`: of the run with the faults that are enough."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"seed-{result.seed}.json"
    told = {
        "seed": result.seed,
        "commit": commit(),
        "violation": result.violation,
        "again": line_of(result.seed, faults),
        "faults": [asdict(fault) for fault in faults],
        "digest": result.digest,
        "sometimes": dict(sorted(result.history.sometimes.items())),
        "trace": result.lines,
    }
    path.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    return path
