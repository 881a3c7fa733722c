"""Dataflow: graphs of sources, operators and sinks, and the workers that run them with exactly-once state
and output.

    from dataflow import FileSink, FileSource, Graph
"""

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
