"""Puts a graph on Spark: `run(spark, graph, ...)` gives a handle like Spark's own `StreamingQuery`. And reads
and writes what is in a store as DataFrames: `register(spark)`, then `spark.read.format("dos")`. Both at once:
`through(df, graph, ...)`.

The names below are imported on first use, because executors import this package for `worker_task` alone and
need neither a server nor a coordinator.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from checkpoint.coordinator.listeners import RegionListener
    from spark_integration.data_source import register
    from spark_integration.frames import through
    from spark_integration.handle import RegionHandle
    from spark_integration.runner import run

__all__ = ["RegionHandle", "RegionListener", "register", "run", "through"]


def __getattr__(name: str) -> Any:
    if name in ("run", "register", "through"):
        from spark_integration.versions import check_versions

        check_versions()
    if name == "run":
        from spark_integration.runner import run

        return run
    if name == "register":
        from spark_integration.data_source import register

        return register
    if name == "through":
        from spark_integration.frames import through

        return through
    if name == "RegionHandle":
        from spark_integration.handle import RegionHandle

        return RegionHandle
    if name == "RegionListener":
        from checkpoint.coordinator.listeners import RegionListener

        return RegionListener
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
