"""The options of the source `dos`: which there are, what they may be, and which go together.

Rules of this file: the one table of options (`OPTIONS`), and text to `SourceOptions`; what all formats share
is in `option_texts`. What an option *does* is said where it is used, and in docs/spark.md.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from checkpoint.core.inputs import check_input_name
from checkpoint.core.outputs import output_chain
from dos_protocol.names import check_name
from spark_integration.core.option_texts import (
    READ,
    STORE,
    ReaderOption,
    ReadOptions,
    one_of,
    parsed,
    servers_of,
    text,
    truth,
    url_of,
    whole,
)
from spark_integration.core.source_offsets import Starting, parse_starting
from spark_integration.errors import BadOptionError
from spark_integration.limits import PARTITION_BYTES


class ReadGuarantee(StrEnum):
    """How sure what is read must be."""

    COMMITTED = "committed"
    SYNCED = "synced"


class ObjectContent(StrEnum):
    """What an object holds."""

    LINES = "lines"
    LENGTH_PREFIXED = "length-prefixed"
    ARROW = "arrow"
    JSON = "json"
    JOURNAL = "journal"


class SourceOptions(ReadOptions, frozen=True, kw_only=True):
    """What a reader was told. Exactly one of `output`, `input` and `content` is set; `directory` is the
    region, the application, or the directory of the objects.
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
    rows_max: int | None = None
    bytes_max: int | None = None
    partition_bytes: int = PARTITION_BYTES

    @property
    def what(self) -> str:
        """What is read, for people and for offsets: an offset of another one is refused."""
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
    "maxRowsPerTrigger": ReaderOption("rows_max", whole),
    "maxBytesPerTrigger": ReaderOption("bytes_max", whole),
    "partitionBytes": ReaderOption("partition_bytes", whole),
}
"""Every option there is, as users write it."""

STREAMING_ONLY: Final = ("startingOffset", "failOnDataLoss", "maxRowsPerTrigger", "maxBytesPerTrigger")
_KINDS: Final = ("output", "input", "content")
_REMEDY: Final = (
    'for example .option("output", "counts").load("dos://h1,h2,h3/wordcount"): a sink of a region; with'
    ' "input" a handle of an application; with "content" (lines, json, ...) the objects of a directory'
)


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """The options as they were given to Spark. Raises UnknownOptionError, BadOptionError, FilterError,
    MalformedOffsetError, BadUrlError, BadNameError: whatever is wrong with them that shows without a store.
    """
    fields = parsed(given, OPTIONS, "dos")
    url = url_of(fields.pop("path", None), _REMEDY)
    kinds = [kind for kind in _KINDS if kind in fields]
    if len(kinds) != 1:
        found = " and ".join(map(repr, kinds)) if kinds else "none"
        raise BadOptionError(
            f"one of the options {', '.join(_KINDS)} says what is read, not {found}", remedy=_REMEDY
        )
    assert url.directory is not None, "url_of sees to it"
    options = SourceOptions(servers=servers_of(url), directory=url.directory, object=url.object, **fields)
    _check_together(options)
    return options


def check_batch(options: SourceOptions, given: Mapping[str, str]) -> None:
    """Raises BadOptionError for an option that has no meaning when all is read at once."""
    del options
    keys = {key.lower() for key in given}
    for name in STREAMING_ONLY:
        if name.lower() in keys:
            raise BadOptionError(f"option {name!r} is for spark.readStream; spark.read reads all there is")


def check_streaming(options: SourceOptions) -> None:
    """Raises BadOptionError for what cannot be followed."""
    if options.read is not ReadGuarantee.COMMITTED:
        raise BadOptionError(
            "spark.readStream gives what is committed alone: what is only synced may be taken back, and a"
            " stream cannot take back what it gave; leave out the option 'read'"
        )


def _check_together(options: SourceOptions) -> None:
    if options.content is None:
        kind = "output" if options.output is not None else "input"
        if options.object is not None:
            raise BadOptionError(
                f"with the option {kind!r} the URL ends with the name of the"
                f" {'region' if kind == 'output' else 'application'}:"
                f" {options.directory}/{options.object} is an object"
            )
        if options.objects is not None:
            raise BadOptionError("the option 'objects' goes with 'content': it says which objects are read")
    if options.object is not None and options.objects is not None:
        raise BadOptionError(f"the URL names the object {options.object!r}: leave out the option 'objects'")
    if options.output is not None:
        check_name(output_chain(options.output))
    if options.input is not None:
        check_input_name("an input handle", options.input)
        if options.read is not ReadGuarantee.COMMITTED:
            raise BadOptionError(
                "of an input handle committed batches are read, and no others: leave out 'read'"
            )
