"""A gateway that other machines can reach: TLS, and a key that clients exchange for a bearer."""

import http.client
import json
import socket
import ssl
from functools import partial
from typing import Any

import pytest
import trio

from dos_client import open_store
from dos_gateway.gateway import Gateway
from dos_gateway.webhdfs import serve_gateway
from dos_server.testing import memory_store
from dos_tls import directory_settings
from tests.dos_gateway.gateways import PREFIX
from tests.support.certificates import Certificates, certificates
from tests.support.dos_command import dos

__all__ = ["certificates"]
KEY = "k3y-of-the-gateway-0123456789"


def ask(port: int, ca: str, method: str, target: str, body: str = "", bearer: str = "") -> tuple[int, Any]:
    connection = http.client.HTTPSConnection(
        "127.0.0.1", port, timeout=60, context=ssl.create_default_context(cafile=ca)
    )
    try:
        headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
        connection.request(method, target, body or None, headers)
        answer = connection.getresponse()
        data = answer.read()
        return answer.status, json.loads(data) if data else None
    finally:
        connection.close()


def plain(port: int) -> bytes:
    """What is answered to a client without TLS before the connection ends."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as raw:
        raw.sendall(f"GET {PREFIX}/?op=GETFILESTATUS HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        try:
            return raw.recv(100)
        except ConnectionError:
            return b""


def test_a_client_needs_the_key_and_the_certificate_is_checked(certificates: Certificates) -> None:
    trio.run(key_and_certificate, certificates)


async def key_and_certificate(certificates: Certificates) -> None:
    settings, ca = (
        directory_settings(str(certificates.server)),
        str(certificates.authority.directory / "ca.pem"),
    )
    async with memory_store() as servers, open_store(servers.url) as store, trio.open_nursery() as nursery:
        gateway = Gateway(store, "safe", served_at="here")
        serve = partial(serve_gateway, gateway, "127.0.0.1", 0, tls=settings, key=KEY)
        port: int = await nursery.start(lambda task_status: serve(task_status=task_status))

        async def send(method: str, target: str, body: str = "", bearer: str = "") -> tuple[int, Any]:
            return await trio.to_thread.run_sync(ask, port, ca, method, target, body, bearer)

        status = f"{PREFIX}/?op=GETFILESTATUS&user.name=root"
        assert (await send("GET", status))[0] == 401
        assert (await send("GET", status, bearer=KEY))[0] == 401
        assert (await send("POST", "/oauth2/token", "refresh_token=wrong"))[0] == 401
        code, token = await send("POST", "/oauth2/token", f"grant_type=refresh_token&refresh_token={KEY}")
        assert (code, token["token_type"]) == (200, "bearer")
        # The client would exchange the key again at one gateway only, which may be down.
        assert int(token["expires_in"]) > 365 * 24 * 3600
        code, found = await send("GET", status, bearer=token["access_token"])
        assert (code, found["FileStatus"]["type"]) == (200, "DIRECTORY")
        assert await trio.to_thread.run_sync(plain, port) == b""
        foreign = str(certificates.foreign.directory / "ca.pem")
        with pytest.raises(ssl.SSLError):
            await trio.to_thread.run_sync(ask, port, foreign, "GET", status)
        nursery.cancel_scope.cancel()


def test_other_machines_need_tls_and_a_key() -> None:
    done = dos("gateway", "serve", "dos://127.0.0.1:1/orders", "--listen", "0.0.0.0:9870")
    assert done.returncode == 2
    assert "listening on 0.0.0.0 needs --tls and --key-file, or --insecure" in done.stderr


def test_a_gateway_needs_the_name_of_a_tree() -> None:
    done = dos("gateway", "dos://127.0.0.1:1")
    assert done.returncode == 2
    assert "name the tree in the URL: dos://127.0.0.1:1/NAME" in done.stderr
