"""The status of a tree, as the store alone shows it, and what is wrong with it. Pure."""

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from dos_gateway.core.space import room_for_files
from dos_gateway.limits import deletions_bytes, tree_files_max

_ROOM_SHARE: Final = 0.1
"""A tree is short of room when less than this share of what its files may have is left."""
_AHEAD_MS: Final = 60_000
"""A clock that is ahead by less is not reported."""


class TreeProblem(NamedTuple):
    """Something that a person has to act on, and how."""

    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.problem}: {self.remedy}"


@dataclass(frozen=True, slots=True)
class TreeStatus:
    """A tree as the store shows it.

    host: its name in URLs. epoch: that of the newest segment, 0 if nobody has served the tree. claimed: the
    highest epoch that a server has granted; above `epoch` while a gateway takes over. grows: whether the
    chain grew while it was watched. served_at: where the newest gateway listens. sign_ms: the last time that
    a gateway wrote, in its clock, 0 if none did. newest_ms: the newest time of a file. max_bytes: 0 without
    `--max-bytes`. unproved: what cannot be read now, and why; otherwise empty.
    """

    tree: str
    host: str
    epoch: int = 0
    claimed: int = 0
    grows: bool = False
    served_at: str = ""
    sign_ms: int = 0
    newest_ms: int = 0
    files: int = 0
    directories: int = 0
    live_bytes: int = 0
    chain_bytes: int = 0
    max_bytes: int = 0
    segments: int = 0
    unproved: str = ""

    @property
    def room_bytes(self) -> int | None:
        """How many more bytes files may have; None without a limit."""
        return room_for_files(self.max_bytes, self.live_bytes) if self.max_bytes else None

    @property
    def gateway(self) -> str:
        return server_text(self.served_at, self.epoch)

    def problems(self, now_ms: int) -> list[TreeProblem]:
        found = []
        again = "start `dos gateway`, or the program with `dos.checkpoints`"
        if not self.epoch and not self.claimed:
            found.append(TreeProblem("nobody has ever served this tree", f"check its name, or {again}"))
        elif not self.grows and self.claimed > self.epoch:
            text = f"epoch {self.claimed} was claimed, and nobody writes"
            found.append(TreeProblem(text, f"if this stays for 30 s, no gateway runs: {again}"))
        elif not self.grows:
            found.append(TreeProblem(f"nobody serves it; the last one was {self.gateway}", again))
        if self.unproved:
            found.append(TreeProblem(self.unproved, "`dos store status` names the members"))
        room, full = self.room_bytes, self.chain_bytes > self.max_bytes - deletions_bytes
        if room is not None and (full or room <= _ROOM_SHARE * (room + self.live_bytes)):
            lacks = "new files are refused" if full else f"{room} bytes are left for new files"
            used = f"{self.live_bytes} bytes in files, {self.chain_bytes} of {self.max_bytes} (--max-bytes)"
            remedy = "delete files, or start the gateways with a larger --max-bytes"
            found.append(TreeProblem(f"{lacks}: {used}", remedy))
        if self.files > tree_files_max:
            text = f"{self.files} files, and a take-over is measured up to {tree_files_max}"
            remedy = "keep fewer batches (spark.sql.streaming.minBatchesToRetain), or divide the queries"
            found.append(TreeProblem(text, f"{remedy} among several trees"))
        if self.newest_ms > now_ms + _AHEAD_MS:
            text = f"times of files stand still for {(self.newest_ms - now_ms) / 1000:.0f} s"
            remedy = "a gateway's clock was, or this one is, wrong: correct it; nothing is lost"
            found.append(TreeProblem(text, remedy))
        return found

    def as_json(self, now_ms: int) -> dict[str, Any]:
        return {
            "tree": self.tree,
            "host": self.host,
            "served": self.grows,
            "servedAt": self.served_at,
            "epoch": self.epoch,
            "claimedEpoch": self.claimed,
            "lastSignMs": self.sign_ms,
            "newestMs": self.newest_ms,
            "files": self.files,
            "directories": self.directories,
            "liveBytes": self.live_bytes,
            "chainBytes": self.chain_bytes,
            "maxBytes": self.max_bytes or None,
            "roomBytes": self.room_bytes,
            "segments": self.segments,
            "problems": [one._asdict() for one in self.problems(now_ms)],
        }


def server_text(served_at: str, epoch: int) -> str:
    return f"the gateway at {served_at or 'an unknown address'} (epoch {epoch})"
