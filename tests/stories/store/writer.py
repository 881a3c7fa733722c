"""A writer that is controlled by the story, and reports the results.

Taking over, appending and rolling are the journal's own coroutines, on the simulator's claim.

A step begins an operation; `waits_for` is what it waits for, and its result is printed when it arrives.
"""

from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from dos_client.core.agreement import DirectoryView
from dos_protocol.errors import DosError, FencedError
from dos_protocol.store_record import claims_needed
from journal import ChainState, ChainWriter, Op, Position, Record, take_over
from journal.core.chain import parse_segment_name
from journal.ports import ClaimPort, StorePort
from tests.sim.engine.environment import Process, Signal
from tests.sim.store.claim import SimClaim
from tests.sim.store.clients import CHAIN, Stores, records_of
from tests.sim.store.member import Link
from tests.sim.store.sim_store import SimStore
from tests.stories.store.copies import Book, in_words, listed, short, words_of
from tests.stories.words import WrongStepError

ANSWERS_WAIT_S = 1.0
MOMENT_S = 0.05


async def names_of(reader: ClaimPort | StorePort, state: ChainState, directory: str | None) -> list[str]:
    """Return the names of the records of a chain."""
    return [record.strings[0].decode() for record in await records_of(reader, state, directory)]


class StoryClaim(SimClaim):
    """A claim that tells when it is lost, and knows where starts end."""

    tell: Callable[[str], None]
    book: Book

    def on_append(self, name: str, offset: int, data: bytes) -> None:
        if offset == 0:
            self.book.wrote(name, "", len(data))

    def member_fenced(self, link: Link, error: FencedError) -> None:
        if not self.over:
            server = link.member.address.partition(":")[0]
            self.tell(f"{server} refuses {self.process.name}: FENCED, {error.args[0]}")
        super().member_fenced(link, error)


