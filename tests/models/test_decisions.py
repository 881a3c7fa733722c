"""What docs/decisions/0003, 0010 and 0233 say of the models, and of the code, is what is there."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.models.configurations import CONFIGURATIONS, EXPLORED, LOSSES

ROOT = Path(__file__).parent.parent.parent
DECISIONS = (
    "docs/decisions/0003-take-over.md",
    "docs/decisions/0010-replacement-by-generations.md",
    "docs/decisions/0233-local-recovery.md",
)


@cache
def rows() -> tuple[tuple[str, ...], ...]:
    """The cells of every row of every table."""
    lines = [line for name in DECISIONS for line in (ROOT / name).read_text(encoding="utf-8").splitlines()]
    return tuple(
        tuple(cell.strip() for cell in line.strip("|").split(" | "))
        for line in lines
        if line.startswith("| ")
    )


@cache
def told_states() -> dict[str, int]:
    """World -> states, as the decision records state."""
    return {
        row[0].removesuffix(" *"): number(row[2]) for row in rows() if len(row) == 4 and "complete" in row[3]
    }


@cache
def told_losses() -> dict[str, tuple[str, int, int]]:
    """Switch -> (world, states, steps), as the decision records state."""
    switched = [row for row in rows() if len(row) == 5 and re.fullmatch(r"`\w+`", row[0])]
    return {row[0].strip("`"): (row[1], number(row[2]), number(row[3])) for row in switched}


def number(text: str) -> int:
    return int(text.replace(",", ""))


def test_every_world_and_every_switch_is_reported_of() -> None:
    assert set(EXPLORED) <= set(told_states()) <= set(CONFIGURATIONS)
    assert {switch: setup for switch, (setup, _, _) in told_losses().items()} == LOSSES


def test_every_rule_names_the_place_it_is_kept_and_what_shows_it() -> None:
    kept = [row[0] for row in rows() if len(row) == 3 and re.fullmatch(r"R\d+", row[0]) and ".py:" in row[1]]
    assert kept == [f"R{rule}" for rule in range(1, 19)]


@cache
def names_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, definitions)}


@pytest.mark.parametrize("decision", DECISIONS)
def test_whatever_a_decision_names_in_the_code_exists(decision: str) -> None:
    cited = re.findall(r"`([\w/]+\.py):(\w+)`", (ROOT / decision).read_text(encoding="utf-8"))
    assert [f"{path}:{name}" for path, name in cited if name not in names_in(path)] == []
