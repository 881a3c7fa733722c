"""Members of a store that are over their quota: the writer waits, what was acknowledged reaches every member,
and more room ends the wait.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from dos_client import init_store, replace_member
from dos_server.core.access import encode_settings
from dos_server.core.quotas import QUOTA_FILE_VERSION, Quota, QuotaFile
from tests.dos_client.support import claimed, has, until, url_of
from tests.support.servers import ServerProcess

pytestmark = pytest.mark.trio

BLOCK = bytes(range(250)) * 40
LIMIT = 10 * len(BLOCK)


def limit(folder: Path, bytes_max: int) -> None:
    """Set the quota of the directory at every server."""
    for number in range(4):
        file = QuotaFile(QUOTA_FILE_VERSION, (Quota("d", bytes_max=bytes_max),))
        folder.joinpath(f"quotas-{number}.json").write_bytes(encode_settings(file))


@pytest.fixture
def four(tmp_path: Path) -> Iterator[list[ServerProcess]]:
    """Servers with a file of quotas each."""
    limit(tmp_path, LIMIT)
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                ServerProcess(
                    tmp_path / f"s{number}", options=("--quotas", f"{tmp_path}/quotas-{number}.json")
                )
            )
            for number in range(4)
        ]


async def test_a_writer_waits_at_its_quota_and_every_member_gets_what_was_acknowledged(
    four: list[ServerProcess], tmp_path: Path
) -> None:
    """One member is away until the quota is used up; afterwards, another one is replaced."""
    # EVIDENCE-OF: P-1, P-5
    three, spare = four[:3], four[3]
    await init_store(url_of(three))
    async with claimed(three) as (_, claim):
        writer = claim.open_object("o")
        await writer.wait_synced(writer.append(BLOCK))
        three[2].kill()
        for _ in range(9):
            await writer.wait_synced(writer.append(BLOCK))
        writer.append(BLOCK)
        await until(lambda: "the quota of 'd' is 100000 bytes" in claim.status().waiting, "it waits")
        assert writer.synced == LIMIT
        three[2].restart()
        await has(three[2], "d", "o", BLOCK * 10)
        three[1].kill()
        await replace_member(url_of(three), old=three[1].location, new=spare.location)
        await has(spare, "d", "o", BLOCK * 10)
        limit(tmp_path, 2 * LIMIT)
        with trio.fail_after(60):
            await writer.wait_synced(11 * len(BLOCK))
        for server in (three[0], three[2], spare):
            await has(server, "d", "o", BLOCK * 11)
