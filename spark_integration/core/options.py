"""The options of the source `dos`: the table `OPTIONS`, and parsing to `SourceOptions`.

docs/spark.md describes them.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from checkpoint import check_input_name, limits, output_chain
from dos_protocol.names import check_name
from spark_integration.core.offsets import Starting, parse_starting
from spark_integration.core.option_texts import (
    READ,
    STORE,
    ReaderOption,
    ReadOptions,
    one_of,
    parsed,
    positive_integer,
    seconds,
    servers_of,
    text,
    truth,
    url_of,
)
from spark_integration.errors import BadOptionError
from spark_integration.limits import PARTITION_BYTES


class ReadGuarantee(StrEnum):
    """Which data is read: what is committed, or also what is merely synced."""

    COMMITTED = "committed"
    SYNCED = "synced"


class ObjectContent(StrEnum):
    """The content of an object."""

    LINES = "lines"
    LENGTH_PREFIXED = "length-prefixed"
    ARROW = "arrow"
    JSON = "json"
    JOURNAL = "journal"


class RewindPolicy(StrEnum):
    """What a stream does if output that it has read was taken back by a restore of the region."""

    FAIL = "fail"
    FOLLOW = "follow"


class SourceOptions(ReadOptions, frozen=True, kw_only=True):
    """The options of a reader.

    Exactly one of `output`, `input` and `content` is set. `directory` is the region, the application, or the
    directory of the objects.
    """

    directory: str
    object: str | None = None
    output: str | None = None
    input: str | None = None
    content: ObjectContent | None = None
    objects: str | None = None
    read: ReadGuarantee = ReadGuarantee.COMMITTED
    starting: Starting | None = None
    fail_on_data_loss: bool = True
    on_rewind: RewindPolicy = RewindPolicy.FAIL
    rows_max: int | None = None
    bytes_max: int | None = None
    partition_bytes: int = PARTITION_BYTES
    consumer: str | None = None
    consumer_retain_s: float = limits.query_retain_s

    @property
    def what(self) -> str:
        """The data that is read, for people and for offsets: an offset of other data is refused."""
        if self.output is not None:
            return f"output {self.directory}/{self.output}"
        if self.input is not None:
            return f"input {self.directory}/{self.input}"
        names = self.object or self.objects or "*"
        return f"objects {self.directory}/{names} ({self.content})"


OPTIONS: Final[dict[str, ReaderOption]] = {
    **STORE,
    "output": ReaderOption("output", text),
    "input": ReaderOption("input", text),
    "content": ReaderOption("content", one_of(ObjectContent)),
    "objects": ReaderOption("objects", text),
    "read": ReaderOption("read", one_of(ReadGuarantee)),
    **READ,
    "startingOffset": ReaderOption("starting", lambda name, value: parse_starting(text(name, value))),
    "failOnDataLoss": ReaderOption("fail_on_data_loss", truth),
    "onRewind": ReaderOption("on_rewind", one_of(RewindPolicy)),
    "maxRowsPerTrigger": ReaderOption("rows_max", positive_integer),
    "maxBytesPerTrigger": ReaderOption("bytes_max", positive_integer),
    "partitionBytes": ReaderOption("partition_bytes", positive_integer),
    "consumer": ReaderOption("consumer", lambda name, value: check_name(text(name, value))),
    "consumerRetainSeconds": ReaderOption("consumer_retain_s", seconds),
}
"""Every option, as users write it."""

STREAMING_ONLY: Final = (
    "startingOffset",
    "failOnDataLoss",
    "onRewind",
    "maxRowsPerTrigger",
    "maxBytesPerTrigger",
    "consumer",
    "consumerRetainSeconds",
)
NEED_BEGINNING: Final = ("maxRowsPerTrigger", "maxBytesPerTrigger", "consumer")
"""Options for which a reader must know where a micro-batch begins when it chooses its end."""
_KINDS: Final = ("output", "input", "content")
_REMEDY: Final = (
    'for example .option("output", "counts").load("dos://h1,h2,h3/wordcount"): a sink of a region; with'
    ' "input" a handle of an application; with "content" (lines, json, ...) the objects of a directory'
)


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Parse the options passed to Spark.

    Raises UnknownOptionError, BadOptionError, FilterError, MalformedOffsetError, BadUrlError, BadNameError:
    every error that can be found without a store.
    """
    fields = parsed(given, OPTIONS, "dos")
    url = url_of(fields.pop("path", None), _REMEDY)
    kinds = [kind for kind in _KINDS if kind in fields]
    if len(kinds) != 1:
        given_kinds = " and ".join(map(repr, kinds)) if kinds else "none"
        raise BadOptionError(
            f"exactly one of the options {', '.join(_KINDS)} is required, not {given_kinds}", remedy=_REMEDY
        )
    assert url.directory is not None, "url_of guarantees it"
    options = SourceOptions(servers=servers_of(url), directory=url.directory, object=url.object, **fields)
    _check_combination(options)
    return options


def check_batch(options: SourceOptions, given: Mapping[str, str]) -> None:
    """Raise BadOptionError for an option that has no meaning in a batch read."""
    del options
    keys = {key.lower() for key in given}
    for name in STREAMING_ONLY:
        if name.lower() in keys:
            raise BadOptionError(f"option {name!r} is for spark.readStream; spark.read reads everything")


def check_streaming(options: SourceOptions) -> None:
    """Raise BadOptionError for what a stream cannot read."""
    if options.read is not ReadGuarantee.COMMITTED:
        raise BadOptionError(
            "spark.readStream reads only committed data: what is merely synced may be rolled back, and a"
            " stream cannot take back rows; omit the option 'read'"
        )


def _check_combination(options: SourceOptions) -> None:
    if options.content is not None and options.consumer is not None:
        raise BadOptionError(
            "the option 'consumer' requires 'input' or 'output': nothing else is trimmed to what consumers"
            " need"
        )
    if options.output is None and options.on_rewind is RewindPolicy.FOLLOW:
        raise BadOptionError("the option 'onRewind' requires 'output': a restore takes nothing else back")
    if options.content is None:
        kind = "output" if options.output is not None else "input"
        if options.object is not None:
            raise BadOptionError(
                f"with the option {kind!r} the URL must end with the name of the"
                f" {'region' if kind == 'output' else 'application'}:"
                f" {options.directory}/{options.object} is an object"
            )
        if options.objects is not None:
            raise BadOptionError("the option 'objects' requires 'content': it selects the objects to read")
    if options.object is not None and options.objects is not None:
        raise BadOptionError(f"the URL names the object {options.object!r}: omit the option 'objects'")
    if options.output is not None:
        check_name(output_chain(options.output))
    if options.input is not None:
        check_input_name("an input handle", options.input)
        if options.read is not ReadGuarantee.COMMITTED:
            raise BadOptionError(
                "only committed batches of an input handle can be read: omit the option 'read'"
            )
