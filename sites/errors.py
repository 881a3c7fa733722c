"""The errors of the package."""

from dos_protocol.errors import DosError


class DescriptionError(DosError):
    """The description of an application over sites is invalid. The message names the entry and the rule."""

    remedy = "correct the description"


class NotDeployedError(DosError):
    """The application is not deployed, or not as it is described. Nothing was changed."""

    remedy = "deploy it with `dos sites apply`"


class CannotReviveError(DosError):
    """A replica cannot be started: it runs, is not known, or has nothing to read."""

    remedy = "`dos sites status` lists the replicas and what they read"


class GraphRefusedError(DosError):
    """The graph of a region cannot be used. Its replica is not started; other replicas run."""

    remedy = "correct `graph` of the region; it names a function as `module:function`"


class PlanRefusedError(DosError):
    """The sites cannot hold as many replicas of a region as it needs. The message has the reason at each
    site.

    No plan is made.
    """

    remedy = "add a site, give one more capacity, or lower kmin or distance_ms"
