"""`dos bench` as a user runs it: on real servers, some of which are killed, full, in use, or wrong."""

import json
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from dos_bench import BenchRefusedError, measuring, visiting
from dos_bench.cli import COLUMNS
from dos_client import ObjectWriter, Store, connect, init_store, open_store
from dos_client.cli.kit import tool_writer_id
from dos_server.testing import memory_store, threaded_server, threaded_store
from tests.support.certificates import Certificates, certificates
from tests.support.dos_command import dos
from tests.support.servers import ServerProcess, one_server, server_without_log, three_servers, url_of

__all__ = ["certificates", "one_server", "server_without_log", "three_servers"]
pytestmark = pytest.mark.timeout(180)
LITTLE: Final = ("--seconds", "0.5", "--bytes", "4MiB", "--sizes", "100B,1KiB", "--writers", "1,3")
ROWS: Final = 2 * 2 + 3 + 4


def contents(url: str) -> dict[str, set[str]]:
    """Directory -> the objects that any member has."""
    listed = json.loads(dos("ls", url, "--json").stdout)
    return {
        row["name"]: {one["name"] for one in json.loads(dos("ls", f"{url}/{row['name']}", "--json").stdout)}
        for row in listed
    }


def assert_empty(url: str) -> None:
    found = contents(url)
    assert found, "directories stay"
    assert all(name.startswith("dos-bench.") for name in found if name != "dos.store")
    assert not any(found.values()), found


@pytest.fixture
def store(three_servers: list[ServerProcess]) -> str:
    """The URL of a store of three processes."""
    trio.run(init_store, url_of(three_servers))
    return url_of(three_servers)


@pytest.mark.process
def test_a_store_is_measured_compared_and_emptied_and_again(store: str) -> None:
    done = dos("bench", store, *LITTLE, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert len(result["rows"]) == ROWS
    assert all(row["samples"] for row in result["rows"] if row["what"] != "append, wait"), result["rows"]
    assert result["conditions"]["acknowledging"] == 2
    assert len(result["conditions"]["members"]) == 3
    assert not result["conditions"]["tls"]
    assert result["conditions"]["unavailable_meanwhile"] == result["left"] == []
    assert 0 < result["verified"]["bytes"] <= 4 << 20
    assert_empty(store)
    again = dos("bench", store, *LITTLE)
    assert again.returncode == 0, again.stderr
    assert "read back and compared" in again.stdout
    assert "durable when it is synced on 2 of 3" in again.stdout
    (header,) = (line for line in again.stdout.splitlines() if line.startswith(" what "))
    assert [name.removeprefix("#") for name in COLUMNS] == re.split(r"  +", header.strip())
    assert_empty(store)


@pytest.mark.parametrize("members", [1, pytest.param(5, marks=pytest.mark.long)])
def test_one_member_named_is_enough_for_a_store(members: int) -> None:
    with threaded_store(members) as servers:
        done = dos("bench", servers[0].url, *LITTLE, "--json")
        assert done.returncode == 0, done.stderr
        assert len(json.loads(done.stdout)["conditions"]["members"]) == members
        assert_empty(servers.url)


@pytest.mark.process
@pytest.mark.long
def test_a_server_without_a_store_is_measured_over_tls_with_a_token_of_one_prefix(
    tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, writer, tokens = (tmp_path / name for name in ("token", "writer", "tokens.json"))
    for out, name, rights in ((token, "team", "read,append,delete"), (writer, "writer", "read,append")):
        added = dos("token", "add", tokens, name, "--grant", f"team:{rights}", "--out", out)
        assert added.returncode == 0, added.stderr
    options = ("--tls", str(certificates.server), "--tls-client-auth", "--tokens", str(tokens))
    monkeypatch.setenv("DOS_TLS", str(certificates.client))
    with ServerProcess(tmp_path / "data", options=options) as server:
        refused = dos("bench", server.url, *LITTLE, "--token-file", token)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "may not" in refused.stderr
        assert "--prefix NAME" in refused.stderr
        refused = dos("bench", server.url, *LITTLE, "--token-file", writer, "--prefix", "team.bench")
        assert refused.returncode == 2, refused.stderr
        assert "has no right delete" in refused.stderr
        words = ("--token-file", token, "--prefix", "team.bench", "--json")
        done = dos("bench", server.url, *LITTLE, *words)
        assert done.returncode == 0, done.stderr
        conditions = json.loads(done.stdout)["conditions"]
        assert (conditions["tls"], conditions["token"], conditions["acknowledging"]) == (True, True, 1)
        listed = json.loads(dos("ls", server.url, "--token-file", token, "--json").stdout)
        assert {row["name"].rpartition(".")[0] for row in listed} == {"team.bench"}


class Program:
    """A program that appends to app.w0000/records of a server, in a thread, until it is stopped."""

    def __init__(self, url: str) -> None:
        self._url, self._stop, self._begun = url, threading.Event(), threading.Event()
        self._thread = threading.Thread(target=trio.run, args=[self._run])
        self._thread.start()
        self._begun.wait()

    async def _run(self) -> None:
        async with (
            connect(self._url) as store,
            await store.claim("app.w0000", 1, b"program-00000000") as claim,
        ):
            writer = claim.open_object("records")
            while not self._stop.is_set():
                await writer.wait_synced(writer.append(b"x"))
                self._begun.set()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def test_a_store_in_use_is_refused_unless_that_is_confirmed() -> None:
    with threaded_server() as server:
        program = Program(server.url)
        try:
            refused = dos("bench", server.url, *LITTLE)
            assert (refused.returncode, refused.stdout) == (2, "")
            assert "bytes move in app.w0000; programs have claimed app.w0000" in refused.stderr
            assert "--in-use" in refused.stderr
            assert contents(server.url) == {"app.w0000": {"records"}}, "nothing was written"
            confirmed = dos("bench", server.url, *LITTLE, "--in-use")
            assert confirmed.returncode == 0, confirmed.stderr
        finally:
            program.stop()
        ended = dos("bench", server.url, *LITTLE)
        assert ended.returncode == 2
        assert "in use: programs have claimed app.w0000. " in ended.stderr
        found = contents(server.url)
        assert found.pop("app.w0000") == {"records"}
        assert not any(found.values())


async def write_once(url: str, directory: str, writer_id: bytes) -> None:
    async with connect(url) as store, await store.claim(directory, 1, writer_id) as claim:
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"x"))


