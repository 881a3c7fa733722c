"""The wheel, installed as users install it: into an empty environment, first the core, then the extras.

The environment is one for all tests of this file, which run in order. pip takes what the wheel requires from
the index that this machine is configured for, at the versions of constraints.txt.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from dos_chaos.servers import hold_port
from tests.support.examples import commands, example
from tests.support.needs import lacking
from tests.test_architecture import MAY_IMPORT
from tests.test_repository import ROOT

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]


class Environment:
    """An environment with the wheel and no library but those that were asked for."""

    def __init__(self, place: Path, wheel: Path) -> None:
        self.place = place
        self.wheel = wheel
        self.python = place / "bin" / "python"
        self.variables = {
            name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")
        }
        call([sys.executable, "-m", "venv", "--without-pip", place])

    def install(self, extras: str = "") -> None:
        """Install the wheel with these extras, as `[dataflow]`."""
        pip = [sys.executable, "-m", "pip", "--python", self.python, "install", "--quiet"]
        # what is imported is compiled then: a small part of it
        call([*pip, "--no-compile", "--constraint", ROOT / "constraints.txt", f"{self.wheel}{extras}"])

    def run(self, *words: object, **variables: str) -> "subprocess.CompletedProcess[str]":
        """Run a program of the environment, far from the sources."""
        program, *arguments = map(str, words)
        return subprocess.run(
            [self.place / "bin" / program, *arguments],
            cwd=self.place,
            env={**self.variables, "COLUMNS": "100", **variables},
            capture_output=True,
            text=True,
            timeout=120,
        )

    def server(self, data: Path, port: int) -> "subprocess.Popen[str]":
        """Start a server, and return when it listens."""
        command = [self.place / "bin" / "dos", "serve", "--data", data, "--listen", f"127.0.0.1:{port}"]
        process = subprocess.Popen(
            [*command, "--json"], cwd=self.place, env=self.variables, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["address"] == f"127.0.0.1:{port}"
        return process


def call(command: list[object]) -> None:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr or done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """Made from a wheel that is built of a copy, so that nothing is left beside the sources."""
    if importlib.util.find_spec("pip") is None:
        lacking("building a wheel needs pip: python -m ensurepip")
    place = tmp_path_factory.mktemp("wheel")
    try:
        sources = place / "sources"
        sources.mkdir()
        for package in MAY_IMPORT:
            shutil.copytree(ROOT / package, sources / package, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, sources)
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
        call([*pip, "--wheel-dir", place, sources])
        (wheel,) = place.glob("*.whl")
        made = Environment(place / "environment", wheel)
        made.install()
        yield made
    finally:
        shutil.rmtree(place)  # hundreds of megabytes, which pytest would keep for three runs


@pytest.fixture
def server(environment: Environment, tmp_path: Path) -> Iterator[str]:
    """The URL of a server that runs from the wheel."""
    with hold_port(0) as held:
        port = held.getsockname()[1]
        process = environment.server(tmp_path / "data", port)
        try:
            yield f"dos://127.0.0.1:{port}"
        finally:
            process.terminate()
            assert process.wait(30) == 0
            assert process.stdout is not None
            process.stdout.close()


EVERY_HELP = """
import contextlib, importlib.util, io, json, sys
from dos_cli.main import COMMANDS, app, load_command

def below(words, command):
    yield words
    for name, inner in getattr(command, "commands", {}).items():
        yield from below([*words, name], inner)

shown = {}
for name in COMMANDS:
    for words in below([name], load_command(name)):
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            try:
                app([*words, "--help"], prog_name="dos")
            except SystemExit as end:
                shown[" ".join(words)] = [end.code, output.getvalue()]
