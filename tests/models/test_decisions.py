"""Pages and decisions name files, tests and definitions that exist; 0003, 0010, 0233 and 0278 have the
figures of the models.
"""

import ast
import re
import subprocess
from functools import cache
from pathlib import Path, PurePosixPath

import pytest

from tests.models.configurations import CONFIGURATIONS, EXPLORED, LONG, LOSSES

ROOT = Path(__file__).parent.parent.parent
DECISIONS = (
    "docs/decisions/0003-take-over.md",
    "docs/decisions/0010-replacement-by-generations.md",
    "docs/decisions/0233-local-recovery.md",
    "docs/decisions/0278-spark-checkpoints-by-webhdfs.md",
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
    assert {*EXPLORED, *LONG} <= set(told_states()) <= set(CONFIGURATIONS)
    assert {switch: setup for switch, (setup, _, _) in told_losses().items()} == LOSSES


def test_every_rule_names_the_place_it_is_kept_and_what_shows_it() -> None:
    kept = [row[0] for row in rows() if len(row) == 3 and re.fullmatch(r"R\d+", row[0]) and ".py:" in row[1]]
    assert kept == [f"R{rule}" for rule in range(1, 19)]


LISTED = ("git", "ls-files", "--cached", "--others", "--exclude-standard")
TRACKED = frozenset(subprocess.check_output(LISTED, cwd=ROOT, text=True).split())
FOLDERS = frozenset(str(folder) for path in TRACKED for folder in PurePosixPath(path).parents)
PLACES = frozenset(path[at:] for path in TRACKED for at, sign in enumerate("/" + path) if sign == "/")
"""Each file by its path and by every end of it, such as `core/walk.py`."""
PAGES = sorted(
    path
    for path in TRACKED
    if (path.endswith(".md") and "/vendor/" not in path) or path.startswith("tests/evidence/")
)
QUOTED = re.compile(r"`([\w./-]+)(?:::?(\w+))?(?:\[[^`]*\])?`")
BLOCK = re.compile(r"^```.*?^```", re.M | re.S)


@cache
def names_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, definitions)}


def names_a_path(text: str) -> bool:
    """Return whether it is a path in the repository: a module, or what begins with one of its folders.
    Other files, such as `/etc/dos/dos.toml` or `_region.json`, are a user's.
    """
    within = "/" in text and text.partition("/")[0] in FOLDERS
    return "NAME" not in text and text[:1] not in ("", "/", ".") and (within or text.endswith(".py"))


def missing(text: str) -> list[str]:
    """Return what `text` quotes and does not exist, such as `core/walk.py` or `tests/test_run.py::test_x`."""
    found = []
    for path, name in QUOTED.findall(BLOCK.sub("", text)):
        place = path.removeprefix("./").rstrip("/")
        if not names_a_path(place):
            continue
        exists = place in PLACES or place in FOLDERS
        if name and exists:
            whole = [each for each in TRACKED if f"/{each}".endswith(f"/{place}")]
            exists = any(name in names_in(each) for each in whole if each.endswith(".py"))
        if not exists:
            found.append(f"{path}:{name}" if name else path)
    return found


@pytest.mark.parametrize("page", PAGES)
def test_whatever_a_page_names_in_the_code_exists(page: str) -> None:
    assert missing((ROOT / page).read_text(encoding="utf-8")) == []


def test_a_path_and_a_name_that_do_not_exist_are_found() -> None:
    here = "tests/models/test_decisions.py"
    text = f"`{here}::test_x`, `{here}:missing`, `core/gone.py`, `dos_ui/gone`, `a.json`, `/etc/dos/dos.toml`"
    assert missing(text) == [f"{here}:test_x", "core/gone.py", "dos_ui/gone"]
