"""The base classes of sinks: output that can be reset to a checkpoint and becomes visible when it is
committed.

1. `process` and `end_step` in each step.
2. At a checkpoint, `prepare`: everything so far is passed to the operating system; returns what a reset
   needs.
3. `sync`, from another thread while the next step runs, and then `voted`, which completes what the checkpoint
   contains.
4. After the commit of the checkpoint, `publish`.
5. After a failure, `reset_to` with what the checkpoint contains.
"""

import errno
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec
import pyarrow as pa

from dataflow.core.plan import OperatorKind
from dataflow.core.regions import Delivery
from dataflow.errors import SinkRefusedError, SinkWriteError
from dataflow.operators.base import Operator, OperatorContext, OperatorSpec, ReplicaProblem
from dos_protocol.digests import digest64
from dos_protocol.errors import MALFORMED_JSON

exactly_once_remedy: Final = (
    'use a LogSink, a ParquetSink or a two-phase sink; or set consistent(delivery="at-least-once")'
)
"""The remedy for a sink whose rows are visible immediately, in a region that promises exactly-once."""


SHARED: Final = "shared=True adds its rows to those of others"


class OutputOwner(msgspec.Struct, frozen=True):
    """The owner of output: one sink of one region of one store. A run that resumes has the same owner."""

    region: str
    store: str
    sink: str

    @property
    def digest(self) -> int:
        """Digest of the owner; part of the names of its output."""
        return digest64(msgspec.json.encode([self.region, self.store, self.sink]))


def other_owner(place: str, recorded: bytes, mine: bytes, since: str = "") -> str:
    """Return the sentence that another sink owns a place. recorded, mine: owners as JSON; since: when
    recorded.
    """
    me = msgspec.json.decode(mine, type=OutputOwner)
    try:
        other = msgspec.json.decode(recorded, type=OutputOwner)
    except MALFORMED_JSON:
        return f"{place} has an owner that cannot be read: {recorded!r}"
    theirs, ours = (
        ("", "") if other.store == me.store else (f" of store {other.store}", f" of store {me.store}")
    )
    return (
        f"{place} belongs to sink {other.sink!r} of region {other.region!r}{theirs}"
        f"{since and f' since {since}'}, not to sink {me.sink!r} of region {me.region!r}{ours}"
    )


_REFUSALS: Final = frozenset(
    {
        errno.EACCES,
        errno.EEXIST,  # a file where a directory must be
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EPERM,
        errno.EROFS,
    }
)
"""Errors of files that another attempt would have again."""
_SQL_REFUSALS: Final = ("28", "3D", "3F", "42")
"""Classes of SQLSTATE: authorization; no such database; no such schema; no such table, or no permission."""
_SQLITE_REFUSALS: Final = (3, 8, 14, 23, 26)
"""SQLite's PERM, READONLY, CANTOPEN, AUTH, NOTADB."""


def write_error(error: BaseException) -> type[SinkWriteError]:
    """Return as which error a sink reports one of its destination."""
    cause = getattr(error, "orig", error)  # of a database, below SQLAlchemy's
    state, code = getattr(cause, "sqlstate", None), getattr(cause, "sqlite_errorcode", None)
    refused = isinstance(cause, ImportError)  # the driver of a database is not installed
    refused = refused or (isinstance(cause, OSError) and cause.errno in _REFUSALS and not _is_late(cause))
    refused = refused or (isinstance(state, str) and state.startswith(_SQL_REFUSALS))
    refused = refused or (isinstance(code, int) and code & 0xFF in _SQLITE_REFUSALS)
    return SinkRefusedError if refused else SinkWriteError


def _is_late(error: OSError) -> bool:
    """Return whether a link leads nowhere yet: what it leads to may be mounted later."""
    path = Path(error.filename or "")
    return error.errno == errno.EEXIST and path.is_symlink() and not path.exists()


