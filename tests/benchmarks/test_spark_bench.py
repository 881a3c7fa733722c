"""`./run bench spark`: its page states what was measured and what was not, and which runs belong to it.
Starts no Spark.
"""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import rows as shared
import spark_bench as bench
import spark_stored as stored
from rows import PAGE, Section

OWN = {"latestOffset": 4, "addBatch": 50, "triggerExecution": 200}


def batch(system: str, number: int, ms: float, **phases: int) -> dict[str, Any]:
    shown = {**OWN, **phases}
    return {
        "part": "overhead",
        "system": system,
        "round": number,
        "ms": ms,
        "whole_ms": ms * 2,
        "phases": shown,
    }


def read(part: str, system: str, seconds: float, **more: int) -> dict[str, Any]:
    return {"part": part, "system": system, "round": 0, "seconds": seconds, "rows": 1_000_000, **more}


def test_the_page_tells_medians_ratios_and_what_is_missing() -> None:
    found = [
        *(
            batch("dos", number, ms, latestOffset=6, addBatch=57)
            for number, ms in enumerate((70.0, 90.0, 71.0))
        ),
        *(batch("empty", number, 60.0) for number in range(3)),
        read("rows", "dos", 0.5),
        read("rows", "prebuilt", 0.25),
        read("rows", "json", 1.0),
        {"part": "journal", "missing": "the program ended with 1"},
    ]
    text = bench.section_of(bench.medians(found), 3)
    assert "| 11 ms (2 ms in `latestOffset`, 7 ms in `addBatch`) | 71 ms beside 60 ms;" in text
    assert (
        "1,000,000 rows | 2,000,000 rows/s | a Python source that yields prebuilt batches: 4,000,000" in text
    )
    assert "ratio 0.50 | ratio 0.8 |" in text
    assert "ratio 2.00 | ratio 1 |" in text
    assert "| batch of `dos-journal` | not measured: the program ended with 1 |" in text
    assert "JSON lines in the store | not measured: it was not requested |" in text


def test_a_journal_is_told_in_bytes_and_records_and_a_way_through_as_rate_and_latency() -> None:
    found = [read("journal", "dos-journal", 4.0, bytes=10**9), read("journal", "dos", 8.0, bytes=10**9)]
    text = bench.section_of(bench.medians(found), 1)
    assert "1,000 MB, 1,000,000 records | 4.0 s, 250 MB/s, 250,000 records/s |" in text
    sizes = {"part": "through", "rows": 5_000_000}
    backlogs = [
        {**sizes, "system": "backlog dos", "rows_per_s": 250_000.0, "cpu_s": 6.0},
        {**sizes, "system": "backlog spark", "rows_per_s": 200_000.0, "cpu_s": 12.0},
    ]
    paced = {"part": "through", "p50_ms": 200.0, "p99_ms": 1900.0}
    paceds = [
        {**paced, "system": "paced floor"},
        {**paced, "system": "paced through", "p50_ratio": 1.25, "p99_ratio": 1.5},
    ]
    text = bench.section_of(bench.medians([*backlogs, *paceds]), 1)
    assert "5,000,000 rows | 250,000 rows/s, 6.0 s of processors | Spark's own count: 200,000 rows/s" in text
    assert "ratio of processor time 0.50 |" in text
    assert "p50 200 ms, p99 1,900 ms | a Python function that returns the rows, at the same time" in text
    assert "ratios in windows 1.25 and 1.50 | ratios 1.2 |" in text


def test_what_is_compared_are_the_same_rows() -> None:
    block = stored.block_of(100)
    assert block.equals(stored.block_of(100))
    assert [json.loads(line) for line in stored.json_of(block).splitlines()] == block.to_pylist()
    with pa.ipc.open_stream(stored.arrow_of(block)) as reader:
        assert list(reader) == [block]


def test_only_a_whole_run_is_for_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.is_whole(bench.options_of([]))
    assert not bench.is_whole(bench.options_of(["--rows", "1000"]))
    assert not bench.is_whole(bench.options_of(["--only", "rows"]))
    with pytest.raises(SystemExit):
        bench.options_of(["--only", "rows,rosw"])
    assert "no rosw; there are overhead, rows, journal, sink, through" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        bench.options_of(["--journal-mb", "0"])
    assert "--journal-mb must be at least 1, not 0" in capsys.readouterr().err


def test_the_page_has_a_place_for_the_section() -> None:
    text = PAGE.read_text()
    assert bench.PLACE.found_in(text) in text


def test_lines_come_as_they_are_printed_and_a_bad_end_is_reported(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("print('words')\nprint('{\"a\": 1}', flush=True)\nraise SystemExit(3)\n")
    lines = shared.json_lines(program, timeout_s=60)
    assert next(lines) == {"a": 1}
    with pytest.raises(RuntimeError, match="ended with 3"):
        next(lines)


def test_a_program_that_nobody_listens_to_any_more_is_ended(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    wait = "import os, signal\nprint('{\"pid\": %d}' % os.getpid(), flush=True)\nsignal.pause()\n"
    program.write_text(wait)
    lines = shared.json_lines(program, timeout_s=60)
    pid = next(lines)["pid"]
    lines.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_what_a_person_wrote_into_a_section_stays_when_its_figures_are_renewed() -> None:
    place = Section("speed")
    text = f"{place.begin}\n| old |\n\n{place.by_hand}\nIt is slow because of rain.\n{place.end}"
    renewed = place.put_into(f"# Page\n{text}\nmore\n", f"{place.begin}\n| new |\n{place.end}")
    assert renewed == f"# Page\n{text.replace('old', 'new')}\nmore\n"
    with pytest.raises(ValueError, match="no line '<!-- other"):
        Section("other").put_into(renewed, "")
