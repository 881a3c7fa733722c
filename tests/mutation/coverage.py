"""Which test executes which lines of the modules in scope, and how long each takes.

The results are kept in pytest's cache between runs. The result of a test is discarded when its file or a
module that it executes has changed.
"""

import ast
import hashlib
import json
import re
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Collection, Container, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tests.mutation.mutants import FUNCTIONS, ROOT

CALLS_MAX = 1_000
"""Lines that a test does not execute in this many calls of a function are not recorded for it."""


class Tracer:
    """Collects the lines that are executed in the named files, in all threads."""

    def __init__(self, modules: Iterable[str]) -> None:
        self._names = {str(ROOT / module): module for module in modules}
        self.lines: dict[str, set[int]] = defaultdict(set)
        self._calls: Counter[CodeType] = Counter()

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        module = self._names.get(code.co_filename)
        if module is None:
            return None
        self._calls[code] += 1
        if self._calls[code] > CALLS_MAX:
            return None
        lines = self.lines[module]

        def line(frame: FrameType, event: str, arg: Any) -> Any:
            lines.add(frame.f_lineno)
            return line

        lines.add(frame.f_lineno)
        return line

    @contextmanager
    def tracing(self) -> Iterator[None]:
        threading.settrace(self._call)
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.exists() else ""


def rows_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def functions_naming(path: Path, word: re.Pattern[str]) -> Iterator[str]:
    """Yield the test functions of a file whose text contains the word."""
    rows = rows_of(path)
    for node in ast.parse("\n".join(rows)).body:
        if isinstance(node, FUNCTIONS) and word.search("\n".join(rows[node.lineno - 1 : node.end_lineno])):
            yield node.name


class Coverage:
    """The known results of the tests of a package, by node id: seconds, and lines by module.

    `traced`: the modules whose lines were recorded. `imported`: those that the near tests import.
    `kills`: how many mutants of a module a test function has killed in this run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.tests: dict[str, dict[str, Any]] = {}
        self.traced: list[str] = []
        self.imported: list[str] = []
        self.kills: Counter[tuple[str, str]] = Counter()
        if path.is_file():
            kept = json.loads(path.read_text(encoding="utf-8"))
            self.traced, self.imported = kept.get("traced", []), kept.get("imported", [])
            changed = {name for name, digest in kept["files"].items() if digest_of(ROOT / name) != digest}
            self.tests = {
                name: one
                for name, one in kept["tests"].items()
                if name.partition("::")[0] not in changed and not changed & one["lines"].keys()
            }

    def add(self, name: str, seconds: float, lines: dict[str, set[int]]) -> None:
        self.tests[name] = {"seconds": seconds, "lines": {key: sorted(one) for key, one in lines.items()}}

    def save(self) -> None:
        files = {name.partition("::")[0] for name in self.tests}
        files |= {module for one in self.tests.values() for module in one["lines"]}
        kept = {
            "files": {name: digest_of(ROOT / name) for name in sorted(files)}, "traced": self.traced,
            "imported": self.imported, "tests": self.tests,
        }  # fmt: skip
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(kept), encoding="utf-8")

    def near(self, module: str, lines: Container[int]) -> list[str]:
        """Return the tests that execute one of these lines of the module, the most promising first."""
        found = [
            name
            for name, one in self.tests.items()
            if any(line in lines for line in one["lines"].get(module, ()))
        ]
        return self._ordered(module, found)

    def touching(self, module: str) -> list[str]:
        """Return the tests that execute any line of the module, the most promising first. A module that only
        defines values (limits, classes of messages) is executed by no test, and may be used by any."""
        found = [name for name, one in self.tests.items() if module in one["lines"]]
        return self._ordered(module, found or list(self.tests))

    def using(self, module: str, names: Collection[str]) -> list[str]:
        """Return the tests that may notice another value of these names, which the module binds when it is
        imported: tests that name one, then those that execute a line that does, then `touching`."""
        if not names:
            return self.touching(module)
        word = re.compile(rf"\b({'|'.join(sorted(names))})\b")
        files = {name.partition("::")[0] for name in self.tests}
        tests = {f"{file}::{one}" for file in files for one in functions_naming(ROOT / file, word)}
        lines = {
            one: {number for number, row in enumerate(rows_of(ROOT / one), 1) if word.search(row)}
            for one in self.traced
        }
        executing = [
            name
            for name, one in self.tests.items()
            if any(not lines.get(file, set()).isdisjoint(found) for file, found in one["lines"].items())
        ]
        named = [name for name in self.tests if name.partition("[")[0] in tests]
        ordered = (self._ordered(module, one) for one in (named, executing))
        return list(dict.fromkeys([*chain.from_iterable(ordered), *self.touching(module)]))

    def _ordered(self, module: str, names: list[str]) -> list[str]:
        """Sort tests: those that have killed mutants of the module first; then one parameter of each function
        before the others; then those that execute the fewest other lines."""
        rank: Counter[str] = Counter()

        def promise(name: str) -> tuple[float, str]:
            one = self.tests[name]
            lines = sum(len(found) for found in one["lines"].values())
            return lines / (1 + len(one["lines"].get(module, ()))) + 2 * one["seconds"], name

        keyed = []
        for name in sorted(names, key=promise):
            function = name.partition("[")[0]
            keyed.append((-self.kills[module, function], rank[function], len(keyed), name))
            rank[function] += 1
        return [name for *_, name in sorted(keyed)]
