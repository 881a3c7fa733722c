"""A journal in one local file, as in the original service: appended to here, and mirrored to servers
afterwards.

The file holds records of version 0 or 1 and has no segments. Appended records are in the page cache; they are
on stable storage after `wait_synced`. Opening the file truncates a torn last record, which a crash leaves,
and rejects any other bytes that are not a record. After a failed write or sync the journal accepts no more
appends, because the content of the disk is unknown (reliability rows 4 and 5).
"""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import trio

from dos_protocol.digests import PrefixDigest
from dos_protocol.errors import ClosedError, LocalProtocolError
from dos_tls import sync_folder
from journal.core.decoder import RecordDecoder
from journal.core.errors import LocalFilesError, TornRecordError
from journal.core.position import Position
from journal.core.record import Record, encode
from journal.core.record_layout import VERSION_1
from journal.limits import scratch_read_bytes_max

logger = logging.getLogger("dos.journal")


class LocalJournal:
    """A journal in one local file. A context manager that closes it. Not for concurrent use by several tasks.

    path: the file, created if missing.
    version: the version of the records. Version 0, of the original service, has no checksums and no MARK
        records, so it cannot be restored to a time. An existing file must have the same version.

    Raises CorruptRecordError, UnknownRecordError; LocalProtocolError if the file has the other version;
    OSError.
    """

    def __init__(self, path: Path, version: int = VERSION_1) -> None:
        self.path = path
        self.version = version
        self._digest = PrefixDigest()
        self._broken: LocalFilesError | None = None
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            sync_folder(path.parent)  # the name of a new file
            self._truncate_torn_end()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "LocalJournal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop appending."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    async def aclose(self) -> None:
        self.close()

    @property
    def marks(self) -> bool:
        """Whether it can hold MARK records, which hold the wall clock."""
        return self.version == VERSION_1

    @property
    def end(self) -> Position:
        """The position just past the last record. The epoch is 0: one file has one line of history."""
        return Position(0, self._digest.size, self._digest.value)

    def append(self, record: Record) -> Position:
        """Append a record and return the position just past it.

        Raises LocalProtocolError for an invalid record, ClosedError; LocalFilesError if the write failed.
        Then the journal is closed, and the next opening finds out whether the record is there.
        """
        self._check_open()
        data = encode(record, self.version)
        try:
            view, at = memoryview(data), self._digest.size
            while view:
                written = os.pwrite(self._file, view, at)
                view, at = view[written:], at + written
        except OSError as error:
            raise self._fail(f"cannot write {self.path}: {error}") from error
        self._digest.update(data)
        return self.end

    async def wait_room(self) -> None:
        """Return at once: `append` writes the file directly."""
        await trio.lowlevel.checkpoint()

    async def wait_synced(self, position: Position | None = None) -> None:
        """Wait until the whole journal is on stable storage here. Raises ClosedError, LocalFilesError."""
        del position  # a sync is of the whole file
        self._check_open()
        try:
            await trio.to_thread.run_sync(os.fsync, self._file)
        except OSError as error:
            raise self._fail(f"cannot sync {self.path}: {error}") from error

    def records(self) -> Iterator[list[tuple[int, Record]]]:
        """Yield all records in batches, each with the offset just past it. Raises the errors of opening."""
        decoder = RecordDecoder(self.version, where=self.path.name)
        for chunk in self._chunks():
            yield decoder.feed(chunk)

    def _truncate_torn_end(self) -> None:
        decoder = RecordDecoder(None, where=self.path.name)
        for chunk in self._chunks():
            decoder.feed(chunk)
        torn = decoder.finish()
        if torn is not None and not isinstance(torn, TornRecordError):
            raise torn
        if decoder.version is not None and decoder.version != self.version:
            raise LocalProtocolError(
                f"{self.path} has records of version {decoder.version}, not {self.version}",
                remedy=f"open it with version={decoder.version}, or use another file",
            )
        if torn is not None:
            logger.warning("%s: truncated to %d bytes: %s", self.path, decoder.offset, torn)
            os.ftruncate(self._file, decoder.offset)
        for chunk in self._chunks():
            self._digest.update(chunk)

    def _chunks(self) -> Iterator[bytes]:
        at = 0
        while chunk := os.pread(self._file, scratch_read_bytes_max, at):
            at += len(chunk)
            yield chunk

    def _check_open(self) -> None:
        if self._broken is not None:
            raise ClosedError(f"{self.path} is closed: {self._broken.args[0]}", remedy=self._broken.remedy)
        if self._file < 0:
            raise ClosedError(f"{self.path} is closed")

    def _fail(self, text: str) -> LocalFilesError:
        self._broken = LocalFilesError(
            text, remedy="fix what the operating system reports, then open the journal again"
        )
        self.close()
        return self._broken
