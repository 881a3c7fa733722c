"""A real server whose system calls fail or come late, by strace: what its clients hear, and what is there
after a restart."""

import re
import time
from pathlib import Path

import pytest

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import ErrorCode
from dos_protocol.store_record import Member, StoreRecord, encode_store_record
from tests.dos_server.core_requests import to_claim
from tests.support.servers import ServerProcess, one_server, server_without_log
from tests.support.strace import PWRITES, SYNCS, WRITES, Injected
from tests.support.wire import Wire

__all__ = ["one_server", "server_without_log"]
pytestmark = pytest.mark.process

FOLDER = Path("d") / "dir"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "strace.log"


def written(wire: Wire, name: str, content: bytes) -> bytes:
    """An object with this content, durable."""
    wire.append(name, b"", content)
    wire.wait_synced(name, len(content))
    return content


def content_of(wire: Wire, name: str) -> bytes:
    data = wire.ask(m.Get(name, 0, 1 << 20))
    assert isinstance(data, m.Data), data
    return bytes(data.payload)


def acked_size(wire: Wire, name: str) -> int:
    """The highest synced size any watermark told of an object so far."""
    marks = [one for one in wire.unasked if isinstance(one, m.DurabilityAck) and one.name == name]
    return max((one.synced for one in marks), default=0)


def test_a_failed_fsync_poisons_is_never_tried_again_and_counts_for_nothing_after_a_restart(
    server_without_log: ServerProcess, log: Path
) -> None:
    # EVIDENCE-OF: P-1, P-2
    with Wire(server_without_log.address) as wire:
        wire.claim("dir")
        good = written(wire, "o", b"good" * 1000)
        with Injected(server_without_log.pid, log, f"trace={SYNCS}", f"inject={SYNCS}:error=EIO"):
            requests = [wire.append("o", good, b"lost" * 1000), wire.append("new", b"", b"lost too")]
            assert [wire.answer(one).code for one in requests] == [ErrorCode.POISONED] * 2
            assert content_of(wire, "o") == good, "bytes of before are served"
            claim = wire.ask(to_claim(2, b"x" * 16))
            assert claim.code == ErrorCode.POISONED, "a claim that cannot be made durable is not given"
    with Wire(server_without_log.address) as wire:  # the disk is well again
        claim = wire.claim("dir", epoch=2, writer_id=b"x" * 16)
        assert {info.name: (info.synced, info.poisoned) for info in claim.entries} == {
            "o": (len(good), True),
            "new": (0, True),
        }
        healthy = Injected(server_without_log.pid, log.with_name("healthy.log"), f"trace={SYNCS}")
        with healthy:
            for content in (good, good + b"lost" * 1000):
                assert wire.answer(wire.append("o", content, b"x")).code == ErrorCode.POISONED
            written(wire, "other", b"goes on")
            assert content_of(wire, "o") == good
            assert server_without_log.stop() == 0
        assert {call.file for call in healthy.calls()} & {"o", "new"} == set(), "no second sync"
    first = [call.file for call in Injected(0, log).calls()]
    assert (first.count("o"), first.count("new")) == (1, 1)
    server_without_log.restart()
    with Wire(server_without_log.address) as wire:
        claim = wire.claim("dir", epoch=3)
        assert {info.name: info.synced for info in claim.entries}["o"] == len(good)
        assert content_of(wire, "o") == good
        assert list((server_without_log.data / FOLDER).glob(".torn.o.*")), "what was cut is kept aside"
        wire.append("o", good, b"again")
        wire.wait_synced("o", len(good) + 5)


def test_a_failed_write_poisons_its_object_and_no_other(server_without_log: ServerProcess, log: Path) -> None:
    # EVIDENCE-OF: P-1
    with Wire(server_without_log.address) as wire:
        wire.claim("dir")
        good = written(wire, "o", b"good" * 1000)
        path = server_without_log.data / FOLDER / "o"
        with Injected(
            server_without_log.pid, log, f"trace={WRITES}", f"inject={PWRITES}:error=EIO", paths=(path,)
        ):
            assert wire.answer(wire.append("o", good, b"lost")).code == ErrorCode.POISONED
            written(wire, "other", b"goes on")
        assert wire.answer(wire.append("o", good, b"lost")).code == ErrorCode.POISONED
        assert content_of(wire, "o") == good
        assert acked_size(wire, "o") == 0, "no watermark told more than the first, which was waited for"
    server_without_log.restart()
    with Wire(server_without_log.address) as wire:
        wire.claim("dir", epoch=2)
        assert content_of(wire, "o") == good
        assert content_of(wire, "other") == b"goes on"


@pytest.mark.parametrize("error", ["ENOSPC", "EDQUOT", "EFBIG"])
def test_a_write_without_space_refuses_whole_appends_and_continues_automatically(
    one_server: ServerProcess, log: Path, error: str
) -> None:
    # EVIDENCE-OF: P-8, P-10
    with Wire(one_server.address) as wire:
        wire.claim("dir")
        good = written(wire, "o", b"good" * 1000)
        folder = one_server.data / FOLDER
        size = (folder / "o").stat().st_size
        objects = (folder / "o", folder / "new")  # not the group log: without that, a server ends
        inject = f"inject={PWRITES}:error={error}"
        with Injected(one_server.pid, log, f"trace={WRITES}", inject, paths=objects):
            requests = [wire.append("o", good, b"more" * 1000), wire.append("new", b"", b"more")]
            assert [wire.answer(one).code for one in requests] == [ErrorCode.NO_SPACE] * 2
            assert content_of(wire, "o") == good
            assert (folder / "o").stat().st_size == size
            assert not (folder / "new").exists()
        wire.append("o", good, b"more")
        wire.wait_synced("o", len(good) + 4)
        assert content_of(wire, "o") == good + b"more"
        written(wire, "new", b"more")


