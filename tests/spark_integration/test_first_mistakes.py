"""The mistakes of a first hour. Each is refused with whose fault it is, the rule, the values and the remedy,
in few lines, and a command prints no traceback.

A library that is missing is in tests/test_wheel.py, Spark Connect in test_connect.py, and executors that
differ from the driver in test_on_executor.py.
"""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any, NamedTuple

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import dos
from dos_server.testing import Servers, ThreadedServer
from spark_integration.on_executor import java_problem
from tests.support.dos_command import dos as command
from tests.support.servers import ServerProcess, hold_port

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

NOBODY = "dos://127.0.0.1:1"
"""A port on which no server listens."""


class FirstHour(NamedTuple):
    """What a newcomer has."""

    spark: SparkSession
    store: str
    folder: Path

    def run(self, graph: Any = None, **options: Any) -> Any:
        options = {"workers": 1, "store": self.store, **options}
        return dos.run(self.spark, self.words() if graph is None else graph, **options)

    def ended(self, graph: Any) -> None:
        self.run(graph, name=graph.name).awaitTermination(200)

    def refused_at_once(self, sink: Any) -> None:
        region = self.run(self.words("unwritable", to=sink), name="unwritable")
        try:
            region.awaitTermination(200)
        finally:
            assert not region.status.resets

    def lines_of(self, source: Any) -> Any:
        graph = dos.Graph("lines")
        graph.source("lines", source).sink("out", dos.LogSink())
        return graph

    def csv(self, text: str, **how: Any) -> Any:
        (self.folder / "a.csv").write_text(text)
        return self.lines_of(dos.FileSource(self.folder / "a.csv", **{"format": "csv", **how}))

    def words(self, name: str = "wordcount", **how: Any) -> Any:
        (self.folder / "a.txt").write_text("to be\n")
        how = {"function": lambda row: row["line"].split(), "schema": "word string", "key": "word", **how}
        graph = dos.Graph(name)
        lines = graph.source("lines", dos.FileSource(self.folder / how.get("file", "a.txt")))
        words = lines.flat_map("words", how["function"], schema=how["schema"])
        counts = words.key_by("by_word", how["key"]).count("counts")
        if how.get("sink", True):
            counts.sink("out", how.get("to", dos.LogSink()))
        return graph


class Mistake(NamedTuple):
    """A call of a program, the class of its error, and words of its text in this order."""

    call: Callable[[FirstHour], Any]
    error: str
    words: tuple[str, ...]


def reached_by_a_second_run(here: FirstHour) -> Any:
    """Two drivers use one name: the first is fenced off, and told so."""
    graph = dos.Graph("twice")
    graph.source("ticks", dos.RateSource(10)).sink("out", dos.LogSink())
    first = here.run(graph)
    first.checkpoint(200)
    second = here.run(graph)
    try:
        first.awaitTermination(200)
    finally:
        second.stop()


def with_bad_operator(here: FirstHour) -> Any:
    graph = here.words()
    graph.stream("words").filter("no the", bool).sink("more", dos.LogSink())
    return graph


def rows(here: FirstHour) -> Any:
    return here.spark.createDataFrame([(1, "to")], "n bigint, word string")


def at_another_program(here: FirstHour) -> Any:
    """The port of a web server, which refuses what is no request."""

    class Refusal(StreamRequestHandler):
        def handle(self) -> None:
            self.connection.recv(1)
            self.wfile.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with ThreadingTCPServer(("127.0.0.1", 0), Refusal) as other:
        thread = threading.Thread(target=other.serve_forever, daemon=True)
        thread.start()
        try:
            here.run(store=f"dos://127.0.0.1:{other.server_address[1]}")
        finally:
            other.shutdown()
            thread.join()


def with_conf(here: FirstHour) -> Any:
    here.spark.conf.set("spark.dos.workers", "two")
    try:
        dos.frame(rows(here), store=here.store).groupBy("word").count().show()
    finally:
        here.spark.conf.unset("spark.dos.workers")


