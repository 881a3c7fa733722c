"""Measure PyFlink, for `./run bench dataflow`: its SQL, its vectorized functions, its DataStream functions.

    dataflow_flink.py {builtin,batch,row} FOLDER KEYS ROWS [--cap SECONDS]

builtin   SQL: COUNT, SUM, MAX, with mini-batches and two phases
batch     the same after a vectorized (pandas) scalar function. PyFlink has no vectorized aggregate without
          a window on a stream, so the state is that of its SQL
row       a KeyedProcessFunction with a ValueState, in Python

It runs with the Python of a separate environment (`own_environment.py`). One process runs the job with
parallelism 2, RocksDB state, an incremental checkpoint every second on the local disk, and no sink. Prints
one line of JSON.
"""

import argparse
import json
import re
import sys
import urllib.request
from pathlib import Path
from typing import Any

from dataflow_meter import Meter
from dataflow_program import FILE_ROWS, free_port, input_files, linked, run
from pyflink.common import Configuration, JobClient, Types, WatermarkStrategy
from pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.connectors.file_system import FileSource, StreamFormat
from pyflink.datastream.state import ValueStateDescriptor
from pyflink.table import DataTypes, StreamTableEnvironment
from pyflink.table.udf import udf

PARALLELISM = 2
SOURCE = """\
CREATE TABLE numbers (`key` STRING, number BIGINT)
WITH ('connector' = 'filesystem', 'path' = '{path}', 'format' = 'csv')"""
NOWHERE = """\
CREATE TABLE nowhere (`key` STRING, n BIGINT, total BIGINT, largest BIGINT)
WITH ('connector' = 'blackhole')"""
QUERY = """\
INSERT INTO nowhere SELECT `key`, COUNT(*), SUM({number}), MAX({number}) FROM numbers GROUP BY `key`"""
FUNCTION_OUT = re.compile(r"^KEYED_PROCESS\.numRecordsOut$")
SOURCE_OUT = re.compile(r"^Source_.*\.numRecordsOut$")
"""Operators whose rows are counted. A function emits one row per row. SQL buffers at most one mini-batch."""


class Totals(KeyedProcessFunction):
    """Add one row to the totals of its key, and return them."""

    def open(self, runtime_context: RuntimeContext) -> None:
        kind = Types.TUPLE([Types.LONG(), Types.LONG(), Types.LONG()])
        self.kept = runtime_context.get_state(ValueStateDescriptor("totals", kind))

    def process_element(self, value: Any, ctx: Any) -> Any:
        del ctx
        rows, total, largest = self.kept.value() or (0, 0, 0)
        kept = (rows + 1, total + value[1], max(largest, value[1]))
        self.kept.update(kept)
        yield value[0], *kept


def parsed(line: str) -> tuple[str, int]:
    key, _, number = line.partition(",")
    return key, int(number)


@udf(result_type=DataTypes.BIGINT(), func_type="pandas")
def passed(numbers: Any) -> Any:
    """The vectorized function."""
    return numbers + 0


def environment(folder: Path, port: int) -> StreamExecutionEnvironment:
    conf = Configuration()
    settings = {
        "rest.port": str(port),
        "rest.bind-port": str(port),
        "rest.address": "127.0.0.1",
        "python.executable": sys.executable,  # otherwise the `python` of PATH is used, which has no PyFlink
        "python.client.executable": sys.executable,
        "python.fn-execution.bundle.size": "100000",  # bundles are expensive
        "python.state.cache-size": "200000",  # all keys
        "restart-strategy.type": "none",  # a failure is reported, not retried for ever
        "parallelism.default": str(PARALLELISM),
        "taskmanager.numberOfTaskSlots": str(PARALLELISM),
        "state.backend.type": "rocksdb",
        "execution.checkpointing.incremental": "true",
        "execution.checkpointing.interval": "1 s",
        "execution.checkpointing.dir": (folder / "checkpoints").as_uri(),
        "io.tmp.dirs": str(folder / "tmp"),
        "metrics.fetcher.update-interval": "500",
        "table.exec.mini-batch.enabled": "true",
        "table.exec.mini-batch.allow-latency": "1 s",
        "table.exec.mini-batch.size": "50000",
        "table.optimizer.agg-phase-strategy": "TWO_PHASE",
        "taskmanager.memory.managed.size": "512m",
    }
    for name, value in settings.items():
        conf.set_string(name, value)
    return StreamExecutionEnvironment.get_execution_environment(conf)


