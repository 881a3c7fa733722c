"""What every test shares: hypothesis profiles, and which process runs which test. Fixtures that start real
servers are in `tests/support`."""

import os
import signal
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from xdist.scheduler import LoadScopeScheduling

pytest_plugins = ["tests.support.second_chance"]

ROOT = Path(__file__).parent.parent
SPARK_TESTS = "tests/spark_integration/"
HOSTS_TESTS = "tests/hosts/"
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Of every JVM that a test starts: none lives until the code of the second compiler has paid for itself."""

for name, examples in (("near", 100), ("long", 2_000)):
    settings.register_profile(
        name, deadline=None, max_examples=examples, suppress_health_check=[HealthCheck.too_slow]
    )
settings.register_profile(  # ./run mutate: the same examples each time, and no search for a smaller one
    "mutation",
    settings.get_profile("near"),
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
)
settings.load_profile(os.environ.get("DOS_TEST_PROFILE", "near"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of our own."""
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="stories and docs/api.md: write what is, instead of comparing",
    )


def pytest_configure() -> None:
    """Prepare what the processes that tests start inherit.

    A background job of a shell ignores SIGINT, and what tests start and interrupt would too.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.setdefault("JAVA_TOOL_OPTIONS", JVM_OPTIONS)


@cache
def starts_spark(file: str) -> bool:
    """Return whether the tests of a file have the mark `spark`, before they are collected."""
    return file.startswith(SPARK_TESTS) and "pytest.mark.spark" in (ROOT / file).read_text()


def shared_process(file: str) -> str:
    """Return the name of the process that runs all tests which share what a file starts, "" for none."""
    if file.startswith(HOSTS_TESTS):
        return HOSTS_TESTS
    return SPARK_TESTS if starts_spark(file) else ""


class SharedProcesses(LoadScopeScheduling):
    """Each test is scheduled alone, but those that share a Spark or hosts run in one process: starting them
    takes seconds.
    """

    def _split_scope(self, nodeid: str) -> str:
        return shared_process(nodeid.partition("::")[0]) or nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SharedProcesses:
    """Marks with a group (`--dist loadgroup`) would say the same; pytest-xdist 3.8 does not heed them under
    pytest 9.2."""
    return SharedProcesses(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of Spark and of several hosts come first, because they take longest."""
    items.sort(key=lambda item: not shared_process(item.nodeid.partition("::")[0]))
