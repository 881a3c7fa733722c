"""Rows as objects in a bucket of S3 or a compatible service: one per worker, checkpoint and partition.

An object is a multipart upload until it is completed, and no reader sees it before. All parts are stored
before the vote, which contains the upload's id and the ETags: any host can complete it with nothing but the
checkpoint. Its key contains the incarnation: no other worker ever writes it. `_OWNER-wNNNN.shown` is that of
`parquet.py`. Keys of partitioned objects begin with their directories, so only a list of all keys finds those
of a worker; `_OWNER-wNNNN.begun`, the transaction that is about to be visible, tells whether that is needed.
"""

import hashlib
import io
import logging
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, ClassVar, Final, Literal, TypeAlias, get_args

import msgspec
import pyarrow as pa

from dataflow import limits
from dataflow.buckets import service_errors
from dataflow.core.partitions import PartitionBy, columns_in_files, partition_columns
from dataflow.core.transactions import writer_name
from dataflow.errors import SchemaError, SinkOwnedError, SinkRefusedError, SinkWriteError
from dataflow.operators.base import OperatorContext, set_fields
from dataflow.sinks.base import OutputOwner, other_owner, owner_of
from dataflow.sinks.files import OWNER_FILE, check_text_columns, tsv_of
from dataflow.sinks.parquet import Compression, ParquetRows, check_compression, check_parquet_columns
from dataflow.sinks.partitions import PartitionFiles
from dataflow.sinks.two_phase import TwoPhaseOutput, TwoPhaseSink
from journal import ArchiveNotFoundError, ArchiveUnavailableError
from journal.archive.bucket import Bucket, S3Url, parse_s3_url


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
    """The object of one transaction: a file format, and the parts that other threads upload."""

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
        """Add rows. Blocks while `limits.s3_parts_ahead` parts are in progress. Raises as `Bucket.put_part`;
        SinkWriteError if the object becomes too large.
        """
        if self._parquet is None:
            self._parts.write(tsv_of(batch))
        else:
            self._parquet.write(batch)

    @property
    def waiting_bytes(self) -> int:
        return 0 if self._parquet is None else self._parquet.waiting_bytes

    def flush(self) -> None:
        if self._parquet is not None:
            self._parquet.flush()

    def end(self) -> None:
        """Upload the rest. Raises as `Bucket.put_part`."""
        if self._parquet is not None:
            self._parquet.finish()
        self._parts.end()

    def receipt(self) -> Receipt:
        """Wait until all parts are stored. Raises as `Bucket.put_part`."""
        return self._parts.receipt()

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

    def end(self) -> None:
        if self._buffer or not self._upload:
            self._put(bytes(self._buffer))
        self._buffer.clear()

    def receipt(self) -> Receipt:
        return Receipt(self._key, self._upload, [etag.result() for etag in self._etags], self._size)


Format: TypeAlias = Literal["parquet", "tsv"]
_METADATA: Final = "dos-transaction"
_NEEDS: Final = (
    "a sink needs GetObject, PutObject, DeleteObject, AbortMultipartUpload, ListBucket and"
    " ListBucketMultipartUploads"
)
_OWNED_REMEDY: Final = (
    "choose another prefix, or move its objects elsewhere, also _region.json; shared=True adds objects to"
    " those that exist"
)

logger = logging.getLogger("dos.dataflow")


@dataclass(frozen=True, slots=True)
class S3Sink(TwoPhaseSink):
    """Writes Parquet files, or tab-separated text with format="tsv", as objects below an S3 URL. Each object
    becomes visible when the checkpoint that covers its rows is committed, and never changes afterwards.

        S3Sink("s3://sales/sold", compression="zstd")

    Nothing is kept on the hosts of workers. boto3 determines credentials, region and endpoint as usual;
    endpoint: the URL of a service other than AWS. The prefix belongs to one sink of one region, unless
    shared=True. compression: of Parquet files. partition_by: as of `ParquetSink`, in either format.

    Raises BadUrlError for an invalid URL; SchemaError for an unknown format or compression, and for columns
    that the format cannot store. A run fails with SinkWriteError before any worker starts if the bucket does
    not exist or denies access, and before any row is read if it cannot be reached.
    """

    takes_back: ClassVar[bool] = True
    url: str
    _: KW_ONLY
    format: Format = "parquet"
    compression: Compression = "zstd"
    endpoint: str | None = None
    partition_by: PartitionBy = ()
    shared: bool = False

    def __post_init__(self) -> None:
        if self.format not in get_args(Format):
            raise SchemaError(f"format must be one of {', '.join(get_args(Format))}, not {self.format!r}")
        check_compression(self.compression)
        set_fields(self, partition_by=partition_columns(self.partition_by))
        self._place()

    def _place(self) -> S3Url:
        return parse_s3_url(self.url, self.endpoint)

    def detail(self) -> str:
        return f"S3Sink {self._place()}"  # without the service, which may have another address

    def check_input(self, schema: pa.Schema) -> None:
        check = check_parquet_columns if self.format == "parquet" else check_text_columns
        check(columns_in_files(schema, self.partition_by))

    def check_place(self, owner: OutputOwner) -> None:
        """Raise SinkOwnedError if another owner has objects there: they would be read together with these.
        Raises SinkWriteError if the bucket does not exist or denies access, ConnectionError if it cannot be
        reached.
        """
        place = self._place()
        with _requests_to(place):
            try:
                _check_owner(Bucket(place), owner, shared=self.shared)
            except ArchiveUnavailableError as error:  # workers retry as for every sink that is not up yet
                raise ConnectionError(str(error)) from error

    def open_output(self, context: OperatorContext) -> "S3Output":
        place, owner = self._place(), owner_of(context)
        with _requests_to(place):
            bucket = Bucket(place)
            marked = _check_owner(bucket, owner, shared=self.shared)
            writer = writer_name(owner.digest, context.worker)
            return S3Output(bucket, self, context.inputs[0], writer, None if marked else owner)


