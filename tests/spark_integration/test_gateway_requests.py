"""What Spark's Hadoop client asks a gateway for, in golden files: one for each supported version of PySpark.

They are the first place to look at when a version fails with a gateway. `webhdfs` works in Spark only as long
as its client skips a class that is missing in Spark's jars (an answer without Content-Type) and sends no
operation that a gateway refuses. `--rewrite` writes the file of the installed version.
"""

from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.captured import UnsupportedOperationException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, expr

from dos_gateway.limits import block_bytes
from dos_server.testing import Servers, ThreadedServer
from tests.spark_integration.recorded_requests import RecordingGateway, golden_text, recording_gateway
from tests.support.examples import run_example
from tests.support.parts import with_long

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
REFUSED: dict[str, Callable[[Any, Any, Any], object]] = {
    "APPEND": lambda hadoop, files, at: files.append(at),
    "TRUNCATE": lambda hadoop, files, at: files.truncate(at, 1),
    "CONCAT": lambda hadoop, files, at: files.concat(at, array_of(hadoop, at)),
    "CREATESYMLINK": lambda hadoop, files, at: files.createSymlink(at, at, False),
    "GETLINKTARGET": lambda hadoop, files, at: files.getLinkTarget(at),
    "ALLOWSNAPSHOT": lambda hadoop, files, at: files.allowSnapshot(at),
    "DISALLOWSNAPSHOT": lambda hadoop, files, at: files.disallowSnapshot(at),
    "CREATESNAPSHOT": lambda hadoop, files, at: files.createSnapshot(at, "s"),
    "RENAMESNAPSHOT": lambda hadoop, files, at: files.renameSnapshot(at, "s", "t"),
    "DELETESNAPSHOT": lambda hadoop, files, at: files.deleteSnapshot(at, "s"),
    "GETSNAPSHOTDIFF": lambda hadoop, files, at: files.getSnapshotDiffReport(at, "s", "t"),
    "GETACLSTATUS": lambda hadoop, files, at: files.getAclStatus(at),
    "REMOVEACL": lambda hadoop, files, at: files.removeAcl(at),
    "SETXATTR": lambda hadoop, files, at: files.setXAttr(at, "user.a", b"x"),
    "GETXATTRS": lambda hadoop, files, at: files.getXAttrs(at),
    "LISTXATTRS": lambda hadoop, files, at: files.listXAttrs(at),
    "REMOVEXATTR": lambda hadoop, files, at: files.removeXAttr(at, "user.a"),
    "GETDELEGATIONTOKEN": lambda hadoop, files, at: files.getDelegationToken("me"),
    "CHECKACCESS": lambda hadoop, files, at: files.access(at, hadoop.permission.FsAction.READ),
    "GETFILECHECKSUM": lambda hadoop, files, at: files.getFileChecksum(at),
    "GETQUOTAUSAGE": lambda hadoop, files, at: files.getQuotaUsage(at),
    "SETQUOTA": lambda hadoop, files, at: files.setQuota(at, 1, 1),
    "GETSTORAGEPOLICY": lambda hadoop, files, at: files.getStoragePolicy(at),
    "GETALLSTORAGEPOLICY": lambda hadoop, files, at: files.getAllStoragePolicies(),
    "SETSTORAGEPOLICY": lambda hadoop, files, at: files.setStoragePolicy(at, "HOT"),
    "UNSETSTORAGEPOLICY": lambda hadoop, files, at: files.unsetStoragePolicy(at),
    "SATISFYSTORAGEPOLICY": lambda hadoop, files, at: files.satisfyStoragePolicy(at),
    "SETOWNER": lambda hadoop, files, at: files.setOwner(at, "a", "b"),
    "SETREPLICATION": lambda hadoop, files, at: files.setReplication(at, 2),
    "GETTRASHROOT": lambda hadoop, files, at: files.getTrashRoot(at),
}
"""How a client calls what is refused. Arguments: package `org.apache.hadoop.fs`, a file system, a file."""
SERVED: dict[str, Callable[[Any, Any], object]] = {
    "GETFILEBLOCKLOCATIONS": lambda files, at: files.getFileBlockLocations(at, 0, 10)[0].toString(),
    "GETSERVERDEFAULTS": lambda files, at: files.getServerDefaults(at).getBlockSize(),
    "LISTSTATUS_BATCH": lambda files, at: names(files.listStatusIterator(at.getParent())),
    "GETCONTENTSUMMARY": lambda files, at: files.getContentSummary(at.getParent()).getLength(),
    "GETFILELINKSTATUS": lambda files, at: files.getFileLinkStatus(at).getLen(),
    "GETHOMEDIRECTORY": lambda files, at: files.getHomeDirectory().toUri().getPath(),
    "SETTIMES": lambda files, at: files.setTimes(at, 1, 1),
}
ANSWERS = {
    "GETFILEBLOCKLOCATIONS": "0,6,localhost",
    "GETSERVERDEFAULTS": block_bytes,
    "LISTSTATUS_BATCH": ["b", "f"],
    "GETCONTENTSUMMARY": 12,
    "GETFILELINKSTATUS": 6,
    "GETHOMEDIRECTORY": "/user/dos",
    "SETTIMES": None,
}
STATE = "spark.sql.streaming.stateStore"
STORES = "org.apache.spark.sql.execution.streaming.state"
BATCHES, AFTER_RESTART = 3, 1
LOOK_AT = (
    "Spark's Hadoop client and the gateway no longer agree on their requests. For each line that differs: is "
    "the operation served, and are its parameters used (dos_gateway/webhdfs.py)? May it be repeated? Does an "
    "overwriting rename still begin with a DELETE that is not recursive (Tree.remove)? A missing Java class: "
    "does JSON have a Content-Type, which must not be? If the new requests are right, run with --rewrite."
)


