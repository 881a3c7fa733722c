"""The scrub: what it reads, when, and what it finds, on a disk whose cache hides rot; and what it never says.

The core and the storage are the server's own; a look may be reported as late as a test likes.
"""

import errno
import random

import pytest

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import ErrorCode
from dos_server.core import vocabulary as v
from dos_server.core.files.scan import VerifiedChain, VerifyGoal, beginning
from dos_server.core.requests.scrub import ScrubPlan
from dos_server.limits import scrub_part_bytes, scrub_rest_share, scrub_yield_seconds_max
from tests.dos_server.core_requests import to_claim
from tests.dos_server.scrub_rounds import one_round, rounds_of, state_of
from tests.dos_server.store_member import CONTENT, HELLO, StoreMember
from tests.support.core_harness import Harness

RATE = 1_000_000
PLAN = ScrubPlan(RATE, 3600.0)
LARGE = random.Random(3).randbytes(3_000_000)


def rot_below_the_cache(member: StoreMember, position: int, name: str = "o") -> None:
    """A bit flips on the platters. Readers get what the cache has."""
    member.file(name).stable[position] ^= 1


def test_rot_that_the_cache_hides_from_readers_is_found_quarantined_and_remembered() -> None:
    # EVIDENCE-OF: P-2, P-5
    member = StoreMember(LARGE, PLAN)
    one_round(member)
    assert not member.inspect().corrupt
    rot_below_the_cache(member, 1_500_000)
    assert member.content() == LARGE
    assert one_round(member).count("dir/o") == 2
    assert member.inspect().corrupt
    damaged_from = state_of(member, "dir", "o").corrupt_from
    assert damaged_from == 1_400_000, "the extent with the flipped bit"
    (line,) = [line for line in member.told if "damaged from" in line]
    assert "dir/o is damaged from offset 1400000 on: the payload digest does not match" in line
    answer = member.ask(member.reader(), m.Get("o", 1_400_000, 10))
    assert answer.code == ErrorCode.CORRUPT
    assert member.ask(member.reader(), m.Get("o", 0, 10)).payload == LARGE[:10]
    assert one_round(member) == [], "what is known to be damaged is not looked at"
    member.restart()
    assert member.inspect().corrupt
    assert member.repair(member.reader(), LARGE, old=member.inspect()) == m.RepairAck(
        "o", len(LARGE), done=True
    )
    one_round(member)
    assert not member.inspect().corrupt


def test_a_block_of_another_time_is_found_though_every_digest_of_it_is_right() -> None:
    # EVIDENCE-OF: P-2
    other, mine = StoreMember(bytes(100_000) + LARGE[100_000:500_000]), StoreMember(LARGE[:500_000], PLAN)
    mine.file().stable[:100_064] = other.file().stable[:100_064]
    one_round(mine)
    assert state_of(mine, "dir", "o").corrupt_from == 0


def test_a_whole_file_of_another_time_is_found_by_its_root() -> None:
    # EVIDENCE-OF: P-2
    other, mine = StoreMember(bytes(500_000)), StoreMember(LARGE[:500_000], PLAN)
    mine.file().stable[:] = other.file().stable
    one_round(mine)
    assert state_of(mine, "dir", "o").corrupt_from == 0


def test_only_what_was_synced_when_it_began_is_inspected() -> None:
    member = StoreMember(LARGE[:500_000], PLAN)
    for part in (b"x" * 1_000, b"y" * 1_000):
        content = LARGE[:500_000] if part[:1] == b"x" else LARGE[:500_000] + b"x" * 1_000
        member.send(member.writer, m.Append("o", len(content), prefix_digest(content), part))
    member.scrub_on()
    (look,) = [effect for effect, _ in member.pending if isinstance(effect, v.ScrubRead)]
    assert look.goal == VerifyGoal(500_000, prefix_digest(LARGE[:500_000]))
    member.settle()
    one_round(member)
    assert not member.inspect().corrupt


