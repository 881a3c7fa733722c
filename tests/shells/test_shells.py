"""The second tier runs: whole clusters of real shells, each the same every time, and what they must find."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import trio
from typer.testing import CliRunner

from tests.shells.nemesis import ALL_KINDS
from tests.shells.region.nemesis import KINDS as REGION_KINDS
from tests.shells.region.region import has_region
from tests.shells.run import plan_of, run_seed
from tests.shells.trio_run import TaskCount, run_deterministic
from tests.sim.__main__ import app
from tests.sim.campaign import digest_elsewhere
from tests.sim.hunt import seeds_to_find
from tests.sim.tiers import SHELLS
from tests.support.parts import with_long

ROOT = Path(__file__).parent.parent.parent
SEEDS = (*range(1, 38), 40, 55, 70, 85, 100, 130)
"""They have every kind of fault. `./run sim --shells` runs more."""
CHUNK = 5
FIRSTS = with_long(range(0, 3 * CHUNK, CHUNK), range(3 * CHUNK, len(SEEDS), CHUNK))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", FIRSTS)
def test_runs_keep_every_promise(first: int) -> None:
    # EVIDENCE-OF: P-1, P-4, P-5
    for seed in SEEDS[first : first + CHUNK]:
        result = run_seed(seed)
        assert not result.violation, f"{result.violation}\n  ./run sim --shells --seed {seed} --trace"
        assert result.history.sometimes["end: FINISHED" if has_region(seed) else "reader: read"]


def test_between_them_the_seeds_have_every_fault_and_most_have_several() -> None:
    for kinds, region in ((ALL_KINDS, False), (REGION_KINDS, True)):
        plans = [plan_of(seed) for seed in SEEDS if has_region(seed) is region]
        assert {fault.kind for plan in plans for fault in plan} == kinds.keys()
        assert sorted(len(plan) for plan in plans)[len(plans) // 2] >= 3


@pytest.mark.parametrize("seed", with_long([9], [40]))
def test_a_run_is_the_same_in_another_process_with_another_hash_seed(seed: int) -> None:
    here = run_seed(seed, keep=True)
    assert len(here.faults) >= 5
    assert here.digest == digest_elsewhere(seed, "7", SHELLS) == digest_elsewhere(seed, "8", SHELLS)
    output = subprocess.run(
        [sys.executable, "-m", "tests.sim", "--shells", "--seed", str(seed), "--trace"],
        cwd=ROOT,
        env={"PYTHONHASHSEED": "9"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert output.stdout.split("\n")[: len(here.lines)] == here.lines


def test_a_run_is_the_same_beside_another_thread_that_runs_trio() -> None:
    """A test that ran before in this process may have left one."""
    alone, ending, began = run_seed(6).digest, threading.Event(), threading.Event()

    async def work() -> None:
        while not ending.is_set():
            began.set()
            await trio.sleep(0.000_1)

    async def others() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(work)

    thread = threading.Thread(target=trio.run, args=(others,))
    thread.start()
    try:
        began.wait()
        assert run_seed(6).digest == alone
    finally:
        ending.set()
        thread.join()


def test_the_command_reports_what_its_processes_ran() -> None:
    done = CliRunner().invoke(app, ["--shells", "--seeds", "2", "--seed", "6", "--processes", "1"])
    assert (done.exit_code, ", 0 failed" in done.output) == (0, True), done.output


def test_another_seed_is_another_run() -> None:
    assert run_seed(2).digest != run_seed(3).digest


def test_faults_can_be_left_out() -> None:
    whole, none = run_seed(6), run_seed(6, faults=[])
    assert whole.faults
    assert not none.violation
    assert none.digest != whole.digest


def test_tasks_take_turns_by_the_seed_and_trio_is_left_as_it_was() -> None:
    async def main(count: TaskCount) -> list[int]:
        order: list[int] = []

        async def add(number: int) -> None:
            for _ in range(3):
                await trio.lowlevel.checkpoint()
                order.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(add, number)
        return order

    before = trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING
    orders = [run_deterministic(main, seed) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING is before


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "seeds_max"),
    [
        ("syncs_go_with_the_connection", 12),
        ("reset_connections_are_never_over", 12),
        ("connections_are_not_closed", 5),
        ("who_is_held_back_stays_so", 5),
        ("waiters_are_not_woken_by_the_end", 5),
        ("a_disk_has_every_stamp", 12),
        ("stamps_are_counted_and_not_random", 12),
        ("a_newer_stamp_is_sent_before_the_older_one_is_proved", 12),
        ("a_stamp_is_sent_before_it_is_stored", 12),
        ("a_disk_knows_no_stamp_of_its_own_key", 12),
        ("claims_make_no_stamps", 12),
        ("writers_ask_for_no_stamp_of_their_claim", 12),
        ("macs_are_not_checked", 5),
        ("a_mac_does_not_cover_the_number", 5),
        ("silence_of_workers_is_not_noticed", 5),
        ("orphans_are_not_noticed", 5),
        ("links_outlive_their_incarnation", 3),
        ("a_life_begins_before_the_last_has_ended", 5),
        ("votes_do_not_wait_for_the_state", 10),
        ("votes_do_not_wait_for_output_logs", 10),
        ("votes_do_not_wait_for_files", 5),
        ("files_have_what_came_behind_the_checkpoint", 3),
        ("listeners_are_not_closed", 2),
    ],
)
def test_a_planted_bug_is_found(name: str, seeds_max: int) -> None:
    seeds, what = seeds_to_find(name, seeds_max)
    assert seeds, f"not found in {seeds_max} seeds: {what}"
