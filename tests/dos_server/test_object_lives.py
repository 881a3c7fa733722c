"""An object's life: no turn is ever taken that the diagram of protocol.md does not have, and each is."""

import errno
import random

from dos_protocol import messages as m
from dos_server.core import vocabulary as v
from tests.support.object_lives import STARTS, STORE, TURNS, Life, World, life_of

STEPS = ("write", "sync", "sync_folder", "remove", "rename", "make_folder")


class Watched(World):
    """Notes each turn of `dir/o`, and what it is found as after a start."""

    def __init__(self, *, in_store: bool) -> None:
        self.turns: set[tuple[Life, Life]] = set()
        self.starts: set[Life] = set()
        super().__init__(in_store=in_store)

    def start(self) -> None:
        super().start()
        handle = self.core.handle

        def watched(event: v.Event, now: float) -> list[v.Effect]:
            before = self.life
            effects = handle(event, now)
            if isinstance(event, v.DirectoryLoaded):
                self.starts.add(self.life)
            elif self.life is not before:
                self.turns.add((before, self.life))
            return effects

        self.core.handle = watched  # type: ignore[method-assign]


def live(seed: int, *, in_store: bool) -> Watched:
    """Thirty things that happen to an object, one upon the other or not, with a disk that fails now and
    then."""
    rng = random.Random(seed)
    world = Watched(in_store=in_store)
    repairer = repairer_of(world)
    for _ in range(30):
        if rng.random() < 0.3:
            world.disk.fail(rng.choice(STEPS), errno.EIO, nth=rng.choice([1, 1, 2, 3]))
        state, chance = world.state, rng.random()
        if chance < 0.3:
            world.append(rng.randbytes(rng.choice([0, 5, 300])))
        elif chance < 0.4 and state is not None and state.synced and world.life is Life.SOUND:
            if rng.random() < 0.3:  # what is on its way to the disk does not get there
                world.disk.fail("sync", errno.EIO)
                world.append(b"lost")
            damage(world)
        elif chance < 0.6:
            if in_store and rng.random() < 0.7:
                world.send(repairer, world.repair(rng.randbytes(rng.choice([7, 400]))))
            else:
                world.send(world.writer, m.Delete("o"))
        elif chance < 0.65:
            world.disk.power_cut(rng) if rng.random() < 0.5 else world.disk.kill()
            world.disk.heal()
            world.start()
            world.claim()
            repairer = repairer_of(world)
        elif world.pending:
            world.finish(rng.randrange(len(world.pending)))
    world.settle()
    return world


def repairer_of(world: World) -> int:
    session = world.connect(m.Hello(store_id=STORE, generation=1) if world.in_store else m.Hello())
    world.ask(session, m.ChangeDirectory("dir"))
    return session


def damage(world: World) -> None:
    """Its synced bytes rot, and a read of them meets that, whatever else is under way."""
    state = world.state
    assert state is not None
    world.disk.heal()
    world.disk.write(world.disk.open("d/dir/o", create=False), 64, [b"\xff\xfe"])
    world.send(world.writer, m.Get("o", 0, 1))


def test_random_lives_take_the_turns_of_the_diagram_and_no_other() -> None:
    turns: set[tuple[Life, Life]] = set()
    starts: set[Life] = set()
    for seed in range(150):
        for in_store in (False, True):
            world = live(seed, in_store=in_store)
            turns |= world.turns
            starts |= world.starts
            unknown = [turn for turn in world.turns if turn[1] not in TURNS[turn[0]]]
            assert not unknown, (seed, in_store, unknown)
    shown = {(life, after) for life, row in TURNS.items() for after in row}
    assert shown - turns == set(), "turns of the diagram that were never seen"
    assert starts == set(STARTS)


def test_a_life_is_told_to_others_as_what_it_is() -> None:
    for seed in range(40):
        world = live(seed, in_store=bool(seed % 2))
        entries = {one.name: one for one in world.ask(world.writer, m.List()).entries}
        match life_of(world.state):
            case Life.ABSENT:
                assert "o" not in entries
            case Life.SOUND:
                assert (entries["o"].corrupt, entries["o"].poisoned) == (False, False)
            case Life.CORRUPT:
                assert (entries["o"].corrupt, entries["o"].poisoned) == (True, False)
            case Life.POISONED:
                entry = entries.get("o")
                assert entry is None or (entry.corrupt, entry.poisoned) == (True, True)
