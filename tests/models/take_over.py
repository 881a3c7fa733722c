"""The model of take-over: one chain on a few servers, an old writer, contenders, crashes, a wipe.

Servers hold copies of segments. A copy has a number of records; some are synced, some only accepted.
Writer A holds the claim everywhere and appends. B and C take over at any time: they claim servers one by
one (an answer contains what is synced there), choose the head from F answers, settle what is below it on a
quorum, open a segment and append to it.

    two contenders at once     B and C take their steps in any order; in the setup "duel" both have one
                               epoch
    a zombie that wakes up     A, B and C may take any step as long as a server still accepts it
    a contender that tries again   is another contender, with a higher epoch
    a contender that dies      no step is ever required: from any state on, each writer may do nothing
    a server that restarts     a crash drops what is not synced; the server is up again at once (a server
                               that is down takes no steps)
    a wipe                     a server loses everything, once; it is never trusted again (R4)
    one more take-over         in *every* state, a new writer takes over on every quorum of living servers
                               (`loss`)

The promises checked in every state (P-1, P-4, P-5, P-6): on every quorum of living servers, a new writer
finds a chain with all its bytes there, and on it every record that was ever acknowledged, acted on, or
returned to a reader.

What is abstracted, and why the model still finds every loss:

- *Messages.* The model has no appends in flight. An append that was sent early and arrives late is the same
  as one that is carried out late, if the server still accepts it. A second arrival is refused by size.
- *Answers* arrive at once. A writer that has not received an answer is a writer that has not acted yet, and
  no step is ever required. A late durability ack equals an immediate one: an ack only allows a writer to do
  more, and adds records that must not be lost.
- *A claim syncs first* in our servers. Here it does not, which is the harder case: bytes may become durable
  after the claim (R3).
- *Readers* read every server in every state, so reading needs no steps of its own (R9, R10).
- *Opening* happens as soon as it is allowed; the start may be sent later, or never.
- *Bytes* within a record, damage other than a wipe, and the server's own recovery have their own tests.

Servers are alike, so states that differ only in the names of servers are one state (`canonical`).
`_normalized` drops what no later step needs: acks that had their effect, and answers that were used.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.models.explore import Step

NO_WRITER = 0
CLOSED, SETTLING, OPEN = range(3)
"""Stages of a segment: not begun; its base is chosen and is being brought to a quorum; records may be
appended."""


class Rules(NamedTuple):
    """The rules of docs/decisions/0003 that a chain needs. Each can be switched off."""

    r1_a_quorum_of_claims: bool = True
    """F servers hold the claim before the head is chosen; without it, one fewer is enough."""
    r2_claim_is_synced: bool = True
    """A claim survives a crash of the server."""
    r2_claim_is_checked: bool = True
    """An append is checked against the claim when it is carried out; without it, any session continues for
    ever."""
    r3_no_late_watermark: bool = True
    """A superseded session receives nothing more; without it, it receives later acks."""
    r4_sizes_after_the_claim: bool = True
    """Sizes are those in the answer to the claim; without it, those of an earlier read."""
    r4_a_wiped_server_has_not_answered: bool = True
    """Without it, a wiped server answers, and holds nothing."""
    r5_epoch_before_length: bool = True
    """The head is the segment of the highest epoch; without it, the longest history."""
    r6_back_pointers: bool = True
    """The start of a segment names its predecessor; without it, the offsets of the segments suggest one."""
    r7_settle_before_opening: bool = True
    """A writer that takes over opens only when all below is synced on a quorum."""
    r7_settle_before_rolling: bool = True
    """A writer continues in a new segment only when all it appended is synced on a quorum."""
    r8_silent_until_the_start: bool = True
    """A writer acts on what it read only when its own start is acknowledged; without it, once what it read
    is on a quorum."""
    r9_one_record_at_a_time: bool = True
    """In a manifest, the next record is sent when the one before is acknowledged."""
    r14_delete_after_the_snapshot: bool = True
    """What a snapshot replaces is deleted when the snapshot's end is acknowledged; without it, when its
    start is."""


class Setup(NamedTuple):
    """The size of the model, and the possible events. Segments are numbered in the order of (epoch, base);
    the first one is A's."""

    owners: tuple[int, ...]
    """segment -> its writer; writers are 1, 2, .."""
    epochs: tuple[int, ...]
    """writer -> its epoch. Index 0 is NO_WRITER, with epoch 0."""
    sizes: tuple[int, ...]
    """segment -> how many records it gets at most, its start included."""
    sync_apart: bool = False
    """Accepting and syncing are two steps, and a crash may occur between them. Otherwise an append is synced
    at once."""
    wipes: int = 0
    manifest: bool = False
    """Records are not pipelined, and for readers a record is committed if another one follows it."""
    snapshots: bool = False
    """Every segment but the first begins with a snapshot of all below, finished by its second record."""
    servers: int = 3
    acks: int = 2

    @property
    def claims(self) -> int:
        """F (R1)."""
        return max(self.servers - self.acks + 1, self.acks)


class Server(NamedTuple):
    """One server, and what writers know about it. Lists are by segment; `answers` is by writer."""

    claim: int
    synced: tuple[int, ...]
    accepted: tuple[int, ...]
    answers: tuple[tuple[int, ...], ...]
    """Its answer to a contender that has not chosen its head yet; () without one."""
    acked: tuple[int, ...]
    """What it acknowledged to the segment's writer, as long as that still matters: while SETTLING, 1 if all
    below is synced here; while OPEN, how much of it is synced here."""
    sessions: int = 0
    """Writers with a session that once held the claim, as bits. Kept only if a rule that is switched off
    needs it."""
    wiped: bool = False


