"""`dos input sweep` on three real servers, behind real tasks and drivers of the sink that were killed, and
beside some that live: what it takes away, and what becomes of who comes back.
"""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from click.testing import Result
from typer.testing import CliRunner

from checkpoint.core.records.staged import CommitUnit, WriteKind, staged_name
from dataflow.blocking import close_input
from dataflow.input_cli import app
from dos_client.blocking import BlockingStore, open_store
from dos_protocol.errors import FencedError
from spark_integration.core.options import SinkOptions
from spark_integration.core.sink_commits import CommitDecision
from spark_integration.errors import StagedRowsGoneError
from spark_integration.writing.committing import commit
from spark_integration.writing.staging import StagedCommit, claim_above, prepare
from tests.spark_integration.sink_process import SCHEMA, Command, Died, SinkProcesses
from tests.spark_integration.test_sink_store import BIG, batch, left_over, read, rows, written
from tests.support.servers import ServerProcess, three_servers

__all__ = ["three_servers"]
pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


@pytest.fixture
def store(options: SinkOptions) -> Iterator[BlockingStore]:
    with open_store(options.servers) as found:
        yield found


@pytest.fixture(scope="module")
def processes() -> Iterator[SinkProcesses]:
    with SinkProcesses() as found:
        yield found


def dos(options: SinkOptions, *arguments: str) -> Result:
    """`dos input sweep`, in this process."""
    command = ["sweep", f"dos://{options.servers.removeprefix('dos://')}", "shop", options.input, *arguments]
    return CliRunner(env={"COLUMNS": "160", "NO_COLOR": "1"}).invoke(app, command)


def swept(options: SinkOptions, *arguments: str) -> dict[str, Any]:
    done = dos(options, *arguments, "--json")
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


def states(found: dict[str, Any]) -> list[tuple[int | None, str, bool]]:
    return [(one["batch"], one["state"], one["garbage"]) for one in found["staged"]]


def killed(processes: SinkProcesses, options: SinkOptions, unit: CommitUnit, step: str) -> list[StagedCommit]:
    """Two partitions staged by tasks, and a driver that dies by SIGKILL before that step of its commit."""
    text = [rows(10 * (unit.number or 0) + at, text=BIG) for at in range(2)]
    prepared = [processes.do(Command(options, unit, "p", at, one)) for at, one in enumerate(text)]
    with pytest.raises(Died):
        processes.do(Command(options, unit, "p", prepared=prepared, dies=(step, "before")))
    return prepared


def test_what_a_killed_driver_had_recorded_goes_at_once_and_with_no_option(
    processes: SinkProcesses, options: SinkOptions, store: BlockingStore
) -> None:
    killed(processes, options, batch(0), "commit: sweep")
    shown = swept(options)
    assert states(shown) == [(1, "recorded", True)] * 2
    assert shown["deleted"] is None
    assert len(left_over(store, options)) == 2
    assert swept(options, "--apply")["deleted"] == 2
    assert not left_over(store, options)
    assert read(options) == [10, 11]
    assert states(swept(options)) == []


def test_what_a_killed_driver_had_not_recorded_stays_until_somebody_gives_it_up_and_then_its_zombie_fails(
    processes: SinkProcesses, options: SinkOptions, store: BlockingStore
) -> None:
    commit(options, written(options, batch(0), rows(10), rows(11)), SCHEMA)
    zombie = killed(processes, options, batch(1), "commit: send a part")
    with claim_above(store, zombie[0].directory) as claim:  # as a task of batch 1 left it that was killed
        beside = claim.open_object(staged_name(batch(0), claim.epoch, 0))
        beside.wait_synced(beside.append(b"rows"))
    both = [(1, "recorded", False), (2, "undecided", False), (2, "undecided", False)]
    epoch = store.inspect("shop.in.orders.p").epoch_seen
    for age in ([], ["--undecided-older-than", "3600"]):
        assert states(swept(options, "--apply", *age)) == both
        assert len(left_over(store, options)) == 3
    assert store.inspect("shop.in.orders.p").epoch_seen == epoch  # nobody was fenced
    told = dos(options)
    assert "2 undecided: a writer may still record them" in told.stdout
    assert "nothing to delete" in told.stdout
    given_up = swept(options, "--apply", "--undecided-older-than", "0")
    assert states(given_up) == [(1, "recorded", True), (2, "given up", True), (2, "given up", True)]
    assert given_up["deleted"] == 3
    assert store.inspect("shop.in.orders.p").epoch_seen > epoch
    assert not left_over(store, options)
    with pytest.raises(StagedRowsGoneError, match="is gone"):
        commit(options, zombie, SCHEMA)
    assert read(options) == [10, 11]
    assert (
        commit(options, written(options, batch(1), rows(20), rows(21, text=BIG)), SCHEMA)
        is CommitDecision.APPEND
    )
    assert read(options) == [10, 11, 20, 21]


