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
from dos_protocol.store_record import Member, StoreRecord, encode_store_record
from dos_server.core import vocabulary as v
from dos_server.limits import mark_bytes
from tests.dos_server.core_requests import W1, W2, append, code_of, to_claim
from tests.support.core_harness import SERVER_ID, Harness
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
    server.restart()
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


@pytest.mark.parametrize("way", ["version 0", "DELETE"])
@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("step", "nth"), CRASHES)
def test_a_crash_in_a_removal_leaves_the_whole_object_or_nothing_and_who_may_write_as_it_was(
    step: str, nth: int, after: bool, power: bool, way: str
) -> None:
    # EVIDENCE-OF: P-1, P-2, P-4
    outcomes = set()
    for seed in range(12 if power else 1):
        disk = FakeDisk()
        server, session = with_file(disk) if way == "version 0" else with_object(disk)
        name = "f" if way == "version 0" else "o"
        crash_in(disk, step, nth, after=after)
        with pytest.raises(_Crash):
            server.ask0(session, "df") if way == "version 0" else server.ask(session, m.Delete("o"))
        delattr(disk, step)
        server.lose_power(random.Random(seed)) if power else server.restart()
        found = read(server, name)
        outcomes.add(found)
        assert found in (CONTENT, ErrorCode.NOT_FOUND), seed
        if way == "DELETE":
            writer = server.connect()
            assert code_of(server.ask(writer, to_claim(1, W2))) == ErrorCode.FENCED
            server.ask(writer, to_claim(2, W2))
            assert isinstance(server.ask(writer, m.Delete("o")), m.Deleted | m.Error)
        elif found == CONTENT:
            assert server.ask0(server.connect0("dir"), "df") == b"ok"
        server.lose_power(random.Random(seed))
        assert read(server, name) == ErrorCode.NOT_FOUND, "what a start has finished stays so"
        if way == "version 0":
            put(server, "f", b"another")
            server.lose_power(random.Random(seed))
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
    server.restart()
    assert read(server) == ErrorCode.CORRUPT
    crash_in(disk, "remove", 1, after=False)
    session = server.connect0("dir")
    with pytest.raises(_Crash):
        server.ask0(session, "df")
    delattr(disk, "remove")
    server.restart()
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
        server.lose_power(random.Random(seed))
        assert read(server) == ErrorCode.NOT_FOUND, (nth, seed)


@pytest.mark.parametrize("step", ["write", "sync", "sync_folder", "remove"])
def test_a_removal_that_fails_before_the_file_is_gone_leaves_it_as_it_was(step: str) -> None:
    # EVIDENCE-OF: P-8
    disk = FakeDisk()
    server, session = with_file(disk)
    disk.fail(step, errno.EIO)
    assert server.ask0(session, "df") == b"ERROR: the disk failed; f is unchanged"
    assert read(server) == CONTENT
    server.restart()
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
    server.restart()
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
    claim = server.send(writer, to_claim())
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
    server.restart()
    assert read(server, "lost") == ErrorCode.CORRUPT
    session = server.connect0("dir")
    assert server.ask0(session, "df") == b"ok"
    assert server.ask0(session, "dlost") == b"ok"
    server.restart()
    assert server.ask0(server.connect0("dir"), "l") == b""


def test_slots_of_marks_are_used_again() -> None:
    # EVIDENCE-OF: P-9
    server, session = with_file()
    for number in range(20):
        put(server, f"n{number}", b"x")
        assert server.ask0(session, f"dn{number}") == b"ok"
        if number == 10:
            server.restart()
            session = server.connect0("dir")
    handle = server.disk.open("d/dir/.marks", create=False)
    assert server.disk.size(handle) == 2 * mark_bytes
    server.restart()
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
                server.lose_power(rng) if rng.random() < 0.7 else server.restart()
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
                    server.restart()
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


# --- DELETE: by the directory's writer alone, checked when it is carried out, answered when it is ... ------


