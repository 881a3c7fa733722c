"""The scrub: what it reads, when, and what it finds, on a disk whose cache hides rot; and what it never says.

The core and the storage are the server's own; a look may be reported as late as a test likes.
"""

import errno
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import ErrorCode
from dos_server.core import scrub_reads
from dos_server.core.object_state import ObjectState
from dos_server.core.quantities import parse_rate, parse_span
from dos_server.core.scrub import ScrubPlan
from dos_server.core.verify import VerifiedChain, VerifyGoal, beginning
from dos_server.limits import scrub_part_bytes, scrub_rest_share, scrub_yield_seconds_max
from tests.dos_server.test_fsck import dos
from tests.dos_server.test_mending import CONTENT, HELLO, World
from tests.support.core_harness import Harness

RATE = 1_000_000
PLAN = ScrubPlan(RATE, 3600.0)
LARGE = random.Random(3).randbytes(3_000_000)


def rounds_of(server: Harness) -> int:
    return sum("rounds since the start" in line for line in server.told)


def one_round(server: Harness) -> list[str]:
    """Until a round is over; what was looked at, as DIRECTORY/OBJECT, a part at a time."""
    before, seen = rounds_of(server), []
    while rounds_of(server) == before:
        server.scrub_on()
        seen += [
            f"{e.directory}/{e.name}" for e, _ in server.pending if isinstance(e, scrub_reads.ScrubRead)
        ][:1]
        server.settle()
    return seen


def rot_below_the_cache(world: World, position: int, name: str = "o") -> None:
    """A bit flips on the platters. Readers get what the cache has."""
    world.file(name).stable[position] ^= 1


def state_of(server: Harness, directory: str, name: str) -> ObjectState:
    state = server.core._tables.find(directory, name)
    assert state is not None
    return state


def test_rot_that_the_cache_hides_from_readers_is_found_quarantined_and_remembered() -> None:
    # EVIDENCE-OF: P-2, P-5
    world = World(LARGE, PLAN)
    one_round(world)
    assert not world.inspect().corrupt
    rot_below_the_cache(world, 1_500_000)
    assert world.content() == LARGE
    assert one_round(world).count("dir/o") == 2
    assert world.inspect().corrupt
    damaged_from = state_of(world, "dir", "o").corrupt_from
    assert damaged_from == 1_400_000, "the extent with the flipped bit"
    (line,) = [line for line in world.told if "damaged from" in line]
    assert "dir/o is damaged from offset 1400000 on: the payload digest does not match" in line
    answer = world.ask(world.reader(), m.Get("o", 1_400_000, 10))
    assert answer.code == ErrorCode.CORRUPT
    assert world.ask(world.reader(), m.Get("o", 0, 10)).payload == LARGE[:10]
    assert one_round(world) == [], "what is known to be damaged is not looked at"
    world.disk.kill()
    world.start()
    assert world.inspect().corrupt
    assert world.repair(world.reader(), LARGE, old=world.inspect()) == m.RepairAck("o", len(LARGE), done=True)
    one_round(world)
    assert not world.inspect().corrupt


def test_a_block_of_another_time_is_found_though_every_digest_of_it_is_right() -> None:
    # EVIDENCE-OF: P-2
    other, mine = World(bytes(100_000) + LARGE[100_000:500_000]), World(LARGE[:500_000], PLAN)
    mine.file().stable[:100_064] = other.file().stable[:100_064]
    one_round(mine)
    assert state_of(mine, "dir", "o").corrupt_from == 0


def test_a_whole_file_of_another_time_is_found_by_its_root() -> None:
    # EVIDENCE-OF: P-2
    other, mine = World(bytes(500_000)), World(LARGE[:500_000], PLAN)
    mine.file().stable[:] = other.file().stable
    one_round(mine)
    assert state_of(mine, "dir", "o").corrupt_from == 0


