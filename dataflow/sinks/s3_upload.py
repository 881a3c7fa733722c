"""An object of rows that is being uploaded: a file format on top, the parts of a multipart upload below.

Parts are uploaded by other threads while rows arrive. The last one, of any size, is uploaded when no rows
follow.
"""

import io
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec
import pyarrow as pa

from dataflow import limits
from dataflow.errors import SinkWriteError
from dataflow.sinks.parquet import ParquetRows
from dataflow.sinks.tsv import tsv_of
from journal.archive.bucket import Bucket


class Receipt(msgspec.Struct, frozen=True):
    """What a checkpoint stores of an upload: enough to complete it from any host."""

    key: str
    """Below the prefix. The next run may have another format, and so another ending."""
    upload: str
    """The upload's id, which the service assigned."""
    etags: list[str]
    """Of its parts, in order."""
    bytes: int
    """The size of the object."""


class RowUpload:
    """The object of one transaction."""

    def __init__(
        self,
        bucket: Bucket,
        key: str,
        metadata: Mapping[str, str],
        pool: ThreadPoolExecutor,
        schema: pa.Schema,
        compression: str | None,
    ) -> None:
        """compression: of a Parquet file; None for tab-separated text. Makes no request."""
        self._parts = _Parts(bucket, key, metadata, pool)
        self._parquet = None if compression is None else ParquetRows(self._parts, schema, compression)

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows. Blocks while `limits.s3_parts_ahead` parts are in progress.

        Raises as `Bucket.put_part`; SinkWriteError if the object becomes too large.
        """
        if self._parquet is None:
            self._parts.write(tsv_of(batch))
        else:
            self._parquet.write(batch)

    def finish(self) -> Receipt:
        """Upload the rest, and wait until all parts are stored. Raises as `Bucket.put_part`."""
        if self._parquet is not None:
            self._parquet.finish()
        return self._parts.finish()

    def close(self) -> None:
        """Give the object up. Its upload remains, and is listed as a leftover."""
        self._parts.discard = True
        if self._parquet is not None:
            self._parquet.close()


class _Parts(io.RawIOBase):
    """A file whose content becomes the parts of an upload."""

    def __init__(
        self, bucket: Bucket, key: str, metadata: Mapping[str, str], pool: ThreadPoolExecutor
    ) -> None:
        self._bucket = bucket
        self._key = key
        self._metadata = metadata
        self._pool = pool
        self._upload = ""
        self._buffer = bytearray()
        self._size = 0
        self._etags: list[Future[str]] = []
        """Of all parts, in order. A part that failed is never left out: its future raises again."""
        self.discard = False

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: "bytes | bytearray | memoryview") -> int:  # type: ignore[override]
        if self.discard:
            return len(data)
        self._buffer += data
        self._size += len(data)
        while len(self._buffer) >= limits.s3_part_bytes:
            part = bytes(memoryview(self._buffer)[: limits.s3_part_bytes])
            del self._buffer[: limits.s3_part_bytes]
            self._put(part)
        return len(data)

    def _put(self, part: bytes) -> None:
        if not self._upload:
            self._upload = self._bucket.create_upload(self._key, self._metadata)
        if len(self._etags) >= limits.s3_parts_ahead:
            self._etags[-limits.s3_parts_ahead].result()
        number = len(self._etags) + 1
        if number > limits.s3_parts_max:
            raise SinkWriteError(
                f"{self._bucket.url_of(self._key)} has more than {limits.s3_parts_max} parts of"
                f" {limits.s3_part_bytes} bytes",
                remedy="set a shorter checkpoint_interval: each worker uploads one object per checkpoint",
            )
        put = self._bucket.put_part
        self._etags.append(self._pool.submit(put, self._key, self._upload, number, part))

    def finish(self) -> Receipt:
        if self._buffer or not self._upload:
            self._put(bytes(self._buffer))
        self._buffer.clear()
        return Receipt(self._key, self._upload, [etag.result() for etag in self._etags], self._size)


__all__ = ["Receipt", "RowUpload"]
