"""The data directory of the server that the tests of one module share."""

from pathlib import Path

import pytest

from tests.support.core_harness import Harness


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server") / "data"


@pytest.fixture(params=[False, True], ids=["at the start", "after a reload"])
def settings_twice(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test runs with tokens and quotas of the start, and again with those of a reload."""
    monkeypatch.setattr(Harness, "reloads", request.param)