def test_a_query_that_was_killed_before_its_first_commit_leaves_no_producer_behind(
    processes: SinkProcesses, options: SinkOptions, store: BlockingStore
) -> None:
    killed(processes, options, batch(0), "commit: become the producer")
    assert states(swept(options)) == [(1, "undecided", False)] * 2
    assert swept(options, "--apply", "--undecided-older-than", "0")["deleted"] == 2
    assert store.list_directories("shop.in.") == []


def test_a_sweep_fences_the_driver_and_the_task_that_are_at_work_only_when_it_gives_them_up(
    options: SinkOptions, store: BlockingStore
) -> None:
    def slow() -> Iterator[pa.RecordBatch]:
        for number in range(12):
            if number == 6:  # the first are staged by then
                found.append(swept(options, "--apply", "--undecided-older-than", age))
            yield pa.RecordBatch.from_pylist(rows(number, text=BIG), SCHEMA)

    commit(options, written(options, batch(0), rows(0)), SCHEMA)  # it keeps the producer open
    age, found = "3600", list[dict[str, Any]]()
    prepared = [prepare(options, batch(1), "p", 0, SCHEMA, slow())]
    assert states(found[0]) == [(2, "undecided", False)]
    age, found = "0", []
    with pytest.raises(FencedError):
        prepare(options, batch(1), "p", 0, SCHEMA, slow())
    assert found[0]["deleted"] == len(found[0]["staged"]) >= 1
    with pytest.raises(StagedRowsGoneError):
        commit(options, prepared, SCHEMA)
    commit(options, written(options, batch(1), rows(1, text=BIG)), SCHEMA)
    assert read(options) == [0, 1]
    assert not left_over(store, options)


def test_when_the_input_is_closed_all_of_it_goes_and_a_member_that_is_unavailable_holds_nothing_up(
    processes: SinkProcesses,
    options: SinkOptions,
    store: BlockingStore,
    three_servers: list[ServerProcess],
) -> None:
    killed(processes, options, batch(0), "commit: judge")
    job = CommitUnit(WriteKind.JOB, "a" * 32, None)
    written(options, job, rows(1, text=BIG), producer="other")
    close_input(store, "shop", "orders")
    assert {one[1] for one in states(swept(options))} == {"closed"}
    three_servers[2].kill()
    assert swept(options, "--apply")["deleted"] == 3
    assert not left_over(store, options)


def test_an_input_that_nobody_has_written_to_is_no_input_without_garbage(options: SinkOptions) -> None:
    nothing = dos(options)
    assert (nothing.exit_code, nothing.stdout) == (1, "")
    assert "application 'shop' has no input 'orders': it has none" in nothing.stderr
    commit(options, written(options, batch(0), rows(1)), SCHEMA)
    assert swept(options)["staged"] == []
    mistyped = dos(msgspec.structs.replace(options, input="ordres"))
    assert mistyped.exit_code == 1
    assert "no input 'ordres': it has orders" in mistyped.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("dos://h", "shop", "or.ders"), "the name of an input handle consists of letters, digits"),
        (("dos://h/shop", "shop", "orders"), "names a directory"),
        (("dos://h", "shop", "orders", "--undecided-older-than", "-1"), "greater than or equal to 0"),
    ],
)
def test_what_cannot_be_meant_is_reported(arguments: tuple[str, ...], said: str) -> None:
    done = CliRunner(env={"COLUMNS": "160", "NO_COLOR": "1"}).invoke(app, ["sweep", *arguments])
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr
