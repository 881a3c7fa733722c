"""Quotas: what each limits in the core, and that the count is right after everything that changes it."""

import random
from typing import Any

import pytest

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import ErrorCode
from dos_protocol.store_record import Member, StoreRecord, encode_store_record
from dos_server.core import group_log
from dos_server.core import vocabulary as v
from dos_server.core.quotas import Quota, Quotas, StoredUsage
from dos_server.limits import log_reserved_bytes
from tests.dos_server.core_requests import to_claim
from tests.dos_server.test_access import OPERATOR, READ, granted, tokens
from tests.support.core_harness import SERVER_ID, Harness
from tests.support.fake_disk import FakeDisk

STORE = b"s" * 16
RECORD = encode_store_record(StoreRecord(STORE, 1, 1, (Member(SERVER_ID, "h:1"),)))
DIRECTORIES = ("shop", "shop.w0", "shops", "other")
IN_SHOP = ("shop", "shop.w0")

pytestmark = pytest.mark.usefixtures("settings_twice")


class Writer:
    """A session that appends to objects of one directory, which it holds unless `claim` is False."""

    def __init__(self, server: Harness, directory: str, *, claim: bool = True, token: bytes = b"") -> None:
        self.server, self.directory = server, directory
        hello = m.Hello(token=token)
        if server.core.record_bytes:
            hello = m.Hello(token=token, store_id=STORE, generation=1)
        self.session = server.connect(hello)
        looks = server.ask(server.connect(hello), m.ChangeDirectory(directory))
        epoch = looks.epoch + 1 if claim and isinstance(looks, m.DirectoryOpened) else 0
        writer = b"w" * 16 if claim else bytes(16)
        request = m.ChangeDirectory(directory, claim=claim, epoch=epoch, writer_id=writer)
        self.opened = server.ask(self.session, request)

    def request(self, name: str, data: bytes) -> m.Append:
        state = self.server.core._tables.find(self.directory, name)
        size, digest = (state.accepted, state.fold.value) if state is not None else (0, 0)
        return m.Append(name, size, digest, data)

    def append(self, name: str, data: bytes) -> Any:
        """Append, settled. Returns the refusal, None if it was accepted."""
        return self.server.ask(self.session, self.request(name, data))


def server_with(*listed: Quota, **options: Any) -> Harness:
    server = Harness(quotas=listed, **options)
    operator = server.connect(m.Hello(token=b"operator" if server.tokens else b""))
    assert server.ask(operator, m.Configure(RECORD)) == m.Configured(1)
    server.end(operator)
    return server


def code_of(answer: Any) -> ErrorCode | None:
    return ErrorCode(answer.code) if isinstance(answer, m.Error) else None


def limit_of(answer: Any) -> int | None:
    """The limit that refused a request; None if none did."""
    return answer.actual if code_of(answer) is ErrorCode.QUOTA_EXCEEDED else None


def quotas_of(server: Harness) -> Quotas:
    found: Quotas = server.core._tables.quotas
    return found


def recounted(server: Harness) -> dict[str, StoredUsage]:
    """What the directories in memory hold, counted anew."""
    return {
        name: StoredUsage(sum(one.accepted for one in directory.objects.values()), len(directory.objects))
        for name, directory in server.core._tables.directories.items()
        if directory.objects
    }


def used(server: Harness, what: str, prefix: str = "shop") -> int:
    (found,) = (one.used for one in quotas_of(server).gauges() if (one.prefix, one.what) == (prefix, what))
    return found


# --- bytes and objects --------------------------------------------------------------------------------------


def test_an_append_above_the_quota_is_refused_whole_and_deletion_makes_room() -> None:
    server = server_with(Quota("shop", bytes_max=100))
    shop, worker = Writer(server, "shop"), Writer(server, "shop.w0")
    assert shop.append("a", bytes(60)) is None
    assert worker.append("b", bytes(30)) is None
    before = server.disk.used
    refused = worker.append("b", bytes(11))
    assert limit_of(refused) == 100
    assert refused.message == (
        "the quota of 'shop' is 100 bytes: 90 are used, 11 more wanted; nothing was done"
    )
    assert "`dos quota ls`" in refused.remedy
    assert server.disk.used == before, "nothing of it was written"
    assert worker.append("b", bytes(10)) is None, "exactly the limit"
    assert code_of(shop.append("c", b"x")) is ErrorCode.QUOTA_EXCEEDED
    assert Writer(server, "shops").append("a", bytes(1_000)) is None, "another prefix"
    assert server.ask(shop.session, m.Delete("a")) == m.Deleted("a")
    assert used(server, "bytes") == 40
    assert shop.append("c", bytes(60)) is None


