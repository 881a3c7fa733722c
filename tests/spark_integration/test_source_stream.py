"""What the source `dos` plans and returns for a stream, without Spark, on a store of three in memory. Its
reader is called as Spark calls it.
"""

import json

import pyarrow as pa
import pytest

from checkpoint.core.records.outputs import Publish
from dos_client.blocking import BlockingStore
from dos_server.testing import Servers, ThreadedServer
from spark_integration.errors import (
    DataLossError,
    MalformedOffsetError,
    SchemaMismatchError,
)
from spark_integration.spark_api import ReadAllAvailable
from tests.spark_integration.stored_data import (
    take_away,
    write_batches,
    write_checkpoints,
    write_objects,
    write_steps,
)
from tests.spark_integration.streaming import LINE, N, n, query

pytestmark = pytest.mark.usefixtures("transfer")


def test_a_stream_of_an_output_continues_where_it_was_and_skips_and_repeats_nothing(
    servers: Servers[ThreadedServer], store: BlockingStore, name: str
) -> None:
    write_steps(store, name, "out", 0, {1: n(1), 2: n(2)}, N)
    write_steps(store, name, "out", 1, {1: n(10), 2: []}, N)
    with query(servers, name, output="out") as stream:
        assert stream.batch() == [1, 2, 10]
        assert stream.batch() == []
        before = stream.at
        write_steps(store, name, "out", 0, {3: n(3)}, N, epoch=2)  # another segment
        write_steps(store, name, "out", 1, {3: [], 4: n(11, 12)}, N, epoch=2)
        assert stream.batch() == [3, 11, 12]
        assert stream.between(before, stream.at) == [3, 11, 12], "a batch that is planned again is the same"
    with query(servers, name, output="out", start=before) as again:
        assert again.batch() == [3, 11, 12], "a restarted query continues from its stored offset"


def test_output_by_checkpoint_is_given_when_the_checkpoint_is_committed(
    servers: Servers[ThreadedServer], store: BlockingStore, name: str
) -> None:
    ends = write_steps(store, name, "out", 0, {1: n(1), 2: n(2), 3: n(3)}, N, publish=Publish.CHECKPOINT)
    with query(servers, name, output="out") as stream:
        assert stream.batch() == []
        write_checkpoints(store, name, "out", [{0: ends[0]}, {0: ends[1]}])
    with query(servers, name, output="out") as stream:
        assert stream.batch() == [1, 2]
    with query(servers, name, output="out", startingOffset="checkpoint:1", maxRowsPerTrigger="1") as stream:
        assert stream.batches() == [[2]]
    with (
        pytest.raises(
            MalformedOffsetError, match=r"checkpoint:7: region .* no such checkpoint .* the last are 1, 2"
        ),
        query(servers, name, output="out", startingOffset="checkpoint:7"),
    ):
        pass


@pytest.mark.parametrize(
    ("starting", "rows"),
    [
        ("earliest", [1, 2, 3, 4]),
        ("latest", []),
        ("step:2", [3, 4]),
        ("step:0", [1, 2, 3, 4]),
        ("time:1970-01-01T00:00:03Z", [3, 4]),
        ("time:2070-01-01T00:00:00+01:00", []),
    ],
)
def test_a_new_stream_begins_where_it_is_notified(
    servers: Servers[ThreadedServer], store: BlockingStore, starting: str, rows: list[int]
) -> None:
    name = "starting"
    if f"{name}.w0000" not in store.list_directories(name):
        write_steps(store, name, "out", 0, {step: n(step) for step in range(1, 5)}, N)
    with query(servers, name, output="out", startingOffset=starting, maxRowsPerTrigger="3") as stream:
        assert [row for batch in stream.batches() for row in batch] == rows


def test_a_step_that_was_not_made_is_no_beginning(
    servers: Servers[ThreadedServer], store: BlockingStore, name: str
) -> None:
    write_steps(store, name, "out", 0, {1: n(1)}, N)
    with (
        pytest.raises(MalformedOffsetError, match=r"step:9: the last step of w0000 of output .* is 1"),
        query(servers, name, output="out", startingOffset="step:9"),
    ):
        pass
    write_batches(store, name, "in", "p", [n(1)], N)
    for starting in ("step:1", "checkpoint:1"):
        with (
            pytest.raises(MalformedOffsetError, match="write earliest"),
            query(servers, name, input="in", startingOffset=starting),
        ):
            pass


