"""In any order of checkpoints, savepoints, releases, trims and crashes, each retained one restores. Real
parts, on a store in memory that keeps the real one's rules: the coordinator's core, the manifest log, the
versioned state of one worker, and the trimming of a region that no driver runs. A crash can occur between
the acknowledgement of a release and the deletion, and a member can be unavailable while one is made.
"""

import random

import msgspec
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint.chains.manifest_log import ManifestView
from checkpoint.core.coordination import checkpoints
from checkpoint.core.coordination.vocabulary import (
    AppendCheckpoint,
    CheckpointWanted,
    ManifestLost,
    ManifestTaken,
    OpenManifest,
)
from checkpoint.core.links.messages import RequestCheckpoint
from checkpoint.core.records import manifest as retention
from checkpoint.core.records.lines import recorded_again
from checkpoint.core.records.manifest import SavepointNote, decode_checkpoint, encode_checkpoint
from checkpoint.errors import SavepointRefusedError
from checkpoint.maintenance.garbage import collect_stopped, garbage_of, held_by_savepoints
from checkpoint.maintenance.stopped_region import savepoint_stopped
from dos_protocol.errors import DosError
from journal.core import chain as trimming
from tests.checkpoint.manifest_samples import a_checkpoint
from tests.checkpoint.savepoint_model import REGION, Host, SavepointModel, note_of, raced


async def play(history, retain, eager=False):
    model = SavepointModel(retain, eager=eager)
    await model.crash()
    for kind, number, change, crash in history:
        driver = model.driver
        unavailable = model.store.servers[number % 3] if crash == "unavailable" else None
        how = "" if crash == "unavailable" else crash
        if unavailable is not None:
            unavailable.up = False
        if kind == "checkpoint":
            await driver.checkpoint(change, crash=how)
        elif kind == "snapshot":
            await driver.snapshot()
        elif kind == "savepoint":
            await driver.savepoint("abc"[number % 3], number, change, crash=how)
        elif kind == "drop_savepoint":
            await driver.savepoint("abc"[number % 3], number, change, on=False, crash=how)
        elif kind in ("savepoint stopped", "drop stopped"):
            await model.savepoint_stopped_region(
                "abc"[number % 3], number, how, on=kind == "savepoint stopped"
            )
        elif kind == "trim":  # nobody runs it: who ran is gone, or is fenced
            await collect_stopped(Host(model.store), REGION)
        if unavailable is not None:
            unavailable.up = True
        if how or unavailable is not None or kind in ("trim", "crash", "savepoint stopped", "drop stopped"):
            await model.crash()
        await model.check()
    await collect_stopped(Host(model.store), REGION)
    kept = await model.check()
    view = ManifestView(REGION, 0, list(kept))
    assert await garbage_of(model.store, view) == []
    return model


KINDS = [
    "checkpoint",
    "checkpoint",
    "checkpoint",
    "snapshot",
    "savepoint",
    "drop_savepoint",
    "trim",
    "crash",
    "savepoint stopped",
    "drop stopped",
]


HISTORIES = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.integers(0, 11),
        st.dictionaries(st.sampled_from("abcd"), st.none() | st.integers(0, 99), max_size=3),
        st.sampled_from(["", "", "", "voted", "appended", "committed", "unavailable"]),
    ),
    max_size=14,
)


@given(HISTORIES, st.integers(2, 3))
@settings(max_examples=60)
def test_each_retained_and_each_savepoint_restores_with_any_failures(history, retain) -> None:
    # EVIDENCE-OF: P-6
    trio.run(play, history, retain)


def at_random(seed, steps=25):
    rng = random.Random(seed)
    crashes = ["", "", "", "voted", "appended", "committed", "unavailable"]
    return [
        (rng.choice(KINDS), rng.randrange(12), {rng.choice("abcd"): number}, rng.choice(crashes))
        for number in range(steps)
    ]


@pytest.mark.trio
async def test_exactly_the_objects_that_only_a_savepoint_keeps_are_deleted_when_it_is_dropped() -> None:
    model = SavepointModel(2)
    await model.crash()
    await model.driver.checkpoint({"a": 1})
    await model.driver.savepoint("a", 0, {"a": 2})
    await model.driver.snapshot()
    await model.driver.checkpoint({"a": 3})
    await model.driver.savepoint("b", -1, {"a": 4})
    await model.driver.savepoint("c", -1, {"a": 4})
    await model.driver.snapshot()
    for number in range(3):
        await model.driver.checkpoint({"a": number})
    kept = await model.kept()
    assert kept[-1].savepoints == {"a": 1, "b": 3, "c": 4}
    left = set()
    for name, crash in (("b", ""), ("a", "committed"), ("c", "")):
        held = await held_by_savepoints(model.store, ManifestView(REGION, 0, list(await model.kept())))
        before = await model.objects()
        await model.driver.savepoint(name, 0, {"a": 9}, on=False, crash=crash)
        gone = before - await model.objects()
        only_here = {one.name for one in held[name]}
        assert bool(only_here) == (name != "b"), "what b needs, a needs, too"
        assert not only_here & left, "it was garbage before"
        assert gone == (set() if crash else only_here | left)
        left = only_here if crash else set()


