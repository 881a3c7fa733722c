"""The format `dos-merged` without Spark, called as Spark calls it, over real servers and replicas: each row
in one micro-batch, whichever replicas are there; what does not fit is named.
"""

import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from checkpoint import limits as checkpoint_limits
from checkpoint.maintenance.retention import OutputRows, Retention, RetentionStatus
from dataflow import blocking
from dataflow import limits as dataflow_limits
from dataflow.core.event_time import END
from dataflow.errors import ReplicasDifferError, SchemaError
from dos_client import open_store, store
from dos_client.errors import BadUrlError
from dos_protocol.errors import BadNameError, DosError
from spark_integration import limits
from spark_integration.core.merged_rows import (
    MERGED_OPTIONS,
    NOTHING_READ,
    MergedSubject,
    OnDifference,
    OnMissing,
    RowsByTime,
    mark_in,
    mark_offset,
    parse_merged,
)
from spark_integration.core.offsets import BatchLimits
from spark_integration.core.row_filter import parse_filter
from spark_integration.errors import (
    BadOptionError,
    MalformedOffsetError,
    SchemaMismatchError,
)
from spark_integration.reading.merged import MergedSource, MergedStreamReader
from spark_integration.spark_api import ReadMaxRows
from tests.dataflow.merged_sites import REGION, SCHEMA, Row, Site, open_sites, replica_graph, rows_of
from tests.dataflow.test_merged_streams import keys_of
from tests.dataflow.test_read_merged import graph_of, keys_in, times, urls
from tests.spark_integration.streaming import through_json
from tests.support.polling import until

WAIT_S = 90.0
Offset = dict[str, Any]
Range = tuple[int | None, int | None]
Keys = "Counter[tuple[int, str, int]]"
GOOD = {"path": "board.joined", "sites": "p=dos://p1,p2 o=dos://o1", "output": "out", "schema": SCHEMA}
OF = MergedSubject("merged output board.joined/out", SCHEMA, ("at",))


class Positions(NamedTuple):
    """Of a consumer in the log of worker 0: up to where it has read, and what it needs."""

    read: int = 0
    needs: int = 0


def options_of(sites: Sequence[Site], **options: str) -> dict[str, str]:
    places = " ".join(f"{site}={url}" for site, url in urls(sites).items())
    return {"path": REGION, "sites": places, "output": "out", "schema": SCHEMA, **options}


@contextmanager
def opened(sites: Sequence[Site], **options: str) -> Iterator[MergedStreamReader]:
    reader = reader_of(options_of(sites, **options))
    try:
        yield reader
    finally:
        reader.stop()


def between(reader: MergedStreamReader, start: Offset, end: Offset) -> "Counter[tuple[int, str, int]]":
    task = pickle.loads(pickle.dumps(reader))
    found: Counter[tuple[int, str, int]] = Counter()
    for one in reader.partitions(start, end):
        for batch in task.read(pickle.loads(pickle.dumps(one))):
            for row in batch.to_pylist():
                found[round(1000 * row["at"].timestamp()), row["key"], row["n"]] += 1
    return found


class Query:
    """A streaming query. `found`: (start, end) of each micro-batch -> its rows."""

    def __init__(self, reader: MergedStreamReader, at: Offset | None = None) -> None:
        self.reader = reader
        self.at = through_json(reader.initialOffset() if at is None else at)
        self.found: dict[Range, Counter[tuple[int, str, int]]] = {}

    def batch(self) -> bool:
        """Make a micro-batch if there are rows."""
        end = through_json(self.reader.latestOffset(self.at, self.reader.getDefaultReadLimit()))
        if end == self.at:
            return False
        self.reader.commit(self.at)  # after the offsets of this micro-batch were recorded
        self.found[self.at["markUs"], end["markUs"]] = between(self.reader, self.at, end)
        self.at = end
        return True

    @property
    def rows(self) -> "Counter[tuple[int, str, int]]":
        return sum(self.found.values(), Counter())

    def until(self, reached: Callable[[], bool]) -> None:
        def step() -> bool:
            self.batch()
            return reached()

        until(step, "the rows were read", WAIT_S)


def wait_for_mark(site: Site, mark: int) -> None:
    """Wait until the replica of a site has given all rows up to a mark."""
    with blocking.read_merged(urls([site]), REGION, "out", SCHEMA) as output:
        assert any(batch.mark_us >= mark for batch in output)


