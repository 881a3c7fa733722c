"""The output of a run: a live line in a terminal, plain lines elsewhere, and the verdict."""

import shlex
import sys
import time
from collections import deque

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dos_chaos.core.checker import VIOLATIONS
from tests.chaos.cluster import Cluster
from tests.chaos.nemesis import Nemesis
from tests.chaos.story import Options, Report, Watcher

PLAIN_EVERY_S = 1.0
RATE_OVER_S = 5.0


class Display(Watcher):
    """Prints the progress on standard error. A context manager."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._live = Live(console=self._console, transient=True) if self._console.is_terminal else None
        self._begun = self._printed = time.monotonic()
        self._counts: deque[tuple[float, int]] = deque(maxlen=200)

    def __enter__(self) -> "Display":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def happened(self, text: str) -> None:
        self._console.print(Text(f"{time.monotonic() - self._begun:7.1f}  {text}", style="dim"))

    def show(self, cluster: Cluster, nemesis: Nemesis, elapsed_s: float) -> None:
        self._counts.append((elapsed_s, cluster.acknowledged))
        line = self._line(cluster, nemesis, elapsed_s)
        if self._live is not None:
            self._live.update(Text(line, style="bold"))
        elif time.monotonic() - self._printed >= PLAIN_EVERY_S:
            self._printed = time.monotonic()
            print(line, file=sys.stderr, flush=True)

    def _line(self, cluster: Cluster, nemesis: Nemesis, elapsed_s: float) -> str:
        now, count = self._counts[-1]
        then, before = next((one for one in self._counts if now - one[0] <= RATE_OVER_S), (now, count))
        rate = (count - before) / (now - then) if now > then else 0.0
        living = sum(len(cluster.living(directory)) for directory in cluster.writers)
        servers = " ".join(
            f"{one.name}:{'stopped' if one.paused else 'up' if one.server.running else 'down'}"
            for one in cluster.members
        )
        return (
            f"{elapsed_s:7.1f}  {count:>9,} acknowledged, {rate:>6,.0f}/s  {servers}  writers {living}"
            f"  take-overs {cluster.take_overs}  faults {nemesis.counts.total()}"
        )


def command_line(options: Options) -> str:
    """What runs the same faults again."""
    words = ["./run", "python", "-m", "tests.chaos", "--seed", str(options.seed)]
    words += ["--seconds", f"{options.seconds:g}", "--acknowledged", str(options.acknowledged)]
    words += ["--directories", str(options.directories), "--window", str(options.window)]
    words += ["--pace", f"{options.pace:g}"]
    return shlex.join([*words, "--lanes", ",".join(options.lanes)])


def print_report(report: Report) -> None:
    """The verdict, on standard output."""
    console, verdict = Console(highlight=False), report.verdict
    table = Table(show_header=False, box=None, pad_edge=False)
    rows: list[tuple[str, str]] = [("acknowledged", f"{verdict.acknowledged:,}")]
    rows += [(name, f"{getattr(verdict, name):,}") for name in VIOLATIONS]
    rows += [
        ("records found", f"{verdict.found:,}"),
        ("copies of segments compared", f"{verdict.copies:,}"),
        ("committed reads checked", f"{verdict.committed_reads:,}"),
        ("take-overs", f"{report.take_overs:,}"),
        ("writers fenced, superseded", f"{report.fenced:,}, {report.superseded:,}"),
        ("longest pause of a directory", f"{report.longest_pause_s:.1f} s"),
        ("longest fault of network, servers", f"{report.longest_fault_s:.1f} s"),
        ("first records after healing", f"{report.healed_s:.1f} s"),
        ("faults", ", ".join(f"{name} {count}" for name, count in report.faults.items())),
        ("seconds", f"{report.seconds:.0f}"),
    ]
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for text in [*verdict.examples, *report.errors, *report.late]:
        console.print(Text(f"  {text}"))
    console.print(Text("good" if report.good else "NOT GOOD", style="bold"))
    console.print(Text(f"again: {command_line(report.options)}"), soft_wrap=True)
