"""Compare every object on all members of a store. Nothing is claimed or changed; writers continue meanwhile.

The digests are compared: of each copy, and at the sizes of the shorter copies. A server verifies stored bytes
when it reads them, so with `read` every byte is read as well. A copy may lag because a writer is active. So
an object with lagging copies is looked at twice. If something changed in between, or is being appended, the
lag is no difference.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

import trio

from dos_client.core.comparing import CopyState, MemberCopy, judge
from dos_client.core.quorum import Quorums
from dos_client.errors import QuorumUnavailableError
from dos_client.limits import answer_timeout_s, verify_pause_s
from dos_client.live_store import Store
from dos_client.repair.walking import Infos, StoreWalk, moving, open_walk, uneven
from dos_protocol.errors import DosError
from dos_protocol.names import check_name, epoch_of_segment


@dataclass(frozen=True, slots=True)
class CopyDifference:
    """One copy that is not equal to the reference. `live`: it lags after an active writer, or is still being
    filled. `expected_*`: of the reference; -1 if unknown.
    """

    directory: str
    name: str
    address: str
    server_id: bytes
    verdict: CopyState
    size: int
    digest: int
    expected_size: int
    expected_digest: int
    live: bool

    @property
    def behind_bytes(self) -> int:
        return max(0, self.expected_size - self.size)


@dataclass(frozen=True, slots=True)
class DirectoryDamage:
    """A directory that one member cannot open. No repair helps: the member has to be replaced."""

    directory: str
    address: str
    reason: str


@dataclass(slots=True)
class VerifyProgress:
    directories: int = 0
    directories_done: int = 0
    objects_done: int = 0
    bytes_read: int = 0
    bytes_total: int = 0


@dataclass(slots=True)
class MemberHolding:
    """What one member has. `lag_bytes`: of the reference copies that it lacks; `live_lag_bytes`: appended by
    an active writer. `damaged`: as directory/object.
    """

    bytes: int = 0
    objects: int = 0
    lag_bytes: int = 0
    live_lag_bytes: int = 0
    damaged: list[str] = field(default_factory=list)


@dataclass(slots=True)
class VerifyReport:
    """The result. `unavailable`: by address, why. `blocked`: claimed directories in which too few members are
    undamaged, so that a writer waits. `full`: addresses of members that refuse appends. `complete`: False if
    the token shows only some directories. `total_bytes`: of the longest undamaged copies.
    """

    directories: int = 0
    objects: int = 0
    bytes_compared: int = 0
    bytes_read: int = 0
    total_bytes: int = 0
    members: int = 0
    complete: bool = True
    findings: list[CopyDifference] = field(default_factory=list)
    unavailable: dict[str, str] = field(default_factory=dict)
    damaged_directories: list[DirectoryDamage] = field(default_factory=list)
    blocked: list[str] = field(default_factory=list)
    full: list[str] = field(default_factory=list)
    accepts_appends: bool = True
    holdings: dict[bytes, MemberHolding] = field(default_factory=dict)

    @property
    def differences(self) -> list[CopyDifference]:
        return [one for one in self.findings if not one.live]

    @property
    def equal(self) -> bool:
        """Whether all members were compared, and nothing has to be done about their copies."""
        return not (self.differences or self.unavailable or self.damaged_directories)


OnProgress = Callable[[VerifyProgress], None]


async def verify_store(
    store: Store,
    directories: Iterable[str] = (),
    *,
    read: bool = False,
    bytes_per_s: float | None = None,
    without: Collection[bytes] = (),
    answer_timeout_s: float = answer_timeout_s,
    on_progress: OnProgress | None = None,
) -> VerifyReport:
    """Compare all objects of the directories, or of all, on all members that answer. `read`: read every byte,
    at most `bytes_per_s` together. Raises QuorumUnavailableError if fewer than F members answer.
    """
    wanted = [check_name(one) for one in directories]
    async with open_walk(store, without=without, answer_timeout_s=answer_timeout_s) as walk:
        names = wanted or await walk.directories()
        comparison = _Comparison(walk, read, bytes_per_s, on_progress)
        comparison.report.complete = bool(wanted) or await walk.sees_everything()
        await comparison.run(names)
        need_quorum(walk, "compare the copies")
        comparison.report.unavailable = dict(walk.errors)
        comparison.report.damaged_directories = directory_damage(walk)
        comparison.note_room()
    return comparison.report


def damage_text(one: DirectoryDamage) -> str:
    return f"{one.directory} on {one.address} cannot be opened: {one.reason}"


def blocked_text(directory: str) -> str:
    return (
        f"a writer that starts in {directory} waits: too few members are undamaged there; start the missing"
        " ones, then run `dos store repair`"
    )


def directory_damage(walk: StoreWalk) -> list[DirectoryDamage]:
    return [
        DirectoryDamage(directory, walk.member(one).address, reason)
        for directory, reasons in sorted(walk.damaged.items())
        for one, reason in reasons.items()
    ]


def need_quorum(walk: StoreWalk, what: str) -> None:
    """Raise QuorumUnavailableError unless at least F members are in the walk."""
    quorums = Quorums(walk.record)
    if not quorums.can_take_over(walk.sessions):
        raise QuorumUnavailableError(
            f"{quorums.claims_needed} members are needed to {what}, {len(walk.sessions)} answered",
            [f"{address}: {error}" for address, error in walk.errors.items()],
        )


class _Comparison:
    def __init__(
        self, walk: StoreWalk, read: bool, bytes_per_s: float | None, on_progress: OnProgress | None
    ) -> None:
        self._walk = walk
        self._read = read
        self._bytes_per_s = bytes_per_s
        self._on_progress = on_progress
        self._progress = VerifyProgress()
        self._began = trio.current_time()
        self.report = VerifyReport(
            members=len(walk.record.members), holdings={one: MemberHolding() for one in walk.sessions}
        )

    async def run(self, names: list[str]) -> None:
        walk, late = self._walk, dict[str, dict[str, Infos]]()
        quorums, answering = Quorums(walk.record), dict[str, frozenset[bytes]]()
        self._progress.directories = self.report.directories = len(names)
        for directory in names:
            need_quorum(walk, f"compare {directory}")
            await walk.enter(directory)
            if walk.claimed:
                answering[directory] = walk.answering
            first = {name: walk.infos(name) for name in walk.names()}
            self._progress.bytes_total += sum(
                info.synced for infos in first.values() for info in infos.values() if info is not None
            )
            for name, infos in first.items():
                if uneven(infos) and not moving(infos, infos):
                    late.setdefault(directory, {})[name] = infos
                else:
                    await self._compare(directory, name, walk.infos(name), live=uneven(infos))
            self._progress.directories_done += 1
            self._show()
        if late:
            await trio.sleep(verify_pause_s)
        for directory, before in late.items():
            need_quorum(walk, f"compare {directory}")
            await walk.enter(directory)
            for name in set(before) & set(walk.names()):  # what is gone was deleted meanwhile
                now = walk.infos(name)
                await self._compare(directory, name, now, live=moving(before[name], now))
        damaged = {
            (one.directory, one.server_id) for one in self.report.findings if one.verdict is CopyState.DAMAGED
        }
        self.report.blocked = [
            name
            for name, members in answering.items()
            if not quorums.can_take_over([one for one in members if (name, one) not in damaged])
        ]

    def note_room(self) -> None:
        walk = self._walk
        full = {one for one, session in walk.sessions.items() if session.welcome.refuses_appends}
        self.report.full = [walk.member(one).address for one in full]
        self.report.accepts_appends = Quorums(walk.record).can_acknowledge(walk.sessions.keys() - full)

    async def _compare(self, directory: str, name: str, infos: Infos, *, live: bool) -> None:
        walk, report = self._walk, self.report
        copies, digests = await walk.compared(name, infos)
        if self._read:
            copies = {one: await self._read_copy(name, one, copy) for one, copy in copies.items()}
        judgement = judge(copies, digests)
        reference = judgement.reference
        report.objects += 1
        self._progress.objects_done += 1
        report.bytes_compared += sum(copy.size for copy in copies.values())
        longest = max((copy.size for copy in copies.values() if not copy.damaged), default=0)
        report.total_bytes += longest
        for server_id, copy in copies.items():
            holding = report.holdings.setdefault(server_id, MemberHolding())
            holding.bytes += copy.size
            holding.objects += copy.exists
            lag = max(0, longest - copy.size)
            holding.lag_bytes += lag
            holding.live_lag_bytes += lag if live else 0
            if copy.damaged:
                holding.damaged.append(f"{directory}/{name}")
        for server_id, verdict in judgement.verdicts.items():
            if verdict is CopyState.EQUAL:
                continue
            member, copy = walk.member(server_id), copies[server_id]
            if (epoch := epoch_of_segment(name)) and epoch == walk.epoch_granted_twice:
                verdict = CopyState.DIFFERS
            lags = verdict in (CopyState.BEHIND, CopyState.MISSING)
            report.findings.append(
                CopyDifference(
                    directory,
                    name,
                    member.address,
                    server_id,
                    verdict,
                    copy.size,
                    copy.digest,
                    -1 if reference is None else reference.size,
                    -1 if reference is None else reference.digest,
                    live=lags and (live or member.state != "in"),
                )
            )

    async def _read_copy(self, name: str, server_id: bytes, copy: MemberCopy) -> MemberCopy:
        if copy.damaged:
            return copy
        try:
            sound = await self._walk.read_through(name, server_id, copy, self._was_read)
        except DosError as error:
            self._walk.lose(server_id, error)
            return copy
        return copy if sound else MemberCopy(copy.size, copy.digest, damaged=True)

    async def _was_read(self, count: int) -> None:
        self.report.bytes_read += count
        self._progress.bytes_read += count
        self._show()
        if self._bytes_per_s:
            await trio.sleep_until(self._began + self.report.bytes_read / self._bytes_per_s)

    def _show(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self._progress)
