"""`run`: runs a graph on Spark as a region. This file assembles the parts, and selects the store.

A named store whose servers are all empty is initialized. Without a name there is one good default, and only
if the driver's machine is the whole cluster: one server in this process, on loopback. Its data outlives the
session if a directory was given. For any other master there is no default, and the error has the commands
that start a store.
"""

import contextlib
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Unpack, cast

import trio
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from checkpoint import GraphOptions, RegionSpec, RegionState
from checkpoint.coordinator.control import RegionControl
from checkpoint.limits import start_timeout_s, workers_default
from dataflow.graph.builder import Graph, GraphPart, parts_of
from dataflow.handle import (
    Again,
    Application,
    Monitoring,
    RegionEvents,
    RegionHandle,
    RegionOptions,
    check_options,
    monitoring_of,
    options_of_change,
    start_application,
)
from dataflow.programs import parts_in_store
from dataflow.worker.spec import removed_specs
from dos_client.errors import StoreRefusedError
from dos_client.sessions.connection import ServerAccess
from dos_client.sessions.discovery import probe, send_record
from dos_client.store import StoreNotReadyError, init_store, open_store
from dos_client.urls import parse_store_url, parse_url
from dos_protocol.errors import DosError
from dos_protocol.store_record import Member, StoreRecord
from dos_server import embedded
from dos_tls import tls_of_environment
from spark_integration import on_executor
from spark_integration.core.session_checks import (
    SparkMaster,
    choose_addresses,
    grows,
    judge_confs,
    judge_slots,
    standby_shortage,
)
from spark_integration.data_source import register_formats
from spark_integration.errors import (
    ExecutorMismatchError,
    HostPathError,
    NotEnoughSlotsError,
    SessionStoppedError,
    StoreNotUsableError,
)
from spark_integration.launcher import (
    SESSION_STOPPED,
    JobsShown,
    SparkLauncher,
    StandbySettings,
    TaskFunction,
)
from spark_integration.limits import SLOTS_POLL_S, SLOTS_WARN_S, STORE_ANSWER_S
from spark_integration.sessions import master_of, use_this_python, use_tls_of_driver
from spark_integration.shipping import ship

logger = logging.getLogger("dos.spark_integration")

HOW_TO_START_ONE = """\
Start three servers on different machines, and make them a store:
  dos serve --data /var/lib/dos --listen HOST:9999        (on each of HOST1, HOST2, HOST3)
  dos store init dos://HOST1,HOST2,HOST3
  run(..., store="dos://HOST1,HOST2,HOST3")"""


class UsedStore(NamedTuple):
    """A store that is available. `close` ends what was started for it."""

    url: str
    close: Callable[[], None]


def choose_store(
    store: str | None, *, one_machine: bool, master: str, data_dir: str | Path | None, token: bytes = b""
) -> UsedStore:
    """Return the store to use. Raises StoreNotUsableError, BadUrlError."""
    if store is not None:
        parse_store_url(store)
        make_ready(store, token)
        return UsedStore(store, lambda: None)
    if not one_machine:
        raise StoreNotUsableError(f"no store was named, and {master} is not local. {HOW_TO_START_ONE}")
    if tls_of_environment() is not None:
        raise StoreNotUsableError(
            "no store was named, and the store inside this process speaks plain text, but DOS_TLS is set:"
            " pass store=, the URL of servers that were started with --tls; or unset DOS_TLS"
        )
    directory = Path(data_dir) if data_dir is not None else Path(tempfile.mkdtemp(prefix="dos-store-"))
    server = embedded.start(directory, token=token, log_bytes=embedded.LOG_BYTES)
    kept = "" if data_dir is not None else ", which no later run finds: pass data_dir= or store="
    logger.warning("no store was named: this process serves one, with one copy, in %s%s", directory, kept)
    try:
        trio.run(_update_address, server.url, token)
        make_ready(server.url, token)
    except BaseException:
        server.stop()
        raise
    return UsedStore(server.url, server.stop)


