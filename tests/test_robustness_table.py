"""The tables of docs/robustness.md: every row of the faults is there, and so is every planted bug that is
named. That the tests which they name exist is shown by tests/models/test_decisions.py.
"""

import re
from pathlib import Path

from tests.sim import hunt
from tests.sim.bugs import BUGS

ROOT = Path(__file__).parent.parent
ROW = re.compile(r"^\| (\d+) \| ", re.M)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
ROWS = {*range(1, 17), 24}
"""The faults of a disk that a server alone, or a store, must survive."""


SCENARIOS = (
    "worker killed",
    "worker hung (SIGSTOP)",
    "executor killed",
    "connection between workers broken",
    "workers that cannot reach each other",
    "user code ends the process of its worker (`os._exit`, SIGSEGV)",
    "user code holds the interpreter lock for longer than `suspect_after_s`",
    "a child that user code forked returns into the engine",
    "any exception of an operator, a source or a sink, in any of their methods",
    "operator raises `OperatorFailure`",
    'the disk of a state on disk (`state_on="disk"`) is full',
    "`reset()`",
    "connections that vanish without a reset",
    "executor host lost for ever, or cut off and back as a zombie",
    "server lost",
    "no quorum",
    "driver killed and started again",
    "two drivers alive",
    "resets that lead nowhere",
    "a checkpoint never completes",
    "a worker restarts during a checkpoint",
    "rollback to a checkpoint that a sink had aborted",
    "a stale token meets a newer barrier",
    "back-pressure against barriers",
    "a sink that is not up at the start and comes later",
    "all local files are lost, with sources and sinks that outlive their host",
    "an object of a bucket is replaced or deleted while it is read",
    "the service of a bucket fails for a while, truncates replies or ignores conditions",
    "adding a second worker",
)
"""What a region must survive, or refuse with a reason."""


def rows_of_the_table() -> dict[int, list[tuple[str, str]]]:
    text = (ROOT / "docs" / "robustness.md").read_text(encoding="utf-8")
    table = text.partition("## Faults of disks, one at a time")[2].partition("\n## ")[0]
    lines = [line for line in table.splitlines() if ROW.match(line)]
    numbers = [int(line.split("|")[1]) for line in lines]
    assert len(numbers) == len(set(numbers)), "a row is there twice"
    return {number: TEST.findall(line) for number, line in zip(numbers, lines, strict=True)}


def test_every_row_names_a_test() -> None:
    found = rows_of_the_table()
    assert found.keys() >= ROWS
    assert not [row for row, tests in found.items() if not tests]


def test_every_scenario_of_regions_names_a_test() -> None:
    text = (ROOT / "docs" / "robustness.md").read_text(encoding="utf-8")
    table = text.partition("## Resets of regions, one at a time")[2].partition("\n## ")[0]
    rows = {line.split("|")[1].strip(): TEST.findall(line) for line in table.splitlines() if line[:2] == "| "}
    assert tuple(name for name in rows if name != "scenario") == SCENARIOS
    assert not [name for name in SCENARIOS if not rows[name]]


def test_every_planted_bug_of_the_figures_exists_and_was_found() -> None:
    figures = hunt.recorded()
    assert len(figures) >= 50
    assert figures.keys() <= BUGS.keys()
    assert all(tuple(row) == hunt.COLUMNS and row["found_by"] for row in figures.values())
    assert all(row["found"] == row["hunts"] for row in figures.values())


def test_every_planted_bug_is_named() -> None:
    """In the figures of the hunts, or on the page with the test that finds it."""
    text = (ROOT / "docs" / "robustness.md").read_text(encoding="utf-8")
    section = " ".join(text.partition("## Planted bugs in the simulator")[2].partition("\n## ")[0].split())
    others = [name for name in BUGS if name not in hunt.recorded()]
    missing = [name for name in others if not re.search(rf"\b{name.replace('_', ' ')}\b", section)]
    assert not missing, f"neither tests/sim/hunts.csv nor docs/robustness.md mentions {missing}"