def test_objects_of_a_command_are_not_in_use_and_those_with_the_names_of_a_bench_are_not_touched() -> None:
    with threaded_server() as server:
        assert dos("append", f"{server.url}/notes/x", __file__).returncode == 0
        assert dos("bench", server.url, *LITTLE).returncode == 0
        assert dos("append", f"{server.url}/other.w0000/x", __file__).returncode == 0
        trio.run(write_once, server.url, "dos-bench.w0007", tool_writer_id(b"append"))
        for words, problem in (
            (("--clean",), "dos-bench.w0007 is claimed by another program or command (epoch 1)"),
            (("--writers", "9"), "dos-bench.w0007 is claimed by another program or command (epoch 1)"),
            (("--prefix", "other"), "other.w0000 holds objects and no bench has claimed it"),
        ):
            refused = dos("bench", server.url, *LITTLE[:-2], *words)
            assert refused.returncode != 0, words
            assert problem in refused.stderr
        found = contents(server.url)
        assert (found["notes"], found["dos-bench.w0007"], found["other.w0000"]) == ({"x"}, {"x"}, {"x"})


@pytest.mark.trio
async def test_bytes_that_arrive_between_two_looks_are_seen(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.abc.Clock
) -> None:
    """Its claim is a command's, and nothing is in flight when the store is read."""
    real = visiting._look
    async with (
        memory_store() as servers,
        open_store(servers.url) as store,
        await store.claim("notes", 1, tool_writer_id(b"append")) as claim,
    ):
        writer = claim.open_object("x")

        async def look(store: Store) -> Any:
            seen = await real(store)
            await writer.wait_synced(writer.append(b"x"))
            return seen

        with monkeypatch.context() as patch:
            patch.setattr(visiting, "_look", look)
            with pytest.raises(BenchRefusedError, match="in use: bytes move in notes"):
                await visiting.refuse_if_in_use(store)
        await visiting.refuse_if_in_use(store)


