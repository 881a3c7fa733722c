"""Removing an object: refused while anything of it is alive, and whole or not at all, whatever crashes.

Version 0 is who removes today.
"""

import contextlib
import errno
import itertools
import random

import pytest

from dos_protocol import messages as m
from dos_protocol.errors import ErrorCode
from dos_server.core import vocabulary as v
from dos_server.limits import mark_bytes
from tests.support.core_harness import Harness
from tests.support.fake_disk import ENDLESS, FakeDisk

CONTENT = bytes(range(200)) * 30


def with_file(disk: FakeDisk | None = None, name: str = "f") -> tuple[Harness, int]:
    """A server with a file, and a session of version 0 in its directory."""
    server = Harness(disk)
    put(server, name, CONTENT)
    return server, server.connect0("dir")


def put(server: Harness, name: str, content: bytes) -> None:
    session = server.connect0("dir")
    assert server.ask0(session, f"a{name}\t0") == b"ok"
    server.stream(session, content)
    server.half_close(session)
    server.settle()
    assert server.replies(session) == [b"%d\t%d" % (len(content), len(content))]


def read(server: Harness, name: str = "f") -> object:
    session = server.connect()
    server.ask(session, m.ChangeDirectory("dir"))
    answer = server.ask(session, m.Get(name, 0, 1 << 20))
    return bytes(answer.payload) if isinstance(answer, m.Data) else ErrorCode(answer.code)


def test_a_removed_file_is_gone_and_its_name_is_free() -> None:
    server, session = with_file()
    assert server.ask0(session, "df") == b"ok"
    assert server.ask0(session, "l") == b""
    assert server.ask0(session, "df") == b"ERROR: no file f in dir"
    assert read(server) == ErrorCode.NOT_FOUND
    put(server, "f", b"another")
    assert read(server) == b"another"
    server.disk.kill()
    server.start()
    assert read(server) == b"another"


def test_what_is_removed_stays_removed_after_a_power_cut() -> None:
    for seed in range(20):
        server, session = with_file()
        assert server.ask0(session, "df") == b"ok"
        server.disk.power_cut(random.Random(seed))
        server.start()
        assert read(server) == ErrorCode.NOT_FOUND
        put(server, "f", b"another")
        server.disk.power_cut(random.Random(seed + 1))
        server.start()
        assert read(server) == b"another"


STEPS = ("write", "sync", "remove", "sync_folder")
"""What the disk is asked to do for one removal, in order: mark, file, entry."""


def test_a_removal_is_these_steps() -> None:
    server, session = with_file()
    before = len(server.disk.calls)
    assert server.ask0(session, "df") == b"ok"
    steps = [(method, what) for method, what in server.disk.calls[before:] if method in STEPS]
    assert steps == [
        ("write", "d/dir/.marks"),
        ("sync", "d/dir/.marks"),
        ("sync_folder", "d/dir"),
        ("remove", "d/dir/f"),
        ("sync_folder", "d/dir"),
        ("write", "d/dir/.marks"),
        ("sync", "d/dir/.marks"),
    ]


class _Crash(BaseException):
    """The machine stops here."""


CRASHES = [(method, nth) for nth in (1, 2) for method in STEPS if (method, nth) != ("remove", 2)]
BEFORE_THE_MARK_COUNTS = {("write", 1), ("sync", 1), ("sync_folder", 1)}


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("step", "nth"), CRASHES)
def test_a_crash_in_a_removal_leaves_the_whole_file_or_nothing(
    step: str, nth: int, after: bool, power: bool
) -> None:
    # EVIDENCE-OF: P-1, P-2
    outcomes = set()
    for seed in range(12 if power else 1):
        disk = FakeDisk()
        server, session = with_file(disk)
        crash_in(disk, step, nth, after=after)
        with pytest.raises(_Crash):
            server.ask0(session, "df")
        delattr(disk, step)
        disk.power_cut(random.Random(seed)) if power else disk.kill()
        server.start()
        found = read(server)
        outcomes.add(found)
        assert found in (CONTENT, ErrorCode.NOT_FOUND), seed
        if found == CONTENT:
            assert server.ask0(server.connect0("dir"), "df") == b"ok"
        disk.power_cut(random.Random(seed))
        server.start()
        assert read(server) == ErrorCode.NOT_FOUND, "what a start has finished stays so"
        put(server, "f", b"another")
        disk.power_cut(random.Random(seed))
        server.start()
        assert read(server) == b"another", seed
    if (step, nth, after) == ("write", 1, False):
        assert outcomes == {CONTENT}
    elif not power or (step, nth) not in BEFORE_THE_MARK_COUNTS or (step, after) == ("sync_folder", True):
        assert outcomes == {ErrorCode.NOT_FOUND}, "begun is as good as done"


