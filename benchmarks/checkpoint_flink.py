"""Measure checkpoints and recovery of PyFlink: a count by key in its Table API, with RocksDB state.

    checkpoint_flink.py checkpoint KEYS CHECKPOINTS   # 1 % of the keys changed for each
    checkpoint_flink.py recovery KEYS ROUNDS          # a TaskManager is killed, and started again at once

It runs with the Python of a separate environment (`own_environment.py`), and imports nothing of this project
except `word_feed`, which uses only the standard library. A standalone cluster runs on loopback: a JobManager
and two TaskManagers with one slot each. Checkpoints are incremental, with one copy on the local disk, every
second in `recovery`. The source is a socket, so input that a TaskManager had read since the last checkpoint
is not read again. Output counts as visible after a TaskManager has printed it. Prints one line of JSON.
"""

import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from word_feed import WordFeed

PART_KEYS = 50_000
PACE_S = 0.02
RECOVERY_ROWS_PER_S = 5_000
CHANGED = 0.01
PROBES = 64
"""Keys that are sent last when the state is built: after all of these are counted, so are those before."""
CAP_S = 120.0
"""A longer wait is an error."""
RECOVERIES_S = 90.0
"""No further measurement is begun after this time."""
ROW = re.compile(r"\[k(\d+), (\d+), (\d+)\]")
CONFIG = """\
jobmanager.rpc.address: 127.0.0.1
jobmanager.rpc.port: {rpc}
jobmanager.bind-host: 127.0.0.1
jobmanager.memory.process.size: 1024m
taskmanager.bind-host: 127.0.0.1
taskmanager.host: 127.0.0.1
taskmanager.numberOfTaskSlots: 1
taskmanager.memory.process.size: 1600m
rest.address: 127.0.0.1
rest.port: {rest}
state.backend.type: rocksdb
execution.checkpointing.incremental: true
execution.checkpointing.interval: {interval}
execution.checkpointing.dir: {folder}/checkpoints
io.tmp.dirs: {tmp}
restart-strategy.type: fixed-delay
restart-strategy.fixed-delay.attempts: 1000
restart-strategy.fixed-delay.delay: 50 ms
heartbeat.interval: 1000
heartbeat.timeout: 10000
heartbeat.rpc-failure-threshold: 1
"""
QUERY = """\
INSERT INTO shown SELECT word, COUNT(*), MAX(sent) FROM (
    SELECT SPLIT_INDEX(f0, ' ', 0) AS word, CAST(SPLIT_INDEX(f0, ' ', 1) AS BIGINT) AS sent FROM feed
) GROUP BY word HAVING MAX(sent) > 0"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def java_options(home: Path, tmp: Path) -> str:
    """Return the Java options of Flink's own configuration, without which Flink does not start on Java 17,
    and the folder for temporary files, which killed processes leave behind.
    """
    option = re.search(r"^      all: (--add.*)$", (home / "conf" / "config.yaml").read_text(), re.M)
    if option is None:
        raise RuntimeError(f"{home}/conf/config.yaml has no env.java.opts.all")
    return f"env.java.opts.all: {option[1]} -Djava.io.tmpdir={tmp}\n"


class Cluster:
    """The processes of the cluster, and their output."""

    def __init__(self, folder: Path, interval: str) -> None:
        import pyflink

        self.home = Path(pyflink.__file__).parent
        self.folder = folder
        self.rest = free_port()
        conf = folder / "conf"
        conf.mkdir()
        tmp = folder / "tmp"
        tmp.mkdir()
        self.config = CONFIG.format(
            rpc=free_port(), rest=self.rest, interval=interval, folder=folder.as_uri(), tmp=tmp
        )
        (conf / "config.yaml").write_text(self.config + java_options(self.home, tmp))
        for name in ("log4j-console.properties", "logback-console.xml"):
            (conf / name).write_bytes((self.home / "conf" / name).read_bytes())
        self.environment = {
            **os.environ,
            "FLINK_HOME": str(self.home),
            "FLINK_CONF_DIR": str(conf),
            "FLINK_LOG_DIR": str(folder),
            "FLINK_PID_DIR": str(folder),
        }
        self.seen: list[tuple[float, float]] = []
        self.probes: set[int] = set()
        self.changed = threading.Condition()
        self.processes: list[subprocess.Popen[str]] = []
        self.managers: list[subprocess.Popen[str]] = []
        self._start("jobmanager.sh")
        self.managers = [self._start("taskmanager.sh") for _ in range(2)]

    def _start(self, script: str) -> "subprocess.Popen[str]":
        with (self.folder / f"{script}.{len(self.processes)}.err").open("wb") as errors:
            process = subprocess.Popen(
                [str(self.home / "bin" / script), "start-foreground"],
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.processes.append(process)
        threading.Thread(target=self._read, args=(process,), daemon=True).start()
        return process

    def _read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        log = (self.folder / f"out.{process.pid}").open("w")
        for line in process.stdout:
            row = ROW.search(line)
            if row is None:
                log.write(line)
                log.flush()
                continue
            sent = int(row[3]) / 1e6
            with self.changed:
                self.probes.add(int(row[1]))
                if not self.seen or sent > self.seen[-1][1]:
                    self.seen.append((time.time(), sent))
                    self.changed.notify_all()

    def kill_manager(self, index: int) -> float:
        """Kill a TaskManager with SIGKILL and start another one at once. Returns the time of the kill."""
        manager = self.managers[index]
        manager.kill()
        killed = time.time()
        self.managers[index] = self._start("taskmanager.sh")
        manager.wait()
        return killed

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + CAP_S
        with self.changed:
            while not condition():
                if time.monotonic() > deadline:
                    raise RuntimeError("Flink did not reach the expected state")
                self.changed.wait(0.05)

    def visible(self, sent: float) -> float:
        """Return when a line that was sent at `sent` or later was visible."""
        self.until(lambda: bool(self.seen) and self.seen[-1][1] >= sent)
        return next(when for when, last in self.seen if last >= sent)

    def ask(self, path: str, body: dict[str, str] | None = None) -> dict[str, Any]:
        """Send a request to the REST interface."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.rest}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            given: dict[str, Any] = json.load(answer)
            return given

    def wait_for_slots(self) -> None:
        deadline = time.monotonic() + CAP_S
        while True:
            try:
                if self.ask("/overview")["slots-total"] >= 2:
                    return
            except OSError:
                pass  # it is not listening yet
            if time.monotonic() > deadline:
                raise RuntimeError("Flink's cluster did not start")
            time.sleep(0.2)

    def submit(self, port: int) -> str:
        """Submit the job and return its id."""
        os.environ.update(self.environment)
        from pyflink.common import Configuration
        from pyflink.datastream import DataStream, StreamExecutionEnvironment
        from pyflink.java_gateway import get_gateway
        from pyflink.table import StreamTableEnvironment

        conf = Configuration()  # of the job: the configuration of the cluster does not apply to it
        for line in self.config.splitlines():
            key, _, value = line.partition(": ")
            if key.startswith(("execution.", "state.", "restart-strategy")):
                conf.set_string(key, value)
        conf.set_string("parallelism.default", "2")
        gateway = get_gateway()
        java = gateway.jvm.org.apache.flink.streaming.api.environment.StreamExecutionEnvironment
        jars = gateway.new_array(gateway.jvm.java.lang.String, 0)
        remote = java.createRemoteEnvironment("127.0.0.1", self.rest, conf._j_configuration, jars)
        env = StreamExecutionEnvironment(remote)
        tables = StreamTableEnvironment.create(env)
        lines = env._j_stream_execution_environment.socketTextStream("127.0.0.1", port, "\n", -1)
        tables.create_temporary_view("feed", tables.from_data_stream(DataStream(lines)))
        columns = "word STRING, n BIGINT, sent BIGINT"
        tables.execute_sql(f"CREATE TABLE shown ({columns}) WITH ('connector' = 'print')")
        return str(tables.execute_sql(QUERY).get_job_client().get_job_id())

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()


