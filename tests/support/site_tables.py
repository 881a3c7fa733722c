"""Tables of the site of the documentation (`./run docs`) that are no Markdown: a page has the line
`<!-- generated: NAME -->`. They are CSV files (evidence beside the tests, figures of benchmarks, names in
JSON), and from the code the metrics of a kind of process and the control messages of regions.
"""

import csv
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from prometheus_client.core import Metric

from checkpoint.coordinator.figures import RegionFigures
from checkpoint.core.region import RecoveryEstimate, RegionState, RegionStatus
from dataflow.worker.process import WorkerFigures
from dos_client import metrics
from dos_client.membership import watching  # its metrics are in the registry of the client
from dos_gateway.figures import GatewayFigures, TreeFigures
from dos_server.core.server_core import CoreGauges
from dos_server.figures import ServerFigures
from tests.checkpoint.protocol_tables import control_messages

ROOT: Final = Path(__file__).parents[2]
MARKED: Final = re.compile(r"^<!-- generated: (.+) -->$", re.M)
Row = tuple[str, ...]


def with_tables(text: str) -> str:
    """Return the text of a page with its tables."""
    return MARKED.sub(lambda found: table(found[1]), text)


def table(name: str) -> str:
    if name == "control messages":
        return control_messages()
    if name.endswith(".txt"):
        return (ROOT / name).read_text(encoding="utf-8")
    head, *rows = rows_of(name)
    lines = (head, ("---",) * len(head), *rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def rows_of(name: str) -> list[Row]:
    """Return the head and the rows of a table."""
    if name.endswith(".csv"):
        with (ROOT / name).open(encoding="utf-8", newline="") as file:
            return [tuple(row) for row in csv.reader(file)]
    return [("metric", "kind", "meaning"), *map(metric_row, METRICS[name]())]


def names_in(table: str) -> set[str]:
    """Return the names in the first column of a table of docs/reference."""
    _, *rows = rows_of(f"docs/reference/{table}.csv")
    return {name for row in rows for name in re.findall(r"\w+", row[0])}


def metric_row(metric: Metric) -> Row:
    labels = [label for label in getattr(metric, "_labelnames", ()) if label not in ("region", "worker")]
    shown = exposed(metric) + (f"{{{', '.join(labels)}}}" if labels else "")
    return f"`{shown}`", metric.type, metric.documentation


def exposed(metric: Metric) -> str:
    """Return the name with which samples of it are served."""
    return metric.name + {"counter": "_total", "info": "_info"}.get(metric.type, "")


def names_of_metrics() -> set[str]:
    """Return the names of all metrics of the tables, as they are served."""
    return {exposed(metric) for collect in METRICS.values() for metric in collect()}


def of_client() -> Iterable[Metric]:
    return _of_registry("dos_client_")


def of_watcher() -> Iterable[Metric]:
    assert watching
    return _of_registry("dos_watch_")


def _of_registry(prefix: str) -> Iterator[Metric]:
    for collector in list(metrics.registry._collector_to_names):
        for metric in collector.collect():
            if metric.name.startswith(prefix):
                metric._labelnames = getattr(collector, "_labelnames", ())  # type: ignore[attr-defined]
                yield metric


def of_server() -> Iterable[Metric]:
    figures = ServerFigures("1")
    gauges = CoreGauges(0, 0, 0, 0, 0, 0, 0, refuses_appends=False, rolled_back=False, store_generation=0)
    figures.publish(gauges, 0)
    return figures.collect()


def of_region() -> Iterable[Metric]:
    figures = RegionFigures("wordcount")
    recovery = RecoveryEstimate(0, 0, 0, 0, 0, 0, 0)
    status = RegionStatus(RegionState.RUNNING, "", 1, 1, 1, 1, 0, (), (), recovery=recovery)
    figures.status = lambda: status
    return figures.collect()


def of_worker() -> Iterable[Metric]:
    health: Any = SimpleNamespace(
        busy_for_s=lambda: 0.0, running=True, sample=lambda: SimpleNamespace(lag_bytes=0)
    )
    zeros = (
        "rows_in",
        "rows_out",
        "bytes_in",
        "busy_s",
        "checkpoints",
        "incarnation",
        "step",
        "backlog_bytes",
    )
    shared: Any = SimpleNamespace(**dict.fromkeys(zeros, 0), operators={}, room=True, exhausted=False)
    return WorkerFigures("wordcount", 0, health, shared).collect()


def of_gateway() -> Iterable[Metric]:
    figures = GatewayFigures("orders")
    figures.tree = lambda: TreeFigures(room_bytes=0)
    figures.count("CREATE", "done", 0)
    return figures.collect()


METRICS: Final[dict[str, Callable[[], Iterable[Metric]]]] = {
    "metrics of a client": of_client,
    "metrics of a server": of_server,
    "metrics of a region": of_region,
    "metrics of a worker": of_worker,
    "metrics of a watcher": of_watcher,
    "metrics of a gateway": of_gateway,
}
