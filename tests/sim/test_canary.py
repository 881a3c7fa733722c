"""Canaries: for each oracle a violation that only it detects. A test here fails if an oracle is switched off
or missing in the table.
"""

from collections.abc import Callable

import pytest

from dos_protocol.errors import ErrorCode
from dos_protocol.messages import ObjectInfo
from tests.sim.bugs import planted
from tests.sim.history import History, ViolationError
from tests.sim.oracles import ORACLES, bench, without
from tests.sim.run import run_seed
from tests.sim.store.alone import machine

NUMBERS = ["O1", "O2", "O3", "O4", "O5", "O6", "O9", "O10", "O11", "O12", "O14"]

PLANTED = {
    "O5": ("the_last_object_is_not_listed", 10),
    "O9": ("refused_appends_are_written", 60),
    "O10": ("the_server_reads_without_limit", 60),
    "O12": ("the_scrub_keeps_what_it_finds_to_itself", 80),
}
"""Bugs that only one oracle can detect, with the maximum number of seeds."""


def _line(history: History, *epochs: int) -> list[int]:
    return [history.number("a", epoch) for epoch in epochs]


def acknowledged_and_not_found(history: History) -> None:
    first, second = _line(history, 1, 1)
    history.acknowledge("a", first)
    history.acknowledge("a", second)
    history.took_over("a", 2, [first])


def found_in_another_order(history: History) -> None:
    first, second = _line(history, 1, 1)
    history.took_over("a", 2, [second, first])


def read_and_not_found(history: History) -> None:
    (first,) = _line(history, 1)
    history.returned("a", [first])
    history.took_over("a", 2, [])


def acknowledged_and_not_read(history: History) -> None:
    (first,) = _line(history, 1)
    history.acknowledge("a", first)
    history.returned("a", [], owed=history.acknowledged_now("a"))


def acknowledged_after_another_took_over(history: History) -> None:
    (first,) = _line(history, 1)
    history.took_over("a", 2, [])
    history.acknowledge("a", first)


def reported_and_not_listed(history: History) -> None:
    history.bench.listed(machine(), "a", {"one": 5}, {})


def listed_and_not_durable(history: History) -> None:
    history.bench.listed(machine(), "a", {}, {"one": ObjectInfo("one", 5, 5, 0)})


def refused_for_good(history: History) -> None:
    history.refuse("a", "bytes are gone")


def nothing_moves(history: History) -> None:
    history.bench.stuck("nothing for two minutes")


def refused_for_space_that_is_available(history: History) -> None:
    history.bench.append_refused(machine(), 1, 1, ErrorCode.NO_SPACE)


def acknowledged_after_its_file_was_removed(history: History) -> None:
    one = machine()
    one.reportable_max["a", "one"] = 5
    history.bench.acknowledged_bytes(one, "a", "one", 6)


def a_removed_folder_that_nobody_notices(history: History) -> None:
    history.bench.overlooked(machine(), "log")


HAND_MADE: list[tuple[str, Callable[[History], None]]] = [
    ("O1", acknowledged_and_not_found),
    ("O2", found_in_another_order),
    ("O3", read_and_not_found),
    ("O3", acknowledged_and_not_read),
    ("O4", acknowledged_after_another_took_over),
    ("O5", reported_and_not_listed),
    ("O5", listed_and_not_durable),
    ("O6", refused_for_good),
    ("O11", nothing_moves),
    ("O14", refused_for_space_that_is_available),
    ("O14", acknowledged_after_its_file_was_removed),
    ("O14", a_removed_folder_that_nobody_notices),
]


def test_every_oracle_is_on_the_bench_and_has_a_canary() -> None:
    assert [kind.number for kind in ORACLES] == NUMBERS
    assert {number for number, _ in HAND_MADE} | set(PLANTED) == set(NUMBERS)


@pytest.mark.parametrize(("number", "happens"), HAND_MADE)
def test_a_hand_made_history_is_noticed_by_its_oracle_alone(
    number: str, happens: Callable[[History], None]
) -> None:
    with pytest.raises(ViolationError) as caught:
        happens(History(bench()))
    assert caught.value.oracle == number
    with without(number):
        happens(History(bench()))


@pytest.mark.parametrize("number", PLANTED)
def test_a_planted_bug_is_noticed_by_its_oracle_alone(number: str) -> None:
    name, seeds_max = PLANTED[number]
    with planted(name):
        for seed in range(1, 1 + seeds_max):
            found = run_seed(seed).oracle
            if found:
                assert found == number, f"seed {seed}"
                break
        else:
            pytest.fail(f"{name} was not found in {seeds_max} seeds")
        with without(number):
            assert not run_seed(seed).violation, f"seed {seed}"
