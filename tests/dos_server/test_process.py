"""A real `dos serve`, killed with SIGKILL and started again.

What was acknowledged is there, and so is who may write.
"""

import contextlib
import random
import re
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dos_protocol import messages as m
from dos_protocol.digests import PrefixDigest, prefix_digest
from dos_protocol.errors import ErrorCode
from dos_protocol.store_record import Member, StoreRecord, encode_store_record
from tests.dos_server.core_requests import to_claim
from tests.support.servers import ServerProcess, one_server, server_without_log, three_servers, url_of
from tests.support.wire import Wire

__all__ = ["one_server", "server_without_log", "three_servers"]
pytestmark = pytest.mark.process


def append_until_killed(server: ServerProcess, seed: int, kill_after: int) -> tuple[bytes, int]:
    """Append at full speed and kill the server in the middle.

    What was sent, and how much a watermark told.
    """
    rng = random.Random(seed)
    content, fold, acked = bytearray(), PrefixDigest(), 0
    with Wire(server.address) as wire:
        wire.claim("dir", 1 + seed)
        killer = None
        with contextlib.suppress(OSError, EOFError):
            while True:
                payload = rng.randbytes(rng.choice([10, 3000, 65_536]))
                wire.send(m.Append(f"o{seed}", fold.size, fold.value, payload))
                fold.update(payload)
                content += payload
                while fold.size - acked > 1 << 20 or wire.unasked:
                    message = wire.unasked.pop(0) if wire.unasked else wire.receive()
                    assert isinstance(message, m.DurabilityAck)
                    acked = message.synced
                if killer is None and acked > kill_after:
                    killer = threading.Thread(target=server.kill)
                    killer.start()
        if killer is not None:
            killer.join()
    return bytes(content), acked


def read_all(wire: Wire, name: str) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        data = wire.ask(m.Get(name, size, 1 << 20))
        assert isinstance(data, m.Data), data
        if not data.payload:
            return b"".join(parts)
        parts.append(bytes(data.payload))
        size += len(data.payload)


def test_acknowledged_bytes_claims_and_identity_survive_kill_9(one_server: ServerProcess) -> None:
    # EVIDENCE-OF: P-1, P-4
    server, address, server_id = one_server, one_server.address, one_server.server_id
    for seed in range(4):
        content, acked = append_until_killed(server, seed, 200_000 * (seed + 1))
        server.restart()
        assert (server.address, server.server_id) == (address, server_id)
        with Wire(server.address) as wire:
            stale = wire.ask(to_claim(1 + seed, b"x" * 16))
            assert (stale.code, stale.actual) == (ErrorCode.FENCED, 1 + seed)
            opened = wire.ask(m.ChangeDirectory("dir"))
            info = next(info for info in opened.entries if info.name == f"o{seed}")
            kept = read_all(wire, f"o{seed}")
            assert acked > 0
            assert len(kept) >= acked
            assert content.startswith(kept)
            assert (info.synced, info.digest, info.corrupt) == (len(kept), prefix_digest(kept), False)


def test_a_tail_torn_on_disk_is_cut_and_damage_is_reported_after_a_restart(
    server_without_log: ServerProcess,
) -> None:
    # EVIDENCE-OF: P-2
    with Wire(server_without_log.address) as wire:
        wire.claim("dir")
        for name in ("torn", "rotten", "short"):
            wire.append(name, b"", b"a" * 5000)
            wire.wait_synced(name, 5000)
            wire.append(name, b"a" * 5000, b"b" * 5000)
            wire.wait_synced(name, 10_000)
    server_without_log.kill()
    folder = server_without_log.data / "d" / "dir"
    with (folder / "torn").open("ab") as file:
        file.write(b"\xd0\x58\x01" + bytes(20))
    data = bytearray((folder / "rotten").read_bytes())
    data[6000] ^= 1
    (folder / "rotten").write_bytes(data)
    (folder / "short").write_bytes((folder / "short").read_bytes()[:-1])
    server_without_log.restart()
    with Wire(server_without_log.address) as wire:
        wire.ask(m.ChangeDirectory("dir"))
        assert len(read_all(wire, "torn")) == 10_000
        assert list(folder.glob(".torn.torn.*"))
        assert wire.ask(m.Get("rotten", 0, 5000)).payload == b"a" * 5000
        assert wire.ask(m.Get("rotten", 5000, 5000)).code == ErrorCode.CORRUPT
        answer = wire.ask(m.Get("short", 5000, 5000))
        assert (answer.code, answer.actual) == (ErrorCode.CORRUPT, 5000)
        infos = {info.name: info for info in wire.ask(m.List()).entries}
        assert not infos["torn"].corrupt
        assert infos["rotten"].corrupt
        assert infos["short"].corrupt


