"""How disk operations end. Values only; `vocabulary` exports them too."""

from enum import Enum


class DiskFailure(Enum):
    """The outcome of a disk operation."""

    NONE = "done"
    NO_SPACE = "no space left; nothing of it is in the file"
    TEMPORARY = "temporarily not possible; nothing of it is in the file"
    FAILED = "failed, its effect is unknown"
    GONE = "the file was removed or replaced under the running server"


class Removal(Enum):
    """The outcome of a removal."""

    GONE = "removed durably"
    INTACT = "failed; the object is unchanged"
    NOT_NOW = "temporarily not possible; the object is unchanged"
    LATER = "started, to be continued: the cause is temporary"
    UNKNOWN = "failed; only a restart can determine whether the object exists"
