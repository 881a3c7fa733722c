"""The mistakes of a first hour. Each is refused with whose fault it is, the rule, the values and the remedy,
in few lines, and a command prints no traceback.

PySpark's own errors are not here: it refuses a missing Java when the session is made. A library that is
missing is in tests/test_wheel.py, and Spark Connect in test_connect.py.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

import dos
from dos_server.testing import Servers, ThreadedServer
from tests.support.servers import hold_port

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

    def words(self, name: str = "wordcount", **how: Any) -> Any:
        (self.folder / "a.txt").write_text("to be\n")
        how = {"function": lambda row: row["line"].split(), "schema": "word string", "key": "word", **how}
        graph = dos.Graph(name)
        lines = graph.source("lines", dos.FileSource(self.folder / how.get("file", "a.txt")))
        words = lines.flat_map("words", how["function"], schema=how["schema"])
        counts = words.key_by("by_word", how["key"]).count("counts")
        if how.get("sink", True):
            counts.sink("out", dos.LogSink())
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


PROGRAMS: dict[str, Mistake] = {
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
def test_a_mistake_in_a_program_is_refused_with_its_remedy(here: FirstHour, name: str) -> None:
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
    "a command that does not exist": ("statu", 2, ("No such command 'statu'",)),
    "no directory": ("serve --listen 127.0.0.1:0", 2, ("Missing option '--data'",)),
    "a port that is in use": (
        "serve --data DATA --listen TAKEN",
        2,
        ("another program does", "--listen with another port"),
    ),
    "no host": ("serve --data DATA --listen 9999", 2, ("--listen takes HOST:PORT", "got '9999'")),
}
"""Mistake -> the command, its exit code, words of what it prints."""


@pytest.mark.parametrize("name", COMMANDS)
def test_a_mistake_in_a_command_is_told_without_a_traceback(here: FirstHour, name: str) -> None:
    line, code, words = COMMANDS[name]
    with hold_port(0) as held:
        taken = f"127.0.0.1:{held.getsockname()[1]}"
        held.listen()
        places = {"STORE": here.store, "DATA": str(here.folder / "data"), "TAKEN": taken}
        for place, value in places.items():
            line = line.replace(place, value)
        done = subprocess.run(
            [Path(sys.executable).with_name("dos"), *line.split()],
            cwd=here.folder,
            env={"HOME": str(here.folder), "COLUMNS": "200"},
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