def test_a_store_record_survives_kill_9_and_a_wiped_server_is_another(
    three_servers: list[ServerProcess],
) -> None:
    # EVIDENCE-OF: P-5
    members = tuple(Member(bytes.fromhex(server.server_id), server.location) for server in three_servers)
    record = encode_store_record(StoreRecord(b"s" * 16, 1, 2, members))
    for server in three_servers:
        with Wire(server.address) as wire:
            assert wire.ask(m.Configure(record)) == m.Configured(1)
    victim = three_servers[0]
    victim.restart()
    hello = m.Hello(store_id=b"s" * 16, generation=1)
    with Wire(victim.address, hello=hello) as wire:
        assert wire.welcome.store_record == record
    before = victim.server_id
    victim.kill()
    for path in sorted(victim.data.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    victim.restart()
    assert victim.server_id != before
    with Wire(victim.address, hello=hello) as wire:
        assert wire.welcome.code == ErrorCode.WRONG_STORE
    assert url_of(three_servers).count(",") == 2


def test_sigterm_ends_cleanly_and_keeps_what_was_accepted(one_server: ServerProcess) -> None:
    with Wire(one_server.address) as wire:
        wire.claim("dir")
        wire.append("o", b"", b"accepted")
        assert wire.ask(m.Ping(b"")) == m.Pong(b"")
        assert one_server.stop() == 0
    one_server.restart()
    with Wire(one_server.address) as wire:
        wire.ask(m.ChangeDirectory("dir"))
        assert read_all(wire, "o") == b"accepted"


def serve(*options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "dos_cli", "serve", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_a_second_server_on_one_data_directory_exits_2_and_the_first_continues(
    server_without_log: ServerProcess,
) -> None:
    with Wire(server_without_log.address) as wire:
        wire.claim("dir")
        wire.append("o", b"", b"before")
        wire.wait_synced("o", 6)
        files = {path: path.stat().st_mtime_ns for path in server_without_log.data.rglob("*")}
        second = serve("--data", str(server_without_log.data), "--listen", "127.0.0.1:0")
        assert second.returncode == 2
        assert f"data directory {server_without_log.data} is in use by another server" in second.stderr
        assert "stop it first, or use another directory" in second.stderr
        assert "Traceback" not in second.stderr
        assert second.stdout == ""
        assert {path: path.stat().st_mtime_ns for path in server_without_log.data.rglob("*")} == files
        wire.append("o", b"before", b" and after")
        wire.wait_synced("o", 16)
    server_without_log.restart()
    with Wire(server_without_log.address) as wire:
        wire.ask(m.ChangeDirectory("dir"))
        assert read_all(wire, "o") == b"before and after"


def test_what_cannot_be_served_exits_2_and_names_the_reason(
    one_server: ServerProcess, tmp_path: Path
) -> None:
    far = serve("--data", str(tmp_path / "far"), "--listen", "0.0.0.0:0")
    assert far.returncode == 2
    assert "--insecure" in far.stderr
    taken = serve("--data", str(tmp_path / "y"), "--listen", one_server.location)
    assert taken.returncode == 2
    (tmp_path / "orphan" / "d" / "dir").mkdir(parents=True)
    orphan = serve("--data", str(tmp_path / "orphan"), "--listen", "127.0.0.1:0")
    assert orphan.returncode == 2
    assert "identity" in orphan.stderr
    empty = serve("--data", "", "--listen", "127.0.0.1:0")
    assert empty.returncode == 2
    assert "the path is empty" in empty.stderr


def test_a_token_is_asked_for_and_checked(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("s3cret of the tests\n")
    with ServerProcess(tmp_path / "data", options=("--token-file", str(secret))) as server:
        with Wire(server.address) as wire:
            assert wire.welcome.code == ErrorCode.UNAUTHORISED
        with Wire(server.address, hello=m.Hello(token=b"s3cret of the tests")) as wire:
            assert isinstance(wire.welcome, m.Welcome)
        assert "s3cret of the tests" not in server.log_path.read_text()


def resident_mb(server: ServerProcess) -> float:
    status = Path(f"/proc/{server.pid}/status").read_text()
    match = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert match is not None
    return int(match[1]) / 1000


def test_memory_stays_bounded_with_a_large_object_and_readers_that_do_not_read(
    one_server: ServerProcess,
) -> None:
    # EVIDENCE-OF: P-9
    block, fold = random.Random(1).randbytes(65_536), PrefixDigest()
    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(Wire(one_server.address))
        writer.claim("dir")
        acked = 0
        while fold.size < 64 << 20:
            writer.send(m.Append("big", fold.size, fold.value, block))
            fold.update(block)
            while fold.size - acked > 8 << 20:
                message = writer.receive()
                assert isinstance(message, m.DurabilityAck)
                acked = message.synced
        writer.wait_synced("big", fold.size)
        readers = [stack.enter_context(Wire(one_server.address)) for _ in range(12)]
        for reader in readers:
            reader.sock.settimeout(0.2)
            with contextlib.suppress(TimeoutError):
                reader.send(m.ChangeDirectory("dir"))
                for number in range(300):
                    reader.send(m.Get("big", number << 17, 1 << 20))
        good = stack.enter_context(Wire(one_server.address))
        good.ask(m.ChangeDirectory("dir"))
        assert len(read_all(good, "big")) == fold.size
        assert good.ask(m.Stat("big", fold.size)).digest == fold.value
        assert resident_mb(one_server) < 150


def test_a_disk_limit_refuses_whole_appends_of_a_real_server(tmp_path: Path) -> None:
    # EVIDENCE-OF: P-8
    limit = 300_000

    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    command = [
        sys.executable,
        "-m",
        "dos_cli",
        "serve",
        "--data",
        str(tmp_path / "data"),
        "--listen",
        "127.0.0.1:0",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=limited) as process:
        try:
            assert process.stdout is not None
            match = re.search(r"127\.0\.0\.1:(\d+)", process.stdout.readline())
            assert match is not None
            with Wire(("127.0.0.1", int(match[1]))) as wire:
                wire.claim("dir")
                content = b"a" * 200_000
                wire.append("o", b"", content)
                wire.wait_synced("o", len(content))
                answer = wire.answer(wire.append("o", content, b"b" * 150_000))
                assert answer.code == ErrorCode.NO_SPACE
                assert (tmp_path / "data" / "d" / "dir" / "o").stat().st_size == 200_064
                wire.append("o", content, b"c" * 50_000)
                wire.wait_synced("o", 250_000)
                assert read_all(wire, "o") == content + b"c" * 50_000
        finally:
            process.kill()


def test_a_server_killed_while_it_deletes_has_each_object_whole_or_not_at_all(
    one_server: ServerProcess,
) -> None:
    # EVIDENCE-OF: P-1, P-2
    rng = random.Random(5)
    contents = {f"o{number:02}": rng.randbytes(rng.choice([10, 5_000, 300_000])) for number in range(24)}
    with Wire(one_server.address) as wire:
        wire.claim("dir")
        for name, content in contents.items():
            wire.append(name, b"", content)
            wire.wait_synced(name, len(content))
    for round_ in range(3):
        names = [name for name in contents if int(name[1:]) % 3 == round_]
        deleted = set()
        with Wire(one_server.address) as wire, contextlib.suppress(OSError, EOFError):
            wire.claim("dir")
            for name in names:
                wire.send(m.Delete(name))
            for _ in names[: len(names) // 2]:
                answer = wire.receive()
                assert isinstance(answer, m.Deleted), answer
                deleted.add(answer.name)
            one_server.kill()
            while True:  # what was answered before it died counts too
                answer = wire.receive()
                assert isinstance(answer, m.Deleted), answer
                deleted.add(answer.name)
        one_server.restart()
        assert len(deleted) >= len(names) // 2
        with Wire(one_server.address) as wire:
            listed = {info.name for info in wire.ask(m.ChangeDirectory("dir")).entries}
            assert not listed & deleted, "told to be gone"
            assert listed >= contents.keys() - set(names), "never asked to go"
            for name in listed:
                assert read_all(wire, name) == contents[name]
            contents = {name: content for name, content in contents.items() if name in listed}


def test_many_directories_are_claimed_at_once_and_none_is_refused_as_busy(one_server: ServerProcess) -> None:
    """New ones, and those on the disk of a server that has just started: as the workers of a job do."""
    # EVIDENCE-OF: P-9
    for epoch in (1, 2):
        with contextlib.ExitStack() as stack:
            wires = [stack.enter_context(Wire(one_server.address)) for _ in range(40)]
            for number, wire in enumerate(wires):
                wire.send(to_claim(epoch, directory=f"dir{number}"))
            opened = [wire.receive() for wire in wires]
            assert all(isinstance(one, m.DirectoryOpened) for one in opened), opened
            for wire in wires:
                wire.append(f"o{epoch}", b"", b"x")
            for wire in wires:
                wire.wait_synced(f"o{epoch}", 1)
        one_server.kill()
        one_server.restart()


def test_a_server_with_too_few_descriptors_does_not_start(tmp_path: Path) -> None:
    """Appends would wait for files that are closed only after they are filed."""
    few = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))"
    code = f"{few}; from dos_cli.main import app; app()"
    command = [sys.executable, "-c", code, "serve", "--data", str(tmp_path / "d")]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 2
    assert "64 files may be open, at least 1024 are needed: raise `ulimit -n`" in refused.stderr
    assert not (tmp_path / "d").exists()
