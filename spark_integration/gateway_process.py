"""`dos.checkpoints`: Spark's own checkpoints in a store, through a gateway of this process."""

import json
import logging
import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from dos_client import BadUrlError, FileToken, parse_url
from dos_protocol.errors import LocalProtocolError
from spark_integration.errors import ConnectSessionError
from spark_integration.sessions import is_connect, master_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger: Final = logging.getLogger("dos.gateway")
_NAMESERVICES: Final = "dfs.nameservices"
_RESTART_S: Final = 1.0
_OWN_GATEWAYS: Final = (
    "run `dos gateway URL --listen HOST:9870 --tls --key-file FILE` on two hosts, begin Spark with what `dos"
    " gateway confs URL HOST1:9870 HOST2:9870 --tls --key-file FILE` prints, and use the place that it names"
)
_gateways: Final[dict[str, "_Gateway"]] = {}
_lock: Final = threading.Lock()


def checkpoints(spark: "SparkSession", url: str, *, token: bytes = b"", max_bytes: str = "") -> str:
    """Return a place for `checkpointLocation`s of Spark's own streaming queries, in a store.

    url: dos://h1,h2,h3/NAME. NAME is a tree of files; each query has a directory in it:

        place = dos.checkpoints(spark, "dos://h1,h2,h3/orders")
        table.writeStream.option("checkpointLocation", f"{place}/totals").start()

    A gateway to the store runs as a child of this process and ends with it. It is started anew, at the same
    port, if it dies: a query whose log was being written then ends, and continues at its last commit when it
    is started again. The settings are those of this session only. On another machine the same call with the
    same URL gives the same place.

    max_bytes: as `--max-bytes` of `dos gateway`, such as 20GB: with less room, new files are refused, so that
    files can still be deleted. The first call for a tree decides.

    Raises BadUrlError; ConnectSessionError; LocalProtocolError if Spark runs on several machines: then run
    `dos gateway` on two of them, and pass what `dos gateway confs` prints; LocalProtocolError if this JVM has
    another gateway for the place, or an earlier call gave another max_bytes; RuntimeError with the error of
    the gateway if it cannot start. A warning is logged if another gateway serves the tree: this one then
    refuses requests after 10 s, until the other one ends.
    """
    parsed = parse_url(url)
    if parsed.directory is None or parsed.object is not None:
        raise BadUrlError(f"{url} must name a tree", remedy="write it as dos://h1,h2,h3/NAME")
    if is_connect(spark):
        raise ConnectSessionError(
            "this is a Spark Connect session: its server cannot reach a gateway of this process",
            remedy=_OWN_GATEWAYS,
        )
    master = master_of(spark)
    if not master.one_machine:
        raise LocalProtocolError(
            f"Spark runs on {master.url}: a gateway that its executors reach needs TLS, and Java reads whom"
            " it trusts when it begins, from a file on each machine",
            remedy=_OWN_GATEWAYS,
        )
    with _lock:
        gateway = _gateways.get(str(parsed)) or _Gateway(str(parsed), token, max_bytes)
        if max_bytes not in ("", gateway.max_bytes):
            raise LocalProtocolError(
                f"{gateway.place} has max_bytes={gateway.max_bytes!r} in this process, and got {max_bytes!r}",
                remedy="leave it out, or begin a new driver",
            )
        try:
            confs = _confs_with(spark, gateway)
        except LocalProtocolError:
            if str(parsed) not in _gateways:
                gateway.close()
            raise
        _gateways[str(parsed)] = gateway
    for name, value in confs.items():
        spark.conf.set(name, value)
    return gateway.place


def _confs_with(spark: "SparkSession", gateway: "_Gateway") -> dict[str, str]:
    """Return the settings with which the session finds the gateway. Raises LocalProtocolError if its JVM asks
    another one for this name: a JVM keeps a file system for each name, and later settings do not change it.
    """
    java = spark.sparkContext._jvm.java.lang.System  # noqa: SLF001  # PySpark has no public way to its JVM
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001  # of core-site.xml, spark.hadoop.*
    (address,) = (name for name in gateway.confs if name.startswith("dfs.namenode."))
    for known in (hadoop.get(address), java.getProperty(address)):
        if known not in (None, gateway.confs[address]):
            raise LocalProtocolError(
                f"{gateway.place} is served at {known} in this JVM, and would be at {gateway.confs[address]}",
                remedy=f"use {gateway.place} as it is, without dos.checkpoints; or begin a new driver",
            )
    java.setProperty(address, gateway.confs[address])
    # Names of other trees, and of an HDFS: a file system that is made later needs its own.
    names = (spark.conf.get(_NAMESERVICES, None) or hadoop.get(_NAMESERVICES) or "").split(",")
    united = dict.fromkeys([*filter(None, map(str.strip, names)), gateway.confs[_NAMESERVICES]])
    return {**gateway.confs, _NAMESERVICES: ",".join(united)}


class _Gateway:
    """A gateway process, which is kept running at its ports: file systems of this JVM ask for them always."""

    def __init__(self, url: str, token: bytes, max_bytes: str) -> None:
        self._url, self._token, self.max_bytes = url, token, max_bytes
        self._listen = "127.0.0.1:0"
        self._process, told = self._start()
        self._listen = told["listen"]
        self.place: Final[str] = told["place"]
        self.confs: Final[dict[str, str]] = told["confs"]
        self._closed = False
        self._keeper = threading.Thread(target=self._keep, name="dos gateway", daemon=True)
        self._keeper.start()

    def _start(self) -> "tuple[subprocess.Popen[str], dict[str, Any]]":
        place = [self._url, "--listen", self._listen, "--child"]
        place += ["--max-bytes", self.max_bytes] if self.max_bytes else []
        process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", "dos_cli", "gateway", "serve", *place],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,  # Ctrl-C in a shell ends neither Spark's JVM nor its queries
        )
        assert process.stdin is not None, "it is a pipe"
        assert process.stdout is not None, "it is a pipe"
        if isinstance(self._token, FileToken):  # read again for each session
            given: dict[str, Any] = {"tokenFile": self._token.path}
        else:
            given = {"token": self._token.decode()}
        given["driver"] = os.getpid()
        process.stdin.write(json.dumps(given) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            code = process.wait()
            _close_pipes(process)
            raise RuntimeError(f"the gateway of {self._url} ended with {code}: its error is above")
        told = json.loads(line)
        if told["standbyOf"]:
            logger.warning("%s", told["standbyOf"])
        return process, told

    def _keep(self) -> None:
        while True:
            code = self._process.wait()
            _close_pipes(self._process)
            if self._closed:
                return
            logger.warning("the gateway of %s ended with %d and is started again", self._url, code)
            try:
                self._process, _ = self._start()
            except (OSError, RuntimeError) as error:
                logger.error("the gateway of %s cannot start: %s", self._url, error)
                time.sleep(_RESTART_S)

    def close(self) -> None:
        """End the gateway, for tests: file systems of this JVM wait for it in vain from then on."""
        self._closed = True
        self._process.kill()
        self._keeper.join()


def _close_pipes(process: "subprocess.Popen[str]") -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
