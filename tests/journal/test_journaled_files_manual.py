"""The marked examples of docs/journaled-files.md run in the order of the page, against a store in memory."""

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest
import trio

from dos_client import open_store
from dos_server.testing import memory_store, threaded_store
from journal import Directory
from journal.archive.archiving import archive_chain
from journal.archive.bucket import Bucket, parse_s3_url
from tests.journal.journaled_files import files
from tests.support.examples import example, run_example
from tests.support.s3 import BUCKET, FakeS3

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
