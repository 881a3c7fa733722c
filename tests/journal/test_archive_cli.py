"""`dos journal archive`, and the other commands on what it made: with servers, without, and with both."""

import json
import os
from pathlib import Path

import pytest
import trio
import typer

from dos_client.store import open_store
from journal import Directory
from journal.cli_arguments import journal_errors
from journal.core.errors import ArchiveUnavailableError
from tests.journal.archives import client
from tests.journal.journal_command import journal
from tests.journal.journaled_files import files
from tests.support.s3 import BUCKET, FakeS3, Rule, status
from tests.support.servers import ServerProcess

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


def test_a_service_that_does_not_answer_is_exit_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, journal_errors():
        raise ArchiveUnavailableError("s3://archives/x, asked up to 5 times: 503")
    assert ended.value.exit_code == 3
    assert "try again later" in capsys.readouterr().err
