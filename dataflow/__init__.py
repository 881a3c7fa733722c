"""Graphs of sources, operators and sinks, and the workers that run them with exactly-once state and output.

Names are imported on first use: all of them take a second, and a program that only produces rows needs few.
"""

from typing import TYPE_CHECKING

from dos_protocol.lazy_names import lazy_names

if TYPE_CHECKING:
    from checkpoint.chains.input_log import close_input as close_input
    from dataflow.core.regions import autonomous as autonomous
    from dataflow.core.regions import consistent as consistent
    from dataflow.errors import GraphError as GraphError
    from dataflow.errors import OperatorError as OperatorError
    from dataflow.errors import OperatorFailure as OperatorFailure
    from dataflow.errors import SchemaError as SchemaError
    from dataflow.graph.builder import Graph as Graph
    from dataflow.graph.builder import KeyedStream as KeyedStream
    from dataflow.graph.builder import Stream as Stream
    from dataflow.graph.plan import GraphPlan as GraphPlan
    from dataflow.merged import MergedBatch as MergedBatch
    from dataflow.merged import MergedOutput as MergedOutput
    from dataflow.merged import read_merged as read_merged
    from dataflow.operators.aggregates import ApproxDistinct as ApproxDistinct
    from dataflow.operators.aggregates import Count as Count
    from dataflow.operators.aggregates import Max as Max
    from dataflow.operators.aggregates import Mean as Mean
    from dataflow.operators.aggregates import Min as Min
    from dataflow.operators.aggregates import Sum as Sum
    from dataflow.operators.user_operator import RuntimeContext as RuntimeContext
    from dataflow.operators.user_operator import UserOperator as UserOperator
    from dataflow.operators.windows import CountWindow as CountWindow
    from dataflow.operators.windows import Sliding as Sliding
    from dataflow.operators.windows import Tumbling as Tumbling
    from dataflow.outputs import StepRows as StepRows
    from dataflow.outputs import collect_output as collect_output
    from dataflow.outputs import read_output as read_output
    from dataflow.producing import EntryPoints as EntryPoints
    from dataflow.producing import Producer as Producer
    from dataflow.producing import open_producer as open_producer
    from dataflow.sinks.call import CallSink as CallSink
    from dataflow.sinks.files import FileSink as FileSink
    from dataflow.sinks.journaled import JournaledFileSink as JournaledFileSink
    from dataflow.sinks.log import LogSink as LogSink
    from dataflow.sinks.parquet import ParquetSink as ParquetSink
    from dataflow.sinks.s3 import S3Sink as S3Sink
    from dataflow.sinks.two_phase import TwoPhaseOutput as TwoPhaseOutput
    from dataflow.sinks.two_phase import TwoPhaseSink as TwoPhaseSink
    from dataflow.sources.file_source import FileSource as FileSource
    from dataflow.sources.iterator import IteratorSource as IteratorSource
    from dataflow.sources.rate import RateSource as RateSource
    from dataflow.sources.stored import InputSource as InputSource
    from dataflow.sources.stored import LogSource as LogSource
    from dataflow.sources.stored import MergedLogSource as MergedLogSource
    from dataflow.state.key_states import KeyState as KeyState
    from dataflow.state.migration import Migration as Migration
else:
    __getattr__, __dir__, __all__ = lazy_names(globals())
