"""Whether a checkpoint reads whole: every chain of every worker, up to its position. Claims nothing.

Damage is never concluded from a member that is unavailable: what looks damaged is read again while all
members answer, and otherwise `QuorumUnavailableError` is raised. A damaged segment that lies on none of the
chains of a checkpoint is *disregarded* (`PartReading`).
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final, NamedTuple

import msgspec

from checkpoint.chains.steps_log import STEPS_CHAIN
from checkpoint.core.records.lines import taken_back
from checkpoint.core.records.manifest import (
    ChainDamage,
    Checkpoint,
    CheckpointDamage,
    Examination,
    WorkerCheckpoint,
)
from checkpoint.core.records.outputs import OUTPUT_CHAIN_PREFIX
from checkpoint.core.region import worker_directory
from checkpoint.errors import CheckpointDamagedError
from dos_client import Bookmark, DirectoryView, Quorums, Store
from dos_client.errors import DamagedMembersError, MissingDataError, QuorumUnavailableError
from dos_protocol.errors import CorruptDataError, CorruptError
from dos_protocol.store_record import StoreRecord
from journal import (
    ORIGIN,
    ChainState,
    LostBytesError,
    Position,
    UnknownRecordError,
    inspect_chain,
    inspect_chain_at,
    parse_segment_name,
)
from journal.reading import read_plain_batches

_DAMAGE: Final = (CorruptDataError, CorruptError, LostBytesError, MissingDataError)


def is_damage(error: BaseException) -> bool:
    """Return whether an error suggests that stored bytes are damaged or lost. `examine` decides it."""
    if isinstance(error, CheckpointDamagedError):
        return True
    if isinstance(error, QuorumUnavailableError):  # raised from the damage that a reader met
        return isinstance(error, DamagedMembersError) or isinstance(error.__cause__, _DAMAGE)
    return isinstance(error, _DAMAGE) and not isinstance(error, UnknownRecordError)


class SoundStore:
    """A store without damaged objects, for readers of named positions. of_all: `inspect` raises
    QuorumUnavailableError unless every member answers.
    """

    def __init__(self, store: Store, *, of_all: bool = False) -> None:
        self._store = store
        self._of_all = of_all

    @property
    def record(self) -> StoreRecord:
        return self._store.record

    async def inspect(self, directory: str) -> DirectoryView:
        view = await self._store.inspect(directory, sound=True)
        missing = [one.address for one in self.record.voters if one.server_id not in view.answers]
        if self._of_all and missing:
            raise QuorumUnavailableError(
                f"{directory} seems damaged, and these members may have what is missing", missing
            )
        return view

    async def read(self, directory: str, name: str, offset: int, max_bytes: int) -> bytes:
        return await self._store.read(directory, name, offset, max_bytes)

    def stream(
        self, directory: str, name: str, offset: int = 0, end: int | None = None, seen: Bookmark | None = None
    ) -> AsyncGenerator[bytes]:
        return self._store.stream(directory, name, offset, end, seen)


class PartReading(NamedTuple):
    """What the chains of one worker's part of a checkpoint need.

    damage: the chains that do not read whole; empty if the part can be restored. disregarded: damaged
    segments on none of its chains, in which none can continue.
    """

    damage: tuple[ChainDamage, ...]
    disregarded: frozenset[str]


def chains_of(part: WorkerCheckpoint) -> dict[str, Position]:
    """Return chain -> its position in a worker's part of a checkpoint, without those that are empty."""
    chains = part.chains()
    for sink, prepared in part.sinks.items():
        if (name := f"{OUTPUT_CHAIN_PREFIX}{sink}") in part.floors:
            chains[name] = msgspec.convert(prepared, Position)
    return {name: at for name, at in chains.items() if at != ORIGIN}


async def read_part(
    store: Store, region: str, worker: int, part: WorkerCheckpoint, *, rewound: bool, records: bool
) -> PartReading:
    """Read what a restore of a worker's part reads.

    rewound: every chain continues at its position, also steps and output. records: False: only which segments
    there are. Raises QuorumUnavailableError if members are missing that may have what is not found.
    """
    for of_all in (False, True):
        reading = _PartReader(SoundStore(store, of_all=of_all), region, worker, part, rewound=rewound)
        found = await reading.read(records=records)
        if not found.damage:
            break
    return found


