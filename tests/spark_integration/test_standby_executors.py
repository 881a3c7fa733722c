"""A stand-by on executors that are processes: its executor is drained, and then that of a worker is lost."""

from pathlib import Path

import pytest

from examples.demo.verdict import judge
from tests.dataflow.support import made
from tests.spark_integration.cluster_program import COUNTS, counted
from tests.support.servers import ServerProcess, three_servers

__all__ = ["three_servers"]
pytestmark = pytest.mark.spark

PASSES = 2_000
DRIVER = """
import json, os, signal, sys
from pathlib import Path
import psutil
from checkpoint.core.region import RegionState
from spark_integration import run
from spark_integration.launcher import Executors
from spark_integration.launcher import standby_tag
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
    assert counted(tmp_path, DRIVER, made(three_servers)) == {
        "moved": True,
        "resets of a stand-by": 0,
        "took over": True,
        "state": "FINISHED",
    }
    verdict = judge((tmp_path / "out").glob("part-w*.tsv"), COUNTS, 2 * PASSES)
    assert verdict.right, verdict
