"""Runs graphs on Spark, and reads and writes stores as DataFrames.

- `run(spark, graph, ...)` starts a graph and returns a handle like Spark's `StreamingQuery`.
- `register(spark)` enables `spark.read.format("dos")` and the other formats.
- `through(df, graph, ...)` passes a DataFrame through a graph; `each_batch(function)` is for `foreachBatch`.
- `frame(df)` is a DataFrame whose stateful calls run in a region.
- `checkpoints(spark, url)` is a place for the checkpoints of Spark's own streaming queries.

The names are imported on first use: executors import this package only for `worker_task`, which needs neither
a server nor a coordinator.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from checkpoint.coordinator.control import RegionListener
    from dataflow.handle import RegionHandle
    from spark_integration.core.dividing import FrameError
    from spark_integration.data_source import register
    from spark_integration.frame_class import RegionFrame, frame
    from spark_integration.frames import each_batch, through
    from spark_integration.gateway_process import checkpoints
    from spark_integration.query_listener import QueryListener
    from spark_integration.runner import run

__all__ = [
    "FrameError",
    "QueryListener",
    "RegionFrame",
    "RegionHandle",
    "RegionListener",
    "checkpoints",
    "each_batch",
    "frame",
    "register",
    "run",
    "through",
]


def __getattr__(name: str) -> Any:
    calls = ("checkpoints", "each_batch", "frame", "run", "register", "through")
    if name in ("RegionFrame", "FrameError", *calls):
        from spark_integration.on_executor import check_packages
        from spark_integration.versions import check_versions

        check_packages()
        check_versions()
    if name == "run":
        from spark_integration.runner import run

        return run
    if name == "checkpoints":
        from spark_integration.gateway_process import checkpoints

        return checkpoints
    if name == "register":
        from spark_integration.data_source import register

        return register
    if name == "each_batch":
        from spark_integration.frames import each_batch

        return each_batch
    if name == "through":
        from spark_integration.frames import through

        return through
    if name in ("RegionFrame", "FrameError", "frame"):
        from spark_integration import frame_class

        return getattr(frame_class, name)
    if name == "RegionHandle":
        from dataflow.handle import RegionHandle

        return RegionHandle
    if name == "QueryListener":
        from spark_integration.query_listener import QueryListener

        return QueryListener
    if name == "RegionListener":
        from checkpoint.coordinator.control import RegionListener

        return RegionListener
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