def test_only_what_was_synced_when_it_began_is_inspected() -> None:
    world = World(LARGE[:500_000], PLAN)
    for part in (b"x" * 1_000, b"y" * 1_000):
        content = LARGE[:500_000] if part[:1] == b"x" else LARGE[:500_000] + b"x" * 1_000
        world.send(world.writer, m.Append("o", len(content), prefix_digest(content), part))
    world.scrub_on()
    (look,) = [effect for effect, _ in world.pending if isinstance(effect, scrub_reads.ScrubRead)]
    assert look.goal == VerifyGoal(500_000, prefix_digest(LARGE[:500_000]))
    world.settle()
    one_round(world)
    assert not world.inspect().corrupt


def test_a_look_that_meets_a_file_on_its_way_out_says_nothing() -> None:
    """What a thread does and when it is heard of are two things: the file is gone, nobody knows yet."""
    server = Many(1)
    session = server.connect()
    server.ask(session, m.ChangeDirectory("d0", claim=True, epoch=1, writer_id=b"w" * 16))
    server.scrub_on()
    server.send(session, m.Delete("a"))
    (_, look), (_, removal) = server.pending
    server.pending.clear()
    gone = removal()
    look()
    server.finish()
    assert state_of(server, "d0", "a").corrupt_from is None
    assert server.told == []
    assert gone is not None
    server.event(gone)
    assert server.core._tables.find("d0", "a") is None


def damage_listed(server: Harness) -> set[str]:
    listing = server.ask(server.connect(), m.List())
    return {entry.name for entry in listing.entries if entry.corrupt}


def test_a_list_of_directories_marks_those_with_damage_until_it_is_repaired_also_after_a_restart() -> None:
    # EVIDENCE-OF: P-10
    world = World(LARGE, PLAN)
    other = world.connect(HELLO)
    world.ask(other, m.ChangeDirectory("sound"))
    world.send(other, m.Append("o", 0, 0, b"x"))
    world.settle()
    assert damage_listed(world) == set()
    rot_below_the_cache(world, 1_500_000)
    one_round(world)
    assert damage_listed(world) == {"dir"}
    world.disk.kill()
    world.start()
    assert "dir" not in world.core._tables.directories
    assert damage_listed(world) == {"dir"}
    one_round(world)
    assert "dir" not in world.core._tables.directories, "it was loaded for the scrub alone"
    assert damage_listed(world) == {"dir"}
    repairer = world.reader()
    assert isinstance(world.repair(repairer, LARGE, old=world.inspect()), m.RepairAck)
    assert damage_listed(world) == set()
    for session in list(world.heard):
        world.end(session)
    one_round(world)
    assert damage_listed(world) == set()


def test_damage_in_a_directory_that_is_not_in_memory_any_more_is_listed_until_it_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Many(2)
    folder = server.disk.root.seen["d"].seen["d1"]  # type: ignore[union-attr]
    folder.seen["a"].stable[100] ^= 1  # type: ignore[union-attr]
    one_round(server)
    assert server.core._tables.directories == {}
    assert damage_listed(server) == {"d1"}
    session = server.connect()
    server.ask(session, m.ChangeDirectory("d1", claim=True, epoch=1, writer_id=b"w" * 16))
    assert isinstance(server.ask(session, m.Delete("a")), m.Deleted)
    monkeypatch.setattr("dos_server.core.tables.directories_loaded_max", 0)
    server.end(session)
    assert server.core._tables.directories == {}
    assert damage_listed(server) == set()


def test_no_more_is_read_than_the_rate_and_a_tenth_of_the_time_allow() -> None:
    world = World(LARGE, PLAN)
    began, read = world.now, 0
    while not rounds_of(world):
        world.scrub_on()
        reads = [what for method, what in world.disk.calls if method == "read_stored"]
        assert len(reads) * scrub_part_bytes <= RATE * (world.now - began) + scrub_part_bytes
        read = len(reads)
        world.settle()
    assert read == 3
    event = scrub_reads.ScrubReadDone(
        scrub_reads.ScrubRead("dir", "o", *_nothing()), None, None, "", seconds=2.0
    )
    world.event(event)
    assert world.scrub_due == world.now + 2.0 * scrub_rest_share


def _nothing() -> tuple[VerifiedChain, VerifyGoal]:
    return beginning(1), VerifyGoal(0)


