"""The URLs of buckets: s3://BUCKET[/PREFIX..][?endpoint=URL]. Makes no requests."""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs, urlsplit

from dos_client.errors import BadUrlError
from dos_protocol.names import check_name

SCHEME: Final = "s3://"
URL_REMEDY: Final = (
    "write it as s3://BUCKET/PREFIX/DIRECTORY/CHAIN; for a service other than AWS: ?endpoint=http://HOST:PORT"
)
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)


@dataclass(frozen=True, slots=True)
class S3Url:
    """A parsed URL of a bucket. `path`: the parts after the bucket."""

    bucket: str
    path: tuple[str, ...]
    endpoint: str | None = None

    def __str__(self) -> str:
        return SCHEME + "/".join((self.bucket, *self.path))

    def chain(self) -> "tuple[S3Url, str, str]":
        """Split the URL of an archived chain into the archive's URL, directory and chain.

        Raises BadUrlError, BadNameError.
        """
        if len(self.path) < 2:
            raise BadUrlError(f"{self} names no archived chain", remedy=URL_REMEDY)
        directory, chain = map(check_name, self.path[-2:])
        return S3Url(self.bucket, self.path[:-2], self.endpoint), directory, chain


def parse_s3_url(url: str, endpoint: str | None = None) -> S3Url:
    """Parse s3://BUCKET[/PREFIX..][?endpoint=URL]. Raises BadUrlError."""
    if not url.startswith(SCHEME):
        raise BadUrlError(f"the URL of a bucket begins with {SCHEME}: {url[:60]!a}", remedy=URL_REMEDY)
    try:
        parts = urlsplit(url)
        parameters = parse_qs(parts.query, strict_parsing=True) if parts.query else {}
    except ValueError as error:
        raise BadUrlError(f"{url[:60]!a} is not a valid URL: {error}", remedy=URL_REMEDY) from error
    if unknown := sorted(parameters.keys() - {"endpoint"}):
        raise BadUrlError(
            f"{url[:60]!a} has the unknown parameter {unknown[0]}; only endpoint is known", remedy=URL_REMEDY
        )
    if _BUCKET.fullmatch(parts.netloc) is None:
        raise BadUrlError(f"{parts.netloc[:60]!a} is not a valid bucket name", remedy=URL_REMEDY)
    path = tuple(part for part in parts.path.split("/") if part)
    return S3Url(parts.netloc, path, endpoint or parameters.get("endpoint", [None])[0])
