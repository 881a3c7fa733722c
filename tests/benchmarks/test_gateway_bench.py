"""`./run bench gateway`: what its page states, and a quick run of each part. Spark is started only by the
long tests.
"""

import json
from pathlib import Path
from typing import Any

import gateway_bench
import pytest
from gateway_load import KeptConnection, MicroBatches
from rows import PAGE

from tests.dos_gateway.gateways import GatewayProcess, store_of_three
from tests.support.parts import with_long


def batches(kind: str, number: int, ours: float, theirs: float) -> list[dict[str, Any]]:
    rest = {"kind": kind, "round": number, "wal_ms": 11, "commit_ms": 9, "state_ms": 45, "cpu_ms": 12.5}
    places = [{**rest, "place": "gateway", "batch_ms": ours}, {**rest, "place": "local", "batch_ms": theirs}]
    return places if number % 2 == 0 else places[::-1]


def test_a_row_has_medians_and_the_ratio_of_each_round() -> None:
    records = [*batches("hdfs", 0, 300, 400), *batches("hdfs", 1, 400, 400), *batches("hdfs", 2, 900, 500)]
    row, processor = gateway_bench.batch_rows(records)
    assert row.what == "micro-batch, HDFS-backed state"
    assert row.figure == "p50 400 ms, walCommit 11 ms, commitOffsets 9 ms, state commit 45 ms"
    assert row.beside.startswith("local directory: p50 400 ms,")
    assert row.beside.endswith("ratio 1.00")
    assert (processor.figure, processor.aim) == ("12.5 ms", "15 ms")


def test_take_overs_that_are_late_and_files_that_are_lost_are_counted() -> None:
    kill = {"files": 1_000, "written": 300, "mb": 60.0}
    records = [{**kill, "gap_s": 2.5, "missing": 0}, {**kill, "gap_s": 3.5, "missing": 1}]
    (row,) = gateway_bench.take_over_rows(records)
    assert row.figure == "p50 3.00 s, max 3.50 s; 1 of 2 within 3 s"
    assert row.beside == "1 of 600 acknowledged files missing; gateway 60 MB"
    assert row.aim == "all within 3 s"


def tenth(p50_ms: float = 300.0, memory: float = 90.0, chain: float = 100.0) -> dict[str, float]:
    size = {"live_mib": 1.0, "chain_mib": chain, "data_mib": chain + 60}
    return {"p50_ms": p50_ms, "gateway_mb": memory, **size}


@pytest.mark.parametrize(
    ("last", "what"),
    [
        ({"p50_ms": 400.0}, "latency"),
        ({"memory": 120.0}, "memory"),
        ({"chain": 140.0}, "chain"),
    ],
)
def test_what_grows_is_not_flat(last: dict[str, float], what: str) -> None:
    flat = [tenth()] * 10
    assert all(gateway_bench.flatness(flat).values())
    grown = gateway_bench.flatness([*flat[:7], *[tenth(**last)] * 3])
    assert {name for name, one in grown.items() if not one} - {"data"} == {what}


def test_only_a_whole_run_is_for_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert gateway_bench.is_for_the_page(gateway_bench.options_of([]))
    assert not gateway_bench.is_for_the_page(gateway_bench.options_of(["--quick"]))
    assert not gateway_bench.is_for_the_page(gateway_bench.options_of(["--only", "takeover"]))
    assert gateway_bench.is_for_the_page(gateway_bench.options_of(["--kills", "1", "--page"]))
    with pytest.raises(SystemExit):
        gateway_bench.options_of(["--kills", "0"])
    assert "--kills must be at least 1, not 0" in capsys.readouterr().err
    assert gateway_bench.PLACE.found_in(PAGE.read_text()) in PAGE.read_text()


@pytest.mark.process
def test_the_requests_of_a_micro_batch_leave_the_files_of_the_newest_hundred(tmp_path: Path) -> None:
    with store_of_three(tmp_path) as (url, _), GatewayProcess(f"{url}/t") as gateway:
        with KeptConnection(gateway.port) as connection:
            made = MicroBatches(connection, "/query")
            for number in (0, 1, 100):
                assert made.run(number) > 0
        for folder, end in (
            ("offsets", ""),
            ("commits", ""),
            ("state/0/0", ".delta"),
            ("state/0/1", ".delta"),
        ):
            assert gateway.client.names(f"/query/{folder}") == [f"1{end}", f"100{end}"]


@pytest.mark.long
def test_each_part_has_its_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gateway_bench.main(["--quick", "--json", str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert found.keys() == set(gateway_bench.PARTS)
    assert sum(one["missing"] for one in found["takeover"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(gateway_bench.rows_of(found, 8))


@pytest.mark.process
@pytest.mark.parametrize("more", with_long([], [], [["--batches", "30", "--raw"], ["--batches", "20"]]))
def test_a_soak_shows_each_tenth_and_a_verdict(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    gateway_bench.main(more)
    *tenths, verdict = capsys.readouterr().out.splitlines()
    assert len(tenths) == 10
    assert "chain flat" in verdict