class State(NamedTuple):
    """The whole state. Lists are by segment."""

    servers: tuple[Server, ...]
    stages: tuple[int, ...]
    bases: tuple[tuple[int, int], ...]
    """The end of its predecessor: (segment, records of it); (-1, 0): none, or not chosen yet."""
    owed: tuple[int, ...]
    """How many of its records must never be lost: acknowledged, acted on, or returned to a reader."""
    wipes: int


class Chain(NamedTuple):
    """The chain that a take-over finds. `history`: by segment, how many of its records are on the chain.
    `missing`: a segment of which the chain names records that no answering server holds; -1: none."""

    head: int
    length: int
    history: tuple[int, ...]
    missing: int


def put(items: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    """Return the items with one replaced."""
    return (*items[:index], value, *items[index + 1 :])


class Chains:
    """Facts about chains that follow from copies and bases alone. Results are cached."""

    def __init__(self, setup: Setup, rules: Rules) -> None:
        self.setup, self.rules = setup, rules
        self._found: dict[tuple[object, ...], Chain] = {}
        self._below: dict[tuple[object, ...], tuple[tuple[int, int], ...]] = {}

    def found(self, copies: tuple[tuple[int, ...], ...], bases: tuple[tuple[int, int], ...]) -> Chain:
        """Return the chain that follows from these answers (R5, R6)."""
        key = (copies, bases)
        chain = self._found.get(key)
        if chain is None:
            chain = self._found[key] = self._find(tuple(map(max, zip(*copies, strict=True))), bases)
        return chain

    def _find(self, longest: tuple[int, ...], bases: tuple[tuple[int, int], ...]) -> Chain:
        seen = [segment for segment, size in enumerate(longest) if size]
        history = [0] * len(longest)
        if not seen:
            return Chain(-1, 0, tuple(history), -1)
        head = seen[-1]
        if not self.rules.r5_epoch_before_length:
            head = max(seen, key=lambda one: (self._offset(one, bases) + longest[one], one))
        missing, needed = -1, True
        at, length = head, longest[head]
        while at >= 0:
            history[at] = length
            if needed and longest[at] < length:
                missing = at
            if self.finished(at, length):
                needed = False
            at, length = self._next_below(at, seen, bases)
        return Chain(head, longest[head], tuple(history), missing)

    def finished(self, segment: int, length: int) -> bool:
        """Return whether `length` records hold a finished snapshot: nothing below is needed then."""
        return self.setup.snapshots and segment > 0 and length >= 2

    def _next_below(
        self, segment: int, seen: list[int], bases: tuple[tuple[int, int], ...]
    ) -> tuple[int, int]:
        if self.rules.r6_back_pointers:
            return bases[segment]
        offset = self._offset(segment, bases)
        for below in reversed(seen):
            if below < segment and (length := offset - self._offset(below, bases)) > 0:
                return below, length
        return -1, 0

    def _offset(self, segment: int, bases: tuple[tuple[int, int], ...]) -> int:
        offset = 0
        while (base := bases[segment])[0] >= 0:
            segment, length = base
            offset += length
        return offset

    def below(self, segment: int, bases: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        """Return the spans below a segment, the highest first. A quorum must hold them first (R7)."""
        key = (segment, bases)
        spans = self._below.get(key)
        if spans is None:
            found = []
            at, length = bases[segment]
            while at >= 0:
                found.append((at, length))
                if self.finished(at, length):
                    break
                at, length = bases[at]
            spans = self._below[key] = tuple(found)
        return spans

    def history(
        self, segment: int, length: int, bases: tuple[tuple[int, int], ...]
    ) -> Iterator[tuple[int, int]]:
        """Yield the history up to the first `length` records of a segment, as spans, including them."""
        while segment >= 0:
            yield segment, length
            segment, length = bases[segment]


def step_text(step: Step) -> str:
    """Return a step as a line of a story."""
    what, *numbers = step
    return STORIES[what].format(
        *(NAMES[kind](number) for kind, number in zip(KINDS[what], numbers, strict=True))
    )


NAMES: dict[str, Callable[[int], str]] = {
    "w": lambda writer: "ABCDEF"[writer - 1],
    "s": lambda number: str(number + 1),
    "n": str,
}
"""How a number in a step is printed: as a writer, as a server or segment (counted from 1), as it is."""
STORIES = {
    "claim": "{0} claims server {1}",
    "look": "{0} looks at server {1}, without a claim",
    "choose": "{0} chooses its head: {1} records of segment {2}",
    "append": "{0}'s record {2} of segment {1} is written on server {3}",
    "sync": "server {1} syncs what it has of segment {0}, to record {2}",
    "fill": "{0} copies record {2} of segment {1} to server {3}",
    "roll": "{0} continues in segment {1}, after {2} records of the one before",
    "delete": "{0} deletes segment {1} on server {2}",
    "crash": "server {0} crashes and comes back",
    "wipe": "server {0} loses its disk",
}
KINDS = {
    "claim": "ws",
    "look": "ws",
    "choose": "wns",
    "append": "wsns",
    "sync": "ssn",
    "fill": "wsns",
    "roll": "wsn",
    "delete": "wss",
    "crash": "s",
    "wipe": "s",
}
