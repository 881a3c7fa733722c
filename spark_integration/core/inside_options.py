"""The options of the inspection formats: `dos-journal`, `dos-checkpoints` and `dos-state`.

Each format has a table of options here, which parses text to a struct. docs/spark.md describes them.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from dos_client.urls import DosUrl
from spark_integration.core.option_texts import (
    READ,
    STORE,
    ReaderOption,
    ReadOptions,
    parsed,
    positive_integer,
    servers_of,
    text,
    truth,
    url_of,
)
from spark_integration.errors import BadOptionError
from spark_integration.limits import TASKS_PER_WORKER_MAX

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
    """The state of `operator` at this checkpoint (None: the latest); with `since`, only what was
    written after that checkpoint.
    """

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
    """Parse the options of `dos-journal`.

    Raises UnknownOptionError, BadOptionError, FilterError, BadUrlError, BadNameError.
    """
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
