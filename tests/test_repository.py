"""What holds for the repository as a whole: no trace of a machine, complete pins, links that lead somewhere.

A checkout is built on machines that are not ours, with package indexes that are not ours: so no file names an
index, and no file holds an absolute path of a home directory.
"""

import ast
import importlib.util
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

TEXT_SUFFIXES = {".py", ".md", ".toml", ".txt", ".cfg", ".sh", ".svg", ".yml", ".yaml", ".json", ".xml", ""}
REGISTRIES = re.compile(
    r"(?:pypi|pythonhosted|anaconda|conda-forge)\.(?:org|com)|--(?:extra-)?index-url|--find-links|--trusted-host",
    re.I,
)
HOME_PATHS = re.compile(r"(?<![\w.$}/-])/(?:root|home/\w+|Users/\w+|work/\w+)(?:/|\b)")


def repository_files() -> list[Path]:
    """The files that git has, or would take; in a copy without git, all but what tools leave behind."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode == 0:
        paths = [ROOT / line for line in listed.stdout.splitlines()]
    else:
        paths = [path for path in ROOT.rglob("*") if not any(is_left_behind(part) for part in path.parts)]
    return sorted(path for path in paths if path.is_file() and path != Path(__file__))


def is_left_behind(part: str) -> bool:
    return part in {".git", ".venv", "__pycache__", "build", "dist"} or part.endswith(("_cache", ".egg-info"))


def lines_of_text_files() -> Iterator[tuple[Path, int, str]]:
    for path in repository_files():
        if path.suffix in TEXT_SUFFIXES:
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                yield path.relative_to(ROOT), number, line


@pytest.mark.parametrize(
    ("what", "pattern"), [("a registry's address", REGISTRIES), ("a home path", HOME_PATHS)]
)
def test_no_file_holds_a_trace_of_a_machine(what: str, pattern: re.Pattern[str]) -> None:
    found = [
        f"{path}:{number}: {line.strip()[:120]}"
        for path, number, line in lines_of_text_files()
        if pattern.search(line)
    ]
    assert not found, f"{what} in\n" + "\n".join(found)


@pytest.mark.parametrize(
    "text",
    ["see https://pypi" + ".org/simple", "pip --index" + "-url X", "cd /ro" + "ot/x", "/home/" + "ann/x"],
)
def test_the_patterns_find_what_they_are_for(text: str) -> None:
    assert REGISTRIES.search(text) or HOME_PATHS.search(text)


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def savepoints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.partition("#")[0].strip() for line in lines]
    return {normalised(name): version for name, _, version in (row.partition("==") for row in rows if row)}


def test_constraints_are_exact_versions_and_nothing_else() -> None:
    assert all(re.fullmatch(r"[0-9][0-9a-z.+]*", version) for version in savepoints().values()), savepoints()


def test_every_requirement_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *(r for extra in project["optional-dependencies"].values() for r in extra),
    ]
    names = {normalised(re.split(r"[\[<>=!~; ]", requirement)[0]) for requirement in wanted} - {"dos-journal"}
    assert not names - savepoints().keys()


LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)#\s]+)(?:#[^)]*)?\)|!\[[^\]]*\]\(([^)\s]+)\)")


def test_links_between_documents_lead_somewhere() -> None:
    broken = []
    for path, number, line in lines_of_text_files():
        if path.suffix != ".md":
            continue
        targets = (a or b for a, b in LINK.findall(line))
        broken += [
            f"{path}:{number}: {target}"
            for target in targets
            if "://" not in target and not (ROOT / path.parent / target).exists()
        ]
    assert not broken, "\n".join(broken)


ARCHITECTURE = ROOT / "docs" / "ARCHITECTURE.md"
PATHS = ROOT / "docs" / "PATHS.md"


def test_the_files_that_the_table_of_packages_names_exist() -> None:
    rows = re.findall(r"^\| `(\w+)/` \|.*\| (.*) \|$", ARCHITECTURE.read_text(encoding="utf-8"), re.M)
    named = [ROOT / room / name for room, names in rows for name in re.findall(r"`([\w/]+\.py)`", names)]
    assert len(named) > 10
    assert not [str(path.relative_to(ROOT)) for path in named if not path.exists()]


def test_the_paths_through_the_code_name_files_and_definitions_that_exist() -> None:
    """A line of a path is `N. `file` `definition`...: text`; every line of the page is checked."""
    steps = re.findall(r"^(\d+)\. (.*)$", PATHS.read_text(encoding="utf-8"), re.M)
    missing = []
    for _, step in steps:
        path, *names = re.findall(r"`([^`]+)`", step.partition(": ")[0])
        defined = definitions_in(ROOT / path)
        missing += [f"{path}: {name}" for name in [path, *names] if name not in defined]
    assert [number for number, _ in steps].count("1") == 9, "one path for each question of the page"
    assert not missing, missing


DOORS_MAX = {
    "Where an APPEND is acknowledged": 12,
    "Where a checkpoint is committed": 10,
    "How a row is routed": 14,
    "How a worker is replaced": 10,
    "How a region is forked": 10,
}
"""So many files are opened at most to follow one of these paths."""


@pytest.mark.parametrize("path", DOORS_MAX)
def test_a_path_through_the_code_leads_through_few_files(path: str) -> None:
    page = PATHS.read_text(encoding="utf-8")
    section = page.partition(f"\n## {path}\n")[2].partition("\n## ")[0]
    files = {*re.findall(r"`([\w/]+\.py)`", section)}
    assert 1 < len(files) <= DOORS_MAX[path], sorted(files)


def definitions_in(path: Path) -> set[str]:
    """The names that a file defines, methods as Class.method, and its path; empty if there is no file."""
    if not path.exists():
        return set()
    found = {path.relative_to(ROOT).as_posix()}
    if path.suffix != ".py":
        return found
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        found |= {target.id for target in targets if isinstance(target, ast.Name)}
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{inner.name}" for inner in node.body if hasattr(inner, "name")}
    return found


def test_every_decision_is_in_their_index() -> None:
    decisions = ROOT / "docs" / "decisions"
    index = (decisions / "README.md").read_text(encoding="utf-8")
    missing = [path.name for path in decisions.glob("[0-9]*.md") if f"({path.name})" not in index]
    assert not missing


def test_the_entry_script_is_plain_shell_and_executable() -> None:
    for name in ("run", ".ci/run"):
        assert (ROOT / name).stat().st_mode & 0o111, f"{name} is not executable"
        assert (ROOT / name).read_text(encoding="utf-8").startswith("#!/bin/sh\n")
        subprocess.run(["sh", "-n", ROOT / name], check=True)


def test_run_alone_lists_its_verbs() -> None:
    usage = subprocess.run([ROOT / "run"], capture_output=True, text=True, check=True).stdout
    for verb in ("demo", "test", "lint", "bench", "dos"):
        assert f"./run {verb}" in usage


def test_run_refuses_an_unknown_verb_by_name() -> None:
    refused = subprocess.run([ROOT / "run", "dance"], capture_output=True, text=True)
    assert refused.returncode == 2
    assert "no verb named 'dance'" in refused.stderr


@pytest.mark.parametrize("path", sorted(ROOT.glob("*/limits.py")), ids=lambda path: path.parent.name)
def test_no_file_of_tests_changes_a_limit_when_it_is_imported(path: Path) -> None:
    """Each process imports all of them, and the others would test other limits than users have."""
    used = importlib.import_module(f"{path.parent.name}.limits")
    spec = importlib.util.spec_from_file_location("limits_as_written", path)
    assert spec is not None
    assert spec.loader is not None
    written = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(written)
    names = [name for name, value in vars(written).items() if isinstance(value, int | float)]
    assert names
    assert {name: getattr(used, name) for name in names} == {name: getattr(written, name) for name in names}
