"""Options as Spark passes them, which is as text: parsers for the kinds of values, and tables of options.

This file has what the options of all formats share. Spark does not preserve the case of option names, so they
are compared without regard to case.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from dos_client.urls import DosUrl, parse_url
from spark_integration.core.row_filter import ColumnCondition, parse_filter
from spark_integration.core.wording import nearest
from spark_integration.errors import BadOptionError, UnknownOptionError

SECONDS_MAX: Final = 366 * 86_400


class ReaderOption(NamedTuple):
    """`field`: in the struct of the options; `parse` takes the option's name, for errors, and its text."""

    field: str
    parse: Callable[[str, str], Any]


class StoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What opening a store needs. `servers`: the store's URL; `token_file` is read only on the driver."""

    servers: str
    token: bytes = b""
    token_file: str | None = None


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

    Raises UnknownOptionError, BadOptionError, and what the parsers of the options raise.
    """
    known = {name.lower(): (name, option) for name, option in table.items()}
    fields: dict[str, Any] = {}
    for key, value in given.items():
        if key.lower() not in known:
            raise UnknownOptionError(key, table, source)
        name, option = known[key.lower()]
        fields[option.field] = option.parse(name, value)
    if "token" in fields and "token_file" in fields:
        raise BadOptionError("the options 'token' and 'tokenFile' exclude each other: give one of them")
    return fields


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
