"""Merging, partitioning and the bytes of an exchange."""

from collections import Counter
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.chains.state_blocks import decode_block, encode_block
from checkpoint.core.records.layout import even_layout
from checkpoint.key_hash import hash_keys
from dataflow import limits
from dataflow.operators.aggregates import CountOperator
from dataflow.operators.routing import wire_schema
from dataflow.worker.partitioning import (
    Partitioner,
    decode_batch,
    encode_batch,
    frames_of,
    key_hashes,
    merge_rows,
)

SCHEMA = pa.schema([("word", pa.string()), ("n", pa.int64())])
_rows = st.lists(st.tuples(st.sampled_from(["a", "b", "c", "dd", ""]), st.integers(0, 3)), max_size=20)
_batches = st.lists(_rows, min_size=1, max_size=4)


def batch_of(rows: list[tuple[str, int]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"word": w, "n": n} for w, n in rows], schema=SCHEMA)


@given(_batches, st.booleans(), st.booleans())
def test_merging_keeps_the_sum_of_each_row_and_the_order_of_first_appearance(
    batches: list[list[tuple[str, int]]], weighted: bool, one_column: bool
) -> None:
    columns = ["word"] if one_column else ["word", "n"]
    given_batches = [batch_of(rows) for rows in batches]
    if weighted:
        given_batches = [
            batch.append_column("_weight", pa.array(range(1, batch.num_rows + 1), pa.int64()))
            for batch in given_batches
        ]
    model: Counter[tuple] = Counter()
    for rows in batches:
        for index, row in enumerate(rows):
            model[row[: len(columns)]] += index + 1 if weighted else 1
    merged = merge_rows(given_batches, columns).to_pylist()
    assert [tuple(row[name] for name in columns) for row in merged] == list(model)
    assert [row["_weight"] for row in merged] == list(model.values())


@given(_batches, st.integers(1, 5), st.booleans())
def test_every_row_goes_to_the_worker_of_its_keys_shard(
    batches: list[list[tuple[str, int]]], workers: int, merge: bool
) -> None:
    layout = even_layout(workers)
    partitioner = Partitioner(["word"], layout, workers, ["word"] if merge else None)
    parts = partitioner.partition([batch_of(rows) for rows in batches])
    assert len(parts) == workers
    found: Counter[str] = Counter()
    schema = wire_schema(SCHEMA, ["word"] if merge else None)
    for worker, part in enumerate(parts):
        for batch in part:
            assert set(batch.schema.names) == set(schema.names)
            assert (batch.column("_hash").to_numpy() == hash_keys([batch.column("word")])).all()
            for row in batch.to_pylist():
                assert layout.worker_of(row["_hash"]) == worker
                found[row["word"]] += row.get("_weight", 1)
    assert found == Counter(word for rows in batches for word, _ in rows)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([b"x", b"y", b"x"]),
        pa.array([1, -1, 1], pa.int8()),
        pa.array([2**63 - 1, 0, 2**63 - 1]),
        pa.array([True, False, True]),
        pa.array([1, 2, 1], pa.date32()),
        pa.array([1, 2, 1], pa.timestamp("us", tz="UTC")),
        pa.array([Decimal("1.20"), Decimal("2"), Decimal("1.20")], pa.decimal128(9, 2)),
    ],
    ids=lambda column: str(column.type),
)
@pytest.mark.parametrize("beside", [False, True])
def test_every_type_of_key_is_merged_sent_and_counted(column: pa.Array, beside: bool) -> None:
    batch = pa.record_batch({"key": column})
    keys = ["key"]
    if beside:
        batch = batch.append_column("other", pa.array(["a", "b", "a"]))
        keys = ["key", "other"]
    parts = Partitioner(keys, even_layout(2), 2, keys).partition([batch])
    output = pa.schema([*batch.schema, ("count", pa.int64())])
    counts = CountOperator(keys, output)
    for part in parts:
        for piece in part:
            wire = wire_schema(batch.schema, keys)
            counts.process(decode_batch(bytes(encode_batch(piece)), wire))
    (made,) = counts.end_batch()
    assert sorted(made.column("count").to_pylist()) == [1, 2]
    twin = CountOperator(keys, output).tables()[""]
    twin.restore(decode_block(*encode_block(counts.tables()[""].checkpoint())))
    assert twin.snapshot().num_rows == 2


@pytest.mark.parametrize("merge", [["word"], None])
def test_null_is_a_key_with_one_owner_and_not_the_empty_one(merge: list[str] | None) -> None:
    batch = pa.record_batch({"word": ["", None, "a", None], "n": [1, 2, 3, 4]}, schema=SCHEMA)
    parts = Partitioner(["word"], even_layout(3), 3, merge).partition([batch])
    found = [{word for piece in part for word in piece.column("word").to_pylist()} for part in parts]
    assert sum(None in words for words in found) == 1
    assert set.union(*found) == {"", "a", None}


def test_no_rows_give_no_batches() -> None:
    assert Partitioner(["word"], even_layout(3), 3, ["word"]).partition([]) == [[], [], []]


@given(_rows)
def test_a_batch_survives_the_wire(rows: list[tuple[str, int]]) -> None:
    batch = batch_of(rows)
    assert decode_batch(bytes(encode_batch(batch)), SCHEMA).equals(batch)
    assert decode_batch(bytearray(encode_batch(batch.slice(1))), SCHEMA).equals(batch.slice(1))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_batch_or_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode_batch(data, SCHEMA)


def test_a_batch_of_other_columns_is_refused() -> None:
    payload = bytes(encode_batch(batch_of([("a", 1)]).select(["n"])))
    with pytest.raises(ValueError, match="the columns"):
        decode_batch(payload, SCHEMA)


def test_a_large_batch_is_cut_into_frames_that_a_link_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "frame_bytes_aim", 100)
    batch = batch_of([("word", i) for i in range(100)])
    frames = [*frames_of(batch)]
    assert len(frames) > 5
    assert pa.Table.from_batches(frames).to_pylist() == batch.to_pylist()


@pytest.mark.parametrize("keys", [1, 700, 1_000_000])
@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.int64(), pa.date32(), pa.decimal128(12, 2)])
def test_the_hash_of_a_key_is_the_same_whether_keys_repeat_or_not(kind: pa.DataType, keys: int) -> None:
    rows = 2 * limits.key_sample_rows + 5
    numbers = pa.array([row * 7_919 % keys for row in range(rows)], pa.int32())
    by_text = pa.types.is_binary(kind) or pa.types.is_string(kind)
    column = numbers.cast(pa.string()).cast(kind) if by_text else numbers.cast(kind)
    for part in (column, column.slice(3), column.slice(0, 10)):
        assert (key_hashes([part]) == hash_keys([part])).all()
    assert (key_hashes([column, numbers]) == hash_keys([column, numbers])).all()
