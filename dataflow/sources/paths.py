"""Parameters that all file sources share: paths or URLs, and the treatment of bytes that are not UTF-8.

Checks values only; it accesses neither the file system nor a bucket.
"""

import os
import re
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias, get_args

from dataflow.errors import SchemaError
from dataflow.sources.text import Errors
from journal.archive.url import SCHEME, parse_s3_url

Paths: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"
"""One path, pattern or URL, or several."""

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_ENDPOINT: Final = "?endpoint="


class InputPaths(NamedTuple):
    """The input of a source: either paths on the hosts of workers, or URLs of one service without their
    endpoint, so that a service may move without becoming another input.
    """

    entries: list[str]
    endpoint: str | None


def paths_of(given: Paths) -> list[str]:
    """Return all paths as text, in the order given."""
    entries = [given] if isinstance(given, (str, os.PathLike)) else given
    return [os.fspath(entry) for entry in entries]


def is_url(path: str) -> bool:
    """Return whether a path is the URL of objects in a bucket."""
    return path.startswith(SCHEME)


def input_paths(given: Paths, endpoint: str | None) -> InputPaths:
    """Check paths or URLs. A URL may end with ?endpoint=URL; `endpoint` has priority.

    Raises SchemaError for a mixture, and for URLs that are not of buckets; BadUrlError.
    """
    entries = paths_of(given)
    wrong = [entry for entry in entries if _URL.match(entry) and not is_url(entry)]
    if wrong:
        raise SchemaError(
            f"{wrong[0]!r} is neither a path nor the URL of a bucket",
            remedy="write URLs of objects as s3://BUCKET/KEY, as text: pathlib changes URLs",
        )
    urls = [entry for entry in entries if is_url(entry)]
    if not urls:
        if endpoint is not None:
            raise SchemaError("endpoint is the service of a bucket, and the input has no URL s3://BUCKET/KEY")
        return InputPaths(entries, None)
    if len(urls) < len(entries):
        local = next(entry for entry in entries if not is_url(entry))
        raise SchemaError(f"{local!r} is a path and {urls[0]!r} a URL; use one source for each")
    found, endpoints = [], set[str | None]()
    for url in urls:
        place, _, service = url.partition(_ENDPOINT)
        bucket = place.removeprefix(SCHEME).partition("/")[0]
        parameter = _ENDPOINT + service if service else ""
        endpoints.add(parse_s3_url(f"{SCHEME}{bucket}{parameter}", endpoint).endpoint)
        found.append(place)
    if len(endpoints) > 1:
        raise SchemaError(f"one source reads from one service, not from {sorted(map(str, endpoints))}")
    return InputPaths(found, endpoints.pop())


def end_path(until: "str | os.PathLike[str]", first: str) -> str:
    """Return the path or URL at which the end of an input appears. `first`: one of the input.

    Raises SchemaError, BadUrlError.
    """
    end = input_paths(until, None).entries[0]
    if is_url(end) != is_url(first):
        raise SchemaError(f"until={end!r} and the input {first!r} must both be paths, or both be URLs")
    return end if is_url(end) else os.path.abspath(end)  # noqa: PTH100 - the path need not exist here


def set_fields(spec: object, **values: object) -> None:
    """Set fields of a frozen dataclass that is being made."""
    for name, value in values.items():
        object.__setattr__(spec, name, value)


def check_errors(errors: object) -> None:
    """Raise SchemaError if `errors` is not a valid way to treat bytes that are not UTF-8."""
    known = get_args(Errors)
    if errors not in known:
        raise SchemaError(f"errors must be {' or '.join(map(repr, known))}, not {errors!r}")