def only_the_last(kept, number, retain, savepoint=()):
    del savepoint
    return (*(checkpoint.number for checkpoint in kept), number)[-retain:]


def above_the_oldest(kept, worker):
    """What the newest checkpoint needs, whatever the others do."""
    return retention.lowest(checkpoint.workers[worker].floors for checkpoint in kept[-1:])


def of_the_last_alone(kept, worker):
    """Whatever lies below the floor of the last checkpoint."""
    return {
        chain: (((0, 0), floor),) for chain, floor in retention.floors_of(kept[-1:], worker).items() if kept
    }


def with_the_last_segment(needed, floor):
    """The segment in which a position lies counts as above it."""
    return trimming.gaps_between([(begin, (end[0], begin[1])) for begin, end in needed], floor)


@pytest.mark.trio
async def test_a_savepoint_holds_nothing_of_what_is_written_after_it() -> None:
    model = SavepointModel(2)
    await model.crash()
    await model.driver.checkpoint({"a": 1})
    await model.driver.savepoint("old", 0, {"a": 2})
    held = set()
    for number in range(30):
        await model.driver.snapshot()
        await model.driver.checkpoint({"b": number})
        await model.check()
        if number == 5:
            held = await model.objects()
    assert len(await model.objects()) <= len(held), "it grows with what was written since"


@pytest.mark.parametrize(
    ("where", "what", "how"),
    [
        (checkpoints, "retained_with", only_the_last),
        (checkpoints, "floors_of", above_the_oldest),
        ("checkpoint.core.records.manifest", "floors_of", above_the_oldest),
        ("checkpoint.core.coordination.run", "floors_of", above_the_oldest),
        (checkpoints, "gaps_of", of_the_last_alone),
        ("checkpoint.core.records.manifest", "gaps_of", of_the_last_alone),
        ("checkpoint.core.coordination.run", "gaps_of", of_the_last_alone),
        ("checkpoint.core.records.manifest", "gaps_between", with_the_last_segment),
    ],
)
def test_a_rule_that_is_left_out_is_found_out(monkeypatch, where, what, how) -> None:
    where = where if isinstance(where, str) else where.__name__
    monkeypatch.setattr(f"{where}.{what}", how)
    with pytest.raises((AssertionError, DosError)):
        play_some()


def test_a_savepoint_of_a_stopped_region_that_releases_is_found_out(monkeypatch) -> None:
    def releasing(kept, incarnation, wanted, notes):
        checkpoint = recorded_again(kept, incarnation, wanted, notes)
        return msgspec.structs.replace(
            checkpoint, retained=tuple(sorted({*wanted.values(), checkpoint.number}))
        )

    monkeypatch.setattr("checkpoint.maintenance.stopped_region.recorded_again", releasing)
    with pytest.raises(AssertionError, match="nothing was released"):
        play_some()


def test_a_deletion_before_the_release_is_acknowledged_is_found_out() -> None:
    checkpoint = ("checkpoint", 0, {"a": 1}, "")
    history = [checkpoint, ("snapshot", 0, {}, ""), checkpoint, ("checkpoint", 0, {"a": 2}, "voted")]
    trio.run(play, history, 2)
    with pytest.raises((AssertionError, DosError)):
        trio.run(play, history, 2, True)


def play_some():
    for seed in range(40):
        trio.run(play, at_random(seed), 2)


# --- a region that no driver runs -------------------------------------------------------------------------


async def with_checkpoints(count, retain=2):
    model = SavepointModel(retain)
    await model.crash()
    for number in range(1, count + 1):
        await model.driver.checkpoint({"a": number})
    return model


@pytest.mark.trio
async def test_the_last_checkpoint_is_recorded_once_more_and_the_region_continues_from_it() -> None:
    model = await with_checkpoints(3)
    note = note_of("end", 0)
    assert await savepoint_stopped(Host(model.store), REGION, "end", 0, on=True, note=note) == 3
    *_, before, last = await model.kept()
    assert (last.number, last.parent, last.rolled_back_to, last.step) == (4, 3, 3, before.step)
    assert (last.workers, last.final, last.savepoints) == (before.workers, False, {"end": 3})
    assert last.retained == (2, 3, 4)
    assert last.incarnation > before.incarnation
    assert await savepoint_stopped(Host(model.store), REGION, "end", 0, on=True) == 3, (
        "the last one is three again"
    )
    assert (await model.kept())[-1] == last
    model.rows[4] = model.rows[3]
    await model.crash()
    for number in range(5, 9):
        await model.driver.checkpoint({"b": number})
    assert [checkpoint.number for checkpoint in await model.check()] == [3, 7, 8], (
        "three has its pin, four goes with its time"
    )
    assert await savepoint_stopped(Host(model.store), REGION, "end", 0, on=False) == 3
    assert [checkpoint.number for checkpoint in await model.kept()] == [3, 7, 8, 9], (
        "who drives it next releases"
    )
    model.rows[9] = model.rows[8]
    await model.crash()
    await model.driver.checkpoint({"c": 1})
    assert [checkpoint.number for checkpoint in await model.check()] == [9, 10]


