"""Visitors in the simulator: version 0 and appends without a claim, and what their servers promise them."""

from collections import Counter

import pytest

from tests.sim import hunt
from tests.sim.bugs import BUGS
from tests.sim.campaign import digest_elsewhere
from tests.sim.engine.random_streams import RandomStreams
from tests.sim.run import run_seed
from tests.sim.store.alone import machine
from tests.sim.visitors import LOOSE
from tests.sim.visitors.visitors import has_visitors

SEEDS = [seed for seed in range(1, 400) if has_visitors(RandomStreams(seed))][:8]
FOUND_SOON = {
    "version_0_reports_written_as_synced": 40,
    "streams_lock_nothing": 5,
    "prefix_digests_are_not_compared": 10,
}
"""Planted bugs, with the maximum number of runs with visitors."""


# EVIDENCE-OF: P-1, P-3, P-8
def test_clients_without_a_claim_receive_correct_reports() -> None:
    seen = Counter[str]()
    for seed in SEEDS:
        result = run_seed(seed)
        assert not result.violation, f"seed {seed}: {result.violation}\n  ./run sim --seed {seed} --trace"
        seen += result.history.sometimes
    assert seen["version 0: a"] > 30
    assert seen["version 0: a refused"]
    assert seen["visitor: appended by version 1"] > 50
    assert seen["answer: BEING_APPENDED"]
    assert seen["answer: DIGEST_MISMATCH"]


def test_bytes_lost_to_damage_are_not_missed_again_after_its_server_reports_less() -> None:
    one = machine()
    file = one.loose["f"]
    file.streamed(bytes(30))
    file.reported(30, 30)
    one.damaged[file.path], one.reported[LOOSE, "f"] = True, 0
    file.reported(0, 0)
    assert one.reported[LOOSE, "f"] == 0
    file.reported(20, 20)
    assert one.reported[LOOSE, "f"] == 20


@pytest.mark.long
def test_a_run_with_visitors_is_the_same_in_another_process() -> None:
    assert digest_elsewhere(SEEDS[0], "1") == digest_elsewhere(SEEDS[0], "2") == run_seed(SEEDS[0]).digest


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(FOUND_SOON))
def test_a_planted_bug_of_visitors_is_found(name: str) -> None:
    seeds, what = hunt.seeds_to_find(name, FOUND_SOON[name])
    assert seeds, f"{name} ({BUGS[name].breaks}) was not found in {FOUND_SOON[name]} runs: {what}"
