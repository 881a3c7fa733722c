"""The options of the sink `dos`: parses text to `SinkOptions`. docs/spark.md describes them."""

from collections.abc import Mapping
from typing import Final

from checkpoint import producer_directory, staging_directory
from dos_protocol.names import check_name
from spark_integration.core.option_texts import (
    STORE,
    ReaderOption,
    StoreOptions,
    one_of,
    parsed,
    positive_integer,
    servers_of,
    text,
    url_of,
)
from spark_integration.core.sink_commits import RepeatedBatch
from spark_integration.errors import BadOptionError

JOB_PRODUCER: Final = "spark"
"""The producer of batch writes by default."""

_PARTITIONS: Final = 9_999
"""Up to this many partitions, names of staging directories have four digits; more are valid too."""


class SinkOptions(StoreOptions, frozen=True, kw_only=True):
    """The target of a sink. `producer`: None for the query's own."""

    application: str
    input: str
    producer: str | None = None
    batch: int | None = None
    repeated: RepeatedBatch = RepeatedBatch.COMPARE

    @property
    def what(self) -> str:
        """The target, for people."""
        return f"input {self.application}/{self.input}"


SINK_OPTIONS: Final[dict[str, ReaderOption]] = {
    **STORE,
    "input": ReaderOption("input", text),
    "producer": ReaderOption("producer", text),
    "batch": ReaderOption("batch", positive_integer),
    "repeatedBatch": ReaderOption("repeated", one_of(RepeatedBatch)),
    "checkpointLocation": ReaderOption("", text),
    "queryName": ReaderOption("", text),
}
"""Every option, as users write it. Options without a field are Spark's own."""

_REMEDY: Final = (
    'for example .option("input", "orders").mode("append").save("dos://h1,h2,h3/shop"): an input handle of an'
    " application"
)


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Parse the options passed to Spark.

    Raises UnknownOptionError, BadOptionError, BadUrlError, BadNameError: every error that can be found
    without a store.
    """
    fields = parsed(given, SINK_OPTIONS, "dos, when writing,")
    fields.pop("", None)
    if "path" not in fields:
        raise BadOptionError("no target was given: pass a URL", remedy=_REMEDY)
    url = url_of(fields.pop("path"), _REMEDY)
    if url.object is not None:
        raise BadOptionError(f"{url} must end with the name of an application", remedy=_REMEDY)
    if "input" not in fields:
        raise BadOptionError("the option 'input' is required: the input handle to write to", remedy=_REMEDY)
    assert url.directory is not None, "url_of guarantees it"
    options = SinkOptions(servers=servers_of(url), application=url.directory, **fields)
    check_producer(options, options.producer or JOB_PRODUCER)
    return options


def check_producer(options: SinkOptions, producer: str) -> str:
    """Return the name. Raises BadNameError if the names of its directories would be invalid."""
    producer_directory(options.application, options.input, producer)
    check_name(staging_directory(options.application, options.input, producer, _PARTITIONS))
    return producer


def check_append(overwrite: bool, how: str) -> None:
    """Raise BadOptionError for a write that would replace existing data."""
    if overwrite:
        raise BadOptionError(f"a store only grows, and its data cannot be overwritten: {how}")


def check_stream(options: SinkOptions) -> None:
    """Raise BadOptionError for options that a streaming query does not have."""
    if options.batch is not None:
        raise BadOptionError("the option 'batch' is for df.write only: micro-batches have their own numbers")


def query_producer(query: str) -> str:
    """Return the default producer of a query; it depends only on the query's id."""
    return "q" + query.replace("-", "")