def crash_in(disk: FakeDisk, step: str, nth: int, *, after: bool) -> None:
    """The machine stops in the nth call of a method from now on, before or after its effect."""
    real, calls = getattr(disk, step), 0

    def call(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls < nth:
            return real(*arguments)
        if after:
            real(*arguments)
        raise _Crash

    setattr(disk, step, call)


def test_a_removal_that_a_crash_cut_short_is_finished_and_damage_does_not_return_as_a_short_file() -> None:
    # EVIDENCE-OF: P-2
    disk = FakeDisk()
    server, _ = with_file(disk)
    disk.cut(disk.open("d/dir/f", create=False), 0)
    disk.kill()
    server.start()
    assert read(server) == ErrorCode.CORRUPT
    crash_in(disk, "remove", 1, after=False)
    session = server.connect0("dir")
    with pytest.raises(_Crash):
        server.ask0(session, "df")
    delattr(disk, "remove")
    disk.kill()
    server.start()
    assert server.ask0(server.connect0("dir"), "l") == b""
    assert disk.names("d/dir") == [".marks"]


@pytest.mark.parametrize("step", STEPS)
def test_a_power_cut_while_a_start_finishes_a_removal_brings_nothing_back(step: str) -> None:
    # EVIDENCE-OF: P-2
    for nth, seed in itertools.product(range(1, 7), range(8)):
        disk = FakeDisk()
        server, session = with_file(disk)
        crash_in(disk, "remove", 1, after=False)
        with pytest.raises(_Crash):
            server.ask0(session, "df")
        delattr(disk, "remove")
        disk.kill()
        crash_in(disk, step, nth, after=False)
        with contextlib.suppress(_Crash):
            server.start()
            server.connect0("dir")
        delattr(disk, step)
        disk.power_cut(random.Random(seed))
        server.start()
        assert read(server) == ErrorCode.NOT_FOUND, (nth, seed)


@pytest.mark.parametrize("step", ["write", "sync", "sync_folder", "remove"])
def test_a_removal_that_fails_before_the_file_is_gone_leaves_it_as_it_was(step: str) -> None:
    # EVIDENCE-OF: P-8
    disk = FakeDisk()
    server, session = with_file(disk)
    disk.fail(step, errno.EIO)
    assert server.ask0(session, "df") == b"ERROR: the disk failed; f is unchanged"
    assert read(server) == CONTENT
    disk.kill()
    server.start()
    assert read(server) == CONTENT
    assert server.ask0(server.connect0("dir"), "df") == b"ok"


@pytest.mark.parametrize(("step", "nth"), [("sync_folder", 2), ("write", 2), ("sync", 2)])
def test_a_removal_that_cannot_be_made_durable_is_not_told_and_the_name_rests_until_a_restart(
    step: str, nth: int
) -> None:
    disk = FakeDisk()
    server, session = with_file(disk)
    disk.fail(step, errno.EIO, nth=nth)
    assert (server.ask0(session, "df") or b"").startswith(b"ERROR: f is poisoned")
    assert (server.ask0(session, "df") or b"").startswith(b"ERROR: f is poisoned")
    assert (server.ask0(server.connect0("dir"), f"af\t{len(CONTENT)}") or b"").startswith(b"ERROR: f is pois")
    disk.kill()
    server.start()
    assert read(server) == ErrorCode.NOT_FOUND
    put(server, "f", b"another")


def test_a_full_disk_that_refuses_the_mark_leaves_the_object_as_it_was_and_usable() -> None:
    """The mark of a removal may need a new slot. Restoring it would need the same space."""
    # EVIDENCE-OF: P-8
    disk = FakeDisk()
    server, session = with_file(disk)
    disk.space = 0
    answer = server.ask0(session, "df") or b""
    assert answer.startswith(b"ERROR: "), answer
    assert b"poisoned" not in answer
    assert read(server) == CONTENT
    disk.space = ENDLESS
    assert server.ask0(session, "df") == b"ok"
    assert read(server) == ErrorCode.NOT_FOUND


def test_a_file_is_not_removed_while_it_is_appended() -> None:
    # EVIDENCE-OF: P-8
    server, session = with_file()
    stream = server.connect0("dir")
    assert server.ask0(stream, f"af\t{len(CONTENT)}") == b"ok"
    assert server.ask0(session, "df") == b"ERROR: f is being appended"
    server.stream(stream, b"more")
    server.end(stream)
    server.request(session, "df")
    assert server.replies(session) == [b"ERROR: f is being appended"], "its bytes are still on their way"
    server.settle()
    assert read(server) == CONTENT + b"more"
    assert server.ask0(session, "df") == b"ok"


def test_while_a_file_is_removed_nobody_uses_it_and_a_claim_waits() -> None:
    # EVIDENCE-OF: P-4
    server, session = with_file()
    other, reader, writer = server.connect0("dir"), server.connect(), server.connect()
    server.ask(reader, m.ChangeDirectory("dir"))
    waiting = server.send(reader, m.Get("f", len(CONTENT), 10, 60_000))
    server.request(session, "df")
    index = len(server.pending) - 1
    server.request(other, "df")
    assert server.replies(other) == [b"ERROR: f is being removed"]
    assert server.answer(reader, server.send(reader, m.Get("f", 0, 10))).code == ErrorCode.BUSY
    server.request(other, f"af\t{len(CONTENT)}")
    assert server.replies(other) == [b"ERROR: f is being removed"]
    claim = server.send(writer, m.ChangeDirectory("dir", claim=True, epoch=1, writer_id=b"w" * 16))
    removal = server.pending.pop(index)
    server.settle()
    assert server.answer(writer, claim) is None
    server.pending.append(removal)
    server.settle()
    assert server.answer(writer, claim).entries == ()
    assert server.replies(session) == [b"ok"]
    assert server.answer(reader, waiting).code == ErrorCode.NOT_FOUND


def test_a_damaged_file_may_be_removed_and_one_that_was_lost() -> None:
    disk = FakeDisk()
    server, _ = with_file(disk)
    put(server, "lost", b"x" * 10)
    handle = disk.open("d/dir/f", create=False)
    disk.write(handle, 3000, [b"\0\0"])
    disk.remove("d/dir/lost")
    disk.kill()
    server.start()
    assert read(server, "lost") == ErrorCode.CORRUPT
    session = server.connect0("dir")
    assert server.ask0(session, "df") == b"ok"
    assert server.ask0(session, "dlost") == b"ok"
    disk.kill()
    server.start()
    assert server.ask0(server.connect0("dir"), "l") == b""


def test_slots_of_marks_are_used_again() -> None:
    # EVIDENCE-OF: P-9
    server, session = with_file()
    for number in range(20):
        put(server, f"n{number}", b"x")
        assert server.ask0(session, f"dn{number}") == b"ok"
        if number == 10:
            server.disk.kill()
            server.start()
            session = server.connect0("dir")
    handle = server.disk.open("d/dir/.marks", create=False)
    assert server.disk.size(handle) == 2 * mark_bytes
    server.disk.kill()
    server.start()
    assert server.ask0(server.connect0("dir"), "l") == b"f\t6000\tno\n"


def test_random_lives_with_removals_keep_what_was_reported() -> None:
    # EVIDENCE-OF: P-1, P-2
    for seed in range(60):
        rng = random.Random(seed)
        server = Harness()
        served: dict[str, bytes] = {}
        doubtful: set[str] = set()
        for _ in range(25):
            name = rng.choice("abc")
            if rng.random() < 0.15:
                server.disk.power_cut(rng) if rng.random() < 0.7 else server.disk.kill()
                server.start()
                for one, content in served.items():
                    assert read(server, one) == content, (seed, one)
                for one in "abc":
                    if one not in served:
                        found = read(server, one)
                        assert found == ErrorCode.NOT_FOUND or one in doubtful, (seed, one, found)
                        if isinstance(found, bytes):
                            served[one] = found
                doubtful.clear()
            elif name in served:
                session = server.connect0("dir")
                server.request(session, f"d{name}")
                if rng.random() < 0.8:
                    server.settle()
                    assert server.replies(session) == [b"ok"]
                else:
                    server.pending.clear()  # it goes down before anything of it is done
                    server.disk.kill()
                    server.start()
                    doubtful.add(name)
                del served[name]
            elif name not in doubtful:
                served[name] = rng.randbytes(rng.randrange(1, 2000))
                put(server, name, served[name])


def test_the_event_names_the_session_and_request_it_answers() -> None:
    server, session = with_file()
    server.request(session, "df")
    (effect, _) = server.pending[0]
    assert effect == v.RemoveObject(session, 0, "dir", "f", len(CONTENT), damaged=False)
