"""`dos journal dump` and `dos journal verify`."""

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from dos_client.store import connect, open_store
from journal import ChainWriter, Op, Record, take_over
from journal.core.record import encode
from tests.journal.journal_command import journal
from tests.support.servers import ServerProcess

GOLDEN = Path(__file__).parent / "golden"
V0, V1 = GOLDEN / "v0-example.journal", GOLDEN / "v1-every-op.journal"


def file_of(tmp_path: Path, *parts: bytes) -> Path:
    path = tmp_path / "some.journal"
    path.write_bytes(b"".join(parts))
    return path


def test_dump_shows_a_version_0_journal_as_the_original_did_with_offset_and_name() -> None:
    done = journal("dump", V0)
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.splitlines()[:3] == [
        r"0 WRITE version=0 op=1 tag=1 ints=[0] strings=['/w/my_app-worker3.tcp-control', 'localhost\n']",
        r"79 WRITE version=0 op=1 tag=2 ints=[10] strings=['/w/my_app-worker3.tcp-control', '0\n']",
        r"150 TRUNCATE version=0 op=0 tag=3 ints=[0] strings=['/w/my_app-worker3.connection-addresses']",
    ]


def test_dump_of_a_segment_counts_logical_offsets_from_its_base() -> None:
    lines = journal("dump", V1).stdout.splitlines()
    assert lines[0].startswith("4242 SEGMENT_START version=1 op=3 ")
    assert lines[1].startswith("4507 SNAPSHOT_BEGIN ")
    assert len(lines) == 12
    assert lines[-1].endswith(r"flags=0x00ff ints=[341] strings=['word\t1\n', '']")


def test_dump_shows_only_the_records_that_begin_in_the_range_asked_for() -> None:
    lines = journal("dump", V1, "--from", 4507, "--to", 4685).stdout.splitlines()
    assert [line.split()[1] for line in lines] == ["SNAPSHOT_BEGIN", "STATE_BLOCK", "SNAPSHOT_END"]


def test_dump_cuts_long_strings_and_full_shows_them(tmp_path: Path) -> None:
    path = file_of(tmp_path, encode(Record(Op.WRITE, ints=(0,), strings=(b"p", b"x" * 5000))))
    assert journal("dump", path).stdout.endswith("x'...[5000 bytes]]\n")
    assert "x" * 5000 + "']" in journal("dump", "--full", path).stdout


def test_dump_as_json_is_one_object_a_line() -> None:
    lines = [json.loads(line) for line in journal("dump", "--json", V1).stdout.splitlines()]
    assert [line["name"] for line in lines][:3] == ["SEGMENT_START", "SNAPSHOT_BEGIN", "STATE_BLOCK"]
    assert lines[9] == {
        "segment": "v1-every-op.journal",
        "offset": 5058,
        "end": 5132,
        "version": 1,
        "op": 5,
        "name": "CHECKPOINT",
        "tag": 5,
        "flags": 0,
        "ints": [12, 340, 7],
        "strings": [{"bytes": 10, "text": '{"cut":12}'}],
        "timeMs": 1732147200000,
    }
    assert lines[2]["strings"][1] == {"bytes": 44, "hex": "ff" * 4 + "00" * 40}
    assert lines[0]["strings"][0]["cut"] is True


def test_terminal_codes_in_a_journal_stay_in_quotes(tmp_path: Path) -> None:
    path = file_of(tmp_path, encode(Record(Op.REMOVE, strings=(b"\x1b]0;evil\x07\x9b",)), 0))
    done = journal("dump", path)
    assert r"'\x1b]0;evil\x07\x9b'" in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("path", [V0, V1])
def test_verify_of_a_sound_journal_reports_it_and_exits_0(path: Path) -> None:
    done = journal("verify", path)
    assert done.returncode == 0
    assert done.stdout.startswith(f"sound: {path}: ")
    as_json = json.loads(journal("verify", "--json", path).stdout)
    assert as_json["sound"] is True
    assert as_json["bytes"] == path.stat().st_size


