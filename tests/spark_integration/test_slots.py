"""When a region may start on a Spark master, and what is said when not."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_integration.core.session_checks import (
    SlotsShortage,
    judge_slots,
    larger_master,
    read_master,
    standby_shortage,
)


@pytest.mark.parametrize(
    ("url", "slots"),
    [
        ("local", 1),
        ("local[1]", 1),
        ("local[4]", 4),
        ("local[*]", 8),
        ("local[2,4]", 2),
        ("local[*,3]", 8),
        ("local-cluster[2,1,1024]", 2),
        ("local-cluster[2,3,512]", 6),
    ],
)
def test_masters_of_one_machine_have_a_fixed_number_of_slots(url: str, slots: int) -> None:
    master = read_master(url, cores=8)
    assert master.one_machine
    assert master.slots_fixed == slots


@pytest.mark.parametrize("url", ["spark://h:7077", "yarn", "k8s://https://h", "local-ish", "local[x]"])
def test_other_masters_may_grow_and_span_machines(url: str) -> None:
    master = read_master(url, cores=8)
    assert not master.one_machine
    assert master.slots_fixed is None


def test_a_region_is_refused_when_it_would_take_the_last_slot_and_is_told_what_would_do() -> None:
    verdict = judge_slots(read_master("local[2]", cores=2), registered=2, busy=0, workers=2, spare=1)
    assert verdict is not None
    assert verdict.for_good
    assert "2 workers" in verdict.text
    assert "local[2] has 2 in total" in verdict.text
    assert "local[4]" in verdict.text


def test_a_region_that_leaves_a_slot_may_start() -> None:
    assert judge_slots(read_master("local[3]", cores=2), registered=3, busy=0, workers=2, spare=1) is None


def test_a_region_may_take_all_slots_when_that_is_asked_for() -> None:
    master = read_master("local-cluster[2,1,1024]", cores=2)
    assert judge_slots(master, registered=2, busy=0, workers=2, spare=0) is None


def test_a_region_waits_while_executors_are_missing_or_busy() -> None:
    growing = read_master("spark://h:7077", cores=2)
    assert isinstance(judge_slots(growing, registered=0, busy=0, workers=2, spare=1), SlotsShortage)
    verdict = judge_slots(growing, registered=3, busy=2, workers=2, spare=1)
    assert verdict is not None
    assert not verdict.for_good
    assert verdict.text == "2 free slots are needed, 1 are free (3, 2 busy)"


def test_a_second_region_does_not_take_the_last_slot_that_the_first_one_left() -> None:
    master = read_master("local[4]", cores=2)
    verdict = judge_slots(master, registered=4, busy=2, workers=2, spare=1)
    assert verdict is not None
    assert not verdict.for_good
    assert verdict.text == (
        "2 free slots are needed, 2 are free (4, 2 busy) and 1 must be left for other jobs: end other regions"
        " and queries, or use local[5]"
    )
    assert judge_slots(master, registered=4, busy=1, workers=2, spare=1) is None
    assert judge_slots(master, registered=4, busy=2, workers=2, spare=0) is None
    assert judge_slots(master, registered=5, busy=2, workers=2, spare=1) is None


@given(
    url=st.sampled_from(["local[3]", "local[*]", "local-cluster[3,2,512]", "yarn"]),
    registered=st.integers(0, 20),
    busy=st.integers(0, 20),
    workers=st.integers(1, 10),
    spare=st.integers(0, 3),
)
def test_what_starts_has_its_slots_and_what_is_refused_can_never_have_them(
    url: str, registered: int, busy: int, workers: int, spare: int
) -> None:
    master = read_master(url, cores=4)
    verdict = judge_slots(master, registered=registered, busy=busy, workers=workers, spare=spare)
    left = spare if master.slots_fixed is not None else 0
    assert (verdict is None) <= (registered - busy >= workers + left)
    if verdict is not None and verdict.for_good:
        assert master.slots_fixed is not None
        assert master.slots_fixed < workers + spare


@given(workers=st.integers(1, 40), executors=st.integers(1, 9), memory_mb=st.integers(1, 4096))
def test_the_larger_master_that_is_named_would_do_and_is_of_the_same_kind(
    workers: int, executors: int, memory_mb: int
) -> None:
    """A cluster has as many executors as before, of the same memory, and no more cores than needed."""
    for url, form, each in (
        ("local[1]", r"local\[(\d+)\]", 1),
        (
            f"local-cluster[{executors},1,{memory_mb}]",
            rf"local-cluster\[{executors},(\d+),{memory_mb}\]",
            executors,
        ),
    ):
        named = larger_master(read_master(url, cores=1), workers)
        cores = re.fullmatch(form, named)
        assert cores is not None, named
        slots = read_master(named, cores=1).slots_fixed
        assert slots == int(cores[1]) * each
        assert workers + 2 <= slots < workers + 2 + each


def test_a_stand_by_leaves_the_slots_of_other_jobs_and_the_remedy_would_do() -> None:
    for url in ("local[4]", "local-cluster[2,2,512]"):
        master = read_master(url, cores=1)
        assert standby_shortage(master, registered=4, busy=2, spare=1) is None
        reason = standby_shortage(master, registered=4, busy=3, spare=1)
        assert reason is not None
        assert "3 of 4 slots are in use, and 1 must be left for other jobs: use local" in reason
        assert "standby=0" in reason
        larger = read_master(larger_master(master, 3 + 1), cores=1)
        assert larger.slots_fixed is not None
        assert standby_shortage(larger, registered=larger.slots_fixed, busy=3, spare=1) is None


def test_where_executors_come_and_go_a_stand_by_needs_a_free_slot() -> None:
    master = read_master("spark://h:7077", cores=2)
    assert standby_shortage(master, registered=4, busy=3, spare=1) is None
    reason = standby_shortage(master, registered=4, busy=4, spare=1)
    assert reason == "4 of 4 slots are in use: add executors, or pass standby=0"
