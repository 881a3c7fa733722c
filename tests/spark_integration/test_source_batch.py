"""What the source `dos` gives a batch, without Spark: its planner and its tasks on a store of three in
memory.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from checkpoint.core.records.outputs import Publish
from checkpoint.errors import NoRegionError
from dataflow.errors import NoOutputError
from dataflow.schema import parse_schema
from dos_client.blocking import BlockingStore, open_store
from dos_client.errors import StoreNotReadyError
from dos_server.testing import Servers, ThreadedServer, threaded_store
from journal.core.errors import TornRecordError
from spark_integration.core.options import parse_options
from spark_integration.errors import (
    BadOptionError,
    NoSchemaError,
    NothingThereError,
    NotReadableError,
    SchemaMismatchError,
)
from spark_integration.reading.origin import ByteRange, DosPartition
from spark_integration.reading.planning import columns_of, plan_batch
from spark_integration.reading.readers import rows_of
from tests.spark_integration.stored_data import (
    arrow,
    lines,
    write_batches,
    write_checkpoints,
    write_objects,
    write_steps,
)

WORDS = pa.schema([("word", pa.string()), ("count", pa.int64())])


def row(word: str, count: int) -> dict[str, Any]:
    return {"word": word, "count": count}


@pytest.fixture(scope="module")
def store(servers: Servers[ThreadedServer]) -> Iterator[BlockingStore]:
    """What all tests of this file read."""
    with open_store(servers.url) as found:
        first = write_steps(found, "words", "counts", 0, {1: [row("a", 1)], 2: [], 3: [row("b", 2)]}, WORDS)
        write_steps(found, "words", "counts", 0, {4: [row("c", 3)]}, WORDS, epoch=2)
        write_steps(found, "words", "counts", 1, {1: [], 2: [row("z", 9)], 3: []}, WORDS)
        ends = write_steps(
            found,
            "checkpoint",
            "out",
            0,
            {1: [row("a", 1)], 2: [row("b", 2)]},
            WORDS,
            publish=Publish.CHECKPOINT,
        )
        write_checkpoints(found, "checkpoint", "out", [{0: ends[0]}])
        write_checkpoints(found, "words", "counts", [{0: first[0], 1: first[0]}])
        write_steps(found, "quiet", "out", 0, {1: []}, WORDS)
        write_batches(
            found, "shop", "orders", "till", [[row("tea", 3), row("egg", 1)], [row("tea", 4)]], WORDS
        )
        write_batches(found, "shop", "orders", "web", [[row("oat", 2)]], WORDS)
        write_objects(found, "logs", {"one.log": b"first\nsecond\nlast", "two.log": b"other\n"})
        write_objects(found, "more", {"a.json": lines([row("a", 1), {**row("b", 2), "more": True}])})
        write_objects(found, "bytes", {"b": b"\0\0\0\2hi\0\0\0\0\0\0\0\3you\0\0"})
        write_objects(found, "arrow", {"a": arrow([row("a", 1)], WORDS) + arrow([row("b", 2)], WORDS)})
        write_objects(found, "odd", {"o": b"\xff\xfe\n"})
        yield found


class Reading:
    """`spark.read.format("dos")`, without Spark."""

    def __init__(self, url: str, path: str, **options: str) -> None:
        self.options = parse_options({"path": f"{url}/{path}", **options})
        self.wanted: pa.Schema | None = None

    def schema(self, wanted: pa.Schema) -> "Reading":
        self.wanted = wanted
        return self

    def partitions(self) -> list[DosPartition]:
        self.wanted = columns_of(self.options) if self.wanted is None else self.wanted
        return plan_batch(self.options, self.wanted, self.options.filter)

    def rows(self) -> list[dict[str, Any]]:
        found = []
        for one in self.partitions():
            assert self.wanted is not None
            for batch in rows_of(self.options, self.wanted, self.options.filter, one):
                assert batch.schema.equals(self.wanted)
                found += batch.to_pylist()
        return found

    def words(self) -> str:
        return "".join(one["word"] for one in self.rows())


def test_the_output_of_a_sink_is_read_with_the_columns_that_it_has(
    servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    reading = Reading(servers.url, "words", output="counts")
    assert reading.rows() == [row("a", 1), row("b", 2), row("c", 3), row("z", 9)]
    assert reading.wanted == WORDS


def test_partitions_are_by_worker_and_segment_up_to_a_size(
    servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    together = Reading(servers.url, "words", output="counts").partitions()
    assert [(one.split, len(one.ranges)) for one in together] == [("w0000", 2), ("w0001", 1)]
    apart = Reading(servers.url, "words", output="counts", partitionBytes="1")
    assert [one.split for one in apart.partitions()] == ["w0000", "w0000", "w0001"]
    assert apart.words() == "abcz"


def test_output_that_no_checkpoint_covers_is_read_only_when_synced_will_do(
    servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    assert Reading(servers.url, "checkpoint", output="out").words() == "a"
    assert Reading(servers.url, "checkpoint", output="out", read="synced").words() == "ab"


def test_rows_tell_by_option_where_they_come_from(
    servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    reading = Reading(servers.url, "words", output="counts", columns="_step, word, _split, _written")
    assert [(one["_step"], one["word"], one["_split"]) for one in reading.rows()] == [
        (1, "a", "w0000"),
        (3, "b", "w0000"),
        (4, "c", "w0000"),
        (2, "z", "w0001"),
    ]
    assert reading.rows()[1]["_written"].timestamp() == 3
    assert Reading(servers.url, "words", output="counts", columns="*,_step").rows()[0] == {
        **row("a", 1),
        "_step": 1,
    }


def test_rows_that_do_not_pass_the_filter_are_not_given(
    servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    both = Reading(servers.url, "words", output="counts", filter="count >= 2 AND word <> 'z'", columns="word")
    assert both.rows() == [{"word": "b"}, {"word": "c"}]
    assert Reading(servers.url, "words", output="counts", filter="_step = 2").words() == "z"


def test_an_input_handle_is_read_producer_by_producer(
    servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    reading = Reading(servers.url, "shop", input="orders", columns="word,_split,_batch")
    assert [tuple(one.values()) for one in reading.rows()] == [
        ("tea", "till", 1),
        ("egg", "till", 1),
        ("tea", "till", 2),
        ("oat", "web", 1),
    ]


@pytest.fixture(scope="module")
def evolved(store: BlockingStore) -> None:
    """Batches of three versions; the newest one wrote before an older one."""
    written = {
        "p1": ("word string, count int", [{"word": "a", "count": 1}]),
        "p2": ("note string, count bigint, word string", [{"word": "b", "count": 1 << 40, "note": "n"}]),
        "p3": ("count int, word string", [{"word": "c", "count": 3}]),
    }
    for producer, (schema, rows) in written.items():
        write_batches(store, "shop", "evolved", producer, [rows], parse_schema(schema))
    for producer, schema in (("p1", "word string not null, count int"), ("p2", "word string, count int")):
        write_batches(store, "shop", "strict", producer, [[row(producer, 1)]], parse_schema(schema))


def test_an_input_handle_of_several_versions_is_read_with_the_columns_that_are_declared(
    servers: Servers[ThreadedServer], evolved: None
) -> None:
    def reading(text: str, **options: str) -> list[tuple[Any, ...]]:
        asked = Reading(servers.url, "shop", input="evolved", **options).schema(parse_schema(text))
        return [tuple(one.values()) for one in asked.rows()]

    newest = "word string, count bigint, note string"
    assert reading(newest) == [("a", 1, None), ("b", 1 << 40, "n"), ("c", 3, None)]
    assert reading("word string, count bigint") == [("a", 1), ("b", 1 << 40), ("c", 3)]
    assert reading("word string") == [("a",), ("b",), ("c",)]
    origin = f"{newest}, _split string"
    assert reading(origin, filter="note IS NULL AND _batch = 1") == [
        ("a", 1, None, "p1"),
        ("c", 3, None, "p3"),
    ]
    assert reading(newest, filter=f"count > {1 << 33}") == [("b", 1 << 40, "n")]
    assert reading("word string, note string", filter="count = 3") == [("c", None)]
    assert Reading(servers.url, "shop", input="strict").words() == "p1p2"


def test_columns_of_an_input_handle_that_could_lose_values_are_refused_with_their_rule(
    servers: Servers[ThreadedServer], evolved: None
) -> None:
    def refused(text: str, handle: str = "evolved", **options: str) -> str:
        with pytest.raises(SchemaMismatchError) as raised:
            Reading(servers.url, "shop", input=handle, **options).schema(parse_schema(text)).rows()
        return str(raised.value)

    narrow = refused("word string, count int")
    assert "p2 has rows with note string, count bigint, word string: column 'count' is bigint" in narrow
    assert "before writers use it" in narrow
    assert "column 'wort' (string) is missing, and column 'word'" in refused("wort string, count bigint")
    assert "expected string NOT NULL" in refused("word string not null, count bigint")
    assert "'note' (string) is missing, and column 'count' (int)" in refused("word string, note string")
    assert "may be missing in some rows" in refused("word string, count bigint, note string not null")
    assert "'_splt' (string) was requested" in refused("word string, count bigint, _splt string")
    assert "'count' is int, expected string" in refused("word string, count string", "strict")


def test_the_output_of_a_sink_that_gained_a_column_is_read_with_and_without_it(
    servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    noted = [{**row("b", 2), "note": "x"}]
    write_steps(store, "grown", "out", 0, {1: [row("a", 1)]}, WORDS)
    write_steps(
        store, "grown", "out", 0, {2: noted}, parse_schema("note string, word string, count bigint"), epoch=2
    )
    reading = Reading(servers.url, "grown", output="out")
    assert reading.rows() == [row("a", 1), row("b", 2)], "a program from before continues without it"
    assert reading.wanted == WORDS
    wanted = parse_schema("word string, note string, count bigint")
    assert reading.schema(wanted).rows() == [{**row("a", 1), "note": None}, *noted]
    renamed = parse_schema("noun string, note string, count bigint")
    with pytest.raises(SchemaMismatchError, match="a column may have been renamed"):
        reading.schema(renamed).rows()


@pytest.mark.parametrize("size", [1, 5, 8, 1000])
def test_lines_are_the_same_however_objects_are_cut_into_partitions(
    servers: Servers[ThreadedServer], store: BlockingStore, size: int
) -> None:
    reading = Reading(
        servers.url, "logs", content="lines", columns="value,_object,_offset", partitionBytes=str(size)
    )
    assert [tuple(one.values()) for one in reading.rows()] == [
        ("first", "one.log", 0),
        ("second", "one.log", 6),
        ("last", "one.log", 13),
        ("other", "two.log", 0),
    ]
    assert len(reading.partitions()) == {1: 4, 5: 4, 8: 3, 1000: 2}[size]


@pytest.mark.parametrize("read", ["committed", "synced"])
def test_one_object_or_those_that_fit_a_pattern_are_read(
    servers: Servers[ThreadedServer], store: BlockingStore, read: str
) -> None:
    assert Reading(servers.url, "logs/two.log", content="lines", read=read).rows() == [{"value": "other"}]
    assert len(Reading(servers.url, "logs", content="lines", objects="one*", read=read).rows()) == 3


def test_json_lines_have_the_columns_that_a_sample_shows_or_that_are_asked_for(
    servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    reading = Reading(servers.url, "more", content="json")
    assert reading.rows() == [{**row("a", 1), "more": None}, {**row("b", 2), "more": True}]
    narrow = pa.schema([("count", pa.int32()), ("_object", pa.string())])
    asked = Reading(servers.url, "more", content="json").schema(narrow)
    assert asked.rows() == [{"count": 1, "_object": "a.json"}, {"count": 2, "_object": "a.json"}]
    wrong = Reading(servers.url, "more", content="json").schema(pa.schema([("word", pa.int64())]))
    with pytest.raises(NotReadableError, match=r"more/a.json, bytes 0 to \d+, is not JSON lines"):
        wrong.rows()


def test_length_prefixed_records_are_rows_and_an_unfinished_one_is_not(
    servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    reading = Reading(servers.url, "bytes", content="length-prefixed", columns="value,_offset")
    assert [tuple(one.values()) for one in reading.rows()] == [(b"hi", 0), (b"", 6), (b"you", 10)]


def test_arrow_streams_one_after_another_are_read(
    servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    assert Reading(servers.url, "arrow", content="arrow").rows() == [row("a", 1), row("b", 2)]


def test_records_of_a_journal_are_rows(servers: Servers[ThreadedServer], store: BlockingStore) -> None:
    found = Reading(servers.url, "words.w0001", content="journal").rows()
    assert [one["op"] for one in found] == ["SEGMENT_START", "OUTPUT", "OUTPUT", "OUTPUT"]
    assert [one["ints"][0] for one in found[1:]] == [1, 2, 3]
    assert found[0]["offset"] == 0
    assert found[1]["offset"] > 0


def test_what_is_missing_is_named_with_what_is_near(
    servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    with pytest.raises(NoRegionError, match="no region 'wards': it has "):
        Reading(servers.url, "wards", output="counts").partitions()
    with pytest.raises(NoOutputError, match="no output of a sink 'count'"):
        Reading(servers.url, "words", output="count").partitions()
    with pytest.raises(NothingThereError, match=r"input handle 'order' .*\(did you mean 'orders'\?\)"):
        Reading(servers.url, "shop", input="order").partitions()
    with pytest.raises(NothingThereError, match=r"no directory 'log' .*\(did you mean 'logs'\?\)"):
        Reading(servers.url, "log", content="lines").partitions()
    with pytest.raises(NothingThereError, match=r"no object 'tow.log' .*\(did you mean 'two.log'\?\)"):
        Reading(servers.url, "logs/tow.log", content="lines").partitions()


def test_columns_that_do_not_fit_are_named_with_both_types_before_a_task_runs(
    servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    asked = pa.schema([("word", pa.string()), ("count", pa.int32())])
    with pytest.raises(
        SchemaMismatchError, match="'count' was requested as int, but in output words/counts it is bigint"
    ):
        Reading(servers.url, "words", output="counts").schema(asked).partitions()
    with pytest.raises(SchemaMismatchError, match=r"'wort' \(string\) .*\(did you mean 'word'\?\)"):
        Reading(servers.url, "words", output="counts").schema(pa.schema([("wort", pa.string())])).partitions()
    with pytest.raises(SchemaMismatchError, match="'columns' names 'cuont'"):
        Reading(servers.url, "words", output="counts", columns="cuont").partitions()
    with pytest.raises(BadOptionError, match="column 'count', which is bigint, with 'x'"):
        Reading(servers.url, "words", output="counts", filter="count = 'x'").partitions()
    with pytest.raises(NoSchemaError, match="output quiet/out are unknown, because it has no rows yet"):
        Reading(servers.url, "quiet", output="out").partitions()


def test_text_that_is_none_is_named_with_its_place(
    servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    with pytest.raises(NotReadableError, match="odd/o is not UTF-8 between bytes 0 and 3"):
        Reading(servers.url, "odd", content="lines").rows()


def test_a_record_that_is_under_way_does_not_count_and_one_that_is_torn_is_refused(
    servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    reading = Reading(servers.url, "words", output="counts")
    planned = next(one for one in reading.partitions() if one.split == "w0000")
    part = planned.ranges[-1]
    assert part.at_head, "publish=step is read up to where its writer was"

    def words(part: ByteRange) -> str:
        batches = rows_of(reading.options, WORDS, (), DosPartition(planned.split, (part,)))
        return "".join(row["word"] for batch in batches for row in batch.to_pylist())

    whole = words(part)
    assert whole.startswith(words(part._replace(end=part.end - 1)))
    assert len(words(part._replace(end=part.end - 1))) < len(whole)
    with pytest.raises(TornRecordError):
        words(part._replace(end=part.end - 1, at_head=False))


def test_a_token_that_is_wrong_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dos_client.store.open_timeout_s", 3600.0)
    with threaded_store(1, token=b"right") as servers:
        with open_store(servers.url, token=b"right") as store:
            write_objects(store, "logs", {"a": b"x\n"})
        assert Reading(servers.url, "logs", content="lines", token="right").rows() == [{"value": "x"}]
        with pytest.raises(StoreNotReadyError, match="use the token that the servers were started with"):
            Reading(servers.url, "logs", content="lines", token="wrong").rows()
