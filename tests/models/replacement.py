"""The model of replacing a member by store record, with two writers at work.

Servers a, b, c are the store (N = 3, Qa = 2) at generation 0; d replaces c. At generation 1, d is joining; at
generation 2, the store is a, b, d. Writer A (epoch 1) holds the claim at generation 0 and appends. Writer B
(epoch 2) takes over at any time, in any generation. A writer may move to a confirmed generation at any time,
or never. The tool decides generation 1, reads F members of it, fills d, and decides generation 2. Once a
record is decided, it may reach any server that it names.

    two contenders at once     A and B, and the tool, take their steps in any order
    a zombie that wakes up     a writer that never changes its generation, as long as servers of that
                               generation serve it
    a participant that dies    no step is ever required; the tool may stop anywhere
    a server that restarts     a crash ends sessions and drops what is not synced (if syncs are apart)
    a wipe                     a server loses everything, once, the new member included; it counts no more
    one more take-over         in *every* state, a new writer takes over in every confirmed generation, on
                               every quorum of living servers

The promises checked in every state (P-4, P-5): the new writer finds on its chain everything that was ever
acknowledged.

What is abstracted: as in `take_over.py` (messages, late acks, readers). Each segment grows by one record; its
start adds nothing here and is not counted. A record of the store is decided once (its own log is a chain, as
`take_over.py` shows). Reading F members and filling d are two steps, and the read may be old when d is
filled.

The members of both sets, a and b, are alike: states that differ only in their names are one state.
"""

from itertools import combinations
from typing import NamedTuple

from tests.models.explore import Step

SERVERS = A, B, C, D = range(4)
OLD, NEW = frozenset({A, B, C}), frozenset({A, B, D})
ALL = frozenset(SERVERS)


class Layout(NamedTuple):
    """One kind of change. By generation, 0 to 2:

    - `sets`: the member sets, each with its quorum, for acknowledging and for taking over.
    - `voters`: the members that confirm the record by having it, and whose answers count.
    - `confirm`: how many of them must have it.

    `alike`: whether a and b are alike. `looks`: how many voters of generation 1 the tool reads.
    """

    sets: tuple[tuple[tuple[frozenset[int], int], ...], ...]
    voters: tuple[frozenset[int], ...]
    confirm: tuple[int, int, int] = (2, 2, 2)
    alike: bool = True
    looks: int = 2

    def members(self, generation: int) -> frozenset[int]:
        """Return the members that are asked in that generation."""
        return frozenset().union(*(group for group, _ in self.sets[generation]))


_AB, _ABD, _AD, _A = frozenset({A, B}), frozenset({A, B, D}), frozenset({A, D}), frozenset({A})
LAYOUTS = {
    "replace": Layout((((OLD, 2),), ((OLD, 2), (NEW, 2)), ((NEW, 2),)), (OLD, OLD, NEW)),
    "add": Layout((((_AB, 2),), ((_AB, 2), (_ABD, 3)), ((_ABD, 2),)), (_AB, _AB, _ABD)),
    "other is gone": Layout(
        (((_AB, 2),), ((_A, 1), (_AD, 2)), ((_AD, 2),)), (_AB, _A, _AD), (2, 1, 2), alike=False, looks=1
    ),
}
"""c is replaced by d; d is added to a and b; a person confirms that b is gone, and a continues with d: b may
live, and continue with those that still use generation 0 (docs/decisions/0013)."""
FIRST, SECOND = 1, 2
"""The epochs of the writers, and of their segments."""
CLOSED, SETTLING, OPEN = range(3)


class ReplacementRules(NamedTuple):
    """The rules of docs/decisions/0010, and R15 of docs/decisions/0003. Each can be switched off."""

    r15_the_set_is_in_the_record: bool = True
    """The store's record names the members; without it, a configuration that already names a, b and d."""
    both_sets: bool = True
    """While a member joins, a quorum is one of the old set and one of the new set."""
    fence_first: bool = True
    """The new member is filled only after generation 1 is confirmed, so that older sessions can acknowledge
    nothing more."""
    carry_claims: bool = True
    """The claims of the old members are copied to the new one."""
    fill_first: bool = True
    """Generation 2 is sent to no server before the new member is filled."""
    look_at_f: bool = True
    """The new member must hold the longest copy of F old members, not of one."""
    refuse_stale: bool = True
    """A server refuses sessions of a generation below its own."""
    tell_again: bool = True
    """A durability ack counts only in the generation of its session; a new claim repeats it."""
    readers_ask_both_sets: bool = True
    """For a reader, bytes are committed if a quorum of both sets holds them; without it, of the old set."""
    claim_again: bool = True
    """A claim counts only in the generation of its session; a new session claims again."""


