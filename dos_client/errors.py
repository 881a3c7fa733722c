"""The errors that only the client raises. Those of the wire are in `dos_protocol.errors`, re-exported by
the package."""

from collections.abc import Sequence

from dos_protocol.errors import DosError


class BadUrlError(DosError):
    """The URL is not `dos://host[:port][,host[:port]...][/directory[/object]]`."""


class StoreNotReadyError(DosError):
    """The servers of the URL are no store that can be used now. `missing` says what of each server."""

    def __init__(self, message: str, missing: Sequence[str] = (), *, remedy: str = "") -> None:
        super().__init__("; ".join([message, *missing]), remedy=remedy)
        self.missing = tuple(missing)


class TokenRefusedError(StoreNotReadyError):
    """Every server that answered refused the token. Waiting or asking again does not help."""


class NotEmptyError(StoreNotReadyError):
    """The servers answer, and cannot be made this store: they hold objects, or are in a store already."""


class QuorumUnavailableError(DosError):
    """Too few members answered in time. Nothing was changed. `missing` says what of each member."""

    remedy = "start the missing members, replace one (`dos store replace`), mend damage (`dos store repair`)"

    def __init__(self, message: str, missing: Sequence[str] = (), *, remedy: str = "") -> None:
        super().__init__("; ".join([message, *missing]), remedy=remedy)
        self.missing = tuple(missing)


class DamagedMembersError(QuorumUnavailableError):
    """Enough members answered, and too few of them are sound: damage is in the way, not an outage."""

    remedy = "repair the damaged copies: dos store repair URL; alone, restore them from a backup"


class MissingDataError(DosError):
    """No claimed member holds the bytes asked for, with the digest asked for.

    Raised when as many members as a take-over needs have answered, so waiting would not help: more disks
    were lost or damaged than the store is made for, or the digest asked for is wrong."""


class LossError(DosError):
    """Too few members are left to go on by the rules. Nothing was changed; `lines` says what is missing, and
    what may be lost."""

    def __init__(self, message: str, lines: Sequence[str] = (), *, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.lines = tuple(lines)


class ReplacementError(DosError):
    """A replacement cannot be begun or go on. The store is as it was, or in the generation the text names."""
