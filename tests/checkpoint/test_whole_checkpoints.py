"""Which checkpoints read whole, and what is damaged: real chains on a store in memory."""

import random
from contextlib import suppress
from itertools import combinations, count
from typing import Any, cast

import msgspec
import pytest

from checkpoint.chains.directory_store import DirectoryStore
from checkpoint.chains.state_store import StateStore
from checkpoint.chains.steps_log import StepsLog
from checkpoint.chains.whole_checkpoints import SoundStore, _PartReader, examine, read_part
from checkpoint.core.records.lines import restored
from checkpoint.core.records.manifest import Checkpoint, WorkerCheckpoint
from checkpoint.core.region import worker_directory
from dos_client import Store
from dos_client.errors import QuorumUnavailableError
from journal import ChainError, ChainState, LostBytesError, Op, Position, Record
from journal.chain import inspect_claimed
from tests.checkpoint.manifest_samples import numbered_checkpoint
from tests.journal.memory_store import MemoryClaim, MemoryStore

REGION = "r"


async def with_checkpoints() -> tuple[MemoryStore, tuple[Checkpoint, ...]]:
    """Three checkpoints of a region with one worker, each of another incarnation: state, steps and files."""
    store, kept = MemoryStore(), []
    part: WorkerCheckpoint | None = None
    for number in (1, 2, 3):
        claim = store.claim(number, directory=worker_directory(REGION, 0))
        at = None if part is None else part.state
        state = await StateStore.open(claim, version=number - 1, at=at, generation=1)
        steps = await StepsLog.open(claim, after_step=number - 1, generation=1)
        files = await DirectoryStore.open(claim, "files", at=part and part.directories["files"], generation=1)
        steps.record(number, 0, {})
        await files.append([Record(Op.WRITE, 0, (0,), (b"f%d" % number, b"x" * 40))])
        part = WorkerCheckpoint(
            state=await state.commit(number, [("count", b"y" * 60)]),
            steps=await steps.synced(number),
            directories={"files": (await files.synced(files.checkpoint(number, number, 40))).position},
        )
        kept.append(numbered_checkpoint(number, step=number, incarnation=number, workers={0: part}))
        steps.record(number + 1, 0, {})
        await steps.synced(number + 1)
        for one in (state, steps, files):
            await one.aclose()
    return store, tuple(kept)


def segments(store: MemoryStore, chain: str) -> list[str]:
    names = store.servers[0].objects[worker_directory(REGION, 0)]
    return sorted(name for name in names if name.startswith(f"{chain}."))


def spoil(
    store: MemoryStore, name: str, members: tuple[int, ...] = (1, 2, 3), *, listed: bool = True
) -> None:
    """Damage an object from its 30th byte on; `listed`: as the servers report it."""
    for member in members:
        server = store.servers[member - 1]
        if listed:
            server.damaged[name] = 30
        else:
            server.objects[worker_directory(REGION, 0)][name][-5] ^= 1


async def found(store: MemoryStore, kept: tuple[Checkpoint, ...]) -> tuple[list[int], int]:
    examination = await examine(cast("Store", store), REGION, kept)
    return [one.checkpoint for one in examination.damaged], examination.whole


@pytest.mark.trio
@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize(
    ("chain", "segment", "result"),
    [
        ("state", 2, ([3], 2)),
        ("state", 1, ([3, 2], 1)),
        ("state", 0, ([3, 2, 1], 0)),
        ("files-files", 1, ([3, 2], 1)),
        ("steps", 2, ([3], 2)),
        ("steps", 1, ([3, 2], 1)),
    ],
)
async def test_what_no_member_has_is_damaged_and_the_newest_older_one_is_found(
    chain: str, segment: int, result: tuple[list[int], int], *, listed: bool
) -> None:
    store, kept = await with_checkpoints()
    assert await found(store, kept) == ([], 3)
    spoil(store, segments(store, chain)[segment], listed=listed)
    if chain == "steps" and not listed:  # only what was recorded after the checkpoint is damaged
        result = ([3], segment + 1)
    assert await found(store, kept) == result


@pytest.mark.trio
@pytest.mark.parametrize("damaged", [(1,), (1, 2)])
async def test_what_one_member_has_is_not_damaged(damaged: tuple[int, ...]) -> None:
    store, kept = await with_checkpoints()
    spoil(store, segments(store, "state")[2], damaged)
    if len(damaged) == 1:
        assert await found(store, kept) == ([], 3)
        return
    with pytest.raises(QuorumUnavailableError, match="is damaged on m1:1, m2:1, and whole on other members"):
        await found(store, kept)


@pytest.mark.trio
async def test_a_member_that_is_unavailable_may_have_what_is_missing() -> None:
    store, kept = await with_checkpoints()
    spoil(store, segments(store, "state")[2], (1, 2))
    store.servers[2].up = False
    with pytest.raises(QuorumUnavailableError, match="these members may have what is missing; m3:1"):
        await found(store, kept)
    store.servers[2].up = True
    spoil(store, segments(store, "state")[2])
    assert await found(store, kept) == ([3], 2)


