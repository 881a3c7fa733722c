"""The driver of mutation testing on a module made for it; and in CI, what is recorded is tried again."""

import ast
import gc
import subprocess
import sys
from pathlib import Path
from types import FunctionType

import pytest

from tests.mutation import lists, reach
from tests.mutation.coverage import Coverage
from tests.mutation.mutants import (
    ROOT,
    Mutant,
    Source,
    can_replace,
    live_functions,
    names_at_import,
    replace_functions,
    sample,
    source_of,
)
from tests.mutation.near import PACKAGES

SOURCE = '''
"""A module."""
import logging
log = logging.getLogger("x")
TABLE = {"a": 1, "b": 2}

class Thing:
    size: int = 3

    @property
    def half(self) -> int:
        log.warning("%d", 1 + 1)
        return self.size // 2

    def near(self, at: int, limit: int = 5) -> bool:
        """Whether."""
        assert at > 0
        if at < 0:
            raise ValueError(f"{at + 1} is below {0}")
        self.seen = at
        return self.size <= at and not at == limit

def first(values):
    for value in sorted(values):
        if value is None:
            continue
        return value
    return values[0]
'''
RETURN = "return self.size <= at and (not at == limit)"


@pytest.fixture
def source(tmp_path: Path) -> Source:
    path = tmp_path / "module.py"
    path.write_text(SOURCE)
    return Source(str(path))


def changes(source: Source) -> set[tuple[str, str, str]]:
    return {(one.key.where, one.key.before, one.key.after) for one in source.mutants}


def test_the_edits_are_those_that_a_tired_programmer_makes(source: Source) -> None:
    assert {
        ("", "TABLE = {'a': 1, 'b': 2}", "TABLE = {'b': 2}"),
        ("", "TABLE = {'a': 1, 'b': 2}", "TABLE = {'a': 2, 'b': 2}"),
        ("Thing", "size: int = 3", "size: int = 4"),
        ("Thing.half", "return self.size // 2", "return self.size * 2"),
        ("Thing.near", "if at < 0:", "if at <= 0:"),
        ("Thing.near", "if at < 0:", "if True:"),
        ("Thing.near", "if at < 0:", "if False:"),
        ("Thing.near", "self.seen = at", "pass"),
        ("Thing.near", RETURN, "return self.size < at and (not at == limit)"),
        ("Thing.near", RETURN, "return self.size <= at or not at == limit"),
        ("Thing.near", RETURN, "return self.size <= at"),
        ("Thing.near", RETURN, "return self.size <= at and at == limit"),
        ("first", "for value in sorted(values):", "for value in list(values):"),
        ("first", "continue", "break"),
        ("first", "return values[0]", "return values[-1]"),
    } <= changes(source)  # fmt: skip


def test_texts_logs_assertions_and_annotations_are_left_alone(source: Source) -> None:
    assert not [one for one in changes(source) if "log." in one[1] or "assert" in one[1] or "raise" in one[1]]


def test_what_runs_at_import_is_reported_from_what_a_function_does(source: Source) -> None:
    at_import = {one.key.before for one in source.mutants if one.at_import}
    assert at_import == {
        "TABLE = {'a': 1, 'b': 2}", "size: int = 3", "def near(self, at: int, limit: int=5) -> bool:"
    }  # fmt: skip


def test_each_mutant_has_a_name_that_an_edit_elsewhere_does_not_change(
    source: Source, tmp_path: Path
) -> None:
    names = {one.key: one.id for one in source.mutants}
    assert len(set(names.values())) == len(source.mutants)
    source.path.write_text("import os\n\n\ndef zero() -> None:\n    os.getpid()\n" + SOURCE.lstrip("\n"))
    again = {one.key: one.id for one in Source(str(source.path)).mutants}
    assert names.items() <= again.items()
    kept = [one.id for one in sample(source.mutants, 10, 7)]
    drawn = [one.id for one in sample(Source(str(source.path)).mutants, 11, 7)]
    assert len(set(kept) - set(drawn)) <= 1


def test_every_mutant_compiles_and_leaves_the_tree_as_it_was(source: Source) -> None:
    before = ast.dump(source.tree)
    for one in source.mutants:
        assert source.compiled(one).co_consts != source.compiled(None).co_consts, one
    assert ast.dump(source.tree) == before


def test_functions_that_are_held_elsewhere_get_the_mutated_code(source: Source) -> None:
    names: dict[str, object] = {}
    exec(source.compiled(None), names)
    thing, near = names["Thing"](), names["Thing"].near  # type: ignore[operator,attr-defined]
    assert isinstance(near, FunctionType)
    assert (near(thing, 3), thing.half) == (True, 1)
    for wanted, expected in (("return self.size < at", (False, 1)), ("return self.size * 2", (True, 6))):
        mutant: Mutant = next(one for one in source.mutants if one.key.after.startswith(wanted))
        assert can_replace(source.compiled(mutant), source.compiled(None))
        replace_functions(live_functions()[str(source.path)], source.compiled(mutant))
        assert (near(thing, 3), thing.half) == expected