class StoryWriter(Process):
    """One writer process. `busy`: its operation is not done; `waits_for`: what is missing, in
    words; `before_start`: what happens to it between reading the journal and opening its segment."""

    def __init__(self, name: str, stores: Stores, book: Book, tell: Callable[[str], None]) -> None:
        super().__init__(stores.network.env, name)
        self.book = book
        self.tell = tell
        self.busy = False
        self.waits_for: Callable[[], str] = lambda: ""
        self.store = SimStore(self, stores.network, stores.record)
        self.claim: StoryClaim | None = None
        self._network = stores.network
        self._addresses = {
            member.server_id: member.address.partition(":")[0] for member in stores.record.members
        }
        self._chain: ChainWriter | None = None
        self._one_at_a_time = False
        self._numbers = 0
        self._pending: list[tuple[str, Position]] = []
        self._appended = Signal()
        self.before_start: Callable[[], None] = lambda: None

    # Orders

    def take_over(self, directory: str, *, one_at_a_time: bool) -> None:
        """Claim, take over, open; it continues to wait when the step is over."""
        self._one_at_a_time = one_at_a_time
        self._begin(self._take_over(directory))

    def append(self, count: int, size: int) -> None:
        """Append so many records of that many bytes, and wait until they are acknowledged."""
        self._begin(self._append(self._opened(), count, size))

    # How it does it

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        if self.busy:
            work.close()
            raise WrongStepError(f"{self.name} is still busy: it waits for {self.waits_for()}")
        if not self.alive:
            work.close()
            raise WrongStepError(f"{self.name} is dead")
        self.busy = True
        self.start("told", self._until_done(work))

    async def _until_done(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except DosError as error:
            self.tell(f"{self.name} stops: {words_of(error)}")
            if self.claim is not None:
                self.claim.close()
        finally:
            self.busy = False

    def _opened(self) -> ChainWriter:
        if self._chain is None:
            raise WrongStepError(f"{self.name} has not taken over anything")
        return self._chain

    async def _take_over(self, directory: str) -> None:
        self.waits_for = lambda: "servers that answer"
        view = await self.store.inspect(directory)
        self.store.close()
        epoch = highest_epoch(view) + 1
        claim = self.claim = StoryClaim(
            self.store, self, self._network, Random(f"story/{self.name}"), directory, epoch
        )
        claim.tell, claim.book = self.tell, self.book
        self.book.calls[claim.writer_id.hex()] = self.name
        self.tell(f"{self.name} claims epoch {epoch}")
        needed = claims_needed(len(self.store.record.members), self.store.record.ack_quorum)
        self.waits_for = lambda: f"{needed} servers that grant it: {self._names(claim.answers)} so far"
        await claim.wait_granted()
        self._tell_answers(claim)
        generation = self.store.record.generation
        self.waits_for = lambda: "the journal, all of it on a quorum"
        state = await take_over(claim, CHAIN, generation=generation, wait_s=ANSWERS_WAIT_S)
        self._tell_chain(claim, state, await names_of(claim, state, None))
        await self._open(claim, state, generation)

    def _tell_answers(self, claim: StoryClaim) -> None:
        said: dict[str, list[str]] = {}
        for server, name in self._addresses.items():
            if server in claim.answers:
                said.setdefault(self.book.told(claim.answers[server]), []).append(name)
        for held, names in said.items():
            verb, they = ("grants", "it holds") if len(names) == 1 else ("grant", "they hold")
            self.tell(f"{in_words(names)} {verb} {self.name} epoch {claim.epoch}; {they} {held}")

    def _tell_chain(self, claim: StoryClaim, state: ChainState, names: list[str]) -> None:
        if state.end is None:
            self.tell(f"{self.name} finds no journal on {self._names(claim.answers)}: it begins one")
            return
        self.tell(f"{self.name} finds {listed(names)}; the journal ends at {state.end}")
        for span in state.segments:
            target = claim.targets.get(span.name)
            filled = [
                self._addresses[server]
                for server, size in (target.sizes.items() if target is not None else ())
                if size >= span.length > claim.answers.get(server, {}).get(span.name, _NOTHING).synced
            ]
            if filled:
                part = self.book.part(span.name, span.length)
                self.tell(f"{self.name} brings {part} to {in_words(sorted(filled))}")

    async def _open(self, claim: StoryClaim, state: ChainState, generation: int) -> None:
        base = state.end.size if state.end is not None else 0
        name = f"{claim.epoch}:{base}"
        self.before_start()
        self.waits_for = lambda: f"its start, {name}, on a quorum: {self._reached(claim, name)}"
        chain = self._chain = await ChainWriter.open(
            claim, CHAIN, state, generation, pipelined=not self._one_at_a_time
        )
        self._pending.clear()
        self.start("acknowledged", self._acknowledge(chain))
        self.tell(f"{self.name} opens {name}; its start is acknowledged by {self._holders(chain.segment)}")

    async def _append(self, chain: ChainWriter, count: int, size: int) -> None:
        for number in range(count):
            self._numbers += 1
            name = f"{self.name.lower()}{self._numbers}"
            end = chain.append(Record(Op.OUTPUT, strings=(name.encode(), bytes(size))))
            parsed = parse_segment_name(chain.segment)
            assert parsed is not None
            self.book.wrote(chain.segment, name, end.size - parsed.base)
            self._pending.append((name, end))
            self._appended.set()
            if self._one_at_a_time or number == count - 1:
                self.waits_for = lambda: self._not_acknowledged(chain)
                await chain.wait_synced()

    async def _acknowledge(self, chain: ChainWriter) -> None:
        """Tell what the quorum's watermark passes, and which servers have it a moment later."""
        while True:
            while not self._pending:
                await self.wait(self._appended)
            try:
                await chain.wait_synced(self._pending[0][1])
                await self.sleep(MOMENT_S)
                synced = chain.synced
            except DosError:
                return
            passed = [name for name, end in self._pending if end.size <= synced]
            self._pending = self._pending[len(passed) :]
            self.tell(f"{listed(passed)} acknowledged, at {chain.end}, by {self._holders(chain.segment)}")

    # Words

    def _names(self, servers: Any) -> str:
        names = [name for server, name in self._addresses.items() if server in servers]
        return in_words(names) if names else "none"

    def _holders(self, segment: str) -> str:
        assert self.claim is not None
        target = self.claim.targets[segment]
        return self._names([server for server, size in target.sizes.items() if size >= target.size])

    def _reached(self, claim: StoryClaim, name: str) -> str:
        for segment, target in claim.targets.items():
            if short(segment) == name:
                return self._names([server for server, size in target.sizes.items() if size >= target.size])
        return "none"

    def _not_acknowledged(self, chain: ChainWriter) -> str:
        waiting = [name for name, end in self._pending if end.size > chain.synced]
        return f"a quorum for {listed(waiting)}: {self._holders(chain.segment)} so far"


class _Nothing:
    synced = 0


_NOTHING = _Nothing()


def highest_epoch(view: DirectoryView) -> int:
    """Of claims and of segments."""
    seen = [
        parsed.epoch
        for objects in view.answers.values()
        for name in objects
        if (parsed := parse_segment_name(name)) is not None
    ]
    return max([view.epoch_seen, *seen])