@pytest.mark.trio
async def test_damage_that_lies_on_no_chain_of_the_checkpoint_is_disregarded() -> None:
    store, kept = await with_checkpoints()
    names = {chain: segments(store, chain) for chain in ("state", "steps", "files-files")}
    spoil(store, names["state"][2])
    spoil(store, names["steps"][2])
    part = kept[1].workers[0]
    back = await read_part(cast("Store", store), REGION, 0, part, rewound=True, records=True)
    assert back == ((), {names["state"][2], names["steps"][2]})
    ahead = await read_part(cast("Store", store), REGION, 0, part, rewound=False, records=True)
    assert [one.chain for one in ahead.damage] == ["steps"], "the chain of steps may continue in it"
    assert ahead.disregarded == {names["state"][2]}


@pytest.mark.trio
async def test_a_checkpoint_whose_output_was_taken_back_is_no_candidate() -> None:
    store, kept = await with_checkpoints()
    record = restored(kept, kept[0], 4)
    last = msgspec.structs.replace(kept[2], number=5, parent=4, line=1, rewinds=record.rewinds, step=3)
    spoil(store, segments(store, "state")[2])
    assert await found(store, (*kept[:2], record, last)) == ([5], 4)


@pytest.mark.trio
async def test_planted_unavailable_members_count_as_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the second reading, for which all members must answer, damage is concluded too early."""
    original = SoundStore.__init__
    monkeypatch.setattr(SoundStore, "__init__", lambda self, store, *, of_all=False: original(self, store))
    store, kept = await with_checkpoints()
    spoil(store, segments(store, "state")[2], (1, 2))
    store.servers[2].up = False
    assert await found(store, kept) == ([3], 2), "the member that is unavailable has all of checkpoint 3"


# --- may a claim disregard damage? -----------------------------------------------------------------------


async def chains_found(claim: MemoryClaim, ends: dict[str, Position | None]) -> list[ChainState]:
    return [await inspect_claimed(claim, chain, at=at, generation=1) for chain, at in ends.items()]


async def claims_with_damage(seed: int, tries: int) -> tuple[int, int]:
    """Damage copies at random. On every quorum of members whose damage `read_part` disregards, a claim must
    find each chain as it is without damage. Returns how many claims there were, and how many disregarded any.
    """
    rng, epochs, claims, disregarding = random.Random(seed), count(100), 0, 0
    store, kept = await with_checkpoints()
    directory = worker_directory(REGION, 0)
    names = [name for chain in ("state", "steps", "files-files") for name in segments(store, chain)]
    del store.servers[2].objects[directory][segments(store, "steps")[-1]][-20:]  # acknowledged by 1 and 2
    for _ in range(tries):
        part, rewound = kept[rng.choice([1, 2])].workers[0], rng.random() < 0.5
        ends = {"state": part.state, "files-files": part.directories["files"], "steps": part.steps}
        at: dict[str, Position | None] = {**ends, **({} if rewound else {"steps": None})}  # None: at its head
        for server in store.servers:
            server.damaged = {}
        wanted = await chains_found(store.claim(next(epochs), directory=directory), at)
        everywhere = rng.sample(names, 1) if rng.random() < 0.5 else []
        for server in store.servers:
            server.damaged = dict.fromkeys([*everywhere, *rng.sample(names, rng.choice([0, 0, 1]))], 30)
        with suppress(QuorumUnavailableError):
            reading = await read_part(cast("Store", store), REGION, 0, part, rewound=rewound, records=True)
            able = [one for one in store.servers if one.damaged.keys() <= reading.disregarded]
            for pair in () if reading.damage else combinations(able, 2):
                claim = store.claim(next(epochs), directory=directory)
                answers = {one.server_id: one.entries(directory) for one in pair}
                claim.answers = {
                    member: {name: info for name, info in entries.items() if not info.corrupt}
                    for member, entries in answers.items()
                }
                found = await chains_found(claim, at)
                assert [(one.end, one.segments) for one in found] == [
                    (one.end, one.segments) for one in wanted
                ], "acknowledged bytes are not found"
                claims += 1
                disregarding += any(one.damaged for one in pair)
    return claims, disregarding


# EVIDENCE-OF: P-1, P-5
@pytest.mark.trio
@pytest.mark.parametrize("seed", range(3))
async def test_a_claim_that_disregards_damage_finds_every_chain_as_it_is(seed: int) -> None:
    claims, disregarding = await claims_with_damage(seed, 60)
    assert claims > disregarding > 10


@pytest.mark.trio
@pytest.mark.parametrize("bug", ["the head", "anything"])
async def test_damage_that_must_not_be_disregarded_is_found_to_lose_bytes(
    bug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lenient(self: Any, name: str) -> bool:
        return bug == "the head" and name in self._needed

    async def hunt() -> None:
        for seed in range(10):
            await claims_with_damage(seed, 60)

    monkeypatch.setattr(_PartReader, "_must_be_sound", lenient)
    with pytest.raises((AssertionError, LostBytesError, ChainError)):
        await hunt()