def begun(url: str, *words: str) -> subprocess.Popen[str]:
    """A bench that measures appends now."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dos_cli", "bench", url, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line)
        if line.startswith("measuring appends"):
            return process
    process.kill()
    process.wait()
    pytest.fail("".join(seen))


@pytest.mark.process
@pytest.mark.long
def test_a_member_that_is_killed_meanwhile_is_named_and_its_copies_are_deleted_later(
    store: str, three_servers: list[ServerProcess]
) -> None:
    killed = three_servers[2]
    with begun(store, "--seconds", "2", "--bytes", "8MiB", "--writers", "2") as process:
        killed.kill()
        out, err = process.communicate()
    assert process.returncode == 1, err
    assert f"unavailable for a time: {killed.location}" in out
    assert "recovery: in all" in out
    assert "no difference" in out
    assert f"{killed.location} may still hold copies in dos-bench.*" in err
    assert f"run: dos bench {store} --clean" in err
    killed.restart()
    done = dos("bench", store, "--clean")
    assert (done.returncode, done.stdout) == (0, "nothing of a bench is left\n"), done.stderr
    assert_empty(store)
    assert_empty(killed.url)


@pytest.mark.process
@pytest.mark.long
def test_a_store_that_is_gone_ends_it_with_what_is_left_and_the_command_that_deletes_it(
    one_server: ServerProcess,
) -> None:
    with begun(one_server.url, "--seconds", "60", "--writers", "3") as process:
        one_server.kill()
        out, err = process.communicate()
    assert (process.returncode, out) == (3, ""), err
    assert "was acknowledged for 1" in err
    assert "not everything of a bench is deleted" in err
    assert f"run: dos bench {one_server.url} --clean" in err
    one_server.restart()
    assert any(contents(one_server.url).values())
    assert dos("bench", one_server.url, "--clean").returncode == 0
    assert_empty(one_server.url)


@pytest.mark.process
def test_an_interrupted_bench_deletes_what_it_wrote(store: str) -> None:
    with begun(store, "--seconds", "60", "--writers", "3") as process:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, out) == (130, "")
    assert f"if that is interrupted, run: dos bench {store} --clean" in err
    assert err.splitlines()[-1] == "dos: interrupted"
    assert_empty(store)


@pytest.mark.process
@pytest.mark.long
def test_a_second_interrupt_ends_it_at_once_after_the_command_that_deletes_is_printed(store: str) -> None:
    with begun(store, "--seconds", "60") as process:
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        line = next(one for one in process.stderr if one.startswith("dos: deleting what was written"))
        assert f"run: dos bench {store} --clean" in line
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, out, err) == (130, "", "")
    assert dos("bench", store, "--clean").returncode == 0
    assert_empty(store)


@pytest.mark.process
@pytest.mark.long
def test_what_a_killed_bench_left_is_deleted_by_the_next(store: str) -> None:
    with begun(store, "--seconds", "60", "--writers", "3") as process:
        process.kill()
    assert any(contents(store).values())
    done = dos("bench", store, *LITTLE)
    assert done.returncode == 0, done.stderr
    assert_empty(store)


def test_a_full_quota_ends_it_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "STALLED_S", 0.1)
    quotas = tmp_path / "quotas.json"
    assert dos("quota", "set", quotas, "dos-bench", "--bytes", "200kB").returncode == 0
    with ServerProcess(tmp_path / "data", options=("--quotas", str(quotas))) as server:
        done = dos("bench", server.url, *LITTLE)
        assert (done.returncode, done.stdout) == (3, "")
        assert "the quota of 'dos-bench' is 200000 bytes" in done.stderr
        assert "raise the quota" in done.stderr
        assert_empty(server.url)


def test_a_wrong_byte_is_found_no_figure_is_printed_and_the_bytes_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    append = ObjectWriter.append

    def wrong(self: ObjectWriter, data: Any) -> int:
        first = len(data) == 100 and not self.size
        return append(self, bytes([*data[:50], data[50] ^ 1, *data[51:]]) if first else data)

    with threaded_store() as servers:
        with monkeypatch.context() as patch:
            patch.setattr(ObjectWriter, "append", wrong)
            done = dos("bench", servers.url, *LITTLE, "--json")
        assert (done.returncode, done.stdout) == (1, "")
        assert "at byte 50: expected 0x" in done.stderr
        assert f"until the next bench or: dos bench {servers.url} --clean" in done.stderr
        assert any(contents(servers.url).values())
        assert dos("bench", servers.url, "--clean").returncode == 0
        assert_empty(servers.url)


@pytest.mark.process
@pytest.mark.long
def test_a_byte_that_changes_on_the_disk_is_found_and_what_is_damaged_is_deleted(
    server_without_log: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare, url = measuring.Bench._compare, server_without_log.url

    async def damaged(self: measuring.Bench, result: Any) -> None:
        path = next((server_without_log.data / "d" / "dos-bench.w0000").glob("records-*"))
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        await compare(self, result)

    with monkeypatch.context() as patch:
        patch.setattr(measuring.Bench, "_compare", damaged)
        done = dos("bench", url, *LITTLE)
    assert (done.returncode, done.stdout) == (1, "")
    assert "is damaged from offset" in done.stderr
    assert "as evidence" in done.stderr
    assert any(contents(url).values())
    cleaned = dos("bench", url, "--clean")
    assert cleaned.returncode == 0, cleaned.stderr
    assert_empty(url)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--bytes", "1MiB"), "--bytes 1MiB is too little to measure: pass at least 4.0 MiB"),
        (("--sizes", "100B,15B"), "--sizes 100B,15B: a record has 16 B to 16.0 MiB"),
        (("--sizes", "big"), "invalid size 'big'"),
        (("--writers", "1,0"), "--writers 1,0: pass numbers from 1 to 1000"),
        (("--prefix", "a/b"), "--prefix: a name must match"),
    ],
)
def test_options_that_are_not_valid_are_refused_before_anything_is_opened(
    words: tuple[str, ...], problem: str
) -> None:
    done = dos("bench", "dos://127.0.0.1:1", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert problem in done.stderr
