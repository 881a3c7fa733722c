"""Dataflow: graphs of sources, operators and sinks, and the workers that run them with exactly-once state
and output.

    from dataflow import FileSink, FileSource, Graph
"""

from dataflow.core.regions import autonomous, consistent
from dataflow.errors import GraphError, OperatorError, OperatorFailure, SchemaError
from dataflow.graph import Graph, GraphPlan, KeyedStream, Stream
from dataflow.outputs import StepRows, collect_output, read_output
from dataflow.sinks.files import FileSink
from dataflow.sinks.log import LogSink
from dataflow.sources.files import FileSource

__all__ = [
    "FileSink",
    "FileSource",
    "Graph",
    "GraphError",
    "GraphPlan",
    "KeyedStream",
    "LogSink",
    "OperatorError",
    "OperatorFailure",
    "SchemaError",
    "StepRows",
    "Stream",
    "autonomous",
    "collect_output",
    "consistent",
    "read_output",
]
