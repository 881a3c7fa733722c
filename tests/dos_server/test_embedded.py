"""The server inside a process, and the command that starts one."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dos_cli.main import app
from dos_protocol import messages as m
from dos_protocol.errors import CorruptDataError
from dos_server import embedded
from tests.support.wire import Wire


def test_an_embedded_server_serves_until_it_is_stopped_and_keeps_its_objects(tmp_path: Path) -> None:
    server = embedded.start(tmp_path / "data")
    with Wire(server.address) as wire:
        assert wire.welcome.server_id.hex() == server.server_id
        wire.claim("dir")
        wire.append("o", b"", b"kept")
        wire.wait_synced("o", 4)
    server.stop()
    server.stop()
    with pytest.raises(OSError, match=r"."):
        Wire(server.address)
    with embedded.start(tmp_path / "data") as again, Wire(again.address) as wire:
        assert again.server_id == server.server_id
        wire.ask(m.ChangeDirectory("dir"))
        assert wire.ask(m.Get("o", 0, 10)).payload == b"kept"


def test_stopping_does_not_wait_for_peers_that_stay(tmp_path: Path) -> None:
    with embedded.start(tmp_path / "data") as server, Wire(server.address) as wire:
        wire.claim("dir")
        wire.send(m.Get("o", 0, 10, 60_000))
        server.stop()
        assert wire.ends()


def test_data_that_is_not_one_whole_servers_is_refused_and_let_go(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "identity").write_text("not an identity")
    for _ in range(2):  # the lock is free again after the refusal
        with pytest.raises(CorruptDataError, match="identity"):
            embedded.start(tmp_path / "data")


def test_serve_explains_itself_with_an_example() -> None:
    result = CliRunner().invoke(app, ["serve", "--help"])
    assert result.exit_code == 0
    for word in ("--data", "--listen", "--insecure", "Example", "--json"):
        assert word in result.output


@pytest.mark.parametrize("listen", ["127.0.0.1", "127.0.0.1:", "127.0.0.1:70000", "127.0.0.1:x", ":9"])
def test_an_address_that_is_none_is_refused_before_anything_is_made(tmp_path: Path, listen: str) -> None:
    result = CliRunner().invoke(app, ["serve", "--data", str(tmp_path / "x"), "--listen", listen])
    assert result.exit_code == 2
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("host", ["::1", "localhost"])
def test_loopback_has_other_names(tmp_path: Path, host: str) -> None:
    try:
        server = embedded.start(tmp_path / "data", host=host)
    except OSError:
        pytest.skip(f"no {host} here")
    with server:
        assert server.url.startswith("dos://")
        with Wire(server.address) as wire:
            assert wire.ask(m.Ping(b"x")) == m.Pong(b"x")
