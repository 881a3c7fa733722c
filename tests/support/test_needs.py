"""A test that lacks something skips and names it; where CI is set it fails, so that no test is omitted
there."""

from pathlib import Path

import pytest

from tests.support import needs, small_disk
from tests.support.strace import Injected


def test_what_is_lacking_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no such thing here"):
        needs.lacking("no such thing here")


def test_where_ci_is_set_what_is_lacking_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no such thing here"):
        needs.lacking("no such thing here")


def test_without_strace_or_mounts_the_reason_reports_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(pytest.skip.Exception, match="apt-get install strace"), Injected(1, tmp_path / "log"):
        pass
    monkeypatch.setattr(small_disk, "as_root", lambda: None)
    mounting = small_disk.small_disk(tmp_path / "disk", 1 << 20)
    with pytest.raises(pytest.skip.Exception, match="needs root"), mounting:
        pass


def test_a_process_that_is_missing_cannot_be_attached_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CI", raising=False)
    never = Injected(2**22 + 1, tmp_path / "log", "trace=fsync")  # above the highest number of a process
    with pytest.raises(pytest.skip.Exception, match=r"strace"), never:
        pass
