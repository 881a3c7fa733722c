"""The errors of this package, one class per party that must act."""

from checkpoint import limits
from dos_protocol.errors import DosError, RemoteProtocolError


class ChannelFrameError(RemoteProtocolError):
    """A malformed frame; its link is closed. code: BAD_FRAME, BAD_VERSION, UNKNOWN_OPCODE ..."""


class ControlMessageError(RemoteProtocolError):
    """A control message cannot be decoded, or its sender may not send it. The link is closed."""


class RecordTooLargeError(DosError):
    """Something that is stored or sent as a whole is above the limit. The region stops."""


class HandshakeError(DosError):
    """The other end of a link did not prove that it has the job's key, or belongs to another job."""

    remedy = "let workers join only the region that started them; a restarted driver creates a new key"


class LinkClosedError(DosError):
    """The other end closed the link in an orderly way, between two frames."""


class ManifestError(DosError):
    """A checkpoint cannot be restored: what is missing or wrong. Nothing was started from it."""

    remedy = "restore an earlier checkpoint"

    def __init__(self, message: str, *, checkpoint: int = 0, remedy: str = "") -> None:
        super().__init__(message if not checkpoint else f"checkpoint {checkpoint}: {message}", remedy=remedy)
        self.checkpoint = checkpoint


class RegionFencedError(DosError):
    """A newer driver runs this region. Since then, this driver sent no orders and committed nothing (P-4)."""

    remedy = "use the newer driver's handle"

    def __init__(self, message: str, *, epoch_held: int = 0) -> None:
        super().__init__(message)
        self.epoch_held = epoch_held


