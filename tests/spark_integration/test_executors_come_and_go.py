"""Executors that are requested when a region grows, drained when they leave, and given back when it shrinks.

Dynamic allocation and decommissioning are Spark's own, on executors that are processes. The signal to an
executor is the one that Kubernetes and YARN send when a node is drained.
"""

from pathlib import Path

import pytest

from examples.demo.verdict import judge
from tests.dataflow.support import made
from tests.dataflow.test_rescaled_regions import counts_in
from tests.spark_integration.cluster_program import COUNTS, counted
from tests.support.servers import ServerProcess, three_servers

__all__ = ["three_servers"]

pytestmark = pytest.mark.spark

PASSES = 2_000
DRIVER = """
import json, os, signal, sys
from pathlib import Path
from checkpoint.core.region import RegionState
from spark_integration import run
from helper import HURRY, executor_of, session, until, word_count

here, store = Path(sys.argv[1]), sys.argv[2]
settings = {
    "spark.executor.cores": "1",
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.maxExecutors": "4",
    "spark.dynamicAllocation.executorIdleTimeout": "5s",
    "spark.decommission.enabled": "true",
}
spark = session("local-cluster[4,1,1024]", here, settings)
graph = word_count(here, 2_000)
region = run(spark, graph, store=store, workers=2, checkpoint_interval=0.2, spare_slots=0, start_timeout=120)

def executors():
    return [executor_of(worker) for worker in region.status.workers]

def registered():
    return spark.sparkContext._jsc.sc().getExecutorIds().size()

said = {}
region.checkpoint(120)
said["at first"] = registered()
region.scale(3, 120)
said["of three"] = len(set(executors()))
leaving = executors()[1]
os.kill(leaving, signal.SIGPWR)
moved = lambda: region.status.workers[1].attempt == 2 and region.status.state is RegionState.RUNNING
until(region, "drained", moved)
said["moved"] = leaving not in executors()
until(region, "left", lambda: not Path(f"/proc/{leaving}").exists())
said["resets"] = len(region.status.resets)
region.scale(1, 120)
until(region, "given back", lambda: registered() == 1)
HURRY.touch()
region.awaitTermination(150)
said["state"] = region.status.state.value
print(json.dumps(said))
spark.stop()
"""


@pytest.mark.long
@pytest.mark.timeout(500)
def test_executors_are_requested_drained_and_given_back(
    three_servers: list[ServerProcess], tmp_path: Path
) -> None:
    assert counted(tmp_path, DRIVER, made(three_servers)) == {
        "at first": 2,
        "of three": 3,
        "moved": True,
        "resets": 0,
        "state": "FINISHED",
    }
    assert counts_in(tmp_path / "out") == {word.decode(): 2 * PASSES * n for word, n in COUNTS.items()}


STANDBY_DRIVER = """
import json, os, signal, sys
from pathlib import Path
import psutil
from checkpoint.core.region import RegionState
from spark_integration import run
from spark_integration.launcher import Executors, standby_tag
from helper import HURRY, executor_of, session, until, word_count

here, store = Path(sys.argv[1]), sys.argv[2]
spark = session(
    "local-cluster[4,1,1024]", here, {"spark.executor.cores": "1", "spark.decommission.enabled": "true"}
)
graph = word_count(here, 2_000)
region = run(
    spark, graph, store=store, workers=2, checkpoint_interval=0.2, spare_slots=0, start_timeout=120, standby=1
)

def executor_of_standby(number):
    until(region, f"stand-by {number} waits", lambda: region._control.standbys.numbers() == [number])
    place = Executors(spark)._place_of(standby_tag("wordcount", number))
    for one in psutil.Process().children(recursive=True):
        line = one.cmdline() if one.status() != psutil.STATUS_ZOMBIE else []
        if "--executor-id" in line and line[line.index("--executor-id") + 1] == place.executor:
            return one.pid
    raise AssertionError(place)

said = {}
drained = executor_of_standby(1)
os.kill(drained, signal.SIGPWR)
waits = executor_of_standby(2)
until(region, "left", lambda: not Path(f"/proc/{drained}").exists())
said["moved"] = waits != drained
said["resets of a stand-by"] = len(region.status.resets)
os.kill(executor_of(region.status.workers[1]), signal.SIGKILL)
until(region, "reset", lambda: len(region.status.resets) == 1 and region.status.state is RegionState.RUNNING)
said["took over"] = executor_of(region.status.workers[1]) == waits
executor_of_standby(3)
HURRY.touch()
region.awaitTermination(150)
said["state"] = region.status.state.value
print(json.dumps(said))
spark.stop()
"""


@pytest.mark.long
@pytest.mark.timeout(500)
def test_a_stand_by_moves_from_a_drained_executor_and_replaces_a_worker_of_a_lost_one(
    three_servers: list[ServerProcess], tmp_path: Path
) -> None:
    assert counted(tmp_path, STANDBY_DRIVER, made(three_servers)) == {
        "moved": True,
        "resets of a stand-by": 0,
        "took over": True,
        "state": "FINISHED",
    }
    verdict = judge((tmp_path / "out").glob("part-w*.tsv"), COUNTS, 2 * PASSES)
    assert verdict.right, verdict