def cut(data: bytes) -> bytes:
    return data[:-1]


def flip(data: bytes) -> bytes:
    return data[:-10] + bytes([data[-10] ^ 1]) + data[-9:]


def newer(data: bytes) -> bytes:
    return data + b"\xd0\x4a\x02" + bytes(range(40))


@pytest.mark.parametrize(
    ("damage", "kind", "offset"), [(cut, "torn", 973), (flip, "corrupt", 973), (newer, "version", 1038)]
)
def test_verify_shows_the_first_fault_field_by_field_and_exits_1(
    tmp_path: Path, damage: Callable[[bytes], bytes], kind: str, offset: int
) -> None:
    path = file_of(tmp_path, damage(V1.read_bytes()))
    done = journal("verify", path)
    assert done.returncode == 1
    fields = dict(line.split(maxsplit=1) for line in done.stdout.splitlines()[1:] if "logical" not in line)
    assert fields["kind"] == kind
    assert fields["segment"] == "some.journal"
    assert int(fields["offset"]) == offset
    assert {"expected", "found", "hint"} <= fields.keys()
    fault = json.loads(journal("verify", "--json", path).stdout)["fault"]
    assert fault["kind"] == kind
    assert fault["logical_offset"] == 4242 + offset


def test_dump_of_a_damaged_journal_shows_all_that_is_good_and_then_the_fault(tmp_path: Path) -> None:
    done = journal("dump", file_of(tmp_path, flip(V1.read_bytes())))
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) == 11
    assert "corrupt" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("verify", "/nowhere/at.all"), "at.all: No such file or directory"),
        (("verify", GOLDEN), "is a directory"),
        (("dump", "dos://"), "dos://"),
        (("dump", "dos://h/only-a-directory"), "names no journal"),
        (("verify", "dos://h/../x"), "name"),
        (("verify",), "Missing argument"),
        (("dump", V0, "--from", "-5"), "--from"),
        (("dump", V0, "--v0-style", "--json"), "exclude each other"),
        (("grep", "(", V0), "is not a regular expression"),
        (("grep", "--op", "APPEND", "x", V0), "the operations are TRUNCATE, WRITE, REMOVE"),
        (("files", V0, "--at", "yesterday"), "is no moment: give an offset"),
        (("files", V0, "--at", "time:25:00"), "is no moment"),
        (("files", V0, "--at", "-9999999999999d"), "before the year 1"),
        (("status", V0), "`dos journal verify` reads a journal file"),
    ],
)
def test_wrong_usage_exits_2_with_one_line_and_no_traceback(
    arguments: tuple[object, ...], words: str
) -> None:
    done = journal(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_store_that_is_missing_exits_3() -> None:
    done = journal("verify", "dos://127.0.0.1:1/a/b")
    assert done.returncode == 3
    assert "Traceback" not in done.stderr


def test_output_into_a_pipe_that_closes_ends_quietly(tmp_path: Path) -> None:
    path = file_of(tmp_path, encode(Record(Op.WRITE, ints=(0,), strings=(b"p", b"x" * 60))) * 50_000)
    command = [sys.executable, "-m", "dos_cli", "journal", "dump", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"0 WRITE ")
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 0


def test_progress_shows_on_a_terminal_and_only_there(tmp_path: Path) -> None:
    path = file_of(tmp_path, encode(Record(Op.WRITE, ints=(0,), strings=(b"p", b"x" * 4000))) * 20_000)
    at_once = (
        "from dos_client.cli import kit; kit.PROGRESS_AFTER_S = 0; from dos_cli.__main__ import main; main()"
    )
    command = [sys.executable, "-c", at_once, "journal", "verify", str(path)]
    wide = os.environ | {"COLUMNS": "400"}  # the path is long, and must not be cut to fit
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=theirs, env=wide, check=True, timeout=60
        )
        os.close(theirs)
        result = os.read(ours, 100_000)
    finally:
        os.close(ours)
    assert f"reads {path}".encode() in result
    assert re.search(rb"[\d.]+/[\d.]+ MB", result), result
    assert done.stdout.startswith(b"sound: ")


