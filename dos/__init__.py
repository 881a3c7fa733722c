"""What a program that uses DOS needs, in one place: `import dos`.

    graph = dos.Graph("wordcount")
    ...
    region = dos.run(spark, graph, workers=2, store="dos://host1,host2,host3")

- `run`, `run_local`, `through`, `frame`, `register`: run graphs, and read and write stores, on Spark or on
this machine
- `Graph`, sources, sinks, aggregates, windows, `UserOperator`: what graphs consist of
- `checkpoints`: a place in a store for the checkpoints of Spark's own streaming queries
- `edit_state`, `bootstrap_state`: state of a stopped or a new region, written by hand
- `connect`, `open_store`, `Directory`, `open_producer`, `read_output`: access from trio
- `dos.blocking`: the same access from plain threads
- `dos.testing`: graphs and stores in tests

This package has names only; each comes from the package that defines it, and is imported on first use.
"""

from typing import TYPE_CHECKING

from spark_integration.on_executor import check_packages, warn_without_java

check_packages()  # first: an import of a hidden package would fail with an error that does not name the cause

warn_without_java()

from dos_protocol.lazy_names import lazy_names  # noqa: E402

if TYPE_CHECKING:
    from checkpoint import AutoScale as AutoScale
    from checkpoint.blocking import delete_region as delete_region
    from checkpoint.blocking import fork as fork
    from checkpoint.errors import CheckpointDamagedError as CheckpointDamagedError
    from checkpoint.errors import EditRefusedError as EditRefusedError
    from checkpoint.errors import OutputRewoundError as OutputRewoundError
    from checkpoint.errors import RegionFailedError as RegionFailedError
    from checkpoint.errors import RegionFencedError as RegionFencedError
    from dataflow import ApproxDistinct as ApproxDistinct
    from dataflow import CallSink as CallSink
    from dataflow import Count as Count
    from dataflow import CountWindow as CountWindow
    from dataflow import EntryPoints as EntryPoints
    from dataflow import FileSink as FileSink
    from dataflow import FileSource as FileSource
    from dataflow import Graph as Graph
    from dataflow import GraphError as GraphError
    from dataflow import GraphPlan as GraphPlan
    from dataflow import InputSource as InputSource
    from dataflow import IteratorSource as IteratorSource
    from dataflow import JournaledFileSink as JournaledFileSink
    from dataflow import KeyedStream as KeyedStream
    from dataflow import KeyState as KeyState
    from dataflow import LogSink as LogSink
    from dataflow import LogSource as LogSource
    from dataflow import Max as Max
    from dataflow import Mean as Mean
    from dataflow import MergedLogSource as MergedLogSource
    from dataflow import Migration as Migration
    from dataflow import Min as Min
    from dataflow import OperatorError as OperatorError
    from dataflow import OperatorFailure as OperatorFailure
    from dataflow import ParquetSink as ParquetSink
    from dataflow import Producer as Producer
    from dataflow import RateSource as RateSource
    from dataflow import RuntimeContext as RuntimeContext
    from dataflow import S3Sink as S3Sink
    from dataflow import SchemaError as SchemaError
    from dataflow import Sliding as Sliding
    from dataflow import StepRows as StepRows
    from dataflow import Stream as Stream
    from dataflow import Sum as Sum
    from dataflow import Tumbling as Tumbling
    from dataflow import TwoPhaseOutput as TwoPhaseOutput
    from dataflow import TwoPhaseSink as TwoPhaseSink
    from dataflow import UserOperator as UserOperator
    from dataflow import autonomous as autonomous
    from dataflow import close_input as close_input
    from dataflow import collect_output as collect_output
    from dataflow import consistent as consistent
    from dataflow import open_producer as open_producer
    from dataflow import read_output as read_output
    from dataflow.handle import Application as Application
    from dataflow.handle import RegionHandle as RegionHandle
    from dataflow.handle import RegionOptions as RegionOptions
    from dataflow.local import run_local as run_local
    from dataflow.sinks.base import SinkSpec as SinkSpec
    from dataflow.sinks.sql import SqlSink as SqlSink
    from dataflow.sources.base import SourceSpec as SourceSpec
    from dos import blocking as blocking
    from dos import testing as testing
    from dos_client import FileToken as FileToken
    from dos_client import QuorumUnavailableError as QuorumUnavailableError
    from dos_client import Store as Store
    from dos_client import StoreNotReadyError as StoreNotReadyError
    from dos_client import connect as connect
    from dos_client import init_store as init_store
    from dos_client import open_store as open_store
    from dos_protocol.errors import DosError as DosError
    from dos_protocol.errors import FencedError as FencedError
    from dos_protocol.errors import NotFoundError as NotFoundError
    from journal import AtCheckpoint as AtCheckpoint
    from journal import AtStep as AtStep
    from journal import Directory as Directory
    from journal import LocalClaim as LocalClaim
    from journal import LocalJournal as LocalJournal
    from journal import LocalStore as LocalStore
    from journal import Mirror as Mirror
    from journal import restore as restore
    from spark_integration import FrameError as FrameError
    from spark_integration import QueryListener as QueryListener
    from spark_integration import RegionFrame as RegionFrame
    from spark_integration import RegionListener as RegionListener
    from spark_integration import checkpoints as checkpoints
    from spark_integration import each_batch as each_batch
    from spark_integration import frame as frame
    from spark_integration import register as register
    from spark_integration import run as run
    from spark_integration import through as through
    from spark_integration.editing import StateEdit as StateEdit
    from spark_integration.editing import bootstrap_state as bootstrap_state
    from spark_integration.editing import edit_state as edit_state
else:
    __getattr__, __dir__, __all__ = lazy_names(globals())
