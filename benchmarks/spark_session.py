"""The Spark session of every program here that measures Spark, with settings that favor Spark.

RocksDB state with changelog checkpoints, and as many shuffle partitions as slots.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pyspark.sql import SparkSession

SLOTS = 2
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
NO_MORE: Final[Mapping[str, str]] = MappingProxyType({})


def session(folder: Path, master: str = f"local[{SLOTS}]", more: Mapping[str, str] = NO_MORE) -> SparkSession:
    """folder: a temporary folder for Spark's files. more: additional settings."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    options = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.sql.shuffle.partitions": str(SLOTS),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        **more,
    }
    builder = SparkSession.builder.master(master).appName("dos yardstick")
    for name, value in options.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark
