"""What every test shares: hypothesis profiles, and which process runs which test. Fixtures that start real
servers are in `tests/support`."""

import gc
import os
import signal
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.support import class_archive

pytest_plugins = ["tests.support.parts", "tests.support.second_chance"]

ROOT = Path(__file__).parent.parent
SPARK_TESTS = "tests/spark_integration/"
SECOND_SESSION = ("test_application.py", "test_cookbook.py", "test_examples_on_spark.py", "test_region.py")
"""Files that share a second session of Spark: half of the work, so that no process has more than others."""
HOSTS_TESTS = "tests/hosts/"
GROUP_LOG_MIB = "1"
"""Of the servers that tests start as processes: so small that its slots are used again."""
SCHEDULED_ALONE = (
    *("tests/sim/test_sim.py", "tests/sim/test_region_lives.py", "tests/sim/test_soak.py"),
    *("tests/shells/test_shells.py", "tests/shells/test_region_lives.py"),
)
"""Files whose tests share nothing and take long together. They come last: all processes have work until the
end."""

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
    os.environ.setdefault("JAVA_TOOL_OPTIONS", class_archive.jvm_options())
    os.environ.setdefault("DOS_GROUP_LOG", GROUP_LOG_MIB)
    os.environ |= {"DOS_CONFIG": os.devnull, "DOS_CONTEXTS": os.devnull}  # not those of this user
    for name in ("DOS_STORE", "DOS_CONTEXT", "DOS_TOKEN_FILE"):
        os.environ.pop(name, None)


@cache
def text_of(file: str) -> str:
    return (ROOT / file).read_text()


def shared_process(file: str) -> str:
    """Return the name of the process that runs all tests which share what a file starts, "" for none."""
    if file.startswith(HOSTS_TESTS):
        return HOSTS_TESTS
    if not file.startswith(SPARK_TESTS) or "pytest.mark.spark" not in text_of(file):
        return ""
    if "spark: SparkSession" not in text_of(file):
        return f"{SPARK_TESTS} programs"
    is_second = file.removeprefix(SPARK_TESTS) in SECOND_SESSION
    return f"{SPARK_TESTS} second session" if is_second else SPARK_TESTS


class SharedProcesses(LoadScopeScheduling):
    """The tests of a file run in one process, because they share what its fixtures start: servers, databases.
    Those of several hosts, of a session of Spark, and of programs with a Spark of their own do so together.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return shared_process(file) or (nodeid if file in SCHEDULED_ALONE else file)

    def remove_node(self, node: WorkerController) -> str | None:
        """Do not run the test again during which a process died: it failed, and would end the next process
        too. pytest-timeout ends its process this way.
        """
        units = self.assigned_work[node]
        begun = [(unit, test) for unit in units.values() for test, is_done in unit.items() if not is_done]
        if not begun:
            return super().remove_node(node)
        unit, died_in = begun[0]
        unit[died_in] = True
        self.assigned_work[node] = {scope: unit for scope, unit in units.items() if not all(unit.values())}
        super().remove_node(node)
        return died_in


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SharedProcesses:
    """Marks with a group (`--dist loadgroup`) would say the same; pytest-xdist 3.8 does not heed them under
    pytest 9.2."""
    config.option.loadscopereorder = False  # by the numbers of tests; the order below is by their length
    return SharedProcesses(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of Spark and of several hosts come first, because they take longest."""
    items.sort(key=lambda item: turn(item.nodeid.partition("::")[0]))


def pytest_collection_finish() -> None:
    """Exempt all tests and modules from garbage collections, each of which would inspect them in vain."""
    gc.collect()
    gc.freeze()


def turn(file: str) -> int:
    """Return when the tests of a file run: 0 first, 2 last."""
    return 0 if shared_process(file) else 2 if file in SCHEDULED_ALONE else 1
