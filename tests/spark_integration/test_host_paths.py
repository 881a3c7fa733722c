"""Files on the hosts of executors: refused on a cluster, unless the program confirms them."""

from pathlib import Path
from typing import Any

import pytest

from dataflow import FileSink, FileSource, Graph, JournaledFileSink, ParquetSink, S3Sink
from dataflow.sinks.sql import SqlSink
from spark_integration.errors import HostPathError
from spark_integration.runner import _refuse_host_paths


def graph_of(source: Any, sink: Any) -> Graph:
    graph = Graph("g")
    graph.source("lines", source).sink("out", sink)
    return graph


def sinks(folder: Path, **local: bool) -> dict[str, Any]:
    return {
        "tsv": FileSink(folder, **local),
        "parquet": ParquetSink(folder, **local),
        "sqlite": SqlSink(f"sqlite:///{folder}/out.db", "out", **local),
    }


def sources(folder: Path, **local: bool) -> dict[str, Any]:
    (folder / "a.txt").touch()
    return {
        "files": FileSource([folder / "a.txt"], **local),
        "directory": FileSource(folder, watch=True, **local),
    }


@pytest.mark.parametrize("kind", ["tsv", "parquet", "sqlite"])
def test_a_sink_on_the_disk_of_a_host_is_refused_with_its_path_and_the_remedy(
    kind: str, tmp_path: Path
) -> None:
    source = sources(tmp_path, local=True)["files"]
    with pytest.raises(HostPathError, match=rf"'out' uses {tmp_path}.*lost with their host") as refused:
        _refuse_host_paths(graph_of(source, sinks(tmp_path)[kind]))
    assert "pass local=True" in str(refused.value)
    _refuse_host_paths(graph_of(source, sinks(tmp_path, local=True)[kind]))


@pytest.mark.parametrize("kind", ["files", "directory"])
def test_a_source_on_the_disk_of_a_host_is_refused_too(kind: str, tmp_path: Path) -> None:
    sink = sinks(tmp_path, local=True)["tsv"]
    with pytest.raises(HostPathError, match=rf"'lines' uses {tmp_path}"):
        _refuse_host_paths(graph_of(sources(tmp_path)[kind], sink))
    _refuse_host_paths(graph_of(sources(tmp_path, local=True)[kind], sink))


@pytest.mark.parametrize(
    "source",
    [
        FileSource("s3://sales/lines.txt"),
        FileSource("s3://sales/lines", watch=True, endpoint="http://minio:9000"),
    ],
)
def test_a_source_in_a_bucket_needs_no_confirmation(source: Any) -> None:
    _refuse_host_paths(graph_of(source, JournaledFileSink()))


@pytest.mark.parametrize("sink", [S3Sink("s3://sales/sold"), JournaledFileSink()])
def test_a_sink_that_outlives_its_host_needs_no_confirmation(tmp_path: Path, sink: Any) -> None:
    _refuse_host_paths(graph_of(sources(tmp_path, local=True)["files"], sink))


def test_a_database_on_a_server_is_not_on_a_host(tmp_path: Path) -> None:
    sink = SqlSink("postgresql+psycopg://db.example/shop", "out")
    _refuse_host_paths(graph_of(sources(tmp_path, local=True)["files"], sink))
