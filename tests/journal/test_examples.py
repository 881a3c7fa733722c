"""Every example in the help of `dos journal` works: run as a user would who copies it. So do
the marked examples of docs/journaled-files.md, in the order of the page, against a store in memory.
"""

import ast
import inspect
import os
import shlex
import time
from pathlib import Path
from typing import Any

import pytest
import trio

import dos
from dos_client.store import open_store
from dos_server.testing import memory_store, threaded_store
from journal import ChainWriter, Directory, Op, Record
from journal.archive.archiving import archive_chain
from journal.archive.bucket import Bucket, parse_s3_url
from journal.cli import app
from tests.journal.archives import client
from tests.journal.journal_command import journal
from tests.journal.journaled_files import files
from tests.journal.test_cli import V0
from tests.support.examples import example, run_example
from tests.support.s3 import BUCKET, FakeS3

DAY_MS = 86_400_000
COMMANDS = {str(one.name): one.help or "" for one in app.registered_commands}
UNTIL_INTERRUPTED = {"follow"}
"""`test_follow.py` tries that one."""


def examples(command: str) -> list[str]:
    """Those of its help: paragraphs that begin with the command."""
    paragraphs = (" ".join(one.split()) for one in COMMANDS[command].split("\n\n"))
    return [one for one in paragraphs if one.startswith(f"dos journal {command}")]


async def fill(url: str, unique: str, live: Path) -> None:
    """What the examples speak of: a directory with a history of two months, and the journals of a region."""
    now_ms = int(time.time() * 1000)
    clock = [now_ms - 60 * DAY_MS]
    async with open_store(url) as store:
        claim = await store.claim(f"ledger{unique}", 1, os.urandom(16))
        directory = await Directory.open(
            live, claim, recovery_bytes=3000, segment_bytes=1000, clock_ms=lambda: clock[0]
        )
        while clock[0] < now_ms:
            await directory.append("2026/11.log", b"rent;900\n")
            await directory.write_at("totals", 0, clock[0].to_bytes(8))
            clock[0] += DAY_MS // 4
        await directory.wait_synced()
        await directory.aclose()
        await claim.aclose()
        await one_chain(
            store,
            f"wordcount{unique}.coord",
            "manifest",
            Record(Op.CHECKPOINT, ints=(7, 41, 1), strings=(b'{"step":41}',)),
        )
        await one_chain(
            store,
            f"wordcount{unique}.w0000",
            "state",
            Record(Op.STATE_BLOCK, ints=(1,), strings=(b"counts", bytes(900))),
        )
        await one_chain(
            store,
            f"wordcount{unique}.w0000",
            "steps",
            Record(Op.DIVISION, ints=(1, now_ms), strings=(b"{}",)),
        )


async def one_chain(store: object, directory: str, chain: str, record: Record) -> None:
    epoch = {"manifest": 1, "state": 1, "steps": 2}[chain]
    claim = await store.claim(directory, epoch, os.urandom(16))  # type: ignore[attr-defined]
    async with await ChainWriter.open(claim, chain, None, 1, pipelined=chain != "manifest") as writer:
        for _ in range(9):
            writer.append(record)
            await writer.wait_synced()
    await claim.aclose()


def test_each_command_has_examples() -> None:
    assert {command: len(examples(command)) for command in COMMANDS if len(examples(command)) < 2} == {}
    assert len(COMMANDS) == 12


def test_the_help_shows_each_example_as_it_is_written() -> None:
    """Nothing of it is taken for markup, and no sentence is broken in its middle."""
    for command in COMMANDS:
        result = " ".join(journal(command, "--help").stdout.split())
        for line in examples(command):
            assert line in result, command
        text = " ".join(COMMANDS[command].split("\n\n")[0].split())
        assert text in result


@pytest.mark.process
def test_every_example_works(
    store_url: str, service: FakeS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert service.endpoint
    client().create_bucket(Bucket="backups")
    unique = os.urandom(4).hex()
    trio.run(fill, store_url, unique, tmp_path / "live")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("my_app-worker3.journal").write_bytes(V0.read_bytes()[:150])  # behind that, a path that no file has
    with dos.blocking.open_local_directory(Path("notes")) as notes:  # the journal is notes.journal
        notes.append("2026/11.log", b"one\n")
        notes.wait_synced()
    commands = sorted(COMMANDS, key=lambda one: one != "archive")  # others read or trim what it has archived
    for command in [one for one in commands if one not in UNTIL_INTERRUPTED]:
        for line in examples(command):
            command_line = line.split(" | ")[0].replace("dos://h1,h2,h3", store_url)
            command_line = command_line.replace("/ledger/", f"/ledger{unique}/").replace(
                "/wordcount.", f"/wordcount{unique}."
            )
            done = journal(*shlex.split(command_line)[2:])
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    assert len(list(Path("an-hour-ago").rglob("*.log"))) == 1
    assert [path.name for path in Path("new-year").iterdir()] == ["totals"]
    assert Path("ledger.svg").stat().st_size > 1000
    assert Path("ledger.png").read_bytes().startswith(b"\x89PNG")


PAGE = "docs/journaled-files.md"


async def run(name: str, url: str, names: dict[str, Any]) -> None:
    """Run an example, which may wait at its top level."""
    text = example(PAGE, name, store=url, bucket=f"s3://{BUCKET}/dos")
    code = compile(text, f"{PAGE}, {name}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    waits = eval(code, names)
    if inspect.isawaitable(waits):
        await waits


@pytest.mark.trio
async def test_the_examples_of_the_page_run(
    s3: FakeS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    async with memory_store() as servers:
        await run("change", servers.url, names)
        assert files(Path("ledger")).keys() == {"2026/11.log", "totals", "letter"}
        async with (
            open_store(servers.url) as store,
            await store.claim("ledger", 2, names["writer_id"]) as claim,
            await Directory.open(Path("ledger"), claim) as ledger,
        ):
            names |= {"store": store, "ledger": ledger}
            await run("restore", servers.url, names)
            assert files(Path("as-of-new-year")) == files(Path("ledger"))
            assert files(Path("before-the-rename")) == {"draft": b"Dear landlord,\n"}
            await run("trim", servers.url, names)
            await archive_chain(store, "ledger", "files", Bucket(parse_s3_url(f"s3://{BUCKET}/dos")))
            (tmp_path / "with no server").mkdir()
            monkeypatch.chdir(tmp_path / "with no server")
            await run("archive", servers.url, names)
            assert files(Path("as-of-new-year")) == files(Path("../ledger"))
        await run("local", servers.url, names)
        assert files(Path("before-the-call")) == {"today": b"buy milk\n"}
        await run("damaged", servers.url, names)
        assert files(Path("what-is-whole")) == files(Path("notes"))
        await run("mirror", servers.url, names)
        assert files(Path("resilience")) == {"my_app-worker3.tcp-control": b"localhost\n"}


def test_the_example_without_trio_runs_after_the_first_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    with threaded_store() as servers:
        trio.run(run, "change", servers.url, names)
        run_example(PAGE, "blocking", names, store=servers.url)
    assert "'2026/12.log': 9" in capsys.readouterr().out
    assert files(Path("before-the-rename"))["draft"] == b"Dear landlord,\n"
    assert files(Path("notes")) == {"today": b"water the plants\n"}