libraries = ("pyarrow", "numpy", "pandas", "pyspark", "boto3", "sqlalchemy", "matplotlib", "cloudpickle")
print(json.dumps({"shown": shown, "found": [one for one in libraries if importlib.util.find_spec(one)]}))
"""


def test_every_command_explains_itself_in_the_core_environment(environment: Environment) -> None:
    done = environment.run("python", "-c", EVERY_HELP)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["found"] == []
    assert len(result["shown"]) > 60
    for words, (code, text) in result["shown"].items():
        assert code == 0, words
        assert f"dos {words}" in text
    assert environment.run("dos", "--version").stdout == f"dos {environment.wheel.name.split('-')[1]}\n"
    assert "In another terminal" in environment.run("dos", "--help").stdout


def test_a_server_and_a_client_run_in_the_core_environment(environment: Environment, server: str) -> None:
    (text := environment.place / "greeting").write_text("hello\n")
    done = environment.run("dos", "append", f"{server}/notes/greetings", text)
    assert done.returncode == 0, done.stderr
    assert environment.run("dos", "get", f"{server}/notes/greetings").stdout == "hello\n"


def test_a_command_that_needs_an_extra_says_which(environment: Environment) -> None:
    for words, extra in (
        ("input serve dos://127.0.0.1:1 shop lines", "dataflow"),
        ("journal verify s3://bucket/prefix/ledger/files", "s3"),
    ):
        done = environment.run("dos", *words.split())
        assert done.returncode == 2
        assert done.stderr.endswith(f"(pip install 'dos-journal[{extra}]')\n"), done.stderr


def test_a_bucket_is_asked_for_with_the_extra_s3(environment: Environment) -> None:
    environment.install("[s3]")
    variables = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
    url = "s3://bucket/prefix/ledger/files?endpoint=http://127.0.0.1:1"
    done = environment.run("dos", "journal", "verify", url, **variables)
    assert done.returncode == 3, done.stderr  # the service cannot be reached: boto3 has tried


def test_the_page_is_served_with_the_extra_ui(environment: Environment, server: str) -> None:
    assert environment.run("dos", "store", "init", server).returncode == 0
    missing = environment.run("dos", "ui", server)
    assert (missing.returncode, "pip install 'dos-journal[ui]'" in missing.stderr) == (2, True)
    environment.install("[ui]")
    process = subprocess.Popen(
        [environment.place / "bin" / "dos", "ui", server, "--listen", "127.0.0.1:0"],
        cwd=environment.place,
        env=environment.variables,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        address, _, key = process.stdout.readline().split()[-1].partition("/?key=")
        for file in ("index.html", "app.js", "vendor/chart.js", "style.css"):
            with urllib.request.urlopen(f"{address}/page/{file}", timeout=60) as answer:
                assert answer.status == 200
        asked = urllib.request.Request(f"{address}/api/store", headers={"Authorization": f"Bearer {key}"})
        with urllib.request.urlopen(asked, timeout=60) as answer:
            assert json.loads(answer.read())["usable"] is True
    finally:
        process.terminate()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()


WORD_COUNT = """
import sys
import dos

lines = ["tea rice tea", "rice tea"]
graph = dos.Graph("wordcount")
rows = lambda split, at: ((n + 1, {"line": lines[n]}) for n in range(at, len(lines)))
source = graph.source("lines", dos.IteratorSource(rows, "line string"))
words = source.flat_map("words", lambda row: row["line"].split(), schema="word string")
words.key_by("by_word", "word").count("counts").sink("out", dos.FileSink("out"))
if __name__ == "__main__":
    dos.run_local(graph, workers=1, store=sys.argv[1], standby=0).awaitTermination()
"""


def test_words_are_counted_with_the_extra_dataflow(environment: Environment, server: str) -> None:
    environment.install("[dataflow]")
    (environment.place / "words.py").write_text(WORD_COUNT)
    assert environment.run("dos", "store", "init", server).returncode == 0
    done = environment.run("python", "words.py", server)
    assert done.returncode == 0, done.stderr
    rows = [
        line for part in (environment.place / "out").glob("part-*") for line in part.read_text().splitlines()
    ]
    assert {"tea\t3", "rice\t2"} <= set(rows)


def test_the_first_commands_and_the_ten_lines_of_the_readme_run_as_they_stand(
    environment: Environment, tmp_path: Path
) -> None:
    """All lines but the port, which is a free one, and the environment, which is there. PySpark is linked
    from the environment of the tests: its installation takes longer than all else here.
    """
    make, install, serve = commands("README.md")["install"]
    assert make == "python3 -m venv first && . first/bin/activate"
    wheel, bracket, extras = install.removeprefix("pip install '").removesuffix("'").partition("[")
    assert wheel == environment.wheel.name
    ours = Path(importlib.util.find_spec("pyspark").origin).parents[1]  # type: ignore[union-attr, arg-type]
    (theirs,) = environment.place.glob("lib/python*/site-packages")
    for found in (*ours.glob("pyspark*"), *ours.glob("py4j*")):
        (theirs / found.name).symlink_to(found)
    environment.install(bracket + extras)
    assert serve == "dos serve --data dos-data &"
    with hold_port(0) as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
        server = environment.server(tmp_path / "dos-data", held.getsockname()[1])
        try:
            program = example("README.md", "wordcount").replace("127.0.0.1", address)
            (environment.place / "first.py").write_text(program)
            spark = {"PYSPARK_PYTHON": str(environment.python), "SPARK_LOCAL_IP": "127.0.0.1"}
            done = environment.run("python", "first.py", **spark)
            assert done.returncode == 0, done.stderr
            rows = [line.replace(" ", "") for line in done.stdout.splitlines()]
            assert sorted(rows[3:-2]) == ["|be|2|", "|not|1|", "|or|1|", "|to|2|"], done.stdout
            shown = {}
            for line in commands("README.md")["look"]:
                done = environment.run(*line.replace("127.0.0.1", address).split())
                assert done.returncode == 0, done.stderr
                shown[line.partition(" dos://")[0]] = done.stdout
            assert "FINISHED (all input is processed)" in shown["dos region status"]
            assert "final" in shown["dos checkpoint ls"]
            assert "wordcount.w0001\n" in shown["dos ls"]
        finally:
            server.terminate()
            assert server.wait(30) == 0
            assert server.stdout is not None
            server.stdout.close()
    assert (theirs / "spark_integration" / "frame_methods.pyi").exists()
