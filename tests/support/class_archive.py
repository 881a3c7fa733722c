"""An archive of the classes that a JVM of Spark loads, so that the many which tests start begin in half the
time.

`python -m tests.support.class_archive` makes it, once for each version of Java and PySpark; `./run test` does
so before a run of all tests. A JVM checks that an archive fits its own version and class path, and
loads classes from the JAR files if it does not: this cannot change what a test sees.
"""

import hashlib
import os
import shutil
import sys
import time
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Of every JVM that a test starts: none lives until the code of the second compiler has paid for itself."""
_QUIET = "-Xlog:cds*=off"
"""Programs read the standard output of a JVM, and not its remarks on classes that cannot be archived."""
_END_S_MAX = 60.0


def archive_path() -> Path | None:
    """Return where the archive is, or would be; None without Java or PySpark."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if java is None or find_spec("pyspark") is None:
        return None
    binary = Path(java).resolve()
    key = f"{binary} {binary.stat().st_mtime_ns} {sys.prefix} {version('pyspark')} {OPTIONS}"
    return Path(sys.prefix) / f"spark-classes-{hashlib.sha256(key.encode()).hexdigest()[:16]}.jsa"


def jvm_options() -> str:
    """Return the options of every JVM that a test starts."""
    path = archive_path()
    return (
        f"{OPTIONS} -XX:SharedArchiveFile={path} {_QUIET}" if path is not None and path.exists() else OPTIONS
    )


def make() -> bool:
    """Make the archive if there is none. Return whether there is one now."""
    path = archive_path()
    if path is None or path.exists():
        return path is not None
    with TemporaryDirectory(dir=path.parent) as folder:
        new = Path(folder) / path.name
        os.environ["JAVA_TOOL_OPTIONS"] = f"{OPTIONS} -XX:ArchiveClassesAtExit={new} {_QUIET}"
        _load_classes(folder)
        made = new.exists()
        if made:
            new.replace(path)
    return made


def _load_classes(folder: str) -> None:
    """Do a little of what tests do with Spark, until the JVM has ended."""
    from pyspark import SparkContext  # not above: every process with tests imports this file
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.warehouse.dir", f"{folder}/warehouse").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    try:
        rows = spark.range(0, 1_000, 1, 2).selectExpr("id", "string(id % 3) AS key")
        rows.mapInArrow(lambda batches: batches, rows.schema).groupBy("key").count().collect()
        rows.write.parquet(f"{folder}/rows")
        assert spark.read.parquet(f"{folder}/rows").count() == 1_000
        stream = spark.readStream.schema(rows.schema).parquet(f"{folder}/rows").writeStream
        query = stream.foreachBatch(lambda frame, _: frame.collect()).option(
            "checkpointLocation", f"{folder}/query"
        )
        query.trigger(availableNow=True).start().awaitTermination()
    finally:
        spark.stop()
    gateway = SparkContext._gateway  # PySpark has no public way to end its JVM
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_END_S_MAX)  # the archive is written while it ends


if __name__ == "__main__":
    begun = time.monotonic()
    print("class archive of Spark:", "ready" if make() else "none", f"({time.monotonic() - begun:.0f} s)")
