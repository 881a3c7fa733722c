"""`./run near FILE[:LINE]...`: which near tests execute a module, or a line of it; which lines none does.

The coverage is that of `./run mutate`: the tests of the module's package that start neither processes nor
Spark. A test is measured again if its file, or a module that it executes, has changed; the first measurement
takes minutes. For a folder, or without arguments for every package, the output has one row per module: the
number of its near tests, and the share of its lines that they execute. Exit code 1: no near test executes the
file or the line.
"""

import argparse
import ast
import json
import sys
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

from tests.mutation.mutants import ROOT, lines_of, source_of
from tests.mutation.near import PACKAGES, Package, files_of, package_of

FUNCTION = 0x01
"""CO_OPTIMIZED: the code of a function, not of a module or class, which runs at import."""


class Target(NamedTuple):
    """A module, or the lines of one statement of it; `label`: as it was named on the command line."""

    label: str
    module: str
    lines: range | None = None


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./run near", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n  ./run near dos_client/core/claim.py\n"
        "  ./run near dos_server/storage.py:120 --json\n  ./run near sites\n  ./run near --unreached",
    )  # fmt: skip
    parser.add_argument("what", nargs="*", metavar="FILE[:LINE]|FOLDER", help="default: every package")
    parser.add_argument("--json", action="store_true", help="everything, as JSON")
    parser.add_argument("--unreached", action="store_true", help="only modules without a near test")
    parser.add_argument("--trace", action="store_true", help="measure every test again")
    return parser


def near_tests_of(package: str) -> Package:
    """Return the package's row; without one, the tests of its name are near and no module is mutated."""
    return PACKAGES.get(package) or Package((), (f"tests/{package}",))


def packages() -> list[str]:
    found = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    return sorted(one for one in found if (ROOT / near_tests_of(one).tests[0]).is_dir())


@cache
def decided_lines(module: str) -> tuple[frozenset[int], bool]:
    """Return the lines inside functions, and whether one of them decides: a branch, a loop, a handler."""
    source = source_of(module)

    def walk(code: CodeType, *, inside: bool) -> Iterator[int]:
        inside = inside or bool(code.co_flags & FUNCTION)
        if inside:
            yield from (line for *_, line in code.co_lines() if line)
        for one in code.co_consts:
            if isinstance(one, CodeType):
                yield from walk(one, inside=inside)

    lines = frozenset(walk(source.compiled(None), inside=False))
    decisions = ast.If | ast.IfExp | ast.For | ast.While | ast.Match | ast.ExceptHandler | ast.BoolOp
    return lines, any(one.lineno in lines for one in ast.walk(source.tree) if isinstance(one, decisions))


def statement_at(module: str, line: int) -> range:
    """Return the lines of the innermost statement that contains the line; of a compound one, its head."""
    inner = [
        node for node in ast.walk(source_of(module).tree)
        if isinstance(node, ast.stmt | ast.match_case)
        and lines_of(node)[0] <= line <= max(getattr(node, "end_lineno", 0) or 0, lines_of(node)[1])
    ]  # fmt: skip
    if not inner:
        return range(line, line + 1)
    first, last = lines_of(max(inner, key=lambda node: lines_of(node)[0]))
    return range(first, last + 1)


def targets_of(parser: argparse.ArgumentParser, what: Sequence[str]) -> dict[str, list[Target]]:
    """Return what is asked for, by package."""
    found: dict[str, list[Target]] = {}
    for label in what or packages():
        name, _, line = label.partition(":")
        path = (ROOT / name).resolve()
        if not path.is_relative_to(ROOT) or not path.exists() or (line and not line.isdecimal()):
            parser.error(f"neither FILE, FILE:LINE nor FOLDER of this checkout: {label}")
        name = str(path.relative_to(ROOT))
        package = package_of(name)
        if package not in packages():
            parser.error(f"{label} has no near tests: packages with near tests are {', '.join(packages())}")
        if path.is_dir():
            new = [Target(one, one) for one in files_of(package) if one.startswith(f"{name}/")]
        else:
            new = [Target(label, name, statement_at(name, int(line)) if line else None)]
        found.setdefault(package, []).extend(new)
    return found


def report(coverage: "Coverage", target: Target) -> dict[str, Any]:  # noqa: F821
    """Return what is known about a module or a line, as JSON."""
    lines, decides = decided_lines(target.module)
    wanted = lines if target.lines is None else lines & set(target.lines)
    names = coverage.near(target.module, wanted)
    executed = {line for name in names for line in coverage.tests[name]["lines"][target.module]} & wanted
    return {
        "what": target.label,
        "imported": target.module in coverage.imported,
        "decides": decides,
        "lines": len(wanted),
        "executed": len(executed),
        "not_executed": ranges(wanted, executed),
        "tests": [{"name": name, "seconds": round(coverage.tests[name]["seconds"], 2)} for name in names],
    }


def ranges(lines: Iterable[int], executed: Container[int]) -> list[list[int]]:
    """Return the first and last of lines in succession that are not executed."""
    found: list[list[int]] = []
    begin = True
    for line in sorted(lines):
        if line in executed:
            begin = True
        elif begin:
            found.append([line, line])
            begin = False
        else:
            found[-1][1] = line
    return found


def state_of(row: dict[str, Any]) -> str:
    if row["tests"] or not row["lines"]:
        return "" if row["tests"] else "runs at import only"
    if not row["imported"]:
        return "no near test imports it"
    return "no near test executes it" + ("" if row["decides"] else "; it decides nothing")


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        share = f"{row['executed'] / row['lines']:4.0%}" if row["lines"] else "   -"
        print(f"{len(row['tests']):5} tests {share}  {row['what']}  {state_of(row)}".rstrip())


def print_one(row: dict[str, Any]) -> None:
    """Print the tests of a module or line; those that differ in parameters only, once."""
    print(f"{row['what']}:", state_of(row) or f"{len(row['tests'])} near tests execute it")
    seconds: dict[str, list[float]] = {}
    for one in row["tests"]:
        seconds.setdefault(one["name"].partition("[")[0], []).append(one["seconds"])
    for name, found in seconds.items():
        print(f"  {sum(found):6.2f} s  {name}" + (f" ({len(found)} times)" if len(found) > 1 else ""))
    if row["not_executed"] and row["tests"]:
        print("  no near test executes the lines",
              ", ".join(f"{a}-{b}" if a < b else f"{a}" for a, b in row["not_executed"]))  # fmt: skip


def main() -> int:
    from tests.mutation.__main__ import CACHE, say, with_profile

    with_profile("tests.mutation.reach")
    from tests.mutation.session import Near, run_session

    parser = arguments()
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for package, targets in targets_of(parser, options.what).items():

        def work(near: Near, targets: list[Target] = targets, package: str = package) -> None:
            whole = set(files_of(package)) <= set(near.coverage.traced)
            near.measure(say, again=options.trace or not whole)
            rows.extend(report(near.coverage, one) for one in targets)

        with redirect_stdout(sys.stderr):  # pytest's own words
            run_session(near_tests_of(package).tests, files_of(package), CACHE / f"{package}.json", work)
    named = {str(Path(one)) for one in options.what}
    asked = [one for one in rows if str(Path(one["what"])) in named]
    if options.unreached:
        rows = [one for one in rows if one["lines"] and not one["tests"]]
    if options.json:
        print(json.dumps(rows, indent=1))
    elif asked:
        for row in asked:
            print_one(row)
    else:
        print_table(rows)
    return 1 if any(one["lines"] and not one["tests"] for one in asked) else 0


if __name__ == "__main__":
    sys.exit(main())
