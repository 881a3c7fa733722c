"""What can be wrong with a journal, named. All say where, at which byte, what was expected and what stands
there.

    torn      the last record is cut off by the end of the data. Its writer died; nothing after it ever
              existed.
    corrupt   anything else that is not a record: bytes that were written differently from how they read now.
    version   a record of a release newer than this one. Nothing is wrong with the data.
    chain     the segments do not hang together as their start records say.
    lost      the chain names bytes that no member has: superseded in the meantime, or lost. Never "empty"
              (R14).

What is *not* here: refusals of servers and losses of a claim, which are `dos_protocol`'s and `dos_client`'s.
"""

from dos_protocol.errors import CorruptDataError, DosError


class TornRecordError(CorruptDataError):
    """The data ends inside a record. What stands before `offset` is whole and good."""


class CorruptRecordError(CorruptDataError):
    """Bytes that are no record, and that a cut-off write cannot explain. What stands before `offset` is
    good.
    """


class UnknownRecordError(CorruptDataError):
    """A record, flag or operation of a newer release. What stands before `offset` is good."""


class ChainError(CorruptDataError):
    """A segment contradicts its name, its predecessor or its place in the chain."""


class LostBytesError(DosError):
    """The chain names a segment, or bytes of one, that none of the members asked has."""

    remedy = "if another writer took over meanwhile, begin again; otherwise bring the missing members back"


class EpochUsedTwiceError(DosError):
    """Copies of one segment contradict each other. One writer wrote it, so its epoch was granted a second
    time: the disk of a member went back to an older state. Which copy was acknowledged cannot be decided
    here. Nothing was changed.
    """

    remedy = (
        "find the member whose disk was restored from an older copy, take it out with `dos store replace`,"
        " and compare the copies with `dos store verify` before anything is deleted"
    )


class NotEnoughAnswersError(DosError):
    """Too few members answered for this question. `missing` says which, and why they do not count."""

    remedy = "start the missing members, or repair or replace them; then try again"

    def __init__(self, message: str, *, answered: int, needed: int, missing: tuple[str, ...] = ()) -> None:
        super().__init__(message + (": " + "; ".join(missing) if missing else ""))
        self.answered = answered
        self.needed = needed
        self.missing = missing


class StopNotFoundError(DosError):
    """A replay was asked to stop at a position that is not a boundary between two of its records."""

    remedy = "take the position from a cut, or from `dos journal dump`"


class UnsafePathError(DosError):
    """A path that would lead out of the directory that it belongs into, or that no file can have."""

    remedy = "no file has such a path: stop the replay before it (--at), or take another file alone"

    def __init__(self, path: bytes, rule: str, *, re_rooting_helps: bool = False) -> None:
        super().__init__(
            f"the path {path[:200]!r} is refused: {rule}",
            remedy="have paths taken as below the target (--strip), if you trust where the journal comes from"
            if re_rooting_helps
            else "",
        )
        self.path = path


class FileConflictError(DosError):
    """An operation on files that does not fit the files that are there."""

    remedy = "a path names one file for as long as that is there; remove that first"

    def __init__(self, path: str, rule: str) -> None:
        super().__init__(f"{path!r} cannot be such a file: {rule}")
        self.path = path


class LocalFilesError(DosError):
    """A change was recorded, and this machine's files could not follow. The journal is right."""

    remedy = (
        "mend what the operating system says, then open the directory again: it is made anew from the journal"
    )


class HistoryTrimmedError(DosError):
    """What is asked for lies below what the journal still holds."""

    remedy = "ask for a later moment, or name its archive too: dos://..+s3://BUCKET/PREFIX"


class HistoryMissingError(HistoryTrimmedError):
    """The same, and no segment's start says that it was let go: lost, or a region's manifest released it."""


class MirrorDiffersError(DosError):
    """A local journal and its copy in a store are not of one history. Nothing was appended."""

    remedy = "a journal only grows: get back the file that was mirrored"


class ArchiveDamagedError(CorruptDataError):
    """An archived object is not what was written: gone, too short, swapped for another, or changed. Nothing
    of it was handed on. Whoever keeps the bucket must act.
    """


class ArchiveDiffersError(DosError):
    """The archive holds another journal than this one. Nothing was written."""

    remedy = "archive it to another prefix"


class ArchiveNotFoundError(DosError):
    """The bucket or the archive is not there: the URL is wrong, or somebody took it away."""

    remedy = "check bucket, prefix, directory and chain: s3://BUCKET/PREFIX/DIRECTORY/CHAIN"


class ArchiveRefusedError(DosError):
    """The bucket's service does not let us: our credentials, or the request, are the caller's to mend."""

    remedy = "check the credentials and the bucket's policy: reading needs GetObject, archiving PutObject too"


class ArchiveUnavailableError(DosError):
    """The bucket's service did not answer, or said that it cannot now, as often as it was asked. What was
    verified before is in the manifest.
    """

    remedy = "try again later: what is archived already is not done again"
