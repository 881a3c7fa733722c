"""Shared code of `./run bench`: the amount to measure, rows, sections of pages, and running a benchmark of
this directory.
"""

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGE = DOCS / "benchmarks.md"
sys.path.insert(0, str(ROOT))
"""`examples` and `tests` are not installed."""
TABLE = re.compile(r"^\|.*\n\|[-|]+\|\n(?:\|.*\n?)*", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Effort:
    """The amount to measure in each benchmark."""

    pairs: int
    stream_mb: int
    server_scale: float
    growth_gb: float
    passes: int
    baseline_s: float
    large_object_mb: int
    chain_mb: int
    checkpoint_scale: float
    recoveries: int
    latency_s: float
    trace_days: int
    managed_h: float


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table. `beside`: the figures that it is compared with; `aim`: the target."""

    what: str
    figure: str
    beside: str
    aim: str


def table_lines(rows: Iterable[Row]) -> str:
    """Return the lines of a table with these rows."""
    return "\n".join(f"| {row.what} | {row.figure} | {row.beside} | {row.aim} |" for row in rows)


MEASURED = """\
Measured on {date} with no other benchmark running, {rounds}. The load average at the end was {load:.1f},
including the benchmark itself."""


@dataclass(frozen=True, slots=True)
class Section:
    """The section of `./run bench NAME`, between two comments of docs/benchmarks.md or of another page.

    Text that a person adds after a third comment is kept when the figures are updated. A section of one table
    has a title, a text above the table, and the names of its columns. The page has the text; tables are CSV
    files in docs/benchmarks, from which the site of the documentation makes tables.
    """

    name: str
    title: str = ""
    text: str = MEASURED
    columns: tuple[str, str, str, str] = ("what", "measured", "compared with", "aim")
    page: Path = PAGE

    @property
    def begin(self) -> str:
        """The comment at the beginning of the section."""
        return f"<!-- {self.name}: written by ./run bench {self.name} -->"

    @property
    def end(self) -> str:
        """The comment at the end of the section."""
        return f"<!-- {self.name}: end -->"

    @property
    def by_hand(self) -> str:
        """The comment after which text by a person follows."""
        return f"<!-- {self.name}: by hand -->"

    def found_in(self, page: str) -> str:
        """Return the section of a page, including its comments; an empty section if the page has none."""
        begin, end = page.find(self.begin), page.find(self.end)
        return page[begin : end + len(self.end)] if 0 <= begin < end else f"{self.begin}\n{self.end}"

    def put_into(self, page: str, text: str) -> str:
        """Return the page with this text, from comment to comment, as its section. Text by a person is kept.

        Raises ValueError if the page has no such section.
        """
        before = self.found_in(page)
        if before not in page:
            raise ValueError(
                f"{self.page.relative_to(DOCS.parent)} has no line {self.begin!r}: run ./run bench once"
            )
        _, sign, written = before.partition(self.by_hand)
        if sign:
            text = f"{text.removesuffix(self.end).rstrip()}\n\n{sign}{written}"
        return page.replace(before, text)

    def filled(self, text: str, rounds: int, **parts: Any) -> str:
        """Fill in the comments, the date, the number of rounds and the load average that the text names.

        `parts`: further values that the text names.
        """
        return text.format(
            begin=self.begin,
            end=self.end,
            date=time.strftime("%Y-%m-%d"),
            rounds=rounds_text(rounds),
            load=os.getloadavg()[1],
            **parts,
        )

    def table(self, rows: Iterable[Row], rounds: int) -> str:
        """Return the text of a section of one table."""
        head = f"| {' | '.join(self.columns)} |\n|---|---|---|---|\n"
        text = f"{{begin}}\n## {self.title}\n\n{self.text}\n\n{head}{{rows}}\n{{end}}"
        return self.filled(text, rounds, rows=table_lines(rows), kills=rounds)

    def apart(self, text: str) -> tuple[str, dict[Path, str]]:
        """Return the text of a section as a page has it, with links instead of tables, and their files."""
        files = dict[Path, str]()

        def linked(table: re.Match[str]) -> str:
            path = DOCS / "benchmarks" / f"{self.name}{f'-{len(files) + 1}' if files else ''}.csv"
            files[path] = csv_of(table[0])
            link = path.relative_to(self.page.parent).as_posix()
            return f"Figures: [{path.name}]({link})\n\n<!-- generated: docs/benchmarks/{path.name} -->\n"

        return TABLE.sub(linked, text), files

    def write(self, text: str) -> None:
        """Update the section in its page, and its files. Raises ValueError if the page has none."""
        text, files = self.apart(text)
        self.page.write_text(self.put_into(self.page.read_text(), text))
        for path, figures in files.items():
            path.write_text(figures)


def csv_of(table: str) -> str:
    """Return the CSV of a table in Markdown."""
    head, _, *rows = table.splitlines()
    written = io.StringIO()
    cells = ([cell.strip() for cell in line[1:-1].split(" | ")] for line in (head, *rows))
    csv.writer(written, lineterminator="\n").writerows(cells)
    return written.getvalue()


def rounds_text(rounds: int) -> str:
    """Return how often each figure was measured."""
    return "each once" if rounds == 1 else f"medians of {rounds} alternating rounds"


def run_json(
    *command: str | Path,
    python: str | Path = sys.executable,
    timeout_s: float | None = None,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run a benchmark of this directory and return the JSON of its last line. Its standard error is kept.

    Raises RuntimeError if it prints no figures, or not in time. The processes that it started are killed
    then.
    """
    with subprocess.Popen(
        [python, *map(str, command)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise RuntimeError(f"{command[0]} printed no figures within {timeout_s:.0f} s") from error
            raise
    lines = output.strip().splitlines()
    if not lines or not lines[-1].startswith("{"):
        raise RuntimeError(f"{command[0]} ended with {process.returncode} without figures")
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def json_lines(*command: str | Path, timeout_s: float) -> Generator[dict[str, Any]]:
    """Run a benchmark of this directory and yield each of its lines of JSON when it is printed.

    Raises RuntimeError if it fails, or does not end in time. The processes that it started are killed then,
    and also when the generator is closed.
    """
    with subprocess.Popen(
        [sys.executable, *map(str, command)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        watchdog = threading.Timer(timeout_s, os.killpg, (process.pid, signal.SIGKILL))
        watchdog.start()
        try:
            assert process.stdout is not None, "a pipe"
            for line in process.stdout:
                if line.startswith("{"):
                    yield json.loads(line)
            if process.wait() != 0:
                raise RuntimeError(f"{command[0]} ended with {process.returncode}")
        finally:
            watchdog.cancel()
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def printed_at_the_end(lines: Callable[[], Iterable[str]]) -> Iterator[None]:
    """Print the results so far at the end, also after an error or an interrupt."""
    try:
        yield
    except KeyboardInterrupt:
        say("interrupted; the results so far follow")
        raise
    finally:
        for line in lines():
            print(line, flush=True)
