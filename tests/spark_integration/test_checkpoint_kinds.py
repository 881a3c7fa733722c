"""Every kind of Spark's own stateful queries with its checkpoint in a store of three server processes, behind
two gateways, while gateways, servers and Python workers are killed and stopped: state and output are those of
an undisturbed run on a local directory.

Each query goes through four moments, and each moment has another fault for each kind. A moment is seen in the
tree, through a gateway.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from dos_gateway.core.confs import client_confs
from tests.dos_gateway.gateways import Answer, GatewayProcess, store_of_three
from tests.spark_integration.checkpoint_kinds import KINDS, PROCESSORS, Kind, bodies, write_input
from tests.spark_integration.speculating_program import KEYS, ROWS
from tests.spark_integration.test_checkpoints import java_trace
from tests.spark_integration.test_local_cluster import standalone
from tests.support.dos_command import dos
from tests.support.parts import with_long
from tests.support.polling import until
from tests.support.servers import ServerProcess

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
WAIT_S = 240
SHORT = "files in the tree"
BY_HAND = ["RocksDB", "join, HDFS-backed", "processor with TTL"]
ONES = list(KINDS)
REST = [one for one in ONES if one != SHORT and one not in BY_HAND]
BODY = re.compile(r"WebHdfsFileSystem\$FsPathOutputStreamRunner")
"""A body that Hadoop's client was sending."""
CRASHED = re.compile(r"Python worker exited unexpectedly")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[ServerProcess]]]:
    with store_of_three(tmp_path_factory.mktemp("store")) as made:
        yield made


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_input(tmp_path_factory.mktemp("kinds") / "in")


@pytest.fixture
def maintained(spark: SparkSession) -> Iterator[None]:
    """The next store of state begins the maintenance of this JVM anew, with its own interval."""
    stop_stores(spark)
    yield
    stop_stores(spark)


def stop_stores(spark: SparkSession) -> None:
    state: Any = spark._jvm.org.apache.spark.sql.execution.streaming.state  # type: ignore[union-attr]
    getattr(getattr(state, "StateStore$"), "MODULE$").stop()


@contextmanager
def settings(spark: SparkSession, confs: dict[str, str]) -> Iterator[None]:
    """These settings of the session in this block only."""
    before = {name: spark.conf.get(name, None) for name in confs}
    try:
        for name, value in confs.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


class Ground:
    """A tree of a store of three, and two gateways of it, which keep their ports. Close it at the end."""

    def __init__(self, url: str, servers: list[ServerProcess], name: str) -> None:
        self.url, self.servers, self.name = f"{url}/{name}", servers, name
        self._gateways = [GatewayProcess(self.url) for _ in range(2)]
        """The one that serves is first, as far as is known."""
        addresses = [f"127.0.0.1:{one.port}" for one in self._gateways]
        self.confs = client_confs(name, addresses)
        self.place = f"webhdfs://{name}"

    def ask(self, method: str, op: str, path: str, **query: object) -> Answer:
        """Return the answer of the gateway that serves."""
        while True:
            answer = self.try_ask(self._gateways[0], method, op, path, **query)
            if answer is not None and answer.refusal != "StandbyException":
                return answer
            self._gateways.reverse()

    def try_ask(
        self, gateway: GatewayProcess, method: str, op: str, path: str, **query: object
    ) -> Answer | None:
        try:
            return gateway.client.ask(method, op, path, **query)
        except ConnectionError:
            return None

    def put(self, path: str, body: bytes) -> None:
        self.ask("GET", "GETFILESTATUS", "/")
        assert self._gateways[0].client.put(path, body).code == 201

    def numbers(self, path: str, pattern: str) -> list[int]:
        """The numbers in the names of a directory that match."""
        answer = self.ask("GET", "LISTSTATUS", path)
        listed = answer.json["FileStatuses"]["FileStatus"] if answer.code == 200 else []
        matches = (re.fullmatch(pattern, one["pathSuffix"]) for one in listed)
        return [int(match[1]) for match in matches if match is not None]

    # --- faults ---------------------------------------------------------------------------------------------

    def kill_gateway(self) -> None:
        killed = self._gateways[0]
        killed.__exit__(None, None, None)
        self._gateways = [self._gateways[1], GatewayProcess(self.url, "--listen", f"127.0.0.1:{killed.port}")]

    def stop_gateway(self) -> None:
        """It wakes up when the other one serves: its lease is over, and its claim is lost."""
        stopped = self._gateways[0]
        os.kill(stopped.process.pid, signal.SIGSTOP)
        self._gateways.reverse()
        while (answer := self.try_ask(self._gateways[0], "GET", "LISTSTATUS", "/")) is None or answer.refusal:
            pass
        os.kill(stopped.process.pid, signal.SIGCONT)

    def kill_server(self) -> None:
        self.servers[0].kill()

    def stop_server(self) -> None:
        self.servers[1].pause()

    def heal(self) -> None:
        for server in self.servers:
            server.resume()
            if not server.running:
                server.restart()

    def close(self) -> None:
        for gateway in self._gateways:
            gateway.__exit__(None, None, None)