def test_it_waits_while_the_disk_is_at_work_for_clients_and_not_for_ever() -> None:
    world = World(LARGE, PLAN)
    world.scrub_on()
    world.settle()
    began, turns = world.scrub_due or 0.0, 0
    while not world.pending:
        world.scrub_on(busy=True)
        turns += 1
        assert turns < 100
    assert turns > 10
    assert world.now - began == pytest.approx(scrub_yield_seconds_max)


class Many(Harness):
    """A server with several directories of two objects each, none of them in memory."""

    def __init__(self, count: int, plan: ScrubPlan = PLAN) -> None:
        super().__init__(scrub=plan)
        session = self.connect()
        for number in range(count):
            self.ask(session, m.ChangeDirectory(f"d{number}"))
            for name in ("a", "b"):
                self.send(session, m.Append(name, 0, 0, CONTENT[:1_000]))
                self.settle()
        self.end(session)
        self.storage.stop()
        self.disk.kill()
        self.start()

    def names(self, first: int, count: int) -> list[str]:
        return [f"d{(first + one) % count}/{name}" for one in range(count) for name in ("a", "b")]


@pytest.mark.parametrize(("chance", "first"), [(0.0, 0), (0.5, 2), (0.999, 4)])
def test_a_round_sees_every_object_once_from_a_chance_directory_on_and_leaves_no_directory_in_memory(
    chance: float, first: int
) -> None:
    server = Many(5, PLAN._replace(start_fraction=chance))
    began = server.now
    assert one_round(server) == server.names(first, 5)
    assert server.core._tables.directories == {}
    assert one_round(server) == server.names(0, 5)
    assert server.now >= began + PLAN.round_seconds_min


def test_a_directory_in_use_stays_in_memory_and_a_new_one_is_seen_in_the_next_round() -> None:
    server = Many(3)
    session = server.connect()
    server.ask(session, m.ChangeDirectory("d1"))
    left = server.connect()
    server.ask(left, m.ChangeDirectory("d2"))
    server.end(left)
    one_round(server)
    assert set(server.core._tables.directories) == {"d1", "d2"}, "what others had loaded stays"
    server.ask(session, m.ChangeDirectory("new"))
    server.send(session, m.Append("o", 0, 0, b"x"))
    server.settle()
    assert one_round(server)[-1] == "new/o"


def test_the_directory_it_is_at_is_not_forgotten_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Many(3)
    monkeypatch.setattr("dos_server.core.tables.directories_loaded_max", 0)
    assert one_round(server) == server.names(0, 3)
    assert server.core._tables.directories == {}


def test_a_directory_that_took_long_to_load_is_followed_by_a_long_rest() -> None:
    server = Many(1)
    server.scrub_on()
    (load,) = server.pending
    server.pending.clear()
    began = server.now
    while server.now < began + 2.0:
        server.scrub_on()
    server.pending.append(load)
    server.settle()
    server.scrub_on()
    assert server.scrub_due == pytest.approx(server.now + (server.now - began) * scrub_rest_share)
    server.scrub_on()
    (look,) = [effect for effect, _ in server.pending]
    assert isinstance(look, scrub_reads.ScrubRead)
    server.settle()
    assert one_round(server) == ["d0/b"]


def test_without_a_rate_it_never_looks() -> None:
    world = World(LARGE)
    world.settle()
    assert world.scrub_due is None
    assert world.told == []


def test_a_disk_that_cannot_read_is_damage_and_a_lack_of_descriptors_is_not() -> None:
    world = World(LARGE, PLAN)
    world.disk.fail("read_stored", errno.EMFILE)
    one_round(world)
    assert not world.inspect().corrupt
    assert any("dir/o was not scrubbed" in line for line in world.told)
    world.disk.fail("read_stored", errno.EIO, nth=2)
    one_round(world)
    assert state_of(world, "dir", "o").corrupt_from == 1_000_000
    assert world.inspect().corrupt