def by_sql(env: StreamExecutionEnvironment, source: Path, number: str) -> JobClient:
    tables = StreamTableEnvironment.create(env)
    tables.create_temporary_system_function("passed", passed)
    tables.execute_sql(SOURCE.format(path=source.as_uri()))
    tables.execute_sql(NOWHERE)
    return tables.execute_sql(QUERY.format(number=number)).get_job_client()


def by_row(env: StreamExecutionEnvironment, source: Path) -> JobClient:
    reading = FileSource.for_record_stream_format(StreamFormat.text_line_format(), source.as_uri()).build()
    lines = env.from_source(reading, WatermarkStrategy.no_watermarks(), "Source_lines")
    pairs = lines.map(parsed, Types.TUPLE([Types.STRING(), Types.LONG()]))
    kind = Types.TUPLE([Types.STRING(), Types.LONG(), Types.LONG(), Types.LONG()])
    totals = pairs.key_by(lambda pair: pair[0]).process(Totals(), kind)
    totals.add_sink(nowhere())
    return env.execute_async("totals")


def nowhere() -> Any:
    """Return Flink's own sink that discards its rows."""
    from pyflink.datastream.functions import SinkFunction
    from pyflink.java_gateway import get_gateway

    java = get_gateway().jvm.org.apache.flink.streaming.api.functions.sink.legacy.DiscardingSink()
    return SinkFunction(java)


class Job:
    """A running job, observed by the REST interface, which ends with the job."""

    def __init__(self, port: int, client: JobClient, counted: re.Pattern[str], rows: int) -> None:
        """counted: the metric with the number of processed rows."""
        self._counted = counted
        self._client = client
        self._url = f"http://127.0.0.1:{port}/jobs/{client.get_job_id()}"
        self._metrics: list[tuple[str, str]] = []
        self._all_rows = rows
        self._rows = 0
        self.checkpoints = 0

    def ask(self, path: str = "") -> Any:
        with urllib.request.urlopen(self._url + path, timeout=30) as answer:
            return json.load(answer)

    def rows_so_far(self) -> int:
        """Return the number of processed rows."""
        try:
            self._rows = max(self._rows, self._asked_rows())
        except OSError:
            if self.is_over():
                self._rows = self._all_rows
        return self._rows

    def _asked_rows(self) -> int:
        if not self._metrics:
            for vertex in self.ask()["vertices"]:
                path = f"/vertices/{vertex['id']}/subtasks/metrics"
                names = [one["id"] for one in self.ask(path)]
                self._metrics += [(path, name) for name in names if self._counted.match(name)]
        found = 0
        for path, name in self._metrics[:1]:
            answer = self.ask(f"{path}?get={urllib.request.quote(name)}&agg=sum")
            found = sum(int(one["sum"]) for one in answer)
        return found

    def is_over(self) -> bool:
        try:
            state = self.ask()["state"]
            self.checkpoints = self.ask("/checkpoints")["counts"]["completed"]
        except OSError:
            self._client.get_job_execution_result().result()  # raises the failure of the job
            return True
        if state in ("FAILED", "FAILING", "CANCELED"):
            raise RuntimeError(f"the job is {state}: {self.ask('/exceptions')['root-exception']}")
        return bool(state == "FINISHED")


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    paths = input_files(options)
    source = linked(paths, folder)
    (folder / "tmp").mkdir()
    port = free_port()
    env = environment(folder, port)
    if options.way == "row":
        client, counted = by_row(env, source), FUNCTION_OUT
    else:
        number = "number" if options.way == "builtin" else "passed(number)"
        client, counted = by_sql(env, source, number), SOURCE_OUT
    rows = len(paths) * FILE_ROWS
    job = Job(port, client, counted, rows)
    figures = Meter(rows, options.cap).watch(job.rows_so_far, job.is_over)
    return {**figures, "checkpoints": job.checkpoints}


if __name__ == "__main__":
    run(measure, __doc__, ("builtin", "batch", "row"))
