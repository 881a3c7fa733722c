"""What stops a replacement and what does not.

Servers that cannot replace, contents that contradict each other, files that nobody claimed.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest

from dos_client import (
    QuorumUnavailableError,
    ReplacementError,
    StoreNotReadyError,
    connect,
    init_store,
    open_connection,
    open_store,
    replace_member,
)
from dos_client.core.replacement import begin
from dos_client.membership.replacing import move_member
from dos_client.sessions.discovery import ServerSurvey, send_record, survey
from dos_protocol.errors import DosError
from tests.dos_client.support import (
    Threads,
    ThreadServer,
    cancelled_at,
    content_of,
    damage,
    new_writer,
    off,
    on,
    url_of,
    write_idle,
)
from tests.support.servers import ServerProcess, three_servers  # noqa: F401
from tests.support.v0_client import V0Connection

pytestmark = pytest.mark.trio


async def test_what_cannot_replace_is_refused_and_changes_nothing(four: Threads) -> None:
    # EVIDENCE-OF: P-8
    url = url_of(four[:3])
    record = await init_store(url)
    with pytest.raises(ReplacementError, match="is not a member"):
        await replace_member(url, old="127.0.0.1:1", new=four[3].location)
    with pytest.raises(ReplacementError, match="already a member"):
        await replace_member(url, old=four[0].location, new=four[1].location)
    async with connect(four[3].url) as server, await server.unclaimed("full") as claim:
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"x"))
    with pytest.raises(ReplacementError, match=r"is not empty.*stop that client"):
        await replace_member(url, old=four[2].location, new=four[3].location)
    async with open_store(url) as store:
        assert store.record == record


async def test_the_server_that_left_knows_that_it_is_no_member(four: Threads) -> None:
    # EVIDENCE-OF: P-5
    url = url_of(four[:3])
    await init_store(url)
    record = await replace_member(url, old=four[2].location, new=four[3].location)
    async with open_connection(four[2].location) as connection:
        assert connection.record == record
    with pytest.raises(DosError, match="is not a member in the store record"):
        async with open_connection(four[2].location, store_id=record.store_id, generation=record.generation):
            pass


async def test_contents_that_contradict_each_other_stop_the_replacement(four: Threads) -> None:
    # EVIDENCE-OF: P-5
    url = url_of(four[:3])
    await init_store(url)
    for server, data in ((four[0], b"this"), (four[1], b"that, longer")):
        async with connect(server.url) as one:
            one.server_record = None  # behind the store's back
            async with await one.claim("d", 1, new_writer()) as claim:
                writer = claim.open_object("x")
                await writer.wait_synced(writer.append(data))
    await off(four[2])
    with pytest.raises(ReplacementError, match="different contents"):
        await replace_member(url, old=four[2].location, new=four[3].location)


async def test_only_a_member_moves_and_only_from_an_address_where_it_answers_no_more(
    four: Threads, tmp_path: Path
) -> None:
    # EVIDENCE-OF: P-4
    url = url_of(four[:3])
    with pytest.raises(ReplacementError, match="is not a member of this store"):
        await move_member(url, new=four[3].location)  # no store exists yet
    record = await init_store(url)
    with pytest.raises(ReplacementError, match="is not a member of this store"):
        await move_member(url, new=four[3].location)
    await off(four[2])
    shutil.copytree(four[2].data, tmp_path / "copy")
    copy = ThreadServer(tmp_path / "copy")
    try:
        await on(four[2])
        with pytest.raises(ReplacementError, match=f"answers at {four[2].location} and at {copy.location}"):
            await move_member(url, new=copy.location)
        await off(four[2])
        moved = await move_member(url, new=copy.location)
    finally:
        await off(copy)
    assert moved.generation == record.generation + 1
    assert moved.members[2].address == copy.location


async def test_servers_of_which_one_went_away_while_they_became_a_store_are_not_reported_as_one(
    four: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def without_one(*arguments: Any, **options: Any) -> ServerSurvey:
        await off(four[2])
        return await survey(*arguments, **options)

    monkeypatch.setattr("dos_client.membership.founding.survey", without_one)
    with pytest.raises(StoreNotReadyError, match="servers changed while the store was created"):
        await init_store(url_of(four[:3]))


async def test_a_new_server_whose_copy_is_damaged_while_it_is_filled_is_not_let_in(four: Threads) -> None:
    # EVIDENCE-OF: P-5
    url = url_of(four[:3])
    await init_store(url)
    await write_idle(url, "idle", 1, b"x" * 300_000)
    await off(four[2])
    with cancelled_at("finishing") as progress:
        await replace_member(url, old=four[2].location, new=four[3].location, progress=progress)
    await damage(four[3], "idle", "o0")
    with pytest.raises(ReplacementError, match="disk failed on idle/o0"):
        await replace_member(url, old=four[2].location, new=four[3].location)


async def test_where_nobody_ever_claimed_files_that_differ_stay_where_they_are(four: Threads) -> None:
    """Clients of version 0 write to one server. Theirs stop no replacement, and take no other's place."""
    # EVIDENCE-OF: P-1, P-5
    url = url_of(four[:3])
    record = await init_store(url)
    joining = begin(record, record.members[2], bytes.fromhex(four[3].server_id), four[3].location)
    for server in four:
        await send_record(server.location, joining)
    for server, name, data in (
        (four[0], "f", b"this"),
        (four[1], "f", b"that, longer"),
        (four[1], "g", b"only here"),
        (four[3], "g", b"another one"),
        (four[1], "h", b"goes along"),
        (four[3], "h", b"goes"),
    ):
        with V0Connection(server.address) as client:
            client.use("loose")
            client.append(name, 0)
            client.send(data)
            assert client.finish()[-1][1] > 0
            client.close()
    await replace_member(url, old=four[2].location, new=four[3].location)
    assert await content_of(four[0], "loose", "f") == b"this"
    assert await content_of(four[1], "loose", "f") == b"that, longer"
    assert not (four[3].data / "d" / "loose" / "f").exists()
    assert await content_of(four[3], "loose", "g") == b"another one"
    assert await content_of(four[3], "loose", "h") == b"goes along"


