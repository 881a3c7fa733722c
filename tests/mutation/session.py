"""A pytest session that collects the near tests once, and forks a process for each mutant.

The forked process gives the functions of the mutant's module the mutated code, and runs the tests that
execute the changed lines, the most promising first, until one fails. Nothing is written to the source tree. A
mutant of code that runs at import needs a process that has not imported the module: pytest is started again.
The same is done for a function that no test executes, because a function may be called at import.
"""

import gc
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import pytest

from tests.mutation.coverage import Coverage, Tracer
from tests.mutation.mutants import (
    ROOT,
    Mutant,
    can_replace,
    live_functions,
    names_at_import,
    replace_functions,
    source_of,
)
from tests.mutation.near import NOT_NEAR, PROCESSES

SLOWDOWN_MAX = 4.0
"""A mutant may take this many times the duration of its tests. After that it counts as hanging."""
PATIENCE_S = 15.0
TEST_S_MAX = 30
"""No near test takes this long, except one that hangs."""
DATA_BYTES_MAX = 4 << 30
"""A memory limit, for mutants that append without end."""
HANG = "(hangs)"


class Verdict(NamedTuple):
    """`state`: killed, survived, or unreached: no near test executes it. `by`: the test that failed."""

    mutant: Mutant
    state: str
    by: str
    seconds: float