def test_a_look_that_meets_a_file_on_its_way_out_says_nothing() -> None:
    """What a thread does and when it is heard of are two things: the file is gone, nobody knows yet."""
    server = Many(1)
    session = server.connect()
    server.ask(session, to_claim(1, directory="d0"))
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
    member = StoreMember(LARGE, PLAN)
    other = member.connect(HELLO)
    member.ask(other, m.ChangeDirectory("sound"))
    member.send(other, m.Append("o", 0, 0, b"x"))
    member.settle()
    assert damage_listed(member) == set()
    rot_below_the_cache(member, 1_500_000)
    one_round(member)
    assert damage_listed(member) == {"dir"}
    member.restart()
    assert "dir" not in member.core._tables.directories
    assert damage_listed(member) == {"dir"}
    one_round(member)
    assert "dir" not in member.core._tables.directories, "it was loaded for the scrub alone"
    assert damage_listed(member) == {"dir"}
    repairer = member.reader()
    assert isinstance(member.repair(repairer, LARGE, old=member.inspect()), m.RepairAck)
    assert damage_listed(member) == set()
    for session in list(member.heard):
        member.end(session)
    one_round(member)
    assert damage_listed(member) == set()


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
    server.ask(session, to_claim(1, directory="d1"))
    assert isinstance(server.ask(session, m.Delete("a")), m.Deleted)
    monkeypatch.setattr("dos_server.core.tables.directories_loaded_max", 0)
    server.end(session)
    assert server.core._tables.directories == {}
    assert damage_listed(server) == set()


def test_no_more_is_read_than_the_rate_and_a_tenth_of_the_time_allow() -> None:
    member = StoreMember(LARGE, PLAN)
    began, read = member.now, 0
    while not rounds_of(member):
        member.scrub_on()
        reads = [what for method, what in member.disk.calls if method == "read_stored"]
        assert len(reads) * scrub_part_bytes <= RATE * (member.now - began) + scrub_part_bytes
        read = len(reads)
        member.settle()
    assert read == 3
    event = v.ScrubReadDone(v.ScrubRead("dir", "o", *_nothing()), None, None, "", seconds=2.0)
    member.event(event)
    assert member.scrub_due == member.now + 2.0 * scrub_rest_share


def _nothing() -> tuple[VerifiedChain, VerifyGoal]:
    return beginning(1), VerifyGoal(0)


def test_it_waits_while_the_disk_is_at_work_for_clients_and_not_for_ever() -> None:
    member = StoreMember(LARGE, PLAN)
    member.scrub_on()
    member.settle()
    began, turns = member.scrub_due or 0.0, 0
    while not member.pending:
        member.scrub_on(busy=True)
        turns += 1
        assert turns < 100
    assert turns > 10
    assert member.now - began == pytest.approx(scrub_yield_seconds_max)


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
    assert isinstance(look, v.ScrubRead)
    server.settle()
    assert one_round(server) == ["d0/b"]


def test_without_a_rate_it_never_looks() -> None:
    member = StoreMember(LARGE)
    member.settle()
    assert member.scrub_due is None
    assert member.told == []


def test_a_disk_that_cannot_read_is_damage_and_a_lack_of_descriptors_is_not() -> None:
    member = StoreMember(LARGE, PLAN)
    member.disk.fail("read_stored", errno.EMFILE)
    one_round(member)
    assert not member.inspect().corrupt
    assert any("dir/o was not scrubbed" in line for line in member.told)
    member.disk.fail("read_stored", errno.EIO, nth=2)
    one_round(member)
    assert state_of(member, "dir", "o").corrupt_from == 1_000_000
    assert member.inspect().corrupt


def test_an_object_whose_file_is_gone_is_damaged_from_its_beginning() -> None:
    member = StoreMember(LARGE, PLAN)
    member.storage.stop()
    member.restart()
    member.inspect()
    member.storage._files.forget("d/dir/o")
    del member.folder["o"]
    one_round(member)
    assert state_of(member, "dir", "o").corrupt_from == 0


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


def test_a_round_that_is_requested_reads_everything_again_and_ends_the_wait_for_the_next_one() -> None:
    member = StoreMember(LARGE, PLAN)
    reader = member.reader()
    one_round(member)
    before = member.ask(reader, m.ScrubRequest())
    assert isinstance(before, m.ScrubProgress)
    assert (before.rounds, before.bytes >= len(LARGE), before.directories_left) == (1, True, 0)
    begun = member.ask(reader, m.ScrubRequest(begin=True, bytes_per_s=5 * RATE))
    assert isinstance(begun, m.ScrubProgress)
    assert (begun.rounds, begun.directories_left) == (1, 1)
    assert member.scrub_due == member.now, "and not an hour later"
    assert one_round(member).count("dir/o") > 2
    after = member.ask(reader, m.ScrubRequest())
    assert isinstance(after, m.ScrubProgress)
    assert (after.rounds, after.bytes - before.bytes) == (2, before.bytes)


def test_a_request_in_the_middle_of_a_round_makes_it_begin_again() -> None:
    """What was verified before the request does not count."""
    member = StoreMember(LARGE, PLAN)
    member.scrub_on()
    member.settle()
    rot_below_the_cache(member, 100)
    assert member.ask(member.reader(), m.ScrubRequest(begin=True)).rounds == 0
    one_round(member)
    assert member.inspect().corrupt, "the part that was read before the bit flipped is read again"