FAULTS = (Ground.kill_gateway, Ground.stop_gateway, Ground.kill_server, Ground.stop_server)
OF_GATEWAYS = {fault.__name__ for fault in FAULTS[:2]}


class Moment(NamedTuple):
    """A directory of the checkpoint has a name with this number, or a higher one: it may be deleted soon."""

    directory: str
    number: int
    pattern: str = r"(\d+)"

    def is_reached(self, ground: Ground, at: str) -> bool:
        return max(ground.numbers(f"{at}/{self.directory}", self.pattern), default=-1) >= self.number


BEGUN = r"\.?(\d+)[._].*"
"""A file of state, or the temporary file of one, or of a log."""


def moments(kind: Kind) -> list[Moment]:
    """In the middle of a batch, in a commit of state, before the offset log is written, in a late batch."""
    state = Moment(f"state/{kind.store}", 4, BEGUN) if kind.store else Moment("offsets", 3)
    return [Moment("offsets", 1), state, Moment("commits", 4), Moment("offsets", 5)]


class Run:
    """A query that is started again when it fails, as by a supervisor. It may fail once with each loss of a
    gateway, if that was receiving a body, and with its Python worker. lost: the faults that made it fail.
    """

    def __init__(self, begin: Callable[[], StreamingQuery]) -> None:
        self._begin = begin
        self.query = begin()
        self.fault = ""
        self.lost: list[str] = []
        self.crashed = 0

    def advance_until(self, reached: Callable[[], bool], what: str) -> None:
        """Return when it is reached, which is before the end."""
        until(lambda: self.has_ended() or reached(), what, WAIT_S)
        assert not self.has_ended(), f"it has ended before {what}"

    def has_ended(self) -> bool:
        if self.query.exception() is None:
            return not self.query.isActive
        trace = java_trace(self.query)
        if CRASHED.search(trace):
            self.crashed += 1
        else:
            assert BODY.search(trace), trace
            assert self.fault in OF_GATEWAYS, trace
            assert self.fault not in self.lost, trace
            self.lost.append(self.fault)
        self.query = self._begin()
        return False

    def finish(self, *, available_now: bool) -> None:
        while True:
            try:
                complete(self.query, available_now=available_now)
            except StreamingQueryException:
                assert not self.has_ended(), "it has failed"
            else:
                return


def is_committed(query: StreamingQuery, batch: int) -> bool:
    progress: Any = query.lastProgress
    return progress is not None and int(progress["batchId"]) == batch


def complete(query: StreamingQuery, *, available_now: bool) -> None:
    if available_now:
        assert query.awaitTermination(WAIT_S)
    else:
        query.processAllAvailable()


class Result(NamedTuple):
    state: list[str]
    output: list[str]


@pytest.fixture(scope="module")
def references(
    spark: SparkSession, source: str, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Kind], Result]:
    """What an undisturbed run on a local directory has: the same for all providers."""
    known: dict[object, Result] = {}

    def reference(disturbed: Kind) -> Result:
        kind = disturbed._replace(version=1)
        if kind.frame not in known:
            folder = tmp_path_factory.mktemp("reference")
            here = f"file://{folder}"
            with settings(spark, kind.confs):
                query = kind.begin(spark, f"{here}/at", source, f"{here}/out", str(folder / "mark"))
                complete(query, available_now=kind.available_now)
                until(partial(is_committed, query, kind.last), "the last batch", WAIT_S)
                query.stop()
                known[kind.frame] = Result(kind.state(spark, f"{here}/at"), kind.output(spark, f"{here}/out"))
        return known[kind.frame]

    return reference


