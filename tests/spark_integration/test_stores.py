"""Which store a region gets: the one named, one of our own on a local master, or an answer that helps."""

import logging
from pathlib import Path

import pytest
import trio

from dos_client.store import open_store
from dos_server import embedded
from dos_server.testing import threaded_store
from spark_integration.errors import StoreNotUsableError
from spark_integration.runner import choose_store


def claim_once(url: str, epoch: int) -> int:
    """Claim a directory of the store: only a store that is whole gives that."""

    async def claim() -> int:
        with trio.fail_after(20):
            async with open_store(url) as store:
                held = await store.claim("test.w0000", epoch, bytes([epoch]) * 16)
                await held.aclose()
                return held.epoch

    return trio.run(claim)


def test_without_a_name_a_local_session_gets_one_server_and_the_place_of_its_copy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        used = choose_store(None, one_machine=True, master="local[4]", data_dir=tmp_path / "data")
    try:
        assert f"one copy, in {tmp_path / 'data'}" in caplog.text
        assert claim_once(used.url, epoch=1) == 1
    finally:
        used.close()


def test_a_store_of_our_own_is_the_same_one_next_time_though_its_port_is_another(tmp_path: Path) -> None:
    urls = []
    for epoch in (1, 2, 3):
        used = choose_store(None, one_machine=True, master="local[4]", data_dir=tmp_path)
        try:
            urls.append(used.url)
            assert claim_once(used.url, epoch) == epoch
        finally:
            used.close()
    assert len(set(urls)) > 1


def test_data_of_a_larger_store_is_not_taken_for_our_own(tmp_path: Path) -> None:
    with embedded.start(tmp_path / "a") as one, embedded.start(tmp_path / "b") as two:
        both = f"{one.url},{two.url.removeprefix('dos://')}"
        choose_store(both, one_machine=True, master="local[4]", data_dir=None).close()
    with pytest.raises(StoreNotUsableError, match="belongs to a store of 2 servers"):
        choose_store(None, one_machine=True, master="local[4]", data_dir=tmp_path / "a")


def test_empty_servers_that_are_named_are_made_a_store(tmp_path: Path) -> None:
    with embedded.start(tmp_path / "a") as one, embedded.start(tmp_path / "b") as two:
        both = f"{one.url},{two.url.removeprefix('dos://')}"
        for epoch in (1, 2):  # made, then found
            used = choose_store(both, one_machine=False, master="yarn", data_dir=None)
            assert claim_once(used.url, epoch) == epoch
            used.close()


def test_on_another_master_no_store_is_guessed_and_the_commands_that_start_one_are_visible() -> None:
    with pytest.raises(StoreNotUsableError) as refused:
        choose_store(None, one_machine=False, master="spark://h:7077", data_dir=None)
    for command in ("dos serve --data", "dos store init dos://", 'run(..., store="dos://'):
        assert command in str(refused.value)


def test_a_store_that_is_missing_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    with embedded.start(tmp_path) as gone:
        url = gone.url
    with pytest.raises(StoreNotUsableError, match=url.removeprefix("dos://")):
        choose_store(url, one_machine=True, master="local[4]", data_dir=None)


def test_a_wrong_token_is_the_reason_that_is_given() -> None:
    with threaded_store(3, token=b"right") as servers:
        with pytest.raises(StoreNotUsableError) as refused:
            choose_store(servers.url, one_machine=False, master="yarn", data_dir=None, token=b"wrong")
        text = str(refused.value)
        assert text.startswith(f"the servers of {servers.url} reject the token")
        assert "use the token that the servers were started with" in text
        assert "made" not in text