def owner_of(context: OperatorContext) -> OutputOwner:
    sink = context.uid or context.operator
    if context.owner is not None:
        return OutputOwner(context.owner.region, context.owner.store, sink)
    return OutputOwner(context.region, context.store_id.hex(), sink)


class SinkWriter(Operator):
    """A running sink on one worker."""

    may_repeat: ClassVar[bool] = False

    @abstractmethod
    def prepare(self, checkpoint: int) -> Any:
        """Pass everything of this step to the operating system. Return JSON that `voted` accepts. checkpoint:
        as `publish` will receive it; the same number may come again after a reset, for another attempt.
        """

    @abstractmethod
    def sync(self) -> None:
        """Make what was prepared durable. Called from another thread, never during `reset_to` or `close`."""

    def voted(self, prepared: Any) -> Any:
        """Return what the checkpoint stores, after `sync`: `prepared`, completed with what was not known
        then.
        """
        return prepared

    def publish(self, checkpoint: int) -> None:
        """Make visible what was prepared up to this checkpoint, which is committed. May be called twice, and
        after the next one was prepared.
        """

    @abstractmethod
    def reset_to(self, prepared: Any | None) -> None:
        """Return to what `voted` returned for a checkpoint; None: to the beginning. Discards later output."""

    def take_all_back(self) -> None:
        """Discard all output of this worker, which the restored checkpoint does not have."""
        self.reset_to(None)


class SinkSpec(OperatorSpec):
    """The description of a sink."""

    kind: ClassVar[OperatorKind] = OperatorKind.SINK
    runs_outside: ClassVar[bool] = False
    """Whether it needs no checkpoints to make its output visible."""

    @property
    def leaves_rows(self) -> bool:
        """Whether rows of a checkpoint may be outside of the store that only this description can make
        visible, or rows after it that only this can take back. Then the sink is removed with it.
        """
        return True

    @property
    def shows_steps(self) -> bool:
        """Whether output becomes visible for good before a checkpoint covers it."""
        return False

    def output_schema(self, inputs: Sequence[pa.Schema]) -> None:
        self.check_input(inputs[0])

    def check_input(self, schema: pa.Schema) -> None:
        """Raise SchemaError if rows of this schema cannot be written."""

    def check_place(self, owner: OutputOwner) -> None:
        """Raise SinkOwnedError if the destination holds output of another owner, to which these rows would be
        added.

        Changes nothing. The driver calls it before any worker starts; workers check again when they open the
        destination. Default: nothing, for destinations that belong to the region. Raises OSError and other
        errors of the destination if it cannot be read from this machine.
        """
        del owner

    @property
    def unchecked_place(self) -> str:
        """Why it is not noticed that another region writes to the same destination; empty if it is."""
        if type(self).check_place is SinkSpec.check_place:
            return f"{type(self).__name__} does not check who else writes there (check_place)"
        return SHARED if getattr(self, "shared", False) else ""

    def delivers(self, wanted: Delivery | None) -> Delivery:
        """Return the delivery in a consistent region that requests `wanted` (None: the strongest). Raises
        DeliveryError with a remedy. Default: rows become visible when their checkpoint is committed.
        """
        return "at-most-once" if wanted == "at-most-once" else "exactly-once"

    def irrevocable(self, wanted: Delivery | None) -> str:
        """Return why rows that were visible come again when the region is restored to an older checkpoint;
        empty if they are taken back. wanted: as for `delivers`.
        """
        delivered = self.delivers(wanted)
        return "" if delivered == "exactly-once" else f"its rows are visible at once ({delivered})"

    def replica_problem(self, inputs: Sequence[pa.Schema]) -> ReplicaProblem | None:
        """Return why it cannot be in a replica. Default: its output would have each row once per replica."""
        del inputs
        return ReplicaProblem(
            f"is a {type(self).__name__}, to which every replica would write its own copy of each row",
            "write a LogSink with a time, and use this sink in a region that reads the merged log",
        )

    @abstractmethod
    def open(self, context: OperatorContext) -> SinkWriter:
        """Return a writer of this worker's part, not yet opened: `reset_to` is called first."""
