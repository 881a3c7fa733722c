"""A small exhaustive model of replacing a member, with writers at work.

Servers a, b, c are the store (N=3, Qa=2) at generation 0; d replaces c: generation 1 has d joining,
generation 2 has a, b, d. Two writers: the first (epoch 1) holds its claim at generation 0 and appends; the
second (epoch 2) takes over at any time, in any generation. At most one server is wiped (Qa - 1). What
anyone does may happen late, or never.

States that differ only in what nobody can act on any more are taken together (`tidy`).

In *every* state a fresh writer is let loose, in every generation that is confirmed, on every quorum of
living servers: the chain it would find must hold everything that was acknowledged (P-4, P-5). A chain is
what takeover.md says: head is the segment of the highest epoch that any answer holds, its start names how
much of the one before it counts (R5, R6).

The rules can be switched off one by one; with any of them off the model finds the loss. Not modelled: bytes
within a record, syncing apart from writing (a record told is durable), more than one replacement.
`docs/decisions/0010` reads it.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

A, B, C, D = range(4)
SERVERS = (A, B, C, D)
OLD, NEW = frozenset({A, B, C}), frozenset({A, B, D})
SETS = {0: (OLD,), 1: (OLD, NEW), 2: (NEW,)}
"""generation -> the sets in each of which a quorum is needed"""
VOTERS = {0: OLD, 1: OLD, 2: NEW}
"""generation -> whose showing the record confirms it"""
MEMBERS = {0: OLD, 1: OLD | NEW, 2: NEW}
QA = F = CONFIRM = 2


class Rules(NamedTuple):
    """Each one is needed."""

    both_sets: bool = True
    """While a member joins, a quorum is one of the old set and one of the new set."""
    fence_first: bool = True
    """The new member is filled only after generation 1 is confirmed: older sessions can acknowledge nothing
    more."""
    carry_claims: bool = True
    """The claims of the old members are put on the new one."""
    fill_first: bool = True
    """Generation 2 is given to nobody before the new member is filled."""
    look_at_f: bool = True
    """What the new member must hold is the longest of F old members, not of one."""
    refuse_stale: bool = True
    """A server refuses sessions of a generation below its own."""
    tell_again: bool = True
    """A watermark counts only in the generation of the session that told it; a new claim tells it again."""
    records: int = 1
    """How long a segment grows, its start included. Not a rule: the size of the world."""


class Server(NamedTuple):
    """Durable state. `first`, `second`: how much of the segments of epoch 1 and 2 it holds."""

    generation: int = 0
    claim: int = 0
    first: int = 0
    second: int = 0


class Writer(NamedTuple):
    """`sessions`: servers that hold its claim on a live session. `told`: per server, the size told to be
    durable. `read`: the most of segment 1 that a voter's answer to its claim told. `base`: how much of
    segment 1 its own segment stands on; -1: not opened."""

    generation: int = 0
    sessions: frozenset[int] = frozenset()
    told: tuple[int, ...] = (0, 0, 0, 0)
    read: int = 0
    base: int = -1


class Tool(NamedTuple):
    """`seen`: (claim, first, second) of its look; `filled`: the new member holds it."""

    decided: int = 0
    seen: tuple[int, int, int] | None = None
    filled: bool = False


@dataclass(frozen=True, slots=True)
class State:
    """Everything. `acknowledged`: records of each segment that a writer was told a quorum holds."""

    servers: tuple[Server | None, ...]
    older: Writer
    newer: Writer
    tool: Tool
    acknowledged: tuple[int, int]
    wipes: int


START = State(
    servers=(Server(claim=1), Server(claim=1), Server(claim=1), Server()),
    older=Writer(sessions=OLD, base=0),
    newer=Writer(),
    tool=Tool(),
    acknowledged=(0, 0),
    wipes=1,
)


TAKEN_OVER = State(
    servers=(Server(claim=1), Server(claim=2, second=1), Server(claim=2, second=1), Server()),
    older=Writer(sessions=frozenset({A}), base=0),
    newer=Writer(sessions=frozenset({B, C}), told=(0, 1, 1, 0), base=0),
    tool=Tool(),
    acknowledged=(0, 1),
    wipes=1,
)
"""The second writer has taken over on b and c, and its start is acknowledged; a knows nothing of it."""


def joining(state: State) -> State:
    """Generation 1 has come to a and b; c has not heard of it."""
    first, second, *rest = state.servers
    assert first is not None
    assert second is not None
    servers = (first._replace(generation=1), second._replace(generation=1), *rest)
    return replace(state, servers=servers, tool=Tool(decided=1))


def filled(state: State) -> State:
    """Everybody is at generation 1, and d holds what there is; nothing is decided beyond."""
    first, second, third, _ = state.servers
    assert first is not None
    assert second is not None
    assert third is not None
    held = [server._replace(generation=1) for server in (first, second, third)]
    most = Server(1, max(s.claim for s in held), max(s.first for s in held), max(s.second for s in held))
    return replace(state, servers=(*held, most), tool=Tool(decided=1, filled=True))


def filled_early(state: State) -> State:
    """d was filled at once, before anyone had heard of generation 1: only `fence_first` forbids it."""
    *others, _ = state.servers
    held = [server for server in others if server is not None]
    most = Server(0, max(s.claim for s in held), max(s.first for s in held), max(s.second for s in held))
    return replace(state, servers=(*others, most), tool=Tool(decided=1, filled=True))


def quorum(rules: Rules, generation: int, members: frozenset[int], needed: int) -> bool:
    sets = SETS[generation] if rules.both_sets else (VOTERS[generation],)
    return all(len(group & members) >= needed for group in sets)


def confirmed(state: State, generation: int) -> bool:
    shown = [
        one
        for one in VOTERS[generation]
        if (s := state.servers[one]) is not None and s.generation == generation
    ]
    return len(shown) >= CONFIRM


def next_states(state: State, rules: Rules) -> Iterator[tuple[str, State]]:
    yield from tool_steps(state, rules)
    yield from writer_steps(state, rules, 1)
    yield from writer_steps(state, rules, 2)
    if state.wipes:
        for one in SERVERS:
            if state.servers[one] is not None:
                gone = put(state, one, None)
                yield f"wipe {one}", replace(gone, wipes=0)


def put(state: State, one: int, server: Server | None) -> State:
    servers = (*state.servers[:one], server, *state.servers[one + 1 :])
    return replace(state, servers=servers)


def tool_steps(state: State, rules: Rules) -> Iterator[tuple[str, State]]:
    tool = state.tool
    if tool.decided == 0:
        yield "decide 1", replace(state, tool=tool._replace(decided=1))
    if tool.decided == 1 and (tool.filled or not rules.fill_first):
        yield "decide 2", replace(state, tool=tool._replace(decided=2))
    for generation in range(1, tool.decided + 1):
        for one in MEMBERS[generation]:
            server = state.servers[one]
            if server is not None and server.generation < generation:
                yield (
                    f"install {generation} on {one}",
                    put(state, one, server._replace(generation=generation)),
                )
    if (
        tool.decided >= 1
        and tool.seen is None
        and not tool.filled
        and (confirmed(state, 1) or not rules.fence_first)
    ):
        for seen in sorted(looks(state, rules)):
            yield f"look {seen}", replace(state, tool=tool._replace(seen=seen))
    new = state.servers[D]
    if tool.seen is not None and not tool.filled and new is not None:
        claim, first, second = tool.seen
        full = new._replace(
            claim=max(new.claim, claim) if rules.carry_claims else new.claim,
            first=max(new.first, first),
            second=max(new.second, second),
        )
        yield "fill", replace(put(state, D, full), tool=tool._replace(filled=True))


def looks(state: State, rules: Rules) -> set[tuple[int, int, int]]:
    """What the tool may see: of F old members that have the new generation, the most of each."""
    able = [
        server
        for one in OLD
        if (server := state.servers[one]) is not None and (server.generation == 1 or not rules.fence_first)
    ]
    count = F if rules.look_at_f else 1
    return {
        (max(s.claim for s in some), max(s.first for s in some), max(s.second for s in some))
        for some in combinations(able, count)
    }


def writer_steps(state: State, rules: Rules, epoch: int) -> Iterator[tuple[str, State]]:
    writer = state.older if epoch == 1 else state.newer

    def with_writer(new: Writer, base: State = state) -> State:
        return acknowledge(replace(base, older=new) if epoch == 1 else replace(base, newer=new), rules)

    for generation in (1, 2):
        if generation > writer.generation and confirmed(state, generation):
            moved = writer._replace(generation=generation, sessions=frozenset())
            if rules.tell_again and writer.told != (rules.records,) * 4:
                moved = moved._replace(told=(0, 0, 0, 0))
            yield f"writer {epoch} learns {generation}", with_writer(moved)
    for one in MEMBERS[writer.generation]:
        server = state.servers[one]
        if server is None or not admits(rules, server, writer):
            continue
        if one not in writer.sessions and server.claim <= epoch:
            read = server.first if epoch == 2 and writer.base < 0 and one in VOTERS[writer.generation] else 0
            held = writer._replace(sessions=writer.sessions | {one}, read=max(writer.read, read))
            if rules.tell_again:
                held = told_with(
                    held, one, server.first if epoch == 1 else server.second if writer.base >= 0 else 0
                )
            yield (
                f"writer {epoch} claims {one}",
                with_writer(held, put(state, one, server._replace(claim=epoch))),
            )
        elif one in writer.sessions and server.claim == epoch:
            yield from session_steps(state, rules, epoch, one, server)
    if epoch == 2 and writer.base < 0:
        yield from opening(state, rules)


def admits(rules: Rules, server: Server, writer: Writer) -> bool:
    return server.generation == writer.generation or (
        not rules.refuse_stale and server.generation > writer.generation
    )


def session_steps(
    state: State, rules: Rules, epoch: int, one: int, server: Server
) -> Iterator[tuple[str, State]]:
    """An append of the next record there, told at once. Writer 2 brings segment 1 up first (catching up)."""
    writer = state.older if epoch == 1 else state.newer
    if epoch == 1:
        if server.first < rules.records:
            size = server.first + 1
            told = told_with(writer, one, size)
            after = put(state, one, server._replace(first=size))
            yield f"writer 1 appends {size} on {one}", acknowledge(replace(after, older=told), rules)
        return
    if writer.base < 0:
        return
    if server.first < writer.base:
        if any((s := state.servers[o]) is not None and s.first >= writer.base for o in SERVERS):
            yield f"writer 2 fills {one}", put(state, one, server._replace(first=writer.base))
    elif server.second < rules.records and settled(state, rules):
        size = server.second + 1
        told = told_with(writer, one, size)
        after = put(state, one, server._replace(second=size))
        yield f"writer 2 appends {size} on {one}", acknowledge(replace(after, newer=told), rules)


def told_with(writer: Writer, one: int, size: int) -> Writer:
    told = [*writer.told]
    told[one] = max(told[one], size)
    return writer._replace(told=tuple(told))


def settled(state: State, rules: Rules) -> bool:
    """R7: what the new segment stands on is synced on a quorum of claimed members; once begun it stays so."""
    writer = state.newer
    if any(s is not None and s.second for s in state.servers):
        return True
    having = frozenset(
        one
        for one in writer.sessions
        if (s := state.servers[one]) is not None
        and s.first >= writer.base
        and s.claim == 2
        and admits(rules, s, writer)
    )
    return quorum(rules, writer.generation, having, QA)


def opening(state: State, rules: Rules) -> Iterator[tuple[str, State]]:
    """Writer 2 has F claims in this generation: it chooses the head of what they told (R1, R4, R5)."""
    writer = state.newer
    if not quorum(rules, writer.generation, writer.sessions, F):
        return
    yield f"writer 2 opens at {writer.read}", replace(state, newer=writer._replace(base=writer.read))


def acknowledge(state: State, rules: Rules) -> State:
    """What the writers now know to be on a quorum, in the generation that each believes in."""
    counts = list(state.acknowledged)
    for index, writer in enumerate((state.older, state.newer)):
        for size in range(counts[index] + 1, rules.records + 1):
            having = frozenset(one for one in SERVERS if writer.told[one] >= size)
            if quorum(rules, writer.generation, having, QA):
                counts[index] = size
    return replace(state, acknowledged=(counts[0], counts[1]))


def loss(state: State, rules: Rules) -> str:
    """What a fresh writer, in some confirmed generation, on some quorum, would not find; empty: nothing."""
    for generation in (0, 1, 2):
        if generation > state.tool.decided or not confirmed(state, generation):
            continue
        able = [
            one
            for one in sorted(MEMBERS[generation])
            if (s := state.servers[one]) is not None
            and (s.generation <= generation or not rules.refuse_stale)
        ]
        for count in range(1, len(able) + 1):
            for chosen in combinations(able, count):
                members = frozenset(chosen)
                if quorum(rules, generation, members, F) and (found := missing(state, members)):
                    return f"generation {generation}, members {sorted(members)}: {found}"
    return ""


def missing(state: State, members: frozenset[int]) -> str:
    held = [s for one in members if (s := state.servers[one]) is not None]
    first, second = max(s.first for s in held), max(s.second for s in held)
    one, two = state.acknowledged
    if second < two:
        return f"{two} records of segment 2 acknowledged, {second} found"
    counted = state.newer.base if second else first
    if counted < one:
        return f"{one} records of segment 1 acknowledged, the chain has {counted}"
    return f"the chain names {counted} records of segment 1, {first} are there" if first < counted else ""


@dataclass(frozen=True, slots=True)
class Result:
    """States seen; the first loss and the steps to it, if there was one; whether all states were seen."""

    states: int
    loss: str
    story: tuple[str, ...]
    complete: bool


def tidy(state: State, rules: Rules) -> State:
    """The same state without what nobody can act on any more: dead sessions, watermarks that have done
    their work."""
    tool = state.tool._replace(seen=None) if state.tool.filled else state.tool
    older, newer = (
        writer._replace(
            sessions=frozenset(
                one
                for one in writer.sessions
                if (s := state.servers[one]) is not None and s.claim == epoch and admits(rules, s, writer)
            ),
            told=(rules.records,) * 4 if state.acknowledged[epoch - 1] == rules.records else writer.told,
            read=0 if writer.base >= 0 else writer.read,
        )
        for epoch, writer in ((1, state.older), (2, state.newer))
    )
    return replace(state, tool=tool, older=older, newer=newer)


def explore(rules: Rules, states_max: int, start: State = START) -> Result:
    """Every state reachable, breadth first, so the first story found is a shortest one."""
    start = tidy(start, rules)
    came: dict[State, tuple[State, str] | None] = {start: None}
    waiting = deque([start])
    while waiting:
        state = waiting.popleft()
        if found := loss(state, rules):
            return Result(len(came), found, story_of(came, state), complete=False)
        for step, one in next_states(state, rules):
            after = tidy(one, rules)
            if after not in came:
                if len(came) >= states_max:
                    return Result(len(came), "", (), complete=False)
                came[after] = (state, step)
                waiting.append(after)
    return Result(len(came), "", (), complete=True)


def explore_all(rules: Rules, start: State = START) -> Result:
    """`explore` to the end, remembering states by their hash only: for the long run by hand."""
    seen = {hash(tidy(start, rules))}
    waiting = deque([tidy(start, rules)])
    while waiting:
        state = waiting.popleft()
        if found := loss(state, rules):
            return Result(len(seen), found, (repr(state),), complete=False)
        for _, one in next_states(state, rules):
            after = tidy(one, rules)
            if (number := hash(after)) not in seen:
                seen.add(number)
                waiting.append(after)
    return Result(len(seen), "", (), complete=True)


def story_of(came: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    steps = []
    while (before := came[state]) is not None:
        state, step = before
        steps.append(step)
    return tuple(reversed(steps))