@pytest.mark.parametrize("claimed_once", [False, True])
async def test_a_damaged_file_that_nobody_claimed_stops_no_replacement(
    four: Threads, claimed_once: bool
) -> None:
    """No other copy exists: `dos store repair` cannot repair it, and reports nothing about others."""
    # EVIDENCE-OF: P-5, P-10
    url, content = url_of(four[:3]), bytes(range(256)) * 8
    await init_store(url)
    for server, name in ((four[0], "f"), (four[0], "g"), (four[1], "h")):
        with V0Connection(server.address) as client:
            client.use("loose")
            client.append(name, 0)
            client.send(content)
            assert client.finish()[-1][1] == len(content)
            client.close()
    await damage(four[0], "loose", "f")
    if claimed_once:
        async with connect(four[1].url) as one:
            one.server_record = None  # behind the store's back
            await (await one.claim("loose", 1, new_writer())).aclose()
    await off(four[2])
    if claimed_once:
        with pytest.raises(QuorumUnavailableError, match="has damaged objects: f"):
            await replace_member(url, old=four[2].location, new=four[3].location)
        return
    await replace_member(url, old=four[2].location, new=four[3].location)
    assert not (four[3].data / "d" / "loose" / "f").exists()
    for name in ("g", "h"):
        assert await content_of(four[3], "loose", name) == content


async def test_a_new_server_with_another_content_is_never_let_in(four: Threads) -> None:
    # EVIDENCE-OF: P-5
    url = url_of(four[:3])
    record = await init_store(url)
    await write_idle(url, "d", 1, b"right")
    async with connect(four[3].url) as server, await server.claim("d", 1, new_writer()) as claim:
        writer = claim.open_object("o0")
        await writer.wait_synced(writer.append(b"wrong"))
    joining = begin(record, record.members[2], bytes.fromhex(four[3].server_id), four[3].location)
    for server in four:
        await send_record(server.location, joining)
    with pytest.raises(ReplacementError, match="different content on the new server"):
        await replace_member(url, old=four[2].location, new=four[3].location)