class RegionFailedError(DosError):
    """The region stopped and needs a person. traceback_text: of a user function, printed below it."""

    def __init__(self, message: str, *, traceback_text: str = "", remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.traceback_text = traceback_text
        if traceback_text:
            self.add_note(f"in the worker:\n{traceback_text.rstrip()}")


class NoRegionError(DosError):
    """No region of that name was ever run on this store. `regions`: the existing ones."""

    def __init__(self, region: str, regions: list[str]) -> None:
        known = f"it has {', '.join(regions)}" if regions else "it has none"
        remedy = "check the name, and that the URL is that of the store given to `run`"
        super().__init__(f"this store has no region {region!r}: {known}", remedy=remedy)
        self.regions = tuple(regions)


class NoInputError(DosError):
    """No producer has written to an input handle of that name. `handles`: those of the application."""

    def __init__(self, application: str, handle: str, handles: list[str]) -> None:
        known = f"it has {', '.join(handles)}" if handles else "it has none"
        remedy = "check both names; a handle exists once its first rows were written"
        super().__init__(f"application {application!r} has no input {handle!r}: {known}", remedy=remedy)
        self.handles = tuple(handles)


class NoSinkError(DosError):
    """The last checkpoint of a region has no sink of that name. `sinks`: those that it has."""

    remedy = "check both names; a sink exists once its region has committed a checkpoint"

    def __init__(self, region: str, sink: str, sinks: list[str]) -> None:
        known = f"it has {', '.join(sinks)}" if sinks else "it has none"
        super().__init__(f"the last checkpoint of region {region!r} has no sink {sink!r}: {known}")
        self.sinks = tuple(sinks)


class CheckpointReleasedError(DosError):
    """The checkpoint was released, and its data may be deleted. retained: those that can be restored."""

    remedy = "use one that is retained; run the region with a larger `retain` to keep more"

    def __init__(self, region: str, checkpoint: int, retained: tuple[int, ...]) -> None:
        known = ", ".join(map(str, retained)) or "none"
        super().__init__(f"checkpoint {checkpoint} of region {region} was released; retained are {known}")
        self.checkpoint = checkpoint
        self.retained = retained


class SavepointRefusedError(DosError):
    """A savepoint cannot be created or dropped; the message has the reason. Nothing was changed."""

    remedy = "`dos checkpoint ls` lists the retained checkpoints and the savepoints"


class RestoreRefusedError(DosError):
    """The region cannot be restored to this checkpoint; the message has the reason. Nothing was changed."""

    remedy = "`dos checkpoint ls` lists the retained checkpoints and the savepoints"


class ForkRefusedError(DosError):
    """The region cannot be forked; the message has the reason. Nothing was changed."""

    remedy = "`dos checkpoint ls` lists the checkpoints that can be forked"


class DeletionRefusedError(DosError):
    """The region cannot be deleted; the message has the reason. Nothing was changed."""

    remedy = "stop the region, and what depends on it, first"


class ReleaseRefusedError(DosError):
    """The region cannot be released from its query; the message has the reason. Nothing was changed."""

    remedy = "stop the query first"


class EditRefusedError(DosError):
    """Rows cannot be written into a state: the operator, the key and the rule. Nothing was changed."""

    remedy = "correct the rows, and write them again"


class BackupRefusedError(DosError):
    """A backup cannot be made, used or restored there; the message has the reason."""

    remedy = "`dos region backups TARGET` lists the backups of a target"


class BackupDamagedError(DosError):
    """An object of a backup is missing, or has other bytes than were stored; `where` names it."""

    remedy = "use another backup of the target (`dos region backups`), or bring the object back as it was"

    def __init__(self, where: str, reason: str, *, remedy: str = "") -> None:
        super().__init__(f"{where}: {reason}", remedy=remedy)
        self.where = where


class CheckpointDamagedError(RegionFailedError):
    """Chains of the last checkpoint are damaged or lost on too many members. Nothing was changed."""


class OutputRewoundError(DosError):
    """Output was taken back that this reader has read: by a restore, or the region was deleted and begins
    again.

    line: of history that replaced it; checkpoint: the restored one, 0 if it is not known or the region was
    deleted; step: the first step that was taken back, 1 if that is not known.
    """

    def __init__(
        self,
        region: str,
        sink: str,
        *,
        line: int = 0,
        checkpoint: int = 0,
        step: int = 1,
        read: int,
        remedy: str = "",
        deleted: str = "",
    ) -> None:
        what = f"output {sink!r} of region {region!r} was read up to step {read}, but the region was"
        if checkpoint:
            super().__init__(
                f"{what} restored to checkpoint {checkpoint}: its output from step {step} on was taken back,"
                " and other output follows",
                remedy=remedy,
            )
        else:
            often = f"restored more than {limits.rewinds_kept_max} times since: what was taken back of it is"
            super().__init__(
                f"{what} deleted and begun again: {deleted}"
                if deleted
                else f"{what} {often} not known any more",
                remedy="discard what was read, and read the output from its beginning as a new reader:"
                " another checkpointLocation of a query, another name of a source, or after_step=0",
            )
        self.line = line
        self.checkpoint = checkpoint
        self.step = step


class NotScaledError(DosError):
    """The region keeps the workers that it has: the request was refused, or the change was given up."""


class NotReplacedError(DosError):
    """Not all workers were replaced by other processes; the message has those that were, and the reason."""


class NotHandedOverError(DosError):
    """The driver that runs the region does not hand it over, and continues; the message has the reason."""

    remedy = "start the program again, or stop the region first and start it without hand_over"


class StateNotRecordedError(DosError):
    """The changes between two checkpoints cannot be determined from a worker's state blocks; see `reason`."""

    remedy = "read the state at each of the two checkpoints and compare them"

    def __init__(self, worker: int, reason: str) -> None:
        super().__init__(f"worker {worker}: {reason}")
        self.worker = worker
        self.reason = reason


class NoAnswerError(DosError):
    """No driver of the region answered in time. The message has what is known from the manifest."""


class GraphChangeRefusedError(DosError):
    """The graph differs from the one that wrote the state in these `operators`. Nothing was started."""

    remedy = (
        "run the program that wrote this state, with the settings that it had; or give the region a new name,"
        " and a query that drives it a new checkpointLocation"
    )

    def __init__(self, message: str, *, operators: tuple[str, ...], remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.operators = operators


class OrphanedError(DosError):
    """This worker received nothing from its coordinator for `orphan_timeout` and must end."""


class StaleIncarnationError(DosError):
    """Not sent: a newer RESTORE has arrived, or this worker has ended. Discard all of the older one."""


class StoppedError(DosError):
    """The coordinator ordered this worker to end; the message has the reason."""


class UnsupportedKeyTypeError(DosError):
    """A column of this type has no canonical bytes, so it cannot be a key."""

    remedy = "use string, binary, bool, integers, floats, decimal128, date32 or timestamps as keys"


class InputClosedError(DosError):
    """The input handle accepts no more input. Rows that were acknowledged before are part of it."""

    remedy = "write to another handle; a closed one stays closed"

    def __init__(self, handle: str) -> None:
        super().__init__(f"input {handle!r} is closed or being closed")


class EntryRefusedError(DosError):
    """An entry point cannot serve this producer or handle. Nothing was recorded."""

    remedy = "`dos input entries` shows the entry points of a handle and their clocks"


class ConsumerRefusedError(DosError):
    """A registered consumer cannot be removed; the message has the reason. Nothing was changed."""

    remedy = "`dos input consumers` lists the registered ones"


class ConsumerTakenError(ConsumerRefusedError):
    """Another process has the name of this consumer, which ends; what it has read stays read."""

    remedy = "give each query, and each stream that it reads, its own name in the option 'consumer'"


class RegisterUnsettledError(DosError):
    """A process that was changing the register of consumers died. Nothing is trimmed meanwhile."""

    remedy = "try again; `dos input|output consumers` settles it if the process that changed it has died"

    def __init__(self, directory: str, reason: str) -> None:
        super().__init__(f"the register of consumers in {directory} cannot be read now: {reason}")


class InputTrimmedError(DosError):
    """Rows that a reader needs were deleted, from `begin` to `end`. Nothing after them was read."""

    def __init__(
        self,
        where: str,
        begin: int,
        end: int,
        because: str,
        *,
        source: str = "InputSource",
        unit: str = "bytes",
    ) -> None:
        super().__init__(
            f"the {unit} from {begin} to {end} of {where} were trimmed and are gone: {because}",
            remedy=f'start a region under a new name with {source}(..., begin="retained"), which reads from'
            " the oldest retained row on",
        )
        self.begin = begin
        self.end = end


class OutputDiffersError(DosError):
    """A replay produced other output of a step than was visible. None was written; the region stops."""

    remedy = 'use publish="checkpoint", or make the operators before the sink deterministic'

    def __init__(self, sink: str, step: int, before: int, now: int) -> None:
        super().__init__(
            f"sink {sink!r}: step {step} was published with digest {before:016x}, its replay has {now:016x}"
        )
        self.sink = sink
        self.step = step
