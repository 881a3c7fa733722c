"""The options of the format `dos-merged`, which reads the replicas of a region at several sites.

docs/spark.md describes them. `dataflow` checks the values that `read_merged` has too.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from checkpoint import limits
from dos_protocol.names import check_name
from spark_integration.core.admission import BatchLimits
from spark_integration.core.option_texts import (
    READ,
    STORE,
    ReaderOption,
    TokenOptions,
    names,
    one_of,
    parsed,
    positive_integer,
    seconds,
    text,
)
from spark_integration.core.row_filter import ColumnCondition
from spark_integration.errors import BadOptionError
from spark_integration.limits import MERGED_BATCH_BYTES

MERGED: Final = "dos-merged"


class OnMissing(StrEnum):
    """What follows if no replica that can be reached has all rows."""

    WAIT = "wait"
    ACCEPT = "accept"


class OnDifference(StrEnum):
    """What follows if replicas give different rows, or run different graphs."""

    STOP = "stop"
    DETACH = "detach"


class MergedOptions(TokenOptions, frozen=True, kw_only=True):
    """The options of a reader. sites: site -> URL of its store. schema: all columns of the sink."""

    sites: dict[str, str]
    region: str
    output: str
    schema: str
    time: tuple[str, ...] = ("at",)
    compare: str | int = 16
    on_missing: OnMissing = OnMissing.WAIT
    on_difference: OnDifference = OnDifference.STOP
    columns: tuple[str, ...] = ()
    filter: tuple[ColumnCondition, ...] = ()
    rows_max: int | None = None
    bytes_max: int = MERGED_BATCH_BYTES
    consumer: str = ""
    consumer_retain_s: float = limits.query_retain_s

    @property
    def what(self) -> str:
        """The data that is read, for people."""
        return f"merged output {self.region}/{self.output}"

    @property
    def limits(self) -> BatchLimits:
        """The limits of a micro-batch."""
        return BatchLimits(self.rows_max, self.bytes_max)


def _sites(name: str, value: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in value.split():
        site, equals, url = one.partition("=")
        if not equals or not site or site in found:
            raise BadOptionError(
                f"option {name!r} must name each site once, as SITE=URL, not {one!r}",
                remedy="for example 'purdue=dos://p1,p2,p3 osu=dos://o1,o2,o3'",
            )
        found[site] = url
    if not found:
        raise BadOptionError(f"option {name!r} names no site")
    return found


def _compare(name: str, value: str) -> str | int:
    wanted = value.strip().lower()
    if wanted in ("all", "off"):
        return wanted
    if not wanted.isdecimal() or not int(wanted):
        raise BadOptionError(f"option {name!r} must be all, off, or a whole number from 1, not {value!r}")
    return int(wanted)


MERGED_OPTIONS: Final[dict[str, ReaderOption]] = {
    **STORE,
    "sites": ReaderOption("sites", _sites),
    "output": ReaderOption("output", text),
    "schema": ReaderOption("schema", text),
    "time": ReaderOption("time", names),
    "compare": ReaderOption("compare", _compare),
    "onMissing": ReaderOption("on_missing", one_of(OnMissing)),
    "onDifference": ReaderOption("on_difference", one_of(OnDifference)),
    **READ,
    "maxRowsPerTrigger": ReaderOption("rows_max", positive_integer),
    "maxBytesPerTrigger": ReaderOption("bytes_max", positive_integer),
    "consumer": ReaderOption("consumer", lambda name, value: check_name(text(name, value))),
    "consumerRetainSeconds": ReaderOption("consumer_retain_s", seconds),
}
"""Every option, as users write it."""

_REQUIRED: Final = {
    "sites": "the sites, each with the URL of its store",
    "output": "the sink of the region",
    "schema": "all columns of the sink",
}
_REMEDY: Final = (
    'for example .option("sites", "purdue=dos://p1,p2,p3 osu=dos://o1,o2,o3").option("output", "out")'
    '.option("schema", "at timestamp, load double").load("board.joined")'
)


def parse_merged(given: Mapping[str, str]) -> MergedOptions:
    """Parse the options passed to Spark. Raises UnknownOptionError, BadOptionError, FilterError,
    BadNameError.
    """
    fields = parsed(given, MERGED_OPTIONS, MERGED)
    region = fields.pop("path", None)
    if region is None:
        raise BadOptionError("no region was given: call .load(...) with its name", remedy=_REMEDY)
    if "://" in region:
        raise BadOptionError(
            f"{region} is a URL: .load(...) takes the name of the region, and the option 'sites' the URLs",
            remedy=_REMEDY,
        )
    for name, meaning in _REQUIRED.items():
        if name not in fields:
            raise BadOptionError(f"the option {name!r} is required: {meaning}", remedy=_REMEDY)
    return MergedOptions(region=region, **fields)
