"""Spark for the demo, the example's graph, and how fast a region goes."""

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from pyspark.sql import SparkSession

from checkpoint.core.region import RegionStatus

EXAMPLE = Path(__file__).parent.parent / "wordcount.py"

WINDOW_S = 3.0

LOG_SETTINGS = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c: %m%n%ex
"""


def load_example() -> ModuleType:
    """examples/wordcount.py, as a module that only this process knows: its functions travel by value."""
    spec = importlib.util.spec_from_file_location("wordcount", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["wordcount"] = module
    spec.loader.exec_module(module)
    return module


def start_spark(directory: Path, workers: int) -> SparkSession:
    """A session on this machine with two slots besides the workers'.

    What Spark and its workers say goes to files in `directory`: of a killed worker it holds the stack of a
    page.
    """
    directory.mkdir(parents=True, exist_ok=True)
    settings = directory / "log4j2.properties"
    settings.write_text(LOG_SETTINGS.format(file=directory / "spark.log"))
    builder = (
        SparkSession.builder.master(f"local[{workers + 2}]")
        .appName("dos demo")
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={settings.as_uri()}")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "600m")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.local.dir", str(directory / "local"))
    )
    with errors_to(directory / "stderr.log"):
        return builder.getOrCreate()


@contextlib.contextmanager
def errors_to(path: Path) -> Iterator[None]:
    """Let processes that are started in the block write their standard error to a file."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    except BaseException:
        os.write(kept, path.read_bytes())
        raise
    finally:
        os.dup2(kept, 2)
        os.close(kept)


class Speedometer:
    """How fast the workers read, and how far the input is counted, from their own reports.

    A worker's counter begins at 0 when the worker is restarted. Input that is read again after a reset counts
    for the speed and not for the position, which returns to the last checkpoint. Workers report once a
    second, so the position may be that late.
    """

    def __init__(self) -> None:
        self.position_bytes = 0
        self._at_checkpoint = 0
        self._checkpoint = 0
        self._incarnation = 0
        self._read_bytes = 0
        self._bytes_of_worker: dict[int, int] = {}
        self._samples: list[tuple[float, int]] = []

    def sample(self, status: RegionStatus, now: float) -> None:
        if status.incarnation != self._incarnation:
            self._incarnation, self.position_bytes = status.incarnation, self._at_checkpoint
        for worker in status.workers:
            size, before = worker.counters.bytes_in, self._bytes_of_worker.get(worker.index, 0)
            read = size - before if size >= before else size
            self._read_bytes += read
            self.position_bytes += read
            self._bytes_of_worker[worker.index] = size
        if status.last_checkpoint != self._checkpoint:
            self._checkpoint, self._at_checkpoint = status.last_checkpoint, self.position_bytes
        self._samples = [s for s in self._samples if now - s[0] < WINDOW_S] + [(now, self._read_bytes)]

    @property
    def bytes_per_s(self) -> float:
        """Over the last seconds."""
        (begin, first), (end, last) = self._samples[0], self._samples[-1]
        return (last - first) / (end - begin) if end > begin else 0.0
