"""The sink `dos` on three real servers, with real processes as tasks and drivers, which die between every two
steps of write and commit, and do what zombies do. Without Spark: it is in none of these steps.
"""

from typing import Any

import pytest

from checkpoint.core.records.staged import CommitUnit
from dos_client.blocking import open_store
from spark_integration.core.options import SinkOptions
from spark_integration.writing.committing import commit
from spark_integration.writing.staging import StagedCommit
from tests.spark_integration.sink_process import SCHEMA, STEPS, Command, Died, SinkProcesses
from tests.spark_integration.test_sink_store import BIG, batch, left_over, read, rows, written
from tests.support.servers import three_servers

__all__ = ["three_servers"]
pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


def test_the_driver_that_commits_later_fences_the_zombie_and_neither_doubles_a_row(
    options: SinkOptions,
) -> None:
    with SinkProcesses() as others:
        for number in range(3):
            mine = written(options, batch(number), rows(number, text=BIG))
            theirs = written(options, batch(number), rows(number, text=BIG))
            first, second = (mine, theirs) if number % 2 else (theirs, mine)
            for prepared in (first, second):
                if prepared is mine:
                    commit(options, mine, SCHEMA)
                else:
                    others.do(Command(options, batch(number), "p", prepared=theirs))
    assert read(options) == [0, 1, 2]


LAST = ("write: synced", "commit: send a part", "commit: recorded", "commit: sweep")
"""Behind the others another step begins."""
KILLS = [(step, when) for step in STEPS for when in ("before", "behind") if when == "before" or step in LAST]


def test_killed_between_any_two_steps_every_row_exists_once_and_nothing_is_left_over(
    options: SinkOptions,
) -> None:
    """Each time with rows of the micro-batch cut into partitions in another way, as Spark may do."""
    expected: list[int] = []
    with SinkProcesses() as processes, open_store(options.servers) as store:

        def tasks(
            unit: CommitUnit, *partitions: list[dict[str, Any]], dies: Any = None
        ) -> list[StagedCommit]:
            return [
                processes.do(Command(options, unit, "p", at, one, dies=dies))
                for at, one in enumerate(partitions)
            ]

        def attempt(unit: CommitUnit, dies: tuple[str, str], *partitions: list[dict[str, Any]]) -> None:
            prepared = tasks(unit, *partitions, dies=dies if dies[0].startswith("write") else None)
            processes.do(Command(options, unit, "p", prepared=prepared, dies=dies))

        for number, (step, when) in enumerate(KILLS):
            unit, numbers = batch(number), [10 * number + at for at in range(4)]
            expected += numbers
            one, two, three, four = (rows(at, text="" if at % 10 else BIG) for at in numbers)
            with pytest.raises(Died):
                attempt(unit, (step, when), one + two, three + four)
            assert read(options) in (expected, expected[:-4]), (step, when)
            again = tasks(unit, one, two + three, four)
            processes.do(Command(options, unit, "p", prepared=again))
            if number % 2:
                processes.do(Command(options, unit, "p", prepared=again))
            assert read(options) == expected, (step, when)
            assert not left_over(store, options), (step, when)
