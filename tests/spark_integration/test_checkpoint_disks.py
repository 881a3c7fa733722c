"""A query of Spark's own while the disks of its store are full, lost, or all away: nothing that was answered
is lost, and the query continues, or fails with the reason and continues when it is started again.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pytest
import trio
from pyspark.sql import SparkSession

from dos_client import init_store
from dos_protocol.limits import MIB
from dos_server.core.access import encode_settings
from dos_server.core.quotas import QUOTA_FILE_VERSION, Quota, QuotaFile
from tests.dos_gateway.gateways import GatewayProcess, WebHdfsClient
from tests.spark_integration.checkpoint_program import is_whole
from tests.spark_integration.test_checkpoints import counted, run
from tests.support.dos_command import dos
from tests.support.polling import until
from tests.support.servers import ServerProcess, three_servers, url_of
from tests.support.small_disk import SmallDisk, small_disk

__all__ = ["three_servers"]
pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.long, pytest.mark.timeout(600)]
WAIT_S = 120.0
SMALL_BYTES = 48 * MIB


class Checkpointed(NamedTuple):
    """A query, and the gateways of its tree."""

    spark: SparkSession
    place: str
    gateways: list[GatewayProcess]

    def run(self, batch: int, meanwhile: Callable[[], None] = lambda: None) -> str:
        """Run the query until this micro-batch is committed, or it fails. Return its error."""
        return run(counted(self.spark), f"{self.place}/totals", batch, meanwhile)

    def check(self, batches: int) -> None:
        """The state is that of an undisturbed run, of at least so many micro-batches."""
        frame = self.spark.read.format("statestore").load(f"{self.place}/totals")
        rows = frame.select("key.*", "value.*").collect()
        assert is_whole({str(row[0]): int(row[1]) for row in rows}, batches)

    def serving(self) -> GatewayProcess:
        """Wait until a gateway serves the tree, and return it."""
        while True:
            for one in self.gateways:
                if one.process.poll() is None and not one.client.ask("GET", "GETFILESTATUS", "/").refusal:
                    return one

    def log(self) -> str:
        return "".join(one.log().decode() for one in self.gateways)


@contextmanager
def checkpointed(
    spark: SparkSession, servers: list[ServerProcess], *options: str, gateways: int = 1
) -> Iterator[Checkpointed]:
    trio.run(init_store, url_of(servers))
    url = url_of(servers, "orders")
    with ExitStack() as stack:
        found = [stack.enter_context(GatewayProcess(url, *options)) for _ in range(gateways)]
        confs = dos("gateway", "confs", url, *(f"127.0.0.1:{one.port}" for one in found)).stdout
        for line in confs.splitlines():
            spark.conf.set(*line.removeprefix("spark.hadoop.").split(" ", 1))
        yield Checkpointed(spark, f"webhdfs://{spark.conf.get('dfs.nameservices')}", found)


def fill(client: WebHdfsClient, size: int) -> dict[str, bytes]:
    """Put files until one is not answered, or refused. Return those that were acknowledged."""
    kept: dict[str, bytes] = {}
    while True:
        name, body = f"/ballast/{len(kept)}", bytes([len(kept)]) * size
        try:
            if client.put(name, body).code != 201:
                return kept
        except TimeoutError:
            return kept
        kept[name] = body


def test_a_tree_at_its_size_limit_fails_the_query_with_the_reason(
    spark: SparkSession, three_servers: list[ServerProcess]
) -> None:
    with checkpointed(spark, three_servers, "--max-bytes", "256MiB") as query:
        assert not query.run(1)
        client = query.gateways[0].client
        fill(client, 4 * MIB)
        error = query.run(9)
        assert "of 256 MiB (--max-bytes)" in error
        assert "files can only be deleted, and new ones are accepted again when less than 48 MiB" in error
        assert client.delete("/ballast")
        until(lambda: client.put("/probe", b"x").code == 201, "there is room", WAIT_S)
        assert not query.run(4)
        query.check(5)


Limited: TypeAlias = tuple[list[ServerProcess], Callable[[bool], None]]
"""Servers, and a function that takes their space or returns it."""


@contextmanager
def small_disks(folder: Path) -> Iterator[Limited]:
    """On small disks, two of which are filled by others."""
    with ExitStack() as stack:
        disks = [
            stack.enter_context(small_disk(folder / f"disk{number}", SMALL_BYTES)) for number in range(3)
        ]
        servers = [stack.enter_context(ServerProcess(one.path / "server")) for one in disks]
        yield servers, lambda full: _fill(disks[:2], full=full)


def _fill(disks: list[SmallDisk], *, full: bool) -> None:
    for one in disks:
        if full:
            one.fill()
        else:
            (one.path / "ballast").unlink()


@contextmanager
def quotas(folder: Path) -> Iterator[Limited]:
    """With a quota of all."""
    path = folder / "quotas.json"

    def limit(full: bool) -> None:
        listed = (Quota("orders", bytes_max=MIB if full else 1000 * MIB),)
        path.write_bytes(encode_settings(QuotaFile(QUOTA_FILE_VERSION, listed)))

    limit(full=False)
    with ExitStack() as stack:
        options = ("--quotas", str(path))
        folders = [folder / f"server{number}" for number in range(3)]
        yield [stack.enter_context(ServerProcess(one, options=options)) for one in folders], limit


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(small_disks, "no space for fs."), (quotas, "the quota of 'orders' is 1048576 bytes")],
)
def test_a_store_without_space_makes_the_query_wait_and_loses_nothing(
    spark: SparkSession, tmp_path: Path, kind: Callable[[Path], AbstractContextManager[Limited]], reason: str
) -> None:
    with kind(tmp_path) as (servers, make_full), checkpointed(spark, servers) as query:
        kept: dict[str, bytes] = {}
        client = WebHdfsClient(query.gateways[0].port, timeout_s=2.0)

        def full_for_a_while() -> None:
            make_full(True)
            kept.update(fill(client, MIB))
            until(lambda: f"is unavailable: {reason}" in query.log(), "the log has the reason", WAIT_S)
            make_full(False)

        assert not query.run(1)
        waited(query.run(4, full_for_a_while))
        assert not query.run(6)
        query.check(7)
        client = query.gateways[0].client
        assert {path: client.get(path) for path in kept} == kept


@pytest.mark.parametrize("patience_s", [1.0, 21.0], ids=["shortly", "for longer than a client waits"])
def test_a_store_that_is_away_makes_the_query_wait(
    spark: SparkSession, three_servers: list[ServerProcess], patience_s: float
) -> None:
    """Two servers, then all of them are away."""
    with checkpointed(spark, three_servers) as query:
        client = WebHdfsClient(query.gateways[0].port, timeout_s=patience_s)

        def away(servers: list[ServerProcess]) -> None:
            for one in servers:
                one.kill()
            while answers(client):
                pass  # from memory, for a second
            for one in servers:
                one.restart()

        assert not query.run(1)
        waited(query.run(3, lambda: away(three_servers[:2])))
        waited(query.run(5, lambda: away(three_servers)))
        assert not query.run(7)
        query.check(8)
        assert "orders.fs is waiting for the store: 2 members are needed and" in query.log()


def answers(client: WebHdfsClient) -> bool:
    try:
        client.ask("GET", "GETFILESTATUS", "/")
    except TimeoutError:
        return False
    return True


def waited(error: str) -> None:
    """Requests are repeated until they are answered. Only a body is not, and fails after 20 s: in a log of
    the driver, or in a task that commits its state.
    """
    assert not error or "SocketTimeoutException" in error or "CANNOT_WRITE_STATE_STORE" in error, error


def test_a_wiped_server_is_replaced_under_a_query_and_the_others_die(
    spark: SparkSession, three_servers: list[ServerProcess]
) -> None:
    """One after the other, and the gateway, too: the last one reads from the replaced server."""
    wiped, second, _ = three_servers
    with checkpointed(spark, three_servers, gateways=2) as query:

        def wipe() -> None:
            wiped.kill()
            shutil.rmtree(wiped.data)
            wiped.restart()
            done = dos("store", "replace", url_of(three_servers), wiped.location, wiped.location)
            assert not done.returncode, done.stderr
            second.kill()

        assert not query.run(1)
        assert not query.run(4, wipe)
        query.serving().process.kill()
        assert not query.run(6)
        query.check(7)


def test_a_server_that_was_away_is_given_the_bodies_after_a_take_over(
    spark: SparkSession, three_servers: list[ServerProcess]
) -> None:
    """The bodies are in segments that the take-over does not read. Then another server dies."""
    away, second, _ = three_servers
    with checkpointed(spark, three_servers, gateways=2) as query:
        assert not query.run(1)
        away.kill()
        bodies = {f"/ballast/{number}": bytes([number]) * 4 * MIB for number in range(18)}
        for path, body in bodies.items():
            assert query.serving().client.put(path, body).code == 201
        assert not query.run(3)
        away.restart()
        query.serving().process.kill()
        assert not query.run(5)
        until(lambda: segments(away)[:2] == segments(second)[:2], "it has the bodies", WAIT_S)
        second.kill()
        assert not query.run(7)
        query.check(8)
        client = query.serving().client
        assert {path: client.get(path) for path in bodies} == bodies


def segments(server: ServerProcess) -> list[str]:
    """The segments of the tree on a server, with their sizes."""
    return sorted(line for line in dos("ls", f"{server.url}/orders.fs").stdout.splitlines() if "fs." in line)
