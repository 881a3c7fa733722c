"""The two parts of all tests: `./run test`, and the rest, which is marked `long`.

The short part has everything that a promise needs. What is marked `long` repeats it: more seeds, longer runs,
older versions, whole deployments of what short tests show in pieces, and pages of the docs that are played
through. A mark belongs on a test only if a fault of the product that breaks a promise fails a short one, too:
`tests/test_promises.py` checks that each promise keeps its evidence in the short part.

    ./run test          the short part
    ./run test --rest   what that leaves out, without the marks `long(ci=False)`; `.ci/run` runs both parts
    ./run test --all    everything, and twenty times as many examples of hypothesis

With paths, pytest has the same two options. A test that is named by its id (`FILE::TEST`) always runs.
"""

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest

TOTALS: Final = "DOS_TEST_TOTALS"
"""The variable of `.ci/run` that names a file. Each run of pytest adds its figures to it."""
UNTIL: Final = "DOS_TEST_UNTIL"
"""The variable of `.ci/run` with a time, in seconds of the epoch: a test that is marked `long` does not begin
later, and is reported as skipped.
"""
LONG_S_MAX: Final = 900
"""The time limit of a test that is marked `long` and has none of its own."""
COUNTED: Final = ("failed", "passed", "skipped")
_FILE: Final = pytest.StashKey[str]()
_BEGUN_S: Final = time.monotonic()


def with_long(short: Iterable[Any], more: Iterable[Any], by_hand: Iterable[Any] = ()) -> list[Any]:
    """Return the values of `parametrize`: those of the short part, more of them for the rest, and others that
    only `./run test --all` takes.
    """
    rest = [pytest.param(value, marks=pytest.mark.long) for value in more]
    return [*short, *rest, *(pytest.param(value, marks=pytest.mark.long(ci=False)) for value in by_hand)]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options that select a part."""
    parser.addoption("--all", action="store_true", help="also the tests that are marked `long`")
    parser.addoption("--rest", action="store_true", help="only the tests that are marked `long`")


def pytest_configure(config: pytest.Config) -> None:
    """Keep the variable from what this process starts: other runs of pytest, with figures of their own."""
    config.stash[_FILE] = os.environ.pop(TOTALS, "")


def is_chosen(item: pytest.Item) -> bool:
    """Return whether a test belongs to the part that was asked for."""
    mark = item.get_closest_marker("long")
    if item.config.getoption("--rest"):
        return mark is not None and bool(mark.kwargs.get("ci", True))
    return mark is None or bool(item.config.getoption("--all"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what belongs to the other part, unless tests are named by their ids. Give long ones time."""
    for item in items:
        if item.get_closest_marker("long") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LONG_S_MAX))
    if any("::" in argument for argument in config.args):
        return
    config.hook.pytest_deselected(items=[item for item in items if not is_chosen(item)])
    items[:] = [item for item in items if is_chosen(item)]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a long test for which there is no time."""
    if item.get_closest_marker("long") and time.time() > float(os.environ.get(UNTIL, "inf")):
        pytest.skip("no time is left for tests that are marked long")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Add the figures of this run to the totals, if anybody wants them."""
    if config.stash[_FILE]:
        found = {name: len(terminalreporter.getreports(name)) for name in COUNTED}
        found["failed"] += len(terminalreporter.getreports("error"))
        if config.getoption("alone"):  # the run before has counted all of these as failed
            found["failed"] = -found["passed"]
        line = json.dumps({**found, "seconds": time.monotonic() - _BEGUN_S})
        with Path(config.stash[_FILE]).open("a") as file:
            file.write(f"{line}\n")


def main(ends: list[str]) -> int:
    """Print a closing line for both parts, whose exit codes are `ends`. Return the exit code of both."""
    total = Counter[str]()
    for line in Path(os.environ[TOTALS]).read_text().splitlines():
        total.update(json.loads(line))
    failed = max(map(int, ends))
    if failed:
        print(f"./run test ended with {ends[0]}, ./run test --rest with {ends[1]}")
    found = ", ".join(f"{total[name]} {name}" for name in COUNTED if total[name] or name == "passed")
    print(f"{found} in {total['seconds']:.2f}s")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