@pytest.mark.process
def test_a_micro_batch_has_the_rows_of_its_times_whichever_replica_gives_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of(900)
    with open_sites(tmp_path, "ab") as (one, two), one.replica(workers=2), two.replica():
        one.send(rows[:300], mark_ms=900, batch=17)
        with opened([one, two], maxBytesPerTrigger="2000") as reader:
            query = Query(reader)
            query.until(lambda: query.at["markUs"] == 891_000)
            passed = keys_of([row for row in rows if row.at_ms <= 900])
            assert query.rows == passed
            assert not query.batch(), "rows above the mark wait for it"
            one.server.kill()
            try:
                two.send(rows[:450], mark_ms=1500, batch=23)
                two.send(rows[450:], mark_ms=3000, batch=23, close=True)
                query.until(lambda: query.rows.total() == len(rows))
            finally:
                one.server.restart()
            one.send(rows[300:], mark_ms=3000, close=True)
        assert query.rows == keys_of(rows)
        assert len(query.found) > 3

        with blocking.read_merged(urls([two]), REGION, "out", SCHEMA) as output:
            assert query.rows == keys_in(list(output))
        with opened([two]) as reader:  # of other sites, and after a restart at any micro-batch
            for (above, upto), expected in reversed(query.found.items()):
                start, end = ({**query.at, "markUs": mark} for mark in (above, upto))
                assert between(reader, start, end) == expected
        monkeypatch.setattr(dataflow_limits, "merged_bytes_max", 100)
        monkeypatch.setattr(limits, "MERGED_AHEAD_BYTES", 100)  # a micro-batch may be larger than that
        with opened([two]) as reader:
            assert between(reader, reader.initialOffset(), query.at) == query.rows
        with opened([two], filter="n = 1") as reader:
            ones = keys_of([row for row in rows if row.n == 1])
            assert between(reader, reader.initialOffset(), query.at) == ones


@pytest.mark.process
def test_what_is_there_now_is_read_to_its_end_and_nothing_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "open_timeout_s", 0.5)
    monkeypatch.setattr(limits, "MERGED_AHEAD_BYTES", 1000)
    rows = rows_of(600)
    with open_sites(tmp_path, "abc") as (one, two, gone), one.replica(), two.replica():
        gone.server.kill()
        one.send(rows[:150], mark_ms=500)
        two.send(rows[:300], mark_ms=1000)
        wait_for_mark(two, 1_000_000)
        at: Offset | None = None
        for close in (False, True):
            with opened([one, two, gone], maxRowsPerTrigger="40") as reader:
                assert reader.getDefaultReadLimit() == ReadMaxRows(40)
                reader.prepareForTriggerAvailableNow()
                query = Query(reader, at)
                while query.batch():
                    assert query.found.popitem()[1].total() <= 40
                at = query.at
                if not close:
                    assert at["markUs"] == 991_000
                    two.send(rows[300:], mark_ms=3000, close=True)
                    wait_for_mark(two, END)
                    assert not query.batch(), "they came later"
        assert at is not None
        assert at["markUs"] == 1_991_000
        one.send(rows[150:], mark_ms=3000, close=True)


