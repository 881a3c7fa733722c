"""The options of the sink `dos`: which there are, and what they may be.

Rules of this file: text to `SinkOptions`, by the parsers of `option_texts`. What an option *does* is said
where it is used, and in docs/spark.md.
"""

from collections.abc import Mapping
from typing import Final

from checkpoint.core.inputs import check_input_name, producer_directory
from checkpoint.core.staged import staging_directory
from dos_protocol.names import check_name
from spark_integration.core.option_texts import (
    STORE,
    ReaderOption,
    StoreOptions,
    parsed,
    servers_of,
    text,
    url_of,
    whole,
)
from spark_integration.errors import BadOptionError

JOB_PRODUCER: Final = "spark"
"""Who batch writes are, unless told otherwise."""

_PARTITIONS: Final = 9_999
"""Of so many a partition's directory has four digits; more make its name longer, not wrong."""


class SinkOptions(StoreOptions, frozen=True, kw_only=True):
    """Where a sink writes to. producer: None for the one that is the query's own."""

    application: str
    input: str
    producer: str | None = None
    batch: int | None = None

    @property
    def what(self) -> str:
        """For people."""
        return f"input {self.application}/{self.input}"


SINK_OPTIONS: Final[dict[str, ReaderOption]] = {
    **STORE,
    "input": ReaderOption("input", text),
    "producer": ReaderOption("producer", text),
    "batch": ReaderOption("batch", whole),
    "checkpointLocation": ReaderOption("", text),
    "queryName": ReaderOption("", text),
}
"""Every option there is, as users write it. Those without a field are Spark's own."""

_REMEDY: Final = (
    'for example .option("input", "orders").mode("append").save("dos://h1,h2,h3/shop"): an input handle of an'
    " application"
)


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """The options as they were given to Spark. Raises UnknownOptionError, BadOptionError, BadUrlError,
    BadNameError: whatever is wrong with them that shows without a store.
    """
    fields = parsed(given, SINK_OPTIONS, "dos, when writing,")
    fields.pop("", None)
    if "path" not in fields:
        raise BadOptionError("nowhere to write to was named: say a URL", remedy=_REMEDY)
    url = url_of(fields.pop("path"), _REMEDY)
    if url.object is not None:
        raise BadOptionError(f"{url} does not end with the name of an application", remedy=_REMEDY)
    if "input" not in fields:
        raise BadOptionError("the option 'input' says which input handle is written", remedy=_REMEDY)
    assert url.directory is not None, "url_of sees to it"
    options = SinkOptions(servers=servers_of(url), application=url.directory, **fields)
    check_input_name("an input handle", options.input)
    check_producer(options, options.producer or JOB_PRODUCER)
    return options


def check_producer(options: SinkOptions, producer: str) -> str:
    """The same name, or BadNameError if its directories cannot have theirs."""
    producer_directory(options.application, options.input, producer)
    check_name(staging_directory(options.application, options.input, producer, _PARTITIONS))
    return producer


def check_append(overwrite: bool, how: str) -> None:
    """Raises BadOptionError for a write that would take back what is there."""
    if overwrite:
        raise BadOptionError(f"a store only grows, so nothing in it is overwritten: {how}")


def check_stream(options: SinkOptions) -> None:
    """Raises BadOptionError for what a query says by itself."""
    if options.batch is not None:
        raise BadOptionError("the option 'batch' is for df.write: micro-batches have numbers of their own")


def query_producer(query: str) -> str:
    """The producer of a query that was given none: it is found again by the query's id alone."""
    return "q" + query.replace("-", "")
