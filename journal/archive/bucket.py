"""The requests to a bucket of S3 or a compatible service, and their errors: of archives, and of sources and
sinks of a dataflow. All calls block. Only this module translates errors of boto3: temporary ones (5xx,
throttling, timeouts, broken connections, truncated replies) are retried.
"""

import hashlib
import re
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, Final, NamedTuple, TypeVar
from urllib.parse import parse_qs, urlsplit

from dos_client.errors import BadUrlError
from dos_protocol.lazy_names import missing_extra
from dos_protocol.names import check_name
from journal.core.errors import ArchiveNotFoundError, ArchiveRefusedError, ArchiveUnavailableError
from journal.limits import archive_block_bytes, archive_retry_s, archive_timeout_s, archive_tries_max

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
        """Split the URL of an archived chain into the archive's URL, directory and chain. Raises BadUrlError,
        BadNameError.
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


_CONTENT_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+)", re.ASCII)

Result = TypeVar("Result")


class ObjectPart(NamedTuple):
    """A part of an object. `version` (ETag) and `size` are those of the whole object."""

    data: bytes
    version: str
    size: int


class ListedObject(NamedTuple):
    key: str
    version: str
    size: int


class Bucket:
    """The objects below the path of a URL. Every call blocks, may be made from any thread, and raises
    ArchiveNotFoundError, ArchiveRefusedError, ArchiveUnavailableError; MissingExtraError without boto3, which
    determines the credentials, the region and, unless the URL has one, the endpoint.
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
        try:  # imported late, because the import takes longer than that of all commands
            import boto3
            import botocore.exceptions
            from botocore.config import Config
        except ModuleNotFoundError as error:
            raise missing_extra(error, f"a bucket ({url})") or error from None

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
            raise BadUrlError(f"invalid endpoint: {error}", remedy=URL_REMEDY) from error
        self._refusals = botocore.exceptions.ClientError
        self._lacking = (
            botocore.exceptions.NoCredentialsError,
            botocore.exceptions.PartialCredentialsError,
            botocore.exceptions.ParamValidationError,
        )
        self._broken = (botocore.exceptions.BotoCoreError, botocore.exceptions.HTTPClientError, OSError)

    def url_of(self, key: str) -> str:
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

    def part(self, key: str, offset: int, length: int, version: str = "") -> ObjectPart | None:
        """Return up to `length` bytes from `offset`, fewer only at the end of the object; None if the object
        has another version (an ETag, "" to accept any).
        """
        condition = {"IfMatch": version} if version else {}
        span = {"Range": f"bytes={offset}-{offset + length - 1}"}

        def get() -> ObjectPart | None:
            try:
                answer = self._client.get_object(**self._names(key), **span, **condition)
            except self._refusals as error:
                if _status(error) == 412:
                    return None
                raise
            with closing(answer["Body"]) as body:
                found = self._checked_part(key, answer, body.read(), offset, length)
            return found if version in ("", found.version) else None  # a service may ignore the condition

        try:
            return self._tried(key, get)
        except _PastEndError:
            head = self._tried(key, lambda: self._client.head_object(**self._names(key)))
            found = ObjectPart(b"", str(head["ETag"]), int(head["ContentLength"]))
            if version not in ("", found.version):
                return None
            if found.size > offset:
                raise ArchiveUnavailableError(f"{self.url_of(key)} was replaced during a request") from None
            return found

    def _checked_part(self, key: str, answer: Any, data: bytes, offset: int, length: int) -> ObjectPart:
        said = str(answer.get("ContentRange", ""))
        span = _CONTENT_RANGE.fullmatch(said)  # a service that ignores the range sends other bytes
        if span is None or int(span[1]) != offset:
            raise ArchiveRefusedError(
                f"{self.url_of(key)}: the service does not support ranged requests: it sent {said!r} when"
                f" asked for bytes from {offset} on"
            )
        size = int(span[3])
        if len(data) != min(length, size - offset):
            raise ArchiveUnavailableError(
                f"{self.url_of(key)}: {len(data)} bytes arrived, expected {min(length, size - offset)}"
            )
        return ObjectPart(data, str(answer["ETag"]), size)

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
        hold. over: "" to write unconditionally, None only if there is no object, otherwise the version to
        overwrite.
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

    def delete(self, key: str) -> None:
        """Delete an object; no effect if it does not exist."""
        self._tried(key, lambda: self._client.delete_object(**self._names(key)))

    def keys(self, prefix: str, after: str = "", *, most: int | None = None) -> Iterator[str]:
        """Yield the keys that begin with `prefix` and sort after `after`, in order, at most `most`."""
        return (found.key for found in self.objects(prefix, after, most=most))

    def objects(
        self, prefix: str, after: str = "", *, most: int | None = None, direct: bool = False
    ) -> Iterator[ListedObject]:
        """Yield the objects whose keys begin with `prefix` and sort after `after`, in order, at most `most`.
        direct: leave out keys with a / after the prefix.
        """
        base = self._names("")["Key"]
        request: dict[str, Any] = {"Bucket": self.url.bucket, "Prefix": base + prefix}
        if after:
            request["StartAfter"] = base + after
        if most is not None:
            request["MaxKeys"] = most
        if direct:
            request["Delimiter"] = "/"
        while True:
            page = self._tried(prefix, partial(self._client.list_objects_v2, **request))
            for one in page.get("Contents", ()):
                yield ListedObject(str(one["Key"])[len(base) :], str(one["ETag"]), int(one["Size"]))
            if most is not None or not page.get("IsTruncated"):
                return
            request["ContinuationToken"] = page["NextContinuationToken"]

    def head(self, key: str) -> tuple[int, Mapping[str, str]] | None:
        """Return size and user metadata of an object; None if there is none."""
        try:
            head = self._tried(key, lambda: self._client.head_object(**self._names(key)))
        except ArchiveNotFoundError:
            return None
        return int(head["ContentLength"]), dict(head["Metadata"])

    # --- multipart uploads --------------------------------------------------------------------------------
    # The parts of an upload are stored, and no reader sees an object until the upload is completed.

    def create_upload(self, key: str, metadata: Mapping[str, str]) -> str:
        """Begin an upload of an object with this metadata, and return its id. A lost reply leaves an empty
        upload.
        """
        create = partial(self._client.create_multipart_upload, **self._names(key), Metadata=dict(metadata))
        return str(self._tried(key, create)["UploadId"])

    def put_part(self, key: str, upload: str, number: int, body: bytes) -> str:
        """Store part `number`, from 1, and return its ETag. Every part except the last has at least 5 MiB."""
        digest = hashlib.md5(body, usedforsecurity=False).digest()  # the service verifies the bytes with it
        put = partial(
            self._client.upload_part,
            **self._names(key),
            UploadId=upload,
            PartNumber=number,
            Body=body,
            ContentMD5=b64encode(digest).decode(),
        )
        return str(self._tried(key, put)["ETag"])

    def complete_upload(self, key: str, upload: str, etags: Sequence[str]) -> bool:
        """Make the object of these parts visible. Return False if the upload does not exist any more or the
        key exists: it may have been completed by a request whose reply was lost.
        """
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]
        complete = partial(
            self._client.complete_multipart_upload,
            **self._names(key),
            UploadId=upload,
            MultipartUpload={"Parts": parts},
        )

        def complete_new() -> bool:
            try:
                complete(IfNoneMatch="*")
            except self._refusals as error:
                if _status(error) == 501:  # a service without conditional requests
                    complete()
                elif _status(error) == 412:
                    return False
                elif _status(error) == 409:  # another request for the key is in progress
                    raise self._unavailable(key, error) from error
                else:
                    raise
            return True

        try:
            return self._tried(key, complete_new)
        except ArchiveNotFoundError:
            return False

    def abort_upload(self, key: str, upload: str) -> None:
        """Delete an upload with its parts; no effect if it does not exist."""
        abort = partial(self._client.abort_multipart_upload, **self._names(key), UploadId=upload)
        with suppress(ArchiveNotFoundError):
            self._tried(key, abort)

    def uploads(self, prefix: str) -> Iterator[tuple[str, str]]:
        """Yield (key, id) of the uploads that are not completed, of keys that begin with `prefix`."""
        base = self._names("")["Key"]
        request: dict[str, Any] = {"Bucket": self.url.bucket, "Prefix": base + prefix}
        while True:
            page = self._tried(prefix, partial(self._client.list_multipart_uploads, **request))
            for one in page.get("Uploads", ()):
                yield str(one["Key"])[len(base) :], str(one["UploadId"])
            if not page.get("IsTruncated"):
                return
            request |= {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def pieces(self, key: str) -> Iterator[bytes]:
        """Yield an object from its beginning. Errors are not retried here: wrap the loop in `again`."""
        answer = self._once(key, lambda: self._client.get_object(**self._names(key)))
        with closing(answer["Body"]) as body:
            try:
                while piece := body.read(archive_block_bytes):
                    yield piece
            except self._broken as error:
                raise self._unavailable(key, error) from error

    def again(self, attempt: Callable[[], Result]) -> Result:
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