class QueryKind(NamedTuple):
    """A kind of query. frame: what it makes of lines. sink: `noop`, or the format of files in the tree."""

    name: str
    frame: Callable[[DataFrame], DataFrame] = lambda lines: lines
    provider: str = "HDFSBackedStateStoreProvider"
    changelog: bool = False
    format_version: int = 1
    sink: str = "noop"
    source_in_tree: bool = False


def counted(lines: DataFrame) -> DataFrame:
    return lines.groupBy("value").count()


def joined(lines: DataFrame) -> DataFrame:
    timed = lines.select("value", expr("timestamp_seconds(length(value))").alias("at"))
    left = timed.withWatermark("at", "1 hour").alias("left")
    right = timed.withWatermark("at", "1 hour").alias("right")
    return left.join(right, (col("left.value") == col("right.value")) & (col("left.at") == col("right.at")))


ROCKS = "RocksDBStateStoreProvider"
HDFS_BACKED = QueryKind("state, HDFS-backed", counted)
KINDS = with_long(
    [HDFS_BACKED],
    [
        QueryKind("stateless"),
        QueryKind("state, RocksDB with a changelog", counted, ROCKS, changelog=True),
        QueryKind(
            "state, RocksDB with a changelog, format 2", counted, ROCKS, changelog=True, format_version=2
        ),
        QueryKind("file sink", sink="text"),
        QueryKind("stream-stream join", joined),
        QueryKind("file source", source_in_tree=True),
    ],
)


@pytest.fixture(scope="module")
def gateway(spark: SparkSession, servers: Servers[ThreadedServer]) -> Iterator[RecordingGateway]:
    with recording_gateway(servers.url, "golden") as found:
        # Few attempts: what the client cannot read would be asked for 10,000 times before the test fails.
        tries = {name: "3" for name in found.confs if name.endswith(".max.attempts")}
        for name, value in (found.confs | tries).items():
            spark.conf.set(name, value)
        yield found


@pytest.fixture
def state_stores(spark: SparkSession) -> Iterator[dict[str, str]]:
    """Settings of state stores, for one test. Stores are maintained at times that have nothing to do with
    micro-batches, so here they are not.
    """
    settings = {"maintenanceInterval": "1h"}
    stores = spark._jvm.org.apache.spark.sql.execution.streaming.state.StateStore
    stores.stop()
    yield settings
    for name in settings:
        spark.conf.unset(f"{STATE}.{name}")
    stores.stop()


@pytest.mark.every_pyspark
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_spark_asks_for_what_the_golden_file_has(
    spark: SparkSession,
    gateway: RecordingGateway,
    state_stores: dict[str, str],
    tmp_path: Path,
    kind: QueryKind,
    request: pytest.FixtureRequest,
) -> None:
    state_stores["providerClass"] = f"{STORES}.{kind.provider}"
    state_stores["rocksdb.changelogCheckpointing.enabled"] = str(kind.changelog).lower()
    state_stores["checkpointFormatVersion"] = str(kind.format_version)
    for name, value in state_stores.items():
        spark.conf.set(f"{STATE}.{name}", value)
    root = f"/{tmp_path.name}"
    gateway.requests.clear()
    try:
        for begin, end in ((0, BATCHES), (BATCHES, BATCHES + AFTER_RESTART)):
            run(spark, gateway, kind, tmp_path, range(begin, end))
    except (PySparkException, Py4JError) as error:
        error.add_note(LOOK_AT)
        raise
    found = golden_text(gateway.requests, root)
    if kind.frame is counted:
        counts = {row[0]: row[1] for row in spark.table("counts").collect()}
        assert counts == dict.fromkeys("abc", BATCHES + AFTER_RESTART)
    elif kind.sink != "noop":
        written = spark.read.format(kind.sink).load(f"{gateway.place}{root}/sink")
        assert written.count() == 3 * (BATCHES + AFTER_RESTART)
    check(kind.name, found, rewrite=request.config.getoption("--rewrite"))


