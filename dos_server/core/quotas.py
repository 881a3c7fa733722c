"""Quotas: what the directories of a prefix may hold and request together, and the file that sets them. Pure.

| limit | counted | when it is reached |
|---|---|---|
| bytes | the content of objects, as accepted: what LIST shows | an APPEND that needs more is refused whole |
| objects | objects in the tables of directories | an APPEND that creates one is refused |
| directories | those that exist, or are being made | a CWD or APPEND that makes one is refused |
| connections | sessions whose current directory is covered | a CWD that enters is refused |
| requests | requests in a covered directory | the sessions are not read until the rate permits it |

Content and not files is counted, so the count is the same on each member. A repair is counted and never
refused: it restores what was acknowledged. Until a directory is loaded, its marks say what it holds.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from dos_protocol.errors import MALFORMED_JSON, ErrorCode, LocalProtocolError
from dos_protocol.names import is_name
from dos_server.core.access import EVERY, RequestRefusal, covers
from dos_server.limits import quota_directories_default

# --- The file, as `dos serve --quotas` reads it ------------------------------------------------------------


QUOTA_FILE_VERSION: Final = 1


class Quota(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
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
    version: int
    quotas: tuple[Quota, ...] = ()


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


# --- The counts --------------------------------------------------------------------------------------------


_ENOUGH: Final = 1 << 62
_COVERING_MAX: Final = 4_096


class StoredUsage(NamedTuple):
    bytes: int = 0
    objects: int = 0


class QuotaGauge(NamedTuple):
    """One limit of a quota, for metrics. requests: the burst, its use, how often it was used up."""

    prefix: str
    what: str
    limit: float
    used: int
    refusals: int


@dataclass(eq=False)
class _Rule:
    quota: Quota
    bytes: int = 0
    objects: int = 0
    directories: int = 0
    sessions: int = 0
    allowance: float = 0.0
    at: float = 0.0

    def __post_init__(self) -> None:
        self.refused = dict.fromkeys(("bytes", "objects", "directories", "connections", "requests"), 0)
        self.allowance = self.burst

    @property
    def burst(self) -> float:
        return float(self.quota.burst or self.quota.requests_per_s or 0)

    def refill(self, now: float) -> float:
        rate = self.quota.requests_per_s or 0.0
        self.allowance = min(self.burst, self.allowance + (now - self.at) * rate)
        self.at = now
        return self.allowance

    def refusal(self, what: str, limit: int, used: int, wanted: int) -> RequestRefusal:
        self.refused[what] += 1
        text = f"the quota of {self.quota.prefix!r} is {limit} {what}: {used} are used, {wanted} more wanted"
        return RequestRefusal(ErrorCode.QUOTA_EXCEEDED, f"{text}; nothing was done", limit)

    def gauges(self) -> Iterable[QuotaGauge]:
        quota, refused = self.quota, self.refused
        for what, limit, used in (
            ("bytes", quota.bytes_max, self.bytes),
            ("objects", quota.objects_max, self.objects),
            ("directories", quota.directories_limit, self.directories),
            ("connections", quota.connections_max, self.sessions),
            ("requests", quota.requests_per_s and self.burst, int(self.burst - self.allowance)),
        ):
            if limit is not None:
                yield QuotaGauge(quota.prefix, what, limit, used, refused[what])


class Quotas:
    """The quotas of one server. `counted`: what each directory on the disk holds; None: quotas are off."""

    def __init__(
        self, quotas: Iterable[Quota] = (), counted: Mapping[str, StoredUsage] | None = None
    ) -> None:
        self.off = counted is None
        self._usage = dict(counted or {})
        self._directories = set(self._usage)
        self._sessions: dict[str, int] = {}
        self._rules: list[_Rule] = []
        self._covering: dict[str, tuple[_Rule, ...]] = {}
        self.replace(quotas)

    def replace(self, quotas: Iterable[Quota], now: float = 0.0) -> None:
        """Continue with other quotas. Quotas that do not change keep their allowance of requests."""
        before = {rule.quota: rule for rule in self._rules}
        self._rules = [before.get(quota) or _Rule(quota, at=now) for quota in quotas]
        self._covering = {}
        for rule in self._rules:
            rule.bytes = rule.objects = rule.directories = rule.sessions = 0
        for directory in self._directories:
            for rule in self._of(directory):
                rule.directories += 1
        for directory, usage in self._usage.items():
            self._add(directory, usage.bytes, usage.objects)
        for directory, count in self._sessions.items():
            for rule in self._of(directory):
                rule.sessions += count

    def usage_of(self, directory: str) -> StoredUsage:
        return self._usage.get(directory, StoredUsage())

    def gauges(self) -> tuple[QuotaGauge, ...]:
        return tuple(gauge for rule in self._rules for gauge in rule.gauges())

    # Directories

    def refuses_directory(self, directory: str) -> RequestRefusal | None:
        for rule in self._of(directory) if directory not in self._directories else ():
            limit = rule.quota.directories_limit
            if limit is not None and rule.directories >= limit:
                return rule.refusal("directories", limit, rule.directories, 1)
        return None

    def count_directory(self, directory: str, *, exists: bool) -> None:
        if self.off or exists is (directory in self._directories):
            return
        (self._directories.add if exists else self._directories.discard)(directory)
        for rule in self._of(directory):
            rule.directories += 1 if exists else -1

    # Bytes and objects

    def recount(self, directory: str, usage: StoredUsage) -> None:
        before = self.usage_of(directory)
        self.add(directory, usage.bytes - before.bytes, usage.objects - before.objects)

    def add(self, directory: str, count_bytes: int, objects: int = 0) -> None:
        if self.off:
            return
        before = self._usage.pop(directory, StoredUsage())
        after = StoredUsage(before.bytes + count_bytes, before.objects + objects)
        if after != StoredUsage():
            self._usage[directory] = after
        self._add(directory, count_bytes, objects)

    def _add(self, directory: str, count_bytes: int, objects: int) -> None:
        for rule in self._of(directory):
            rule.bytes += count_bytes
            rule.objects += objects

    def refuses(self, directory: str, count_bytes: int, objects: int) -> RequestRefusal | None:
        for rule in self._of(directory):
            limit = rule.quota.bytes_max
            if limit is not None and count_bytes > 0 and rule.bytes + count_bytes > limit:
                return rule.refusal("bytes", limit, rule.bytes, count_bytes)
            limit = rule.quota.objects_max
            if limit is not None and objects > 0 and rule.objects + objects > limit:
                return rule.refusal("objects", limit, rule.objects, objects)
        return None

    def room_bytes(self, directory: str) -> int:
        room = _ENOUGH
        for rule in self._of(directory) if self._rules else ():
            if rule.quota.bytes_max is not None:
                room = min(room, rule.quota.bytes_max - rule.bytes)
        return room

    # Connections and requests

    def refuses_session(self, directory: str, current: str | None) -> RequestRefusal | None:
        inside = self._of(current) if current is not None else ()
        for rule in self._of(directory):
            limit = rule.quota.connections_max
            if limit is not None and rule not in inside and rule.sessions >= limit:
                return rule.refusal("connections", limit, rule.sessions, 1)
        return None

    def move(self, before: str | None, after: str | None) -> None:
        for directory, count in ((before, -1), (after, 1)):
            if directory is None or self.off:
                continue
            self._sessions[directory] = self._sessions.get(directory, 0) + count
            if not self._sessions[directory]:
                del self._sessions[directory]
            for rule in self._of(directory):
                rule.sessions += count

    def spend(self, directory: str | None, requests: int, now: float) -> None:
        for rule in self._of(directory) if self._rules and directory is not None else ():
            if rule.quota.requests_per_s is not None:
                waited = rule.refill(now) <= 0
                rule.allowance -= requests
                rule.refused["requests"] += rule.allowance <= 0 and not waited

    def must_wait(self, directory: str | None, now: float) -> bool:
        if not self._rules or directory is None:
            return False
        return any(
            rule.quota.requests_per_s is not None and rule.refill(now) <= 0 for rule in self._of(directory)
        )

    def wants_tick(self, now: float) -> bool:
        return any(rule.quota.requests_per_s is not None and rule.refill(now) <= 0 for rule in self._rules)

    def _of(self, directory: str) -> tuple[_Rule, ...]:
        if not self._rules:
            return ()
        found = self._covering.get(directory)
        if found is None:
            if len(self._covering) >= _COVERING_MAX:  # clients open directories of any name
                self._covering.clear()
            found = tuple(rule for rule in self._rules if rule.quota.covers(directory))
            self._covering[directory] = found
        return found
