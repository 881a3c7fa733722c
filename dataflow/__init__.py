"""Dataflow: graphs of sources, operators and sinks, and the workers that run them with exactly-once state
and output.

    from dataflow import FileSink, FileSource, Graph

The names below are imported on first use: a program that only produces rows needs few of them, and so does a
Python process of Spark's that words an error; all of them take a second.
"""

from typing import TYPE_CHECKING

from dos_protocol.lazy_names import lazy_names

if TYPE_CHECKING:
    from checkpoint.input_log import close_input
    from dataflow.aggregates import ApproxDistinct, Count, Max, Mean, Min, Sum
    from dataflow.core.regions import autonomous, consistent
    from dataflow.errors import GraphError, OperatorError, OperatorFailure, SchemaError
    from dataflow.graph import Graph, GraphPlan
    from dataflow.key_states import KeyState
    from dataflow.migration import Migration
    from dataflow.operators.count_windows import CountWindow
    from dataflow.operators.user import Place, UserOperator
    from dataflow.operators.window_places import Sliding, Tumbling
    from dataflow.outputs import StepRows, collect_output, read_output
    from dataflow.producing import Producer, open_producer
    from dataflow.sinks.call import CallSink
    from dataflow.sinks.files import FileSink
    from dataflow.sinks.log import LogSink
    from dataflow.sinks.parquet import ParquetSink
    from dataflow.sinks.two_phase import TwoPhaseOutput, TwoPhaseSink
    from dataflow.sources.directory import DirectorySource
    from dataflow.sources.files import FileSource
    from dataflow.sources.inputs import InputSource
    from dataflow.sources.iterator import IteratorSource
    from dataflow.sources.log import LogSource
    from dataflow.sources.rate import RateSource
    from dataflow.stream import KeyedStream, Stream

__all__ = [
    "ApproxDistinct",
    "CallSink",
    "Count",
    "CountWindow",
    "DirectorySource",
    "FileSink",
    "FileSource",
    "Graph",
    "GraphError",
    "GraphPlan",
    "InputSource",
    "IteratorSource",
    "KeyState",
    "KeyedStream",
    "LogSink",
    "LogSource",
    "Max",
    "Mean",
    "Migration",
    "Min",
    "OperatorError",
    "OperatorFailure",
    "ParquetSink",
    "Place",
    "Producer",
    "RateSource",
    "SchemaError",
    "Sliding",
    "StepRows",
    "Stream",
    "Sum",
    "Tumbling",
    "TwoPhaseOutput",
    "TwoPhaseSink",
    "UserOperator",
    "autonomous",
    "close_input",
    "collect_output",
    "consistent",
    "open_producer",
    "read_output",
]

MODULES = {
    "checkpoint.input_log": ("close_input",),
    "dataflow.aggregates": (
        "ApproxDistinct",
        "Count",
        "Max",
        "Mean",
        "Min",
        "Sum",
    ),
    "dataflow.core.regions": (
        "autonomous",
        "consistent",
    ),
    "dataflow.errors": (
        "GraphError",
        "OperatorError",
        "OperatorFailure",
        "SchemaError",
    ),
    "dataflow.graph": (
        "Graph",
        "GraphPlan",
    ),
    "dataflow.key_states": ("KeyState",),
    "dataflow.migration": ("Migration",),
    "dataflow.operators.count_windows": ("CountWindow",),
    "dataflow.operators.user": (
        "Place",
        "UserOperator",
    ),
    "dataflow.operators.window_places": (
        "Sliding",
        "Tumbling",
    ),
    "dataflow.outputs": (
        "StepRows",
        "collect_output",
        "read_output",
    ),
    "dataflow.producing": (
        "Producer",
        "open_producer",
    ),
    "dataflow.sinks.call": ("CallSink",),
    "dataflow.sinks.files": ("FileSink",),
    "dataflow.sinks.log": ("LogSink",),
    "dataflow.sinks.parquet": ("ParquetSink",),
    "dataflow.sinks.two_phase": (
        "TwoPhaseOutput",
        "TwoPhaseSink",
    ),
    "dataflow.sources.directory": ("DirectorySource",),
    "dataflow.sources.files": ("FileSource",),
    "dataflow.sources.inputs": ("InputSource",),
    "dataflow.sources.iterator": ("IteratorSource",),
    "dataflow.sources.log": ("LogSource",),
    "dataflow.sources.rate": ("RateSource",),
    "dataflow.stream": (
        "KeyedStream",
        "Stream",
    ),
}
"""Module -> its names here; the same as above, for those who run."""

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(globals(), MODULES)
