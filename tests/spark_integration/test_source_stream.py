"""What the source `dos` plans and gives a stream, without Spark: its reader, called as Spark calls it, on a
store of three in memory.
"""

import json
import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable

from checkpoint.core.outputs import Publish
from dos_client.blocking import BlockingStore, open_store
from dos_server.testing import Servers, ThreadedServer
from journal import SegmentSpan
from spark_integration.core.admission import BatchAdmission, BatchLimits, StreamPiece
from spark_integration.core.recent_bytes import RecentBytes
from spark_integration.core.source_offsets import SplitPoint
from spark_integration.core.source_options import parse_options
from spark_integration.errors import (
    DataLossError,
    MalformedOffsetError,
    OtherSourceError,
    SchemaMismatchError,
)
from spark_integration.reading.ranges import follows, resumed
from spark_integration.reading.stream_reader import DosStreamReader
from tests.spark_integration.written import take_away, write_batches, write_cuts, write_objects, write_steps

N = pa.schema([("n", pa.int64())])
LINE = pa.schema([("value", pa.string())])


def n(*numbers: int) -> list[dict[str, Any]]:
    return [{"n": number} for number in numbers]


@pytest.fixture(scope="module")
def store(servers: Servers[ThreadedServer]) -> Iterator[BlockingStore]:
    with open_store(servers.url) as found:
        yield found


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A region, application or directory of the test's own."""
    return f"r{abs(hash(request.node.name)) % 10**8}"


