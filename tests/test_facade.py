"""`run` and `run_local` are called alike: the same names, and the same defaults where both have one."""

import inspect
from typing import Unpack, get_type_hints

import pytest

import dos
from dataflow.handle import RegionHandle

ON_SPARK = {"spark", "data_dir", "coordinator_address", "insecure", "spare_slots"}
"""What only Spark has: its session, the addresses and slots of executors, a store made for the run."""

ON_THIS_MACHINE = {"logs", "worker_limits"}
"""What only local processes have."""

IN_COMMON = {"graph", "store", "standby", "options"}
"""`options` are one `RegionOptions`."""

OTHER_DEFAULTS = {"store", "standby"}
"""`run` can make a local store, `run_local` cannot. A stand-by on Spark holds a slot, so it is requested."""


def test_run_and_run_local_have_the_same_parameters() -> None:
    on_spark, local = inspect.signature(dos.run).parameters, inspect.signature(dos.run_local).parameters
    assert on_spark.keys() - local.keys() == ON_SPARK
    assert local.keys() - on_spark.keys() == ON_THIS_MACHINE
    assert on_spark.keys() & local.keys() == IN_COMMON
    for name in on_spark.keys() & local.keys() - OTHER_DEFAULTS:
        assert (on_spark[name].default, on_spark[name].kind) == (local[name].default, local[name].kind), name
    assert on_spark["options"].annotation == Unpack[dos.RegionOptions] == local["options"].annotation


def test_an_option_that_does_not_exist_is_refused_as_by_any_call() -> None:
    graph = dos.Graph("words")
    graph.source("ticks", dos.RateSource(1)).sink("out", dos.LogSink())
    with pytest.raises(TypeError, match="unexpected keyword argument 'checkpoint_intervall'"):
        dos.run_local(graph, store="dos://h1", checkpoint_intervall=1.0)  # type: ignore[call-arg]


def test_run_and_run_local_return_the_same_handle() -> None:
    assert dos.RegionHandle is RegionHandle
    returned = {get_type_hints(function)["return"] for function in (dos.run, dos.run_local)}
    assert returned == {dos.RegionHandle | dos.Application}
