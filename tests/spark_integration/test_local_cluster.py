"""A region on executors that are processes of their own, as on a real cluster, and import nothing of ours but
what is installed: `local-cluster`, and a standalone cluster on loopback, started with Spark's own classes.

A worker is killed, then the whole executor of one. The standalone cluster is in the long part of the tests:
`tests/hosts` has one in every run, with an executor on each of several hosts, which are lost.
"""

import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest
import trio

from dos_client import init_store
from examples.demo.verdict import judge
from tests.spark_integration.cluster_program import COUNTS, counted
from tests.support.servers import ServerProcess

pytestmark = pytest.mark.spark

PASSES = 150
START_S_MAX = 120.0
DRIVER = """
import json, os, signal, sys, time
from pathlib import Path
from checkpoint.core.region import RegionState
from spark_integration import run
from helper import HURRY, daemon_of, executor_of, session, until, word_count

here, master, passes, options = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
spark = session(master, here, {"spark.executor.cores": "1", "spark.cores.max": "2"})
region = run(spark, word_count(here, passes, local=True), checkpoint_interval=0.2, spare_slots=0, **options)

def running_and_checkpoint_since(before):
    return region.status.state is RegionState.RUNNING and region.status.checkpoints_committed > before

def checkpoint_once_more():
    before = region.status.checkpoints_committed
    until(region, "checkpoint", lambda: running_and_checkpoint_since(before))

checkpoint_once_more()
daemons = {daemon_of(worker) for worker in region.status.workers}
os.kill(region.status.workers[0].pid, signal.SIGKILL)
until(region, "one reset", lambda: len(region.status.resets) == 1)
checkpoint_once_more()
executors = [executor_of(worker) for worker in region.status.workers]
names = {Path(f"/proc/{pid}/comm").read_text().strip() for pid in executors}
os.kill(executors[1], signal.SIGKILL)
killed = time.monotonic()
until(region, "two resets", lambda: len(region.status.resets) == 2)
checkpoint_once_more()
seconds = time.monotonic() - killed
new = executor_of(region.status.workers[1])
HURRY.touch()
region.awaitTermination(150)
print(json.dumps({
    "state": region.status.state.value,
    "resets": [reset.reason for reset in region.status.resets],
    "daemons": len(daemons),
    "executors": len(set(executors)),
    "names": sorted(names),
    "another": new not in executors,
    "seconds": round(seconds, 2),
}))
spark.stop()
"""


class SparkProgram:
    """One of Spark's own programs: what `sbin/start-*.sh` would start, which the wheel does not have."""

    def __init__(self, *arguments: str, memory: str = "256m") -> None:
        home = Path(pyspark.__file__).parent
        self.process = subprocess.Popen(
            [str(home / "bin" / "spark-class"), *arguments],
            env={**os.environ, "SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": memory},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._rest: threading.Thread | None = None

    def first(self, pattern: str) -> str:
        """What the pattern's group finds in the first line that has it. Later lines are dropped."""
        stderr = self.process.stderr
        assert stderr is not None
        watchdog = threading.Timer(START_S_MAX, self.process.kill)
        watchdog.start()
        said = []
        try:
            for line in stderr:
                said.append(line)
                if found := re.search(pattern, line):
                    self._rest = threading.Thread(target=stderr.read, daemon=True)
                    self._rest.start()
                    return found[1]
        finally:
            watchdog.cancel()
        raise RuntimeError(f"it said nothing like {pattern!r}: {''.join(said)[-3000:]}")

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self._rest is not None:
            self._rest.join()
        assert self.process.stderr is not None
        self.process.stderr.close()


@contextmanager
def standalone(
    folder: Path, *, hosts: Sequence[str] = ("127.0.0.1",), cores: int = 2, memory: str = "2g"
) -> Iterator[str]:
    """A master, and on each host a worker with these cores, on loopback; the master's URL. They are ended by
    their id.
    """
    deploy = "org.apache.spark.deploy"
    ports = ("--port", "0", "--webui-port", "0")
    size = ("--cores", str(cores), "--memory", memory, "--work-dir", str(folder / "work"))
    with ExitStack() as stack:
        master = SparkProgram(f"{deploy}.master.Master", "--host", "127.0.0.1", *ports)
        stack.callback(master.end)
        url = master.first(r"Starting Spark master at (spark://\S+)")
        workers = []
        for host in hosts:
            workers.append(SparkProgram(f"{deploy}.worker.Worker", "--host", host, *ports, *size, url))
            stack.callback(workers[-1].end)
        for worker in workers:
            worker.first(r"Successfully registered with master (\S+)")
        yield url


# EVIDENCE-OF: P-7, P-10
@pytest.mark.every_pyspark
@pytest.mark.timeout(500)  # a Spark of three to five JVMs, on a busy machine
@pytest.mark.parametrize("master", ["local-cluster", pytest.param("standalone", marks=pytest.mark.long)])
def test_the_loss_of_a_worker_and_of_an_executor_changes_nothing(master: str, tmp_path: Path) -> None:
    if master == "local-cluster":
        options: dict[str, object] = {"data_dir": str(tmp_path / "data")}
        said = counted(tmp_path, DRIVER, "local-cluster[2,1,1024]", PASSES, json.dumps(options))
    else:
        with ServerProcess(tmp_path / "server") as server, standalone(tmp_path) as url:
            trio.run(init_store, server.url)
            options = {"store": server.url, "insecure": True}
            said = counted(tmp_path, DRIVER, url, PASSES, json.dumps(options))
    assert len(said["resets"]) == 2, said
    assert {name: said[name] for name in ("state", "daemons", "executors", "names", "another")} == {
        "state": "FINISHED",
        "daemons": 2,
        "executors": 2,
        "names": ["java"],
        "another": True,
    }
    verdict = judge((tmp_path / "out").glob("part-w*.tsv"), COUNTS, 2 * PASSES)
    assert verdict.right, verdict