def test_an_object_whose_file_is_gone_is_damaged_from_its_beginning() -> None:
    world = World(LARGE, PLAN)
    world.storage.stop()
    world.disk.kill()
    world.start()
    world.inspect()
    world.storage._files.forget("d/dir/o")
    del world.folder["o"]
    one_round(world)
    assert state_of(world, "dir", "o").corrupt_from == 0


def test_what_is_broken_poisoned_or_empty_is_passed_over() -> None:
    server = Many(2)
    server.disk.root.seen["d"].seen["d0"].seen[".claim"] = server.disk.root.seen["d"].seen["d1"].seen["a"]  # type: ignore[union-attr]
    session = server.connect()
    server.ask(session, m.ChangeDirectory("d1"))
    server.send(session, m.Append("empty", 0, 0, b""))
    server.settle()
    server.disk.fail("sync", errno.EIO)
    server.send(session, m.Append("a", 1_000, prefix_digest(CONTENT[:1_000]), b"more"))
    server.settle()
    assert one_round(server) == ["d1/b"]


class Life:
    """Two objects that are appended to, removed, made again and replaced by longer copies, while late looks
    come in. One number is a whole run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.world = World(b"", ScrubPlan(10**9, 0.0))
        self.history = {"a": b"", "b": b""}
        self.deletes: dict[str, int] = {}
        self.rotten: dict[str, int] = {}
        self.flipped: set[tuple[ObjectState, int]] = set()
        self.late = self.repairs = self.removals = 0
        self.in_store = self.rng.random() < 0.5  # where copies are repaired, and none is removed
        if not self.in_store:
            self.world.core._tables.record = None

    def others(self) -> None:
        """Everything but looks is done and told."""
        world = self.world
        while places := [
            n for n, (e, _) in enumerate(world.pending) if not isinstance(e, scrub_reads.ScrubRead)
        ]:
            world.finish(self.rng.choice(places))
        for name, number in list(self.deletes.items()):
            del self.deletes[name]
            if isinstance(world.answer(world.writer, number), m.Deleted):
                self.history[name], self.removals = b"", self.removals + 1
                self.rotten.pop(name, None)

    def append(self) -> None:
        name = self.rng.choice("ab")
        content, data = self.history[name], self.rng.randbytes(self.rng.choice([1, 700, 20_000, 70_000]))
        request = m.Append(name, len(content), prefix_digest(content), data)
        if self.world.answer(self.world.writer, self.world.send(self.world.writer, request)) is None:
            self.history[name] = content + data

    def finish(self) -> None:
        if self.world.pending:
            self.world.finish(self.rng.randrange(len(self.world.pending)))

    def scrub(self) -> None:
        self.world.scrub_on(busy=self.rng.random() < 0.2)

    def remove(self) -> None:
        self.others()
        name = self.rng.choice("ab")
        if self.history[name]:
            self.deletes[name] = self.world.send(self.world.writer, m.Delete(name))

    def repair(self) -> None:
        """A longer copy takes the place of one, while a look may be at the old one."""
        self.others()
        world, name = self.world, self.rng.choice("ab")
        state = world.core._tables.find("dir", name)
        if state is None or not state.exists or state.poisoned:
            return
        size, digest = state.claimed_size
        data = self.history[name] + self.rng.randbytes(1_000)
        repairer = world.connect(HELLO)
        world.send(repairer, m.ChangeDirectory("dir"))
        self.others()
        for start in range(0, len(data), 1 << 18):
            part = data[start : start + (1 << 18)]
            goal = (len(data), prefix_digest(data), size, digest)
            number = world.send(repairer, m.RepairChunk(name, start, *goal, overwrite=False, payload=part))
            self.finish()
            self.others()
            answer = world.answer(repairer, number)
            if not isinstance(answer, m.RepairAck):
                assert state.damaged, (self.seed, answer)  # found by this read: the copy has changed
                world.end(repairer)
                return
        self.history[name], self.repairs = data, self.repairs + 1
        self.rotten.pop(name, None)
        world.end(repairer)
        self.claim()

    def claim(self) -> None:
        world = self.world
        world.writer = world.connect(HELLO)
        claim = m.ChangeDirectory("dir", claim=True, epoch=3, writer_id=b"w" * 16)
        number = world.send(world.writer, claim)
        self.others()
        assert isinstance(world.answer(world.writer, number), m.DirectoryOpened), self.seed

    def rot(self) -> None:
        name = self.rng.choice("ab")
        state = self.world.core._tables.find("dir", name)
        if state is not None and state.synced and not state.damaged and state.changing is None:
            position = self.rng.randrange(state.synced)  # of the file: at or before that offset
            stable = self.world.file(name).stable
            bit = 1 << self.rng.randrange(8)
            if (state, position) not in self.flipped:  # the same bit twice would be no rot at all
                stable[position] ^= bit
            self.flipped.add((state, position))
            self.rotten[name] = max(position, self.rotten.get(name, 0))

    def check(self) -> None:
        directory = self.world.core._tables.directories["dir"]
        for name, state in directory.objects.items():
            if state.corrupt_from is not None:
                assert name in self.rotten, (self.seed, name, state.corrupt_from)
                assert state.corrupt_from <= self.rotten[name], (self.seed, name)

    def live(self, steps: int, *, rot: bool) -> None:
        """Looks are short here, so that there are many, and objects are small."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("dos_server.stored_reads.scrub_part_extents_max", 2)
            self._live(steps, rot=rot)

    def _live(self, steps: int, *, rot: bool) -> None:
        actions: list[Callable[[], None]] = [self.append] * 5 + [self.finish] * 8 + [self.scrub] * 6
        actions += [self.repair if self.in_store else self.remove] * 2 + [self.others] + [self.rot] * rot
        for _ in range(steps):
            self.late += any(isinstance(effect, scrub_reads.ScrubRead) for effect, _ in self.world.pending)
            self.rng.choice(actions)()
            self.check()
        self.others()
        self.world.settle()
        for _ in range(2):
            one_round(self.world)
        self.check()
        for name in self.rotten:
            assert state_of(self.world, "dir", name).corrupt_from is not None, (self.seed, name)


