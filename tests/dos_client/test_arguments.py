"""What can never be answered is an error at once: wrong arguments, a store of another run, a taken name."""

import base64
import json
import string
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from dos_client.errors import BadUrlError, QuorumUnavailableError
from dos_client.live_store import Store
from dos_client.redacting import REMOVED, Redactor, names_secret, secrets_in
from dos_client.store import connect, open_store
from dos_client.tasks import AT_ONCE, read_each
from dos_client.urls import DosUrl, loopback_among, parse_address, parse_url, split_address
from dos_client.writing.object_writer import ObjectWriter
from dos_protocol.errors import BadNameError, DosError, LocalProtocolError
from dos_server.testing import MemoryServer, Servers, memory_store

ID = b"w" * 16


async def read_all(store: Store, *arguments: Any) -> None:
    async for _ in store.stream("d", "o", *arguments):
        pass


async def follow_some(store: Store, offset: Any) -> None:
    await anext(store.follow("d", "o", offset))


CALLS: dict[str, Callable[[Store], Awaitable[object]]] = {
    "claim: a fraction for an epoch": lambda store: store.claim("d", 1.5, ID),  # type: ignore[arg-type]
    "claim: a truth value for an epoch": lambda store: store.claim("d", True, ID),
    "claim: epoch 0": lambda store: store.claim("d", 0, ID),
    "claim: an epoch of 65 bits": lambda store: store.claim("d", 1 << 64, ID),
    "claim: text for a writer id": lambda store: store.claim("d", 1, "w" * 16),  # type: ignore[arg-type]
    "claim: a short writer id": lambda store: store.claim("d", 1, b"w"),
    "claim: no directory": lambda store: store.claim(None, 1, ID),  # type: ignore[arg-type]
    "claim: bytes for a directory": lambda store: store.claim(b"d", 1, ID),  # type: ignore[arg-type]
    "look: no directory": lambda store: store.inspect(None),  # type: ignore[arg-type]
    "list: no prefix": lambda store: store.list_directories(None),  # type: ignore[arg-type]
    "read: a negative length": lambda store: store.read("d", "o", 0, -1),
    "read: a negative offset": lambda store: store.read("d", "o", -1, 1),
    "read: a fraction": lambda store: store.read("d", "o", 0, 0.5),  # type: ignore[arg-type]
    "read: no name": lambda store: store.read("d", None, 0, 1),  # type: ignore[arg-type]
    "read: no directory": lambda store: store.read(None, "o", 0, 1),  # type: ignore[arg-type]
    "committed read: a negative length": lambda store: store.read("d", "o", 0, -1, committed=True),
    "stream: a negative offset": lambda store: read_all(store, -1),
    "stream: text for an end": lambda store: read_all(store, 0, "9"),
    "follow: a negative offset": lambda store: follow_some(store, -1),
    "stat: no name": lambda store: store.stat("d", None),  # type: ignore[arg-type]
    "stat: no directory": lambda store: store.stat(None, "o"),  # type: ignore[arg-type]
    "stat: a negative size": lambda store: store.stat("d", "o", -1),
}


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        with trio.fail_after(60):
            await main()

    trio.run(bounded, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_an_argument_of_a_wrong_type_or_range_is_an_error_at_once(
    call: Callable[[Store], Awaitable[object]],
) -> None:
    async def main() -> None:
        async with memory_store(seed=1) as servers, open_store(servers.url) as store:
            begun = trio.current_time()
            with pytest.raises(DosError):
                await call(store)
            assert trio.current_time() == begun

    run(main)


@pytest.mark.parametrize("url", [None, b"dos://h", 7])
@pytest.mark.parametrize("opening", [connect, open_store])
def test_a_url_that_is_no_text_is_refused(opening: Callable[[Any], Any], url: object) -> None:
    async def main() -> None:
        with pytest.raises(DosError, match="a URL must be text"):
            async with opening(url):
                pass

    run(main)


def test_a_new_object_of_a_name_that_is_taken_is_refused() -> None:
    async def main() -> None:
        async with memory_store(seed=1) as servers, open_store(servers.url) as store:
            async with await store.claim("d", 1, ID) as claim:
                writer = claim.open_object("o")
                await writer.wait_synced(writer.append(b"some"))
            async with await store.claim("d", 2, ID) as claim:
                with pytest.raises(LocalProtocolError, match="d/o exists on 3 members"):
                    claim.open_object("o")
                writer = claim.open_object("other")
                await writer.wait_synced(writer.append(b"more"))

    run(main)


@asynccontextmanager
async def new_object() -> AsyncGenerator[tuple[Servers[MemoryServer], Store, ObjectWriter]]:
    """An object in a store in memory, opened for writing."""
    async with (
        memory_store(seed=1) as servers,
        open_store(servers.url) as store,
        await store.claim("d", 1, ID) as claim,
    ):
        yield servers, store, claim.open_object("o")


def test_what_was_never_appended_is_not_waited_for() -> None:
    async def main() -> None:
        async with new_object() as (_, _, writer):
            size = writer.append(b"some")
            for wait in (writer.wait_synced, writer.wait_received):
                for wrong in (size + 1, 0.5, None):
                    with pytest.raises(LocalProtocolError, match="size must be a whole number"):
                        await wait(wrong)  # type: ignore[arg-type]
            await writer.wait_synced(size)

    run(main)


def test_a_store_of_another_run_is_an_error_at_once() -> None:
    """In the other run nothing would ever answer."""

    async def main() -> None:
        async with new_object() as (servers, store, writer):
            await writer.wait_synced(writer.append(b"some"))
            await store.read("d", "o", 0, 4)
            for server in servers.servers[1:]:
                server.crash()
            size = writer.append(b"more")
            calls: list[Callable[[], Awaitable[object]]] = [
                lambda: store.read("d", "o", 0, 4),
                lambda: store.read("d", "o", 0, 4, committed=True),
                lambda: read_all(store),
                lambda: store.inspect("d"),
                lambda: store.list_directories(),
                lambda: store.stat("d", "o"),
                lambda: store.ping(),
                lambda: store.claim("d", 2, ID),
                lambda: writer.wait_synced(size),
            ]

            def elsewhere() -> list[str]:
                return [trio.run(one_call, call) for call in calls]

            async def one_call(call: Callable[[], Awaitable[object]]) -> str:
                with trio.move_on_after(5):
                    try:
                        await call()
                    except LocalProtocolError as error:
                        return str(error)
                    return "answered"
                return "hangs"

            found = await trio.to_thread.run_sync(elsewhere)
            assert [one for one in found if "another trio.run" not in one] == []

    trio.run(main)


def test_the_default_port_is_put_in() -> None:
    assert parse_url("dos://h1,h2:7/app.coord/manifest") == DosUrl(
        ("h1:9999", "h2:7"), "app.coord", "manifest"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dos://h", DosUrl(("h:9999",))),
        ("dos://h/", DosUrl(("h:9999",))),
        ("dos://h/d/", DosUrl(("h:9999",), "d")),
        ("dos://127.0.0.1:1/d", DosUrl(("127.0.0.1:1",), "d")),
        ("dos://[::1]:5,[fe80::1%eth0]", DosUrl(("[::1]:5", "[fe80::1%eth0]:9999"))),
        ("dos://HOST:80", DosUrl(("host:80",))),
    ],
)
def test_forms_that_are_urls(text: str, expected: DosUrl) -> None:
    assert parse_url(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "dos:/h", "http://h", "dos://", "dos:///d", "dos://h,", "dos://h,,g", "dos://h:", "dos://h:0"),
        *(
            "dos://h:65536",
            "dos://h:9x",
            "dos://h:-1",
            "dos://h:1:2",
            "dos://a b",
            "dos://h:1,h:1",
            "dos://::1",
        ),
        *("dos://h/d/o/x", "dos://[::1", "dos://h\n", "dos://h:٣", "dos://-h", "dos://h-"),
        "dos://" + ",".join(f"h{i}" for i in range(17)),
    ],
)
def test_what_is_no_url_is_refused_by_name(text: str) -> None:
    with pytest.raises(BadUrlError):
        parse_url(text)