def preload(cluster: Cluster, feed: WordFeed, keys: int) -> None:
    for begin in range(0, keys, PART_KEYS):
        feed.send(range(begin, min(begin + PART_KEYS, keys)), timed=False)
    wanted = set(range(0, keys, max(keys // PROBES, 1)))
    feed.send(wanted)
    cluster.until(lambda: wanted <= cluster.probes)


def checkpoint(cluster: Cluster, feed: WordFeed, job: str, keys: int, cuts: int) -> dict[str, Any]:
    """Measure checkpoints from the trigger to the end, as Flink reports it."""
    preload(cluster, feed, keys)
    rng, found = random.Random(1), []
    for number in range(cuts + 1):  # the first one contains all keys
        sent = feed.send(rng.sample(range(keys), int(keys * CHANGED)))
        cluster.visible(sent - 1e-6)
        time.sleep(0.3)  # the rows after the first one that was printed
        cluster.ask(f"/jobs/{job}/checkpoints", {"checkpointType": "CONFIGURED"})
        done: dict[str, Any] = {}
        deadline = time.monotonic() + CAP_S
        while done.get("count", 0) <= number:
            if time.monotonic() > deadline:
                raise RuntimeError("Flink's checkpoint did not complete")
            time.sleep(0.05)
            answer = cluster.ask(f"/jobs/{job}/checkpoints")
            done = {"count": answer["counts"]["completed"], **(answer["latest"]["completed"] or {})}
        found.append(done["end_to_end_duration"] / 1000)
    return {
        "keys": keys,
        "cuts": cuts,
        "median_s": statistics.median(found[1:]),
        "max_s": max(found[1:]),
        "first_s": found[0],
    }


def recovery(cluster: Cluster, feed: WordFeed, job: str, keys: int, rounds: int) -> dict[str, Any]:
    """Measure the seconds from the SIGKILL of a TaskManager until output of later input is visible."""
    preload(cluster, feed, keys)
    feed.paced(keys, RECOVERY_ROWS_PER_S, PACE_S)
    seconds: list[float] = []
    begun = time.monotonic()
    for number in range(rounds):
        if time.monotonic() > begun + RECOVERIES_S:
            break  # at least one was completed
        before = cluster.ask(f"/jobs/{job}/checkpoints")["counts"]["completed"]
        deadline = time.monotonic() + CAP_S
        while cluster.ask(f"/jobs/{job}/checkpoints")["counts"]["completed"] < before + 2:
            if time.monotonic() > deadline:
                raise RuntimeError("Flink made no checkpoints")
            time.sleep(0.1)
        killed = cluster.kill_manager(number % 2)
        # the other one still prints output of lines that it had read; the job must have gone back first
        while cluster.ask(f"/jobs/{job}/checkpoints")["counts"]["restored"] <= number:
            if time.monotonic() > deadline + CAP_S:
                raise RuntimeError("Flink did not restore")
            time.sleep(0.02)
        restored = time.time()
        seconds.append(round(cluster.visible(restored) - killed, 3))
        print(f"Flink is back after {seconds[-1]} s", file=sys.stderr, flush=True)
    return {"keys": keys, "seconds": seconds}


def main() -> None:
    what, keys, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with (
        tempfile.TemporaryDirectory(prefix="dos-flink-", ignore_cleanup_errors=True) as name,
        ExitStack() as stack,
    ):
        cluster = Cluster(Path(name), "1 s" if what == "recovery" else "1 h")
        stack.callback(cluster.close)
        feed = WordFeed()
        stack.callback(feed.close)
        cluster.wait_for_slots()
        job = cluster.submit(feed.port)
        measure = recovery if what == "recovery" else checkpoint
        print(json.dumps(measure(cluster, feed, job, keys, count)), flush=True)


if __name__ == "__main__":
    main()