@pytest.mark.process
def test_a_chain_a_segment_and_a_plain_object_of_a_store_are_dumped_and_verified(store_url: str) -> None:
    async def write() -> list[str]:
        async with open_store(store_url) as store, await store.claim("app.w0000", 1, os.urandom(16)) as claim:
            state = await take_over(claim, "state", generation=1)
            writer = await ChainWriter.open(claim, "state", state, 1)
            names = [writer.segment]
            for number in range(10):
                writer.append(Record(Op.MARK, ints=(number,)))
            await writer.roll()
            names.append(writer.segment)
            await writer.wait_synced(writer.append(Record(Op.MARK, ints=(10,))))
            return names

    segments = trio.run(write)
    dumped = journal("dump", f"{store_url}/app.w0000/state")
    assert dumped.returncode == 0, dumped.stderr
    lines = dumped.stdout.splitlines()
    assert [line.split()[1] for line in lines] == ["SEGMENT_START"] + ["MARK"] * 10 + [
        "SEGMENT_START",
        "MARK",
    ]
    assert [int(line.split()[0]) for line in lines] == sorted(int(line.split()[0]) for line in lines)
    done = journal("verify", f"{store_url}/app.w0000/state")
    assert done.returncode == 0, done.stderr
    assert "13 records in 2 segments" in done.stdout
    done = journal("dump", "--json", f"{store_url}/app.w0000/{segments[1]}")
    assert [json.loads(line)["name"] for line in done.stdout.splitlines()] == ["SEGMENT_START", "MARK"]
    assert json.loads(done.stdout.splitlines()[0])["segment"] == segments[1]
    done = journal("verify", f"{store_url}/app.w0000/nothing-like-it")
    assert done.returncode == 2
    assert "no object and no chain nothing-like-it" in done.stderr


@pytest.mark.process
def test_of_a_chain_only_what_is_committed_is_visible_of_a_segment_what_members_have(
    servers: list[ServerProcess], store_url: str
) -> None:
    """R10: a record on one member only may vanish when another writer takes over."""
    # EVIDENCE-OF: P-2

    async def write() -> str:
        async with open_store(store_url) as store, await store.claim("app.w0001", 1, os.urandom(16)) as claim:
            writer = await ChainWriter.open(claim, "state", None, 1)
            await writer.wait_synced(writer.append(Record(Op.MARK, ints=(1,))))
            for server in servers[1:]:
                await trio.to_thread.run_sync(server.kill)
            writer.append(Record(Op.MARK, ints=(2,)))
            target = claim.targets[writer.segment]
            with trio.fail_after(60):
                while target.size not in target.sizes.values():
                    await claim.wait_changed(1.0)
            assert target.synced < target.size, "one member is no quorum"
            return writer.segment

    try:
        segment = trio.run(write)
    finally:
        for server in servers[1:]:
            server.restart()
    chain, alone = f"{store_url}/app.w0001/state", f"{store_url}/app.w0001/{segment}"
    assert marks_in(journal("dump", "--json", chain)) == [1]
    assert json.loads(journal("verify", "--json", chain).stdout)["records"] == 2
    raw = journal("dump", "--json", alone)
    assert marks_in(raw) == [1, 2]
    assert "its end may not be committed" in raw.stderr
    assert json.loads(journal("verify", "--json", alone).stdout)["committed_only"] is False

    async def take_it_over() -> None:
        async with open_store(store_url) as store, await store.claim("app.w0001", 2, os.urandom(16)) as claim:
            await ChainWriter.open(claim, "state", await take_over(claim, "state", generation=1), 1)

    trio.run(take_it_over)
    assert marks_in(journal("dump", "--json", chain)) == [1, 2], "the new writer's start stands on it"


def marks_in(done: subprocess.CompletedProcess[str]) -> list[int]:
    """The numbers of the marks that `dos journal dump --json` showed."""
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    return [record["ints"][0] for record in records if record["name"] == "MARK"]


