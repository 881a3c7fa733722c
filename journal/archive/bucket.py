"""A bucket of S3, or of a service that speaks like it: the requests that an archive makes, and what may go
wrong with them.

Rules of this file: blocking calls on one bucket, and the one place where boto3's errors get our names. What
may be temporary (5xx, throttling, time-outs, connections that break, answers that are cut short) is tried
again; what is not, is not. The bytes of archived objects are checked in `reading.py` and `archiving.py`.
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
    "write it as s3://BUCKET/PREFIX/DIRECTORY/CHAIN; another service than AWS: ?endpoint=http://HOST:PORT"
)

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class S3Url:
    """A parsed URL. `path`: what follows the bucket, its parts divided by single slashes."""

    bucket: str
    path: tuple[str, ...]
    endpoint: str | None = None

    def __str__(self) -> str:
        return SCHEME + "/".join((self.bucket, *self.path))

    def chain(self) -> "tuple[S3Url, str, str]":
        """The archive's URL, directory and chain, of the URL of an archived chain. Raises BadUrlError,
        BadNameError.
        """
        if len(self.path) < 2:
            raise BadUrlError(f"{self} names no archived chain", remedy=_REMEDY)
        directory, chain = map(check_name, self.path[-2:])
        return S3Url(self.bucket, self.path[:-2], self.endpoint), directory, chain


def parse_s3_url(url: str, endpoint: str | None = None) -> S3Url:
    """The parts of s3://BUCKET[/PREFIX..][?endpoint=URL]. Raises BadUrlError."""
    if not url.startswith(SCHEME):
        raise BadUrlError(f"the URL of an archive begins with {SCHEME}: {url[:60]!a}", remedy=_REMEDY)
    try:
        parts = urlsplit(url)
        asked = parse_qs(parts.query, strict_parsing=True) if parts.query else {}
    except ValueError as error:
        raise BadUrlError(f"{url[:60]!a} is no URL: {error}", remedy=_REMEDY) from error
    if unknown := sorted(asked.keys() - {"endpoint"}):
        raise BadUrlError(f"{url[:60]!a} asks for {unknown[0]}; only endpoint is known", remedy=_REMEDY)
    if _BUCKET.fullmatch(parts.netloc) is None:
        raise BadUrlError(f"no name of a bucket: {parts.netloc[:60]!a}", remedy=_REMEDY)
    path = tuple(part for part in parts.path.split("/") if part)
    return S3Url(parts.netloc, path, endpoint or asked.get("endpoint", [None])[0])


class Bucket:
    """Objects below a URL's path. Every call blocks, may be made from any thread, and raises
    ArchiveNotFoundError, ArchiveRefusedError, ArchiveUnavailableError.

    tries, retry_s, timeout_s: see the limits. Credentials, region and, unless the URL says it, the endpoint
    come from boto3's usual places (environment, files, instance).
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
        import boto3  # takes longer to import than all of our own commands
        import botocore.exceptions
        from botocore.config import Config

        self.url = url
        self._tries, self._retry_s, self._sleep = tries, retry_s, sleep
        config = Config(
            connect_timeout=timeout_s,
            read_timeout=timeout_s,
            retries={"total_max_attempts": 1, "mode": "standard"},  # ours, which know of cut answers too
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        session = boto3.session.Session()
        region = session.region_name or "us-east-1"  # S3's own default; other services do not mind
        try:
            self._client: Any = session.client(
                "s3", endpoint_url=url.endpoint, config=config, region_name=region
            )
        except ValueError as error:
            raise BadUrlError(f"no endpoint: {error}", remedy=_REMEDY) from error
        self._refusals = botocore.exceptions.ClientError
        self._lacking = (
            botocore.exceptions.NoCredentialsError,
            botocore.exceptions.PartialCredentialsError,
            botocore.exceptions.ParamValidationError,
        )
        self._broken = (botocore.exceptions.BotoCoreError, botocore.exceptions.HTTPClientError, OSError)

    def place(self, key: str) -> str:
        """How an object is called in messages."""
        return f"{self.url}/{key}"

    def get(self, key: str, offset: int | None = None, length: int | None = None) -> bytes:
        """An object whole, or the part asked for: fewer bytes if the object ends before, never more."""
        if offset is None or length is None:
            return self._tried(key, lambda: self._read(key, {}))
        part = {"Range": f"bytes={offset}-{offset + length - 1}"}
        try:
            return self._tried(key, lambda: self._read(key, part)[:length])
        except _PastEndError:
            return b""

    def version(self, key: str) -> str | None:
        """What names the present version of an object; None if there is none."""
        try:
            head = self._tried(key, lambda: self._client.head_object(**self._names(key)))
        except ArchiveNotFoundError:
            return None
        return str(head["ETag"])

    def put(
        self, key: str, body: "bytes | BinaryIO", length: int, sha256: bytes, *, over: str | None = ""
    ) -> str | None:
        """Write an object whole; its version. over: "" whatever is there, None only if nothing is, else only
        over that version; None, and nothing is written, if it is not so.
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
        """An object from its beginning. What breaks off or stands still is ArchiveUnavailableError at once:
        begin again with `again`.
        """
        answer = self._once(key, lambda: self._client.get_object(**self._names(key)))
        with closing(answer["Body"]) as body:
            try:
                while piece := body.read(archive_block_bytes):
                    yield piece
            except self._broken as error:
                raise self._unavailable(key, error) from error

    def again(self, attempt: Callable[[], Result]) -> Result:
        """The result of the attempt, made so often as any request."""
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
        """The request, with its errors named."""
        try:
            return request()
        except self._refusals as error:
            raise self._refused(key, error) from error
        except self._lacking as error:
            raise ArchiveRefusedError(f"{self.place(key)}: {error}") from error
        except self._broken as error:
            raise self._unavailable(key, error) from error

    def _unavailable(self, key: str, error: Exception) -> ArchiveUnavailableError:
        return ArchiveUnavailableError(f"{self.place(key)}, asked up to {self._tries} times: {error}")

    def _refused(self, key: str, error: Any) -> Exception:
        status, told = _status(error), error.response.get("Error", {})
        words = f"{self.place(key)}: {status} {told.get('Code', '')} {told.get('Message', '')}".rstrip()
        if status >= 500 or status in (408, 429) or told.get("Code") in ("SlowDown", "RequestTimeout"):
            return self._unavailable(key, error)
        if status == 404:
            return ArchiveNotFoundError(words)
        if status == 416:
            return _PastEndError(words)
        return ArchiveRefusedError(words)


class _PastEndError(ArchiveNotFoundError):
    """The object ends before the part that was asked for."""


def _status(error: Any) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
