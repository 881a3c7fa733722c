"""A forked server starts, ends and fails as one that a new interpreter runs."""

import os
from pathlib import Path

import pytest

from dos_chaos import ServerStartError, servers
from tests.support.servers import ServerProcess

KINDS = pytest.mark.parametrize("kind", [servers.ServerProcess, ServerProcess], ids=["started", "forked"])


@KINDS
def test_it_is_a_child_of_the_tests_and_ends_as_it_is_told(
    kind: type[servers.ServerProcess], tmp_path: Path
) -> None:
    with kind(tmp_path / "data") as server:
        status = Path(f"/proc/{server.pid}/status").read_text()
        assert f"PPid:\t{os.getpid()}\n" in status
        first, identity = server.pid, server.server_id
        assert server.stop() == 0
        server.restart()
        assert (server.pid != first, server.server_id) == (True, identity)
        server.pause()
        server.resume()
        server.kill()
        assert (server.process.returncode, server.running) == (-9, False)


@KINDS
def test_it_has_its_own_options_and_environment_and_reports_why_it_does_not_start(
    kind: type[servers.ServerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for size, has_log in (("1", True), ("0", False)):
        monkeypatch.setenv("DOS_GROUP_LOG", size)
        with kind(tmp_path / size) as server:
            assert any(path.name.startswith("log") for path in server.data.rglob("*")) is has_log
    with kind(tmp_path / "data") as server:
        with pytest.raises(ServerStartError, match="no-such-option"):
            kind(tmp_path / "other", options=("--no-such-option",))
        with pytest.raises(ServerStartError, match="in use by another server"):
            kind(tmp_path / "data")


def test_two_servers_have_nothing_in_common(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "a") as one, ServerProcess(tmp_path / "b") as other:
        assert one.server_id != other.server_id
        links = [
            {str(link.readlink()) for link in Path(f"/proc/{server.pid}/fd").iterdir()}
            for server in (one, other)
        ]
        shared = {link for link in links[0] & links[1] if not link.startswith(("/dev/", "anon_inode:"))}
        assert not shared