def test_a_limited_micro_batch_takes_whole_steps_of_all_workers_the_oldest_first(
    servers: Servers[ThreadedServer], store: BlockingStore, name: str
) -> None:
    write_steps(store, name, "out", 0, {1: n(1), 2: n(2, 2), 3: n(3)}, N)
    write_steps(store, name, "out", 1, {1: n(10), 2: [], 3: n(30, 30, 30, 30)}, N)
    with query(servers, name, output="out", maxRowsPerTrigger="3") as stream:
        assert stream.batches() == [[1, 10], [2, 2, 3], [30, 30, 30, 30]]
    with query(servers, name, output="out", maxBytesPerTrigger="1") as stream:
        first = [stream.batch() for _ in range(7)]
        assert first == [[1], [10], [2, 2], [], [3], [30, 30, 30, 30], []], "an empty step is a piece too"
    with query(servers, name, output="out", maxRowsPerTrigger="1") as stream:
        assert stream.batch(ReadAllAvailable()) == [1, 2, 2, 3, 10, 30, 30, 30, 30], "Spark's word counts"


def test_a_query_that_begins_again_in_the_middle_takes_what_it_would_have_taken(
    servers: Servers[ThreadedServer], store: BlockingStore, name: str
) -> None:
    write_steps(store, name, "out", 0, {step: n(step) for step in range(1, 9)}, N)
    with query(servers, name, output="out", maxRowsPerTrigger="3") as stream:
        assert stream.batch() == [1, 2, 3]
        kept = stream.at
        assert stream.batch() == [4, 5, 6]
        stream.at = kept  # the batch was planned and not committed
        assert stream.batch() == [4, 5, 6]
    with query(servers, name, output="out", maxRowsPerTrigger="3", start=kept) as stream:
        assert stream.batches() == [[4, 5, 6], [7, 8]]


