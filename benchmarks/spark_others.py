"""What `./run bench spark` compares the source and the sink `dos` with: the minimum that a Python data source
of Spark can do.

It uses only Spark's classes, because Spark's Python workers import it for the comparison, whose cost must
not include ours.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema

ROW = "key string, number long"


class EmptyStream(DataSourceStreamReader):  # type: ignore[misc]  # pyspark is not typed here
    """A stream that always has a new offset and never a row."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"at": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802, ARG002
        return {"at": start["at"] + 1}

    def partitions(self, start: Any, end: Any) -> list[InputPartition]:  # noqa: ARG002
        return [InputPartition(number) for number in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        return iter(())


class Prebuilt(DataSourceReader):  # type: ignore[misc]
    """A reader whose tasks build one batch each and yield it repeatedly."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._partitions = int(options["partitions"])
        self._times = int(options["times"])
        self._rows = int(options["rows"])

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        keys = np.random.default_rng(8).integers(0, 100_000, self._rows)
        batch = pa.RecordBatch.from_pydict(
            {"key": [f"k{key:07}" for key in keys], "number": pa.array(keys, pa.int64())}
        )
        for _ in range(self._times):
            yield batch


@dataclass
class Written(WriterCommitMessage):  # type: ignore[misc]
    """The commit message of a task: its file."""

    path: str


class ParquetWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """A writer whose tasks write one file each under a temporary name, which a commit renames."""

    def __init__(self, folder: str, schema: pa.Schema) -> None:
        self._folder = folder
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        path = f"{self._folder}/{uuid.uuid4().hex}.parquet"
        with pq.ParquetWriter(f"{path}.part", self._schema) as file:
            for batch in iterator:
                file.write_batch(batch)
        return Written(path)

    def commit(self, messages: "Sequence[WriterCommitMessage | None]") -> None:
        for message in messages:
            if isinstance(message, Written):
                Path(f"{message.path}.part").rename(message.path)

    def abort(self, messages: "Sequence[WriterCommitMessage | None]") -> None:
        for message in messages:
            if isinstance(message, Written):
                Path(f"{message.path}.part").unlink()


class _Source(DataSource):  # type: ignore[misc]
    def schema(self) -> str:
        return ROW


class EmptySource(_Source):
    """The source of `EmptyStream`. Option: `partitions`."""

    @classmethod
    def name(cls) -> str:
        return "empty"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: ARG002, N802
        return EmptyStream(int(self.options["partitions"]))


class PrebuiltSource(_Source):
    """The source of `Prebuilt`. Options: `partitions`; `times` and `rows` of each batch."""

    @classmethod
    def name(cls) -> str:
        return "prebuilt"

    def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002
        return Prebuilt(self.options)


class ParquetSink(_Source):
    """The sink of `ParquetWriter`. Option: `path`, an existing folder."""

    @classmethod
    def name(cls) -> str:
        return "parquet-a-task"

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002
        return ParquetWriter(self.options["path"], to_arrow_schema(schema))


def register_others(spark: SparkSession) -> None:
    """Register the sources and the sink in this session."""
    for source in (EmptySource, PrebuiltSource, ParquetSink):
        spark.dataSource.register(source)
