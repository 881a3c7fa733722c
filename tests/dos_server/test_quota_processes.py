"""Quotas of real servers: the commands, the file that a server reads again, and the metrics."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dos_protocol import messages as m
from dos_protocol.errors import ErrorCode, LocalProtocolError
from dos_server.core.access import encode_settings
from dos_server.core.quotas import QUOTA_FILE_VERSION, Quota, QuotaFile, decode_quotas
from dos_server.watched_files import watched_quotas
from tests.dos_server.test_health import fetch
from tests.support.dos_command import dos
from tests.support.polling import until
from tests.support.servers import ServerProcess
from tests.support.wire import Wire

WAIT_S = 60.0


def written(path: Path, *listed: Quota) -> Path:
    path.write_bytes(encode_settings(QuotaFile(QUOTA_FILE_VERSION, listed)))
    return path


# --- the file and the commands ------------------------------------------------------------------------------


def test_the_file_says_what_is_wrong_with_it() -> None:
    file = QuotaFile(QUOTA_FILE_VERSION, (Quota("*", bytes_max=9), Quota("shop", requests_per_s=5, burst=9)))
    assert decode_quotas(encode_settings(file), "f") == file
    text = encode_settings(file).decode()
    for before, after, words in (
        ('"version": 1', '"version": 2', "has version 2; this program reads version 1"),
        ('"prefix": "shop"', '"prefix": "shop/x"', "'shop/x' is no directory"),
        ('"prefix": "shop"', '"prefix": "*"', "prefix '*' has two quotas"),
        ('"bytes_max": 9', '"bytes_max": -1', "a limit of '*' is negative"),
        ('"bytes_max": 9', '"bytes_max": null', "the quota of '*' limits nothing"),
        ('"requests_per_s": 5', '"requests_per_s": 0.5', "at least 1 is needed"),
        ('"requests_per_s": 5,', '"bytes_max": 5,', "needs a rate of requests"),
        ('"bytes_max": 9', '"bytes": 9', "unknown field `bytes`"),
        ("]\n}", "]", "truncated"),
    ):
        assert before in text
        with pytest.raises(LocalProtocolError, match="quotas file f") as error:
            decode_quotas(text.replace(before, after, 1).encode(), "f")
        assert words in str(error.value)


def test_a_file_that_becomes_invalid_changes_nothing_until_it_is_valid_again(tmp_path: Path) -> None:
    path = written(tmp_path / "quotas.json", Quota("shop", bytes_max=9))
    there = watched_quotas(path)
    path.write_bytes(b"{")
    assert not there.look()
    assert "quotas file" in there.problem
    assert there.settings == (Quota("shop", bytes_max=9),)
    written(path, Quota("shop", bytes_max=10))
    assert there.look()
    assert (there.problem, there.settings) == ("", (Quota("shop", bytes_max=10),))


def test_the_commands_change_the_file_and_refuse_what_makes_no_sense(tmp_path: Path) -> None:
    path = tmp_path / "quotas.json"

    def refused(*arguments: Any, code: int = 2) -> str:
        done = dos("quota", *arguments)
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        return done.stderr

    assert "limits nothing" in refused("set", path, "shop")
    assert "invalid size 'much'" in refused("set", path, "shop", "--bytes", "much")
    assert "'s/x' is no directory" in refused("set", path, "s/x", "--objects", 1)
    assert "cannot be read" in refused("rm", path, "shop")
    assert not path.exists()
    assert dos("quota", "set", path, "shop", "--bytes", "10GB", "--requests", 500).returncode == 0
    assert dos("quota", "set", path, "*", "--connections", 9, "--objects", 7).returncode == 0
    assert dos("quota", "set", path, "shop", "--bytes", "1MiB").returncode == 0
    listed = json.loads(dos("quota", "ls", path, "--json").stdout)
    assert listed == [
        {"prefix": "*", "objects_max": 7, "connections_max": 9},
        {"prefix": "shop", "bytes_max": 1 << 20},
    ]
    assert "1,048,576" in dos("quota", "ls", path).stdout
    assert "has no quota of 'prices'; it has *, shop" in refused("rm", path, "prices", code=1)
    assert dos("quota", "rm", path, "shop").stdout == "removed: shop\n"
    path.write_text("{")
    bad = dos("serve", "--data", tmp_path / "d", "--quotas", path)
    assert (bad.returncode, (tmp_path / "d").exists()) == (2, False)
    assert "quotas file" in bad.stderr


def append(server: ServerProcess, directory: str, name: str) -> Any:
    """Append 600 bytes to a new object. Returns the first answer."""
    with Wire(server.address) as wire:
        wire.ask(m.ChangeDirectory(directory))
        wire.append(name, b"", bytes(600))
        return wire.receive()


def quota_used(server: ServerProcess, name: str = "used") -> dict[tuple[str, str], float]:
    """The samples of a figure of quotas, by prefix and limit."""
    families = text_string_to_metric_families(fetch(server, "/metrics")[1])
    samples = [one for family in families for one in family.samples]
    return {
        (one.labels["prefix"], one.labels["what"]): one.value
        for one in samples
        if one.name == f"dos_server_quota_{name}"
    }


def test_a_running_server_notices_other_quotas_and_counts_again_after_a_restart(tmp_path: Path) -> None:
    path = written(tmp_path / "quotas.json")
    options = ("--quotas", str(path), "--metrics", "127.0.0.1:0")
    with ServerProcess(tmp_path / "data", options=options) as server:
        assert isinstance(append(server, "shop", "a"), m.DurabilityAck)
        assert dos("quota", "set", path, "shop", "--bytes", "1000").returncode == 0
        until(lambda: ("shop", "bytes") in quota_used(server), "it has the quota", WAIT_S)
        assert quota_used(server)["shop", "bytes"] == 600
        assert quota_used(server)["shop", "directories"] == 1
        refused = append(server, "shop.w0", "b")
        text = "the quota of 'shop' is 1000 bytes: 600 are used, 600 more wanted; nothing was done"
        assert (ErrorCode(refused.code), refused.message) == (ErrorCode.QUOTA_EXCEEDED, text)
        until(lambda: quota_used(server, "refusals_total")["shop", "bytes"] == 1, "a refusal", WAIT_S)
        server.kill()
        server.restart()
        assert append(server, "shop.w0", "b").message == text, "before the other directory was loaded"
        with Wire(server.address) as wire:
            wire.ask(m.ChangeDirectory("shop"))
            assert wire.ask(m.Delete("a")) == m.Deleted("a")
        assert isinstance(append(server, "shop.w0", "b"), m.DurabilityAck), "deletion has made room"
        path.write_text("{")
        until(lambda: "quotas file" in server.log_path.read_text(), "the log says why it is not used", WAIT_S)
        assert append(server, "shop.w0", "c").actual == 1000, "the quota from before is in force"


def test_above_the_rate_requests_are_answered_later_and_none_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "quotas.json", Quota("shop", requests_per_s=20, burst=5))
    with (
        ServerProcess(tmp_path / "data", options=("--quotas", str(path))) as server,
        Wire(server.address) as shop,
        Wire(server.address) as other,
    ):
        shop.ask(m.ChangeDirectory("shop"))
        other.ask(m.ChangeDirectory("other"))
        begun = time.monotonic()
        for _ in range(4):
            requests = [shop.send(m.Stat("none")) for _ in range(6)]
            codes = {shop.answer(one).code for one in requests}
            assert codes == {ErrorCode.NOT_FOUND}
            assert other.ask(m.Ping(b"x")) == m.Pong(b"x")
        assert time.monotonic() - begun > (4 * 6 - 5 - 1) / 20, "24 requests, of which 5 come at once"