def run(
    spark: SparkSession, gateway: RecordingGateway, kind: QueryKind, folder: Path, batches: range
) -> None:
    """Run a query until it has read one new file for each of the micro-batches."""
    at = f"{gateway.place}/{folder.name}"
    source = f"{at}/source" if kind.source_in_tree else str(folder)
    for number in batches:
        if kind.source_in_tree:
            write_in_tree(spark, f"{source}/{number}.txt")
        else:
            (folder / f"{number}.txt").write_text("a\nb\nc\n")
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(source)
    writer = kind.frame(lines).writeStream.format(kind.sink).option("checkpointLocation", f"{at}/checkpoint")
    if kind.frame is counted:
        writer = writer.format("memory").queryName("counts").outputMode("complete")
    if kind.sink != "noop":
        writer = writer.option("path", f"{at}/sink")
    writer.trigger(availableNow=True).start().awaitTermination()


def write_in_tree(spark: SparkSession, url: str) -> tuple[Any, Any]:
    """Write a file of six bytes. Return its file system and its path, of Hadoop."""
    path = spark._jvm.org.apache.hadoop.fs.Path(url)
    files = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    stream = files.create(path)
    stream.write(b"a\nb\nc\n")
    stream.close()
    return files, path


@pytest.fixture(scope="module")
def file_in_tree(spark: SparkSession, gateway: RecordingGateway) -> tuple[Any, Any]:
    write_in_tree(spark, f"{gateway.place}/operations/b")
    return write_in_tree(spark, f"{gateway.place}/operations/f")


@pytest.mark.every_pyspark
@pytest.mark.parametrize("op", REFUSED)
def test_what_is_not_supported_is_refused_as_hadoop_expects_it(
    spark: SparkSession, gateway: RecordingGateway, file_in_tree: tuple[Any, Any], op: str
) -> None:
    gateway.requests.clear()
    with pytest.raises(UnsupportedOperationException, match=f"^op={op} is not supported: a (file|tree) "):
        REFUSED[op](spark._jvm.org.apache.hadoop.fs, *file_in_tree)
    assert (gateway.requests[-1].op, gateway.requests[-1].code) == (op, 400)


@pytest.mark.every_pyspark
def test_what_is_served_is_read_by_the_client(
    spark: SparkSession, gateway: RecordingGateway, file_in_tree: tuple[Any, Any]
) -> None:
    for op, call in SERVED.items():
        gateway.requests.clear()
        assert call(*file_in_tree) == ANSWERS[op], op
        assert [(one.op, one.code) for one in gateway.requests] == [(op, 200)]


def test_spark_reads_and_writes_small_tables(spark: SparkSession, gateway: RecordingGateway) -> None:
    table = spark.range(0, 4, 1, numPartitions=2).selectExpr("id", "id % 2 as part")
    names = {"spark": spark, "place": gateway.place, "table": table}
    for _ in range(2):  # the second time it replaces files
        found = run_example("docs/gateway.md", "tables", names)
        assert sorted(row.id for row in found["day"].collect()) == [0, 1, 2, 3]
        lengths = {row.path.rpartition("/")[2]: row.length for row in found["files"].collect()}
        texts = {path.rpartition("/")[2]: len(text) for path, text in found["texts"].collect()}
        assert sum(lengths.values()) == sum(len(f'{{"id":{n},"part":{n % 2}}}\n') for n in range(4))
        assert texts == lengths
    at = f"{gateway.place}/tables/parts"
    table.write.partitionBy("part").parquet(at)
    table.where("part = 1").write.mode("append").partitionBy("part").parquet(at)
    assert {
        row["part"]: row["count"] for row in spark.read.parquet(at).groupBy("part").count().collect()
    } == {
        0: 2,
        1: 4,
    }


def array_of(hadoop: Any, path: Any) -> Any:
    context = SparkContext._active_spark_context
    assert context is not None
    found = context._gateway.new_array(hadoop.Path, 1)
    found[0] = path
    return found


def names(statuses: Any) -> list[str]:
    found = []
    while statuses.hasNext():
        found.append(statuses.next().getPath().getName())
    return found


def check(kind: str, found: str, *, rewrite: bool) -> None:
    minor = ".".join(version("pyspark").split(".")[:2])
    file = Path(__file__).parent / "golden" / f"webhdfs-pyspark-{minor}.txt"
    sections = sections_of(file.read_text()) if file.exists() else {}
    if rewrite:
        sections[kind] = found
        file.write_text("\n".join(f"{name}\n{text}" for name, text in sorted(sections.items())))
    assert sections.get(kind, "") == found, f"{file.name}, {kind}: {LOOK_AT}"


def sections_of(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for section in text.split("\n\n"):
        name, _, lines = section.partition("\n")
        found[name] = lines.rstrip("\n") + "\n"
    return found
