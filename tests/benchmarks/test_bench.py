"""`./run bench`: docs/benchmarks.md as it writes it, and the tables of single benches."""

import re
from types import SimpleNamespace
from typing import Any

import bench
import benches
import pytest
from rows import PAGE, Effort, Row, Section

RATES = {"mb_per_s": 210.4, "mb_per_cpu_s": 420.4, "records_per_s": 310_000.0, "records_per_cpu_s": 620_000.0}
WHOLE = {"journal_mb": 1000.0, "seconds": 4.0, "mb_per_s": 250.0, "mb_per_cpu_s": 400.0, "peak_mb": 60.0}
FIGURES: dict[str, Any] = {
    **{f"{what}_{size}": RATES for what in ("encode", "replay") for size in (4096, 100)},
    "restore_all": WHOLE,
    "restore_half": {**WHOLE, "journal_mb": 500.0, "peak_mb": 61.0},
    "restore_quarter": {**WHOLE, "journal_mb": 250.0, "peak_mb": 59.0},
    "restore_snapshots": {**WHOLE, "seconds": 1.1, "mb_per_s": 244.0, "read_mb": 268.0},
    "alone": {"put_get_mb_per_s": 60.0, "get_mb_per_s": 160.0},
    "archive": {"seconds": 9.0, "mb_per_s": 30.0},
    "restore_s3": {**WHOLE, "read_mb": 268.0, "seconds": 3.4, "mb_per_s": 80.0, "peak_mb": 130.0},
}


EFFORT = Effort(
    5,
    1,
    1.0,
    1.0,
    1,
    1.0,
    large_object_mb=1000,
    chain_mb=200,
    checkpoint_scale=1.0,
    recoveries=3,
    latency_s=1.0,
    trace_days=1,
    managed_h=1.0,
)


def test_the_page_keeps_every_section_and_has_the_text_of_the_program() -> None:
    """Without the first table and the machine, which are measured anew."""
    before = PAGE.read_text(encoding="utf-8")
    after = bench.page_of([], SimpleNamespace(pairs=5, passes=12, baseline_s=60.0), before)
    assert re.findall("<!-- .* -->", after) == re.findall("<!-- .* -->", before)
    first = Section(bench.SECTIONS[0]).begin
    assert after.partition(first)[2] == before.partition(first)[2]


@pytest.mark.parametrize(
    "name", [name for name, one in bench.BENCHES.items() if one.section and not one.written]
)
def test_a_section_of_one_table_has_the_title_and_the_columns_that_the_page_has(name: str) -> None:
    section = bench.BENCHES[name].section
    assert section is not None
    text, files = section.apart(section.table([Row("what", "figure", "beside", "aim")], 3))
    found = section.found_in(PAGE.read_text(encoding="utf-8")).splitlines()
    assert text.splitlines()[:2] == found[:2]
    ((path, figures),) = files.items()
    assert path.read_text(encoding="utf-8").splitlines()[0] == figures.splitlines()[0]
    assert f"<!-- generated: docs/benchmarks/{path.name} -->" in found


def test_a_section_is_written_whoever_asks_for_it_and_its_rows_are_in_no_other_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[str] = []
    journal = bench.BENCHES["journal"]._replace(measure=lambda _: [Row("what", "figure", "beside", "aim")])
    monkeypatch.setattr(bench, "BENCHES", {"journal": journal})
    monkeypatch.setattr(Section, "write", lambda place, text: written.append(text))
    page = SimpleNamespace(read_text=lambda: "", write_text=written.append)
    monkeypatch.setattr(bench, "PAGE", page)
    monkeypatch.setattr(bench, "page_of", lambda rows, *_: f"page of {len(rows)} rows")
    monkeypatch.setattr("sys.argv", ["bench", "journal", "--pairs", "1"])
    assert bench.main() == 0
    (text,) = written
    place = Section("journal")
    assert text.startswith(place.begin)
    assert text.endswith(place.end)
    assert "each once" in text
    assert "| what | figure | beside | aim |" in text
    monkeypatch.setattr("sys.argv", ["bench"])
    assert bench.main() == 0
    assert written[1].startswith(place.begin)
    assert written[2] == "page of 0 rows"


