"""The requests of an archive to a bucket of S3 or a compatible service, and their errors. All calls block.

This is the only module that translates errors of boto3. Temporary errors (5xx, throttling, timeouts, broken
connections, truncated replies) are retried, others are not. `reading.py` and `archiving.py` verify the bytes
of archived objects.
"""

import re
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, TypeVar
from urllib.parse import parse_qs, urlsplit

from dos_client.errors import BadUrlError
from dos_protocol.names import check_name
from journal.core.errors import ArchiveNotFoundError, ArchiveRefusedError, ArchiveUnavailableError
from journal.limits import archive_block_bytes, archive_retry_s, archive_timeout_s, archive_tries_max

SCHEME: Final = "s3://"
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)
_REMEDY: Final = (
    "write it as s3://BUCKET/PREFIX/DIRECTORY/CHAIN; for a service other than AWS: ?endpoint=http://HOST:PORT"
)

Result = TypeVar("Result")


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
            raise BadUrlError(f"{self} names no archived chain", remedy=_REMEDY)
        directory, chain = map(check_name, self.path[-2:])
        return S3Url(self.bucket, self.path[:-2], self.endpoint), directory, chain


def parse_s3_url(url: str, endpoint: str | None = None) -> S3Url:
    """Parse s3://BUCKET[/PREFIX..][?endpoint=URL]. Raises BadUrlError."""
    if not url.startswith(SCHEME):
        raise BadUrlError(f"the URL of an archive begins with {SCHEME}: {url[:60]!a}", remedy=_REMEDY)
    try:
        parts = urlsplit(url)
        parameters = parse_qs(parts.query, strict_parsing=True) if parts.query else {}
    except ValueError as error:
        raise BadUrlError(f"{url[:60]!a} is not a valid URL: {error}", remedy=_REMEDY) from error
    if unknown := sorted(parameters.keys() - {"endpoint"}):
        raise BadUrlError(
            f"{url[:60]!a} has the unknown parameter {unknown[0]}; only endpoint is known", remedy=_REMEDY
        )
    if _BUCKET.fullmatch(parts.netloc) is None:
        raise BadUrlError(f"{parts.netloc[:60]!a} is not a valid bucket name", remedy=_REMEDY)
    path = tuple(part for part in parts.path.split("/") if part)
    return S3Url(parts.netloc, path, endpoint or parameters.get("endpoint", [None])[0])