@pytest.fixture(autouse=True, params=["handed", "read"])
def bytes_come(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How rows of small micro-batches come to tasks: with their partitions, or from the store."""
    if request.param == "read":
        monkeypatch.setattr("spark_integration.reading.chains.HANDED_BYTES_MAX", -1)
    return str(request.param)


class Query:
    """A streaming query: micro-batches as Spark makes them, offsets through JSON."""

    def __init__(
        self, reader: DosStreamReader, wanted: pa.Schema, start: dict[str, Any] | None = None
    ) -> None:
        self.reader = reader
        self.wanted = wanted
        self.at = through_json(reader.initialOffset() if start is None else start)

    def batch(self, limit: Any = None) -> list[Any]:
        """The values of the rows of the next micro-batch."""
        end = through_json(self.reader.latestOffset(self.at, limit or self.reader.getDefaultReadLimit()))
        rows = self.between(self.at, end)
        self.at = end
        return rows

    def between(self, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
        task = pickle.loads(pickle.dumps(self.reader))
        rows: list[Any] = []
        for one in self.reader.partitions(start, end):
            for batch in task.read(pickle.loads(pickle.dumps(one))):
                assert batch.schema.equals(self.wanted)
                rows += batch.column(0).to_pylist()
        return rows

    def batches(self) -> list[list[Any]]:
        """Until there is nothing more."""
        found = []
        while rows := self.batch():
            found.append(rows)
        return found


def through_json(offset: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found


@contextmanager
def query(
    servers: Servers[ThreadedServer],
    path: str,
    wanted: pa.Schema = N,
    start: dict[str, Any] | None = None,
    **options: str,
) -> Iterator[Query]:
    reader = DosStreamReader(parse_options({"path": f"{servers.url}/{path}", **options}), wanted)
    try:
        yield Query(reader, wanted, start)
    finally:
        reader.stop()


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
    ends = write_steps(store, name, "out", 0, {1: n(1), 2: n(2), 3: n(3)}, N, publish=Publish.CUT)
    with query(servers, name, output="out") as stream:
        assert stream.batch() == []
        write_cuts(store, name, "out", [{0: ends[0]}, {0: ends[1]}])
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
    bytes_come: str,
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
        assert (part.data is None) == (bytes_come == "read")
        if part.data is not None:
            assert part.data == store.read(part.directory, part.object, part.begin, part.end - part.begin)
            monkeypatch.setattr("spark_integration.reading.tasks.KEPT", None)  # nobody opens a store
            assert stream.between(start, end) == [2]


@pytest.mark.parametrize("age_s", [0.0, 3600.0])
def test_progress_tells_how_far_there_is_more_and_never_less_than_was_taken(
    servers: Servers[ThreadedServer],
    store: BlockingStore,
    name: str,
    age_s: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spark_integration.reading.stream_planning.SEEN_S", age_s)
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


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 12), st.binary(max_size=9))), st.data())
def test_what_a_scan_read_last_is_given_as_it_was_or_not_at_all(
    reads: list[tuple[str, int, bytes]], data: st.DataObject
) -> None:
    recent, held = RecentBytes(8), {"a": b"", "b": b""}
    begins = {"a": 0, "b": 0}
    for name, skip, chunk in reads:
        begins[name] += skip if data.draw(st.booleans()) else 0
        offset = begins[name]
        recent.take(name, offset, chunk)
        held[name] = held[name].ljust(offset, b"?")[:offset] + chunk
        begins[name] = offset + len(chunk)
        for one in "ab":
            begin = data.draw(st.integers(0, len(held[one]) + 1))
            end = data.draw(st.integers(begin, len(held[one]) + 2))
            given_ = recent.given(one, begin, end)
            assert given_ is None or given_ == held[one][begin:end]
        last = max(offset, begins[name] - 8)
        assert recent.given(name, last, begins[name]) == held[name][last:], "what came last is there"


@pytest.mark.parametrize("limits", [{}, {"maxRowsPerTrigger": "2"}])
def test_available_now_ends_with_what_was_there(
    servers: Servers[ThreadedServer], store: BlockingStore, limits: dict[str, str], bytes_come: str
) -> None:
    name = f"now{len(limits)}{bytes_come}"
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


# --- what is refused ------------------------------------------------------------------------------------


def test_an_offset_of_another_store_or_source_is_refused_at_the_start(
    servers: Servers[ThreadedServer], store: BlockingStore, name: str
) -> None:
    write_steps(store, name, "out", 0, {1: n(1)}, N)
    write_steps(store, name, "other", 0, {1: n(1)}, N, epoch=2)
    with query(servers, name, output="other") as stream:
        elsewhere = stream.at
    with (
        query(servers, name, output="out") as stream,
        pytest.raises(OtherSourceError, match="belongs to out"),
    ):
        stream.reader.latestOffset(elsewhere, ReadAllAvailable())
    foreign = {**elsewhere, "store": "0" * 32}
    with (
        pytest.raises(OtherSourceError, match="belongs to store 0000"),
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


def span(epoch: int, begin: int, end: int) -> SegmentSpan:
    return SegmentSpan(f"out.{epoch:016x}.{begin:016x}", begin, end - begin, 0)


@pytest.mark.parametrize(
    ("spans", "start", "resumes"),
    [
        ([span(1, 0, 100)], SplitPoint(1, 40), None),
        ([span(1, 0, 100), span(2, 100, 150)], SplitPoint(1, 100), None),
        ([span(1, 0, 100), span(2, 100, 150)], SplitPoint(2, 150), None),
        ([span(2, 100, 150)], SplitPoint(1, 100), None),
        ([], SplitPoint(), None),
        ([span(1, 0, 50), span(2, 50, 150)], SplitPoint(1, 100), SplitPoint(2, 50)),
        ([span(2, 50, 100), span(3, 100, 150)], SplitPoint(1, 100), SplitPoint(2, 50)),
        ([span(2, 100, 150)], SplitPoint(1, 40), SplitPoint(2, 100)),
        ([span(1, 100, 150)], SplitPoint(1, 40), SplitPoint(1, 100)),
        ([span(1, 0, 50)], SplitPoint(1, 100), SplitPoint(1, 50)),
    ],
)
def test_a_point_is_on_a_chain_or_it_is_known_where_what_is_lost_ends(
    spans: list[SegmentSpan], start: SplitPoint, resumes: SplitPoint | None
) -> None:
    assert follows(spans, start) is (resumes is None)
    if resumes is not None:
        assert resumed(spans, start) == resumes


# --- which pieces ---------------------------------------------------------------------------------------


def test_no_split_starves_and_no_micro_batch_exceeds_its_limits_but_by_a_single_piece() -> None:
    rng = random.Random(7)
    for _ in range(200):
        pieces = {
            split: [
                StreamPiece(SplitPoint(0, i + 1), rng.randint(0, 5), rng.randint(1, 50), i) for i in range(9)
            ]
            for split in "abc"[: rng.randint(1, 3)]
        }
        limits = BatchLimits(rng.choice([None, 1, 6]), rng.choice([None, 1, 99]))
        admission = BatchAdmission(list(pieces), limits)
        given: dict[str, int] = dict.fromkeys(pieces, 0)
        while (split := admission.need()) is not None:
            at = given[split]
            admission.offer(split, pieces[split][at] if at < 9 else None)
            given[split] += 1
        taken = [
            p for s in pieces for p in pieces[s][: admission.taken[s].end.size if s in admission.taken else 0]
        ]
        assert taken, "progress"
        rows, size = sum(p.rows for p in taken), sum(p.bytes for p in taken)
        fits = (limits.rows is None or rows <= limits.rows) and (limits.bytes is None or size <= limits.bytes)
        assert fits or len(taken) == 1
        ends = [admission.taken[s].end.size if s in admission.taken else 0 for s in pieces]
        assert max(ends) - min(ends) <= 1, "the oldest first"