def test_each_figure_has_its_line_its_unit_and_its_aim(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def given(*command: Any) -> dict[str, Any]:
        asked.append(command)
        return FIGURES

    monkeypatch.setattr(benches, "run_json", given)
    rows = benches.measure_journal(EFFORT)
    assert [(row.figure, row.beside, row.aim) for row in rows] == [
        ("210 MB/s", "420 MB per CPU second", "200 MB/s"),
        ("310,000 records/s", "620,000 records per CPU second", "300,000 records/s"),
        ("210 MB/s", "420 MB per CPU second", "200 MB/s"),
        ("310,000 records/s", "620,000 records per CPU second", "300,000 records/s"),
        ("4.0 s, 250 MB/s", "400 MB per CPU second", "200 MB/s"),
        ("1.1 s, 244 MB/s", "268 MB of 1000 read", ""),
        ("59, 61, 60 MB", "of journals of 250, 500, 1000 MB", "flat"),
        ("30 MB/s", "boto3 alone puts and gets them: 60 MB/s, ratio 0.50", ""),
        (
            "3.4 s, 80 MB/s, peak memory 130 MB",
            "boto3 alone gets them, one request after the other: 160 MB/s, ratio 0.50",
            "",
        ),
    ]
    sizes = ("--megabytes", "1000", "--s3-megabytes", "350", "--pairs", "3")
    assert asked == [("benchmarks/journal_speed.py", "--json", *sizes)]


def round_of(seconds: float, predicted: float) -> dict[str, Any]:
    parts = {
        "launchSeconds": 0.1,
        "claimSeconds": 0.05,
        "stateSeconds": predicted - 0.2,
        "replaySeconds": 0.05,
    }
    return {"seconds": seconds, "predicted": {"seconds": predicted, "stateBytes": 24_000_000, **parts}}


def test_a_row_has_the_medians_of_its_rounds_and_their_ratio() -> None:
    rounds = [round_of(1.0, 1.2), round_of(2.0, 1.0), round_of(9.0, 5.0)]
    row = benches.recovery_row({"keys": 1_000_000, "output_mb": 1000.0, "rounds": rounds})
    assert row.what == "1,000,000 keys, 24 MB to restore by the larger worker; 1,000 MB of output"
    assert row.figure == "2,000 ms"
    parts = "launch 100, claim 50, state 1,000, replay 50"
    assert row.beside == f"1,200 ms ({parts}), 0.60 times the measured time"
    section = bench.BENCHES["recovery"].text([row], EFFORT)
    assert section.startswith("<!-- recovery: written by ./run bench recovery -->\n## Predicted and measured")
    assert f"| {row.what} | {row.figure} | {row.beside} | {row.aim} |" in section
    assert "medians of 3 kills" in section


def test_the_rows_of_restores_are_medians_and_ratios() -> None:
    seconds = [{"seconds": value} for value in (1.2, 1.0, 5.0)]
    found = {
        "keys": 1_000_000,
        "reset": [{"seconds": 1.0}] * 3,
        "restore": seconds,
        "fork": [0.5, 0.7, 0.6],
        "fork_start": [2.0, 3.0, 4.0],
        "start": [2.0, 2.0, 2.0],
    }
    text = bench.BENCHES["restore"].text(benches.restore_rows(found), EFFORT)
    assert "| 1,200 ms | a reset by hand: 1,000 ms; 1.20 times | 1.2 times at most |" in text
    assert "| fork of a running region; 1,000,000 keys | 600 ms |" in text
    assert "| 3,000 ms | start of the original: 2,000 ms; 1.50 times |" in text
    assert text.startswith(Section("restore").begin)
    assert "medians of 3 alternating rounds" in text
