"""Store records in the core: which one is kept, and which sessions it ends and refuses."""

import errno

import pytest

from dos_protocol import messages as m
from dos_protocol.errors import ErrorCode
from dos_protocol.store_record import Member, StoreRecord, encode_store_record
from tests.dos_server.core_requests import code_of
from tests.support.core_harness import SERVER_ID, Harness


def record(generation: int, *, server: bytes = SERVER_ID, store: bytes = b"s" * 16) -> bytes:
    members = (Member(server, "a:1"), Member(b"x" * 16, "b:1"))
    return encode_store_record(StoreRecord(store, generation, 1, members))


def test_a_store_record_is_kept_and_only_a_newer_one_replaces_it() -> None:
    server = Harness()
    session = server.connect()
    assert (
        code_of(server.ask(server.connect(), m.Configure(record(1, server=b"y" * 16))))
        == ErrorCode.NOT_A_MEMBER
    )
    assert server.ask(session, m.Configure(record(1))) == m.Configured(1)
    assert server.ask(session, m.Configure(record(1))) == m.Configured(1)
    assert server.ask(session, m.Configure(record(2))) == m.Configured(2)
    for offered, code in (
        (record(1), ErrorCode.STALE_GENERATION),
        (record(3, store=b"t" * 16), ErrorCode.WRONG_STORE),
        (b"junk", ErrorCode.BAD_FRAME),
    ):
        other = server.connect()
        answer = server.ask(other, m.Configure(offered))
        assert code_of(answer) == code
        assert other in server.closed
    server.restart()
    assert server.core.record_bytes == record(2)


def test_a_session_that_leaves_after_a_store_record_gets_its_bye_though_the_disk_fails() -> None:
    server = Harness()
    session = server.connect()
    server.disk.fail("write", errno.EIO)
    configured = server.send(session, m.Configure(record(1)))
    left = server.send(session, m.Quit())
    server.settle()
    assert code_of(server.answer(session, configured)) == ErrorCode.NO_SPACE
    assert isinstance(server.answer(session, left), m.Bye)
    assert session in server.closed


@pytest.mark.parametrize("call", ["write", "sync", "rename"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
def test_a_store_record_that_could_not_be_stored_is_stored_when_it_is_sent_again(
    call: str, number: int
) -> None:
    server = Harness()
    server.disk.fail(call, number)
    failed = code_of(server.ask(server.connect(), m.Configure(record(1))))
    assert failed in (ErrorCode.NO_SPACE, ErrorCode.BUSY)
    assert server.core.record_bytes == b""
    assert server.ask(server.connect(), m.Configure(record(1))) == m.Configured(1)


def test_a_newer_record_ends_the_sessions_of_the_older() -> None:
    server = Harness()
    admin = server.connect()
    server.ask(admin, m.Configure(record(1)))
    member = server.connect(m.Hello(store_id=b"s" * 16, generation=1))
    assert isinstance(server.heard[member][0][1], m.Welcome)
    server.ask(admin, m.Configure(record(2)))
    (error,) = server.unasked(member, m.Error)
    assert (code_of(error), error.record) == (ErrorCode.STALE_GENERATION, record(2))
    assert member in server.closed
    assert admin not in server.closed


@pytest.mark.parametrize(
    ("hello", "code"),
    [
        (m.Hello(version=2), ErrorCode.BAD_VERSION),
        (m.Hello(token=b"wrong"), ErrorCode.UNAUTHORISED),
        (m.Hello(token=b"secret", store_id=b"t" * 16, generation=1), ErrorCode.WRONG_STORE),
        (m.Hello(token=b"secret", store_id=b"s" * 16, generation=1), ErrorCode.STALE_GENERATION),
        (m.Hello(token=b"secret", store_id=b"s" * 16, generation=9), ErrorCode.STALE_GENERATION),
    ],
)
def test_a_hello_that_does_not_fit_is_refused_and_closed(hello: m.Hello, code: ErrorCode) -> None:
    server = Harness(token=b"secret")
    admin = server.connect(m.Hello(token=b"secret"))
    server.ask(admin, m.Configure(record(2)))
    session = server.connect(hello)
    ((_, answer),) = server.heard[session]
    assert code_of(answer) == code
    assert session in server.closed


def test_a_server_that_its_record_does_not_name_counts_for_nothing() -> None:
    server = Harness()
    admin = server.connect()
    server.ask(admin, m.Configure(record(1)))
    server.ask(admin, m.Configure(record(2, server=b"n" * 16)))
    session = server.connect(m.Hello(store_id=b"s" * 16, generation=2))
    assert code_of(server.heard[session][0][1]) == ErrorCode.NOT_A_MEMBER
