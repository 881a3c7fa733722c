"""Graphs of sources, operators and sinks, and the workers that run them with exactly-once state and output.

    from dataflow import FileSink, FileSource, Graph

The names below are imported on first use. All of them take a second, and a program that only produces rows,
or a Python process of Spark that formats an error, needs few of them.
"""

from typing import TYPE_CHECKING

from dos_protocol.lazy_names import lazy_names

if TYPE_CHECKING:
    from checkpoint.chains.input_log import close_input
    from dataflow.core.regions import autonomous, consistent
    from dataflow.errors import GraphError, OperatorError, OperatorFailure, SchemaError
    from dataflow.graph.builder import Graph, GraphPlan
    from dataflow.graph.stream import KeyedStream, Stream
    from dataflow.operators.aggregate_functions import ApproxDistinct, Count, Max, Mean, Min, Sum
    from dataflow.operators.count_windows import CountWindow
    from dataflow.operators.user_operator import RuntimeContext, UserOperator
    from dataflow.operators.window_assignment import Sliding, Tumbling
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
    from dataflow.state.key_states import KeyState
    from dataflow.state.migration import Migration

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
    "Producer",
    "RateSource",
    "RuntimeContext",
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
    "checkpoint.chains.input_log": ("close_input",),
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
    "dataflow.graph.builder": (
        "Graph",
        "GraphPlan",
    ),
    "dataflow.graph.stream": (
        "KeyedStream",
        "Stream",
    ),
    "dataflow.operators.aggregate_functions": (
        "ApproxDistinct",
        "Count",
        "Max",
        "Mean",
        "Min",
        "Sum",
    ),
    "dataflow.operators.count_windows": ("CountWindow",),
    "dataflow.operators.user_operator": (
        "RuntimeContext",
        "UserOperator",
    ),
    "dataflow.operators.window_assignment": (
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
    "dataflow.state.key_states": ("KeyState",),
    "dataflow.state.migration": ("Migration",),
}
"""Module -> its names here; the same as above, at run time."""

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(globals(), MODULES)