def test_objects_are_limited_and_one_that_exists_takes_further_bytes() -> None:
    server = server_with(Quota("*", objects_max=3), Quota("shop", objects_max=2))
    shop = Writer(server, "shop")
    assert shop.append("a", b"") is None, "an empty one counts"
    assert shop.append("b", b"x") is None
    refused = shop.append("c", b"x")
    assert limit_of(refused) == 2
    assert shop.append("b", b"more") is None
    other = Writer(server, "other")
    assert other.append("a", b"x") is None
    refused = other.append("b", b"x")
    assert limit_of(refused) == 3
    assert "of '*'" in refused.message
    server.ask(shop.session, m.Delete("a"))
    assert other.append("b", b"x") is None
    server.event(v.QuotasChanged((Quota("shop", objects_max=0),)))
    assert shop.append("b", b"x") is None, "above the limit, and it is not a further one"


def test_a_run_of_appends_ends_at_the_quota() -> None:
    """Several frames at once take another way through the core."""
    server = server_with(Quota("shop", bytes_max=100))
    shop = Writer(server, "shop")
    shop.append("a", bytes(50))
    frames = [
        m.encode(m.Append("a", size, prefix_digest(bytes(size)), bytes(10)), 100 + size)
        for size in range(50, 130, 10)
    ]
    server.event(v.ReceivedAppends(shop.session, frames))
    server.event(v.BatchEnded())
    server.settle()
    answers = [code_of(server.answer(shop.session, 100 + size)) for size in range(50, 130, 10)]
    assert answers == [None] * 5 + [ErrorCode.QUOTA_EXCEEDED] + [ErrorCode.SIZE_MISMATCH] * 2
    assert server.ask(shop.session, m.Stat("a")).info.synced == used(server, "bytes") == 100


def repaired(server: Harness, directory: str, name: str, content: bytes) -> Any:
    """The answer to a new copy of an object, as a repair or the filling of a member sends it."""
    session = server.connect(m.Hello(store_id=STORE, generation=1))
    server.ask(session, m.ChangeDirectory(directory))
    state = server.core._tables.find(directory, name)
    size, digest = state.claimed_size if state is not None else (0, 0)
    goal, value = len(content), prefix_digest(content)
    answer = server.ask(session, m.RepairChunk(name, 0, goal, value, size, digest, True, content))
    server.end(session)
    return answer


def test_a_repair_for_which_the_log_has_no_room_changes_no_count_and_succeeds_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = server_with(Quota("shop", bytes_max=100, objects_max=5), slot_bytes=log_reserved_bytes + 65_536)
    shop = Writer(server, "shop")
    for name in "ab":
        assert shop.append(name, bytes(10)) is None
    assert isinstance(server.ask(shop.session, m.Delete("b")), m.Deleted)
    before = recounted(server)
    with monkeypatch.context() as patch:
        patch.setattr(group_log, "log_entries_max", 0)
        for name in "ab":  # one that is there, and one whose removal only the log has
            assert code_of(repaired(server, "shop", name, bytes(50))) is ErrorCode.BUSY
            assert recounted(server) == before
            assert (used(server, "bytes"), used(server, "objects")) == (10, 1)
    for name in "ab":
        assert repaired(server, "shop", name, bytes(50)) == m.RepairAck(name, 50, done=True)
    assert (used(server, "bytes"), used(server, "objects")) == (100, 2)


def test_a_repair_is_counted_and_never_refused() -> None:
    server = server_with(Quota("shop", bytes_max=10, objects_max=1))
    shop = Writer(server, "shop")
    assert shop.append("a", bytes(10)) is None
    assert repaired(server, "shop", "b", bytes(50)) == m.RepairAck("b", 50, done=True)
    assert (used(server, "bytes"), used(server, "objects")) == (60, 2)
    assert repaired(server, "shop", "a", bytes(30)) == m.RepairAck("a", 30, done=True)
    assert used(server, "bytes") == 80