@pytest.mark.process
def test_nothing_is_trimmed_that_spark_has_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_limits, "query_publish_s", 0.1)
    monkeypatch.setattr(checkpoint_limits, "output_segment_bytes_max", 300)
    monkeypatch.setattr(checkpoint_limits, "trim_poll_s", 0.2)
    rows = rows_of(300)

    def status(site: Site) -> RetentionStatus:
        async def ask() -> RetentionStatus:
            async with open_store(site.server.url) as found:
                return await Retention(found, OutputRows(found, REGION, "out")).status()

        return trio.run(ask)

    def at(site: Site, name: str) -> Positions:
        found = [query for query in status(site).queries if query.name == name]
        return Positions(*(one.get("w0000", 0) for query in found for one in (query.read, query.needs)))

    with open_sites(tmp_path, "a") as (one,), one.replica(replica_graph(one.server.url, retain="unread")):
        one.send(rows[:150], mark_ms=499, batch=10)
        with (
            opened([one], consumer="board", consumerRetainSeconds="0") as reader,
            opened([one], consumer="other", consumerRetainSeconds="0") as other,
        ):
            query = Query(reader)
            query.until(lambda: query.at["markUs"] == 491_000)
            first = query.at
            Query(other, first).batch()
            until(lambda: at(one, "other").read > 0, "it publishes where it continues", WAIT_S)
            assert at(one, "board") == Positions(0, 0)
            assert status(one).splits[0].begin == 0
            one.send(rows[150:], mark_ms=1500, batch=10)
            query.until(lambda: query.rows == keys_of(rows))
            marks = count(2000)

            def trimmed() -> bool:
                one.send([], mark_ms=next(marks))  # a replica trims when it makes steps
                return status(one).splits[0].begin > 0

            until(trimmed, "what is committed is trimmed", WAIT_S)
        before = at(one, "board")
        with opened([one]) as reader:
            again = Query(reader, first)
            again.until(lambda: again.rows == keys_of(rows[150:]))
        monkeypatch.setattr(checkpoint_limits, "query_publish_s", WAIT_S)  # it waits so long for its place
        with opened([one], consumer="board", consumerRetainSeconds="3600") as reader:
            assert not Query(reader, query.at).batch()
            until(lambda: at(one, "board").read > before.read, "it publishes where it continues", WAIT_S)
            assert at(one, "board").needs == before.needs, "an older checkpoint of Spark still finds its rows"


@pytest.mark.process
def test_replicas_that_differ_fail_the_query(tmp_path: Path) -> None:
    rows = [Row(10 * number + 1, "a", 1) for number in range(300)]
    with (
        open_sites(tmp_path, "ab") as (one, two),
        one.replica(graph_of(one.server.url, times(2))),
        two.replica(graph_of(two.server.url, times(3))),
    ):
        for site in (one, two):
            site.send(rows, mark_ms=4000)
        with opened([one, two], compare="all") as reader:
            query = Query(reader)
            with pytest.raises(ReplicasDifferError, match="of event time"):
                query.until(lambda: False)
            with pytest.raises(ReplicasDifferError, match="of event time"):
                reader.partitions(query.at, query.at)


EVERY_OPTION: dict[str, tuple[str, str, Any]] = {
    "path": ("board", "region", "board"),
    "token": ("t", "token", b"t"),
    "tokenFile": ("/t", "token_file", "/t"),
    "sites": ("a=dos://p1 b=dos://p2", "sites", {"a": "dos://p1", "b": "dos://p2"}),
    "output": ("late", "output", "late"),
    "schema": ("key string", "schema", "key string"),
    "time": ("at, until", "time", ("at", "until")),
    "compare": ("all", "compare", "all"),
    "onMissing": ("accept", "on_missing", OnMissing.ACCEPT),
    "onDifference": ("detach", "on_difference", OnDifference.DETACH),
    "columns": ("at, n", "columns", ("at", "n")),
    "filter": ("n = 1", "filter", parse_filter("n = 1")),
    "maxRowsPerTrigger": ("7", "rows_max", 7),
    "maxBytesPerTrigger": ("8", "bytes_max", 8),
    "consumer": ("me", "consumer", "me"),
    "consumerRetainSeconds": ("9", "consumer_retain_s", 9.0),
}


def test_each_option_reaches_its_field_and_without_it_the_documented_value_holds() -> None:
    assert EVERY_OPTION.keys() == MERGED_OPTIONS.keys()
    for left_out in ("token", "tokenFile"):  # they exclude each other
        given = {name: one for name, one in EVERY_OPTION.items() if name != left_out}
        parsed = parse_merged({name: text for name, (text, _, _) in given.items()})
        assert {field: getattr(parsed, field) for _, field, _ in given.values()} == {
            field: value for _, field, value in given.values()
        }
    required = parse_merged({name: EVERY_OPTION[name][0] for name in ("path", "sites", "output", "schema")})
    assert (required.compare, required.time) == (16, ("at",))
    assert (required.on_missing, required.on_difference) == ("wait", "stop")


