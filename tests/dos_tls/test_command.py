"""`dos tls`: what it makes, what it shows, and that it overwrites nothing."""

import json
import stat
from pathlib import Path

import pytest

from dos_tls import WORKER_NAME
from dos_tls.authority import facts
from tests.support.certificates import Certificates, certificates
from tests.support.dos_command import dos

__all__ = ["certificates"]


def names_in(directory: Path) -> tuple[str, ...]:
    return facts(directory / "cert.pem").names


def test_init_makes_one_directory_for_each_end_that_only_its_owner_reads(tmp_path: Path) -> None:
    store = tmp_path / "tls"
    made = dos("tls", "init", store, "h1,10.0.0.1", "h2")
    assert made.returncode == 0, made.stderr
    assert made.stdout.split() == [str(store / one) for one in ("servers/h1", "servers/h2", "client")]
    assert names_in(store / "servers/h1") == ("h1", "10.0.0.1")
    assert names_in(store / "servers/h2") == ("h2",)
    assert names_in(store / "client") == (WORKER_NAME,)
    for path in store.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert not list(store.rglob("client/ca.key")), "the key of the authority is not copied"


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    store = tmp_path / "tls"
    assert dos("tls", "init", store, "h1").returncode == 0
    before = {path: path.read_bytes() for path in store.rglob("*.pem")}
    for refused in (dos("tls", "init", store, "h1"), dos("tls", "add", store, "h1")):
        assert refused.returncode == 2
        assert "nothing is overwritten" in refused.stderr
    assert {path: path.read_bytes() for path in store.rglob("*.pem")} == before


def test_add_and_renew_change_what_they_name_only(tmp_path: Path) -> None:
    store = tmp_path / "tls"
    assert dos("tls", "init", store, "h1").returncode == 0
    assert dos("tls", "add", store, "h2,h2b").returncode == 0
    before = {path: path.read_bytes() for path in store.rglob("*.pem")}
    renewed = dos("tls", "renew", store, "h2", "--days", "5")
    assert renewed.returncode == 0, renewed.stderr
    changed = {path for path in before if path.read_bytes() != before[path]}
    assert changed == {store / "servers/h2/cert.pem", store / "servers/h2/key.pem"}
    assert names_in(store / "servers/h2") == ("h2", "h2b")
    assert "5 days left" in dos("tls", "show", store / "servers/h2").stdout
    assert dos("tls", "renew", store).returncode == 0
    assert (store / "client/cert.pem").read_bytes() != before[store / "client/cert.pem"]
    assert dos("tls", "renew", store, "h9").returncode == 2
    short = dos("tls", "renew", store, "--days", "0.01")
    assert (short.returncode, "greater than or equal to 1" in short.stderr) == (2, True)
    for days, shown in (("1", "1 days left"), ("1.6", "2 days left")):
        assert dos("tls", "renew", store, "h1", "--days", days).returncode == 0
        assert shown in dos("tls", "show", store / "servers/h1").stdout, "counted from now"


def test_show_prints_names_and_dates_and_fails_for_an_expired_one(certificates: Certificates) -> None:
    shown = dos("tls", "show", certificates.server, "--json")
    assert shown.returncode == 0
    found = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [one["names"] for one in found] == [[], ["127.0.0.1", "localhost"]]
    expired = dos("tls", "show", certificates.expired.directory / "client")
    assert expired.returncode == 1
    assert f"{WORKER_NAME}; until" in expired.stdout
    assert "EXPIRED" in expired.stdout
    future = dos("tls", "show", certificates.future.directory / "client/cert.pem")
    assert (future.returncode, "not valid yet" in future.stdout) == (1, True)


@pytest.mark.parametrize("host", ["", "a,,b", "../x", "héé"])
def test_a_bad_name_is_refused(tmp_path: Path, host: str) -> None:
    refused = dos("tls", "init", tmp_path / "tls", host)
    assert refused.returncode == 2
    assert "host name" in refused.stderr
    assert not (tmp_path / "tls").exists(), "a second try must find nothing"


def test_a_directory_without_authority_is_refused_with_the_remedy(tmp_path: Path) -> None:
    refused = dos("tls", "add", tmp_path, "h1")
    assert refused.returncode == 2
    assert "dos tls init" in refused.stderr