PROGRAMS: dict[str, Mistake] = {
    "a port of another program": Mistake(
        at_another_program,
        "StoreNotUsableError",
        ("no server of dos://127.0.0.1:", "that is an HTTP response, not DOS", "correct the URL"),
    ),
    "a path for a source": Mistake(
        lambda here: dos.Graph("a").source("lines", "logs/*.txt"),  # type: ignore[arg-type]
        "TypeError",
        ("source 'lines' takes a source, such as FileSource(", "got str 'logs/*.txt'"),
    ),
    "a path for a sink": Mistake(
        lambda here: here.words(to="out"), "TypeError", ("sink 'out' takes a sink", "got str 'out'")
    ),
    "an input that does not exist": Mistake(
        lambda here: here.ended(here.lines_of(dos.FileSource(here.folder / "c.txt"))),
        "RegionFailedError",
        ("operator 'lines' failed", "c.txt' cannot be opened: No such file", "correct the path"),
    ),
    "an input with file://": Mistake(
        lambda here: dos.FileSource("file:///tmp/a.txt"), "SchemaError", ("a path without file://",)
    ),
    "a value that is not of its type": Mistake(
        lambda here: here.ended(here.csv("id,b\nx,1\n", schema="id bigint")),
        "RegionFailedError",
        ("a.csv', line 2, byte 5: column 'id' is bigint: invalid value 'x'", "repair the record"),
    ),
    "a column that the file does not have": Mistake(
        lambda here: here.ended(here.csv("Id;b\n1;1\n", schema="id bigint")),
        "RegionFailedError",
        ("a.csv': its header does not have the column 'id', but 'Id;b'", "delimiter="),
    ),
    "an array of JSON": Mistake(
        lambda here: here.csv('[\n{"a":1}\n]\n', format="json"),
        "SchemaError",
        ("no schema can be inferred", "its line b'[' is not an object: JSON has one in each line"),
    ),
    "a row with another key": Mistake(
        lambda here: here.ended(here.words("key", function=lambda row: row["lines"].split())),
        "RegionFailedError",
        ("KeyError: 'lines'", "the columns of the row are 'line' (did you mean 'line'?)"),
    ),
    "a row that is taken for an object": Mistake(
        lambda here: here.ended(here.words("attribute", function=lambda row: row.line.split())),
        "RegionFailedError",
        ("no attribute 'line'", "a row is a dict of its columns 'line': write row['line']"),
    ),
    "a partition that a path does not have": Mistake(
        lambda here: here.csv("id\n1\n", partition_by="day"),
        "SchemaError",
        ("a.csv' has no place in the partitions", "no directory day=VALUE", "move the file"),
    ),
    "a host that does not exist": Mistake(
        lambda here: here.run(store="dos://no-such-host.invalid"),
        "StoreNotUsableError",
        ("no-such-host.invalid:9999", "correct the URL"),
    ),
    "a name with a slash": Mistake(
        lambda here: here.run(name="shop/words"),
        "BadNameError",
        ("'shop/words'", "use 1 to 128 of A-Z a-z 0-9 . _ -"),
    ),
    "no session": Mistake(
        lambda here: dos.run(None, here.words(), store=here.store),  # type: ignore[arg-type]
        "TypeError",
        ("the first argument is a SparkSession, got NoneType", "SparkSession.builder.getOrCreate()"),
    ),
    "a folder that cannot be written": Mistake(
        lambda here: here.refused_at_once(dos.FileSink("/proc/no-folder", local=True)),
        "RegionFailedError",
        (
            "'out' failed in worker 0 at its start",
            "output '/proc/no-folder/",
            "correct the place or its permissions",
        ),
    ),
    "a folder of Parquet files below a file": Mistake(
        lambda here: here.refused_at_once(dos.ParquetSink(here.folder / "a.txt" / "out", local=True)),
        "RegionFailedError",
        ("'out' failed in worker 0 at its start", "Not a directory", "correct the place or its permissions"),
    ),
    "a database in a folder that does not exist": Mistake(
        lambda here: here.refused_at_once(dos.SqlSink(f"sqlite:///{here.folder}/none/d.db", "counts")),
        "RegionFailedError",
        ("'out' failed in worker 0 at its start", "unable to open database file", "correct the place or its"),
    ),
    "a database by key in a folder that does not exist": Mistake(
        lambda here: here.refused_at_once(
            dos.SqlSink(f"sqlite:///{here.folder}/none/d.db", "counts", key="word")
        ),
        "RegionFailedError",
        ("'out' failed in worker 0 at its start", "unable to open database file"),
    ),
    "a store of a frame that is no URL": Mistake(
        lambda here: dos.frame(rows(here), store=1),  # type: ignore[arg-type]
        "BadUrlError",
        ("a URL must be text, got 1", "write it as dos://host"),
    ),
    "a name of a frame that is none": Mistake(
        lambda here: dos.frame(rows(here), name=1),
        "BadNameError",
        ("a name must be a str, got 1",),  # type: ignore[arg-type]
    ),
    "workers of a frame in words": Mistake(
        lambda here: dos.frame(rows(here), workers="two"),  # type: ignore[arg-type]
        "TypeError",
        ("workers must be a whole number, got 'two'",),
    ),
    "workers of a session in words": Mistake(
        with_conf, "TypeError", ("the conf spark.dos.workers must be a whole number, got 'two'",)
    ),
    "an option of a frame that does not exist": Mistake(
        lambda here: dos.frame(rows(here), stor=here.store), "TypeError", ("'stor'", "see RegionOptions")
    ),
    "no server runs": Mistake(
        lambda here: here.run(store=NOBODY),
        "StoreNotUsableError",
        ("no server of dos://127.0.0.1:1 answers", "Connection refused", "start them, or correct the URL"),
    ),
    "a URL of another kind": Mistake(
        lambda here: here.run(store="http://127.0.0.1:9999"),
        "BadUrlError",
        ("must begin with dos://", "'http://127.0.0.1:9999'", "write it as dos://host[:port]"),
    ),
    "a URL with the region in it": Mistake(
        lambda here: here.run(store="dos://127.0.0.1:1/wordcount"),
        "BadUrlError",
        ("names servers only", "'wordcount'", "write it as dos://127.0.0.1:1;", "name="),
    ),
    "a name with a space": Mistake(
        lambda here: here.run(name="word count"),
        "BadNameError",
        ("must match", "'word count'", "A-Z a-z 0-9 . _ -"),
    ),
    "an operator's name with a space": Mistake(
        lambda here: here.run(with_bad_operator(here)),
        "GraphError",
        ("operator name 'no the'", "rename it"),
    ),
    "a graph without a sink": Mistake(
        lambda here: here.run(here.words(sink=False)),
        "GraphError",
        ("graph 'wordcount' cannot run", "'counts' is not used", "add a sink or remove it"),
    ),
    "an empty graph": Mistake(
        lambda here: here.run(dos.Graph("empty")),
        "GraphError",
        ("at least one source and one sink", "begin with graph.source("),
    ),
    "a key that is no column": Mistake(
        lambda here: here.run(here.words(key="words")),
        "GraphError",
        ("key column 'words' does not exist", "the columns are word"),
    ),
    "a type that does not exist": Mistake(
        lambda here: here.words(schema="word str"),
        "SchemaError",
        ("'str' is no type", "known: string", "write it like"),
    ),
    "a file that does not exist": Mistake(
        lambda here: here.words(file="b*.txt"), "SchemaError", ("no file matches", "b*.txt'")
    ),
    "workers in words": Mistake(
        lambda here: here.run(workers="two"), "TypeError", ("workers must be a whole number, got 'two'",)
    ),
    "seconds with a unit": Mistake(
        lambda here: here.run(checkpoint_interval="1s"),
        "TypeError",
        ("checkpoint_interval must be a number of seconds, got '1s'",),
    ),
    "an option that does not exist": Mistake(
        lambda here: here.run(worker=1), "TypeError", ("'worker'", "see RegionOptions")
    ),
    "more workers than slots": Mistake(
        lambda here: here.run(workers=50),
        "NotEnoughSlotsError",
        ("50 workers hold 50 slots", "use local[", "or fewer workers"),
    ),
    "a session and a graph exchanged": Mistake(
        lambda here: dos.run(here.words(), here.spark, store=here.store),  # type: ignore[arg-type]
        "TypeError",
        ("the first argument is a SparkSession, got Graph", "SparkSession.builder.getOrCreate()"),
    ),
    "a stream for a graph": Mistake(
        lambda here: here.run(here.words().stream("words")), "TypeError", ("is a Graph, got Stream",)
    ),
    "a function for a graph": Mistake(
        lambda here: dos.through(rows(here), lambda df: df, store=here.store),  # type: ignore[arg-type]
        "TypeError",
        ("second argument of through is a Graph, got function",),
    ),
    "rows that are no DataFrame": Mistake(
        lambda here: dos.through({"lines": [1, 2]}, here.words()),  # type: ignore[dict-item]
        "TypeError",
        ("is a DataFrame of Spark", "got list for the input 'lines'"),
    ),
    "a list for a frame": Mistake(
        lambda here: dos.frame([1, 2]),  # type: ignore[arg-type]
        "TypeError",
        ("is a DataFrame of Spark, got list",),
    ),
    "a transform that leaves the frame": Mistake(
        lambda here: dos.frame(rows(here), store=here.store).transform(lambda _: rows(here)),
        "FrameError",
        ("transform returned DataFrame, not a frame", "return what it makes of its argument"),
    ),
    "a function that fails": Mistake(
        lambda here: here.ended(here.words("fails", function=lambda row: row["text"].split())),
        "RegionFailedError",
        ("operator 'words' failed", "a.txt', byte 0", "KeyError: 'text'"),
    ),
    "rows that do not fit the schema": Mistake(
        lambda here: here.ended(here.words("unfit", function=lambda _: [1])),
        "RegionFailedError",
        ("operator 'words' failed", "column 'word' is string", "given int 1", "convert it with str()"),
    ),
    "a name that a running region has": Mistake(
        reached_by_a_second_run,
        "RegionFencedError",
        ("a newer driver took over region 'twice'", "use the newer driver's handle"),
    ),
    "an output that does not exist": Mistake(
        lambda here: dos.collect_output(here.store, "nothing", "out"),
        "NoOutputError",
        ("region 'nothing' has no output of a sink 'out'", "`dos ls`"),
    ),
}


