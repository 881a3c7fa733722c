"""The marked examples of docs/journaled-files.md run in the order of the page, against a store in memory."""

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from dos_client import open_store
from dos_server.testing import memory_store
from journal import Directory

PAGE = Path(__file__).parents[2] / "docs" / "journaled-files.md"
EXAMPLES = dict(
    re.findall(r"<!-- example: (\w+) -->\n```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
)


async def run(name: str, url: str, names: dict[str, Any]) -> None:
    text = EXAMPLES[name].replace("dos://h1,h2,h3", url)
    code = compile(text, f"{PAGE.name}, {name}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    waits = eval(code, names)
    if inspect.isawaitable(waits):
        await waits


def files(folder: str) -> dict[str, bytes]:
    root = Path(folder)
    return {
        str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()
    }


@pytest.mark.trio
async def test_the_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    async with memory_store() as servers:
        await run("change", servers.url, names)
        assert files("ledger").keys() == {"2026/11.log", "totals", "letter"}
        async with (
            open_store(servers.url) as store,
            await store.claim("ledger", 2, names["writer_id"]) as claim,
            await Directory.open(Path("ledger"), claim) as ledger,
        ):
            names |= {"store": store, "ledger": ledger}
            await run("restore", servers.url, names)
            assert files("as-of-new-year") == files("ledger")
            assert files("before-the-rename") == {"draft": b"Dear landlord,\n"}
            await run("trim", servers.url, names)
        await run("mirror", servers.url, names)
        assert files("resilience") == {"my_app-worker3.tcp-control": b"localhost\n"}
    assert EXAMPLES.keys() == {"change", "restore", "trim", "mirror"}
