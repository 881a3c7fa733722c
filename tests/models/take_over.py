"""The model of take-over: one chain on a few servers, an old writer, contenders, crashes, a wipe.

What is modelled. Servers hold copies of segments: so many records each, some synced, some only accepted.
Writer A holds the claim everywhere and appends. B and C take over, when they like: claim servers one by one
(an answer tells what is synced there), choose the head of F answers, bring what is below it to a quorum,
open a segment, append to it.

    two contenders at once     B and C take their steps in any order; in the world "duel" both have one
                               epoch
    a zombie that wakes up     nobody ever stops: A, B and C may take any step as long as a server still
                               lets them
    a contender that tries again   is another contender, with a higher epoch
    a contender that dies      nobody ever has to take a step: from any state on, any of them may stay
                               silent
    a server that comes back   a crash drops what is not synced; the server is up again at once (being down
                               is silence)
    a wipe                     a server loses everything, once; it is never trusted again (R4)
    one more taker-over        in *every* state a fresh one is let loose on every quorum of living servers
                               (`loss`)

What is demanded in every state (P-1, P-4, P-5, P-6): on every quorum of living servers a fresh taker-over
finds a chain with all its bytes there, and on it every record that was ever acknowledged, told, or shown to
a reader.

What is abstracted, and why nothing is lost by it:

- *Messages.* An append that is under way is not kept: sending is never forbidden later than it was allowed,
  so "sent early, arrives late" is "carried out late, if the server still lets it". A second arrival is
  refused by size.
- *Answers* come at once. A writer that has not heard yet is one that has not acted yet, which it never has
  to. A late durability ack equals an immediate one: an ack only ever allows a writer to do more, and
  demands more of us.
- *A claim syncs first* in our servers; here it does not, which is worse: bytes may become durable after it
  (R3).
- *Readers* look in every state at every server, so what they are shown needs no steps of its own (R9, R10).
- *Opening* happens as soon as it is allowed; the start may be sent later, or never.
- *Bytes* within a record, damage other than a wipe, and the server's own recovery have tests of their own.

Servers are alike, so states that differ only in which server is which are one (`canonical`). What is known
to nobody and needed by nobody is forgotten (`_tidy`): watermarks that have done their work, answers that
have been used.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.models.explore import Step

NOBODY = 0
CLOSED, SETTLING, OPEN = range(3)
"""Stages of a segment: not begun; its base is chosen and is being brought to a quorum; records may be
appended."""


class Rules(NamedTuple):
    """The rules of docs/decisions/0003 that a chain needs. Each can be switched off."""

    r1_a_quorum_of_claims: bool = True
    """F servers hold the claim before the head is chosen; without it, one fewer will do."""
    r2_claim_is_synced: bool = True
    """A claim survives a crash of the server."""
    r2_claim_is_checked: bool = True
    """An append is checked against the claim when it is carried out; without it, any session continues for
    ever."""
    r3_no_late_watermark: bool = True
    """A superseded session receives nothing more; without it, it receives later acks."""
    r4_sizes_after_the_claim: bool = True
    """Sizes come with the answer to the claim; without it, from a look that was taken before."""
    r4_a_wiped_server_has_not_answered: bool = True
    """Without it, a wiped server answers, and holds nothing."""
    r5_epoch_before_length: bool = True
    """The head is the segment of the highest epoch; without it, the longest history."""
    r6_back_pointers: bool = True
    """What a segment stands on is what its start names; without it, what the offsets of segments seen
    suggest."""
    r7_settle_before_opening: bool = True
    """A taker-over opens only when all below is synced on a quorum."""
    r7_settle_before_rolling: bool = True
    """A writer continues in a new segment only when all it appended is synced on a quorum."""
    r8_silent_until_the_start: bool = True
    """What was read is acted on and told when the own start is acknowledged; without it, once it is on a
    quorum."""
    r9_one_record_at_a_time: bool = True
    """In a manifest, the next record is sent when the one before is acknowledged."""
    r14_delete_after_the_snapshot: bool = True
    """What a snapshot replaces is deleted when the snapshot's end is acknowledged; without it, when its
    start is."""


class World(NamedTuple):
    """How large, and what can happen. Segments are numbered in the order of (epoch, base): the first is
    A's."""

    owners: tuple[int, ...]
    """segment -> its writer; writers are 1, 2, .."""
    epochs: tuple[int, ...]
    """writer -> its epoch; that of nobody, 0, comes first."""
    sizes: tuple[int, ...]
    """segment -> how many records it gets at most, its start included."""
    sync_apart: bool = False
    """Accepting and syncing are two steps, and a crash may come between. Else an append is synced at once."""
    wipes: int = 0
    manifest: bool = False
    """Records are not pipelined, and readers take a record that another one follows for committed."""
    snapshots: bool = False
    """Every segment but the first begins with a snapshot of all below, finished by its second record."""
    servers: int = 3
    acks: int = 2

    @property
    def claims(self) -> int:
        """F (R1)."""
        return max(self.servers - self.acks + 1, self.acks)


class Server(NamedTuple):
    """One server, and what writers know of it. Lists are by segment; `answers` by writer."""

    claim: int
    synced: tuple[int, ...]
    accepted: tuple[int, ...]
    answers: tuple[tuple[int, ...], ...]
    """What it told a contender that has not chosen its head yet; () if it did not."""
    told: tuple[int, ...]
    """What it told the segment's writer, as long as that still matters: while SETTLING, 1 if all below is
    synced here; while OPEN, how much of it is synced here."""
    sessions: int = 0
    """Writers with a session that once held the claim, as bits. Kept only where a rule that is off needs
    it."""
    wiped: bool = False


class State(NamedTuple):
    """Everything. Lists are by segment."""

    servers: tuple[Server, ...]
    stages: tuple[int, ...]
    bases: tuple[tuple[int, int], ...]
    """What it stands on: (segment, records of it); (-1, 0): nothing, or not chosen yet."""
    owed: tuple[int, ...]
    """How many of its records must never be lost: acknowledged, told, or shown."""
    wipes: int


class Chain(NamedTuple):
    """What a taker-over finds. `history`: by segment, how many of its records lie on the chain. `missing`:
    a segment of which the chain names records that nobody asked holds; -1: none."""

    head: int
    length: int
    history: tuple[int, ...]
    missing: int


def put(items: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    """The same with one item replaced."""
    return (*items[:index], value, *items[index + 1 :])


class Chains:
    """What can be said of chains without knowing who does what. Answers are remembered."""

    def __init__(self, world: World, rules: Rules) -> None:
        self.world, self.rules = world, rules
        self._found: dict[tuple[object, ...], Chain] = {}
        self._below: dict[tuple[object, ...], tuple[tuple[int, int], ...]] = {}

    def found(self, copies: tuple[tuple[int, ...], ...], bases: tuple[tuple[int, int], ...]) -> Chain:
        """The chain that these answers give (R5, R6)."""
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
        """Whether so much of a segment has a finished snapshot: nothing below is needed then."""
        return self.world.snapshots and segment > 0 and length >= 2

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
        """What a segment stands on: the spans that a quorum must hold before it is opened (R7), the highest
        first."""
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
        """All records on which the first `length` of a segment stand, themselves included, as spans."""
        while segment >= 0:
            yield segment, length
            segment, length = bases[segment]


def words(step: Step) -> str:
    """A step as a line of a story."""
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