@pytest.mark.parametrize("which", with_long([SHORT], REST, BY_HAND))
def test_a_query_of_this_kind_has_the_result_of_an_undisturbed_run(
    spark: SparkSession,
    store: tuple[str, list[ServerProcess]],
    source: str,
    references: Callable[[Kind], Result],
    maintained: None,
    which: str,
    tmp_path: Path,
) -> None:
    kind, turn, mark = KINDS[which], ONES.index(which), tmp_path / "mark"
    expected = references(kind)
    with ExitStack() as stack:
        ground = Ground(*store, f"kind-{turn}")
        stack.callback(ground.close)
        stack.enter_context(settings(spark, {**ground.confs, **kind.confs}))
        at, place = "/query", ground.place
        if kind.in_tree[0]:
            for number, body in enumerate(bodies()):
                ground.put(f"/in/{number}.json", body)
            source = f"{place}/in"
        output = f"{place}/out" if kind.in_tree[1] else f"file://{tmp_path}/out"
        run = Run(lambda: kind.begin(spark, f"{place}{at}", source, output, str(mark)))
        stack.callback(lambda: run.query.stop())
        stack.callback(ground.heal)
        for number, moment in enumerate(moments(kind)):
            run.advance_until(partial(moment.is_reached, ground, at), f"{moment}")
            ground.heal()
            fault = FAULTS[(turn + number) % len(FAULTS)]
            run.fault = fault.__name__
            fault(ground)
            if number == 2:
                mark.touch()
        run.finish(available_now=kind.available_now)
        ground.heal()
        commits = partial(ground.numbers, f"{at}/commits", r"(\d+)")
        if not kind.available_now:
            # It runs on, and the batch without data may come only now.
            run.advance_until(lambda: max(commits()) >= kind.last, "the last batch")
        if kind.store and not kind.available_now:
            versions = partial(ground.numbers, f"{at}/state/{kind.store}", BEGUN)
            until(lambda: min(versions()) > 2, "old versions are deleted", WAIT_S)
        run.query.stop()
        assert run.crashed == (kind.frame in PROCESSORS)
        assert max(commits()) == kind.last
        assert kind.output(spark, output) == (expected.output if kind.has_output else [])
        assert kind.state(spark, f"{place}{at}") == expected.state


@pytest.mark.long
def test_state_in_a_tree_is_divided_anew_by_sparks_own_command(
    spark: SparkSession,
    store: tuple[str, list[ServerProcess]],
    source: str,
    references: Callable[[Kind], Result],
    maintained: None,
) -> None:
    kind = KINDS["changelog"]
    expected = references(kind)
    with ExitStack() as stack:
        ground = Ground(*store, "divided")
        stack.callback(ground.close)
        stack.enter_context(settings(spark, {**ground.confs, **kind.confs}))
        at, output = f"{ground.place}/query", f"{ground.place}/out"
        query = kind.begin(spark, at, source, output, "")
        complete(query, available_now=kind.available_now)
        until(partial(is_committed, query, kind.last), "the last batch", WAIT_S)
        query.stop()
        spark._streamingCheckpointManager.repartition(at, 3)
        assert sorted(ground.numbers("/query/state/0", r"(\d+)")) == [0, 1, 2]
        assert sorted(kind.state(spark, at)) == sorted(expected.state)
        query = kind.begin(spark, at, source, output, "")  # continues with them
        complete(query, available_now=kind.available_now)
        query.stop()
        assert query.exception() is None
        assert kind.output(spark, output) == expected.output


@pytest.mark.long
def test_two_attempts_commit_one_version_of_state_and_executors_are_killed_and_stopped(
    store: tuple[str, list[ServerProcess]], tmp_path: Path
) -> None:
    """Spark speculates between hosts only, which a standalone cluster has as addresses on loopback."""
    url = f"{store[0]}/speculated"
    with ExitStack() as stack:
        gateways = [stack.enter_context(GatewayProcess(url)) for _ in range(2)]
        confs = dos("gateway", "confs", url, *(f"127.0.0.1:{one.port}" for one in gateways)).stdout
        (tmp_path / "confs").write_text(confs)
        (tmp_path / "gateways").write_text(json.dumps([(one.port, one.process.pid) for one in gateways]))
        hosts = ("127.0.0.1", "127.0.0.2")
        master = stack.enter_context(standalone(tmp_path, hosts=hosts, cores=1, memory="1g"))
        module = "tests.spark_integration.speculating_program"
        done = subprocess.run(
            [sys.executable, "-m", module, master, tmp_path, url],
            capture_output=True,
            text=True,
            timeout=500,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        )
        assert done.returncode == 0, done.stderr[-5000:]
    said = json.loads(done.stdout.strip().splitlines()[-1])
    for name, one in said.items():
        assert one["twice"], f"{name}: no version was committed twice"
        each = ROWS // KEYS
        assert one["state"] == [[key, each * one["batches"]] for key in range(KEYS)]
        counts = [[key, each * (batch + 1)] for key in range(KEYS) for batch in range(one["batches"])]
        assert one["shown"] == sorted(counts)