async def _update_address(url: str, token: bytes) -> None:
    # An embedded server listens on another port each time. The store consists of this one server, so the next
    # generation of its record may have the new address (docs/decisions/0032).
    address = parse_url(url).servers[0]
    answer = await probe(address, ServerAccess(token, "driver"))
    if answer.record is None:
        return
    old = answer.record
    if len(old.members) > 1:
        raise StoreNotUsableError(
            f"the data there belongs to a store of {len(old.members)} servers: start them, and pass its URL"
        )
    if old.members[0].address != address:
        here = (Member(answer.server_id, address),)
        record = StoreRecord(old.store_id, old.generation + 1, old.ack_quorum, here)
        await send_record(address, record, ServerAccess(token, "driver"))


def make_ready(url: str, token: bytes = b"") -> None:
    """Check that the store of `url` is available; initialize it if all its servers answer and are empty.
    Raises StoreNotUsableError, which names what is missing.
    """
    trio.run(_make_ready, url, token)


async def _make_ready(url: str, token: bytes) -> None:
    problem: StoreNotReadyError | None = None
    with trio.move_on_after(STORE_ANSWER_S):
        try:
            async with open_store(url, token=token, client="driver"):
                return
        except StoreRefusedError as error:
            raise StoreNotUsableError(str(error)) from error
        except StoreNotReadyError as error:
            problem = error
        try:
            record = await init_store(url, token=token)
        except Exception as error:
            if isinstance(error, StoreNotReadyError) and error.missing == problem.missing:
                raise StoreNotUsableError(str(problem)) from problem
            raise StoreNotUsableError(
                f"{url} cannot be used: {problem}; and it cannot be initialized now: {error}"
            ) from problem
        size, quorum = len(record.members), record.ack_quorum
        logger.info("created the store %s: appends are acknowledged by %d of %d", url, quorum, size)
        return
    raise StoreNotUsableError(f"no answer from store {url} within {STORE_ANSWER_S:.0f} s ({problem})")


cloudpickle.register_pickle_by_value(on_executor)  # it must run where our packages are missing or differ


def run(
    spark: SparkSession,
    graph: Graph,
    *,
    store: str | None = None,
    data_dir: str | Path | None = None,
    coordinator_address: str | None = None,
    insecure: bool = False,
    spare_slots: int = 1,
    standby: int = 0,
    **options: Unpack[RegionOptions],
) -> RegionHandle | Application:
    """Run a graph on Spark as a region.

    Returns the region's handle immediately; the region starts in the background. For a graph of several
    regions it returns an `Application`, which holds all of their handles.

    A second call with the same store and name continues from the last committed checkpoint. A driver that
    still runs the region under that name is fenced off; its handle then reports FENCED. With `hand_over` it
    continues until the workers of this call have joined.

    - `store`: `dos://host[:port][,host2...]`. Default on a local master: one server in this process, which
      keeps its data in `data_dir`, or in a temporary directory.
    - `coordinator_address`: the host at which workers connect to this driver; default: `spark.driver.host`.
    - `insecure`: confirms that links between machines are not encrypted. Not needed with TLS (`DOS_TLS`).
    - `spare_slots`: slots that must be left to other jobs on a master of fixed size.
    - `standby`: processes of each region that have imported everything and wait to replace a lost worker
      (about 120 MB each). Each holds a slot in addition to those of the workers. Without a free slot the
      region runs with fewer of them and logs a warning.
    - `options`: name, workers, checkpoints, recovery and more: see `RegionOptions`.

    Raises before anything is started: GraphError, HostPathError, NotEnoughSlotsError, StoreNotUsableError,
    ConnectSessionError, SessionStoppedError; DosError for a graph that cannot be serialized, a conf of the
    session that would end workers, an address that executors cannot reach, and links in clear text without
    `insecure`; TypeError for what is no session or graph; ValueError for an argument out of range. Later
    errors are returned by the handle's `exception()`.
    """
    checked = check_run(
        spark, graph, options, coordinator_address=coordinator_address, insecure=insecure, standby=standby
    )
    wait_for_slots(checked, spare_slots)
    with contextlib.ExitStack() as undo:
        one_machine, url = checked.master.one_machine, checked.master.url
        token = options.get("token", b"")
        used = choose_store(store, one_machine=one_machine, master=url, data_dir=data_dir, token=token)
        undo.callback(used.close)
        again = partial(
            _run_again,
            checked,
            used.url,
            spare_slots,
            coordinator_address=coordinator_address,
            insecure=insecure,
            standby=standby,
        )
        handle = start_checked(checked, used.url, spare_slots=spare_slots, at_end=used.close, again=again)
        undo.pop_all()
        undo.callback(handle.stop)
        register_formats(spark)  # what it writes is read next; Spark takes 2 s, in which the workers start
        undo.pop_all()
    return handle