@pytest.mark.parametrize("limits", [{}, {"maxRowsPerTrigger": "3"}])
def test_few_rows_travel_with_their_partition_and_are_those_of_the_store(
    servers: Servers[ThreadedServer],
    store: BlockingStore,
    name: str,
    limits: dict[str, str],
    transfer: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name += str(len(limits))
    write_steps(store, name, "out", 0, {step: n(step) for step in range(1, 7)}, N)
    with query(servers, name, output="out", **limits) as stream:
        first = stream.batch()
        write_steps(store, name, "out", 0, {step: n(step) for step in range(7, 9)}, N, epoch=2)
        stream.batch()
        write_steps(store, name, "out", 0, {9: n(9)}, N, epoch=3)
        start = stream.at
        end = stream.reader.latestOffset(start, stream.reader.getDefaultReadLimit())
        (begun,) = stream.reader.partitions(start, end)
        assert all(one.data is None for one in begun.ranges), "of another writer's bytes the store is asked"
        assert first == [1, 2, 3] if limits else [1, 2, 3, 4, 5, 6]
    with query(servers, name, output="out", maxRowsPerTrigger="1") as stream:
        stream.batch()
        start = stream.at
        end = stream.reader.latestOffset(start, stream.reader.getDefaultReadLimit())
        (small,) = stream.reader.partitions(start, end)
        (part,) = small.ranges
        assert (part.data is None) == (transfer == "read")
        if part.data is not None:
            assert part.data == store.read(part.directory, part.object, part.begin, part.end - part.begin)
            monkeypatch.setattr("spark_integration.reading.readers.KEPT", None)  # nobody opens a store
            assert stream.between(start, end) == [2]


@pytest.mark.parametrize("age_s", [0.0, 3600.0])
def test_progress_tells_how_far_there_is_more_and_never_less_than_was_taken(
    servers: Servers[ThreadedServer],
    store: BlockingStore,
    name: str,
    age_s: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spark_integration.reading.planning.SEEN_S", age_s)
    write_steps(store, name, "out", 0, {step: n(step) for step in range(1, 4)}, N)
    with query(servers, name, output="out", maxRowsPerTrigger="1") as stream:

        def seen() -> int:
            return int(stream.reader.reportLatestOffset()["splits"]["w0000"]["size"])

        assert stream.batch() == [1]
        behind = seen()
        assert behind > stream.at["splits"]["w0000"]["size"]
        write_steps(store, name, "out", 0, {4: n(4)}, N, epoch=2)
        assert (seen() > behind) == (age_s == 0)
        assert stream.batches() == [[2], [3], [4]]
        assert seen() == stream.at["splits"]["w0000"]["size"] > behind


@pytest.mark.parametrize("limits", [{}, {"maxRowsPerTrigger": "2"}])
def test_available_now_ends_with_what_was_there(
    servers: Servers[ThreadedServer], store: BlockingStore, limits: dict[str, str], transfer: str
) -> None:
    name = f"now{len(limits)}{transfer}"
    write_steps(store, name, "out", 0, {1: n(1), 2: n(2), 3: n(3)}, N)
    with query(servers, name, output="out", **limits) as stream:
        stream.reader.prepareForTriggerAvailableNow()
        write_steps(store, name, "out", 0, {4: n(4)}, N, epoch=2)
        assert [row for batch in stream.batches() for row in batch] == [1, 2, 3]
        assert stream.reader.latestOffset(stream.at, ReadAllAvailable()) == stream.at


def test_a_stream_of_an_input_handle_gives_whole_batches_of_producers_that_come_and_go(
    servers: Servers[ThreadedServer], store: BlockingStore, name: str
) -> None:
    write_batches(store, name, "in", "a", [n(1, 2), n(3)], N)
    with query(servers, name, input="in", maxRowsPerTrigger="2") as stream:
        assert stream.batch() == [1, 2]
        write_batches(store, name, "in", "b", [n(7)], N)
        assert sorted(row for batch in stream.batches() for row in batch) == [3, 7]
        write_batches(store, name, "in", "a", [n(4)], N)
        assert stream.batch() == [4]
    with query(servers, name, input="in") as stream:
        assert stream.batch() == [1, 2, 3, 4, 7]


def test_a_stream_of_lines_gives_those_that_are_finished(
    servers: Servers[ThreadedServer], store: BlockingStore, name: str
) -> None:
    write_objects(store, name, {"a": b"one\ntwo\nthr"})
    with (
        query(servers, name, LINE, content="lines") as stream,
        query(servers, name, LINE, content="lines", maxRowsPerTrigger="1") as slow,
    ):
        assert stream.batch() == ["one", "two"]
        assert [slow.batch(), slow.batch(), slow.batch()] == [["one"], ["two"], []]
        with store.claim(name, 2, b"2" * 16) as claim:
            writer = claim.open_object("b")
            writer.wait_synced(writer.append(b"other\n"))
        assert stream.batch() == ["other"]
        assert slow.batch() == ["other"]


@pytest.mark.parametrize("content", ["length-prefixed", "journal"])
def test_records_of_objects_are_followed(
    servers: Servers[ThreadedServer], store: BlockingStore, name: str, content: str
) -> None:
    if content == "journal":
        write_steps(store, name, "out", 0, {step: n(step) for step in range(1, 4)}, N)
        wanted = pa.schema([("op", pa.string())])
        with query(servers, f"{name}.w0000", wanted, content=content, maxRowsPerTrigger="2") as stream:
            assert stream.batches() == [["SEGMENT_START", "OUTPUT"], ["OUTPUT", "OUTPUT"]]
        return
    write_objects(store, name, {"a": b"\0\0\0\1x\0\0\0\2yz\0\0\0\1"})
    with query(servers, name, pa.schema([("value", pa.binary())]), content=content) as stream:
        assert stream.batches() == [[b"x", b"yz"]]


def test_an_offset_of_another_store_or_source_is_refused_at_the_start(
    servers: Servers[ThreadedServer], store: BlockingStore, name: str
) -> None:
    write_steps(store, name, "out", 0, {1: n(1)}, N)
    write_steps(store, name, "other", 0, {1: n(1)}, N, epoch=2)
    with query(servers, name, output="other") as stream:
        elsewhere = stream.at
    with (
        query(servers, name, output="out") as stream,
        pytest.raises(MalformedOffsetError, match="belongs to out"),
    ):
        stream.reader.latestOffset(elsewhere, ReadAllAvailable())
    foreign = {**elsewhere, "store": "0" * 32}
    with (
        pytest.raises(MalformedOffsetError, match="belongs to store 0000"),
        query(servers, name, output="other", startingOffset=json.dumps(foreign)),
    ):
        pass
    odd = {"index": 7}
    with query(servers, name, output="out", start=odd) as stream, pytest.raises(MalformedOffsetError):
        stream.batch()


def test_columns_that_do_not_fit_are_reported_before_the_first_batch(
    servers: Servers[ThreadedServer], store: BlockingStore, name: str
) -> None:
    write_steps(store, name, "out", 0, {1: n(1)}, N)
    with (
        pytest.raises(
            SchemaMismatchError, match=r"'n' was requested as string, but in output .* it is bigint"
        ),
        query(servers, name, pa.schema([("n", pa.string())]), output="out"),
    ):
        pass


def test_an_object_that_disappears_is_an_error_unless_that_is_meant(
    servers: Servers[ThreadedServer], store: BlockingStore, name: str
) -> None:
    write_objects(store, name, {"a": b"one\n", "b": b"two\n"})
    with (
        query(servers, name, LINE, content="lines") as stream,
        query(servers, name, LINE, content="lines", failOnDataLoss="false") as brave,
    ):
        assert stream.batch() == brave.batch() == ["one", "two"]
        take_away(store, name, "a", epoch=2)
        write_objects(store, name, {"c": b"new\n"}, epoch=3)
        with pytest.raises(DataLossError, match=r"'a' of objects .* is gone; it was read up to 4"):
            stream.batch()
        assert brave.batch() == ["new"]


def test_a_log_that_was_trimmed_is_an_error_unless_that_is_meant(
    servers: Servers[ThreadedServer], store: BlockingStore, name: str
) -> None:
    write_steps(store, name, "out", 0, {1: n(1), 2: n(2)}, N)
    with query(servers, name, output="out", maxRowsPerTrigger="1") as stream:
        assert stream.batch() == [1]
        at = stream.at
    first = min(one for objects in store.inspect(f"{name}.w0000").answers.values() for one in objects)
    write_steps(store, name, "out", 0, {3: n(3)}, N, epoch=2, trims=first)
    with (
        query(servers, name, output="out", start=at) as stream,
        pytest.raises(DataLossError, match="was trimmed"),
    ):
        stream.batch()
    with query(servers, name, output="out", start=at, failOnDataLoss="false") as stream:
        assert stream.batch() == [3]
    with query(servers, name, output="out") as stream:
        assert stream.batch() == [3], "the earliest is what there is"


def test_an_output_that_was_taken_back_is_an_error_unless_that_is_meant(
    servers: Servers[ThreadedServer], store: BlockingStore, name: str
) -> None:
    ends = write_steps(store, name, "out", 0, {1: n(1), 2: n(2)}, N)
    with (
        query(servers, name, output="out") as stream,
        query(servers, name, output="out", failOnDataLoss="false") as brave,
    ):
        assert stream.batch() == brave.batch() == [1, 2]
        at = stream.at
        write_steps(store, name, "out", 0, {2: n(22), 3: n(33)}, N, epoch=2, back_to=ends[0])
    with (
        query(servers, name, output="out", start=at) as stream,
        pytest.raises(DataLossError, match="rolled back"),
    ):
        stream.batch()
    limited = query(servers, name, output="out", start=at, maxRowsPerTrigger="9")
    with limited as stream, pytest.raises(DataLossError, match="failOnDataLoss"):
        stream.batch()
    for limits in ({}, {"maxRowsPerTrigger": "9"}):
        with query(servers, name, output="out", start=at, failOnDataLoss="false", **limits) as stream:
            assert stream.batch() == [22, 33]