class Near:
    """The pytest plugin. It calls `work` with itself after the tests are collected."""

    def __init__(self, modules: Sequence[str], cache: Path, work: Callable[["Near"], None]) -> None:
        self._modules = modules
        self._work = work
        self.coverage = Coverage(cache)
        self._failed = ""
        self._functions: dict[str, list[FunctionType]] = {}
        self._items: dict[str, pytest.Item] = {}
        self._session: pytest.Session | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed = report.nodeid

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._session = session
        self._items = {
            item.nodeid: item
            for item in session.items
            if not PROCESSES & set(getattr(item, "fixturenames", ())) and item.name not in NOT_NEAR
        }
        self._functions = live_functions()
        gc.collect()
        gc.freeze()  # garbage collections of forked processes do not touch (and copy) the shared objects
        self._work(self)
        return True

    # Processes

    def _in_child(self, limit: float, run: Callable[[int], None]) -> tuple[int | None, bytes]:
        """Run in a forked process, with a file to write to. Returns its exit code, None if it took too
        long, and what it wrote. All processes that it started are ended."""
        folder = Path(tempfile.mkdtemp(prefix="mutant-"))
        with tempfile.TemporaryFile() as output:
            pid = os.fork()
            if pid == 0:
                code = 70
                try:
                    os.setsid()
                    resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES_MAX, DATA_BYTES_MAX))
                    silent = os.open(os.devnull, os.O_RDWR)
                    for number in (0, 1, 2):
                        os.dup2(silent, number)
                    assert self._session is not None
                    self._session.config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]
                    run(output.fileno())
                    code = 0
                finally:
                    os._exit(code)
            handle = os.pidfd_open(pid)
            ended = bool(select.select([handle], [], [], limit)[0])
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            os.close(handle)
            shutil.rmtree(folder, ignore_errors=True)
            output.seek(0)
            return os.waitstatus_to_exitcode(status) if ended else None, output.read()

    def _run_items(self, names: Sequence[str]) -> str:
        """Return the first of the tests that fails; empty if none does."""
        items = [self._items[name] for name in names]
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._failed:
                assert self._session is not None
                self._session._setupstate.teardown_exact(None)
                return self._failed
        return ""

    # Coverage

    def measure(self, report: Callable[[str], None], *, again: bool = False) -> None:
        """Run every test without a known result once, traced. One that fails or is slow then is left out."""
        if again:
            self.coverage.tests.clear()
        for name in self.coverage.tests.keys() - self._items.keys():
            del self.coverage.tests[name]
        missing = [name for name in self._items if name not in self.coverage.tests]
        if not missing:
            return
        if not self.coverage.tests:
            self.coverage.traced = list(self._modules)
        loaded = {getattr(one, "__file__", None) for one in tuple(sys.modules.values())}
        self.coverage.imported = [one for one in self._modules if str(ROOT / one) in loaded]
        report(f"measuring the executed lines of {len(missing)} tests")
        path = Path(tempfile.mkstemp(prefix="mutation-coverage-")[1])
        found = Coverage(path.with_suffix(".json"))

        def trace(_: int) -> None:
            assert self._session is not None
            self._session.config._env_timeout = 0  # type: ignore[attr-defined] # traced, a test is slow
            for name in missing:
                tracer, started = Tracer(self._modules), time.perf_counter()
                self._failed = ""
                with tracer.tracing():
                    self._run_items([name])
                seconds = time.perf_counter() - started
                if not self._failed and seconds < TEST_S_MAX:  # a longer one would fail for every mutant
                    found.add(name, seconds, tracer.lines)
                    if len(found.tests) % 50 == 0:
                        found.save()
            found.save()

        self._in_child(3_600.0, trace)
        traced = Coverage(path.with_suffix(".json"))
        self.coverage.tests.update(traced.tests)
        self.coverage.save()
        for one in (path, path.with_suffix(".json")):
            one.unlink(missing_ok=True)
        for name in [name for name in missing if name not in self.coverage.tests]:
            report(f"left out, it fails or takes {TEST_S_MAX} s without a mutant: {name}")

    # Mutants

    def judge(self, mutant: Mutant, budget: float, tests: Iterable[str] | None = None) -> Verdict:
        """Run the tests that execute the mutant, the most promising first, for at most `budget` seconds.
        `tests`: run these tests instead."""
        started = time.perf_counter()
        source = source_of(mutant.key.module)
        new = source.compiled(mutant)
        cold = mutant.at_import or not can_replace(new, source.compiled(None))
        survived = "survived"
        if tests is None:
            module = mutant.key.module
            near = [] if mutant.at_import else self.coverage.near(module, mutant.lines)
            if not near:  # the line may run when the module is imported, which the coverage does not show
                survived = "survived" if mutant.at_import else "unreached"
                near, cold = self.coverage.using(module, names_at_import(mutant)), True
            names = self._within(near, budget)
        else:
            names = list(tests)
        seconds = sum(self.coverage.tests.get(name, {"seconds": 1.0})["seconds"] for name in names)
        limit = SLOWDOWN_MAX * seconds + PATIENCE_S
        by = (
            self._run_cold(mutant, names, limit)
            if cold
            else self._run_warm(str(source.path), new, names, limit)
        )
        if by in self.coverage.tests:
            self.coverage.kills[mutant.key.module, by.partition("[")[0]] += 1
        return Verdict(mutant, "killed" if by else survived, by, time.perf_counter() - started)

    def _within(self, names: list[str], budget: float) -> list[str]:
        """Return the fastest tests that fit into this many seconds, but always one."""
        spent, found = 0.0, []
        for name in names:
            spent += self.coverage.tests[name]["seconds"]
            if found and spent > budget:
                break
            found.append(name)
        return found

    def has(self, names: Iterable[str]) -> bool:
        """Whether all of these tests were collected."""
        return all(name in self._items for name in names)

    def run_with(self, path: str, new: CodeType, names: Sequence[str]) -> str:
        """Return the test that fails with other code in the functions of the file; empty if none does."""
        return self._run_warm(path, new, names, 60.0)

    def _run_warm(self, path: str, new: CodeType, names: Sequence[str], limit: float) -> str:
        def run(output: int) -> None:
            replace_functions(self._functions.get(path, ()), new)
            os.write(output, self._run_items(names).encode())

        code, output = self._in_child(limit, run)
        return HANG if code is None else output.decode() if code == 0 else f"(ends with {code})"

    def _run_cold(self, mutant: Mutant, names: Sequence[str], limit: float) -> str:
        with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
            files = dict.fromkeys(name.partition("::")[0] for name in names)
            command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "tests.mutation.cold", *files]
            command += [f"--basetemp={folder}/tmp", "-o", f"cache_dir={folder}/cache"]
            env = {**os.environ, "DOS_MUTANT": f"{mutant.key.module} {mutant.id}"}
            env["DOS_MUTANT_TESTS"] = "\n".join(names)
            try:
                done = subprocess.run(
                    command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=limit + 20.0
                )
            except subprocess.TimeoutExpired:
                return HANG
        words = [row.split() for row in done.stdout.splitlines()]
        failed = [row[1] for row in words if row[:1] in (["FAILED"], ["ERROR"]) and "tests/" in row[1]]
        passed = done.returncode in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        return "" if passed else failed[0] if failed else "(cannot be imported)"


def run_session(
    tests: Sequence[str], modules: Sequence[str], cache: Path, work: Callable[[Near], None], *more: str
) -> int:
    """Run one pytest session over these tests. Returns its exit code: whether they were collected."""
    plugin: Any = Near(modules, cache, work)
    options = [
        "-q",
        "-s",
        "-m",
        "not process and not spark",
        "--strict-markers",
        "-o",
        f"timeout={TEST_S_MAX}",
    ]
    with tempfile.TemporaryDirectory(prefix="mutation-cache-") as folder:
        options += ["-o", f"cache_dir={folder}", "--no-header", "--no-summary", *more]
        return int(pytest.main([*tests, *options], plugins=[plugin]))