def _run_again(
    before: "CheckedRun",
    store_url: str,
    spare_slots: int,
    graph: Graph,
    given: dict[str, Any],
    **arguments: Any,
) -> RegionHandle | Application:
    """Start another graph that takes over the region of `before` (`RegionHandle.replace`). arguments: of
    `check_run`. Raises as `run`.
    """
    options = cast("RegionOptions", options_of_change(before.options, given, before.application))
    checked = check_run(before.spark, graph, options, **arguments)
    wait_for_slots(checked, spare_slots)
    again = partial(_run_again, checked, store_url, spare_slots, **arguments)
    return start_checked(checked, store_url, spare_slots=spare_slots, again=again)


class CheckedRun(NamedTuple):
    """What `run` was called with, once it is known that it can run."""

    spark: SparkSession
    master: SparkMaster
    application: str
    graph: Graph
    parts: Sequence[GraphPart]
    options: RegionOptions
    standby: int
    shown: Monitoring
    shipped: Mapping[str, bytes]
    host: str
    """The address of the driver for workers; `listen_host`: the one to listen on."""
    listen_host: str


def check_run(
    spark: SparkSession,
    graph: Graph,
    options: RegionOptions,
    *,
    coordinator_address: str | None = None,
    insecure: bool = False,
    standby: int = 0,
) -> CheckedRun:
    """Check the arguments of `run`, which are documented there, without starting anything. The graph is
    serialized: later changes of it have no effect.
    """
    master = master_of(spark)
    _check_arguments(graph, standby)
    application = options.get("name") or graph.name
    parts = parts_of(graph, application)
    check_options(parts, options)
    shown = monitoring_of(options.get("metrics"))
    shipped = _shipped(parts)
    if not master.one_machine:
        _refuse_host_paths(graph)
    safe = insecure or tls_of_environment() is not None
    driver_host = spark.sparkContext.getConf().get("spark.driver.host")
    addresses = choose_addresses(master, coordinator_address, driver_host, insecure=safe)
    return CheckedRun(spark, master, application, graph, parts, options, standby, shown, shipped, *addresses)


def _shipped(parts: Sequence[GraphPart]) -> dict[str, bytes]:
    return {part.name: ship(part.graph, f"the graph {part.graph.name!r}") for part in parts}


def start_checked(
    checked: CheckedRun,
    store_url: str,
    *,
    spare_slots: int,
    at_end: Callable[[], None] = lambda: None,
    job_key: bytes = b"",
    again: Again | None = None,
) -> RegionHandle | Application:
    """Start what was checked, with a store that is available. at_end: called when all regions have ended.
    job_key: of the links. again: starts another graph in place of this one.
    """
    options, application = checked.options, checked.application
    if len(checked.parts) > 1:
        parts = parts_in_store(
            checked.graph,
            application,
            store_url,
            GraphOptions.of(options),
            token=options.get("token", b""),
        )
        if [part.name for part in parts] != [part.name for part in checked.parts]:
            checked = checked._replace(parts=parts, shipped=_shipped(parts))
    make_launcher = partial(
        _launch,
        checked.spark,
        application,
        checked.host,
        checked.shipped,
        options.get("scratch"),
        checked.standby,
        spare_slots,
        checked.shown,
    )
    return start_application(
        application,
        checked.parts,
        make_launcher,
        options,
        at_end=_AfterLast(len(checked.parts), at_end),
        store_url=store_url,
        listen_host=checked.listen_host,
        metrics=checked.shown.metrics,
        job_key=job_key,
        again=again,
    )


