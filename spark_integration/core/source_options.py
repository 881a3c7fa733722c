"""The options of the source `dos`: which there are, what they may be, and which go together.

Rules of this file: the one table of options (`OPTIONS`), and text to `SourceOptions`. Spark gives all options
as text, and forgets how their names were written; here they are compared without regard to case. What an
option *does* is said where it is used, and in docs/spark.md.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from checkpoint.core.inputs import check_input_name
from checkpoint.core.outputs import output_chain
from dos_client.urls import DosUrl, parse_url
from dos_protocol.names import check_name
from spark_integration.core.row_filter import Comparison, parse_filter
from spark_integration.core.source_offsets import Starting, parse_starting
from spark_integration.core.wording import nearest
from spark_integration.errors import BadOptionError, UnknownOptionError
from spark_integration.limits import PARTITION_BYTES


class Read(StrEnum):
    """How sure what is read must be."""

    COMMITTED = "committed"
    SYNCED = "synced"


class Content(StrEnum):
    """What an object holds."""

    LINES = "lines"
    LENGTH_PREFIXED = "length-prefixed"
    ARROW = "arrow"
    JSON = "json"
    JOURNAL = "journal"


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader was told. Exactly one of `output`, `input` and `content` is set; `directory` is the
    region, the application, or the directory of the objects. `servers` is their URL.
    """

    servers: str
    directory: str
    object: str | None = None
    output: str | None = None
    input: str | None = None
    content: Content | None = None
    objects: str | None = None
    token: bytes = b""
    token_file: str | None = None
    read: Read = Read.COMMITTED
    columns: tuple[str, ...] = ()
    filter: tuple[Comparison, ...] = ()
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


def _text(name: str, value: str) -> str:
    if not value:
        raise BadOptionError(f"option {name!r} is empty")
    return value


def _one_of(kind: type[StrEnum]) -> Callable[[str, str], Any]:
    def parse(name: str, value: str) -> StrEnum:
        try:
            return kind(value.strip().lower())
        except ValueError:
            known = ", ".join(map(str, kind))
            raise BadOptionError(
                f"option {name!r} is one of {known}, not {value!r}{nearest(value, map(str, kind))}"
            ) from None

    return parse


def _whole(name: str, value: str) -> int:
    try:
        number = int(value)
    except ValueError:
        number = 0
    if number < 1:
        raise BadOptionError(f"option {name!r} is a whole number from 1, not {value!r}")
    return number


def _truth(name: str, value: str) -> bool:
    if value.strip().lower() not in ("true", "false"):
        raise BadOptionError(f"option {name!r} is true or false, not {value!r}")
    return value.strip().lower() == "true"


def _names(name: str, value: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in value.split(","))
    if not all(names):
        raise BadOptionError(f"option {name!r} is names with commas between them, not {value!r}")
    return names


class _Option(NamedTuple):
    """`field`: of SourceOptions; `parse` takes the option's name, for errors, and its text."""

    field: str
    parse: Callable[[str, str], Any]


OPTIONS: Final[dict[str, _Option]] = {
    "path": _Option("path", _text),
    "output": _Option("output", _text),
    "input": _Option("input", _text),
    "content": _Option("content", _one_of(Content)),
    "objects": _Option("objects", _text),
    "token": _Option("token", lambda name, value: _text(name, value).encode()),
    "tokenFile": _Option("token_file", _text),
    "read": _Option("read", _one_of(Read)),
    "columns": _Option("columns", _names),
    "filter": _Option("filter", lambda name, value: parse_filter(_text(name, value))),
    "startingOffset": _Option("starting", lambda name, value: parse_starting(_text(name, value))),
    "failOnDataLoss": _Option("fail_on_data_loss", _truth),
    "maxRowsPerTrigger": _Option("rows_max", _whole),
    "maxBytesPerTrigger": _Option("bytes_max", _whole),
    "partitionBytes": _Option("partition_bytes", _whole),
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
    known = {name.lower(): (name, option) for name, option in OPTIONS.items()}
    fields: dict[str, Any] = {}
    for key, value in given.items():
        if key.lower() not in known:
            raise UnknownOptionError(key, OPTIONS)
        name, option = known[key.lower()]
        fields[option.field] = option.parse(name, value)
    url = _url(fields.pop("path", None))
    kinds = [kind for kind in _KINDS if kind in fields]
    if len(kinds) != 1:
        found = " and ".join(map(repr, kinds)) if kinds else "none"
        raise BadOptionError(
            f"one of the options {', '.join(_KINDS)} says what is read, not {found}", remedy=_REMEDY
        )
    if "token" in fields and "token_file" in fields:
        raise BadOptionError("the options 'token' and 'tokenFile' say the same: give one of them")
    servers, directory = str(DosUrl(url.servers)), url.directory
    assert directory is not None, "_url sees to it"
    options = SourceOptions(servers=servers, directory=directory, object=url.object, **fields)
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
    if options.read is not Read.COMMITTED:
        raise BadOptionError(
            "spark.readStream gives what is committed alone: what is only synced may be taken back, and a"
            " stream"
            " cannot take back what it gave; leave out the option 'read'"
        )
    if options.content is Content.ARROW:
        raise BadOptionError(
            "content 'arrow' is for spark.read alone: where a record ends in it only reading all of it tells"
        )


def _url(path: str | None) -> DosUrl:
    if path is None:
        raise BadOptionError("nothing to read was named: call .load(...) with a URL", remedy=_REMEDY)
    url = parse_url(path)
    if url.directory is None:
        raise BadOptionError(f"{path} names a store and nothing in it", remedy=_REMEDY)
    return url


def _check_together(options: SourceOptions) -> None:
    if options.content is None:
        kind = "output" if options.output is not None else "input"
        if options.object is not None:
            raise BadOptionError(
                f"with the option {kind!r} the URL ends with the name of the"
                f" {'region' if kind == 'output' else 'application'}: {options.directory}/{options.object}"
                f" is an object"
            )
        if options.objects is not None:
            raise BadOptionError("the option 'objects' goes with 'content': it says which objects are read")
    if options.object is not None and options.objects is not None:
        raise BadOptionError(f"the URL names the object {options.object!r}: leave out the option 'objects'")
    if options.output is not None:
        check_name(output_chain(options.output))
    if options.input is not None:
        check_input_name("an input handle", options.input)
        if options.read is not Read.COMMITTED:
            raise BadOptionError(
                "of an input handle committed batches are read, and no others: leave out 'read'"
            )