def test_functions_that_the_session_before_left_frozen_are_found() -> None:
    """One call for several packages is one process: a mutant whose function is not found is never applied."""
    gc.freeze()
    try:
        assert sample in live_functions()[sample.__code__.co_filename]
    finally:
        gc.unfreeze()


def test_near_tells_which_tests_execute_a_file_or_a_line_and_which_lines_none_does(
    source: Source, tmp_path: Path
) -> None:
    def at(text: str) -> int:
        return SOURCE.splitlines().index(text) + 1

    call, raised, kept = (at(" " * n + text) for n, text in (
        (4, "def near(self, at: int, limit: int = 5) -> bool:"),
        (12, 'raise ValueError(f"{at + 1} is below {0}")'), (8, "self.seen = at"),
    ))  # fmt: skip
    coverage = Coverage(tmp_path / "none.json")
    coverage.add("test_a", 0.1, {source.module: {call, call + 2, call + 3, kept, kept + 1}})
    coverage.add("test_b", 0.1, {source.module: {call, call + 2, call + 3, raised}})
    coverage.add("test_c", 0.1, {"other.py": {raised}})

    def tests_of(line: int) -> set[str]:
        target = reach.Target("x", source.module, reach.statement_at(source.module, line))
        return {one["name"] for one in reach.report(coverage, target)["tests"]}

    assert tests_of(raised) == {"test_b"}
    assert tests_of(kept) == {"test_a"}
    assert tests_of(call + 1) == set(), "the text of a function is not executed"
    assert tests_of(call) == {"test_a", "test_b"}
    row = reach.report(coverage, reach.Target("x", source.module))
    assert {one["name"] for one in row["tests"]} == {"test_a", "test_b"}
    half, first = at("    @property"), at("def first(values):")
    assert row["not_executed"] == [[half, half + 3], [first, first + 5]]
    assert row["decides"]
    assert reach.state_of(row) == ""
    never = reach.report(Coverage(tmp_path / "none.json"), reach.Target("x", source.module))
    assert reach.state_of(never) == "no near test imports it"


def test_tests_that_name_a_constant_or_execute_a_line_that_does_are_near(
    source: Source, tmp_path: Path
) -> None:
    """A test of golden numbers executes no function of the module that defines them."""
    source.path.write_text(SOURCE + "\nTWICE = 2 * len(TABLE)\n\ndef use():\n    return TWICE\n")
    table = next(one for one in source_of(source.module).mutants if one.key.before.startswith("TABLE"))
    field = next(one for one in source_of(source.module).mutants if one.key.before.startswith("size"))
    assert names_at_import(table) == {"TABLE", "TWICE"}
    assert names_at_import(field) == {"Thing", "size"}
    golden = tmp_path / "test_golden.py"
    golden.write_text("def test_twice(): assert TWICE == 4\n\ndef test_other(): pass\n")
    coverage = Coverage(tmp_path / "none.json")
    coverage.traced = [source.module]
    for name, line in (("test_twice", 0), ("test_other", 0)):
        coverage.add(f"{golden}::{name}", 0.1, {"other.py": {line}})
    coverage.add("test_user", 0.1, {source.module: {len(source.path.read_text().splitlines())}})
    coverage.add("test_touching", 0.1, {source.module: {1}})
    near = [one.rpartition("::")[2] for one in coverage.using(source.module, names_at_import(table))]
    assert near == ["test_twice", "test_user", "test_touching"]


def test_the_scope_of_each_package_exists() -> None:
    for package in PACKAGES.values():
        assert all((ROOT / name).exists() for name in package.tests)
        assert all(any(ROOT.glob(pattern)) for pattern in package.modules)


def test_every_equivalent_mutant_has_a_reason() -> None:
    assert all(len(reason) > 20 for reason in lists.equivalents().values())


@pytest.mark.long
@pytest.mark.timeout(300)
def test_what_killed_a_recorded_mutant_or_planted_bug_still_does() -> None:
    """A test that fails here on your branch was weakened, or the code it guards has become untested."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.mutation", "--recorded"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-2_000:]
    kills = lists.kills()
    assert len(lists.mutants_of(kills)) >= 0.6 * len(kills), "many rows are stale: see `./run mutate --stale`"
    bugs = lists.planted()
    assert sum(one.text() is not None for one in bugs) >= 0.8 * len(bugs), (
        "update the sources in planted.toml"
    )


def test_a_planted_bug_whose_source_has_changed_has_no_text() -> None:
    bug = lists.planted()[0]
    assert bug.text() is not None
    assert bug._replace(before="no such line").text() is None
    assert bug._replace(module="dos_server/gone.py").text() is None