@pytest.mark.process
def test_a_journal_on_one_server_without_a_store_is_verified_too(tmp_path: Path) -> None:
    """The original's way: a version 0 journal, mirrored to a server as an object."""
    with ServerProcess(tmp_path / "server") as server:

        async def write(data: bytes) -> None:
            async with connect(server.url) as store, await store.unclaimed("my_app") as claim:
                writer = claim.open_object("worker3.journal")
                await writer.wait_synced(writer.append(data))

        trio.run(write, V0.read_bytes())
        done = journal("verify", f"{server.url}/my_app/worker3.journal")
        assert done.returncode == 0, done.stderr
        assert "5 records" in done.stdout
        assert "version 0" in done.stdout
        assert journal("dump", f"{server.url}/my_app/worker3.journal").stdout == journal("dump", V0).stdout


def test_dump_in_the_originals_style_has_its_lines_and_nothing_else() -> None:
    lines = journal("dump", "--v0-style", V0).stdout.splitlines()
    assert (
        lines[0] == r"version=0 op=1 tag=1 ints=[0] strings=['/w/my_app-worker3.tcp-control', 'localhost\n']"
    )
    assert lines[2] == "version=0 op=0 tag=3 ints=[0] strings=['/w/my_app-worker3.connection-addresses']"


@pytest.mark.parametrize(
    ("arguments", "offsets", "code"),
    [
        (["tcp-control"], ["0", "79"], 0),
        (["localhost"], ["0"], 0),
        (["^/w/.*addresses$"], ["150"], 0),
        (["--op", "truncate", "worker3"], ["150"], 0),
        (["nowhere"], [], 4),
    ],
)
def test_grep_shows_the_records_in_which_something_is_found(
    tmp_path: Path, arguments: list[str], offsets: list[str], code: int
) -> None:
    first_three = file_of(tmp_path, V0.read_bytes()[:220])
    done = journal("grep", *arguments, first_three)
    assert done.returncode == code, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == offsets


@pytest.mark.parametrize(
    ("verb", "more"), [("dump", ()), ("verify", ()), ("timeline", ()), ("files", ("--strip",)), ("grep", ())]
)
def test_output_that_cannot_be_written_ends_in_one_line(
    verb: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    path = file_of(tmp_path, *(encode(Record(Op.WRITE, ints=(0,), strings=(b"p", b"x"))) for _ in range(9)))
    words = [verb, *(["x"] if verb == "grep" else []), *more, str(path)]
    command = [sys.executable, "-m", "dos_cli", "journal", *words]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert (done.stderr.count("\n"), "no space left on device" in done.stderr.lower()) == (1, True), (
        done.stderr
    )


def test_what_is_missing_is_said_with_what_is(store_url: str) -> None:
    unique = f"there{os.getpid()}"
    trio.run(write_chain, store_url, unique)
    for verb in ("dump", "files", "status", "follow"):
        missed = journal(verb, f"{store_url}/{unique}/stat")
        assert missed.returncode == 2
        assert f"{unique} has no object and no chain stat; it has state" in missed.stderr
        nowhere = journal(verb, f"{store_url}/no{unique}/state")
        assert (nowhere.returncode, f"directory no{unique} holds no objects" in nowhere.stderr) == (
            2,
            True,
        )


async def write_chain(url: str, directory: str) -> None:
    async with (
        open_store(url) as store,
        await store.claim(directory, 1, os.urandom(16)) as claim,
        await ChainWriter.open(claim, "state", None, 1) as writer,
    ):
        await writer.wait_synced(writer.append(Record(Op.MARK, ints=(1,))))


def test_an_empty_pattern_is_in_all_records_of_an_operation(tmp_path: Path) -> None:
    path = file_of(
        tmp_path, *(encode(Record(Op.CHECKPOINT, ints=(number, 10 * number))) for number in (1, 2))
    )
    assert len(journal("grep", "--op", "CHECKPOINT", "", path).stdout.splitlines()) == 2
    assert journal("grep", "--op", "WRITE", "", path).returncode == 4
