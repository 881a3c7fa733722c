"""The sink `dos` on a store of three in memory, without Spark: what tasks prepare and the driver commits, who
is fenced, what is left over.
"""

from collections.abc import Iterator
from itertools import count
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from checkpoint.core.records.staged import BatchContent, CommitUnit, WriteKind, staging_prefix
from checkpoint.errors import InputClosedError
from dataflow.blocking import close_input, open_producer
from dataflow.schema import parse_schema
from dos_client import QuorumUnavailableError
from dos_client.blocking import BlockingStore
from dos_protocol.errors import FencedError
from dos_server.testing import Servers, ThreadedServer, threaded_store
from spark_integration.core.options import SinkOptions, parse_options, parse_sink_options
from spark_integration.core.sink_commits import CommitDecision, RepeatedBatch
from spark_integration.errors import (
    BatchPlannedAgainError,
    NothingThereError,
    OtherCheckpointError,
    OtherWriterError,
    SchemaMismatchError,
    StagedRowsGoneError,
)
from spark_integration.limits import SINK_READ_BYTES, SINK_READS_AHEAD
from spark_integration.reading.planning import plan_batch
from spark_integration.reading.readers import rows_of
from spark_integration.writing import committing
from spark_integration.writing.committing import check_target, commit, release_producers
from spark_integration.writing.staging import StagedCommit, claim_above, content_of, prepare, sum_of
from tests.spark_integration.sink_process import SCHEMA

QUERY = "11111111-2222-3333-4444-555555555555"
BIG = Random(8).randbytes(400_000).hex()
"""A row of it does not fit into a message, however it is packed."""
_names = count()


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers[ThreadedServer]]:
    with threaded_store() as found:
        yield found


@pytest.fixture
def options(servers: Servers[ThreadedServer]) -> Iterator[SinkOptions]:
    """A handle that nobody has written to."""
    yield parse_sink_options({"path": f"{servers.url}/shop", "input": f"orders{next(_names)}"})
    release_producers()


def rows(*numbers: int, text: str = "") -> list[dict[str, Any]]:
    return [{"n": number, "text": text} for number in numbers]


def batch(number: int) -> CommitUnit:
    """Micro-batch `number` of the query."""
    return CommitUnit(WriteKind.STREAM, QUERY, number + 1)


def written(
    options: SinkOptions, unit: CommitUnit, *partitions: list[dict[str, Any]], producer: str = "p"
) -> list[StagedCommit]:
    """What the tasks prepare, one for each partition."""
    return [
        prepare(options, unit, producer, at, SCHEMA, [pa.RecordBatch.from_pylist(one, SCHEMA)])
        for at, one in enumerate(partitions)
    ]


def read(options: SinkOptions) -> list[int]:
    """What a reader sees, in order."""
    reading = parse_options({"path": f"{options.servers}/{options.application}", "input": options.input})
    found: list[int] = []
    try:
        partitions = plan_batch(reading, SCHEMA, ())
    except NothingThereError:
        return found
    for partition in partitions:
        for one in rows_of(reading, SCHEMA, (), partition):
            found += one.column("n").to_pylist()
    return found


def left_over(store: BlockingStore, options: SinkOptions) -> set[str]:
    """What lies in the directories of partitions."""
    found: set[str] = set()
    for directory in store.list_directories(staging_prefix(options.application, options.input, "p")):
        found |= {name for held in store.inspect(directory).answers.values() for name in held}
    return found


def test_what_tasks_prepare_is_seen_when_it_is_committed_and_not_before(
    store: BlockingStore, options: SinkOptions
) -> None:
    commit(options, written(options, batch(0), rows(1)), SCHEMA)
    prepared = written(options, batch(1), rows(2, 3), [], rows(4, text=BIG))
    assert [bool(one.name) for one in prepared] == [False, False, True]
    assert read(options) == [1]
    assert commit(options, prepared, SCHEMA) is CommitDecision.APPEND
    assert read(options) == [1, 2, 3, 4]
    assert not left_over(store, options)


def test_a_commit_returns_when_its_batch_is_synced_on_a_quorum(options: SinkOptions) -> None:
    # EVIDENCE-OF: P-1
    for number in range(3):
        commit(options, written(options, batch(number), rows(number)), SCHEMA)
        (committer,) = committing._open_producers.values()
        log = committer._log
        assert log._recorded[0] == log.last == number + 1


def test_a_micro_batch_that_is_committed_again_changes_nothing_however_its_rows_are_divided(
    options: SinkOptions,
) -> None:
    first = written(options, batch(0), rows(1, 2), rows(3))
    commit(options, first, SCHEMA)
    assert commit(options, first, SCHEMA) is CommitDecision.DONE
    release_producers()  # as a new driver
    assert commit(options, written(options, batch(0), rows(1), rows(2, 3)), SCHEMA) is CommitDecision.DONE
    again = written(options, batch(0), rows(3), [], rows(2, 1))
    assert commit(options, again, SCHEMA) is CommitDecision.DONE
    assert commit(options, written(options, batch(1), []), SCHEMA) is CommitDecision.APPEND
    assert commit(options, written(options, batch(2), rows(4)), SCHEMA) is CommitDecision.APPEND
    assert read(options) == [1, 2, 3, 4]