@pytest.mark.trio
@pytest.mark.parametrize(
    ("savepoint", "checkpoint", "on", "why"),
    [
        ("new", 1, True, "checkpoint 1 is not retained; retained: 2, 3, 4"),
        ("new", 9, True, "checkpoint 9 is not retained"),
        ("good", 2, True, "savepoint 'good' holds checkpoint 3: drop it first"),
        ("a b", 3, True, "a savepoint's name has"),
        ("new", 0, False, r"savepoint 'new' does not exist; existing: 'good' \(checkpoint 3\)"),
    ],
)
async def test_what_cannot_be_pinned_is_refused_and_nothing_is_recorded(
    savepoint, checkpoint, on, why
) -> None:
    model = await with_checkpoints(3)
    assert await savepoint_stopped(Host(model.store), REGION, "good", 3, on=True) == 3
    before = await model.kept()
    with pytest.raises(SavepointRefusedError, match=why):
        await savepoint_stopped(Host(model.store), REGION, savepoint, checkpoint, on=on)
    assert await savepoint_stopped(Host(model.store), REGION, "good", 3, on=True) == 3, "it is pinned already"
    too_long = SavepointNote(why="x" * 501)
    with pytest.raises(SavepointRefusedError, match="at most 500 characters, got 501"):
        await savepoint_stopped(Host(model.store), REGION, "new", 0, on=True, note=too_long)
    assert await model.kept() == before


@pytest.mark.trio
async def test_a_region_without_a_checkpoint_has_none_to_pin() -> None:
    model = SavepointModel(2)
    await model.crash()
    with pytest.raises(SavepointRefusedError, match="has committed no checkpoint"):
        await savepoint_stopped(Host(model.store), REGION, "end", 0, on=True)


@pytest.mark.trio
async def test_a_driver_that_is_alive_after_all_commits_nothing_more_and_ends() -> None:
    model = await with_checkpoints(2)
    driver = model.driver
    await savepoint_stopped(Host(model.store), REGION, "end", 0, on=True)
    (order,) = [e for e in driver.play(CheckpointWanted()) if isinstance(e, RequestCheckpoint)]
    kept = await model.kept()
    late = recorded_again(kept[:-1], driver.core.run.incarnation, {})
    assert late.number == order.checkpoint == kept[-1].number, "two records of one number"
    await driver.log.append(AppendCheckpoint(late))
    assert isinstance(driver.events[-1], ManifestLost)
    await driver.log.open(OpenManifest(above=0, held=driver.core.run.incarnation))
    assert isinstance(driver.events[-1], ManifestTaken), "it is fenced"
    assert await model.kept() == kept


@pytest.mark.trio
@pytest.mark.parametrize("members", [0, 1, 2])
async def test_a_driver_that_starts_meanwhile_has_the_savepoint_or_never_will(members) -> None:
    """The record has reached so many of three members when the driver claims."""
    # EVIDENCE-OF: P-6
    model = await with_checkpoints(2)

    async def savepoint(host):
        return await savepoint_stopped(host, REGION, "end", 0, on=True, note=note_of("end", 0))

    async def begin():
        model.rows[3] = model.rows[2]
        await model.crash()

    ended = await raced(model, members, savepoint, begin)
    assert ended == 2 or members < 2
    counts = "end" in model.driver.core.checkpoints.savepoints
    assert counts or members < 2, "what was acknowledged holds"
    for number in range(4):
        await model.driver.checkpoint({"b": number})
    numbers = [checkpoint.number for checkpoint in await model.check()]
    assert (2 in numbers) == counts
    assert (await model.kept())[-1].savepoints == ({"end": 2} if counts else {})


def test_a_final_checkpoint_stays_final_and_a_checkpoint_once_more_says_whose_it_is() -> None:
    last = a_checkpoint(final=True, retained=(5,))
    again = recorded_again((last,), 9, {"end": 5})
    twice = recorded_again((last, again), 11, {})
    assert (again.final, again.rolled_back_to, twice.rolled_back_to) == (True, 5, 5)
    assert (again.retained, twice.retained) == ((5, 6), (5, 6, 7))
    for checkpoint in (again, twice):
        record = encode_checkpoint(checkpoint)
        assert decode_checkpoint(*record) == checkpoint
