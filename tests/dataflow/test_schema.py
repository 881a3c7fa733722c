"""DDL strings and Arrow schemas."""

import contextlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructField, StructType

from dataflow.errors import SchemaError
from dataflow.schema import parse_schema, schema_text

_simple = st.sampled_from(
    [
        pa.string(),
        pa.binary(),
        pa.bool_(),
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.date32(),
        pa.timestamp("us"),
        pa.timestamp("us", tz="UTC"),
        pa.decimal128(10, 2),
    ]
)
_names = st.text(
    st.characters(codec="utf-8", exclude_characters="\0", exclude_categories=("Cs",)), min_size=1, max_size=8
).filter(lambda name: name not in {"_time", "_id", "_weight", "_hash", "_deleted"})
_types = st.recursive(
    _simple,
    lambda inner: (
        inner.map(pa.list_)
        | st.tuples(_simple, inner).map(lambda pair: pa.map_(*pair))
        | st.lists(st.tuples(_names, inner), min_size=1, max_size=3, unique_by=lambda f: f[0]).map(pa.struct)
    ),
    max_leaves=4,
)


@given(st.lists(st.tuples(_names, _types), min_size=1, max_size=5, unique_by=lambda field: field[0]))
def test_a_schema_written_as_text_reads_back(fields: list[tuple[str, pa.DataType]]) -> None:
    schema = pa.schema(fields)
    assert parse_schema(schema_text(schema)).equals(schema)


@given(st.text(alphabet="ab `:,<>()1 string bigint array struct", max_size=30))
def test_any_text_is_a_schema_or_a_schema_error(text: str) -> None:
    with contextlib.suppress(SchemaError):
        assert parse_schema(text).names


def test_the_ddl_of_spark_is_understood() -> None:
    schema = parse_schema("word STRING, n bigint NOT NULL, tags array<struct<a:int,b:decimal(5,2)>>")
    assert schema.names == ["word", "n", "tags"]
    assert not schema.field("n").nullable
    assert schema.field("tags").type == pa.list_(pa.struct([("a", pa.int32()), ("b", pa.decimal128(5, 2))]))


def test_a_collation_of_spark_that_compares_other_than_bytes_is_refused_by_name() -> None:
    collated = StructType([StructField("k", StringType("UTF8_LCASE")), StructField("n", LongType())])
    with pytest.raises(SchemaError, match="by which Spark takes different texts for equal; here texts"):
        parse_schema(collated)
    assert parse_schema(StructType([StructField("k", StringType("UTF8_BINARY"))])).types == [pa.string()]
    assert parse_schema("k string collate utf8_binary, n int").types == [pa.string(), pa.int32()]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected a column name"),
        ("word", "is no type"),
        ("word strin", "'strin' is no type"),
        ("word string,", "expected a column name"),
        ("word string n bigint", "comma or the end"),
        ("a int, a int", "duplicates: a"),
        ("_hash bigint", "reserved"),
        ("d decimal(50,2)", "outside 1..38"),
        ("w string; drop", "cannot be parsed at character 8"),
        ("a array<int", "expected '>'"),
        ("k string collate UTF8_LCASE", "a string with the collation UTF8_LCASE"),
        ("a array<string collate UNICODE_CI>", "a string with the collation UNICODE_CI"),
    ],
)
def test_a_bad_schema_is_refused_with_the_place_and_an_example(text: str, words: str) -> None:
    with pytest.raises(SchemaError, match=r"schema|column") as caught:
        parse_schema(text)
    assert words in str(caught.value)