def test_rows_that_spark_plans_again_under_a_recorded_number_are_not_dropped_in_silence(
    options: SinkOptions,
) -> None:
    """Spark's checkpoint lost its newest batch, and other rows of the source came into it."""
    for number in range(3):
        commit(options, written(options, batch(number), rows(10 * number, 10 * number + 1)), SCHEMA)
    release_producers()
    for unit, new, found in (
        (batch(2), rows(20, 22), "has it with 2 other rows"),
        (batch(2), rows(20, 21, 22), "has it with 2 rows, and now it has 3"),
        (batch(1), rows(10, 11), "micro-batches up to 2 are recorded"),
    ):
        with pytest.raises(BatchPlannedAgainError, match=found):
            commit(options, written(options, unit, new), SCHEMA)
    keeping = msgspec.structs.replace(options, repeated=RepeatedBatch.KEEP)
    assert commit(keeping, written(keeping, batch(2), rows(99)), SCHEMA) is CommitDecision.DONE
    assert commit(options, written(options, batch(3), rows(30)), SCHEMA) is CommitDecision.APPEND
    assert read(options) == [0, 1, 10, 11, 20, 21, 30]


def test_a_writer_of_a_newer_or_an_older_version_may_follow_and_others_are_refused(
    options: SinkOptions,
) -> None:
    commit(options, written(options, batch(0), rows(1)), SCHEMA)
    for text in ("text string, n bigint, more double", "n int", "text string"):
        check_target(options, parse_schema(text))
    for text, rule in (
        ("n string, text string", r"'n' is string, expected bigint .*may only become wider"),
        ("n bigint, txt string", r"'text' \(string\) is missing, and column 'txt' \(string\)"),
        ("n bigint, text string, m int not null", r"'m' \(int NOT NULL\) is new"),
    ):
        with pytest.raises(SchemaMismatchError, match=rule):
            check_target(options, parse_schema(text))
    newer = parse_schema("text string, more double, n bigint")
    more = pa.RecordBatch.from_pylist([{"n": 2, "text": "", "more": 0.5}], newer)
    commit(options, [prepare(options, batch(1), "p", 0, newer, [more])], newer)
    assert read(options) == [1, 2]


def test_a_micro_batch_that_is_repeated_with_other_columns_is_refused_and_what_is_recorded_stays(
    options: SinkOptions,
) -> None:
    commit(options, written(options, batch(0), rows(1, text="2")), SCHEMA)
    release_producers()  # as a query that was restarted with a changed program
    for text in ("text string, n bigint", "n bigint, text string, more int"):
        other = parse_schema(text)
        repeated = pa.RecordBatch.from_pylist([{"n": 1, "text": "2"}], other)
        prepared = [prepare(options, batch(0), "p", 0, other, [repeated])]
        with pytest.raises(BatchPlannedAgainError, match="has it with 1 other rows"):
            commit(options, prepared, other)
    wider = parse_schema("n int, text string")
    repeated = pa.RecordBatch.from_pylist([{"n": 1, "text": "2"}], wider)
    narrow = [prepare(options, batch(0), "p", 0, wider, [repeated])]
    assert commit(options, narrow, wider) is CommitDecision.DONE, "the values are the same"
    assert read(options) == [1]


def test_the_content_of_a_batch_does_not_depend_on_order_and_floating_point_numbers() -> None:
    schema = pa.schema([("n", pa.int64()), ("mean", pa.float64()), ("tags", pa.list_(pa.string()))])
    one, two, other = (
        pa.table({"n": numbers, "mean": means, "tags": [[str(n)] for n in numbers]}, schema)
        for numbers, means in (([1, 2], [0.1, 0.2]), ([2, 1], [0.2, 0.1 + 1e-17]), ([1, 1], [0.1, 0.2]))
    )
    halves = sum_of([content_of(two.slice(0, 1)), content_of(two.slice(1))])
    assert content_of(one) == content_of(two) == halves
    assert content_of(one) != content_of(other)
    assert content_of(one.slice(0, 0)) == BatchContent()
    assert content_of(one.select(["tags"])) == BatchContent(2, 0), "its rows are counted"


def noise(seed: int) -> str:
    """It cannot be packed but for its alphabet."""
    return Random(seed).randbytes(200_000).hex()


def test_rows_larger_than_a_part_and_than_all_that_is_read_ahead_come_through_in_order(
    options: SinkOptions,
) -> None:
    many = [
        pa.RecordBatch.from_pylist(
            [one for n in range(at, at + 30) for one in rows(n, text=noise(n))], SCHEMA
        )
        for at in (0, 30)
    ]
    prepared = [prepare(options, batch(0), "p", 0, SCHEMA, many)]
    assert sum(one.size for one in prepared[0].parts) > (SINK_READS_AHEAD + 1) * SINK_READ_BYTES
    commit(options, prepared, SCHEMA)
    assert read(options) == list(range(60))