BAD: list[tuple[dict[str, str], type[DosError], str]] = [
    ({"columms": "at"}, BadOptionError, r"dos-merged has no option 'columms'; did you mean 'columns'\?"),
    (
        {"path": "dos://p1/board.joined"},
        BadOptionError,
        r"is a URL: .load\(...\) takes the name of the region",
    ),
    ({"path": "board joined"}, BadNameError, "board joined"),
    ({"sites": "dos://p1"}, BadOptionError, "each site once, as SITE=URL, not 'dos://p1'"),
    ({"sites": "p=dos://p1 p=dos://p2"}, BadOptionError, "not 'p=dos://p2'"),
    ({"sites": " "}, BadOptionError, "names no site"),
    ({"sites": "p=p1"}, BadUrlError, "p1"),
    ({"output": "a/b"}, BadNameError, "a/b"),
    ({"schema": "key string"}, SchemaError, "at"),
    ({"time": "key"}, SchemaError, "key"),
    ({"time": "at,"}, BadOptionError, "names separated by commas"),
    ({"compare": "0"}, BadOptionError, "must be all, off, or a whole number from 1, not '0'"),
    ({"onMissing": "skip"}, BadOptionError, "'onMissing' must be one of wait, accept, not 'skip'"),
    ({"onDifference": "go"}, BadOptionError, "'onDifference' must be one of stop, detach"),
    ({"consumer": "a b"}, BadNameError, "a b"),
    ({"consumerRetainSeconds": "-1"}, BadOptionError, "must be seconds"),
    ({"maxRowsPerTrigger": "0"}, BadOptionError, "whole number from 1"),
    ({"columns": "at, m"}, SchemaMismatchError, "names 'm'"),
    ({"filter": "m = 1"}, BadOptionError, "column 'm'"),
]


@pytest.mark.parametrize(("wrong", "error", "text"), BAD)
def test_an_option_that_cannot_be_is_refused_by_name(
    wrong: dict[str, str], error: type[DosError], text: str
) -> None:
    with pytest.raises(error, match=text):
        reader_of({**GOOD, **wrong})


def reader_of(given: dict[str, str]) -> MergedStreamReader:
    source = MergedSource(given)
    reader = source.streamReader(source.schema())
    assert isinstance(reader, MergedStreamReader)
    return reader


@pytest.mark.parametrize("name", ["path", "sites", "output", "schema"])
def test_an_option_that_is_needed_is_named(name: str) -> None:
    with pytest.raises(BadOptionError, match="region" if name == "path" else f"'{name}' is required"):
        parse_merged({key: value for key, value in GOOD.items() if key != name})


def test_a_batch_read_is_refused_and_says_what_to_do() -> None:
    source = MergedSource(GOOD)
    with pytest.raises(BadOptionError, match=r"readStream and .trigger\(availableNow=True\)"):
        source.reader(source.schema())


def test_columns_are_those_of_the_sink_or_those_that_are_named() -> None:
    assert MergedSource(GOOD).schema().simpleString() == "struct<at:timestamp,key:string,n:bigint>"
    assert MergedSource({**GOOD, "columns": "n"}).schema().simpleString() == "struct<n:bigint>"


def test_offsets_are_of_one_output_and_say_what_they_are_of() -> None:
    for mark in (NOTHING_READ, -1, 0, 1_790_000_000_000_000):
        assert mark_in(through_json(mark_offset(OF, mark)), OF) == mark
    good = mark_offset(OF, 5)
    assert good == {
        "version": 1,
        "what": "merged output board.joined/out",
        "schema": SCHEMA,
        "time": ["at"],
        "markUs": 5,
    }
    for other, text in (
        (
            {"what": "merged output board.joined/late"},
            "is of merged output board.joined/late, but this query",
        ),
        ({"schema": "at timestamp"}, "is of columns at timestamp, but merged output board.joined/out has at"),
        ({"time": ["at", "until"]}, "is of times in at, until, but the option 'time' is at"),
    ):
        with pytest.raises(MalformedOffsetError, match=text):
            mark_in({**good, **other}, OF)
    for wrong in ({"version": 2}, {"markUs": "5"}, {"store": ""}):
        with pytest.raises(MalformedOffsetError):
            mark_in({**good, **wrong}, OF)


def test_an_offset_of_another_output_is_refused_before_a_store_is_opened() -> None:
    reader = reader_of(GOOD)
    offset = {**reader.initialOffset(), "what": "merged output other/out"}
    for call in (
        lambda: reader.latestOffset(offset, reader.getDefaultReadLimit()),
        lambda: reader.partitions(offset, offset),
    ):
        with pytest.raises(MalformedOffsetError, match="other/out"):
            call()


COLUMNS = pa.schema([("at", pa.int64()), ("text", pa.string())])
TimedRow = tuple[int, str]
ROWS = st.lists(st.tuples(st.integers(1, 12), st.text("abc", max_size=30)), max_size=25)
LIMITS = st.builds(BatchLimits, st.none() | st.integers(1, 6), st.none() | st.integers(1, 120))


