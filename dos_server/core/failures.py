"""How operations of the disk end. Rules of this file: values only; `vocabulary` has them too."""

from enum import Enum


class DiskFailure(Enum):
    """How a disk operation ended."""

    NONE = "done"
    NO_SPACE = "no space left; nothing of it is in the file"
    PASSES = "not possible now, for a cause that passes; nothing of it is in the file"
    FAILED = "failed, its effect is not known"


class Removal(Enum):
    """How a removal ended."""

    GONE = "gone, durably"
    INTACT = "failed, the object is as it was"
    NOT_NOW = "not possible now, for a cause that passes; the object is as it was"
    LATER = "begun, and to be gone on with: the cause passes"
    UNKNOWN = "failed, and only a restart can say whether it is there"