class S3Output(TwoPhaseOutput):
    """One worker's objects."""

    def __init__(
        self, bucket: Bucket, spec: S3Sink, schema: pa.Schema, writer: str, owner: OutputOwner | None
    ) -> None:
        """Check that uploads are permitted. `writer`: begins the names of its transactions. `owner`: recorded
        before the first rows; None: none. Raises as `Bucket`.
        """
        self._bucket = bucket
        self._owner = owner
        self._spec = spec
        self._schema = columns_in_files(schema, spec.partition_by)
        self._writer = writer
        self._pool = ThreadPoolExecutor(limits.s3_parts_ahead, thread_name_prefix="dos-s3")
        self._uploads: dict[str, PartitionFiles[RowUpload]] = {}
        self._receipts: dict[str, list[Receipt]] = {}
        self._visible: dict[str, list[str]] = {}
        """Transaction -> its keys, of those that `published` found."""
        self._shown = _Newest(bucket, f"_{writer}.shown")
        self._begun = _Newest(bucket, f"_{writer}.begun")
        probe = f"_{writer}.probe"
        bucket.abort_upload(probe, bucket.create_upload(probe, {}))

    def stage(self, transaction: str, batch: pa.RecordBatch) -> None:
        with self._requests():
            if self._owner is not None:
                _own(self._bucket, self._owner, shared=self._spec.shared)
                self._owner = None
            if transaction not in self._uploads:
                by = partition_columns(self._spec.partition_by)
                self._uploads[transaction] = PartitionFiles(by, partial(self._open_upload, transaction))
            self._uploads[transaction].write(batch)

    def _open_upload(self, transaction: str, directory: str) -> RowUpload:
        spec = self._spec
        key = f"{directory}/part-{transaction}.{spec.format}".removeprefix("/")
        compression = spec.compression if spec.format == "parquet" else None
        metadata = {_METADATA: transaction}
        return RowUpload(self._bucket, key, metadata, self._pool, self._schema, compression)

    def prepare(self, transaction: str) -> Any:
        with self._requests():
            uploads = self._uploads.pop(transaction).files.values()
            for upload in uploads:
                upload.end()
            receipts = [upload.receipt() for upload in uploads]
        self._receipts[transaction] = receipts
        return msgspec.to_builtins(receipts if self._spec.partition_by else receipts[0])

    def restore(self, transaction: str, receipt: Any) -> None:
        found = msgspec.convert(receipt, Receipt | list[Receipt])
        self._receipts[transaction] = found if isinstance(found, list) else [found]

    def commit(self, transaction: str) -> None:
        with self._requests():
            if transaction <= self._shown.value:
                return
            receipts = self._receipts[transaction]
            if any("/" in receipt.key for receipt in receipts):
                self._begun.raise_to(transaction)
            for receipt in receipts:
                if not self._bucket.complete_upload(receipt.key, receipt.upload, receipt.etags):
                    self._check_completed(transaction, receipt)
            # Complete before recording: after a crash in between, the repeated commit finds the objects.
            self._shown.raise_to(transaction)
        del self._receipts[transaction]

    def _check_completed(self, transaction: str, receipt: Receipt) -> None:
        """Raise SinkWriteError unless the object is there that the upload makes."""
        key = receipt.key
        found = self._bucket.head(key)
        if found is None:
            # A worker of an earlier incarnation may have published it, and a reader moved it away.
            self._shown.read()
            if transaction <= self._shown.value:
                return
            raise SinkWriteError(
                f"{self._bucket.url_of(key)}: neither the object nor its upload exists, but the checkpoint"
                " that covers its rows is committed",
                remedy="leave uploads of the sink alone, and let no lifecycle rule abort them while the"
                " region is stopped; if a reader has moved the object away already, write"
                f" {transaction} into the object {self._shown.key}",
            )
        size, metadata = found
        if size != receipt.bytes or metadata.get(_METADATA) != transaction:
            raise SinkWriteError(
                f"{self._bucket.url_of(key)} is another object than the one of {receipt.bytes} bytes that was"
                f" uploaded: {size} bytes, metadata {metadata}",
                remedy="remove the object, restore it from a version of the bucket, or let no other program"
                " write below the prefix of the sink",
            )

    def staged(self) -> Iterable[str]:
        with self._requests():
            return {self._transaction(key) for key, _ in self._own_uploads(self._writer + "-")}

    def _own_uploads(self, name: str) -> list[tuple[str, str]]:
        """Return (key, id) of the uploads of objects whose names begin with part-NAME."""
        prefix = "" if self._is_partitioned else f"part-{name}"
        found = self._bucket.uploads(prefix)
        return [(key, one) for key, one in found if key.rpartition("/")[2].startswith(f"part-{name}")]

    @property
    def _is_partitioned(self) -> bool:
        """Whether its objects are or were partitioned."""
        return bool(self._spec.partition_by or self._begun.value)

    def abort(self, transaction: str) -> None:
        if upload := self._uploads.pop(transaction, None):
            upload.close()
        with self._requests():
            for key, upload_id in self._own_uploads(f"{transaction}."):
                self._bucket.abort_upload(key, upload_id)

    def published(self, newest: str) -> Iterable[str]:
        after = f"part-{newest}/" if newest else ""  # sorts after "." and so after the key of `newest`
        begin = f"part-{self._writer}-"
        self._visible.clear()
        with self._requests():
            keys = list(self._bucket.keys(begin, after))
            if self._begun.value > newest:
                keys += (key for key in self._bucket.keys("") if key.rpartition("/")[2].startswith(begin))
        for key in {*keys}:
            self._visible.setdefault(self._transaction(key), []).append(key)
        return [transaction for transaction in self._visible if transaction > newest]

    def take_back(self, transaction: str) -> None:
        with self._requests():
            for key in self._visible.pop(transaction):
                logger.warning("%s is deleted: the region was reset to a checkpoint before it", key)
                self._bucket.delete(key)

    def _transaction(self, key: str) -> str:
        return key.rpartition("/")[2].removeprefix("part-").rpartition(".")[0]

    def close(self) -> None:
        for upload in self._uploads.values():
            upload.close()
        self._uploads.clear()
        self._pool.shutdown(cancel_futures=True)

    @contextmanager
    def _requests(self) -> Iterator[None]:
        with _requests_to(self._bucket.url):
            yield


