"""How operations of the disk end. Rules of this file: values only; `vocabulary` has them too."""

from enum import Enum


class Trouble(Enum):
    """How a disk operation ended."""

    NONE = "done"
    NO_SPACE = "no space left; nothing of it is in the file"
    FAILED = "failed, its effect is not known"


class Removal(Enum):
    """How a removal ended."""

    GONE = "gone, durably"
    INTACT = "failed, the object is as it was"
    UNKNOWN = "failed, and only a restart can say whether it is there"
