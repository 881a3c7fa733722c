"""The tables of docs/robustness.md: every row of the faults is there, and so is every planted bug that is
named. That the tests which they name exist is shown by tests/models/test_decisions.py.
"""

import re
from pathlib import Path

import pytest

from tests.sim import hunt
from tests.sim.bugs import BUGS
from tests.sim.tiers import CORES
from tests.support.site_tables import rows_of

ROOT = Path(__file__).parent.parent
TEST = re.compile(r"`tests/[\w/]+\.py(?:::\w+)?`")
DISKS = {*range(1, 17), 24}
"""The faults of a disk that a server alone, or a store, must survive."""
REGIONS_MIN = 29
"""As many things a region must survive, or refuse with a reason."""


def evidence_by_row(name: str) -> dict[str, list[str]]:
    """Return the first cell of each row, with the tests that its last cell names."""
    _, *rows = rows_of(f"tests/evidence/{name}.csv")
    found = {row[0]: TEST.findall(row[-1]) for row in rows}
    assert len(found) == len(rows), "a row is there twice"
    return found


@pytest.mark.parametrize(("name", "least"), [("disks", len(DISKS)), ("regions", REGIONS_MIN)])
def test_every_row_names_a_test(name: str, least: int) -> None:
    found = evidence_by_row(name)
    assert len(found) >= least
    assert not [row for row, tests in found.items() if not tests]


def test_every_fault_of_a_disk_is_there() -> None:
    assert {int(row) for row in evidence_by_row("disks")} >= DISKS


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
    section += " ".join(row[0] for row in rows_of("tests/evidence/planted-bugs.csv"))
    others = [name for name, bug in BUGS.items() if bug.tier == CORES and name not in hunt.recorded()]
    missing = [name for name in others if not re.search(rf"\b{name.replace('_', ' ')}\b", section)]
    assert not missing, f"neither tests/sim/hunts.csv nor docs/robustness.md mentions {missing}"