def with_object(disk: FakeDisk | None = None) -> tuple[Harness, int]:
    """A server with an object, and the session that holds its directory."""
    server = Harness(disk)
    session = server.connect()
    server.ask(session, to_claim())
    server.ask(session, append(b"", CONTENT))
    return server, session


def test_the_writer_deletes_and_is_notified_of_it_when_it_is_durable() -> None:
    # EVIDENCE-OF: P-1
    server, session = with_object()
    request = server.send(session, m.Delete("o"))
    assert server.answer(session, request) is None
    server.settle()
    assert server.answer(session, request) == m.Deleted("o")
    assert server.ask(session, m.List()).entries == ()
    assert code_of(server.ask(session, m.Delete("o"))) == ErrorCode.NOT_FOUND
    for seed in range(10):
        server.lose_power(random.Random(seed))
        assert read(server, "o") == ErrorCode.NOT_FOUND


def test_the_name_is_free_and_a_new_object_there_begins_at_nothing() -> None:
    # EVIDENCE-OF: P-3
    server, session = with_object()
    server.ask(session, m.Delete("o"))
    behind = server.ask(session, append(CONTENT, b"more"))
    assert (code_of(behind), behind.actual) == (ErrorCode.SIZE_MISMATCH, 0)
    server.ask(session, append(b"", b"another"))
    assert read(server, "o") == b"another"
    server.restart()
    assert read(server, "o") == b"another"


def test_what_is_missing_is_not_found_and_bad_names_and_no_directory_are_reported() -> None:
    server, session = with_object()
    assert code_of(server.ask(session, m.Delete("p"))) == ErrorCode.NOT_FOUND
    assert code_of(server.ask(session, m.Delete("../o"))) == ErrorCode.BAD_NAME
    assert code_of(server.ask(server.connect(), m.Delete("o"))) == ErrorCode.NOT_READY
    assert read(server, "o") == CONTENT


def test_only_who_holds_the_claim_deletes() -> None:
    # EVIDENCE-OF: P-4, P-8
    server, old = with_object()
    reader = server.connect()
    server.ask(reader, m.ChangeDirectory("dir"))
    answer = server.ask(reader, m.Delete("o"))
    assert (code_of(answer), answer.actual) == (ErrorCode.NOT_CLAIMED, 1)
    new = server.connect()
    server.ask(new, to_claim(2, W2))
    answer = server.ask(old, m.Delete("o"))
    assert (code_of(answer), answer.actual) == (ErrorCode.FENCED, 2)
    assert read(server, "o") == CONTENT
    assert server.ask(new, m.Delete("o")) == m.Deleted("o")


def test_a_delete_is_checked_when_it_is_carried_out() -> None:
    # EVIDENCE-OF: P-4, P-8
    server, old = with_object()
    new = server.connect()
    claiming = server.send(new, to_claim(2, W2))  # held, and not answered yet
    assert code_of(server.answer(old, server.send(old, m.Delete("o")))) == ErrorCode.FENCED
    server.settle()
    assert [one.name for one in server.answer(new, claiming).entries] == ["o"]
    behind = server.connect()
    server.send(behind, to_claim(1, W1))  # refused; then the session is in no directory
    late = server.send(behind, m.Delete("o"))
    server.settle()
    assert code_of(server.answer(behind, late)) == ErrorCode.NOT_READY
    assert read(server, "o") == CONTENT


def test_in_a_directory_that_nobody_ever_claimed_any_session_deletes() -> None:
    server = Harness()
    one, other = server.connect(), server.connect()
    for session in (one, other):
        server.ask(session, m.ChangeDirectory("dir"))
    server.ask(one, append(b"", CONTENT))
    assert server.ask(other, m.Delete("o")) == m.Deleted("o")
    server.ask(one, append(b"", b"new"))
    assert read(server, "o") == b"new"
    writer = server.connect()
    server.ask(writer, to_claim())
    assert code_of(server.ask(other, m.Delete("o"))) == ErrorCode.NOT_CLAIMED
    assert code_of(server.ask(one, m.Delete("o"))) == ErrorCode.FENCED
    assert read(server, "o") == b"new"