class _PartReader:
    """One reading of a worker's part."""

    def __init__(
        self, store: SoundStore, region: str, worker: int, part: WorkerCheckpoint, *, rewound: bool
    ) -> None:
        self._store = store
        self._directory = worker_directory(region, worker)
        self._worker = worker
        self._chains = chains_of(part)
        self._rewound = rewound
        self._needed: set[str] = set()

    async def read(self, *, records: bool) -> PartReading:
        damage, unread = [], False
        for chain, at in self._chains.items():
            try:
                await self._read_chain(chain, at, records=records)
            except _DAMAGE as error:
                if isinstance(error, UnknownRecordError):
                    raise
                unread |= isinstance(error, CorruptError)
                damage.append(ChainDamage(self._worker, chain, str(at), str(error.args[0])))
        view = await self._store.inspect(self._directory)
        sound = [
            member
            for member in view.answers
            if not any(self._must_be_sound(name) for name in view.damaged.get(member, ()))
        ]
        claimable = Quorums(self._store.record).can_take_over(sound)
        if unread and claimable:  # members that read it refused it, and list it as sound: not settled
            raise QuorumUnavailableError(f"{self._directory} was damaged while it was read; it is read again")
        if not damage and not claimable:
            damage.append(self._of_members(view))
        damaged = frozenset[str]().union(*view.damaged.values())
        return PartReading(
            tuple(_with_segments(one, damaged) for one in damage),
            frozenset(name for name in damaged if not self._must_be_sound(name)),
        )

    async def _read_chain(self, chain: str, at: Position, *, records: bool) -> None:
        state = await inspect_chain_at(self._store, self._directory, chain, at)
        self._needed |= {span.name for span in state.segments}
        if records and not chain.startswith(OUTPUT_CHAIN_PREFIX):
            await self._drain(state)
        if chain == STEPS_CHAIN and not self._rewound:  # it continues at its head
            head = await inspect_chain(self._store, self._directory, chain, proved=at)
            self._needed |= {span.name for span in head.segments}
            if records:
                await self._drain(head)

    async def _drain(self, state: ChainState) -> None:
        batches = read_plain_batches(self._store, state, directory=self._directory)
        async with aclosing(batches):
            async for _ in batches:
                pass  # the digest of each span is checked at its end

    def _must_be_sound(self, name: str) -> bool:
        """Return whether a damaged segment could be part of what is restored, or be the head of a chain."""
        segment = parse_segment_name(name)
        if segment is None or name in self._needed:
            return True
        at = self._chains.get(segment.chain)
        if at is None:
            return True
        if self._rewound or not (
            segment.chain == STEPS_CHAIN or segment.chain.startswith(OUTPUT_CHAIN_PREFIX)
        ):
            return False
        return segment.order >= (at.epoch, at.size)

    def _of_members(self, view: DirectoryView) -> ChainDamage:
        """Return why the directory cannot be claimed, although its chains read whole. Raises
        QuorumUnavailableError.
        """
        held = {name for objects in view.answers.values() for name in objects}
        damaged = {name for names in view.damaged.values() for name in names if self._must_be_sound(name)}
        name = min(damaged - held or damaged)
        on = [one.address for one in self._store.record.voters if name in view.damaged.get(one.server_id, ())]
        text = f"{name} in {self._directory} is damaged on {', '.join(on)}"
        if name in held:
            raise QuorumUnavailableError(
                f"{text}, and whole on other members, which are too few to prove that nothing is missing",
                remedy="repair or replace these members: `dos store status` names the command",
            )
        segment = parse_segment_name(name)
        chain = name if segment is None else segment.chain
        return ChainDamage(self._worker, chain, str(self._chains.get(chain, ORIGIN)), text)


def _with_segments(damage: ChainDamage, damaged: frozenset[str]) -> ChainDamage:
    """Add the segments of the chain that members report as damaged."""
    segments = {name: parse_segment_name(name) for name in sorted(damaged)}
    names = [name for name, one in segments.items() if one is not None and one.chain == damage.chain]
    if not names or names[0] in damage.why:
        return damage
    return replace(damage, why=f"{damage.why} (damaged copies: {', '.join(names)})")


async def damage_of(
    store: Store, region: str, checkpoint: Checkpoint, *, rewound: bool
) -> CheckpointDamage | None:
    """Read all that a restore reads, except rows of output logs. Return what is damaged, None if it reads
    whole. Raises as `read_part`.
    """
    name = checkpoint.chains_of(region)
    found: list[ChainDamage] = []
    for worker, part in sorted(checkpoint.workers.items()):
        found += (await read_part(store, name, worker, part, rewound=rewound, records=True)).damage
    return CheckpointDamage(checkpoint.number, tuple(found)) if found else None


async def examine(store: Store, region: str, kept: Sequence[Checkpoint]) -> Examination:
    """Read the last checkpoint, and older ones of `kept` (oldest first) until one reads whole. Raises as
    `read_part`: then nothing is known.
    """
    last = kept[-1]
    damage = await damage_of(store, region, last, rewound=last.rewound)
    if damage is None:
        return Examination((), last.number)
    found = {last.number: damage}
    for checkpoint in reversed(kept):
        if taken_back(last, checkpoint.line, checkpoint.step) is not None:
            continue
        damage = await damage_of(store, region, checkpoint, rewound=True)
        if damage is None:
            return Examination(tuple(found.values()), checkpoint.number)
        found[checkpoint.number] = damage
    return Examination(tuple(found.values()), 0)
