"""A rolling upgrade on Spark: workers, then the driver, run another version of this package, and go back.

The versions are wheels, built from this tree with changes that a later release could have. Executors are
processes that find the package in a directory, `installed`, as on hosts where one wheel replaces another.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from examples.demo.verdict import judge
from tests.dataflow.support import made
from tests.spark_integration.cluster_program import COUNTS, write_program
from tests.support.dos_command import dos
from tests.support.servers import ServerProcess, three_servers

__all__ = ["three_servers"]
pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
PASSES = 2_000
NOT_PACKAGED = ("tests", "docs", "benchmarks", "examples")
Edits = dict[str, list[tuple[str, str]]]
"""File -> regular expressions, each of which must be found once, and what replaces them."""
MESSAGES = "checkpoint/core/links/messages.py"
VERSIONS = r"VERSIONS: Final\[Versions\] = \(1, 1\)"
LATER: Edits = {
    MESSAGES: [
        (VERSIONS, "VERSIONS: Final[Versions] = (1, 2)"),
        (
            "    counters: Counters\n\n\nclass Vote",
            '    counters: Counters\n    mood: str = "calm"\n\n\nclass Vote',
        ),
        ("    restore: Checkpoint \\| None", "    patience: int = 7\n    restore: Checkpoint | None"),
    ],
    "dataflow/operators/aggregates.py": [
        ("import dataclass\n", "import dataclass, field\n"),
        (
            "    accepts_weights: ClassVar\\[bool\\] = True\n    keys: tuple",
            (
                "    accepts_weights: ClassVar[bool] = True\n"
                '    later: str = field(default="", kw_only=True)\n    keys: tuple'
            ),
        ),
    ],
}
"""Fields that a later release could add: to messages of workers and of the driver, to parts of graphs."""
FOREIGN: Edits = {MESSAGES: [(VERSIONS, "VERSIONS: Final[Versions] = (4, 4)")]}
DRIVER = """
import json, sys
from pathlib import Path
from checkpoint.errors import NotReplacedError
from checkpoint.runtime import package_version
from spark_integration import run
from helper import session, word_count

here, installed, store = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
spark = session("local-cluster[1,3,1024]", here, {"spark.executorEnv.PYTHONPATH": installed})
graph = word_count(here, 2_000)
region = run(spark, graph, store=store, workers=2, checkpoint_interval=0.2, spare_slots=1, hand_over=True)
for line in sys.stdin:
    answer = {}
    if line == "checkpoint\\n":
        region.checkpoint(120)
    elif line == "replace\\n":
        try:
            answer["replaced"] = region.replace(timeout=120).replaced
        except NotReplacedError as error:
            answer["error"] = str(error)
    else:
        answer["ended"] = region._control.wait(150)
    status = region.status
    versions = [worker.version for worker in status.workers]
    answer |= {"driver": package_version(), "state": status.state.value, "versions": versions}
    print(json.dumps(answer | {"resets": len(status.resets)}), flush=True)
spark.stop()
"""


class Driver:
    """A driver that is a program, with one version of the package. Each line of its input is one order."""

    def __init__(self, folder: Path, package: Path, installed: Path, store: str) -> None:
        path = os.pathsep.join((str(package), str(folder)))
        with (folder / f"{package.name}.log").open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, folder / "driver.py", folder, installed, store],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": path},
            )

    def told(self, order: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{order}\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


@contextmanager
def driving(*arguments: Any) -> Iterator[Driver]:
    driver = Driver(*arguments)
    try:
        yield driver
    finally:
        driver.end()


def wheel(folder: Path, version: str, edits: Edits) -> Path:
    """Build a wheel of this tree with changes; return the directory in which it is installed."""
    source, built, target = (folder / f"{what}-{version}" for what in ("source", "built", "package"))
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        if not name.startswith(NOT_PACKAGED):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    stated: Edits = {"pyproject.toml": [(r'(?m)^version = ".*"', f'version = "{version}"')], **edits}
    for name, changes in stated.items():
        text = (source / name).read_text()
        for old, new in changes:
            text, changed = re.subn(old, new, text)
            assert changed == 1, f"{old!r} is {changed} times in {name}"
        (source / name).write_text(text)
    options = ("-q", "--no-deps", "--no-build-isolation", "-w", built)
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, source], check=True)
    (file,) = built.glob("*.whl")
    with zipfile.ZipFile(file) as archive:
        archive.extractall(target)
    return target


def install(package: Path, installed: Path) -> None:
    """Put this version where executors import from, in one step."""
    link = installed.with_name("new")
    link.symlink_to(package)
    link.replace(installed)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_workers_and_the_driver_run_another_version_without_a_stop_of_the_region(
    three_servers: list[ServerProcess], tmp_path: Path
) -> None:
    store, installed = made(three_servers), tmp_path / "installed"
    write_program(tmp_path, DRIVER)
    present, later = wheel(tmp_path, "1.0", {}), wheel(tmp_path, "1.1", LATER)
    foreign = wheel(tmp_path, "2.0", FOREIGN)
    install(present, installed)
    with driving(tmp_path, present, installed, store) as driver:
        assert driver.told("checkpoint")["versions"] == ["1.0", "1.0"]
        install(later, installed)
        up = driver.told("replace")
        assert (up.get("replaced"), up["versions"]) == ([0, 1], ["1.1", "1.1"]), up
        assert driver.told("checkpoint")["driver"] == "1.0"
        install(foreign, installed)
        refused = driver.told("replace")
        assert re.search(
            r"no worker was replaced; kept: 0, 1: worker 0 was lost: .*dos-journal 2\.0, which speaks version"
            r" 4 .*dos-journal 1\.0, which speaks version 1 ",
            refused["error"],
        ), refused
        assert refused["versions"] == ["1.1", "1.1"]
        assert refused["resets"] == 0
        install(present, installed)
        assert dos("region", "replace", store, "wordcount", "--worker", "0").returncode == 0
        assert driver.told("checkpoint")["versions"] == ["1.0", "1.1"], "both work together"
        shown = dos("region", "status", store, "wordcount").stdout
        assert "workers run different versions: worker 0 1.0, worker 1 1.1" in shown
        with driving(tmp_path, later, installed, store) as newer:
            taken = newer.told("checkpoint")
            assert (taken["driver"], taken["versions"]) == ("1.1", ["1.0", "1.0"])
            assert driver.told("end")["state"] == "FENCED"
            down = newer.told("replace")
            assert down.get("replaced") == [0, 1], down
            (tmp_path / "hurry").touch()
            assert newer.told("end")["state"] == "FINISHED"
    verdict = judge((tmp_path / "out").glob("part-w*.tsv"), COUNTS, 2 * PASSES)
    assert verdict.right, verdict
