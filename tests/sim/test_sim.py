"""The simulator: its runs find nothing wrong, are the same every time, and find what is planted."""

import logging
import re
from collections import Counter
from itertools import count, islice

import pytest

from dos_server.core.server_core import ServerCore
from tests.sim import hunt
from tests.sim.bugs import BUGS
from tests.sim.campaign import digest_elsewhere, line_of, run_batch, shrink
from tests.sim.engine.random_streams import RandomStreams
from tests.sim.nemesis import ALL_KINDS, OF_LOGS, has_troubles, plan_of
from tests.sim.oracles import without
from tests.sim.regressions import REGRESSIONS, Regression
from tests.sim.run import CRASH, ROOT, run_seed
from tests.sim.test_visitors import SEEDS as OF_VISITORS
from tests.sim.tiers import CORES
from tests.support.group_log import LOG_SEEDS
from tests.support.parts import with_long

BATCH = 25
BATCHES = with_long(range(2), range(2, 8))
LOG_BATCHES = with_long(range(3), range(3, 10), range(10, 24))
"""Many batches, so that all test processes have work until the end. `./run sim --seeds N` runs more seeds."""
TROUBLED = list(islice((seed for seed in count(1) if has_troubles(RandomStreams(seed))), 40))
OF_OTHER_TESTS = {*OF_VISITORS, *TROUBLED, *(once.seed for once in REGRESSIONS)}
"""Seeds that another test runs and checks for violations, so the batches do not."""

FOUND_SOON = (
    "acknowledge_before_sync",
    "directory_entry_is_not_synced",
    "small_files_are_overwritten_in_place",
    "sync_covers_what_comes_meanwhile",
    "unsynced_bytes_are_served",
    "restart_trusts_the_page_cache",
    "full_disk_leaves_a_part",
    "claim_is_not_stored",
    "lower_epochs_may_claim",
    "fenced_sessions_may_append",
    "older_sessions_receive_watermarks",
    "superseded_writers_have_two_seconds",
    "a_lost_answer_is_taken_for_success",
    "a_lost_client_leaves_the_size_of_the_file",
    "sizes_are_read_before_the_claim",
    "longest_copy_is_the_head",
    "records_do_not_wait_for_the_one_before",
    "readers_receive_everything",
    "readers_end_where_a_quorum_ends",
    "created_without_all_members",
    "one_member_acknowledges",
    "payload_digests_are_not_compared",
    "lack_of_descriptors_is_remembered_as_damage",
    "missing_rights_are_reported_as_no_space",
    "every_error_is_the_disks",
    "short_writes_are_taken_for_whole",
    "the_rest_of_a_short_write_goes_to_the_beginning",
    "appends_to_a_removed_directory_are_acknowledged",
    "a_missing_directory_was_never_claimed",
    "only_claims_of_a_missing_directory_are_refused",
    "directories_are_never_registered",
    "a_directory_removed_at_work_is_not_noticed",
    "a_removed_log_is_not_noticed",
    "the_log_makes_a_missing_directory_again",
    "the_folder_of_objects_is_made_again",
    "the_log_acknowledges_before_its_sync",
    "a_segment_is_released_before_its_objects_are_filed",
    "what_is_replayed_is_not_synced",
    "claims_are_granted_before_their_record",
    "claims_are_replayed_as_the_last_entry_says",
    "the_log_is_halved_at_each_start",
    "a_clean_stop_files_nothing",
    "bytes_are_logged_above_bytes_that_are_not_covered",
)
"""Bugs that few seeds find, about half of them. The others are hunted by hand, see docs/robustness.md."""
SOON = 100
"""Maximum number of seeds for one of them; all together take about ten times that."""


# EVIDENCE-OF: P-1, P-2, P-4, P-5, P-10
@pytest.mark.parametrize("batch", BATCHES)
def test_nothing_is_lost_with_any_failures(batch: int) -> None:
    seeds = range(1 + batch * BATCH, 1 + (batch + 1) * BATCH)
    for outcome in run_batch(CORES, (seed for seed in seeds if seed not in OF_OTHER_TESTS)):
        assert not outcome.violation, f"{outcome.violation}\n  {line_of(outcome.seed, None)}"


