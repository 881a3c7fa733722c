"""Options of the sink `dos`: what they may be, and what is said when they are not. No store is there."""

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from dos_client.errors import BadUrlError
from dos_protocol.errors import BadNameError, DosError
from spark_integration.core.options import SINK_OPTIONS, parse_sink_options
from spark_integration.data_source import DosSource
from spark_integration.errors import BadOptionError, column_difference
from tests.spark_integration.sink_process import SCHEMA

GOOD = {"path": "dos://h1,h2/shop", "input": "orders"}
ROWS = StructType([StructField("n", LongType())])


def test_options_are_distinguished_without_regard_to_case_and_sparks_own_are_let_through() -> None:
    given = {**GOOD, "Producer": "till", "BATCH": "7", "checkpointlocation": "/c", "queryName": "q"}
    options = parse_sink_options(given)
    assert (options.servers, options.application, options.input) == (
        "dos://h1:9999,h2:9999",
        "shop",
        "orders",
    )
    assert (options.producer, options.batch, options.what) == ("till", 7, "input shop/orders")


@pytest.mark.parametrize("wrong", [f"{name[:-1]}{name[-1]}x" for name in SINK_OPTIONS])
def test_an_option_that_there_is_not_is_named_with_the_nearest_right_one(wrong: str) -> None:
    with pytest.raises(BadOptionError, match=rf"no option '{wrong}'; did you mean '{wrong[:-1]}'"):
        parse_sink_options({**GOOD, wrong: "1"})


@pytest.mark.parametrize(
    ("changed", "kind", "said"),
    [
        ({"path": "dos://h1"}, BadOptionError, "names a store but nothing in it"),
        ({"path": "dos://h1/shop/orders"}, BadOptionError, "must end with the name of an application"),
        ({"path": "shop"}, BadUrlError, "shop"),
        ({"input": ""}, BadOptionError, "'input' is empty"),
        ({"input": "a.b"}, BadNameError, "the name of an input handle consists of letters"),
        ({"producer": "a.b"}, BadNameError, "the name of a producer consists of letters"),
        ({"producer": "p" * 120}, BadNameError, "p"),
        ({"batch": "0"}, BadOptionError, "'batch' must be a whole number from 1"),
        ({"token": "a", "tokenFile": "b"}, BadOptionError, "exclude each other"),
    ],
)
def test_what_is_wrong_is_named(changed: dict[str, str], kind: type[DosError], said: str) -> None:
    with pytest.raises(kind, match=said):
        parse_sink_options({**GOOD, **changed})


def test_nowhere_and_nothing_to_write_to_are_reported() -> None:
    with pytest.raises(BadOptionError, match="no target was given"):
        parse_sink_options({"input": "orders"})
    with pytest.raises(BadOptionError, match="the option 'input' is required"):
        parse_sink_options({"path": GOOD["path"]})


def test_a_store_is_not_overwritten_and_a_stream_numbers_on_its_own() -> None:
    with pytest.raises(BadOptionError, match=r"a store only grows.*mode\(\"append\"\)"):
        DosSource(GOOD).writer(ROWS, overwrite=True)
    with pytest.raises(BadOptionError, match="a store only grows"):
        DosSource(GOOD).streamWriter(ROWS, overwrite=True)
    with pytest.raises(BadOptionError, match="micro-batches have their own numbers"):
        DosSource({**GOOD, "batch": "1"}).streamWriter(ROWS, overwrite=False)


def test_options_that_are_right_for_writing_alone_are_refused_where_it_reads_and_the_other_way_round() -> (
    None
):
    with pytest.raises(BadOptionError, match="the source dos has no option 'producer'"):
        DosSource({**GOOD, "producer": "till"}).schema()
    with pytest.raises(BadOptionError, match="dos, when writing, has no option 'read'"):
        DosSource({**GOOD, "read": "committed"}).writer(ROWS, overwrite=False)
    with pytest.raises(BadOptionError) as both:
        DosSource({**GOOD, "producr": "till"})
    assert "did you mean 'producer'?" in both.value.__notes__[0]


def test_columns_that_differ_are_named_with_both_types() -> None:
    wanted = "the columns do not match those of x, n bigint, text string: "
    renamed = SCHEMA.set(0, SCHEMA.field("n").with_name("m"))
    assert (
        column_difference(renamed, SCHEMA, "x")
        == f"{wanted}'m' (bigint) does not exist there; 'n' is missing"
    )
    retyped = SCHEMA.set(0, SCHEMA.field("n").with_type(pa.string()))
    assert column_difference(retyped, SCHEMA, "x") == f"{wanted}'n' is string, but bigint there"
    turned = pa.schema([SCHEMA.field("text"), SCHEMA.field("n")])
    assert column_difference(turned, SCHEMA, "x") == f"{wanted}their order differs"