def test_a_member_that_is_behind_has_room_for_what_the_others_have() -> None:
    """The usage of a member without some of the bytes is below that of those which accepted them."""
    members = [server_with(Quota("shop", bytes_max=1_000)) for _ in range(3)]
    writers = [Writer(server, "shop") for server in members]
    content = {"a": b"", "b": b""}
    rng = random.Random(5)
    accepted: list[tuple[str, bytes]] = []
    while True:
        name, data = rng.choice(["a", "b"]), rng.randbytes(rng.randrange(1, 50))
        answers = [writer.append(name, data) for writer in writers[:2]]
        assert code_of(answers[0]) == code_of(answers[1])
        if answers[0] is not None:
            break
        accepted.append((name, data))
        content[name] += data
    assert used(members[0], "bytes") > 950
    for name, data in accepted:
        assert writers[2].append(name, data) is None
    sizes = [used(server, "bytes") for server in members]
    assert sizes == [sum(map(len, content.values()))] * 3


# --- connections and requests -------------------------------------------------------------------------------


def test_connections_are_counted_where_they_are() -> None:
    server = server_with(Quota("shop", connections_max=2))
    first, second = (server.connect() for _ in range(2))
    for session, directory in ((first, "shop"), (second, "shop.w0")):
        assert isinstance(server.ask(session, m.ChangeDirectory(directory)), m.DirectoryOpened)
    third = server.connect()
    refused = server.ask(third, m.ChangeDirectory("shop"))
    assert limit_of(refused) == 2
    assert isinstance(server.ask(third, m.ChangeDirectory("other")), m.DirectoryOpened), "it continues"
    assert isinstance(server.ask(first, m.ChangeDirectory("shop.w0")), m.DirectoryOpened), "it is inside"
    assert isinstance(server.ask(first, m.ChangeDirectory("shop.w0")), m.DirectoryOpened)
    assert used(server, "connections") == 2
    server.ask(first, m.ChangeDirectory("other"))
    server.send(third, m.ChangeDirectory("shop.w1"))  # it waits for the directory to load
    fourth = server.connect()
    assert code_of(server.ask_now(fourth, m.ChangeDirectory("shop"))) is ErrorCode.QUOTA_EXCEEDED
    server.end(third)
    assert isinstance(server.ask(fourth, m.ChangeDirectory("shop")), m.DirectoryOpened)
    server.end(second)
    server.ask(fourth, m.Quit())
    assert used(server, "connections") == 0


def test_an_operator_enters_although_all_connections_are_used() -> None:
    server = server_with(
        Quota("shop", connections_max=1), tokens=tokens(OPERATOR, granted("t", ("shop", READ)))
    )
    sessions = [server.connect(m.Hello(token=token)) for token in (b"t", b"t", b"operator")]
    answers = [server.ask(session, m.ChangeDirectory("shop")) for session in sessions]
    assert [code_of(answer) for answer in answers] == [None, ErrorCode.QUOTA_EXCEEDED, None]
    everybody = server_with(Quota("shop", connections_max=1))
    sessions = [everybody.connect() for _ in range(2)]
    answers = [everybody.ask(session, m.ChangeDirectory("shop")) for session in sessions]
    assert code_of(answers[1]) is ErrorCode.QUOTA_EXCEEDED, "without tokens nobody is an operator"


def test_above_the_rate_a_session_is_not_read_until_the_rate_permits_it() -> None:
    server = server_with(Quota("shop", requests_per_s=10, burst=20))
    shop, other = Writer(server, "shop"), Writer(server, "other")
    server.tick(10)  # the allowance is full
    for _ in range(20):
        assert server.core.may_read(shop.session)
        assert isinstance(server.ask(shop.session, m.Stat("none")), m.Error)
    assert not server.core.may_read(shop.session)
    assert server.core.may_read(other.session)
    assert server.core.wants_tick(), "a tick must look again"
    frames = [m.encode(m.Append("a", size, prefix_digest(bytes(size)), b"\0"), 9) for size in range(5)]
    assert shop.append("a", b"") is None
    server.event(v.ReceivedAppends(shop.session, frames))  # a run that was read already is carried out, too
    waited = 0
    while not server.core.may_read(shop.session):
        server.tick(0.05)
        waited += 1
    assert waited in (12, 13), "6 above the burst, at 10 in a second, and a moment until one more is allowed"
    assert not server.core.wants_tick()
    (gauge,) = quotas_of(server).gauges()
    assert (gauge.what, gauge.limit, gauge.refusals) == ("requests", 20, 1)


# --- the count ----------------------------------------------------------------------------------------------


