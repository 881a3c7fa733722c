"""The page and pictures of the replication benchmark, and its measurement of operators, in small."""

from dataclasses import replace
from pathlib import Path

import pytest
import replication as page
import replication_operators as operators
from rows import DOCS, Row

from tests.sites.simulation.engine import Options
from tests.sites.simulation.generator import Generator
from tests.sites.simulation.network import Network
from tests.sites.simulation.trace import Trace, write_trace


@pytest.fixture
def network(tmp_path: Path) -> Network:
    generator = Generator(1, 12, 1)
    write_trace(tmp_path / "trace", generator.header, generator.delays())
    return Network(Trace(tmp_path / "trace"))


def test_filters_pass_what_the_operators_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "ROWS", 2_000)
    for operator in operators.OPERATORS:
        alone, filtered = (operators.measure(operator, 1_000, degree) for degree in (0, 2))
        assert alone[0] < filtered[0], operator
        assert alone[1] > 0


def test_a_port_passes_each_row_of_several_streams_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "ROWS", 300)
    port = operators.Port(50, 3)
    for batch in operators.batches(50, 1, 100):
        assert port.take(batch).equals(batch)


def test_the_page_has_every_figure_and_picture(
    network: Network, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    figures = {
        f"{operator}/{size}/{degree}": [0.25 * degree, 1.0]
        for operator in operators.OPERATORS
        for size in operators.BATCHES
        for degree in operators.DEGREES
    }
    monkeypatch.setattr(page, "run_json", lambda *_command, **_options: figures)
    simulated = page._simulated

    def shortly(network: Network, kmax: int, options: Options) -> object:
        return None if kmax > 2 else simulated(network, kmax, replace(options, hours=1.0))

    monkeypatch.setattr(page, "_simulated", shortly)
    rows: list[Row] = [*page.figure_2(), *page.figure_4(network), *page.table_1(1)]
    text = page.section_of(rows, 1, 1.0, 1)
    assert text.count("| min-cost, k = ") == 2
    assert "| union, 1,000 rows | 1.00 | 1.25 | 1.50 | 1.75 | 2.00 | 0.25 | 4.2 |" in text
    assert "| no replication |" in text
    ours = [row for row in rows if isinstance(row, page.ReplicationRow)]
    for name, draw in (("figure 2", page.draw_techniques), ("figure 4", page.draw_placement)):
        draw(tmp_path / "picture.svg", page._of(ours, name))
        assert b"</svg>" in (tmp_path / "picture.svg").read_bytes()


def test_the_written_page_is_of_this_text() -> None:
    written = (DOCS / "benchmarks" / "replication.md").read_text()
    headings = [line for line in page.SECTION.splitlines() if line.startswith("#")]
    assert headings == [line for line in written.splitlines() if line.startswith("## ")]
