"""Fixtures of the tests of commands."""

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the token `open sesame, my 3 friends`."""
    path = tmp_path_factory.mktemp("token") / "token"
    path.write_text("open sesame, my 3 friends\n")
    return path