@given(seed=st.integers(0, 2**32))
def test_nothing_sound_is_ever_quarantined_however_late_looks_are(seed: int) -> None:
    Life(seed).live(60, rot=False)


@given(seed=st.integers(0, 2**32))
def test_all_rot_is_found_in_the_end_and_nothing_else(seed: int) -> None:
    # EVIDENCE-OF: P-5
    Life(seed).live(60, rot=True)


def test_these_lives_are_lived() -> None:
    lives = [Life(seed) for seed in range(12)]
    for life in lives:
        life.live(60, rot=True)
    assert sum(life.late for life in lives) > 100
    assert sum(life.repairs for life in lives) > 10
    assert sum(life.removals for life in lives) > 2
    assert sum(len(life.rotten) for life in lives) > 5


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("8MB/s", 8_000_000),
        ("0", 0),
        ("512KiB/s", 524_288),
        ("1.5 GB", 1_500_000_000),
        ("100", 100),
        ("7b", 7),
    ],
)
def test_rates_are_read_as_people_write_them(text: str, rate: int) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "-1MB/s", "8MB/h", "nan", "1e9", "8XB/s", "9999999999", "٣MB"])
def test_other_rates_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="for example 8MB/s"):
        parse_rate(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("24h", 86_400), ("90m", 5_400), ("0.5", 0.5), ("7d", 604_800)]
)
def test_times_are_read_as_people_write_them(text: str, seconds: float) -> None:
    assert parse_span(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1h", "1y", "inf", "1e3"])
def test_other_times_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="for example 24h"):
        parse_span(text)


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [("--scrub-rate", "fast", "for example 8MB/s"), ("--scrub-every", "soon", "for example 24h")],
)
def test_a_rate_or_time_that_is_none_is_refused(tmp_path: Path, option: str, value: str, why: str) -> None:
    refused = dos("serve", "--data", str(tmp_path / "data"), option, value)
    assert refused.returncode == 2
    assert why in refused.stderr
    assert not (tmp_path / "data").exists()
