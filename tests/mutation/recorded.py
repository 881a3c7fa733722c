"""The mutants that CI repeats: those with a test that kills each (kills.toml), and bugs that a person planted
(planted.toml). A row whose source has changed names no mutant any more and is skipped. Too many such rows are
an error.
"""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType

from tests.mutation import lists
from tests.mutation.lists import Planted
from tests.mutation.mutants import ROOT, Mutant
from tests.mutation.near import package_of
from tests.mutation.session import Near, Verdict, run_session

KILL_SECONDS_MAX = 3.0
"""A kill that takes longer is not repeated in CI."""


def record(verdicts: Sequence[Verdict], count: int) -> None:
    """Add this many killed mutants, evenly from the packages, to kills.toml."""
    known = lists.kills()
    wanted = [
        one
        for one in verdicts
        if one.state == "killed" and "::" in one.by and one.seconds < KILL_SECONDS_MAX
        and not one.mutant.at_import and one.mutant.key not in known
    ]  # fmt: skip
    with lists.KILLS.open("a", encoding="utf-8") as file:
        for one in wanted[:count]:
            file.write(lists.as_row("kill", one.mutant.key, test=one.by) + "\n")


def run_recorded() -> int:
    """Repeat everything. Returns 1 if a mutant or a bug survived."""
    kills, bugs = lists.kills(), lists.planted()
    planted = [one for one in bugs if one.text() is not None]
    found = lists.mutants_of(kills)
    tests = sorted({*(kills[key] for key in found), *(name for bug in planted for name in bug.tests)})
    files = sorted({name.partition("::")[0] for name in tests})
    files = [name for name in files if (ROOT / name).exists()]
    survived: list[str] = []
    done: list[int] = []
    started = time.monotonic()

    def work(near: Near) -> None:
        survived.extend(again(near, found, kills))
        survived.extend(again_planted(near, planted))
        done.append(1)

    code = run_session(files, [], Path(), work)
    if not done:
        print(f"the tests could not be collected: pytest ended with {code}", file=sys.stderr)
        return 2
    seconds = time.monotonic() - started
    print(
        f"{len(found)} of {len(kills)} recorded mutants and {len(planted)} planted bugs repeated in"
        f" {seconds:.0f} s: {len(survived)} survived,"
        f" {len(kills) - len(found) + len(bugs) - len(planted)} are in the source no more"
    )
    print(*survived, sep="\n")
    return 1 if survived else 0


def again(near: Near, found: dict[lists.Key, Mutant], kills: dict[lists.Key, str]) -> list[str]:
    survived = []
    for key, mutant in found.items():
        if not near.has([kills[key]]) or near.judge(mutant, 0.0, [kills[key]]).state != "killed":
            survived.append(f"survived {kills[key]}, or there is no such test: {mutant}")
    return survived


def again_planted(near: Near, planted: Sequence[Planted]) -> list[str]:
    survived = []
    for bug in planted:
        code = code_of(bug)
        if not near.has(bug.tests) or not near.run_with(str(ROOT / bug.module), code, bug.tests):
            result = f"survived {', '.join(bug.tests)}, or there is no such test"
            survived.append(f"{result}: {bug.name} ({package_of(bug.module)})")
    return survived


def code_of(bug: Planted) -> CodeType:
    text = bug.text()
    assert text is not None, "rows without their source were left out"
    return compile(text, str(ROOT / bug.module), "exec", dont_inherit=True)


def find_kills(near: Near, planted: Sequence[Planted], report: Callable[[str], None]) -> int:
    """Run each planted bug against the near tests that execute its lines. Returns how many survived."""
    survived = 0
    for bug in planted:
        if bug.text() is None:
            report(f"{bug.name}: {bug.module} does not contain its source any more")
            continue
        path, code = str(ROOT / bug.module), code_of(bug)
        before = (ROOT / bug.module).read_text(encoding="utf-8").partition(bug.before)[0]
        first = before.count("\n") + 1
        lines = range(first, first + bug.before.rstrip("\n").count("\n") + 1)
        names = near.coverage.near(bug.module, lines)
        by = near.run_with(path, code, names) if names else ""
        survived += not by
        report(f"{bug.name}: {by or f'SURVIVED {len(names)} tests'}")
    return survived
