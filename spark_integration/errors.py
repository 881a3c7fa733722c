"""What can be wrong before a region runs, each with its remedy in the message. All of them are DosError."""

from dos_protocol.errors import DosError


class NotEnoughSlotsError(DosError):
    """The Spark master cannot hold the region's workers and leave slots to other jobs, or did not in time."""


class StoreNotChosenError(DosError):
    """No store was named, and the master is not a local one, so there is nothing sensible to start by
    default.
    """


class StoreNotUsableError(DosError):
    """The store that was named is not there, or not one store."""


class InsecureNetworkError(DosError):
    """The region would speak in clear text between machines, and nobody said that this is meant."""


class CannotShipError(DosError):
    """The graph, or a function in it, cannot be sent to the executors."""


class ExecutorMismatchError(DosError):
    """An executor's Python or packages are not the driver's."""


class UnreachableWorkerError(DosError):
    """A worker cannot be dialled by another worker or by the driver. The message names both."""