def test_an_object_that_is_being_appended_is_not_deleted() -> None:
    # EVIDENCE-OF: P-1, P-8
    server, session = with_object()
    server.send(session, append(CONTENT, b"more"), ends_batch=False)
    early = server.send(session, m.Delete("o"), ends_batch=False)
    assert code_of(server.answer(session, early)) == ErrorCode.BEING_APPENDED
    server.event(v.BatchEnded())
    late = server.send(session, m.Delete("o"))
    assert code_of(server.answer(session, late)) == ErrorCode.BEING_APPENDED
    new = server.send(session, append(b"", b"x", "new"), ends_batch=False)
    assert code_of(server.answer(session, server.send(session, m.Delete("new")))) == ErrorCode.BEING_APPENDED
    assert server.answer(session, new) is None
    server.settle()
    assert read(server, "o") == CONTENT + b"more"
    assert read(server, "new") == b"x"
    assert server.ask(session, m.Delete("o")) == m.Deleted("o")


def test_what_another_session_or_a_stream_appends_to_is_not_deleted() -> None:
    server = Harness()
    one, other = server.connect(), server.connect()
    for session in (one, other):
        server.ask(session, m.ChangeDirectory("dir"))
    server.send(one, append(b"", CONTENT))
    assert code_of(server.answer(other, server.send(other, m.Delete("o")))) == ErrorCode.BEING_APPENDED
    server.settle()
    stream = server.connect0("dir")
    assert server.ask0(stream, f"ao\t{len(CONTENT)}") == b"ok"
    assert code_of(server.ask(other, m.Delete("o"))) == ErrorCode.BEING_APPENDED
    server.end(stream)
    assert server.ask(other, m.Delete("o")) == m.Deleted("o")


def test_while_it_goes_nobody_uses_it_and_who_waited_for_more_is_notified_that_it_is_gone() -> None:
    # EVIDENCE-OF: P-2
    server, session = with_object()
    reader = server.connect()
    server.ask(reader, m.ChangeDirectory("dir"))
    reading = server.send(reader, m.Get("o", 0, 10))
    following = server.send(reader, m.Get("o", len(CONTENT), 10, 60_000))
    removal = server.send(session, m.Delete("o"))
    again = server.send(session, m.Delete("o"))
    more = server.send(session, append(CONTENT, b"more"))
    get = server.send(reader, m.Get("o", 0, 10))
    digest = server.send(reader, m.Stat("o", 10))
    assert code_of(server.answer(session, again)) == ErrorCode.BUSY
    assert code_of(server.answer(session, more)) == ErrorCode.BEING_APPENDED
    assert code_of(server.answer(reader, get)) == ErrorCode.BUSY
    assert code_of(server.answer(reader, digest)) == ErrorCode.BUSY
    assert server.answer(reader, following) is None
    server.finish(1)  # the removal ends before the bytes asked for earlier are read
    assert server.answer(session, removal) == m.Deleted("o")
    server.settle()
    assert code_of(server.answer(reader, following)) == ErrorCode.NOT_FOUND
    assert server.answer(reader, following).actual == 0
    assert code_of(server.answer(reader, reading)) == ErrorCode.NOT_FOUND
    assert not server.core.wants_tick()


def test_what_was_asked_of_the_old_object_is_not_answered_from_a_new_one() -> None:
    # EVIDENCE-OF: P-2
    server, session = with_object()
    reading = server.send(session, m.Get("o", 0, 10))
    folding = server.send(session, m.Stat("o", 10))
    server.send(session, m.Delete("o"))
    server.finish(2)
    server.ask(session, append(b"", b"another thing"))
    assert code_of(server.answer(session, reading)) == ErrorCode.BUSY
    assert code_of(server.answer(session, folding)) == ErrorCode.BUSY