def test_an_object_whose_fsync_hangs_holds_up_no_other(server_without_log: ServerProcess, log: Path) -> None:
    with Wire(server_without_log.address) as wire, Wire(server_without_log.address) as other:
        wire.claim("dir")
        good = written(wire, "slow", b"good")
        other.claim("elsewhere")
        path = server_without_log.data / FOLDER / "slow"
        strace_options = (f"trace={SYNCS}", f"inject={SYNCS}:delay_enter=60000000")
        with Injected(server_without_log.pid, log, *strace_options, paths=(path,)):
            wire.append("slow", good, b"late")
            for number in range(20):  # far more syncs than there are threads for them
                written(wire, f"quick{number}", b"abc")
                written(other, f"quick{number}", b"abc")
            assert wire.ask(m.Stat("slow")).info.synced == len(good)
            assert acked_size(wire, "slow") <= len(good), "no watermark tells of what is not durable"
            assert content_of(wire, "slow") == good, "nothing that is not durable is read"
        wire.wait_synced("slow", len(good) + 4)


def test_writes_that_take_their_time_delay_answers_and_nothing_else(
    one_server: ServerProcess, log: Path
) -> None:
    # EVIDENCE-OF: P-1
    delay_s = 0.3
    with Wire(one_server.address) as wire:
        wire.claim("dir")
        content = written(wire, "o", b"good")
        strace_options = (f"trace={WRITES}", f"inject={PWRITES}:delay_enter={int(delay_s * 1e6)}")
        with Injected(one_server.pid, log, *strace_options):
            begun = time.monotonic()
            for number in range(5):
                part = bytes([number]) * 1000
                wire.append("o", content, part)
                content += part
            wire.wait_synced("o", len(content))
            assert time.monotonic() - begun >= delay_s, "no watermark comes before the bytes are written"
            assert content_of(wire, "o") == content
            one_server.kill()
    one_server.restart()
    with Wire(one_server.address) as wire:
        wire.claim("dir", epoch=2)
        assert content_of(wire, "o") == content


def test_a_short_write_is_continued_with_and_a_disk_that_lies_about_it_is_found_out(
    one_server: ServerProcess, log: Path
) -> None:
    """strace answers 100 for the first write and performs nothing: those 100 bytes were never written."""
    # EVIDENCE-OF: P-2
    with Wire(one_server.address) as wire:
        wire.claim("dir")
        good = written(wire, "o", b"good" * 1000)
        path = one_server.data / FOLDER / "o"
        position = path.stat().st_size
        with Injected(
            one_server.pid, log, f"trace={WRITES}", "inject=pwritev,pwritev2:retval=100", paths=(path,)
        ) as short:
            wire.append("o", good, b"more" * 1000)
            wire.wait_synced("o", len(good) + 4000)
        first, second = (call for call in short.calls() if call.name.startswith("pwrite"))
        assert second.name == "pwrite64"
        assert "= 100 (INJECTED)" in first.rest
        rest = 64 + 4000 - 100
        assert re.search(rf", {rest}, {position + 100}\) += {rest}$", second.rest), second
        assert path.stat().st_size == position + 64 + 4000
        answer = wire.ask(m.Get("o", len(good), 1 << 20))
        assert (answer.code, answer.actual) == (ErrorCode.CORRUPT, len(good)), "the first 100 are missing"
        assert content_of(wire, "o")[: len(good)] == good


def test_what_wrote_a_file_syncs_it_and_is_not_closed_in_between(
    server_without_log: ServerProcess, log: Path
) -> None:
    """The kernel tells an error of writing back to the descriptors that were open then."""
    # EVIDENCE-OF: P-1
    content = bytes(range(256)) * 400
    member = Member(bytes.fromhex(server_without_log.server_id), server_without_log.location)
    listening = Injected(server_without_log.pid, log, f"trace={WRITES},{SYNCS},close")
    with listening:
        with Wire(server_without_log.address) as wire:
            record = encode_store_record(StoreRecord(b"s" * 16, 1, 1, (member,)))
            assert wire.ask(m.Configure(record)) == m.Configured(1)
            wire.claim("dir")
            for size in range(0, 3_000, 1_000):
                wire.append("o", content[:size], content[size : size + 1_000])
                wire.wait_synced("o", size + 1_000)
        with Wire(server_without_log.address, hello=m.Hello(store_id=b"s" * 16, generation=1)) as wire:
            wire.claim("dir", epoch=2)
            for start in range(0, len(content), 30_000):
                part = content[start : start + 30_000]
                repair = m.RepairChunk(
                    "copied", start, len(content), prefix_digest(content), 0, 0, overwrite=False, payload=part
                )
                assert isinstance(wire.ask(repair), m.RepairAck)
            assert wire.ask(m.Get("copied", 0, 1 << 20)).payload == content
    written_by: dict[str, int] = {}
    synced: list[str] = []
    for call in listening.calls():
        if call.name in WRITES.split(","):
            assert written_by.get(call.path, call.handle) == call.handle, call
            written_by[call.path] = call.handle
        elif call.name in SYNCS.split(",") and call.path in written_by:
            assert written_by.pop(call.path) == call.handle, call
            synced.append(call.file)
        elif call.name == "close":
            assert call.path not in written_by, f"{call.path} was closed before its sync"
    assert set(synced) >= {"o", ".claim.new", ".store.new"}
    assert any(name.startswith(".repair.copied.") for name in synced)
    assert synced.count("o") == 3
