"""Mutation testing: `./run mutate [PACKAGE|MODULE...] --sample N --seed S`.

Edits the source in one place at a time, in memory, and runs the near tests that execute it. Exit code 1: a
mutant survived that is not listed as equivalent.
"""

import argparse
import json
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

PROFILE = {"DOS_TEST_PROFILE": "mutation", "PYTHONHASHSEED": "0"}
"""The same examples and the same order of sets in every run."""
CACHE = Path(".pytest_cache") / "mutation"


def arguments() -> argparse.ArgumentParser:
    from tests.mutation.near import PACKAGES

    parser = argparse.ArgumentParser(
        prog="./run mutate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"packages: {', '.join(PACKAGES)}\n\nexamples:\n  ./run mutate journal --sample 50\n"
        "  ./run mutate dos_server/disk.py\n  ./run mutate --show 3f2a9c01\n  ./run mutate --recorded",
    )  # fmt: skip
    parser.add_argument("what", nargs="*", metavar="PACKAGE|MODULE", help="default: every package")
    parser.add_argument("--sample", type=int, default=50, help="mutants of each package; 0: all (default 50)")
    parser.add_argument("--seed", type=int, default=1, help="of the sample (default 1)")
    parser.add_argument("--only", action="append", default=[], metavar="ID", help="this mutant, by id")
    parser.add_argument(
        "--budget", type=float, default=40.0, help="seconds of (traced) tests for a mutant (default 40)"
    )
    parser.add_argument("--json", type=Path, help="write every verdict to this file")
    parser.add_argument("--show", metavar="ID", help="print a mutant, its key, and the tests near it")
    parser.add_argument("--trace", action="store_true", help="measure again which test executes which line")
    parser.add_argument("--record", type=int, default=0, metavar="N", help="add N killed ones to kills.toml")
    parser.add_argument(
        "--recorded", action="store_true", help="run kills.toml and planted.toml again: CI's part"
    )
    parser.add_argument("--planted", action="store_true", help="run the near tests on planted.toml's bugs")
    parser.add_argument("--stale", action="store_true", help="rows of the lists that name no mutant any more")
    return parser


def with_profile(module: str) -> None:
    """Start this module again if the process has another profile."""
    if any(os.environ.get(name) != value for name, value in PROFILE.items()):
        os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], {**os.environ, **PROFILE})


def main() -> int:
    with_profile("tests.mutation")
    parser = arguments()
    options = parser.parse_args()
    if options.stale:
        return print_stale()
    if options.recorded:
        from tests.mutation.recorded import run_recorded

        return run_recorded()
    return plant(parser, options) if options.planted else mutate(parser, options)