class Server(NamedTuple):
    """A server, and what the writers know about it. Pairs are for A's and B's segment, with sizes 0 or 1."""

    generation: int
    claim: int
    synced: tuple[int, int]
    accepted: tuple[int, int]
    live: tuple[bool, bool]
    """Whether A, B have a session that holds the claim."""
    acked: tuple[int, int]
    """What it acknowledged to A, B, as long as that matters; to B, while SETTLING, all of A's segment."""
    held: bool = False
    """It took B's claim in B's generation. Until B chooses its head."""
    answer: int = 0
    """With its first claim as a voter it told B the size of A's segment, plus one. Until B chooses its
    head."""
    wiped: bool = False


class ReplacementState(NamedTuple):
    """The whole state. `seen`: (claim, A's, B's segment) that the tool read; () before, or with d filled."""

    servers: tuple[Server, ...]
    generations: tuple[int, int]
    """The generations of A and B."""
    stage: int
    """Of B's segment."""
    base: int
    """How much of A's segment is below B's."""
    decided: int
    seen: tuple[int, ...]
    filled: bool
    owed: tuple[int, int]
    """How much of A's and of B's segment must never be lost."""
    wipes: int


class ReplacementSetup(NamedTuple):
    """The first state of the model, and the possible events."""

    begin: str = "start"
    """start: A alone, nothing decided.
    taken over: B has taken over on b and c, which a slept through.
    joining: besides, generation 1 has come to a and b.
    filled early: A alone, nothing written; generation 1 has come to a and b; d is filled.
    filled: A alone; its record is on b only; generation 1 has come to a, b and d; d is filled.
    moved on: besides, the record is on c, and generation 2 has come to a and b; B is in generation 1."""
    sync_apart: bool = False
    wipes: int = 1
    change: str = "replace"
    """One of LAYOUTS. Other changes than "replace" begin at "start"."""


def begin(setup: ReplacementSetup) -> ReplacementState:
    """Return the first state of a setup: each of these can be reached from "start"."""
    at_0 = Server(0, FIRST, (0, 0), (0, 0), (True, False), (0, 0))
    new = Server(0, 0, (0, 0), (0, 0), (False, False), (0, 0))
    start = ReplacementState((at_0, at_0, at_0, new), (0, 0), CLOSED, 0, 1, (), False, (0, 0), setup.wipes)
    at_1 = at_0._replace(generation=1, live=(False, False))
    recorded = at_1._replace(synced=(1, 0), accepted=(1, 0))
    taken = at_0._replace(claim=SECOND, synced=(0, 1), accepted=(0, 1), live=(False, True))
    taken_1 = taken._replace(generation=1, live=(False, False))
    match setup.begin:
        case "taken over":
            return start._replace(servers=(at_0, taken, taken, new), stage=OPEN, owed=(0, 1))
        case "joining":
            return start._replace(servers=(at_1, taken_1, taken, new), stage=OPEN, owed=(0, 1))
        case "filled early":
            return start._replace(
                servers=(at_1, at_1, at_0, new._replace(claim=FIRST)), decided=2, filled=True
            )
        case "filled":
            return start._replace(servers=(at_1, recorded, at_0, recorded), decided=2, filled=True)
        case "moved on":
            at_2 = at_1._replace(generation=2), recorded._replace(generation=2)
            third = at_0._replace(synced=(1, 0), accepted=(1, 0))
            servers = (*at_2, third, recorded)
            return start._replace(servers=servers, generations=(0, 1), decided=2, filled=True, owed=(1, 0))
    return start


