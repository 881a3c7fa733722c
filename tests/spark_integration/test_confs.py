"""Which confs of a session do not go with workers."""

import pytest

from spark_integration.core.session_checks import grows, judge_confs, read_master

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
