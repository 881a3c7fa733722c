"""Objects that hold Arrow streams: where their messages end, and what a batch and a stream give of them."""

import random
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dos_client.blocking import BlockingStore
from dos_server.testing import Servers, ThreadedServer
from spark_integration.core.framing import END_OF_STREAM, ArrowFramer, ArrowMessages, MessageKind
from spark_integration.errors import NotReadableError, SchemaMismatchError
from spark_integration.reading.decoding import ArrowDecoder
from spark_integration.reading.origin import ByteRange
from tests.spark_integration.stored_data import write_objects
from tests.spark_integration.streaming import query
from tests.spark_integration.test_source_batch import Reading

N = pa.schema([("n", pa.int64())])
WORDS = pa.schema([("word", pa.dictionary(pa.int32(), pa.string())), ("n", pa.int64())])


def stream(*batches: list[int], closed: bool = True) -> bytes:
    """An IPC stream with a batch for each list."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, N) as writer:
        for numbers in batches:
            writer.write_batch(pa.record_batch([pa.array(numbers, pa.int64())], schema=N))
    data = sink.getvalue().to_pybytes()
    return data if closed else data.removesuffix(END_OF_STREAM)


def worded(words: list[str]) -> bytes:
    """One whose words are in a dictionary, which grows with each batch."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    with pa.ipc.new_stream(sink, WORDS, options=options) as writer:
        for end in range(1, len(words) + 1):
            column = pa.DictionaryArray.from_arrays(pa.array([end - 1], pa.int32()), pa.array(words[:end]))
            writer.write_batch(pa.record_batch([column, pa.array([end])], schema=WORDS))
    return sink.getvalue().to_pybytes()


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    bounds = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[begin:end] for begin, end in pairwise(bounds)]


@given(
    st.lists(st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=3), max_size=4),
    st.lists(st.integers(0)),
)
def test_streams_end_where_they_were_written_however_their_bytes_are_cut(
    streams: list[list[list[int]]], cuts: list[int]
) -> None:
    written = [stream(*batches) for batches in streams]
    framer = ArrowFramer("o", 100)
    ends = [end for piece in pieces(b"".join(written), cuts) for end in framer.feed(piece)]
    assert ends == [100 + sum(map(len, written[: count + 1])) for count in range(len(written))]
    rows = [framer.rows(1) for _ in ends]
    assert rows == [sum(map(len, batches)) for batches in streams]


@given(st.lists(st.integers(0)), st.integers(0))
def test_a_decoder_gives_each_whole_batch_once_however_its_bytes_are_cut(cuts: list[int], end: int) -> None:
    data = stream([1, 2], []) + worded(["a", "b", "c"]) + stream([3]) + stream([4], [5], closed=False)
    whole = pa.schema([("n", pa.int64())])

    def numbers(given: bytes) -> list[int]:
        decoder = ArrowDecoder(ByteRange("d", "o", 0, len(given)), frozenset(), whole)
        found = [batch for piece in pieces(given, cuts) for batch in decoder.feed(piece)]
        found += decoder.finish()
        return [number for batch in found for number in batch.column("n").to_pylist()]

    assert numbers(data) == [1, 2, 1, 2, 3, 3, 4, 5]
    some = numbers(data[: end % len(data)])
    assert some == [1, 2, 1, 2, 3, 3, 4, 5][: len(some)]


def test_words_of_a_dictionary_that_grows_are_those_that_were_written() -> None:
    decoder = ArrowDecoder(ByteRange("d", "o", 0, 0), frozenset(), WORDS)
    data = worded(["a", "b", "c"])
    found = [batch for byte in data for batch in decoder.feed(bytes([byte]))]
    assert [batch.column("word").to_pylist() for batch in found] == [["a"], ["b"], ["c"]]


@given(st.integers(0), st.integers(0, 7))
def test_bytes_that_are_damaged_are_refused_or_give_boundaries_and_nothing_else(at: int, bit: int) -> None:
    data = bytearray(stream([1, 2], [3]))
    data[at % len(data)] ^= 1 << bit
    try:
        found = ArrowMessages("o", 0).feed(bytes(data))
    except NotReadableError:
        return
    assert [one.begin for one in found[1:]] == [one.end for one in found[:-1]]


@pytest.mark.parametrize("data", [b"ARROW1\0\0" + bytes(16), b"two\nlines\n", bytes(64), stream([1])[8:]])
def test_what_is_no_stream_is_refused_with_its_place(data: bytes) -> None:
    with pytest.raises(NotReadableError, match=r"o: at byte 0: .*check the option 'content'"):
        ArrowMessages("o", 0).feed(data)


def test_messages_are_schema_batches_and_end() -> None:
    kinds = [one.kind for one in ArrowMessages("o", 0).feed(stream([1], [2]))]
    assert kinds == [MessageKind.SCHEMA, MessageKind.BATCH, MessageKind.BATCH, MessageKind.END]


# --- in a store ---------------------------------------------------------------------------------------------


def test_a_stream_gives_what_was_appended_once_its_arrow_stream_is_whole(
    servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    first, second = stream([1, 2], [3]), stream([4])
    write_objects(store, "grows", {"a": first + second[:-9]})
    with query(servers, "grows", content="arrow") as asked:
        assert asked.batch() == [1, 2, 3]
        assert asked.batch() == []
        before = asked.at
        write_objects(store, "grows", {"a": second[-9:] + stream([5]), "b": stream([6])}, epoch=2)
        assert asked.batch() == [4, 5, 6]
        assert asked.between(before, asked.at) == [4, 5, 6]
        seen = asked.reader.reportLatestOffset()["splits"]
        assert seen["a"]["size"] == asked.at["splits"]["a"]["size"]


def test_limits_count_rows_and_a_stream_is_taken_whole(
    servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    write_objects(store, "limits", {"a": stream([1, 2], [3]) + stream([4]) + stream([5]) + stream([6, 7, 8])})
    with query(servers, "limits", content="arrow", maxRowsPerTrigger="2") as asked:
        assert asked.batches() == [[1, 2, 3], [4, 5], [6, 7, 8]]
    with query(servers, "limits", content="arrow", maxRowsPerTrigger="1000000") as asked:
        assert asked.batches() == [[1, 2, 3, 4, 5, 6, 7, 8]]


def test_what_is_wrong_with_an_object_is_reported(
    servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    write_objects(store, "odd", {"a": stream([1]) + b"and then something else"})
    with pytest.raises(NotReadableError, match=r"odd/a: at byte \d+: not an Arrow stream"):
        Reading(servers.url, "odd", content="arrow").rows()
    write_objects(store, "other", {"a": stream([1]), "b": stream([2])})
    with (
        pytest.raises(SchemaMismatchError, match="'n' was requested as string"),
        query(servers, "other", pa.schema([("n", pa.string())]), content="arrow") as asked,
    ):
        asked.batch()


def test_a_long_object_is_read_in_batches_as_they_come(
    servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    rng = random.Random(7)
    numbers = [[rng.randrange(1000) for _ in range(20_000)] for _ in range(20)]
    write_objects(store, "long", {"a": stream(*numbers)})
    reading = Reading(servers.url, "long", content="arrow")
    found: list[Any] = [row["n"] for row in reading.rows()]
    assert found == [number for batch in numbers for number in batch]
