"""The commands on journaled files and archives."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio
from typer.main import get_group

from dos_client.store import open_store
from journal import Directory, Op, Record
from journal.cli import app, complete_operation
from journal.core.errors import ArchiveUnavailableError
from journal.core.record import encode
from journal.files.history import complete_moment, moment
from journal.files_cli import ENDS
from tests.journal.archives import client
from tests.journal.journal_command import journal
from tests.journal.journaled_files import files, write
from tests.journal.test_cli import V0
from tests.support.s3 import BUCKET, FakeS3, Rule, status
from tests.support.servers import ServerProcess

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)


def test_the_originals_journal_is_replayed_with_its_paths_below_the_target(tmp_path: Path) -> None:
    refused = journal("replay", V0, "--into", tmp_path / "into")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "is refused: it is absolute" in refused.stderr
    assert "--strip" in refused.stderr
    assert not (tmp_path / "into").exists()
    done = journal("replay", V0, "--strip", "--into", tmp_path / "into", "--at", 150)
    assert done.returncode == 0, done.stderr
    assert files(tmp_path / "into") == {"w/my_app-worker3.tcp-control": b"localhost\n0\n"}
    assert done.stdout == f"1 files, 12 bytes in {tmp_path / 'into'}, as of offset 150\n"


@pytest.mark.parametrize(
    ("raw", "strip_helps"),
    [
        (b"/w/a", True),
        (b"../a", True),
        (b"a/./b", True),
        (b"a\0", False),
        (b"/..", False),
        (b"/" + b"a" * 256, False),
    ],
)
def test_a_refused_path_is_told_with_strip_only_where_that_helps(
    tmp_path: Path, raw: bytes, strip_helps: bool
) -> None:
    path = tmp_path / "some.journal"
    path.write_bytes(encode(write(raw, b"x")))
    refused = journal("files", path)
    assert (refused.returncode, "--strip" in refused.stderr) == (1, strip_helps), refused.stderr
    stripped = journal("files", "--strip", path)
    assert (stripped.returncode == 0) is strip_helps
    assert "--strip" not in stripped.stderr


def test_files_and_cat_show_what_there_was_at_a_moment(hourly_journal: Path) -> None:
    assert json.loads(journal("files", hourly_journal, "--json").stdout)["files"] == [
        {"path": "d/new", "bytes": 3},
        {"path": "log", "bytes": 3},
    ]
    assert journal("cat", hourly_journal, "log").stdout == "321"
    assert journal("cat", hourly_journal, "log", "--at", "-90m").stdout == "32"
    assert journal("cat", hourly_journal, "d/new").stdout == "xyz"
    lines = journal("files", hourly_journal, "--at", "-150m").stdout.splitlines()
    assert lines[0].split() == ["1", "log"]
    assert lines[1].startswith("1 files as of offset ")
    gone = journal("cat", hourly_journal, "log", "--at", "0")
    assert (gone.returncode, gone.stdout) == (2, "")
    assert "has no file log as of offset 0" in gone.stderr


def test_diff_shows_what_came_went_and_changed(tmp_path: Path) -> None:
    path = tmp_path / "some.journal"
    records = [write(b"same", b"s"), write(b"gone", b"12"), write(b"log", b"x" * 5000)]
    later = [Record(Op.REMOVE, strings=(b"gone",)), write(b"log", b"y!", 4999), write(b"new", b"abc")]
    path.write_bytes(early := b"".join(encode(record) for record in records))
    with path.open("ab") as file:
        file.write(b"".join(encode(record) for record in later))
    assert journal("diff", path, len(early)).stdout.splitlines() == [
        "- gone  2 bytes",
        "~ log  5,000 -> 5,001 bytes, from byte 4,999 on",
        "+ new  3 bytes",
    ]
    assert journal("diff", path, len(early), len(early)).stdout == ""
    assert json.loads(journal("diff", path, "--json", "0", len(early)).stdout)[0] == {
        "path": "gone",
        "before": None,
        "after": 2,
        "differs_at": 0,
    }


def test_a_torn_tail_is_left_out_and_said_a_flipped_bit_makes_nothing(
    hourly_journal: Path, tmp_path: Path
) -> None:
    whole = hourly_journal.read_bytes()
    hourly_journal.write_bytes(whole[:-3])
    torn = journal("replay", hourly_journal, "--into", tmp_path / "torn")
    assert torn.returncode == 0
    assert "is cut off and was left out" in torn.stderr
    assert files(tmp_path / "torn") == {"log": b"321"}
    flipped = bytearray(whole)
    flipped[-20] ^= 1
    hourly_journal.write_bytes(flipped)
    bad = journal("replay", hourly_journal, "--into", tmp_path / "bad")
    assert bad.returncode == 1
    assert not (tmp_path / "bad").exists()
    before = journal("replay", hourly_journal, "--on-damaged", "previous", "--into", tmp_path / "previous")
    assert (before.returncode, "on are left out because of damage" in before.stderr) == (0, True), before
    assert files(tmp_path / "previous") == {"log": b"321"}
    both = journal(
        "replay", hourly_journal, "--on-damaged", "previous", "--at", "4", "--into", tmp_path / "x"
    )
    assert (both.returncode, "leave --at out" in both.stderr) == (2, True)
    offset = bad.stderr.split("--at ")[1].split()[0]
    good = journal("replay", hourly_journal, "--into", tmp_path / "good", "--at", offset, "--json")
    assert json.loads(good.stdout)["end"] == int(offset)
    assert files(tmp_path / "good") == {"log": b"321"}


def test_a_servers_data_directory_is_refused_with_what_to_name_instead(tmp_path: Path) -> None:
    (tmp_path / "identity").write_bytes(b"x")
    for arguments in (["files"], ["verify"], ["timeline"]):
        done = journal(*arguments, tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert "is a server's data directory: name the server" in done.stderr
    (tmp_path / "some").write_bytes(b"\xd0\x58" + bytes(90))  # an object's file in there
    done = journal("verify", tmp_path / "some")
    assert done.returncode == 1
    assert "read it through the server" in done.stdout


def test_the_shell_completes_operations_and_moments() -> None:
    assert complete_operation("sna") == ["SNAPSHOT_BEGIN", "SNAPSHOT_END"]
    assert complete_moment("c") == ["checkpoint:"]
    (now,) = complete_moment("t")
    assert moment(now, datetime.now(UTC)) is not None
    for command in ("files", "cat", "replay"):
        (option,) = [one for one in get_group(app).commands[command].params if one.name == "at"]
        assert [one.value for one in option.shell_complete(None, "st")] == ["step:"]  # type: ignore[arg-type]


def test_a_file_that_the_journal_does_not_have_is_not_replayed_in_silence(
    hourly_journal: Path, tmp_path: Path
) -> None:
    done = journal("replay", hourly_journal, "--only", "nope", "--into", tmp_path / "into")
    assert done.returncode == 2
    assert f"{hourly_journal} has no file nope as of" in done.stderr
    assert not (tmp_path / "into").exists()
    assert journal("replay", hourly_journal, "--only", "d/new", "--into", tmp_path / "into").returncode == 0
    assert files(tmp_path / "into") == {"d/new": b"xyz"}


def test_a_target_that_exists_is_left_alone(hourly_journal: Path, tmp_path: Path) -> None:
    done = journal("replay", hourly_journal, "--into", tmp_path)
    assert done.returncode == 2
    assert "does not exist or is empty" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [hourly_journal.name]


@pytest.mark.parametrize("length", [2**63, 2**64 - 1])
def test_a_length_that_no_file_can_have_is_a_fault(tmp_path: Path, length: int) -> None:
    path = tmp_path / "huge.journal"
    for record in (Record(Op.TRUNCATE, ints=(length,), strings=(b"f",)), write(b"f", b"x", length)):
        path.write_bytes(encode(record))
        done = journal("replay", path, "--into", tmp_path / "into")
        assert done.returncode == 1, done.stderr
        assert "more than 9223372036854775807" in done.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("4096", 4096),
        ("-90s", NOW - timedelta(seconds=90)),
        ("-1.5h", NOW - timedelta(hours=1.5)),
        ("-2d", NOW - timedelta(days=2)),
        ("time:2026-01-31T10:00:00+01:00", datetime(2026, 1, 31, 9, tzinfo=UTC)),
        ("time:2026-01-31T10:00Z", datetime(2026, 1, 31, 10, tzinfo=UTC)),
        ("time:2026-01-31", datetime(2026, 1, 31).astimezone()),
    ],
)
def test_moments_are_read_as_people_write_them(text: str, expected: object) -> None:
    assert moment(text, NOW) == expected


@pytest.mark.process
def test_a_chain_of_a_store_is_replayed_and_shown(store_url: str, tmp_path: Path) -> None:
    name = f"files.{os.urandom(4).hex()}"

    async def fill() -> int:
        async with (
            open_store(store_url) as store,
            await store.claim(name, 1, os.urandom(16)) as claim,
            await Directory.open(tmp_path / "live", claim, recovery_bytes=3000) as directory,
        ):
            for number in range(50):
                await directory.append("log", b"%02d\n" % number)
                if number == 9:
                    early = directory.end.size
            await directory.wait_synced()
            return early

    early = trio.run(fill)
    url = f"{store_url}/{name}/files"
    assert journal("cat", url, "log").stdout == "".join(f"{n:02d}\n" for n in range(50))
    assert journal("cat", url, "log", "--at", early).stdout == "".join(f"{n:02d}\n" for n in range(10))
    done = journal("replay", url, "--at", early, "--into", tmp_path / "early", "--json")
    assert json.loads(done.stdout)["bytes"] == 30
    absent = journal("files", f"{store_url}/{name}/nothing")
    assert absent.returncode == 2
    assert "no chain nothing; it has files" in absent.stderr
    report = json.loads(journal("status", url, "--json").stdout)
    assert (report["chain"], report["end_epoch"], report["end"]) == ("files", 1, done_end(url))
    assert 0 < report["recovery_bytes"] <= 4000
    assert report["below_segments"] > 0
    assert report["below_bytes"] + report["recovery_bytes"] == report["end"]
    assert report["recovery_s"] == pytest.approx(report["recovery_bytes"] / report["bytes_per_s"])
    assert f"{report['recovery_bytes']:,} bytes in 1 segments" in journal("status", url).stdout
    assert journal("status", f"{store_url}/{name}/nothing").returncode == 2


def done_end(url: str) -> int:
    """Where the chain ends, as a listing of its files says."""
    end = json.loads(journal("files", url, "--json").stdout)["end"]
    assert isinstance(end, int)
    return end


def test_an_age_is_a_moment_of_a_difference_and_no_option(hourly_journal: Path) -> None:
    for words in (("-150m",), ("-150m", "-1s"), ("--json", "-150m")):
        done = journal("diff", hourly_journal, *words)
        assert (done.returncode, "log" in done.stdout) == (0, True), done.stderr
    assert journal("diff", "--", hourly_journal, "-150m").returncode == 0
    assert (
        journal("diff", hourly_journal, "-150m", "-90m").stdout
        != journal("diff", hourly_journal, "-150m").stdout
    )
    assert "No such option" in journal("diff", hourly_journal, "-x").stderr


def test_a_moment_before_the_first_mark_is_reported_it(hourly_journal: Path) -> None:
    assert (
        "as of offset 0, before the first time mark" in journal("files", hourly_journal, "--at", "-9d").stdout
    )


@pytest.mark.process
def test_the_history_of_a_chain_is_read_below_its_newest_snapshot_as_far_as_it_is_held(
    store_url: str, tmp_path: Path
) -> None:
    name = f"history{os.urandom(4).hex()}"

    async def fill() -> int:
        async with (
            open_store(store_url) as store,
            await store.claim(name, 1, os.urandom(16)) as claim,
            await Directory.open(
                tmp_path / "live", claim, recovery_bytes=3000, segment_bytes=1000
            ) as directory,
        ):
            for number in range(1, 81):
                await directory.append("log", b"%02d" % number * 20)
                await directory.truncate("log", number)
                await directory.checkpoint(number)
            await directory.wait_synced()
            return directory.end.size

    size = trio.run(fill)
    url = f"{store_url}/{name}/files"
    newest = json.loads(journal("verify", "--json", url).stdout)
    every = json.loads(journal("verify", "--json", "--history", url).stdout)
    assert (every["sound"], every["first_offset"], every["bytes"]) == (True, 0, size)
    assert newest["first_offset"] > 0
    assert newest["end_offset"] == every["end_offset"] == size
    cuts = journal("grep", "--op", "CHECKPOINT", "", "--json", "--history", url).stdout.splitlines()
    assert [json.loads(line)["ints"][0] for line in cuts] == list(range(1, 81))
    drawn = json.loads(journal("timeline", "--json", "--history", url).stdout)["stretches"]
    assert sum(one.get("checkpoints", 0) for one in drawn) == 80

    trimmed = journal("trim", "--before", "checkpoint:40", "--apply", "--stopped", url)
    assert trimmed.returncode == 0, trimmed.stderr
    left = journal("grep", "--op", "CHECKPOINT", "", "--json", "--history", url)
    assert (left.returncode, "was trimmed: it begins at" in left.stderr) == (0, True)
    numbers = [json.loads(line)["ints"][0] for line in left.stdout.splitlines()]
    assert numbers == list(range(numbers[0], 81))
    assert 1 < numbers[0] <= 40


LINES = 30


@pytest.mark.process
def test_a_chain_is_archived_and_read_by_every_command_with_no_server_alive(
    service: FakeS3, store_url: str, servers: list[ServerProcess], tmp_path: Path
) -> None:
    name, offsets = f"ledger.{os.urandom(4).hex()}", []

    async def fill() -> None:
        async with (
            open_store(store_url) as store,
            await store.claim(name, 1, os.urandom(16)) as claim,
            await Directory.open(
                tmp_path / "live", claim, recovery_bytes=1500, segment_bytes=400
            ) as directory,
        ):
            for number in range(LINES):
                await directory.append("log", b"%02d\n" % number)
                offsets.append(directory.end.size)
            await directory.wait_synced()

    trio.run(fill)
    chain, root = f"{store_url}/{name}/files", f"s3://{BUCKET}/dos"
    would = json.loads(journal("archive", chain, root, "--dry-run", "--json").stdout)
    assert would["copied_segments"] > 2
    done = json.loads(journal("archive", chain, root, "--json").stdout)
    assert done == {**would, "dry_run": False}
    assert "0 segments, 0 bytes copied and verified; " in journal("archive", chain, root).stdout
    covered = sum(offset <= done["end"] for offset in offsets)
    text = "".join(f"{number:02d}\n" for number in range(LINES))

    both = f"{chain}+{root}"
    assert journal("cat", both, "log").stdout == text
    assert journal("cat", both, "log", "--at", offsets[2]).stdout == text[:9]
    assert journal("verify", both).stdout.startswith("sound: ")

    archived = f"{root}/{name}/files"
    for server in servers:
        server.kill()
    assert journal("cat", archived, "log").stdout == text[: 3 * covered]
    assert journal("cat", archived, "log", "--at", offsets[2]).stdout == text[:9]
    assert journal("files", archived).stdout.split()[:2] == [str(3 * covered), "log"]
    made = journal("replay", archived, "--at", offsets[4], "--into", tmp_path / "five")
    assert made.returncode == 0, made.stderr
    assert files(tmp_path / "five") == {"log": text[:15].encode()}
    assert journal("diff", archived, offsets[0], offsets[1]).stdout.startswith("~ log  3 -> 6 bytes")
    assert journal("verify", archived).stdout.startswith(f"sound: {archived}: ")
    assert "WRITE" in journal("dump", archived).stdout
    assert "reads" in journal("status", archived).stdout
    refused = journal("follow", archived)
    assert (refused.returncode, "does not grow" in refused.stderr) == (2, True)

    listed = client().list_objects_v2(Bucket=BUCKET)["Contents"]
    keys = [one["Key"] for one in listed if "/files.0" in one["Key"]]
    client().download_file(BUCKET, keys[0], str(tmp_path / Path(keys[0]).name))
    assert journal("verify", tmp_path / Path(keys[0]).name).returncode == 0

    done = json.loads(journal("trim", archived, "--max-bytes", 1, "--apply", "--json").stdout)
    assert (done["applied"], len(done["segments"]) > 0) == (True, True)
    assert journal("cat", archived, "log").stdout == text[: 3 * covered]
    wrong = journal("trim", archived, "--before", "-1d", "--stopped")
    assert (wrong.returncode, "no meaning for an archive" in wrong.stderr) == (2, True)

    service.rules.append(Rule("GET", "files.0", status(403, "AccessDenied")))
    denied = journal("verify", archived)
    assert (denied.returncode, "credentials" in denied.stderr) == (2, True)
    service.rules.clear()
    client().delete_object(Bucket=BUCKET, Key=max(keys))
    lost = journal("verify", archived)
    assert (lost.returncode, "no such object" in lost.stdout) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["verify", "s3://archives"], "names no archived chain"),
        (["verify", "s3://Archives/a/b"], "is not a valid bucket name"),
        (["verify", "s3://archives/a/b?endpiont=http://h"], "only endpoint is known"),
        (["verify", "s3://archives/a/b?endpoint=nowhere"], "invalid endpoint"),
        (["verify", "s3://archives/ledger/files"], "has no archive of chain files in ledger"),
        (["archive", "s3://archives/a/b", "s3://archives/c"], "is an archive already"),
        (["archive", "dos://127.0.0.1:1/a/b", "dos://127.0.0.1:2"], "begins with s3://"),
    ],
)
def test_what_is_no_archive_is_wrong_usage(service: FakeS3, arguments: list[str], words: str) -> None:
    done = journal(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_service_that_does_not_answer_is_exit_code_3() -> None:
    error = ArchiveUnavailableError("s3://archives/x, asked up to 5 times: 503")
    assert ENDS.code(error) == 3
    assert "try again later" in str(error)