def plant(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Run the near tests on the planted bugs of these packages. Returns 1 if a bug survived."""
    from tests.mutation.lists import planted
    from tests.mutation.near import PACKAGES, files_of, package_of
    from tests.mutation.recorded import find_kills
    from tests.mutation.session import Near, run_session

    survived: list[int] = []
    for package in scope_of(parser, options.what):
        bugs = [one for one in planted() if package_of(one.module) == package]

        def work(near: Near, bugs: "list[Planted]" = bugs) -> None:  # noqa: F821
            near.measure(say, again=options.trace)
            survived.append(find_kills(near, bugs, say))

        if bugs:
            run_session(PACKAGES[package].tests, files_of(package), CACHE / f"{package}.json", work)
    return 1 if sum(survived) else 0


def print_stale() -> int:
    from tests.mutation import lists

    for path, keys in ((lists.EQUIVALENTS, list(lists.equivalents())), (lists.KILLS, list(lists.kills()))):
        found = lists.mutants_of(keys)
        for key in keys:
            if key not in found:
                print(f"{path.name}: {key.module} {key.where}\n    - {key.before}\n    + {key.after}")
    for bug in lists.planted():
        if bug.text() is None:
            print(f"{lists.PLANTED.name}: {bug.module}: {bug.name}")
    return 0


def scope_of(parser: argparse.ArgumentParser, what: Sequence[str]) -> dict[str, list[str]]:
    """Return the requested modules by package."""
    from tests.mutation.near import PACKAGES, package_of

    scope: dict[str, list[str]] = {}
    for one in what or PACKAGES:
        if one in PACKAGES:
            scope.setdefault(one, []).extend(PACKAGES[one].files())
        elif package_of(one) in PACKAGES and Path(one).is_file():
            scope.setdefault(package_of(one), []).append(one)
        else:
            parser.error(f"neither a package nor a module in scope: {one}")
    return scope


def mutate(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    from tests.mutation.mutants import Mutant, sample, source_of
    from tests.mutation.near import PACKAGES, files_of
    from tests.mutation.session import Near, Verdict, run_session

    verdicts: list[Verdict] = []
    for package, modules in scope_of(parser, options.what).items():
        mutants = [one for module in modules for one in source_of(module).mutants]
        wanted = {*options.only, *([options.show] if options.show else [])}
        drawn: list[Mutant] = (
            [one for one in mutants if one.id in wanted]
            if wanted
            else sample(mutants, options.sample or None, options.seed)
        )
        if not drawn:
            continue
        judged: list[Verdict] = []
        if options.show and show(drawn[0], package):
            return 0

        def work(near: Near, drawn: list[Mutant] = drawn, judged: list[Verdict] = judged) -> None:
            near.measure(say, again=options.trace)
            for number, mutant in enumerate(drawn, 1):
                verdict = near.judge(mutant, options.budget)
                judged.append(verdict)
                progress(verdict, number, len(drawn))

        say(f"{package}: {len(drawn)} of {len(mutants)} mutants in {len(modules)} modules")
        run_session(PACKAGES[package].tests, files_of(package), CACHE / f"{package}.json", work)
        verdicts += judged
    if options.json:
        write_json(options.json, verdicts)
    if options.record:
        from tests.mutation.recorded import record

        record(verdicts, options.record)
    return table(verdicts)


def show(mutant: "Mutant", package: str) -> bool:  # noqa: F821
    from tests.mutation.lists import as_row, equivalents
    from tests.mutation.session import Coverage

    coverage = Coverage(CACHE / f"{package}.json")
    near = coverage.near(mutant.key.module, mutant.lines)
    print(mutant, as_row("equivalent", mutant.key, reason=equivalents().get(mutant.key, "")), sep="\n\n")
    print(f"{len(near)} tests execute it" + (":" if near else "; or nothing is known yet"))
    for name in near:
        print(f"  {coverage.tests[name]['seconds']:6.2f} s  {name}")
    return True


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def progress(verdict: "Verdict", number: int, count: int) -> None:  # noqa: F821
    from tests.mutation.lists import equivalents

    state = "equivalent" if verdict.mutant.key in equivalents() else verdict.state
    if verdict.state == "killed":
        say(f"{number}/{count} {verdict.mutant.id} killed in {verdict.seconds:.1f} s by {verdict.by}")
    else:
        say(f"{number}/{count} {state.upper()} in {verdict.seconds:.1f} s: {verdict.mutant}")


def write_json(path: Path, verdicts: "Sequence[Verdict]") -> None:  # noqa: F821
    from tests.mutation.lists import equivalents

    known = equivalents()
    rows = [
        {"id": one.mutant.id, **one.mutant.key._asdict(), "line": one.mutant.first, "state": one.state,
         "by": one.by, "seconds": round(one.seconds, 2), "equivalent": known.get(one.mutant.key, "")}
        for one in verdicts
    ]  # fmt: skip
    path.write_text(json.dumps(rows, indent=1), encoding="utf-8")


def interval(killed: int, count: int) -> tuple[float, float]:
    """Return Wilson's interval of 95 % for a share."""
    if not count:
        return 0.0, 1.0
    z, p = 1.96, killed / count
    middle = (p + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(p * (1 - p) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return max(0.0, middle - half), min(1.0, middle + half)


def table(verdicts: "Sequence[Verdict]") -> int:  # noqa: F821
    """Print the scores. Returns 1 if a mutant survived that is not listed as equivalent."""
    from tests.mutation.lists import equivalents
    from tests.mutation.near import package_of

    known = equivalents()
    wrong = 0
    print(
        "| package | mutants tried | equivalent | killed | survived | not executed | score | 95 % interval |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for package in dict.fromkeys(package_of(one.mutant.key.module) for one in verdicts):
        mine = [one for one in verdicts if package_of(one.mutant.key.module) == package]
        states = Counter(
            "equivalent" if one.state != "killed" and one.mutant.key in known else one.state for one in mine
        )
        count = len(mine) - states["equivalent"]
        low, high = interval(states["killed"], count)
        wrong += count - states["killed"]
        score = f"{states['killed'] / count:.0%}" if count else "-"
        print(
            f"| `{package}` | {len(mine)} | {states['equivalent']} | {states['killed']} "
            f"| {states['survived']} | {states['unreached']} | {score} | {low:.0%} to {high:.0%} |"
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
