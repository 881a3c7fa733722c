"""The options of the source and sink `dos`, and of the inspection formats: a table for each, parsed to a
struct.

Spark passes options as text and does not preserve the case of their names, so they are compared without
regard to case. docs/spark.md describes them; `core/merged_rows` has those of `dos-merged`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from checkpoint import check_input_name, limits, output_chain, producer_directory, staging_directory
from dos_client.urls import DosUrl, parse_url
from dos_protocol.names import check_name
from spark_integration.core.offsets import Starting, parse_starting
from spark_integration.core.row_filter import ColumnCondition, parse_filter
from spark_integration.core.sink_commits import RepeatedBatch
from spark_integration.errors import BadOptionError, nearest
from spark_integration.limits import PARTITION_BYTES, TASKS_PER_WORKER_MAX

SECONDS_MAX: Final = 366 * 86_400


class ReaderOption(NamedTuple):
    """`field`: in the struct of the options; `parse` takes the option's name, for errors, and its text."""

    field: str
    parse: Callable[[str, str], Any]


class TokenOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What all formats have. `token_file` is read only on the driver."""

    token: bytes = b""
    token_file: str | None = None


class StoreOptions(TokenOptions, frozen=True, kw_only=True):
    """What opening a store needs. `servers`: the store's URL."""

    servers: str


class ReadOptions(StoreOptions, frozen=True, kw_only=True):
    """What all readers have in addition: the columns and a filter."""

    columns: tuple[str, ...] = ()
    filter: tuple[ColumnCondition, ...] = ()


def text(name: str, value: str) -> str:
    if not value:
        raise BadOptionError(f"option {name!r} is empty")
    return value


def one_of(kind: type[StrEnum]) -> Callable[[str, str], Any]:
    def parse(name: str, value: str) -> StrEnum:
        try:
            return kind(value.strip().lower())
        except ValueError:
            known = ", ".join(map(str, kind))
            raise BadOptionError(
                f"option {name!r} must be one of {known}, not {value!r}{nearest(value, map(str, kind))}"
            ) from None

    return parse


def positive_integer(name: str, value: str) -> int:
    try:
        number = int(value)
    except ValueError:
        number = 0
    if number < 1:
        raise BadOptionError(f"option {name!r} must be a whole number from 1, not {value!r}")
    return number


def seconds(name: str, value: str) -> float:
    try:
        found = float(value)
    except ValueError:
        found = -1.0
    if not 0 <= found <= SECONDS_MAX:
        raise BadOptionError(f"option {name!r} must be seconds from 0 to {SECONDS_MAX}, not {value!r}")
    return found


def truth(name: str, value: str) -> bool:
    if value.strip().lower() not in ("true", "false"):
        raise BadOptionError(f"option {name!r} must be true or false, not {value!r}")
    return value.strip().lower() == "true"


def names(name: str, value: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in value.split(","))
    if not all(parts):
        raise BadOptionError(f"option {name!r} must be names separated by commas, not {value!r}")
    return parts


STORE: Final[dict[str, ReaderOption]] = {
    "path": ReaderOption("path", text),
    "token": ReaderOption("token", lambda name, value: text(name, value).encode()),
    "tokenFile": ReaderOption("token_file", text),
}
"""Options of every format."""

READ: Final[dict[str, ReaderOption]] = {
    "columns": ReaderOption("columns", names),
    "filter": ReaderOption("filter", lambda name, value: parse_filter(text(name, value))),
}
"""Options of every format that can be read."""


def parsed(given: Mapping[str, str], table: Mapping[str, ReaderOption], source: str) -> dict[str, Any]:
    """Return the fields of the options that were given. `source`: the format's name, for errors.
    Raises BadOptionError, and what the parsers of the options raise.
    """
    known = {name.lower(): (name, option) for name, option in table.items()}
    fields: dict[str, Any] = {}
    for key, value in given.items():
        if key.lower() not in known:
            raise _unknown_option(key, table, source)
        name, option = known[key.lower()]
        fields[option.field] = option.parse(name, value)
    if "token" in fields and "token_file" in fields:
        raise BadOptionError("the options 'token' and 'tokenFile' exclude each other: give one of them")
    return fields


def _unknown_option(name: str, known: Iterable[str], source: str) -> BadOptionError:
    by_lower = {one.lower(): one for one in known}
    matches = get_close_matches(name.lower(), list(by_lower), n=1, cutoff=0.5)
    hint = f"; did you mean {by_lower[matches[0]]!r}?" if matches else ""
    return BadOptionError(
        f"the source {source} has no option {name!r}{hint} (its options: {', '.join(by_lower.values())})"
    )


def url_of(path: str | None, remedy: str) -> DosUrl:
    """Parse a URL that must name a directory. Raises BadOptionError, BadUrlError, BadNameError."""
    if path is None:
        raise BadOptionError("no URL was given: call .load(...) with a URL", remedy=remedy)
    url = parse_url(path)
    if url.directory is None:
        raise BadOptionError(f"{path} names a store but nothing in it", remedy=remedy)
    return url


def servers_of(url: DosUrl) -> str:
    """Return the URL of the store alone."""
    return str(DosUrl(url.servers))


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
    """The options of a reader. Exactly one of `output`, `input` and `content` is set. `directory` is the
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
    """Parse the options passed to Spark. Raises every error that can be found without a store:
    BadOptionError, MalformedOffsetError, BadUrlError, BadNameError.
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


def check_batch(given: Mapping[str, str]) -> None:
    """Raise BadOptionError for an option that has no meaning in a batch read."""
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

