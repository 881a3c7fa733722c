"""The errors that only the client raises. Errors of the protocol are in `dos_protocol.errors`."""

from collections.abc import Sequence

from dos_protocol.errors import DosError


class BadUrlError(DosError):
    """The URL is not `dos://host[:port][,host[:port]...][/directory[/object]]`."""


class ConfigurationError(DosError):
    """A file or variable that names stores or options is not valid, or names nothing. Nothing was done."""


class _ServersMissingError(DosError):
    """`missing` has one line per server."""

    def __init__(self, message: str, missing: Sequence[str] = (), *, remedy: str = "") -> None:
        super().__init__("; ".join([message, *missing]), remedy=remedy)
        self.missing = tuple(missing)


class StoreNotReadyError(_ServersMissingError):
    """The servers of the URL do not form a usable store. `missing` has one line per server."""


class StoreRefusedError(StoreNotReadyError):
    """Every server refuses this client as it is set up. A retry does not help."""


class TokenRefusedError(StoreRefusedError):
    """Every server that answered rejected the token."""


class NotEmptyError(StoreNotReadyError):
    """The servers cannot become this store: they hold objects or already belong to a store."""


class QuorumUnavailableError(_ServersMissingError):
    """Too few members answered in time. Nothing was changed. `missing` has one line per member."""

    remedy = (
        "start the missing members, replace one (`dos store replace`), repair damage (`dos store repair`)"
    )


class DamagedMembersError(QuorumUnavailableError):
    """Enough members answered, but too few of them are undamaged. The cause is damage, not an outage."""

    remedy = "repair the damaged copies: dos store repair URL; on a single server, restore from a backup"


class MissingDataError(DosError):
    """No claimed member holds the requested bytes with the requested digest. As many members as a take-over
    needs have answered, so waiting does not help: more disks were lost than the store tolerates, or the
    digest is wrong.
    """


class LossError(DosError):
    """Too few members are left to continue safely. Nothing was changed. `lines`: what may be lost."""

    def __init__(self, message: str, lines: Sequence[str] = (), *, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.lines = tuple(lines)


class ReplacementError(DosError):
    """A replacement cannot start or continue. The store is unchanged, or as the message says."""