class _Newest:
    """An object that records the newest transaction for which something holds. `value`: "" for none."""

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket, self.key = bucket, key
        self.read()

    def read(self) -> None:
        # The version first: if the object changes in between, the next conditional write fails.
        self._version = self._bucket.version(self.key)
        self.value = "" if self._version is None else self._bucket.get(self.key).decode()

    def raise_to(self, transaction: str) -> None:
        """Record it unless a later one is recorded: a worker of an earlier incarnation may be late."""
        data = transaction.encode()
        digest = hashlib.sha256(data).digest()
        while transaction > self.value:
            version = self._bucket.put(self.key, data, len(data), digest, over=self._version)
            if version is None:
                self.read()
            else:
                self.value, self._version = transaction, version


def _check_owner(bucket: Bucket, owner: OutputOwner, *, shared: bool) -> bool:
    first = next((key for key in bucket.keys("", most=1_000) if not key.startswith(("_", "."))), None)
    if shared:
        return True
    try:
        recorded = bucket.get(OWNER_FILE)
    except ArchiveNotFoundError:
        if first is not None:
            raise SinkOwnedError(
                f"{bucket.url} has {first} but no {OWNER_FILE}: another run or program wrote it",
                remedy=_OWNED_REMEDY,
            ) from None
        return False
    if recorded != msgspec.json.encode(owner):
        text = other_owner(str(bucket.url), recorded, msgspec.json.encode(owner))
        raise SinkOwnedError(text, remedy=_OWNED_REMEDY)
    return True


def _own(bucket: Bucket, owner: OutputOwner, *, shared: bool) -> None:
    if not _check_owner(bucket, owner, shared=shared):
        text = msgspec.json.encode(owner)
        bucket.put(OWNER_FILE, text, len(text), hashlib.sha256(text).digest(), over=None)
        _check_owner(bucket, owner, shared=shared)


@contextmanager
def _requests_to(url: S3Url) -> Iterator[None]:
    """Translate errors of the bucket into SinkWriteError with a remedy for sinks."""
    try:
        with service_errors(url, SinkWriteError, _NEEDS, SinkRefusedError):
            yield
    except ArchiveNotFoundError as error:
        if "NoSuchUpload" in error.args[0]:
            raise SinkWriteError(
                f"an upload was aborted while it was in progress: {error.args[0]}",
                remedy="let no lifecycle rule abort uploads of the sink; if a later incarnation of the region"
                " has aborted it, none is needed",
            ) from error
        remedy = f"create the bucket {url.bucket!r}, or correct the URL of the sink"
        raise SinkRefusedError(f"no such bucket or object: {error.args[0]}", remedy=remedy) from error
