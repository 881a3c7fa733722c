"""The file of quotas: limits for the directories of a prefix, as `dos serve --quotas` reads them. Pure."""

from typing import Final

import msgspec

from dos_protocol.errors import MALFORMED_JSON, LocalProtocolError
from dos_protocol.names import is_name
from dos_server.core.access import EVERY, covers
from dos_server.limits import quota_directories_default

QUOTA_FILE_VERSION: Final = 1


class Quota(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Limits for the directories of a prefix, taken together; None: no limit.

    bytes_max: of the content of objects, as `dos ls` shows it. connections_max: sessions that are in one of
    the directories. requests_per_s: on average; `burst` of them at once, by default those of a second.
    directories_max: that exist; by default 1,000 where bytes or objects are limited.
    """

    prefix: str
    bytes_max: int | None = None
    objects_max: int | None = None
    connections_max: int | None = None
    requests_per_s: float | None = None
    burst: int | None = None
    directories_max: int | None = None

    @property
    def directories_limit(self) -> int | None:
        """The limit of directories that is in force: each takes space that no other limit counts."""
        if self.directories_max is None and (self.bytes_max, self.objects_max) != (None, None):
            return quota_directories_default
        return self.directories_max

    def covers(self, directory: str) -> bool:
        return covers(self.prefix, directory)


class QuotaFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a file of quotas."""

    version: int
    quotas: tuple[Quota, ...] = ()


def encode_quotas(file: QuotaFile) -> bytes:
    """Return the JSON of a file of quotas, with a line for each value that people compare."""
    return msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n"


def decode_quotas(data: bytes, where: str) -> QuotaFile:
    """Return the content of a file of quotas. Raises LocalProtocolError, which names the entry."""
    try:
        file = msgspec.json.decode(data, type=QuotaFile)
    except MALFORMED_JSON as error:
        raise LocalProtocolError(
            f"quotas file {where}: {error}", remedy="`dos quota set` writes it"
        ) from error
    if file.version != QUOTA_FILE_VERSION:
        raise LocalProtocolError(
            f"quotas file {where} has version {file.version}; this program reads version"
            f" {QUOTA_FILE_VERSION}",
            remedy="use a newer program",
        )
    prefixes = [one.prefix for one in file.quotas]
    for one in file.quotas:
        if prefixes.count(one.prefix) > 1:
            raise LocalProtocolError(f"quotas file {where}: prefix {one.prefix!a} has two quotas")
        check_quota(one, f"quotas file {where}")
    return file


def check_quota(quota: Quota, where: str) -> None:
    """Raise LocalProtocolError for a prefix that names no directory, and for a limit that makes no sense."""
    if quota.prefix != EVERY and not is_name(quota.prefix):
        raise LocalProtocolError(f"{where}: {quota.prefix!a} is no directory, and not {EVERY!r}")
    limits = (quota.bytes_max, quota.objects_max, quota.connections_max, quota.directories_max)
    if all(one is None for one in (*limits, quota.requests_per_s)):
        raise LocalProtocolError(f"{where}: the quota of {quota.prefix!r} limits nothing")
    if any(one is not None and one < 0 for one in limits):
        raise LocalProtocolError(f"{where}: a limit of {quota.prefix!r} is negative")
    if quota.requests_per_s is not None and not 1 <= quota.requests_per_s < 1e9:
        raise LocalProtocolError(
            f"{where}: {quota.prefix!r} has {quota.requests_per_s:g} requests a second; at least 1 is needed,"
            " because a session that is silent for long counts as lost"
        )
    if quota.burst is not None and (quota.requests_per_s is None or quota.burst < 1):
        raise LocalProtocolError(
            f"{where}: the burst of {quota.prefix!r} must be at least 1, and needs a rate of requests"
        )