@pytest.mark.parametrize(
    "text", ["dos://h//o", "dos://h/../x", "dos://h/d/.x", "dos://h/~", "dos://h/d/\u2024\u2024"]
)
def test_names_in_a_url_keep_the_grammar(text: str) -> None:
    with pytest.raises(BadNameError):
        parse_url(text)


def test_the_same_server_with_and_without_its_default_port_is_named_twice() -> None:
    with pytest.raises(BadUrlError, match="names a server twice"):
        parse_url("dos://h,H:9999")


@given(st.text(max_size=80))
def test_any_text_is_a_url_or_one_of_two_errors(text: str) -> None:
    try:
        parsed = parse_url("dos://" + text)
    except (BadUrlError, BadNameError):
        return
    assert parse_url(str(parsed)) == parsed


def test_an_address_splits_into_what_a_socket_wants() -> None:
    assert split_address(parse_address("[::1]:5")) == ("::1", 5)
    assert split_address(parse_address("h")) == ("h", 9999)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "[0:0::0]"])
def test_a_wildcard_is_no_address_of_a_server(host: str) -> None:
    with pytest.raises(BadUrlError, match="every address of a server's own machine") as refused:
        parse_url(f"dos://h1,{host}:9999")
    assert "at which other machines reach it" in str(refused.value)


@pytest.mark.parametrize(
    ("addresses", "alone"),
    [
        (["h1:1", "10.0.0.1:1"], ""),
        (["127.0.0.1:1", "localhost:2", "[::1]:3"], ""),
        (["h1:1", "127.0.0.2:1"], "127.0.0.2:1"),
        (["[::1]:1", "10.0.0.1:1"], "[::1]:1"),
        ([], ""),
    ],
)
def test_members_on_loopback_are_together(addresses: list[str], alone: str) -> None:
    assert loopback_among(addresses) == alone


