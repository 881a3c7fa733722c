"""The errors of the package."""

from dos_protocol.errors import DosError


class DescriptionError(DosError):
    """The description of an application over sites is invalid. The message names the entry and the rule."""

    remedy = "correct the description"


class PlanRefusedError(DosError):
    """The sites cannot hold as many replicas of a region as it needs. The message has the reason at each
    site.

    No plan is made.
    """

    remedy = "add a site, give one more capacity, or lower kmin or distance_ms"