def test_other_quotas_take_effect_at_once_and_nothing_that_is_stored_is_touched() -> None:
    server = server_with(Quota("shop", bytes_max=100))
    shop = Writer(server, "shop")
    shop.append("a", bytes(80))
    server.event(v.QuotasChanged((Quota("shop", bytes_max=50, connections_max=5),)))
    assert (used(server, "bytes"), used(server, "connections")) == (80, 2)
    assert code_of(shop.append("a", b"x")) is ErrorCode.QUOTA_EXCEEDED
    assert server.ask(shop.session, m.Get("a", 0, 100)).payload == bytes(80)
    server.event(v.QuotasChanged(()))
    assert shop.append("a", b"x") is None
    server.event(v.QuotasChanged((Quota("*", bytes_max=1_000),)))
    assert used(server, "bytes", "*") == 81


def test_a_server_without_quotas_counts_nothing() -> None:
    server = Harness()
    shop = Writer(server, "shop")
    shop.append("a", bytes(100))
    assert quotas_of(server).gauges() == ()
    assert quotas_of(server).usage_of("shop") == StoredUsage()


def test_version_0_is_off_with_quotas() -> None:
    session = (server := Harness(quotas=())).connect0()
    assert b"this server has quotas" in (server.ask0(session, "ushop") or b"")


def test_an_append_that_finds_no_disk_space_is_not_counted() -> None:
    server = server_with(Quota("shop", bytes_max=10_000_000), disk=FakeDisk(), reserve_bytes=1)
    shop = Writer(server, "shop")
    shop.append("a", bytes(10))
    server.event(v.SpaceSeen(100, 1_000_000, server.core.room_bytes))
    assert code_of(shop.append("a", bytes(1_000))) is ErrorCode.NO_SPACE
    assert used(server, "bytes") == 10


def claims(server: Harness, directory: str, epoch: int = 1) -> Any:
    request = to_claim(epoch, directory=directory)
    return server.ask(server.connect(m.Hello(store_id=STORE, generation=1)), request)


def test_directories_count_and_claims_of_those_that_exist_are_never_refused() -> None:
    server = server_with(Quota("shop", bytes_max=1_000, objects_max=1, directories_max=3))
    opened = [claims(server, f"shop.w{number}") for number in range(5)]
    assert [code_of(one) for one in opened] == [None] * 3 + [ErrorCode.QUOTA_EXCEEDED] * 2
    assert "is 3 directories: 3 are used, 1 more wanted" in opened[-1].message
    assert isinstance(claims(server, "shop.w0", 2), m.DirectoryOpened)
    assert isinstance(claims(server, "other"), m.DirectoryOpened)
    free = Writer(server, "shop.free", claim=False)
    assert code_of(free.append("o", b"")) == ErrorCode.QUOTA_EXCEEDED
    server.storage.stop()
    server.start()  # the register and the folders say which there are
    assert code_of(claims(server, "shop.w9")) == ErrorCode.QUOTA_EXCEEDED
    assert isinstance(claims(server, "shop.w1", 3), m.DirectoryOpened)


def test_a_tenant_with_a_quota_of_bytes_cannot_make_thousands_of_directories() -> None:
    assert Quota("shop", bytes_max=1_000).directories_limit == 1_000
    assert Quota("shop", objects_max=1).directories_limit == 1_000
    assert Quota("shop", connections_max=1).directories_limit is None


def test_a_claim_that_could_not_be_stored_leaves_no_directory_in_the_count() -> None:
    server = server_with(Quota("shop", directories_max=1))
    server.disk.fail("make_folder", 5)
    assert isinstance(claims(server, "shop.w0"), m.Error)
    assert isinstance(claims(server, "shop.w1"), m.DirectoryOpened)


def test_new_directories_do_not_use_the_reserve_and_claims_of_others_do() -> None:
    disk = FakeDisk(space=200_000)
    server = server_with(Quota("*", requests_per_s=1e6), disk=disk, reserve_bytes=100_000)
    assert isinstance(claims(server, "shop.w0"), m.DirectoryOpened)
    server.event(v.SpaceSeen(105_000, 200_000, server.core.room_bytes))
    refused = claims(server, "shop.w1")
    assert code_of(refused) == ErrorCode.NO_SPACE
    assert "the new directory shop.w1" in refused.message
    assert isinstance(claims(server, "shop.w0", 2), m.DirectoryOpened)