_SINK_REMEDY: Final = (
    'for example .option("input", "orders").mode("append").save("dos://h1,h2,h3/shop"): an input handle of an'
    " application"
)


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Parse the options passed to Spark. Raises as `parse_options`."""
    fields = parsed(given, SINK_OPTIONS, "dos, when writing,")
    fields.pop("", None)
    if "path" not in fields:
        raise BadOptionError("no target was given: pass a URL", remedy=_SINK_REMEDY)
    url = url_of(fields.pop("path"), _SINK_REMEDY)
    if url.object is not None:
        raise BadOptionError(f"{url} must end with the name of an application", remedy=_SINK_REMEDY)
    if "input" not in fields:
        raise BadOptionError(
            "the option 'input' is required: the input handle to write to", remedy=_SINK_REMEDY
        )
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
    # Nothing but the query's id: a restarted query must find its own batches.
    return "q" + query.replace("-", "")


JOURNAL: Final = "dos-journal"
CHECKPOINTS: Final = "dos-checkpoints"
STATE: Final = "dos-state"


class JournalPoint(msgspec.Struct, frozen=True):
    """A position in a journal: a logical offset, or the position in a committed checkpoint."""

    number: int
    is_checkpoint: bool = False

    def __str__(self) -> str:
        return f"checkpoint:{self.number}" if self.is_checkpoint else str(self.number)


class JournalOptions(ReadOptions, frozen=True, kw_only=True):
    """`name`: of a chain or an object. Records that begin in [begin, end) are read."""

    directory: str
    name: str
    begin: JournalPoint | None = None
    end: JournalPoint | None = None
    fail_on_fault: bool = True


class CheckpointsOptions(ReadOptions, frozen=True, kw_only=True):
    """The checkpoints of a region."""

    region: str


class StateOptions(ReadOptions, frozen=True, kw_only=True):
    """The state at `checkpoint` (None: the latest); with `since`, only what was written after that one."""

    region: str
    operator: str
    checkpoint: int | None = None
    since: int | None = None
    tasks_per_worker: int = 1


def _point(name: str, value: str) -> JournalPoint:
    matched = re.fullmatch(r"(checkpoint:)?(\d{1,18})", value.strip(), re.IGNORECASE)
    if matched is None:
        raise BadOptionError(
            f"option {name!r} must be a logical offset, as in `dos journal dump`, or checkpoint:12,"
            f" not {value!r}"
        )
    return JournalPoint(int(matched[2]), matched[1] is not None)


def _tasks(name: str, value: str) -> int:
    number = positive_integer(name, value)
    if number > TASKS_PER_WORKER_MAX:
        raise BadOptionError(f"option {name!r} must be at most {TASKS_PER_WORKER_MAX}, not {number}")
    return number


JOURNAL_OPTIONS: Final[dict[str, ReaderOption]] = {
    **STORE,
    **READ,
    "from": ReaderOption("begin", _point),
    "to": ReaderOption("end", _point),
    "failOnFault": ReaderOption("fail_on_fault", truth),
}
CHECKPOINTS_OPTIONS: Final[dict[str, ReaderOption]] = {**STORE, **READ}
STATE_OPTIONS: Final[dict[str, ReaderOption]] = {
    **STORE,
    **READ,
    "operator": ReaderOption("operator", text),
    "checkpoint": ReaderOption("checkpoint", positive_integer),
    "since": ReaderOption("since", positive_integer),
    "tasksPerWorker": ReaderOption("tasks_per_worker", _tasks),
}


def parse_journal(given: Mapping[str, str]) -> JournalOptions:
    """Parse the options of `dos-journal`. Raises BadOptionError, BadUrlError, BadNameError."""
    remedy = "for example .load('dos://h1,h2,h3/wordcount.w0000/state'): a chain, or an object"
    fields, url = _fields(given, JOURNAL_OPTIONS, JOURNAL, remedy)
    if url.object is None:
        raise BadOptionError(f"{url} names a directory but no journal in it", remedy=remedy)
    begin, end = fields.get("begin"), fields.get("end")
    if begin and end and begin.is_checkpoint == end.is_checkpoint and begin.number > end.number:
        raise BadOptionError(f"option 'from' ({begin}) is after option 'to' ({end})")
    return JournalOptions(servers=servers_of(url), directory=str(url.directory), name=url.object, **fields)


def parse_checkpoints(given: Mapping[str, str]) -> CheckpointsOptions:
    """Parse the options of `dos-checkpoints`. Raises as `parse_journal`."""
    fields, url = _fields(given, CHECKPOINTS_OPTIONS, CHECKPOINTS, _REGION)
    return CheckpointsOptions(servers=servers_of(url), region=_region(url), **fields)


def parse_state(given: Mapping[str, str]) -> StateOptions:
    """Parse the options of `dos-state`. Raises as `parse_journal`."""
    fields, url = _fields(given, STATE_OPTIONS, STATE, _REGION)
    if "operator" not in fields:
        raise BadOptionError(
            "the option 'operator' is required: the operator whose state is read",
            remedy="`dos checkpoint diff` lists the operators that have state",
        )
    checkpoint, since = fields.get("checkpoint"), fields.get("since")
    if checkpoint is not None and since is not None and since >= checkpoint:
        raise BadOptionError(f"option 'since' ({since}) must be before option 'checkpoint' ({checkpoint})")
    return StateOptions(servers=servers_of(url), region=_region(url), **fields)


_REGION: Final = "for example .load('dos://h1,h2,h3/wordcount'): a store and a region"


def _fields(
    given: Mapping[str, str], table: Mapping[str, ReaderOption], source: str, remedy: str
) -> tuple[dict[str, Any], DosUrl]:
    fields = parsed(given, table, source)
    return fields, url_of(fields.pop("path", None), remedy)


def _region(url: DosUrl) -> str:
    if url.object is not None:
        raise BadOptionError(f"{url} names an object: it must end with the region's name", remedy=_REGION)
    return str(url.directory)
