"""Gateways of a store with tokens: rights on the directory of the tree are enough, and are needed."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.dos_gateway.gateways import GatewayProcess, WebHdfsClient
from tests.support.dos_command import dos
from tests.support.polling import until
from tests.support.servers import ServerProcess

pytestmark = pytest.mark.process
GRANTS: Final = {
    "operator": "*:all",
    "whole": "orders:read,append,delete",
    "next": "orders:read,append,delete",
    "reader": "reading:read,delete",
    "other": "shop:read,append,delete",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The URL of a store with tokens, and their folder."""
    folder = tmp_path_factory.mktemp("tokens")
    for name, grant in GRANTS.items():
        out = ("--out", folder / name)
        assert dos("token", "add", folder / "tokens.json", name, "--grant", grant, *out).returncode == 0
    with ServerProcess(folder / "server", options=("--tokens", str(folder / "tokens.json"))) as server:
        assert dos("store", "init", server.url, "--token-file", folder / "operator").returncode == 0
        yield server.url, folder


def is_answered(client: WebHdfsClient) -> bool:
    try:
        return client.ask("GET", "OPEN", "/a").code == 200
    except TimeoutError:
        return False


def test_rights_on_one_directory_are_enough_and_a_new_token_replaces_a_revoked_one(
    store: tuple[str, Path], tmp_path: Path
) -> None:
    url, folder = store
    token = tmp_path / "token"
    token.write_bytes((folder / "whole").read_bytes())
    with GatewayProcess(f"{url}/orders", "--token-file", str(token)) as gateway:
        client = gateway.client
        assert client.put("/.a.tmp", b"x").code == 201
        assert client.rename("/.a.tmp", "/a").code == 200
        assert dos("token", "revoke", folder / "tokens.json", "whole").returncode == 0
        until(lambda: b"token 'whole' was revoked, or has expired" in gateway.log(), "it is revoked", 60)
        client._timeout_s = 2.0
        until(lambda: not is_answered(client), "the lease is over: nothing is answered", 60)
        (tmp_path / "new").write_bytes((folder / "next").read_bytes())
        os.replace(tmp_path / "new", token)  # noqa: PTH105 - at once
        until(lambda: is_answered(client), "it serves with the new token", 60)
        assert gateway.log().count(b"\n") < 12


@pytest.mark.parametrize(
    ("token", "why"),
    [
        ("reader", "token 'reader' has no right append in directory 'reading.fs'"),
        ("other", "token 'other' may not open directory 'reading.fs'"),
    ],
    ids=["append", "directory"],
)
def test_a_gateway_without_a_right_names_it(store: tuple[str, Path], token: str, why: str) -> None:
    url, folder = store
    with GatewayProcess(f"{url}/reading", "--token-file", str(folder / token)) as gateway:
        until(lambda: why.encode() in gateway.log(), "it names the right", 60)


@pytest.mark.long
def test_clients_of_a_gateway_without_a_right_see_which_one(store: tuple[str, Path]) -> None:
    url, folder = store
    with GatewayProcess(f"{url}/reading", "--token-file", str(folder / "reader")) as gateway:
        answer = gateway.client.ask("GET", "LISTSTATUS", "/")
        assert answer.refusal == "StandbyException"
        assert "token 'reader' has no right append" in answer.body.decode()
