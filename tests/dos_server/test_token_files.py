"""A token file that holds no token, or cannot be read, ends every command before it does anything: an empty
token would let everybody in, and turn version 0 on."""

from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from dos_client.cli.kit import read_token
from dos_server.serve_cli import serve
from spark_integration.core.options import StoreOptions
from spark_integration.errors import BadOptionError
from spark_integration.reading.opening import with_token


def empty(path: Path) -> None:
    path.write_bytes(b"")


def blank(path: Path) -> None:
    path.write_bytes(b"\nsecret\n")


def folder(path: Path) -> None:
    path.mkdir()


def missing(path: Path) -> None:
    assert not path.exists()


def ends(call: Callable[[], object]) -> None:
    with pytest.raises(typer.Exit) as end:
        call()
    assert end.value.exit_code == 2


@pytest.mark.parametrize("make", [empty, blank, folder, missing])
def test_without_a_token_in_its_file_nothing_starts_and_nothing_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], None]
) -> None:
    path, data = tmp_path / "token", tmp_path / "data"
    make(path)
    ends(lambda: serve(data, listen="127.0.0.1:0", token_file=path))
    assert not data.exists()
    ends(lambda: read_token(path))
    assert capsys.readouterr().err.count(str(path)) == 2
    with pytest.raises(BadOptionError, match="tokenFile"):
        with_token(StoreOptions(servers="dos://a", token_file=str(path)))
