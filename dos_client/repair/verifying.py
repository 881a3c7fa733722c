"""Compare every object on all members of a store.

Verification claims nothing and changes nothing; writers continue meanwhile. `core.comparing` decides how
copies compare.

Digests are compared, not bytes: the digest that each server reports for its copy, and the prefix digests at
the sizes of the shorter copies. A server verifies stored bytes when it reads them, not when it returns a
digest. So damage in older bytes is found only by reading them, with `read`.

A copy may lag because a writer is active. So a directory with a lagging copy is listed twice. If something
changed in between, or is being appended, the lag is not a difference.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from dos_client.core.comparing import Copies, CopiesJudged, CopyState, MemberCopy, judge
from dos_client.core.quorum import Quorums
from dos_client.errors import QuorumUnavailableError
from dos_client.live_store import Store
from dos_client.repair.walking import Infos, StoreWalk, list_twice, moving, open_walk
from dos_protocol.errors import DosError
from dos_protocol.names import check_name


@dataclass(frozen=True, slots=True)
class CopyDifference:
    """One copy that is not equal to the reference.

    `live`: it lags after an active writer, or on a member that is still being filled; that is no difference.
    `expected_*`: of the reference; -1 if it is unknown which copy is right.
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


@dataclass(slots=True)
class VerifyProgress:
    """The progress of a verification."""

    directories: int = 0
    directories_done: int = 0
    objects_done: int = 0
    bytes_read: int = 0


@dataclass(slots=True)
class VerifyReport:
    """The result of a verification. `unavailable`: by address, why a member was not compared."""

    directories: int = 0
    objects: int = 0
    bytes_compared: int = 0
    members: int = 0
    findings: list[CopyDifference] = field(default_factory=list)
    unavailable: dict[str, str] = field(default_factory=dict)

    @property
    def differences(self) -> list[CopyDifference]:
        """The findings that are more than a lag."""
        return [one for one in self.findings if not one.live]


OnProgress = Callable[[VerifyProgress], None]


async def verify_store(
    store: Store,
    directories: Iterable[str] = (),
    *,
    read: bool = False,
    on_progress: OnProgress | None = None,
) -> VerifyReport:
    """Compare all objects of the directories, or of all directories, on all members that answer.

    Raises QuorumUnavailableError if fewer than F members answer.
    """
    wanted = [check_name(one) for one in directories]
    report, progress = VerifyReport(members=len(store.record.members)), VerifyProgress()
    async with open_walk(store) as walk:
        names = wanted or await walk.directories()
        progress.directories = len(names)
        for name in names:
            need_quorum(walk, f"compare {name}")
            await _Directory(walk, name, report, progress, on_progress).run(read=read)
            progress.directories_done += 1
            if on_progress is not None:
                on_progress(progress)
        need_quorum(walk, "compare the copies")
        report.directories = len(names)
        report.unavailable = dict(walk.errors)
    return report


def need_quorum(walk: StoreWalk, what: str) -> None:
    """Raise QuorumUnavailableError unless at least F members are in the walk."""
    quorums = Quorums(walk.record)
    if not quorums.can_take_over(walk.sessions):
        raise QuorumUnavailableError(
            f"{quorums.claims_needed} members are needed to {what}, {len(walk.sessions)} answered",
            [f"{address}: {error}" for address, error in walk.errors.items()],
        )


class _Directory:
    """The verification of one directory."""

    def __init__(
        self,
        walk: StoreWalk,
        name: str,
        report: VerifyReport,
        progress: VerifyProgress,
        on_progress: OnProgress | None,
    ) -> None:
        self._walk = walk
        self._name = name
        self._report = report
        self._progress = progress
        self._on_progress = on_progress

    async def run(self, *, read: bool) -> None:
        walk = self._walk
        first = await list_twice(walk, self._name)
        for name in walk.names():
            infos = walk.infos(name)
            copies, judgement = await self._judge(name, infos, read=read)
            self._count(name, copies, judgement, moving=moving(first.get(name), infos))

    async def _judge(self, name: str, infos: Infos, *, read: bool) -> tuple[Copies, CopiesJudged]:
        copies, digests = await self._walk.compared(name, infos)
        if read:
            copies = {one: await self._read(name, one, copy) for one, copy in copies.items()}
        return copies, judge(copies, digests)

    async def _read(self, name: str, server_id: bytes, copy: MemberCopy) -> MemberCopy:
        if copy.damaged:
            return copy
        try:
            sound = await self._walk.read_through(name, server_id, copy, self._was_read)
        except DosError as error:
            self._walk.lose(server_id, error)
            return copy
        return copy if sound else MemberCopy(copy.size, copy.digest, damaged=True)

    def _was_read(self, count: int) -> None:
        self._progress.bytes_read += count
        if self._on_progress is not None:
            self._on_progress(self._progress)

    def _count(self, name: str, copies: Copies, judgement: CopiesJudged, *, moving: bool) -> None:
        report, reference = self._report, judgement.reference
        report.objects += 1
        self._progress.objects_done += 1
        report.bytes_compared += sum(copy.size for copy in copies.values())
        for server_id, verdict in judgement.verdicts.items():
            if verdict is CopyState.EQUAL:
                continue
            member, copy = self._walk.member(server_id), copies[server_id]
            lags = verdict in (CopyState.BEHIND, CopyState.MISSING)
            report.findings.append(
                CopyDifference(
                    self._name,
                    name,
                    member.address,
                    server_id,
                    verdict,
                    copy.size,
                    copy.digest,
                    -1 if reference is None else reference.size,
                    -1 if reference is None else reference.digest,
                    live=lags and (moving or member.state != "in"),
                )
            )
