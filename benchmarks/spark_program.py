"""Shared code of the programs of `./run bench spark`: arguments, a store and a session, and one line of JSON
for each measurement.
"""

import argparse
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from pyspark.sql import SparkSession
from spark_others import register_others
from spark_session import SLOTS, session
from spark_stored import running_store

from spark_integration import register


class Bench(NamedTuple):
    """The session, store and options of a part. `folder`: a temporary folder."""

    options: argparse.Namespace
    spark: SparkSession
    url: str
    folder: Path


Part: TypeAlias = Callable[[Bench], Iterator[dict[str, Any]]]
"""A function that measures, and yields the record of each measurement."""


def run(parts: Mapping[str, Part], doc: str | None, *, slots: int = SLOTS) -> None:
    """Parse the command line, measure, print each record, and end at once, without waiting for the JVM."""
    options = _options(parts, doc)
    folder = Path(tempfile.mkdtemp(prefix="dos-spark-", dir=options.folder))
    try:
        with running_store(folder) as url:
            os.environ["PYTHONPATH"] = str(
                Path(__file__).parent
            )  # Spark's Python workers import spark_others
            spark = session(folder, f"local[{slots}]")
            register(spark)
            register_others(spark)
            for record in parts[options.part](Bench(options, spark, url, folder)):
                print(json.dumps({"part": options.part, **record}), flush=True)
            spark.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def _options(parts: Mapping[str, Part], doc: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("part", choices=list(parts))
    parser.add_argument("folder", type=Path, help="folder for temporary data")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=6_000_000)
    parser.add_argument("--batches", type=int, default=60, help="micro-batches of each query")
    parser.add_argument("--journal-mb", type=int, default=1_000)
    parser.add_argument("--record-bytes", type=int, default=4096)
    return parser.parse_args()
