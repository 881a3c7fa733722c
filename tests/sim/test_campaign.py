"""Campaigns: what they count, print and write, and how they end."""

import json
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.sim import __main__ as command
from tests.sim import campaign
from tests.sim.bugs import planted
from tests.sim.campaign import (
    Outcome,
    Totals,
    as_json,
    line_of,
    percentile,
    run_campaign,
    show,
    wanted_seeds,
)
from tests.sim.engine.random_streams import RandomStreams
from tests.sim.nemesis import Fault, plan_of
from tests.sim.run import run_seed
from tests.sim.sometimes import ENOUGH_RUNS, EVENT_GROUPS, EventGroup, missing
from tests.sim.tiers import CORES, tier_of


def everything() -> Counter[str]:
    """Return one of each event that should be seen."""
    return Counter({f"{group.title}: {name}": 1 for group in EVENT_GROUPS for name in group.names})


def totals_of(seen: Counter[str], *, runs: int = 1, violation: str = "", seed: int = 1) -> Totals:
    totals = Totals()
    totals.take(Outcome(seed, violation, violation[:2], 10, 7.0, "d", 5, seen, 0.1))
    totals.runs, totals.wall_s = runs, 1.0
    return totals


def run_command(monkeypatch: pytest.MonkeyPatch, totals: Totals, *words: str) -> Any:
    """Run `./run sim` with these arguments and a campaign with that result."""
    monkeypatch.setattr(command, "run_campaign", lambda *given, **named: totals)
    return CliRunner().invoke(command.app, words)


def test_a_group_names_events_that_were_never_seen_and_those_that_need_not_be() -> None:
    group = EventGroup("answer", ("BUSY", "FENCED", "INTERNAL"), {"INTERNAL": "it is a bug"})
    assert group.missing(Counter({"answer: BUSY": 3})) == ["answer: FENCED"]
    with pytest.raises(ValueError, match=r"nothing is called \['LATE'\]"):
        EventGroup("answer", ("BUSY",), {"LATE": "it never was"})


def test_every_counted_event_of_a_group_is_on_its_list() -> None:
    """A name that is not on the list is a typing error, or a branch that is not required."""
    seen = run_campaign(1, 10, processes=1).sometimes
    known = everything()
    groups = {group.title for group in EVENT_GROUPS if group.title not in ("writer", "reader", "visitor")}
    assert {name for name in seen if name.partition(": ")[0] in groups} <= known.keys()
    assert len([name for name in seen if name in known]) > 40


def test_a_campaign_can_be_limited_to_kinds_of_seeds_and_to_faults() -> None:
    for kind, is_of_kind in tier_of(CORES).kinds.items():
        seeds = list(islice(wanted_seeds(1, [kind]), 5))
        assert all(is_of_kind(RandomStreams(seed)) for seed in seeds)
        assert len(seeds) == 5
    seeds = list(islice(wanted_seeds(100, ["store"], ["flip", "wipe"]), 3))
    assert all({"flip", "wipe"} <= {fault.kind for fault in plan_of(seed)} for seed in seeds)
    assert seeds[0] >= 100
    done = CliRunner().invoke(
        command.app, ["--kind", "store", "--with", "kill_server", "--seeds", "2", "--processes", "1"]
    )
    assert done.exit_code == 0
    assert "2 in" in done.output


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--kind", "stores"], "'stores' is none of membership, region, store"),
        (["--with", "fire"], "'fire' is none of add, "),
        (["--kind", "store", "--kind", "region"], "none of the 50 seeds from 1 on"),
    ],
)
def test_seeds_that_do_not_exist_are_refused(
    monkeypatch: pytest.MonkeyPatch, words: list[str], why: str
) -> None:
    for module in (campaign, command):
        monkeypatch.setattr(module, "MISSES_MAX", 50)
    done = CliRunner().invoke(command.app, words)
    assert done.exit_code == 2
    assert why in " ".join(done.stderr.replace("│", " ").split())


def test_every_exemption_has_its_reason() -> None:
    assert all(len(why) > 10 for group in EVENT_GROUPS for why in group.exempt.values())


@pytest.mark.parametrize(
    ("seen", "runs", "violation", "differed", "code"),
    [
        (everything(), ENOUGH_RUNS, "", [], 0),
        (Counter[str](), ENOUGH_RUNS - 1, "", [], 0),
        (Counter[str](), ENOUGH_RUNS, "", [], 3),
        (everything(), 1, "", [100], 4),
    ],
)
def test_how_a_campaign_ends(
    monkeypatch: pytest.MonkeyPatch,
    seen: Counter[str],
    runs: int,
    violation: str,
    differed: list[int],
    code: int,
) -> None:
    totals = totals_of(seen, runs=runs, violation=violation)
    totals.differed = differed
    done = run_command(monkeypatch, totals)
    assert done.exit_code == code, done.output
    assert ("never seen in" in done.output) == bool(missing(seen))


def test_a_failing_run_is_reduced_printed_and_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with planted("acknowledge_before_sync"):
        seed = next(seed for seed in range(1, 20) if run_seed(seed).oracle == "O1")
        totals = totals_of(Counter(), violation="O1: lost", seed=seed)
        done = run_command(monkeypatch, totals, "--keep", str(tmp_path / "out"))
        assert done.exit_code == 1
        kept: dict[str, Any] = json.loads((tmp_path / "out" / f"seed-{seed}.json").read_text())
        assert kept["again"] in done.output.replace("\n", "")
        assert kept["again"].startswith(f"./run sim --seed {seed} --faults ")
        assert len(kept["faults"]) < len(plan_of(seed))
        assert kept["violation"].startswith("O1")
        assert kept["violation"] in kept["trace"][-1]
        words = kept["again"].split()[2:]
        again = CliRunner().invoke(command.app, words)
        assert again.exit_code == 1, "the command repeats the violation"
        assert kept["violation"] in again.output.replace("\n", "")
    assert CliRunner().invoke(command.app, words).exit_code == 0, "no violation without the bug"


def test_a_line_names_the_faults_that_are_enough() -> None:
    plan = [Fault(number, 1.0, "flip", 0.1, "seed") for number in range(9)]
    assert line_of(7, None) == "./run sim --seed 7 --trace"
    assert line_of(7, plan[3:5]) == "./run sim --seed 7 --faults 3,4 --trace"
    assert line_of(7, []) == "./run sim --seed 7 --faults -1 --trace"


def test_faults_that_are_no_numbers_are_refused() -> None:
    done = CliRunner().invoke(command.app, ["--seed", "7", "--faults", "three"])
    assert done.exit_code == 2, "as for any invalid argument"
    assert "3,7" in done.output


def test_the_figures_for_programs_and_for_people_are_the_same() -> None:
    totals = totals_of(Counter({"fault: flip": 3, "end: FINISHED": 2}), runs=4)
    totals.faults = [1, 2, 3, 50]
    read = json.loads(as_json(totals))
    assert (read["runs"], read["faults_median"], read["faults_p90"]) == (4, 3, 50)
    assert read["sometimes"] == {"end: FINISHED": 2, "fault: flip": 3}
    console = Console(width=100)
    with console.capture() as captured:
        show(totals, console)
    text = captured.get()
    assert "median 3, p90 50" in text
    assert "flip  3" in text
    assert "FINISHED  2" in text, "events without a group are printed too"


def test_percentiles() -> None:
    assert percentile([], 0.5) == 0
    assert percentile([5], 0.9) == 5
    assert percentile(list(range(100)), 0.9) == 90