def test_a_claim_waits_for_a_delete_that_began_before_it() -> None:
    # EVIDENCE-OF: P-4
    server, old = with_object()
    removal = server.send(old, m.Delete("o"))
    new = server.connect()
    claiming = server.send(new, to_claim(2, W2))
    server.finish(1)  # the claim is stored; the removal still goes on
    assert server.answer(new, claiming) is None
    server.settle()
    assert server.answer(old, removal) == m.Deleted("o")
    assert server.answer(new, claiming).entries == ()


def test_poisoned_objects_stay_and_damaged_ones_may_go() -> None:
    disk = FakeDisk()
    server, session = with_object(disk)
    disk.fail("sync", errno.EIO)
    server.ask(session, append(CONTENT, b"lost"))
    assert code_of(server.ask(session, m.Delete("o"))) == ErrorCode.POISONED
    disk.kill()
    disk.write(disk.open("d/dir/o", create=False), 3000, [b"\xff\xfe"])
    server.start()
    assert read(server, "o") == ErrorCode.CORRUPT
    writer = server.connect()
    server.ask(writer, to_claim())
    assert server.ask(writer, m.Delete("o")) == m.Deleted("o")


@pytest.mark.parametrize("step", ["write", "sync", "sync_folder", "remove"])
def test_a_delete_that_fails_is_reported_and_leaves_the_object_as_it_was(step: str) -> None:
    # EVIDENCE-OF: P-8
    disk = FakeDisk()
    server, session = with_object(disk)
    following = server.send(session, m.Get("o", len(CONTENT), 10, 60_000))
    disk.fail(step, errno.EIO)
    answer = server.ask(session, m.Delete("o"))
    assert code_of(answer) == ErrorCode.POISONED
    assert "is unchanged" in answer.message
    server.ask(session, append(CONTENT, b"more"))
    assert bytes(server.answer(session, following).payload) == b"more"
    assert read(server, "o") == CONTENT + b"more"


def test_a_delete_of_which_only_a_restart_can_say_poisons_the_object() -> None:
    disk = FakeDisk()
    server, session = with_object(disk)
    following = server.send(session, m.Get("o", len(CONTENT), 10, 60_000))
    disk.fail("sync_folder", errno.EIO, nth=2)
    assert code_of(server.ask(session, m.Delete("o"))) == ErrorCode.POISONED
    assert code_of(server.answer(session, following)) == ErrorCode.POISONED
    assert code_of(server.ask(session, append(b"", b"x"))) == ErrorCode.POISONED
    server.restart()
    assert read(server, "o") == ErrorCode.NOT_FOUND


def test_bye_comes_when_the_delete_before_it_is_answered() -> None:
    server, session = with_object()
    removal = server.send(session, m.Delete("o"))
    quit_ = server.send(session, m.Quit())
    assert server.answer(session, quit_) is None
    server.settle()
    assert server.heard[session][-2:] == [(removal, m.Deleted("o")), (quit_, m.Bye())]
    assert session in server.closed


def test_a_delete_whose_session_is_gone_is_carried_out_all_the_same() -> None:
    server, session = with_object()
    server.send(session, m.Delete("o"))
    server.end(session)
    server.settle()
    assert read(server, "o") == ErrorCode.NOT_FOUND


RECORD = StoreRecord(b"s" * 16, 1, 1, (Member(SERVER_ID, "h:1"),))
OF_STORE = m.Hello(store_id=b"s" * 16, generation=1)


def in_store(hello: m.Hello, *, claimed: bool) -> tuple[Harness, int]:
    """A member of a store with object `o`, and the session that wrote it."""
    server = Harness()
    assert server.ask(server.connect(), m.Configure(encode_store_record(RECORD))) == m.Configured(1)
    session = server.connect(hello)
    server.ask(session, to_claim() if claimed else m.ChangeDirectory("dir"))
    server.ask(session, append(b"", CONTENT))
    return server, session