secrets = st.text(string.ascii_letters + string.digits + "+/_-.$\"'\\ %é", min_size=1).filter(
    lambda text: any(map(str.isalnum, text.strip()))
)
FORMS = {
    "plain": lambda text: text,
    "json": lambda text: json.dumps({"a": text}),
    "repr": repr,
    "url": lambda text: quote(text, safe=""),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "line": lambda text: base64.b64encode(text.encode() + b"\n").decode().rstrip("="),
    "hex": lambda text: text.encode().hex(),
    "upper-case hex": lambda text: text.encode().hex().upper(),
}


@given(secrets, st.sampled_from(sorted(FORMS)))
def test_a_known_secret_is_removed_in_each_form(secret: str, form: str) -> None:
    printed = FORMS[form](secret)
    text = Redactor([secret]).redacted(f"before {printed} after")
    assert REMOVED in text
    assert text.startswith("before ")
    assert text.endswith(" after")
    assert secret.strip() not in text.removeprefix("before ").removesuffix(" after")


@given(st.binary(max_size=7), st.text(string.ascii_letters, min_size=12), st.binary(max_size=7))
def test_a_known_secret_is_removed_within_base64(before: bytes, secret: str, after: bytes) -> None:
    """As in `Basic` authentication, which has user and password."""
    printed = base64.b64encode(before + secret.encode() + after).decode()
    text = Redactor([secret]).redacted(printed)
    assert REMOVED in text
    for part in text.split(REMOVED):
        assert len(part) <= 14, "only what is around it is left, and parts of two characters"


@pytest.mark.parametrize(
    "text",
    [
        "password = hunter2",
        'PASSWORD: "hunter2"',
        '{"db_password": "hunter2"}',
        "--token=hunter2",
        "AWS_SECRET_ACCESS_KEY=hunter2",
        "https://ann:hunter2@proxy:3128/x",
        "https://hunter2@host/x",
        "Authorization: Basic hunter2hunter2",
        "sent Bearer hunter2hunter2 to",
        "dos ui: open http://127.0.0.1:4050/?key=hunter2",
        "GET /?a=1&key=hunter2 HTTP/1.1",
        "Cookie: a=b; dos_page=hunter2; c=d",
        "GET /x?X-Amz-Signature=hunter2&y=1",
        "-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nhunter2 and the end of the log",
    ],
)
def test_what_looks_like_a_secret_is_removed(text: str) -> None:
    assert "hunter2" not in Redactor([]).redacted(text)


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-27 20:00:00 WARNING listening on 10.0.0.1:9999 without TLS",
        "token_file = '/etc/dos/token'",
        "dos://h1:9999,h2:9999/notes/greetings",
        '{"digest": "0123456789abcdef", "synced": 12}',
    ],
)
def test_what_a_report_needs_stays(text: str) -> None:
    assert Redactor(["abc"]).redacted(text) == text


def test_json_without_secrets_is_json() -> None:
    value = {
        "password": 'a "b" c',
        "pin_token": 12,
        "tokens": None,
        "nested": [{"secret": ""}],
        "url": "dos://h",
    }
    found = json.loads(Redactor(['a "b" c']).redacted(json.dumps(value)))
    assert found == {**value, "password": REMOVED, "pin_token": REMOVED, "nested": [{"secret": REMOVED}]}


def test_a_short_secret_is_removed_as_a_word_and_not_as_a_letter() -> None:
    assert Redactor(["a"]).redacted("the token a is bad") == f"the token {REMOVED} is bad"


def test_variables_with_telling_names_are_secrets_and_places_of_secrets_are_not() -> None:
    variables = {
        "AWS_SECRET_ACCESS_KEY": "x1",
        "DOS_TOKEN_FILE": "/t",
        "DOS_STORE": "dos://h",
        "PGPASSWORD": "x2",
    }
    assert secrets_in(variables) == {"x1", "x2"}
    assert names_secret("DOS_TLS_KEY_PASSWORD")
    assert not names_secret("DOS_TLS_CERT")


@pytest.mark.trio
async def test_each_is_read_a_few_at_a_time_and_returned_in_order() -> None:
    busy, most = 0, 0

    async def read(name: str) -> str:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        await trio.testing.wait_all_tasks_blocked()
        busy -= 1
        return name.upper()

    names = [f"n{number:02d}" for number in reversed(range(3 * AT_ONCE))]
    assert [*(await read_each(names, read)).items()] == [(one, one.upper()) for one in sorted(names)]
    assert most == AT_ONCE


@pytest.mark.trio
async def test_the_first_error_ends_the_others_and_is_raised_as_it_is() -> None:
    async def read(name: str) -> None:
        if name == "bad":
            raise QuorumUnavailableError("two of three are away")
        await trio.sleep_forever()

    with pytest.raises(QuorumUnavailableError, match="two of three are away"):
        await read_each(["good", "bad"], read)