def test_an_attempt_is_fenced_by_a_later_one_of_its_partition(
    store: BlockingStore, options: SinkOptions
) -> None:
    def slow() -> Iterator[pa.RecordBatch]:
        for number in range(1, 6):  # the first are staged by then
            yield pa.RecordBatch.from_pylist(rows(number, text=BIG), SCHEMA)
        later.extend(written(options, batch(0), rows(1, 2, text=BIG)))
        for number in range(6, 12):
            yield pa.RecordBatch.from_pylist(rows(number, text=BIG), SCHEMA)

    later: list[StagedCommit] = []
    with pytest.raises(FencedError):
        prepare(options, batch(0), "p", 0, SCHEMA, slow())
    commit(options, later, SCHEMA)
    assert read(options) == [1, 2]
    assert not left_over(store, options)


def test_rows_that_were_taken_away_or_changed_are_not_recorded(
    store: BlockingStore, options: SinkOptions
) -> None:
    prepared = written(options, batch(0), rows(1), rows(2, text=BIG))
    prepared[1].parts = [one._replace(digest=one.digest ^ 1) for one in prepared[1].parts]
    with pytest.raises(StagedRowsGoneError, match="the bytes differ from those that the task staged"):
        commit(options, prepared, SCHEMA)
    with claim_above(store, prepared[1].directory) as claim:
        store.portal.call_sync(claim.claim.collect, lambda name: name == prepared[1].name)
        store.portal.call(claim.claim.wait_collected, 60.0)
    with pytest.raises(StagedRowsGoneError, match="is gone"):
        commit(options, prepared, SCHEMA)
    commit(options, written(options, batch(0), rows(7), rows(8, text=BIG)), SCHEMA)
    assert read(options) == [7, 8]


def test_a_sweep_that_fails_fails_no_commit_and_the_next_one_makes_up_for_it(
    store: BlockingStore, options: SinkOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unable(*_: object) -> None:
        raise QuorumUnavailableError("nobody is there", [])

    with monkeypatch.context() as patched:
        patched.setattr(committing, "clear_directory", unable)
        assert commit(options, written(options, batch(0), rows(1, text=BIG)), SCHEMA) is CommitDecision.APPEND
    assert len(left_over(store, options)) == 1
    assert commit(options, written(options, batch(1), rows(2)), SCHEMA) is CommitDecision.APPEND
    assert not left_over(store, options)


def test_batch_writes_follow_each_other_and_the_same_one_counts_once(options: SinkOptions) -> None:
    first, second = (CommitUnit(WriteKind.JOB, letter * 32, None) for letter in "ab")
    for unit in (first, first, second, second):
        commit(options, written(options, unit, rows(ord(unit.key[0])), rows(0, text=BIG)), SCHEMA)
    assert read(options) == [97, 0, 98, 0]
    numbered = CommitUnit(WriteKind.JOB, "c" * 32, 2)  # retried by a client that numbers its batches
    assert commit(options, written(options, numbered, rows(9)), SCHEMA) is CommitDecision.DONE
    with pytest.raises(OtherWriterError, match=r"was written by job b+, but this is stream"):
        commit(options, written(options, batch(2), rows(9)), SCHEMA)


def test_a_member_that_is_unavailable_holds_nothing_up_once_the_producer_exists(
    servers: Servers[ThreadedServer], options: SinkOptions
) -> None:
    commit(options, written(options, batch(0), rows(1)), SCHEMA)
    servers[1].crash()
    try:
        commit(options, written(options, batch(1), rows(2, text=BIG), rows(3)), SCHEMA)
        release_producers()
        commit(options, written(options, batch(2), rows(4)), SCHEMA)
        assert read(options) == [1, 2, 3, 4]
    finally:
        servers[1].restart()


def test_a_closed_handle_a_strange_producer_and_a_checkpoint_of_another_store_are_refused_by_name(
    servers: Servers[ThreadedServer], store: BlockingStore, options: SinkOptions
) -> None:
    with pytest.raises(OtherCheckpointError, match="has none of its micro-batches"):
        commit(options, written(options, batch(5), rows(1)), SCHEMA)
    with open_producer(store, "shop", options.input, "till", SCHEMA) as producer:
        producer.wait_recorded(producer.send(rows(1), mark=b"place 1"))
    with pytest.raises(OtherWriterError, match="was written by another program"):
        commit(options, written(options, batch(0), rows(1), producer="till"), SCHEMA)
    close_input(store, "shop", options.input)
    with pytest.raises(InputClosedError):
        commit(options, written(options, batch(0), rows(1)), SCHEMA)
    assert read(options) == [1]
