"""What Hadoop's client needs of an HTTP server, and what it must not be able to do by being late."""

import http.client
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

import pytest

from dos_gateway import webhdfs
from dos_gateway.core.confs import logical_name
from dos_gateway.core.hadoop import HadoopError, ascii_target, parts_of
from dos_gateway.limits import path_parts_max
from dos_gateway.serving import clock
from dos_server.testing import threaded_store
from tests.dos_gateway.gateways import PREFIX, WebHdfsClient, threaded_gateway
from tests.support.polling import until

HERE: Final = "127.0.0.1"
AHEAD_S: Final = [0.0]
"""How far the clock with which a gateway watches itself is ahead: it stood still."""


@pytest.fixture(scope="module")
def client() -> Iterator[WebHdfsClient]:
    with (
        pytest.MonkeyPatch.context() as patch,
        threaded_store() as servers,
        threaded_gateway(servers.url, "rules") as (port, _),
    ):
        patch.setattr(webhdfs, "clock", lambda: clock() + AHEAD_S[0])
        found = WebHdfsClient(port)
        found.put("/f", b"x")
        yield found


def test_answers_in_json_have_no_content_type(client: WebHdfsClient) -> None:
    """The class with which Hadoop's client would check it is not in Spark's jars."""
    for method, op, path in [
        ("GET", "GETFILESTATUS", "/f"),
        ("GET", "LISTSTATUS", "/"),
        ("PUT", "MKDIRS", "/d"),
    ]:
        answer = client.ask(method, op, path)
        assert answer.code == 200
        assert answer.json
        assert "content-type" not in {name.lower() for name in answer.headers}
    assert "content-type" not in {name.lower() for name in client.ask("GET", "OPEN", "/none").headers}


def test_a_body_has_a_port_of_its_own_whose_connection_ends_after_it(client: WebHdfsClient) -> None:
    """The JDK neither repeats a body nor notices that a pooled connection is dead."""
    at = urlsplit(client.ask("PUT", "CREATE", "/body", overwrite="true").headers["Location"])
    assert at.port == client.port + 1
    with socket.create_connection((HERE, at.port), timeout=60) as raw:
        raw.sendall(
            f"PUT {at.path}?{at.query} HTTP/1.1\r\nHost: {HERE}\r\nContent-Length: 1\r\n\r\ny".encode()
        )
        answer = b"".join(iter(lambda: raw.recv(1 << 16), b""))  # until its end
    assert answer.startswith(b"HTTP/1.1 201")
    assert re.search(rb"(?i)connection: close", answer)


def test_a_file_is_created_without_its_directory_only_if_the_client_allows_it(client: WebHdfsClient) -> None:
    """`createparent=false` is what Hadoop's createNonRecursive sends: its callers fence others by it."""
    refused = client.put("/parent/f", b"x", createparent="false")
    assert (refused.code, refused.refusal) == (404, "FileNotFoundException")
    assert "Parent directory doesn't exist: /parent" in refused.body.decode()
    assert client.ask("GET", "GETFILESTATUS", "/parent").code == 404
    assert client.put("/f/below", b"x", createparent="false").refusal == "ParentNotDirectoryException"
    assert client.put("/at-the-top", b"x", createparent="false").code == 201
    assert client.ask("PUT", "MKDIRS", "/parent").code == 200
    assert client.put("/parent/f", b"x", createparent="false").code == 201
    assert client.put("/another/f", b"x", createparent="true").code == 201
    first = client.ask("PUT", "CREATE", "/parent/late", overwrite="true", createparent="false")
    assert client.ask("DELETE", "DELETE", "/parent", recursive="true").json == {"boolean": True}
    at = urlsplit(first.headers["Location"])
    late = client.send("PUT", f"{at.path}?{at.query}", b"x", port=at.port or 0)
    assert late.refusal == "FileNotFoundException", "the directory was removed before its body came"


def test_what_was_sent_to_a_gateway_that_stood_still_is_not_executed(client: WebHdfsClient) -> None:
    """Its client has repeated it elsewhere, perhaps: a file may be deleted that was committed meanwhile."""
    with socket.create_connection((HERE, client.port), timeout=60) as raw:
        raw.sendall(f"GET {PREFIX}/f?op=GETFILESTATUS HTTP/1.1\r\nHost: {HERE}\r\n\r\n".encode())
        assert raw.recv(1 << 16).startswith(b"HTTP/1.1 200")
        AHEAD_S[0] += 5
        try:
            raw.sendall(f"DELETE {PREFIX}/f?op=DELETE HTTP/1.1\r\nHost: {HERE}\r\n\r\n".encode())
            assert raw.recv(1 << 16) == b""
        except ConnectionError:
            pass  # it was ended before

    def is_there() -> bool:
        with suppress(OSError, http.client.HTTPException):  # connections are refused for a moment
            assert client.put("/f", b"x").refusal == "FileAlreadyExistsException"
            return True
        return False

    until(is_there, "the gateway takes connections", 60)


def test_a_change_of_a_client_that_has_left_is_not_made(client: WebHdfsClient) -> None:
    with socket.create_connection((HERE, client.port), timeout=60) as raw:
        request = f"DELETE {PREFIX}/f?op=DELETE HTTP/1.1\r\nHost: {HERE}\r\n\r\n".encode()
        raw.send(request, socket.MSG_MORE)  # the end arrives with it: the gateway cannot be faster
        raw.shutdown(socket.SHUT_WR)
        assert raw.recv(1 << 16) == b""
    assert client.put("/f", b"x").refusal == "FileAlreadyExistsException"


def test_paths_are_sent_as_utf8_and_their_depth_has_a_bound() -> None:
    assert (
        ascii_target("PUT /\u00e9 HTTP/1.1\r\nA: \u00e9".encode())
        == "PUT /%C3%A9 HTTP/1.1\r\nA: \u00e9".encode()
    )
    deepest = "/a" * path_parts_max
    assert len(parts_of(deepest)) == path_parts_max
    with pytest.raises(HadoopError, match="at most 64 parts"):
        parts_of(f"{deepest}/a")


def test_a_name_is_one_for_each_store_and_tree_and_java_takes_it_for_a_host() -> None:
    """One JVM keeps a file system for each name: one for two stores would get the files of both."""
    places = [(store, tree) for store in (b"1" * 16, b"2" * 16) for tree in ("orders", "Orders", "orders_eu")]
    names = [logical_name(store, tree) for store, tree in places]
    assert len(set(names)) == len(places)
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in names)
