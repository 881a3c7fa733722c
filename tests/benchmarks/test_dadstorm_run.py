"""The delivery of tuples in real processes, of which one is killed; the rows and the section of the page."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import dadstorm as page
import pytest
from dadstorm import DadstormRow, mirror_bytes, records_bytes, rows_of
from rows import run_json

from dataflow.core.regions import DELIVERIES

ROOT = Path(__file__).parents[2]
PROGRAM = "benchmarks/dadstorm_run.py"


@pytest.mark.long
@pytest.mark.process
def test_each_semantics_holds_when_a_replica_is_killed() -> None:
    """The program refuses figures that contradict a semantics."""
    killed = run_json(PROGRAM, "10", "1", "2", "--only", "killed", timeout_s=100)["killed"]
    assert len(killed) == 2 * len(DELIVERIES)
    for replicas in (2, 4):
        assert killed[f"{replicas}/at-most-once"][2] == 0
        assert killed[f"{replicas}/at-least-once"][1] == 0
        assert killed[f"{replicas}/exactly-once"] == [400, 0, 0]


@pytest.mark.long
@pytest.mark.process
def test_processes_send_the_messages_of_the_state_machines() -> None:
    messages = run_json(PROGRAM, "10", "1", "2", "--only", "messages", timeout_s=100)["messages"]
    for replicas in (2, 4):
        pairs = replicas * (replicas - 1)
        assert messages[f"{replicas}/100"] == {"DATA": 2 * pairs, "STEP_END": 2 * pairs, "DURABLE": pairs}
        sent = messages[f"{replicas}/0"]
        assert sum(sent.values()) == 4 * replicas * 200
        assert sent["RECORD"] == sent["PURGE"] == (replicas - 1) * 200


@pytest.mark.long
@pytest.mark.process
def test_processes_deliver_every_tuple_with_each_semantics_and_algorithm() -> None:
    seconds = run_json(PROGRAM, "100", "1", "2", "--only", "seconds", timeout_s=100)["seconds"]
    assert len(seconds) == 2 * 2 * 2 * len(DELIVERIES)
    assert all(time > 0 for times in seconds.values() for time in times)


def figures() -> dict[str, Any]:
    names = ("records", "confirmed", "mirror", "step")
    by_tuple = dict.fromkeys(("RECORD", "PURGE", "DELETE", "TUPLE", "CONFIRM of TUPLE"), 200)
    by_tuple |= {"CONFIRM of RECORD": 7, "CONFIRM of PURGE": 8, "CONFIRM of DELETE": 9}
    frames = {"DATA": 4, "STEP_END": 4, "DURABLE": 2}
    times = dict(zip(DELIVERIES, ([1.0, 2.0, 3.0], [2.0, 3.0, 4.0], [1.5, 4.0, 4.0]), strict=True))
    return {
        "messages": {f"{r}/{n}": by_tuple if n == 0 else frames for r in (2, 4) for n in (0, 100, 10)},
        "seconds": {
            f"{r}/{n}/{size}/{delivery}": values
            for r in (2, 4)
            for n in (0, 100)
            for size in (100, 1_000)
            for delivery, values in times.items()
        },
        "bytes": {f"{r}/{name}": [[16, 30.0 * r], [1_024, 40.0 * r]] for r in (2, 4) for name in names},
        "killed": {f"{r}/{delivery}": [1_600, 12, 5] for r in (2, 4) for delivery in DELIVERIES},
    }


def test_the_section_has_the_figures_beside_those_of_the_paper() -> None:
    rows = {row.what: row for row in rows_of(figures())}
    sums = rows["**these four, steps 2, 5 and 8 of section 5.3**"]
    assert (sums.figure, sums.beside, sums.aim) == ("800", "800", "2 R")
    assert rows["**all messages, tuple by tuple**"].figure == "1,024"
    paper = rows["table 1 of the paper"]
    assert (paper.figure, paper.beside) == ("400", "2,400")
    assert rows["tuple by tuple, 1,000 B"].figure == "2.000, 3.000, 4.000: **+1.000 s**"
    assert rows["tuple by tuple, 1,000 B"].aim == "1.4 and 4.2 s"
    assert rows["1,024"].beside == "80 and 160 (formula: 2,048 and 6,144)"
    assert rows["exactly-once"].figure == "12 missing, 5 twice, of 1,600"
    text = page.section_of(list(rows.values()), 3)
    assert text.startswith("<!-- dadstorm: written by ./run bench dadstorm -->\n## Delivery tuple by tuple")
    assert all(f"| {row.what} | {row.figure} | {row.beside} | {row.aim} |" in text for row in rows.values())
    assert "medians of 3 alternating rounds" in text


def test_the_formulas_are_those_of_the_paper() -> None:
    assert [records_bytes(replicas) for replicas in (2, 4)] == [96, 160]
    assert [mirror_bytes(replicas, 1_000) for replicas in (2, 4)] == [2_000, 6_000]


def test_the_pictures_have_a_line_for_each_algorithm(tmp_path: Path) -> None:
    page.draw(rows_of(figures()), tmp_path)
    lines = (tmp_path / "dadstorm-bytes.svg").read_text()
    assert all(label in lines for label in ("mirroring, (R - 1) T O", "by step, 4 replicas"))
    assert "tuple by tuple" in (tmp_path / "dadstorm-time.svg").read_text()
    assert all(isinstance(row, DadstormRow) for row in rows_of(figures()))


def test_the_command_lists_the_benchmark() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "bench.py"), "--help"]
    assert "[dadstorm]" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
    written = page.PLACE.found_in(page.DOCS.joinpath("benchmarks.md").read_text(encoding="utf-8"))
    assert written.startswith(page.PLACE.begin)