@pytest.mark.parametrize("hello", [m.Hello(), OF_STORE])
@pytest.mark.parametrize("claimed", [False, True])
def test_a_member_of_a_store_deletes_for_the_writer_who_claimed_and_for_nobody_else(
    claimed: bool, hello: m.Hello
) -> None:
    # EVIDENCE-OF: P-5, P-8
    server, session = in_store(hello, claimed=claimed)
    words = server.ask0(server.connect0("dir"), "do") or b""
    assert words.startswith(
        b"ERROR: directory dir is claimed" if claimed else b"ERROR: this server is in store"
    )
    for stranger in (server.connect(), server.connect(OF_STORE)):
        server.ask(stranger, m.ChangeDirectory("dir"))
        assert code_of(server.ask(stranger, m.Delete("o"))) in (
            ErrorCode.UNSUPPORTED,
            ErrorCode.NOT_CLAIMED,
        )
    assert read(server, "o") == CONTENT
    answer = server.ask(session, m.Delete("o"))
    if claimed and hello is OF_STORE:
        assert answer == m.Deleted("o")
        assert read(server, "o") == ErrorCode.NOT_FOUND
        return
    assert code_of(answer) == (ErrorCode.UNSUPPORTED if hello is not OF_STORE else ErrorCode.NOT_CLAIMED)
    assert "is in store 73737373" in answer.message
    assert read(server, "o") == CONTENT


def test_a_writer_of_a_store_that_was_superseded_deletes_nothing_any_more() -> None:
    # EVIDENCE-OF: P-4, P-8
    server, old = in_store(OF_STORE, claimed=True)
    new = server.connect(OF_STORE)
    server.ask(new, to_claim(9, b"n" * 16))
    assert code_of(server.ask(old, m.Delete("o"))) == ErrorCode.FENCED
    assert read(server, "o") == CONTENT
    assert server.ask(new, m.Delete("o")) == m.Deleted("o")


def test_a_writer_of_an_older_generation_deletes_nothing() -> None:
    # EVIDENCE-OF: P-8
    server, old = in_store(OF_STORE, claimed=True)
    newer = encode_store_record(StoreRecord(b"s" * 16, 2, 1, (Member(SERVER_ID, "h:2"),)))
    assert server.ask(server.connect(), m.Configure(newer)) == m.Configured(2)
    server.send(old, m.Delete("o"))
    server.settle()
    assert old in server.closed
    assert read(server, "o") == CONTENT


def test_a_directory_takes_so_many_objects_and_a_deleted_one_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # EVIDENCE-OF: P-8, P-9
    monkeypatch.setattr("dos_protocol.limits.entries_max", 3)
    server, session = with_object()
    for name in "pq":
        server.ask(session, append(b"", b"x", name))
    answer = server.ask(session, append(b"", b"x", "r"))
    assert (code_of(answer), answer.actual) == (ErrorCode.NO_SPACE, 3)
    server.ask(session, append(b"x", b"more", "p"))
    assert read(server, "p") == b"xmore", "those that are there go on"
    server.ask(session, m.Delete("q"))
    server.ask(session, append(b"", b"x", "r"))
    assert read(server, "r") == b"x"


def test_an_object_takes_so_many_bytes_and_is_refused_the_next_one_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # EVIDENCE-OF: P-8, P-9
    monkeypatch.setattr("dos_server.core.object_state.object_bytes_max", len(CONTENT) + 4)
    server, session = with_object()
    answer = server.ask(session, append(CONTENT, b"12345"))
    assert (code_of(answer), answer.actual) == (ErrorCode.NO_SPACE, len(CONTENT) + 4)
    server.ask(session, append(CONTENT, b"1234"))
    assert read(server, "o") == CONTENT + b"1234"
    assert code_of(server.ask(session, append(CONTENT + b"1234", b"5"))) == ErrorCode.NO_SPACE
