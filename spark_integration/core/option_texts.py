"""Options as Spark gives them, which is as text: what kinds of values there are, and a table for each format.

Rules of this file: what the options of all formats share. Spark forgets how the name of an option was
written; here names are compared without regard to case. What an option *does* is said where it is used.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from dos_client.urls import DosUrl, parse_url
from spark_integration.core.row_filter import ColumnCondition, parse_filter
from spark_integration.core.wording import nearest
from spark_integration.errors import BadOptionError, UnknownOptionError


class ReaderOption(NamedTuple):
    """`field`: of the struct that holds it; `parse` takes the option's name, for errors, and its text."""

    field: str
    parse: Callable[[str, str], Any]


class StoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What opening a store needs. `servers`: their URL; `token_file` is read on the driver alone."""

    servers: str
    token: bytes = b""
    token_file: str | None = None


class ReadOptions(StoreOptions, frozen=True, kw_only=True):
    """What all readers have besides: which columns, and which rows."""

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
                f"option {name!r} is one of {known}, not {value!r}{nearest(value, map(str, kind))}"
            ) from None

    return parse


def whole(name: str, value: str) -> int:
    try:
        number = int(value)
    except ValueError:
        number = 0
    if number < 1:
        raise BadOptionError(f"option {name!r} is a whole number from 1, not {value!r}")
    return number


def truth(name: str, value: str) -> bool:
    if value.strip().lower() not in ("true", "false"):
        raise BadOptionError(f"option {name!r} is true or false, not {value!r}")
    return value.strip().lower() == "true"


def names(name: str, value: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in value.split(","))
    if not all(found):
        raise BadOptionError(f"option {name!r} is names with commas between them, not {value!r}")
    return found


STORE: Final[dict[str, ReaderOption]] = {
    "path": ReaderOption("path", text),
    "token": ReaderOption("token", lambda name, value: text(name, value).encode()),
    "tokenFile": ReaderOption("token_file", text),
}
"""Of every format."""

READ: Final[dict[str, ReaderOption]] = {
    "columns": ReaderOption("columns", names),
    "filter": ReaderOption("filter", lambda name, value: parse_filter(text(name, value))),
}
"""Of every format that is read."""


def parsed(given: Mapping[str, str], table: Mapping[str, ReaderOption], source: str) -> dict[str, Any]:
    """The fields that the options were given for. `source`: the format's name.

    Raises UnknownOptionError, BadOptionError, and what the options' parsers raise.
    """
    known = {name.lower(): (name, option) for name, option in table.items()}
    fields: dict[str, Any] = {}
    for key, value in given.items():
        if key.lower() not in known:
            raise UnknownOptionError(key, table, source)
        name, option = known[key.lower()]
        fields[option.field] = option.parse(name, value)
    if "token" in fields and "token_file" in fields:
        raise BadOptionError("the options 'token' and 'tokenFile' say the same: give one of them")
    return fields


def url_of(path: str | None, remedy: str) -> DosUrl:
    """The URL, which must name a directory. Raises BadOptionError, BadUrlError, BadNameError."""
    if path is None:
        raise BadOptionError("nothing to read was named: call .load(...) with a URL", remedy=remedy)
    url = parse_url(path)
    if url.directory is None:
        raise BadOptionError(f"{path} names a store and nothing in it", remedy=remedy)
    return url


def servers_of(url: DosUrl) -> str:
    """The URL of the store alone."""
    return str(DosUrl(url.servers))
