"""Spark's own checkpoints over TLS with a key, as `dos gateway confs` prints it: gateways on two addresses,
of a store with TLS and tokens, and executors that are processes of their own.
"""

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from dos_protocol.errors import LocalProtocolError
from spark_integration import gateway_process
from spark_integration.core.session_checks import read_master
from tests.dos_gateway.gateways import GatewayProcess
from tests.spark_integration.checkpoint_program import expected
from tests.support.certificates import Certificates, certificates
from tests.support.dos_command import dos
from tests.support.servers import ServerProcess

__all__ = ["certificates"]
NAMES: Final = ("g1.test", "g2.test", "gateways.test")
"""Of the first gateway, of the second one, and of both."""
HOSTS: Final = """
127.0.0.1 localhost {own} g1.test
127.0.0.2 g2.test
127.0.0.1 gateways.test
127.0.0.2 gateways.test
"""
DRIVER: Final = """
import json, sys, time
from pyspark.sql import SparkSession
from pyspark.sql.functions import col

def say(**what):
    print(json.dumps(what), flush=True)

place, last = sys.argv[1], int(sys.argv[2])
builder = SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.ui.enabled", "false")
for end in ("host", "bindAddress"):
    builder = builder.config(f"spark.driver.{end}", "127.0.0.1")
spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).option("numPartitions", 1)
counted = numbers.load().groupBy((col("value") % 7).alias("k")).count()
writer = counted.writeStream.format("noop").outputMode("update")
writer = writer.option("checkpointLocation", f"{place}/totals")
committed = -1
while committed < last:  # a body that was on its way when a gateway died ends the query
    query = writer.start()
    while query.exception() is None and committed < last:
        time.sleep(0.05)
        if query.lastProgress and query.lastProgress["batchId"] > committed:
            committed = query.lastProgress["batchId"]
            say(batch=committed)
    if query.exception() is not None:
        say(error=str(query.exception()))
    query.stop()
rows = spark.read.format("statestore").load(f"{place}/totals").select("key.*", "value.*").collect()
say(state={str(row[0]): int(row[1]) for row in rows})
spark.stop()
"""


def lines_of(folder: Path, conf: Path, place: str, last: int) -> Iterator[dict[str, Any]]:
    """What a driver prints, one line after the other. It has nothing of DOS but these settings."""
    (folder / "driver.py").write_text(DRIVER)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DOS_")}
    with (folder / "stderr").open("ab") as errors:
        driver = subprocess.Popen(
            [sys.executable, str(folder / "driver.py"), place, str(last)],
            env={**environment, "SPARK_CONF_DIR": str(conf)},
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=folder,
            text=True,
        )
        try:
            assert driver.stdout is not None
            for line in driver.stdout:
                yield json.loads(line)
            assert driver.wait(60) == 0, (folder / "stderr").read_text().partition("Traceback")[2][:5000]
        finally:
            driver.kill()
            driver.wait()
            driver.stdout.close()  # type: ignore[union-attr]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_query_on_a_cluster_survives_a_gateway_with_what_the_command_prints(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = certificates.authority.add_server(NAMES)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        key, tokens, secret = folder / "gateway.key", folder / "tokens.json", "+/" + secrets.token_hex(32)
        key.write_text(secret)
        key.chmod(0o600)
        for name, grant in (("operator", "*:all"), ("orders", "orders:read,append,delete")):
            assert dos("token", "add", tokens, name, "--grant", grant, "--out", folder / name).returncode == 0
        options = ("--tls", str(certificates.server), "--tokens", str(tokens))
        server = stack.enter_context(ServerProcess(folder / "server", options=options))
        monkeypatch.setenv("DOS_TLS", str(certificates.client))
        assert dos("store", "init", server.url, "--token-file", folder / "operator").returncode == 0

        url, own = f"{server.url}/orders", ("--key-file", str(key), "--token-file", str(folder / "orders"))
        first = stack.enter_context(GatewayProcess(url, *own, tls=serving))
        there = ("--listen", f"127.0.0.2:{first.port}")
        second = stack.enter_context(GatewayProcess(url, *own, *there, tls=serving))
        *ends, both = (f"{name}:{first.port}" for name in NAMES)
        safe = ("--tls", "--key-at", both, "--truststore", folder / "cacerts")
        printed = dos("gateway", "confs", url, *ends, *own, *safe).stdout

        for line in printed.splitlines():
            if line.startswith(("# cp ", "# keytool ")):
                subprocess.run(line[2:], shell=True, cwd=certificates.authority.directory, check=True)
        place = printed.splitlines()[0].split()[-1].rstrip("/")
        hosts, events = folder / "hosts", folder / "events"
        hosts.write_text(HOSTS.format(own=socket.gethostname()))
        events.mkdir()
        more = [
            f"spark.{end}.extraJavaOptions -Djdk.net.hosts.file={hosts}\n" for end in ("driver", "executor")
        ]
        more += ["spark.logConf true\n", "spark.log.level INFO\n"]
        more += [
            f"spark.eventLog.{name}\n" for name in ("enabled true", "compress false", f"dir file://{events}")
        ]
        conf = folder / "conf"
        conf.mkdir()
        (conf / "spark-defaults.conf").write_text("".join([printed, "\n", *more]))

        said = []
        for line in lines_of(folder, conf, place, 8):
            said.append(line)
            if line.get("batch", -1) >= 2 and first.process.poll() is None:
                programs = [" ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])]
                assert not [program for program in programs if secret in program]
                first.process.kill()
        assert second.process.poll() is None
        assert said[-1]["state"] == expected(counted(said)), said
        # A driver on another machine, and executors that begin while the first gateway is down.
        later = list(lines_of(folder, conf, place, 10))
        assert later[-1]["state"] == expected(counted(later)), later
        assert min(line["batch"] for line in later if "batch" in line) >= 8

        written = [path.read_bytes() for path in (folder / "stderr", *events.rglob("*")) if path.is_file()]
        assert any(b"dfs.webhdfs.oauth2.refresh.token" in text for text in written)
        assert not [text for text in (*written, first.log(), second.log()) if secret.encode() in text]


def counted(said: list[dict[str, Any]]) -> int:
    """How many micro-batches are in the state that a driver has shown."""
    total, rest = divmod(sum(said[-1]["state"].values()), 100)
    assert rest == 0
    return total


def test_for_several_machines_the_remedy_has_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    master = read_master("spark://10.0.0.1:7077", cores=2)
    monkeypatch.setattr(gateway_process, "master_of", lambda _: master)
    with pytest.raises(LocalProtocolError, match=r"a file on each machine .*`dos gateway confs URL"):
        gateway_process.checkpoints(None, "dos://127.0.0.1:1/orders")  # type: ignore[arg-type]
