"""Requests that no browser of ours sends: hostile Host headers, names that are URLs, absurd sizes."""

import json
import socket
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote, urlencode

import pytest
import trio

from dos_client import init_store
from dos_server import embedded
from dos_ui.serving import PageServer

pytestmark = pytest.mark.process

LONG: Final = "a" * 5_000
DEEP: Final = "[" * 50_000
NO_NAMES: Final = (
    LONG,
    "../x",
    "a/b",
    "",
    ".",
    "a b",
    "a\x1b[2J",
    "ä",
    "a?b",
    "c+s3://b/k?endpoint=http://h",
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    """A page of a store of one server."""
    with embedded.start(tmp_path_factory.mktemp("page") / "data") as server:
        trio.run(init_store, server.url)
        location = server.url.removeprefix("dos://")
        with PageServer([location], "127.0.0.1", 0, b"", {}) as page:
            yield page


def send(page: PageServer, method: str, target: str, *headers: str, body: bytes = b"") -> tuple[int, bytes]:
    """Send these very bytes as a request. Return the status and all of the answer."""
    host, _, port = page.url.removeprefix("http://").partition("/")[0].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as peer:
        lines = [f"{method} {target} HTTP/1.1", *headers, f"Content-Length: {len(body)}", "Connection: close"]
        peer.sendall("\r\n".join([*lines, "", ""]).encode("utf-8") + body)
        answer = b"".join(iter(lambda: peer.recv(65536), b""))
    return int(answer.split(b" ", 2)[1]), answer


def key_of(page: PageServer) -> str:
    return f"Authorization: Bearer {page.url.partition('key=')[2]}"


def ours(page: PageServer) -> str:
    return f"Host: {page.url.removeprefix('http://').partition('/')[0]}"


HOSTS: Final = (
    "a/page/?", "a/page/", "127.0.0.1/page/?", "127.0.0.1:1/page/#", "x@127.0.0.1", "a?key=1", "evil.example",
    "evil.example:4050", "localhost.evil.example", "[::1]/page/", "", "127.0.0.1\t/page/?", "[]",
    "localhost:4050:1",
)  # fmt: skip


@pytest.mark.parametrize("host", HOSTS)
def test_no_host_header_opens_the_page_without_its_key(page: PageServer, host: str) -> None:
    for method, target in (
        ("GET", "/api/directories"),
        ("GET", "/api/records?directory=a&name=b"),
        ("POST", "/api/regions/words/pause"),
        ("GET", "/"),
    ):
        code, answer = send(page, method, target, f"Host: {host}")
        assert 400 <= code < 500, answer
        with_key, answer = send(page, method, target, f"Host: {host}", key_of(page))
        assert 400 <= with_key < 500, "a name that is not the page's is refused with the key, too"


def test_the_page_answers_by_its_own_names(page: PageServer) -> None:
    port = ours(page).rpartition(":")[2]
    for name in ("127.0.0.1", "localhost", "LOCALHOST", "[::1]", socket.gethostname(), "192.0.2.7"):
        assert send(page, "GET", "/api/directories", f"Host: {name}:{port}", key_of(page))[0] == 200
        assert send(page, "GET", "/api/directories", f"Host: {name}:{port}")[0] == 401
    assert send(page, "GET", "/api/directories", ours(page), "Host: evil.example", key_of(page))[0] in (
        400,
        421,
    )


def test_paths_beside_the_files_of_the_page_need_the_key(page: PageServer) -> None:
    for target in (
        "/page/../api/directories", "/page/%2e%2e/api/directories", "//page/../api/directories",
        "http://a/page/?/../api/directories", "/api/directories?/page/", "/api/directories#/page/",
    ):  # fmt: skip
        code, answer = send(page, "GET", target, ours(page))
        assert (400 <= code < 500, b'"kind"' in answer) == (True, False), answer


def test_a_name_in_a_request_is_a_name_and_nothing_else(
    page: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-this-machine")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-this-machine")
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        endpoint = f"http://127.0.0.1:{stranger.getsockname()[1]}"
        for name in (
            f"c+s3://bucket/key?endpoint={endpoint}",
            f"s3://bucket/key?endpoint={endpoint}",
            "/etc",
        ):
            for names in ({"directory": "d", "name": name}, {"directory": name, "name": "c"}):
                target = f"/api/records?{urlencode(names)}"
                code, answer = send(page, "GET", target, ours(page), key_of(page))
                assert (code, b"a name must match" in answer) == (400, True), answer
        stranger.setblocking(False)
        with pytest.raises(BlockingIOError):
            stranger.accept()


def targets_of(name: str) -> list[str]:
    told = quote(name, safe="")
    return [
        f"/api/records?directory={told}&name=c",
        f"/api/records?directory=d&name={told}",
        f"/api/objects?directory={told}",
        f"/api/state?region={told}",
        f"/api/regions/{told}",
        *([f"/api/events?region={told}"] if name else []),
    ]


@pytest.mark.parametrize("name", NO_NAMES, ids=range(len(NO_NAMES)))
def test_what_is_no_name_is_refused_with_4xx(page: PageServer, name: str) -> None:
    for target in targets_of(name):
        code, answer = send(page, "GET", target, ours(page), key_of(page))
        assert 400 <= code < 500, (target, answer)
        assert b"Traceback" not in answer


@pytest.mark.parametrize(
    "target",
    [
        f"/api/records?directory=d&name=c&pattern={'(' * 5_000}",
        f"/api/records?directory=d&name=c&pattern={'(' * 1_000}{')' * 1_000}",
        f"/api/records?directory=d&name=c&begin={'9' * 5_000}",
        "/api/records?directory=d&name=c&begin=%d9%a3",
        f"/api/state?region=r&checkpoint={'9' * 5_000}",
        f"/{LONG}",
    ],
)
def test_absurd_values_are_refused_with_4xx(page: PageServer, target: str) -> None:
    code, answer = send(page, "GET", target, ours(page), key_of(page))
    assert 400 <= code < 500, answer


@pytest.mark.parametrize(
    "body",
    [DEEP, "[]", "{", '{"name": ' + DEEP, json.dumps({"name": "x" * 70_000}), '{"workers": 1e999}', "\x00"],
    ids=range(7),
)
def test_a_body_that_is_no_request_is_refused_with_4xx(page: PageServer, body: str) -> None:
    for target in ("/api/regions/r/savepoint", f"/api/regions/{LONG}/savepoint", f"/api/regions/r/{LONG}"):
        code, answer = send(page, "POST", target, ours(page), key_of(page), body=body.encode())
        assert 400 <= code < 500, answer


def test_two_hundred_headers_are_refused_without_a_traceback(page: PageServer) -> None:
    many = [f"X-{index}: 1" for index in range(2_000)]
    code, answer = send(page, "GET", "/api/directories", ours(page), *many)
    assert 400 <= code < 500, answer
