"""`run` and `run_local` are called alike: the same names, and the same defaults where both have one."""

import inspect
from typing import get_type_hints

import dos
from dataflow.handle import RegionHandle

ON_SPARK = {"spark", "data_dir", "coordinator_address", "insecure", "spare_slots"}
"""What only Spark has: its session, the addresses and slots of executors, a store made for the run."""

ON_THIS_MACHINE = {"logs", "worker_limits"}
"""What only local processes have."""

OTHER_DEFAULTS = {"store", "standby"}
"""`run` can make a local store, `run_local` cannot. A stand-by on Spark holds a slot, so it is requested."""


def test_run_and_run_local_have_the_same_parameters() -> None:
    on_spark, local = inspect.signature(dos.run).parameters, inspect.signature(dos.run_local).parameters
    assert on_spark.keys() - local.keys() == ON_SPARK
    assert local.keys() - on_spark.keys() == ON_THIS_MACHINE
    for name in on_spark.keys() & local.keys() - OTHER_DEFAULTS:
        assert (on_spark[name].default, on_spark[name].kind) == (local[name].default, local[name].kind), name


def test_run_and_run_local_return_the_same_handle() -> None:
    assert dos.RegionHandle is RegionHandle
    returned = {get_type_hints(function)["return"] for function in (dos.run, dos.run_local)}
    assert returned == {dos.RegionHandle | dos.Application}
