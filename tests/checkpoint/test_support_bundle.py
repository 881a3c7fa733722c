"""`dos support-bundle` on a real store: what it collects, and that no secret of the machine is in it."""

import base64
import json
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.dos_command import dos
from tests.support.servers import ServerProcess, url_of

pytestmark = pytest.mark.process

TOKEN = "plum-tree/9+teapot"
PASSWORD = "correct horse battery"
LOG = f"""old line
2026-11-27 20:00:00 WARNING a member is silent
connecting to https://ann:{PASSWORD.replace(" ", "-")}@proxy:3128
hello, token {TOKEN}, again {base64.b64encode(TOKEN.encode()).decode()}
password = {PASSWORD.split()[0]}
"""


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("token") / "token"
    path.write_text(f"{TOKEN}\n")
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, token: Path) -> Iterator[str]:
    """A store of two that has an object, and what the driver of a region claims."""
    place = tmp_path_factory.mktemp("servers")
    options = ("--token-file", str(token))
    with ExitStack() as stack:
        servers = [stack.enter_context(ServerProcess(place / name, options=options)) for name in ("a", "b")]
        url = url_of(servers)
        for words in (
            ["store", "init", url],
            ["append", f"{url}/notes/greetings", token],
            ["append", f"{url}/wordcount.coord/manifest", token],
        ):
            done = dos(*words, *options)
            assert done.returncode == 0, done.stderr
        yield url


def files_of(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_no_secret_is_in_the_bundle_and_all_else_is(
    store: str, token: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (log := tmp_path / "server.log").write_text(LOG)
    (settings := tmp_path / "dos.toml").write_text(
        f'# password: {PASSWORD}\nstore = "{store}"\ntoken_file = "{token}"\n'
    )
    monkeypatch.setenv("DOS_CONFIG", str(settings))
    monkeypatch.setenv("DOS_DATABASE_PASSWORD", PASSWORD)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", PASSWORD)
    done = dos("support-bundle", "--output", tmp_path / "b.zip", "--log", log, "--log-lines", 4)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "b.zip").stat().st_mode & 0o077 == 0
    files = files_of(tmp_path / "b.zip")
    whole = "\n".join([*files, *files.values()])
    for secret in (TOKEN, PASSWORD, PASSWORD.replace(" ", "-"), base64.b64encode(TOKEN.encode()).decode()):
        assert secret not in whole
    assert len(json.loads(files["store/status.json"])["store"]["members"]) == 2
    assert "notes" in files["store/directories.json"]
    assert json.loads(files["store/verify.json"])
    assert json.loads(files["versions.json"])["installed"]["dos-journal"]
    assert json.loads(files["environment.json"])["DOS_CONFIG"] == str(settings)
    assert "AWS_SECRET_ACCESS_KEY" not in whole
    assert "token_file" in files["configuration/dos.toml"]
    assert "a member is silent" in files["logs/0-server.log"]
    assert "old line" not in files["logs/0-server.log"]
    assert json.loads(files["regions/wordcount/status.json"])["name"] == "wordcount"
    about = json.loads(files["bundle.json"])
    assert (about["format"], about["version"]) == ("dos-support-bundle", 1)
    assert set(about["files"]) | {"bundle.json"} == set(files)


def test_a_dry_run_lists_and_writes_nothing(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = dos("support-bundle", store, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert f"dos store verify {store} --json" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_cannot_be_reached_keeps_nothing_else_out(tmp_path: Path) -> None:
    path = tmp_path / "b.zip"
    assert dos("support-bundle", "dos://127.0.0.1:1", "--output", path, "--no-verify").returncode == 0
    files = files_of(path)
    assert "exit code 3" in files["store/status.json.error"]
    assert files["machine.json"]
    again = dos("support-bundle", "--output", path)  # no store is named, which is no error
    assert again.returncode == 2
    assert f"{path}: File exists" in again.stderr
