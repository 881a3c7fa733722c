"""The data directory of the server that the tests of one module share."""

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server") / "data"
