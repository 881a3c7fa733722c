"""`dos store spare | watch | move | status --history`, run as a user runs them."""

import json

import pytest
import trio

from dos_client.membership.founding import init_store
from tests.dos_client.support import Threads, ThreadServer, damage, url_of, write_idle
from tests.dos_client.test_cli import answered, dos, refused
from tests.dos_server.fsck.data_directories import flip


@pytest.fixture
def url(five: Threads) -> str:
    trio.run(init_store, url_of(five[:3]))
    return url_of(five[:3])


def test_spares_are_added_listed_and_removed(five: Threads, url: str) -> None:
    assert f"spares: {five[3].location}" in answered("store", "spare", "add", url, five[3].location).decode()
    listed = json.loads(answered("store", "status", url, "--json"))["store"]["spares"]
    assert [(one["address"], one["present"]) for one in listed] == [(five[3].location, True)]
    assert f"{five[3].location:<24} spare    there" in answered("store", "status", url).decode()
    again = json.loads(answered("store", "spare", "add", url, five[3].location, "--json"))
    assert again["generation"] == 2, "nothing was changed"
    five[3].kill()
    assert "cannot connect" in answered("store", "status", url, "--quick").decode()
    assert "spares: none" in answered("store", "spare", "remove", url, five[3].location).decode()
    assert "is not a spare; the spares: none" in refused(2, "store", "spare", "remove", url, five[3].location)
    five[3].restart()
    assert "already belongs to store" in refused(2, "store", "spare", "add", url, five[3].location)
    assert "already belongs to store" in refused(2, "store", "spare", "add", url, five[0].location)


def test_once_tells_by_its_exit_code_what_was_seen(five: Threads, url: str) -> None:
    assert "3 members are present; spares: none" in answered("store", "watch", url, "--once").decode()
    trio.run(write_idle, url, "d", 1, b"x" * 3_000)
    trio.run(damage, five[0], "d", "o0")
    would = dos("store", "watch", url, "--once", "--dry-run")
    assert would.code == 1, "it is left undone"
    assert " would repair d: 1 directories have damaged copies" in would.stdout.decode()
    done = json.loads(answered("store", "watch", url, "--once", "--json"))
    assert (done["action"], done["done"], done["subject"]) == ("repair", True, ["d"])
    five[2].kill()
    waiting = dos("store", "watch", url, "--once", "--metrics", "127.0.0.1:0")
    assert (waiting.code, b" waiting: " in waiting.stdout) == (0, True)
    assert "metrics: http://127.0.0.1:" in waiting.stderr
    five[1].kill()
    alone = dos("store", "watch", url, "--once")
    assert alone.code == 3
    assert b"a person has to act: " in alone.stdout
    assert "for example 24h" in refused(2, "store", "watch", url, "--replace-after", "soon")
    assert "--metrics takes HOST:PORT" in refused(2, "store", "watch", url, "--metrics", "9400")


def test_a_directory_that_one_member_cannot_open_is_named_everywhere_and_never_called_repaired(
    five: Threads, url: str
) -> None:
    trio.run(write_idle, url, "d", 1, b"x" * 3_000)
    trio.run(write_idle, url, "e", 1, b"x" * 3_000)
    five[1].kill()
    flip(five[1].data / "d" / "d" / ".claim", 20)
    five[1].restart()
    text = f"d on {five[1].location} cannot be opened: "
    for command in ("watch --once", "status", "verify", "repair"):
        done = dos("store", command.split()[0], url, *command.split()[1:])
        assert (done.code, text in done.stdout.decode()) == (1, True), done
    verified = json.loads(dos("store", "verify", url, "d", "e", "--json").stdout)
    assert (verified["equal"], verified["unavailable"], verified["blocked"]) == (False, {}, [])
    assert verified["bytes_compared"] == 5 * 3_000, "its other directory is compared"
    five[2].kill()
    for command in ("status", "verify"):
        done = dos("store", command, url, "--json")
        assert (done.code, json.loads(done.stdout)["blocked"]) == (3, ["d"]), done


def test_a_member_is_moved_by_hand_and_the_history_shows_it(five: Threads, url: str) -> None:
    assert "is not a member of this store" in refused(2, "store", "move", url, five[4].location)
    five[2].kill()
    moved = ThreadServer(five[2].data)
    try:
        assert "generation 2" in answered("store", "move", url, moved.location).decode()
        assert "generation 2" in answered("store", "move", url, moved.location).decode()
        text = answered("store", "status", url, "--history").decode()
        assert f"move {five[2].location}" in text
        assert f"-> {moved.location}: done (generation 2; " in text
        (entry,) = json.loads(answered("store", "status", url, "--json"))["history"]
        assert (entry["what"], entry["automatic"], entry["outcome"]) == ("move", False, "done")
    finally:
        moved.kill()


def test_a_store_that_never_changed_has_no_history(url: str) -> None:
    assert "nothing was ever changed on this store" in answered("store", "status", url, "--history").decode()
