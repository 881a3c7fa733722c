"""The steps of the model of replacement. `replacement.py` defines its state and its rules."""

from collections.abc import Iterator
from itertools import combinations

from tests.models.explore import Step
from tests.models.replacement import (
    CLOSED,
    FIRST,
    OPEN,
    SECOND,
    SETTLING,
    B,
    D,
    Quorums,
    ReplacementState,
    Server,
    begin,
    step_text,
)


class Replacement(Quorums):
    """The model. See `explore.Model`."""

    def start(self) -> ReplacementState:
        return begin(self.setup)

    def canonical(self, state: ReplacementState) -> ReplacementState:
        if not self.layout.alike:
            return state
        first, second, *others = state.servers
        return state if first <= second else state._replace(servers=(second, first, *others))

    def describe(self, step: Step) -> str:
        return step_text(step)

    # --- steps ----------------------------------------------------------------------------------------------

    def steps(self, state: ReplacementState) -> Iterator[tuple[Step, ReplacementState]]:
        yield from self._tool(state)
        for one, server in enumerate(state.servers):
            if server.wiped or (self.layout.alike and server in state.servers[:one] and one == B):
                continue
            yield from self._claims(state, one, server)
            yield from self._bytes(state, one, server)
            if state.wipes:
                gone = Server(
                    0, 0, (0, 0), (0, 0), (False, False), server.acked, server.held, server.answer, True
                )
                yield ("wipe", one), self._with_server(state._replace(wipes=state.wipes - 1), one, gone)
        yield from self._writers(state)

    def _tool(self, state: ReplacementState) -> Iterator[tuple[Step, ReplacementState]]:
        for generation in range(1, state.decided + 1):
            for one in self.members[generation]:
                server = state.servers[one]
                if not server.wiped and server.generation < generation:
                    yield (
                        ("install", generation, one),
                        self._with_server(state, one, server._replace(generation=generation)),
                    )
        if state.filled:
            return
        if not state.seen and (self.confirmed(state, 1) or not self.rules.fence_first):
            for seen in sorted(self._looks(state)):
                yield ("look", *seen), state._replace(seen=seen)
        if state.seen and not state.servers[D].wiped:
            yield ("fill",), self._fill(state)
        if not self.rules.fill_first and state.decided == 1:
            yield ("decide",), state._replace(decided=2)

    def _looks(self, state: ReplacementState) -> set[tuple[int, int, int]]:
        """What the tool may see: of F old members that are at generation 1, the most of each."""
        able = [
            server
            for one in self.layout.voters[1]
            if not (server := state.servers[one]).wiped
            and (server.generation == 1 or not self.rules.fence_first)
        ]
        return {
            (max(s.claim for s in some), max(s.synced[0] for s in some), max(s.synced[1] for s in some))
            for some in combinations(able, self.layout.looks if self.rules.look_at_f else 1)
        }

    def _fill(self, state: ReplacementState) -> ReplacementState:
        """d holds at least what was seen, and generation 2 is decided: nothing is gained by deciding it
        later."""
        claim, first, second = state.seen
        new = state.servers[D]
        synced = max(new.synced[0], first), max(new.synced[1], second)
        accepted = max(new.accepted[0], first), max(new.accepted[1], second)
        full = new._replace(synced=synced, accepted=accepted)
        if self.rules.carry_claims:
            full = full._replace(claim=max(new.claim, claim))
        return self._with_server(state._replace(decided=2, seen=(), filled=True), D, full)

    def _claims(
        self, state: ReplacementState, one: int, server: Server
    ) -> Iterator[tuple[Step, ReplacementState]]:
        for writer, generation in ((FIRST, state.generations[0]), (SECOND, state.generations[1])):
            if one not in self.members[generation] or not self.admits(server, generation):
                continue
            if server.live[writer - 1] or server.claim > writer:
                continue
            live = (True, server.live[1]) if writer == FIRST else (server.live[0], True)
            after = server._replace(claim=writer, live=live)
            if writer == SECOND and state.stage == CLOSED:
                first = not server.answer and one in self.layout.voters[generation]
                after = after._replace(held=True, answer=1 + server.synced[0] if first else server.answer)
            yield ("claim", writer, one), self._with_server(state, one, after)

    def _bytes(
        self, state: ReplacementState, one: int, server: Server
    ) -> Iterator[tuple[Step, ReplacementState]]:
        if server.live[0] and not server.accepted[0]:
            yield ("append", FIRST, one), self._with_server(state, one, self._written(server, 0))
        if server.live[1] and state.stage != CLOSED and server.accepted[0] < state.base:
            if any(other.synced[0] and not other.wiped for other in state.servers):
                yield ("copy", one), self._with_server(state, one, self._written(server, 0))
        elif server.live[1] and state.stage == OPEN and not server.accepted[1]:
            yield ("append", SECOND, one), self._with_server(state, one, self._written(server, 1))
        for index in (0, 1):
            if server.synced[index] < server.accepted[index]:
                yield ("sync", index + 1, one), self._with_server(state, one, self._now_synced(server, index))
        if server.synced != server.accepted:
            after = server._replace(accepted=server.synced, live=(False, False))
            yield ("crash", one), self._with_server(state, one, after)

    def _written(self, server: Server, index: int) -> Server:
        accepted = (1, server.accepted[1]) if index == 0 else (server.accepted[0], 1)
        after = server._replace(accepted=accepted)
        return after if self.setup.sync_apart else self._now_synced(after, index)

    def _now_synced(self, server: Server, index: int) -> Server:
        return server._replace(synced=(1, server.synced[1]) if index == 0 else (server.synced[0], 1))

    def _writers(self, state: ReplacementState) -> Iterator[tuple[Step, ReplacementState]]:
        for index, writer in enumerate((FIRST, SECOND)):
            for generation in range(state.generations[index] + 1, state.decided + 1):
                if self.confirmed(state, generation):
                    yield ("learn", writer, generation), self._learned(state, index, generation)
        if state.stage == CLOSED:
            held = frozenset(one for one, server in enumerate(state.servers) if server.held)
            if self.quorum(state.generations[1], held):
                yield from self._choices(state)

    def _learned(self, state: ReplacementState, index: int, generation: int) -> ReplacementState:
        """A writer continues in a newer generation: its sessions end, and their reports no longer count."""
        servers = []
        for server in state.servers:
            live = (False, server.live[1]) if index == 0 else (server.live[0], False)
            acked = (0, server.acked[1]) if index == 0 else (server.acked[0], 0)
            after = server._replace(live=live, acked=acked if self.rules.tell_again else server.acked)
            servers.append(after._replace(held=False) if index and self.rules.claim_again else after)
        generations = (generation, state.generations[1]) if index == 0 else (state.generations[0], generation)
        return self._normalized(state._replace(generations=generations), servers)

    def _choices(self, state: ReplacementState) -> Iterator[tuple[Step, ReplacementState]]:
        """B has F claims, and stands on the most that the answers told of A's segment."""
        base = max(server.answer for server in state.servers) - 1
        if base < 0:
            return
        servers = [
            server._replace(
                held=False, answer=0, acked=(server.acked[0], int(server.held and server.answer > base))
            )
            for server in state.servers
        ]
        yield ("choose", base), self._normalized(state._replace(stage=SETTLING, base=base), servers)

    # --- what follows ---------------------------------------------------------------------------------------

    def _with_server(self, state: ReplacementState, one: int, server: Server) -> ReplacementState:
        servers = list(state.servers)
        servers[one] = server
        return self._normalized(state, servers)

    def _normalized(self, state: ReplacementState, servers: list[Server]) -> ReplacementState:
        """The state after a step, with all that follows from it at once, and without what has done its
        work."""
        for one, server in enumerate(servers):
            live = (
                server.live[0] and server.claim == FIRST and self.admits(server, state.generations[0]),
                server.live[1] and server.claim == SECOND and self.admits(server, state.generations[1]),
            )
            acked = (
                max(server.acked[0], server.synced[0] if live[0] else 0),
                max(server.acked[1], self._tells_second(server, state) if live[1] else 0),
            )
            if live != server.live or acked != server.acked:
                servers[one] = server._replace(live=live, acked=acked)
        if state.stage == SETTLING and self._told_by_quorum(state, servers, 1):
            state = state._replace(stage=OPEN)
            servers = [
                server._replace(acked=(server.acked[0], server.synced[1] if server.live[1] else 0))
                for server in servers
            ]
        owed = list(state.owed)
        for index in (1, 0):
            if not owed[index] and (
                ((index == 0 or state.stage == OPEN) and self._told_by_quorum(state, servers, index))
                or self._shown(state, servers, index)
            ):
                owed[index] = 1
                if index == 1:
                    owed[0] = max(owed[0], state.base)
        for one, server in enumerate(servers):
            first, second = server.acked
            if (first and owed[0]) or (second and owed[1]):
                acked = (0 if owed[0] else first, 0 if owed[1] else second)
                servers[one] = server._replace(acked=acked)
        return state._replace(servers=tuple(servers), owed=(owed[0], owed[1]))

    def _shown(self, state: ReplacementState, servers: list[Server], index: int) -> bool:
        """Whether a reader, in any generation, takes the record for committed: a quorum holds it, under a
        claim that is still of its epoch (R10)."""
        holders = [
            (one, server)
            for one, server in enumerate(servers)
            if server.synced[index] and server.claim == index + 1
        ]
        if len(holders) < min(needed for _, needed in self.layout.sets[0]):
            return False
        for generation in range(state.decided + 1):
            asked = frozenset(one for one, server in holders if self.admits(server, generation))
            if not self.rules.readers_ask_both_sets:
                group, needed = self.layout.sets[generation][0]
                if len(asked & group) >= needed:
                    return True
            elif self.quorum(generation, asked):
                return True
        return False

    def _tells_second(self, server: Server, state: ReplacementState) -> int:
        if state.stage == SETTLING:
            return int(server.synced[0] >= state.base)
        return server.synced[1] if state.stage == OPEN else 0

    def _told_by_quorum(self, state: ReplacementState, servers: list[Server], index: int) -> bool:
        having = frozenset(one for one, server in enumerate(servers) if server.acked[index])
        return self.quorum(state.generations[index], having)
