"""Whether a session can run a region: its slots, its confs, and the address of its driver, chosen or refused
with the remedy.
"""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dos_protocol.errors import DosError
from spark_integration.core.session_checks import (
    SlotsShortage,
    choose_addresses,
    grows,
    judge_confs,
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


LOCAL = read_master("local[4]", cores=4)
YARN = read_master("yarn", cores=4)
KILL, SECONDS = "spark.python.worker.killOnIdleTimeout", "spark.python.worker.idleTimeoutSeconds"
SQL_KILL = "spark.sql.execution.pyspark.udf.killOnIdleTimeout"
SQL_SECONDS = "spark.sql.execution.pyspark.udf.idleTimeoutSeconds"
AFTER = "spark.speculation.task.duration.threshold"


@pytest.mark.parametrize(
    ("confs", "refused"),
    [
        ({}, ""),
        ({KILL: "true"}, ""),
        ({SECONDS: "60"}, ""),
        ({KILL: "true", SECONDS: "0"}, ""),
        ({KILL: "true", SECONDS: "60"}, f"{KILL}=true and {SECONDS}=60 would make Spark kill each worker"),
        ({SQL_KILL: "true", SECONDS: "60s"}, f"{SQL_KILL}=true and {SECONDS}=60s"),
        ({KILL: "true", SECONDS: "60", SQL_SECONDS: "0"}, ""),
        ({"spark.speculation": "true"}, ""),
        ({AFTER: "10min"}, ""),
        ({"spark.speculation": "true", AFTER: "10min"}, f"{AFTER}=10min would make Spark start each worker"),
    ],
)
def test_what_would_kill_or_double_a_silent_worker_is_refused(confs: dict[str, str], refused: str) -> None:
    found = judge_confs(confs.get, LOCAL).refused
    assert (refused in found) if refused and found else (bool(refused) == bool(found))


def test_what_may_surprise_is_a_warning() -> None:
    assert judge_confs({}.get, LOCAL).warnings == []
    reaper = {"spark.task.reaper.enabled": "true", "spark.task.reaper.killTimeout": "60s"}
    (said,) = judge_confs(reaper.get, LOCAL).warnings
    assert "spark.task.reaper.killTimeout=60s: if a canceled worker takes longer" in said
    assert judge_confs({**reaper, "spark.task.reaper.killTimeout": "-1"}.get, LOCAL).warnings == []
    (said,) = judge_confs({"spark.excludeOnFailure.enabled": "true"}.get, LOCAL).warnings
    assert "machines on which workers were lost are excluded" in said


def test_on_yarn_and_kubernetes_lost_executors_should_be_forgiven() -> None:
    for url in ("yarn", "k8s://https://host:6443"):
        master = read_master(url, cores=4)
        (said,) = judge_confs({}.get, master).warnings
        assert said.startswith("spark.executor.failuresValidityInterval is not set")
        assert judge_confs({"spark.executor.failuresValidityInterval": "1h"}.get, master).warnings == []


def test_executors_come_on_their_own_only_where_the_conf_and_the_master_let_them() -> None:
    dynamic = {"spark.dynamicAllocation.enabled": "true"}
    assert grows(dynamic.get, YARN)
    assert not grows(dynamic.get, LOCAL)
    assert not grows({}.get, YARN)
    assert not grows({"spark.dynamicAllocation.enabled": "false"}.get, YARN)


CLUSTER = read_master("spark://10.0.0.1:7077", cores=2)
LOCAL_CLUSTER = read_master("spark://127.0.0.1:7077", cores=2)


@pytest.mark.parametrize(
    ("master", "requested", "driver_host", "expected"),
    [
        (LOCAL, None, "192.168.1.5", ("127.0.0.1", "127.0.0.1")),
        (LOCAL, "127.0.0.9", None, ("127.0.0.9", "127.0.0.9")),
        (CLUSTER, None, "10.0.0.9", ("10.0.0.9", "0.0.0.0")),
        (CLUSTER, "d", "10.0.0.9", ("d", "0.0.0.0")),
        (CLUSTER, None, "[fd00::9]", ("fd00::9", "0.0.0.0")),
        (LOCAL_CLUSTER, None, "127.0.0.1", ("127.0.0.1", "0.0.0.0")),
    ],
)
def test_the_address_that_the_program_or_spark_names(master, requested, driver_host, expected) -> None:  # type: ignore[no-untyped-def]
    assert choose_addresses(master, requested, driver_host, insecure=True) == expected


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]", "127.0.0.1", "[::1]", "localhost"])
@pytest.mark.parametrize("url", ["spark://10.0.0.1:7077", "yarn", "k8s://https://10.0.0.1:443"])
def test_an_address_that_means_another_machine_on_each_machine_is_refused(host: str, url: str) -> None:
    master = read_master(url, cores=2)
    for requested, driver_host in ((host, "10.0.0.9"), (None, host)):
        with pytest.raises(DosError, match=r"spark\.driver\.host"):
            choose_addresses(master, requested, driver_host, insecure=True)
    with pytest.raises(DosError):
        choose_addresses(master, None, None, insecure=True)


def test_clear_text_between_machines_has_to_be_confirmed() -> None:
    with pytest.raises(DosError, match="insecure=True"):
        choose_addresses(CLUSTER, None, "10.0.0.9", insecure=False)