class Bucket:
    """The objects below the path of a URL.

    Every call blocks, may be made from any thread, and raises ArchiveNotFoundError, ArchiveRefusedError,
    ArchiveUnavailableError.

    tries, retry_s, timeout_s: attempts per request, wait before the second attempt, timeout of a connection
    and of each read. boto3 determines the credentials, the region and, unless the URL has one, the endpoint
    as usual (environment, files, instance).
    """

    def __init__(
        self,
        url: S3Url,
        *,
        tries: int = archive_tries_max,
        retry_s: float = archive_retry_s,
        timeout_s: float = archive_timeout_s,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        import boto3  # imported late, because the import takes longer than that of all commands
        import botocore.exceptions
        from botocore.config import Config

        self.url = url
        self._tries, self._retry_s, self._sleep = tries, retry_s, sleep
        config = Config(
            connect_timeout=timeout_s,
            read_timeout=timeout_s,
            retries={"total_max_attempts": 1, "mode": "standard"},  # `again` retries truncated replies too
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        session = boto3.session.Session()
        region = session.region_name or "us-east-1"  # the default of S3; other services ignore it
        try:
            self._client: Any = session.client(
                "s3", endpoint_url=url.endpoint, config=config, region_name=region
            )
        except ValueError as error:
            raise BadUrlError(f"invalid endpoint: {error}", remedy=_REMEDY) from error
        self._refusals = botocore.exceptions.ClientError
        self._lacking = (
            botocore.exceptions.NoCredentialsError,
            botocore.exceptions.PartialCredentialsError,
            botocore.exceptions.ParamValidationError,
        )
        self._broken = (botocore.exceptions.BotoCoreError, botocore.exceptions.HTTPClientError, OSError)

    def url_of(self, key: str) -> str:
        """Return the name of an object for messages."""
        return f"{self.url}/{key}"

    def get(self, key: str, offset: int | None = None, length: int | None = None) -> bytes:
        """Return a whole object, or up to `length` bytes from `offset`, fewer if the object ends before."""
        if offset is None or length is None:
            return self._tried(key, lambda: self._read(key, {}))
        part = {"Range": f"bytes={offset}-{offset + length - 1}"}
        try:
            return self._tried(key, lambda: self._read(key, part)[:length])
        except _PastEndError:
            return b""

    def version(self, key: str) -> str | None:
        """Return the current version (ETag) of an object; None if there is none."""
        try:
            head = self._tried(key, lambda: self._client.head_object(**self._names(key)))
        except ArchiveNotFoundError:
            return None
        return str(head["ETag"])

    def put(
        self, key: str, body: "bytes | BinaryIO", length: int, sha256: bytes, *, over: str | None = ""
    ) -> str | None:
        """Write a whole object and return its new version; None, with nothing written, if `over` does not
        hold.

        over: "" to write unconditionally, None to write only if there is no object, otherwise the version
        that may be overwritten.
        """
        condition = {"IfNoneMatch": "*"} if over is None else {"IfMatch": over} if over else {}

        def put() -> str | None:
            if not isinstance(body, bytes):
                body.seek(0)
            try:
                done = self._client.put_object(
                    **self._names(key),
                    **condition,
                    Body=body,
                    ContentLength=length,
                    ChecksumSHA256=b64encode(sha256).decode(),
                )
            except self._refusals as error:
                if _status(error) in (409, 412):
                    return None
                raise
            return str(done["ETag"])

        return self._tried(key, put)

    def pieces(self, key: str) -> Iterator[bytes]:
        """Yield an object from its beginning.

        A broken or stalled connection raises ArchiveUnavailableError without a retry: wrap the loop in
        `again`.
        """
        answer = self._once(key, lambda: self._client.get_object(**self._names(key)))
        with closing(answer["Body"]) as body:
            try:
                while piece := body.read(archive_block_bytes):
                    yield piece
            except self._broken as error:
                raise self._unavailable(key, error) from error

    def again(self, attempt: Callable[[], Result]) -> Result:
        """Return the result of `attempt`, and retry it like a request."""
        for number in range(1, self._tries + 1):
            try:
                return attempt()
            except ArchiveUnavailableError:
                if number == self._tries:
                    raise
            self._sleep(self._retry_s * 2 ** (number - 1))
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _names(self, key: str) -> dict[str, str]:
        return {"Bucket": self.url.bucket, "Key": "/".join((*self.url.path, key))}

    def _read(self, key: str, part: dict[str, str]) -> bytes:
        with closing(self._client.get_object(**self._names(key), **part)["Body"]) as body:
            data: bytes = body.read()
            return data

    def _tried(self, key: str, request: Callable[[], Result]) -> Result:
        return self.again(lambda: self._once(key, request))

    def _once(self, key: str, request: Callable[[], Result]) -> Result:
        """Make a request once, and translate its errors."""
        try:
            return request()
        except self._refusals as error:
            raise self._refused(key, error) from error
        except self._lacking as error:
            raise ArchiveRefusedError(f"{self.url_of(key)}: {error}") from error
        except self._broken as error:
            raise self._unavailable(key, error) from error

    def _unavailable(self, key: str, error: Exception) -> ArchiveUnavailableError:
        return ArchiveUnavailableError(f"{self.url_of(key)} failed, tried up to {self._tries} times: {error}")

    def _refused(self, key: str, error: Any) -> Exception:
        status, details = _status(error), error.response.get("Error", {})
        text = f"{self.url_of(key)}: {status} {details.get('Code', '')} {details.get('Message', '')}".rstrip()
        if status >= 500 or status in (408, 429) or details.get("Code") in ("SlowDown", "RequestTimeout"):
            return self._unavailable(key, error)
        if status == 404:
            return ArchiveNotFoundError(text)
        if status == 416:
            return _PastEndError(text)
        return ArchiveRefusedError(text)


class _PastEndError(ArchiveNotFoundError):
    """The object ends before the requested part."""


def _status(error: Any) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