def _launch(
    spark: SparkSession,
    application: str,
    host: str,
    shipped: Mapping[str, bytes],
    scratch: str | os.PathLike[str] | None,
    standby: int,
    spare_slots: int,
    shown: Monitoring,
    part: GraphPart,
    spec: RegionSpec,
    control: RegionControl,
    events: RegionEvents,
) -> SparkLauncher:
    address = host, control.address[1]
    make_task = _task_maker(spec, application, address, shipped[part.name], scratch, shown)
    shortage = partial(_standby_shortage, spark, master_of(spark), spare_slots)
    settings = StandbySettings(standby, control, shortage) if standby else None
    operators = {name: str(note) for name, note in spec.operators.items()}
    shown_jobs = JobsShown(spec.store_url, operators, lambda: control.status().reason)
    return SparkLauncher(
        spark, spec.name, make_task, _end_reporter(control, events), control.move, settings, shown_jobs
    )


def _first_workers(options: RegionOptions) -> int:
    autoscale = options.get("autoscale")
    usual = workers_default if autoscale is None else autoscale.limited(workers_default)
    return options.get("workers") or usual


def _check_arguments(graph: object, standby: int) -> None:
    if not isinstance(graph, Graph):
        raise TypeError(f"the second argument of run is a Graph, got {type(graph).__name__}")
    if standby < 0:
        raise ValueError(f"standby is the number of processes that wait, at least 0, got {standby}")


def _refuse_host_paths(graph: Graph) -> None:
    for node in graph.nodes()[0]:
        path = node.spec.host_path()
        if path:
            raise HostPathError(
                f"{node.name!r} uses {path} on the hosts of executors: files there are lost with their host,"
                " and a worker that continues on another host does not find them",
                remedy="use an InputSource or objects of a bucket (s3://BUCKET/..) as the source, and an"
                " S3Sink, a JournaledFileSink, a LogSink or a database as the sink; if all hosts share that"
                " directory, or its loss is acceptable, pass local=True",
            )


class _AfterLast:
    """Makes a call at the `count`th invocation: the regions share the store that was started for them."""

    def __init__(self, count: int, call: Callable[[], None]) -> None:
        self._remaining = count
        self._call = call
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            self._remaining -= 1
            last = self._remaining == 0
        if last:
            self._call()


def _task_maker(
    spec: RegionSpec,
    application: str,
    coordinator: tuple[str, int],
    graph: bytes,
    scratch: str | os.PathLike[str] | None,
    shown: Monitoring,
) -> Callable[[int | None, int], TaskFunction]:
    """Return what makes the task of an attempt of a worker; of a stand-by, if the worker is None."""
    expected = on_executor.expected_of_driver()
    removed = removed_specs(spec)
    shipped = ship(removed, "removed=") if removed else b""

    def make(worker: int | None, attempt: int) -> TaskFunction:
        fields: dict[str, Any] = {
            "region": spec.name,
            "application": application,
            "without_checkpoints": spec.without_checkpoints,
            **({"standby": attempt} if worker is None else {"worker": worker, "attempt": attempt}),
            "coordinator": coordinator,
            "job_key": spec.job_key,
            "store_url": spec.store_url,
            "token": spec.token,
            "listen_host": spec.listen_host,
            "port_range": spec.port_range,
            "scratch": None if scratch is None else str(scratch),
            # only what is asked for: executors with an older version do not know these fields
            **({"removed": shipped} if shipped else {}),
            **{name: value for name, value in shown._asdict().items() if value},
        }
        return on_executor.make_task(expected, graph, fields)

    return make


