"""The errors of the package. A CorruptDataError names the file or segment, the byte, the expected and the
found content. Rejections by servers and lost claims are errors of `dos_protocol` and `dos_client`.
"""

from dos_protocol.errors import CorruptDataError, DosError


class TornRecordError(CorruptDataError):
    """The data ends inside a record. Everything before `offset` is whole and valid."""


class CorruptRecordError(CorruptDataError):
    """Bytes that a cut-off write cannot explain. Everything before `offset` is valid."""


class UnknownRecordError(CorruptDataError):
    """A record, flag or operation of a newer release. Everything before `offset` is valid."""


class ChainError(CorruptDataError):
    """A segment contradicts its name, its predecessor or its place in the chain."""


class LostBytesError(DosError):
    """The chain names a segment, or bytes of one, that no reachable member has: replaced by a new writer
    meanwhile, or lost. Never reported as "empty" (R14).
    """

    remedy = "if another writer took over meanwhile, retry; otherwise bring the missing members back"


class RewrittenChainError(LostBytesError):
    """The chain was deleted and written again: what was read is of an earlier epoch."""

    remedy = "discard what was read, and read the chain from its beginning as a new reader"

    def __init__(self, directory: str, chain: str, read_to: str, epoch: int) -> None:
        super().__init__(
            f"chain {chain} in {directory} was read to {read_to}, but what it has below that was written by"
            f" epoch {epoch:x}: it was deleted and written again"
        )


class UnsettledStateError(DosError):
    """A state cannot be read: a process that was changing it has died, or needs longer than usual."""

    remedy = "try again; the next change settles it"

    def __init__(self, directory: str, reason: str) -> None:
        super().__init__(f"the state in {directory} cannot be read now: {reason}")
        self.reason = reason


class TrimmedBytesError(LostBytesError):
    """The bytes from `begin` to `end` were released and deleted."""

    remedy = "read from the beginning of what is retained"

    def __init__(self, directory: str, chain: str, begin: int, end: int) -> None:
        super().__init__(f"the bytes from {begin} to {end} of chain {chain} in {directory} were trimmed")
        self.begin = begin
        self.end = end


class EpochUsedTwiceError(DosError):
    """Copies of one segment contradict each other: its epoch was granted twice, because the disk of a member
    was set back to an older state. Nothing was changed.
    """

    remedy = (
        "find the member whose disk was restored from an older copy, take it out with `dos store replace`,"
        " and compare the copies with `dos store verify` before anything is deleted"
    )


class NotEnoughAnswersError(DosError):
    """Too few members answered. `missing` lists the members that do not count, each with the reason."""

    remedy = "start the missing members, or repair or replace them; then try again"

    def __init__(self, message: str, *, answered: int, needed: int, missing: tuple[str, ...] = ()) -> None:
        super().__init__(message + (": " + "; ".join(missing) if missing else ""))
        self.answered = answered
        self.needed = needed
        self.missing = missing


class StopNotFoundError(DosError):
    """The stop of a replay is not a boundary between two of its records."""

    remedy = "take the position from a checkpoint, or from `dos journal dump`"


class UnsafePathError(DosError):
    """A path that leads out of its directory, or that no file can have."""

    remedy = "stop the replay before this record (--at), or replay another file alone"

    def __init__(self, path: bytes, rule: str, *, re_rooting_helps: bool = False) -> None:
        super().__init__(
            f"the path {path[:200]!r} is refused: {rule}",
            remedy="pass --strip to place all paths below the target, if you trust the journal"
            if re_rooting_helps
            else "",
        )
        self.path = path


class FileConflictError(DosError):
    """A file operation that conflicts with the existing files."""

    remedy = "remove the file or directory that is in the way first"

    def __init__(self, path: str, rule: str) -> None:
        super().__init__(f"cannot change the file {path!r}: {rule}")
        self.path = path


class LocalFilesError(DosError):
    """A change was recorded, but the files on this machine could not be changed. The journal is valid."""

    remedy = (
        "fix what the operating system reports, then open the directory again: it is rebuilt from the journal"
    )


class HistoryTrimmedError(DosError):
    """The requested moment lies before the history that the journal still holds."""

    remedy = "choose a later moment, or add the archive to the URL: dos://..+s3://BUCKET/PREFIX"


class HistoryMissingError(HistoryTrimmedError):
    """No segment start says that it was released: it is lost, or the manifest of a region released it."""


class MirrorDiffersError(DosError):
    """A local journal and its copy in a store have different histories. Nothing was appended."""

    remedy = "restore the file that was mirrored: a journal only grows"


class ArchiveDamagedError(CorruptDataError):
    """An archived object is missing, short or changed. None of it was returned."""


class ArchiveDiffersError(DosError):
    """The archive holds a different journal. Nothing was written."""

    remedy = "use another prefix for this archive"


class ArchiveNotFoundError(DosError):
    """The bucket or the archive does not exist: the URL is wrong, or it was deleted."""

    remedy = "check bucket, prefix, directory and chain: s3://BUCKET/PREFIX/DIRECTORY/CHAIN"


class ArchiveRefusedError(DosError):
    """The bucket's service denied the request. The caller must correct the credentials or the request."""

    remedy = "check the credentials and the bucket's policy: reading needs GetObject, archiving PutObject too"


class ArchiveUnavailableError(DosError):
    """The bucket's service failed at every attempt. Segments verified before are in the manifest."""

    remedy = "try again later; segments that are already archived are not copied again"
