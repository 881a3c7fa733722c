"""The steps of the model of take-over. `take_over.py` defines its state and its rules."""

from collections.abc import Iterator
from itertools import combinations

from tests.models.explore import Step
from tests.models.take_over import (
    CLOSED,
    NO_WRITER,
    OPEN,
    SETTLING,
    Chain,
    Chains,
    Rules,
    Server,
    Setup,
    State,
    put,
    step_text,
)

A = 1
NOTHING = (-1, 0)


class TakeOver:
    """The model of one setup under some rules: an `explore.Model`."""

    def __init__(self, setup: Setup, rules: Rules) -> None:
        self.setup, self.rules = setup, rules
        self.chains = Chains(setup, rules)
        self.contenders = range(2, len(setup.epochs))
        self.first = {writer: setup.owners.index(writer) for writer in range(1, len(setup.epochs))}
        self.named_alike = [
            [
                other
                for other, owner in enumerate(setup.owners)
                if other != segment
                and setup.epochs[owner] == setup.epochs[setup.owners[segment]]
                and owner != mine
            ]
            for segment, mine in enumerate(setup.owners)
        ]
        self.remember_sessions = not (
            rules.r2_claim_is_checked and rules.r3_no_late_watermark and rules.r4_sizes_after_the_claim
        )
        self._safe: set[tuple[object, ...]] = set()

    # --- the engine's side ----------------------------------------------------------------------------------

    def start(self) -> State:
        none = (0,) * len(self.setup.owners)
        start = put(none, 0, 1)
        server = Server(A, start, start, ((),) * len(self.setup.epochs), none, self._bit(A))
        return State(
            (server,) * self.setup.servers,
            put(none, 0, OPEN),
            (NOTHING,) * len(none),
            start,
            self.setup.wipes,
        )

    def canonical(self, state: State) -> State:
        return state._replace(servers=tuple(sorted(state.servers)))

    def describe(self, step: Step) -> str:
        return step_text(step)

    def loss(self, state: State) -> str:
        living = [number for number, server in enumerate(state.servers) if self._answers(server)]
        copies = sorted(state.servers[number].synced for number in living)
        key = (*copies, state.bases, state.owed)
        if key in self._safe:
            return ""
        for count in range(self.setup.claims, len(living) + 1):
            for chosen in combinations(living, count):
                answers = tuple(sorted(state.servers[number].synced for number in chosen))
                chain = self.chains.found(answers, state.bases)
                if found := self._lost(chain, state.owed):
                    who = ", ".join(str(number + 1) for number in chosen)
                    return f"a taker-over on servers {who} finds {found}"
        self._safe.add(key)
        return ""

    def _lost(self, chain: Chain, owed: tuple[int, ...]) -> str:
        if chain.missing >= 0:
            return f"a chain that names records of segment {chain.missing + 1} that nobody there has"
        for segment, (found, least) in enumerate(zip(chain.history, owed, strict=True)):
            if found < least:
                return f"{found} records of segment {segment + 1} on its chain, {least} are owed"
        return ""

    def steps(self, state: State) -> Iterator[tuple[Step, State]]:
        for number, server in enumerate(state.servers):
            if self._answers(server) and server not in state.servers[:number]:
                yield from self._claims(state, number, server)
                yield from self._appends(state, number, server)
                yield from self._fills(state, number, server)
                yield from self._disk(state, number, server)
                if self.setup.snapshots:
                    yield from self._deletes(state, number, server)
        yield from self._choices(state)
        yield from self._rolls(state)

    # --- claims and heads -----------------------------------------------------------------------------------

    def _claims(self, state: State, number: int, server: Server) -> Iterator[tuple[Step, State]]:
        epochs = self.setup.epochs
        for writer in range(1, len(epochs)):
            choosing = state.stages[self.first[writer]] == CLOSED
            answered = server.answers[writer]
            if choosing and not self.rules.r4_sizes_after_the_claim and not answered:
                yield ("look", writer, number), self._answered(state, number, server, writer, server.claim)
            elif epochs[writer] > epochs[server.claim]:
                if choosing and not answered:
                    yield ("claim", writer, number), self._answered(state, number, server, writer, writer)
                else:
                    after = server._replace(claim=writer, sessions=server.sessions | self._bit(writer))
                    yield ("claim", writer, number), self._with_server(state, number, after)

    def _answered(self, state: State, number: int, server: Server, writer: int, claim: int) -> State:
        """Answer a contender with what is synced on the server, which then holds that claim."""
        answers = (*server.answers[:writer], server.synced, *server.answers[writer + 1 :])
        sessions = server.sessions | self._bit(writer) if claim == writer else server.sessions
        return self._with_server(
            state, number, server._replace(claim=claim, answers=answers, sessions=sessions)
        )

    def _choices(self, state: State) -> Iterator[tuple[Step, State]]:
        needed = self.setup.claims - (not self.rules.r1_a_quorum_of_claims)
        for writer in self.contenders:
            segment = self.first[writer]
            if state.stages[segment] != CLOSED:
                continue
            answers = [
                server.answers[writer]
                for server in state.servers
                if server.answers[writer]
                and (self.rules.r4_sizes_after_the_claim or server.sessions & self._bit(writer))
            ]
            if len(answers) < needed:
                continue
            chain = self.chains.found(tuple(sorted(answers)), state.bases)
            if chain.missing < 0 and 0 <= chain.head < segment:
                bases = (*state.bases[:segment], (chain.head, chain.length), *state.bases[segment + 1 :])
                yield (
                    ("choose", writer, chain.length, chain.head),
                    self._chosen(state, writer, segment, bases),
                )

    def _chosen(self, state: State, writer: int, segment: int, bases: tuple[tuple[int, int], ...]) -> State:
        """Choose the head. A server whose answer showed the whole chain counts as settled."""
        spans = self.chains.below(segment, bases)
        servers = []
        for server in state.servers:
            answer = server.answers[writer]
            whole = int(bool(answer) and all(answer[below] >= length for below, length in spans))
            answers = (*server.answers[:writer], (), *server.answers[writer + 1 :])
            servers.append(server._replace(answers=answers, acked=put(server.acked, segment, whole)))
        stages = put(state.stages, segment, SETTLING)
        return self._normalized(servers, stages, bases, state.owed, state.wipes)

    # --- bytes ----------------------------------------------------------------------------------------------

    def _appends(self, state: State, number: int, server: Server) -> Iterator[tuple[Step, State]]:
        for segment, stage in enumerate(state.stages):
            writer = self.setup.owners[segment]
            if (
                stage == OPEN
                and self._serves(server, writer)
                and server.accepted[segment] < self._limit(state, segment)
                and not any(server.accepted[other] for other in self.named_alike[segment])
            ):
                step = ("append", writer, segment, server.accepted[segment] + 1, number)
                yield step, self._with_server(state, number, self._written(server, segment))

    def _limit(self, state: State, segment: int) -> int:
        """Return how many records of a segment its writer can have sent."""
        limit = self.setup.sizes[segment]
        owners = self.setup.owners
        rolled = segment + 1
        if rolled < len(owners) and owners[rolled] == owners[segment] and state.stages[rolled] != CLOSED:
            limit = state.bases[rolled][1]
        if self.rules.r8_silent_until_the_start and not state.owed[segment]:
            limit = min(limit, 1)
        if self.setup.manifest and self.rules.r9_one_record_at_a_time:
            limit = min(limit, state.owed[segment] + 1)
        return limit

    def _fills(self, state: State, number: int, server: Server) -> Iterator[tuple[Step, State]]:
        """The holder of the claim copies what is below its segment to this server."""
        writer = server.claim
        if writer in (NO_WRITER, A):
            return
        segment = self.first[writer]
        if state.stages[segment] == CLOSED or self.chains.finished(segment, state.owed[segment]):
            return
        for below, length in self.chains.below(segment, state.bases):
            has = server.accepted[below]
            if has < length and any(
                other.synced[below] > has and self._answers(other) for other in state.servers
            ):
                step = ("fill", writer, below, has + 1, number)
                yield step, self._with_server(state, number, self._written(server, below))

    def _written(self, server: Server, segment: int) -> Server:
        size = server.accepted[segment] + 1
        accepted = put(server.accepted, segment, size)
        synced = server.synced if self.setup.sync_apart else put(server.synced, segment, size)
        return server._replace(accepted=accepted, synced=synced)

    def _disk(self, state: State, number: int, server: Server) -> Iterator[tuple[Step, State]]:
        for segment, size in enumerate(server.synced):
            if size < server.accepted[segment]:
                after = server._replace(synced=put(server.synced, segment, size + 1))
                if not self.rules.r3_no_late_watermark and server.sessions & self._bit(
                    self.setup.owners[segment]
                ):
                    after = after._replace(acked=put(after.acked, segment, size + 1))
                yield ("sync", segment, number, size + 1), self._with_server(state, number, after)
        forgets = not self.rules.r2_claim_is_synced and server.claim != A
        if forgets or server.synced != server.accepted:
            claim = A if forgets else server.claim
            after = server._replace(accepted=server.synced, claim=claim, sessions=0)
            yield ("crash", number), self._with_server(state, number, after)
        if state.wipes and not server.wiped:
            none = (0,) * len(server.synced)
            after = server._replace(claim=NO_WRITER, synced=none, accepted=none, sessions=0, wiped=True)
            yield ("wipe", number), self._with_server(state._replace(wipes=state.wipes - 1), number, after)

    def _rolls(self, state: State) -> Iterator[tuple[Step, State]]:
        """A writer continues in a new segment of its epoch."""
        owners = self.setup.owners
        for segment in range(1, len(owners)):
            below = segment - 1
            if (
                owners[segment] != owners[below]
                or state.stages[below] != OPEN
                or state.stages[segment] != CLOSED
            ):
                continue
            length = max(server.accepted[below] for server in state.servers)
            if length < 2 or (self.rules.r7_settle_before_rolling and length > state.owed[below]):
                continue
            bases = (*state.bases[:segment], (below, length), *state.bases[segment + 1 :])
            stages = put(state.stages, segment, OPEN)
            step = ("roll", owners[segment], segment, length)
            yield step, self._normalized(list(state.servers), stages, bases, state.owed, state.wipes)

    def _deletes(self, state: State, number: int, server: Server) -> Iterator[tuple[Step, State]]:
        """The holder of the claim deletes what its snapshot replaces."""
        for segment in range(1, len(state.stages)):
            enough = 2 if self.rules.r14_delete_after_the_snapshot else 1
            if (
                state.stages[segment] != OPEN
                or server.claim != self.setup.owners[segment]
                or state.owed[segment] < enough
            ):
                continue
            for below, _ in self.chains.history(*state.bases[segment], state.bases):
                if server.accepted[below]:
                    synced, accepted = put(server.synced, below, 0), put(server.accepted, below, 0)
                    after = server._replace(synced=synced, accepted=accepted)
                    yield ("delete", server.claim, below, number), self._with_server(state, number, after)

    # --- derived facts -------------------------------------------------------------------------------

    def _answers(self, server: Server) -> bool:
        """Return whether a server counts (R4)."""
        return not (server.wiped and self.rules.r4_a_wiped_server_has_not_answered)

    def _serves(self, server: Server, writer: int) -> bool:
        """Return whether a server carries out a writer's appends, and acknowledges them (R2, R3)."""
        return server.claim == writer or (
            not self.rules.r2_claim_is_checked and bool(server.sessions & self._bit(writer))
        )

    def _bit(self, writer: int) -> int:
        return 1 << writer if self.remember_sessions else 0

    def _with_server(self, state: State, number: int, server: Server) -> State:
        servers = list(state.servers)
        servers[number] = server
        return self._normalized(servers, state.stages, state.bases, state.owed, state.wipes)

    def _normalized(
        self,
        servers: list[Server],
        stages: tuple[int, ...],
        bases: tuple[tuple[int, int], ...],
        owed: tuple[int, ...],
        wipes: int,
    ) -> State:
        """Return the state after a step with its immediate consequences. Drop what no later step needs."""
        for segment, stage in enumerate(stages):
            if stage == SETTLING and self._settled(servers, segment, bases):
                stages = put(stages, segment, OPEN)
                if not self.rules.r8_silent_until_the_start:
                    owed = self._owe(owed, *bases[segment], bases)
        for segment in reversed(range(len(stages))):  # what is owed of a segment is owed of all below it
            if stages[segment] == OPEN:
                if owed[segment] < self.setup.sizes[segment]:
                    owed = self._acknowledge(servers, segment, bases, owed)
                else:
                    self._forget(servers, segment)
        if self.setup.manifest:
            owed = self._show(servers, bases, owed)
        return State(tuple(servers), stages, bases, owed, wipes)

    def _settled(self, servers: list[Server], segment: int, bases: tuple[tuple[int, int], ...]) -> bool:
        """Return whether all below is synced on a quorum, as far as the writer knows (R7). If so, forget the
        acks."""
        writer, spans = self.setup.owners[segment], self.chains.below(segment, bases)
        count = 0
        for number, server in enumerate(servers):
            if not server.acked[segment] and self._serves(server, writer):
                synced = server.synced
                if all(synced[below] >= length for below, length in spans):
                    server = servers[number] = server._replace(acked=put(server.acked, segment, 1))
            count += server.acked[segment]
        if count < self.setup.acks and self.rules.r7_settle_before_opening:
            return False
        self._forget(servers, segment)
        return True

    def _forget(self, servers: list[Server], segment: int) -> None:
        """Forget the acks of a segment: they are no longer needed."""
        for number, server in enumerate(servers):
            if server.acked[segment]:
                servers[number] = server._replace(acked=put(server.acked, segment, 0))

    def _acknowledge(
        self, servers: list[Server], segment: int, bases: tuple[tuple[int, int], ...], owed: tuple[int, ...]
    ) -> tuple[int, ...]:
        """What was acknowledged to its writer is owed, with everything below it (R3, R8)."""
        writer, done = self.setup.owners[segment], owed[segment]
        acked = []
        for server in servers:
            size = server.acked[segment]
            if server.synced[segment] > size and self._serves(server, writer):
                size = server.synced[segment]
            acked.append(size)
        if max(acked) <= done:
            self._forget(servers, segment)
            return owed
        quorum = sorted(acked, reverse=True)[self.setup.acks - 1]
        if quorum > done:
            owed = self._owe(owed, segment, quorum, bases)
            done = quorum
        for number, size in enumerate(acked):
            useful = size if size > done else 0
            if servers[number].acked[segment] != useful:
                servers[number] = servers[number]._replace(acked=put(servers[number].acked, segment, useful))
        return owed

    def _show(
        self, servers: list[Server], bases: tuple[tuple[int, int], ...], owed: tuple[int, ...]
    ) -> tuple[int, ...]:
        """A reader that asks one server takes all but the last record of its newest segment for committed
        (R10)."""
        for server in servers:
            for segment in reversed(range(len(owed))):
                if server.synced[segment] >= 2:
                    owed = self._owe(owed, segment, server.synced[segment] - 1, bases)
                    break
        return owed

    def _owe(
        self, owed: tuple[int, ...], segment: int, length: int, bases: tuple[tuple[int, int], ...]
    ) -> tuple[int, ...]:
        for below, size in self.chains.history(segment, length, bases):
            if size > owed[below]:
                owed = put(owed, below, size)
        return owed
