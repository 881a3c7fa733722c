"""`dos region ls` and `dos input ls` on stores that are empty, or have what cannot be read."""

import json

import trio

from checkpoint.core.records.inputs import handles_among
from checkpoint.core.region import coordinator_directory
from dos_client import open_store
from dos_server.testing import threaded_store
from tests.support.dos_command import dos


def test_handles_are_found_among_directories() -> None:
    names = ("shop.in.orders.p", "shop.in.orders.q", "a.b.in.x-1.p", "shop.in.orders", "shop.w0000", "in.x.p")
    assert handles_among(names) == [("a.b", "x-1"), ("shop", "orders")]


def test_a_region_that_cannot_be_read_has_its_problem_beside_it() -> None:
    async def write(url: str) -> None:
        async with open_store(url) as store:
            for region, content in (("new", b""), ("bad", b"no journal at all")):
                async with await store.claim(coordinator_directory(region), 1, b"w" * 16) as claim:
                    writer = claim.open_object("manifest.0000000000000001.0000000000000000")
                    if content:
                        await writer.wait_synced(writer.append(content))

    with threaded_store(1) as servers:
        assert json.loads(dos("region", "ls", servers.url, "--json").stdout) == []
        assert json.loads(dos("input", "ls", servers.url, "--json").stdout) == []
        assert dos("region", "ls", servers.url).stdout == "the store has no region\n"
        assert dos("input", "ls", servers.url).stdout == "the store has no input\n"
        trio.run(write, servers.url)
        listed = dos("region", "ls", servers.url)
        assert listed.returncode == 0
        bad, new = json.loads(dos("region", "ls", servers.url, "--json").stdout)
        assert new == {"region": "new", "problem": ""}
        assert "expected a record's magic" in bad["problem"]
        assert "no checkpoint yet" in listed.stdout