# EVIDENCE-OF: P-1, P-2, P-4, P-5, P-6, P-7, P-10
@pytest.mark.parametrize("batch", LOG_BATCHES)
def test_nothing_is_lost_with_group_logs(batch: int) -> None:
    """Every sixth run has a region, and every fortieth a store whose members change."""
    first = LOG_SEEDS + batch * BATCH
    for outcome in run_batch(CORES, range(first, first + BATCH)):
        assert not outcome.violation, f"{outcome.violation}\n  {line_of(outcome.seed, None)}"


@pytest.mark.parametrize("once", REGRESSIONS, ids=lambda once: str(once.seed))
def test_a_seed_that_found_a_fault_finds_none_any_more(once: Regression) -> None:
    result = run_seed(once.seed)
    assert not result.violation, f"{result.violation}\n  {line_of(once.seed, None)}"
    assert not once.test or (ROOT / once.test).is_file(), (
        f"{once.test} does not exist; it tested: {once.what}"
    )


def test_a_seed_is_the_same_run_in_another_process() -> None:
    assert digest_elsewhere(11, "1") == digest_elsewhere(11, "2") == run_seed(11).digest


def test_an_unexpected_error_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: object) -> None:
        raise ZeroDivisionError("of the core")

    monkeypatch.setattr(ServerCore, "handle", broken)
    result = run_seed(11)
    assert result.oracle == CRASH
    assert result.violation.startswith("crash: ZeroDivisionError: of the core (tests/sim/test_sim.py:")
    assert run_batch(CORES, [11])[0].violation == result.violation


def test_two_seeds_are_two_runs() -> None:
    assert run_seed(11).digest != run_seed(12).digest


def test_every_kind_of_fault_is_planned_sometimes() -> None:
    kinds = {fault.kind for seed in range(600) for fault in plan_of(seed)}
    assert kinds == set(ALL_KINDS) - set(OF_LOGS), "without a log a seed is the same run as ever"
    kinds |= {fault.kind for seed in range(LOG_SEEDS, LOG_SEEDS + 20) for fault in plan_of(seed)}
    assert kinds == set(ALL_KINDS)


def test_troubles_of_disks_happen_and_are_not_only_planned() -> None:
    """Each has affected a disk call, and some have prevented the start of a server."""
    seen = Counter[str]()
    for seed in TROUBLED:
        result = run_seed(seed)
        assert not result.violation, f"{result.violation}\n  {line_of(seed, None)}"
        seen += result.history.sometimes
    came = {name.removeprefix("disk: ").split(" from ")[0] for name in seen if name.startswith("disk: ")}
    removed = {"folder removed at work", "folder removed before a start"}
    assert came == {"EMFILE", "EACCES", "EIO", "ENOSPC", "short write", *removed}
    assert seen["start: refused"]


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(FOUND_SOON))
def test_a_planted_bug_is_found(name: str) -> None:
    seeds, what = hunt.seeds_to_find(name, SOON)
    assert seeds, f"{name} ({BUGS[name].breaks}) was not found in {SOON} seeds: {what}"


def test_the_faults_of_a_failing_run_are_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that acknowledges before it syncs needs only one power cut, without the observer's oracle
    O5."""
    with hunt.planted("acknowledge_before_sync"), without("O5"):
        seed = next(seed for seed in range(1, 10) if run_seed(seed).oracle == "O1")
        result = run_seed(seed)
        left = shrink(seed, result.faults, "O1", runs_max=60)
        assert len(left) < len(result.faults)
        assert run_seed(seed, faults=left).oracle == "O1"
        for fault in left if len(left) < 5 else ():
            assert run_seed(seed, faults=[one for one in left if one is not fault]).oracle != "O1"
    assert not run_seed(seed, faults=left).violation, "without the bug the same faults do no harm"


def test_a_run_is_the_same_with_a_trace_and_without() -> None:
    """The trace begins with the servers, and after each fault it has the effect."""
    logging.disable(logging.NOTSET)
    read = run_seed(9, keep=True)
    logging.disable(logging.CRITICAL)
    assert read.digest == run_seed(9).digest
    assert re.search(r" run +\d servers?, \d acknowledges?;", read.lines[0])
    struck = [number for number, line in enumerate(read.lines) if re.search(r"nemesis +\d+:\w+ for", line)]
    assert len(struck) == len(read.faults)
    answered = [read.lines[number:] for number in struck]
    assert all(any(re.search(r"nemesis {4}\S", line) for line in after) for after in answered)