def _end_reporter(control: RegionControl, events: RegionEvents) -> Callable[[int, int, str | None], None]:
    """Return a function that reports worker ends, so that they are retried."""

    def report(worker: int, attempt: int, error: str | None) -> None:
        state = control.status().state
        if error == SESSION_STOPPED and not (state.is_end or state is RegionState.STOPPING):
            events.failure = events.failure or SessionStoppedError(f"region {control.spec.name}: {error}")
            control.stop()
        # A mismatch of packages stops a region that has committed nothing yet: a retry cannot help. Later it
        # only ends the attempt, because the workers that run may continue.
        mismatch = error is not None and on_executor.MISMATCH in error
        if error is not None and mismatch and not control.status().checkpoints_committed:
            events.failure = ExecutorMismatchError(f"worker {worker} cannot run: {error.splitlines()[-1]}")
            control.stop()
        control.worker_ended(worker, attempt, error)

    return report


def wait_for_slots(checked: CheckedRun, spare: int) -> None:
    """Prepare the session, and return when the workers may start. Raises DosError for a conf that would end
    them, NotEnoughSlotsError.
    """
    spark, master, options = checked.spark, checked.master, checked.options
    use_this_python(spark, master)
    use_tls_of_driver(spark)
    get = _conf_getter(spark)
    judged = judge_confs(get, master)
    if judged.refused is not None:
        raise DosError(judged.refused)
    for warning in judged.warnings:
        logger.warning("%s", warning)
    if not grows(get, master):  # otherwise executors are added when the workers' jobs request them
        workers = _first_workers(options) * len(checked.parts)
        _wait_for_slots(spark, master, workers, spare, options.get("start_timeout", start_timeout_s))


def _conf_getter(spark: SparkSession) -> Callable[[str], str | None]:
    static = dict(spark.sparkContext.getConf().getAll())

    def get(name: str) -> str | None:
        value = spark.conf.get(name, None) if name.startswith("spark.sql.") else None
        return static.get(name) if value is None else str(value)

    return get


def _standby_shortage(spark: SparkSession, master: SparkMaster, spare: int) -> str | None:
    """Return why there is no slot for another stand-by, None if there is one or the cluster adds one."""
    if grows(_conf_getter(spark), master):
        return None
    registered, busy = _slots(spark)
    return standby_shortage(master, registered=registered, busy=busy, spare=spare)


def lacks_slot(checked: CheckedRun) -> bool:
    """Return whether no slot is free for another worker, and the cluster adds none."""
    if grows(_conf_getter(checked.spark), checked.master):
        return False
    registered, busy = _slots(checked.spark)
    return busy >= registered


def _wait_for_slots(
    spark: SparkSession, master: SparkMaster, workers: int, spare: int, timeout_s: float
) -> None:
    begun = time.monotonic()
    warned = False
    while True:
        registered, busy = _slots(spark)
        missing = judge_slots(master, registered=registered, busy=busy, workers=workers, spare=spare)
        if missing is None:
            return
        if missing.for_good:
            raise NotEnoughSlotsError(missing.text)
        waited = time.monotonic() - begun
        if waited >= timeout_s:
            raise NotEnoughSlotsError(f"{missing.text} after {waited:.0f} s of waiting")
        if waited >= SLOTS_WARN_S and not warned:
            warned = True
            logger.warning("waiting for slots: %s; giving up after %.0f s", missing.text, timeout_s)
        time.sleep(min(SLOTS_POLL_S, max(0.0, timeout_s - waited)))


def _slots(spark: SparkSession) -> tuple[int, int]:
    """Return (slots that executors have registered, tasks running in them)."""
    # The scheduler itself is asked: Spark's status tracker may show a task some seconds after it has begun,
    # and a region would take a slot that is busy.
    context = spark.sparkContext._jsc.sc()  # noqa: SLF001  # PySpark has no public API for this
    profile = context.resourceProfileManager().defaultResourceProfile()
    by_executor = context.taskScheduler().runningTasksByExecutors().values().iterator()
    running = 0
    while by_executor.hasNext():
        running += int(by_executor.next())
    return int(context.maxNumConcurrentTasks(profile)), running
