"""A standalone Flink cluster on loopback, and its job: a count by key in the Table API, with RocksDB state.

It runs with the Python of a separate environment (`own_environment.py`), and imports nothing of this
project. There is a JobManager, and TaskManagers with one slot each. Checkpoints are incremental, with one
copy on the local disk. A job reads a socket (`from_socket`): then input that was read since the last
checkpoint is not read again. Or it reads two files, one of them slowly (`from_files`): a socket cannot be
stopped with a savepoint. Output counts as visible after a TaskManager has printed it.
"""

import json
import os
import re
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dataflow_program import free_port

CAP_S = 120.0
"""A longer wait is an error."""
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

    def __init__(self, folder: Path, interval: str, managers: int = 2) -> None:
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
        self.printed: list[float] = []
        """When each row of output was visible."""
        self.seen: list[tuple[float, float]] = []
        self.probes: set[int] = set()
        self.changed = threading.Condition()
        self.processes: list[subprocess.Popen[str]] = []
        self.managers: list[subprocess.Popen[str]] = []
        self._start("jobmanager.sh")
        self.managers = [self._start("taskmanager.sh") for _ in range(managers)]

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
                self.printed.append(time.time())
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

    def ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
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
                if self.ask("/overview")["slots-total"] >= len(self.managers):
                    return
            except OSError:
                pass  # it is not listening yet
            if time.monotonic() > deadline:
                raise RuntimeError("Flink's cluster did not start")
            time.sleep(0.2)

    def stop_with_savepoint(self, job: str) -> str:
        """Stop a job and return the savepoint, in the format of its state, which is the faster one."""
        body = {"targetDirectory": (self.folder / "savepoints").as_uri(), "formatType": "NATIVE"}
        request = self.ask(f"/jobs/{job}/stop", {**body, "drain": False})["request-id"]
        deadline = time.monotonic() + CAP_S
        while time.monotonic() < deadline:
            answer = self.ask(f"/jobs/{job}/savepoints/{request}")
            if answer["status"]["id"] == "COMPLETED":
                if "location" not in answer["operation"]:
                    raise RuntimeError(f"Flink made no savepoint: {answer['operation']}")
                return str(answer["operation"]["location"])
            time.sleep(0.01)
        raise RuntimeError("Flink's savepoint did not complete")

    def wait_until_running(self, job: str) -> None:
        """Return when all subtasks of a job have restored their state."""
        deadline = time.monotonic() + CAP_S
        while not all(one["status"] == "RUNNING" for one in self.ask(f"/jobs/{job}")["vertices"]):
            if time.monotonic() > deadline:
                raise RuntimeError("Flink did not start the job")
            time.sleep(0.02)

    def submit(self, read: Callable[[Any], Any], parallelism: int = 2, savepoint: str = "") -> str:
        """Submit the job and return its id.

        read: returns the lines to count, as a DataStream of the environment that it receives. savepoint:
        where the job continues, '' for the beginning.
        """
        os.environ.update(self.environment)
        from pyflink.common import Configuration
        from pyflink.datastream import StreamExecutionEnvironment
        from pyflink.java_gateway import get_gateway
        from pyflink.table import StreamTableEnvironment

        conf = Configuration()  # of the job: the configuration of the cluster does not apply to it
        for line in self.config.splitlines():
            key, _, value = line.partition(": ")
            if key.startswith(("execution.", "state.", "restart-strategy")):
                conf.set_string(key, value)
        conf.set_string("parallelism.default", str(parallelism))
        conf.set_string("pipeline.max-parallelism", "128")
        if savepoint:
            conf.set_string("execution.state-recovery.path", savepoint)
        gateway = get_gateway()
        java = gateway.jvm.org.apache.flink.streaming.api.environment.StreamExecutionEnvironment
        jars = gateway.new_array(gateway.jvm.java.lang.String, 0)
        remote = java.createRemoteEnvironment("127.0.0.1", self.rest, conf._j_configuration, jars)
        env = StreamExecutionEnvironment(remote)
        tables = StreamTableEnvironment.create(env)
        tables.create_temporary_view("feed", tables.from_data_stream(read(env)))
        columns = "word STRING, n BIGINT, sent BIGINT"
        tables.execute_sql(f"CREATE TABLE shown ({columns}) WITH ('connector' = 'print')")
        return str(tables.execute_sql(QUERY).get_job_client().get_job_id())

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()


def from_socket(port: int) -> Callable[[Any], Any]:
    """Return what `submit` reads: the lines of a socket."""

    def read(env: Any) -> Any:
        from pyflink.datastream import DataStream

        return DataStream(env._j_stream_execution_environment.socketTextStream("127.0.0.1", port, "\n", -1))

    return read


def from_files(stored: Path, paced: Path, rows_per_s: float) -> Callable[[Any], Any]:
    """Return what `submit` reads: the lines of a file at once, and those of another file at this rate."""

    def read(env: Any) -> Any:
        from pyflink.common import Duration, Types, WatermarkStrategy
        from pyflink.datastream.connectors.base import Source
        from pyflink.datastream.connectors.file_system import FileSource, StreamFormat
        from pyflink.java_gateway import get_gateway

        no_time, jvm = WatermarkStrategy.no_watermarks(), get_gateway().jvm
        files = FileSource.for_record_stream_format(StreamFormat.text_line_format(), stored.as_uri())
        endless = files.monitor_continuously(Duration.of_seconds(60)).build()
        lines = jvm.java.nio.file.Files.readAllLines(jvm.java.io.File(str(paced)).toPath())
        text, config = Types.STRING().get_java_type_info(), env._j_stream_execution_environment.getConfig()
        flink = jvm.org.apache.flink
        source = flink.connector.datagen.source.DataGeneratorSource(
            flink.connector.datagen.functions.FromElementsGeneratorFunction(text, config, lines),
            lines.size(),
            flink.api.connector.source.util.ratelimit.RateLimiterStrategy.perSecond(float(rows_per_s)),
            text,
        )
        generated = env.from_source(Source(source), no_time, "paced", Types.STRING())
        at_once = env.from_source(endless, no_time, "stored")
        return at_once.set_parallelism(1).union(generated.set_parallelism(1))

    return read