@pytest.fixture
def here(spark: SparkSession, servers: Servers[ThreadedServer], tmp_path: Path) -> FirstHour:
    return FirstHour(spark, servers.url, tmp_path)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_mistake_in_a_program_is_refused_with_its_remedy(
    here: FirstHour, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dos_client.store.open_timeout_s", 1.5)
    mistake = PROGRAMS[name]
    with pytest.raises(Exception) as refused:
        mistake.call(here)
    text = str(refused.value)
    assert type(refused.value).__name__ == mistake.error, text
    at = 0
    for words in mistake.words:
        assert words in text[at:], f"{words!r} is missing, or earlier, in: {text}"
        at = text.index(words, at) + len(words)
    assert len(text) < 600
    assert "Traceback" not in text
    assert text.count("\n") < 3


READS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "a region that does not exist": ("STORE/nothing", "out", ("no region 'nothing'", "check the name")),
    "no output": ("STORE/words", "", ("is required, not none", '.option("output", "counts")')),
    "no server": (
        f"{NOBODY}/wordcount",
        "out",
        ("no server of dos://127.0.0.1:1 answers", "correct the URL"),
    ),
}
"""Mistake of `spark.read` -> URL, output, words of a line at the end. Spark puts its traceback before it."""


@pytest.mark.parametrize("name", READS)
def test_an_error_of_spark_read_ends_with_the_remedy(
    here: FirstHour, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dos_client.store.open_timeout_s", 1.5)
    url, output, words = READS[name]
    dos.register(here.spark)
    reader = here.spark.read.format("dos")
    if output:
        reader = reader.option("output", output)
    with pytest.raises(AnalysisException) as refused:
        reader.load(url.replace("STORE", here.store))
    lines = [one for one in str(refused.value).splitlines() if "SQLSTATE" not in one]
    end = lines[-1] if output else lines[-2]  # whether a source reads or writes is not known without options
    assert all(one in end for one in words), str(refused.value)
    assert len(lines) < 12


def test_a_session_that_ran_a_region_reads_it_without_a_call_of_register(here: FirstHour) -> None:
    session = here.spark.newSession()
    path = f"{here.store}/read_at_once"
    with pytest.raises(Py4JJavaError, match="DATA_SOURCE_NOT_FOUND"):  # Spark's: nothing of ours was called
        session.read.format("dos").option("output", "out").load(path)
    here._replace(spark=session).ended(here.words("read_at_once"))
    counts = session.read.format("dos").option("output", "out").load(path)
    assert sorted(row["word"] for row in counts.collect()) == ["be", "to"]
    dos.register(session)  # has no effect


def test_a_machine_without_java_is_told_so_before_pyspark_gives_up(tmp_path: Path) -> None:
    """PySpark raises JAVA_GATEWAY_EXITED, without cause and remedy."""
    for variables, why in (
        ({}, "there is no java on the PATH, and JAVA_HOME is not set"),
        ({"JAVA_HOME": "/no/java"}, "JAVA_HOME is /no/java, which has no bin/java"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", "import dos"],
            env={"PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path), **variables},
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        )
        assert done.stderr.startswith(why), done.stderr
        assert "Install Java 17 or newer" in done.stderr
    assert java_problem({"PATH": str(tmp_path), "SPARK_REMOTE": "sc://host"}) == ""
    assert java_problem(os.environ) == ""


@pytest.mark.parametrize(
    ("version", "problem"),
    [("11.0.2", "is Java 11"), ("1.8.0_292", "is Java 8"), ("17.0.15", ""), ("21", ""), (None, "")],
    ids=["11", "8", "17", "21", "not told"],
)
def test_a_java_that_is_too_old_is_named(version: str | None, problem: str, tmp_path: Path) -> None:
    """Spark's class files have another version, and PySpark tells JAVA_GATEWAY_EXITED alone."""
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.touch(mode=0o755)
    if version is not None:
        (tmp_path / "jdk" / "release").write_text(f'IMPLEMENTOR="Debian"\nJAVA_VERSION="{version}"\n')
    for variables in ({"JAVA_HOME": str(tmp_path / "jdk")}, {"PATH": str(java.parent)}):
        text = java_problem(variables)
        assert text.startswith(f"{java} {problem}: a Spark session" if problem else "")
        assert ("Install Java 17 or newer" in text) == bool(problem)
        assert bool(text) == bool(problem)


def test_a_store_that_does_not_answer_is_named_before_the_end_of_the_wait(
    here: FirstHour, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dos_client.store.open_timeout_s", 5)  # a pause may be 1.6 s
    with pytest.raises(dos.StoreNotReadyError):
        dos.collect_output(NOBODY, "wordcount", "out")
    (told,) = [one.getMessage() for one in caplog.records if "answers so far" in one.getMessage()]
    assert told.startswith("no server of dos://127.0.0.1:1 answers so far, trying for 5 s: cannot connect")


COMMANDS: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "no server runs": (f"ls {NOBODY}", 3, ("Connection refused", "start a server there, or correct the URL")),
    "no server of a region": (f"region status {NOBODY} wordcount", 3, ("start them, or correct the URL",)),
    "no dos:// in front": ("ls localhost", 2, ("must begin with dos://", "'localhost'", "write it as")),
    "no store": ("region status wordcount", 2, ("no store is named", "dos context use")),
    "a name with a space": ("region status STORE word%count", 2, ("'word%count'", "A-Z a-z 0-9")),
    "a region that does not exist": (
        "region status STORE nothing",
        1,
        ("has no region 'nothing'", "check the name"),
    ),
    "an object that does not exist": ("get STORE/a/b", 1, ("no object b in a", "list the directory")),
    "a command that does not exist": ("statu", 2, ("No such command 'statu'. Did you mean 'stat'",)),
    "no TLS": ("ls TLS_SERVER", 2, ("accepts TLS only", "set DOS_TLS to the client directory")),
    "no TLS of a store": ("store status TLS_SERVER", 3, ("set DOS_TLS",)),
    "TLS with a server that has none": (
        "DOS_TLS=CERTIFICATES/client ls STORE_SERVER",
        3,
        ("sends plain text", "unset DOS_TLS"),
    ),
    "no token": (
        "ls TOKEN_SERVER",
        2,
        ("the token is missing, wrong, expired or revoked", "send a token that is valid"),
    ),
    "an old token": (
        "region status TOKEN_SERVER words --token-file OLD_TOKEN",
        3,
        ("reject the token", "use the token that the servers were started with"),
    ),
    "no directory": ("serve --listen 127.0.0.1:0", 2, ("Missing option '--data'",)),
    "a port that is in use": (
        "serve --data DATA --listen TAKEN",
        2,
        ("another program does", "--listen with another port"),
    ),
    "no host": ("serve --data DATA --listen 9999", 2, ("--listen takes HOST:PORT", "got '9999'")),
}
"""Mistake -> the command, its exit code, words of what it prints."""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Word of a command -> a server with TLS, one with a token, and what they were made with."""
    place = tmp_path_factory.mktemp("guarded")
    certificates, token, old = place / "tls", place / "token", place / "old"
    assert command("tls", "init", certificates, "127.0.0.1").returncode == 0
    for path in (token, old):
        path.write_text(f"{path.name} Zdjf83jfKJHD8fjk3hsDFq\n")
        path.chmod(0o600)
    with ExitStack() as stack:
        tls_server, token_server = (
            stack.enter_context(ServerProcess(place / name, options=options))
            for name, options in (
                ("one", ("--tls", str(certificates / "servers" / "127.0.0.1"))),
                ("other", ("--token-file", str(token))),
            )
        )
        yield {
            "TLS_SERVER": f"dos://{tls_server.location}",
            "TOKEN_SERVER": f"dos://{token_server.location}",
            "CERTIFICATES": str(certificates),
            "OLD_TOKEN": str(old),
        }


@pytest.mark.parametrize("name", COMMANDS)
def test_a_mistake_in_a_command_is_told_without_a_traceback(
    here: FirstHour, guarded: dict[str, str], name: str
) -> None:
    line, code, words = COMMANDS[name]
    with hold_port(0) as held:
        taken = f"127.0.0.1:{held.getsockname()[1]}"
        held.listen()
        places = {
            **guarded,
            "STORE_SERVER": here.store.partition(",")[0],
            "STORE": here.store,
            "DATA": str(here.folder / "data"),
            "TAKEN": taken,
        }
        for place, value in places.items():
            line = line.replace(place, value)
        variables = [one for one in line.split() if re.match("[A-Z_]+=", one)]
        done = subprocess.run(
            [Path(sys.executable).with_name("dos"), *line.split()[len(variables) :]],
            cwd=here.folder,
            env={
                "HOME": str(here.folder),
                "COLUMNS": "200",
                **{one.partition("=")[0]: one.partition("=")[2] for one in variables},
            },
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    assert done.returncode == code, done.stderr
    for one in words:
        assert one in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) < 8
