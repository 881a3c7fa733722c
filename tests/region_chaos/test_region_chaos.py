"""Five short runs of `./run chaos`, and whether it would notice."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.region_chaos import __main__ as command
from tests.region_chaos.campaign import Campaign, Options, make_input
from tests.region_chaos.output import WrongOutputError, digest, true_digest
from tests.region_chaos.plan import DEFAULT, Kind, draw

SEED = 23
"""With the faults of a run each: of the three, one kills the driver, for a session takes seconds to start."""


# EVIDENCE-OF: P-7, P-10
@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(1_200)  # two Spark sessions and four regions, on a busy machine
def test_whatever_is_killed_the_output_is_that_of_a_run_without_faults() -> None:
    event: list[str] = []
    campaign = Campaign(Options(seed=SEED, runs=3, minutes=None), event.append)
    assert campaign.go(), "\n".join(event)
    done = campaign.summary()
    assert (done["runs"], done["identical"]) == (3, 3)
    assert done["faults"]["worker"] > 0, event
    assert done["faults"]["server"] > 0, event
    assert done["faults"]["driver"] == 1, event
    assert done["resets"] > 0, event


def test_a_seed_gives_the_same_faults_and_one_driver_dies_at_most() -> None:
    for seed in range(200):
        faults = draw(seed, DEFAULT, workers=2, servers=3)
        assert faults == draw(seed, DEFAULT, workers=2, servers=3)
        assert 2 <= len(faults) <= 4
        assert [fault.kind for fault in faults].count(Kind.driver) <= 1
    assert draw(1, DEFAULT, workers=2, servers=3) != draw(2, DEFAULT, workers=2, servers=3)


def right_output(folder: Path) -> list[Path]:
    """Inputs, and what a region makes of them in two parts and two steps."""
    paths = [folder / "a.txt", folder / "b.txt"]
    paths[0].write_text("x 1\ny 2\nx 3\n")
    paths[1].write_text("x 4\nz 5\n")
    for name, parts in {
        "rows": ["y\t2\nx\t3\nx\t1\n", "x\t4\nz\t5\n"],
        "counts": ["x\t1\nx\t3\n", "y\t1\nz\t1\n"],
    }.items():
        (folder / name).mkdir()
        for index, text in enumerate(parts):
            (folder / name / f"part-w{index:04d}.tsv").write_text(text)
    return paths


def test_the_digest_of_an_output_is_that_of_its_input_however_steps_fell(tmp_path: Path) -> None:
    paths = right_output(tmp_path)
    assert digest(tmp_path) == true_digest(paths)


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ("rows/part-w0001.tsv", "x\t4\n"),
        ("rows/part-w0001.tsv", "x\t4\nz\t5\nz\t5\n"),
        ("rows/part-w0001.tsv", "x\t4\nz\t6\n"),
        ("counts/part-w0000.tsv", "x\t1\nx\t2\n"),
        ("counts/part-w0001.tsv", "y\t1\n"),
    ],
)
def test_a_row_that_is_lost_doubled_or_changed_is_seen(part: str, text: str, tmp_path: Path) -> None:
    paths = right_output(tmp_path)
    (tmp_path / part).write_text(text)
    assert digest(tmp_path) != true_digest(paths)


@pytest.mark.parametrize(
    ("text", "why"), [("x\t3\nx\t3\n", "x: 3 written after 3"), ("x\t3", "within a row")]
)
def test_an_output_that_was_not_cut_back_contradicts_itself(text: str, why: str, tmp_path: Path) -> None:
    right_output(tmp_path)
    (tmp_path / "counts" / "part-w0000.tsv").write_text(text)
    with pytest.raises(WrongOutputError, match=why):
        digest(tmp_path)


def test_the_input_is_the_same_each_time(tmp_path: Path) -> None:
    assert true_digest(make_input(tmp_path / "a")) == true_digest(make_input(tmp_path / "b"))


class Fails(Campaign):
    """One that finds another output, without running anything."""

    def go(self) -> bool:
        self.say("run 1, seed 7: WRONG")
        return False


def test_the_command_ends_with_1_when_an_output_differs_and_says_json(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "Campaign", Fails)
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)
    app = command.typer.Typer()
    app.command()(command.main)
    done = CliRunner().invoke(app, ["--seed", "7", "--json"])
    assert done.exit_code == 1
    assert json.loads(done.stdout)["runs"] == 0
    assert CliRunner().invoke(app, ["--faults", "rain"]).exit_code == 2


def test_a_run_that_went_wrong_is_told_by_one_line() -> None:
    options = Options(seed=5, runs=3, minutes=None, faults=(Kind.worker, Kind.link))
    assert Campaign(options, print).reproduce(7) == "./run chaos --runs 1 --seed 7 --faults worker,link"
    assert (
        Campaign(Options(seed=5, runs=3, minutes=None), print).reproduce(6) == "./run chaos --runs 1 --seed 6"
    )