class Quorums:
    """What can be said of a state without knowing who does what."""

    def __init__(self, setup: ReplacementSetup, rules: ReplacementRules) -> None:
        self.setup, self.rules = setup, rules
        self.layout = LAYOUTS[setup.change]
        self.members = [self.layout.members(generation) for generation in range(3)]
        self._safe: set[tuple[object, ...]] = set()

    def quorum(self, generation: int, members: frozenset[int]) -> bool:
        sets = self.layout.sets[generation]
        return all(
            len(group & members) >= needed for group, needed in (sets if self.rules.both_sets else sets[:1])
        )

    def confirmed(self, state: ReplacementState, generation: int) -> bool:
        """Whether a writer may have seen enough members show that record, at one time or another."""
        voters = self.layout.voters[generation]
        shown = [one for one in voters if state.servers[one].generation >= generation]
        return sum(not state.servers[one].wiped for one in shown) >= self.layout.confirm[generation]

    def admits(self, server: Server, generation: int) -> bool:
        """Whether a server takes sessions of that generation."""
        if server.wiped:
            return False
        return server.generation == generation or (
            not self.rules.refuse_stale and server.generation > generation
        )

    def loss(self, state: ReplacementState) -> str:
        held = tuple((server.generation, server.synced, server.wiped) for server in state.servers)
        key = (held, state.base, state.owed, state.decided)
        if key in self._safe:
            return ""
        found = self._loss(state)
        if not found:
            self._safe.add(key)
        return found

    def _loss(self, state: ReplacementState) -> str:
        for generation in range(state.decided + 1):
            if not self.confirmed(state, generation):
                continue
            able = [
                one
                for one in sorted(self.members[generation])
                if not (server := state.servers[one]).wiped
                and (server.generation <= generation or not self.rules.refuse_stale)
            ]
            found = self._lost_to(state, able, generation)
            if found:
                return f"generation {generation}: {found}"
        if not self.rules.r15_the_set_is_in_the_record:
            return self._lost_to(state, [one for one in sorted(NEW) if not state.servers[one].wiped], 2)
        return ""

    def _lost_to(self, state: ReplacementState, able: list[int], generation: int) -> str:
        for count in range(1, len(able) + 1):
            for chosen in combinations(able, count):
                if self.quorum(generation, frozenset(chosen)) and (
                    found := self._missing(state, chosen, self.layout.voters[generation])
                ):
                    return f"a taker-over on {', '.join('abcd'[one] for one in chosen)} finds {found}"
        return ""

    def _missing(self, state: ReplacementState, chosen: tuple[int, ...], voters: frozenset[int]) -> str:
        """What a taker-over with these claims does not find. Only answers of voters count; bytes may come
        from any."""
        answers = [state.servers[one].synced for one in chosen if one in voters]
        first, second = max(size for size, _ in answers), max(size for _, size in answers)
        if second < state.owed[1]:
            return "no segment of B's, whose record was acknowledged"
        counted = state.base if second else first
        if counted < state.owed[0]:
            return "a chain without A's record, which was acknowledged"
        if counted > max(state.servers[one].synced[0] for one in chosen):
            return "a chain that names A's record, which nobody there has"
        return ""


def step_text(step: Step) -> str:
    """A step as a line of a story."""
    what, *numbers = step
    if what == "look":
        claim, first, second = numbers
        return f"the tool has looked at F members: claim {claim}, A's segment {first}, B's {second}"
    if STORIES[what][1] and numbers:
        numbers[-1] = "abcd"[numbers[-1]]
    return STORIES[what][0].format(*numbers).replace("writer 1", "A").replace("writer 2", "B")


STORIES = {
    "install": ("generation {0} comes to server {1}", True),
    "fill": ("the tool has filled d with what it saw, and decides generation 2", False),
    "decide": ("generation 2 is decided", False),
    "wipe": ("server {0} loses its disk", True),
    "claim": ("writer {0} claims server {1}", True),
    "append": ("writer {0}'s record is written on server {1}", True),
    "copy": ("B copies A's record to server {0}", True),
    "sync": ("server {1} syncs the record of writer {0}", True),
    "crash": ("server {0} crashes and comes back", True),
    "learn": ("writer {0} continues in generation {1}", False),
    "choose": ("B has F claims, and stands on {0} records of A", False),
}