def batch_of(rows: list[TimedRow]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"at": at, "text": text} for at, text in rows], COLUMNS)


def rows_in(batches: list[pa.RecordBatch]) -> list[TimedRow]:
    return [(row["at"], row["text"]) for batch in batches for row in batch.to_pylist()]


def give(held: RowsByTime, rows: list[TimedRow], mark: int) -> None:
    if rows:
        held.add(batch_of(rows), np.array([at for at, _ in rows], np.int64))
    held.set_mark(mark)


def history(data: st.DataObject, rows: list[TimedRow], begin: int) -> list[tuple[list[TimedRow], int]]:
    """(rows, mark) in some order in which every row comes before the mark that passes it."""
    left = data.draw(st.permutations([row for row in rows if row[0] > begin]))
    found, mark = [], begin
    for higher in data.draw(st.lists(st.integers(begin, 12), max_size=4).map(sorted)):
        ahead = data.draw(st.integers(0, len(left)))
        now = [row for index, row in enumerate(left) if row[0] <= higher or index < ahead]
        left = [row for index, row in enumerate(left) if row[0] > higher and index >= ahead]
        mark = max(mark, higher)
        found.append((now, mark))
    return [*found, (left, 13)]


def read(
    held: RowsByTime, steps: list[tuple[list[TimedRow], int]], limits: BatchLimits, batches: dict[int, int]
) -> dict[tuple[int, int], list[TimedRow]]:
    """Micro-batches, as many after each step as `batches` has for it, and all of them after the last one."""
    found = {}
    at = held.begin
    for number, (rows, mark) in enumerate(steps):
        give(held, rows, mark)
        left = batches.get(number, 1) if number < len(steps) - 1 else 1000
        while left and (end := held.end_of_batch(at, limits)) > at:
            above = at
            found[at, end] = rows_in(held.between(at, end))
            assert rows_in(held.between(at, end)) == found[at, end], "it can be asked again"
            held.release(end)
            at, left = end, left - 1
            held.release(above)  # a release that arrives late gives nothing back
            assert held.begin == at
    assert held.complete_bytes == 0
    return found


@given(rows=ROWS, limits=LIMITS, data=st.data())
def test_micro_batches_have_each_row_once_and_those_of_their_times(
    rows: list[TimedRow], limits: BatchLimits, data: st.DataObject
) -> None:
    batches = data.draw(st.dictionaries(st.integers(0, 4), st.integers(0, 3)))
    found = read(RowsByTime(0), history(data, rows, 0), limits, batches)
    ends = [0, *(end for _, end in found)]
    assert list(found) == list(pairwise(ends))
    for (above, upto), got in found.items():
        assert Counter(got) == Counter(row for row in rows if above < row[0] <= upto)
        assert [at for at, _ in got] == sorted(at for at, _ in got)
        times = {at for at, _ in got}
        assert upto in times
        if len(times) > 1 and limits.rows is not None:
            assert len(got) <= limits.rows
    assert sum(map(len, found.values())) == len(rows)


@given(rows=ROWS, limits=LIMITS, data=st.data())
def test_a_reader_that_begins_later_finds_the_same_rows_in_the_same_micro_batch(
    rows: list[TimedRow], limits: BatchLimits, data: st.DataObject
) -> None:
    found = read(RowsByTime(0), history(data, rows, 0), limits, {})
    for (above, upto), got in found.items():
        again = RowsByTime(above)
        for part, mark in history(data, rows, above):
            give(again, part, mark)
        assert Counter(rows_in(again.between(above, upto))) == Counter(got)


def test_a_micro_batch_ends_at_the_target_and_with_what_the_mark_has_passed() -> None:
    held = RowsByTime(0)
    give(held, [(at, "") for at in (5, 1, 3, 2, 4, 9)], 4)
    assert held.end_of_batch(0, BatchLimits()) == 4
    assert held.end_of_batch(0, BatchLimits(), upto=3) == 3
    assert held.end_of_batch(3, BatchLimits(), upto=3) == 3
    assert held.end_of_batch(0, BatchLimits(rows=2)) == 2
    give(held, [], 8)
    assert held.end_of_batch(4, BatchLimits(rows=10)) == 5
    assert held.complete_bytes
