"""The commands, run as a user runs them. They work without `dos_cli` too: they are typer commands.
The decorator of all commands: how errors end one, what is printed where, and which options are added.
"""

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated, NamedTuple

import pytest
import trio
import typer
from typer.testing import CliRunner

from dos_client import open_store
from dos_client.cli.kit import Call, Ends, Report, command
from dos_client.cli.objects import app
from dos_client.membership.founding import init_store
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import NotFoundError
from tests.dos_client.support import ThreadServer, damage, new_writer, url_of
from tests.support.commands import run_command


class Done(NamedTuple):
    """How a command ended."""

    code: int
    stdout: bytes
    stderr: str


def dos(*arguments: str, stdin: bytes = b"") -> Done:
    """Run a command in this process: starting Python for each would take most of the time."""
    done = CliRunner().invoke(app, list(arguments), input=stdin, env={"COLUMNS": "100", "NO_COLOR": "1"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Done(done.exit_code, done.stdout_bytes, done.stderr)


def answered(*arguments: str, stdin: bytes = b"") -> bytes:
    done = dos(*arguments, stdin=stdin)
    assert done.code == 0, done
    return done.stdout


def refused(code: int, *arguments: str, stdin: bytes = b"") -> str:
    done = dos(*arguments, stdin=stdin)
    assert done.code == code, done
    assert done.stdout == b""
    return done.stderr


@pytest.mark.process
def test_as_a_program_of_its_own_it_exits_with_words_and_without_a_traceback(alone: ThreadServer) -> None:
    program = "from dos_client.cli.objects import app; app(prog_name='dos')"
    good, bad = (
        subprocess.run([sys.executable, "-c", program, "ping", url], capture_output=True, timeout=60)
        for url in (alone.url, "dos://127.0.0.1:1")
    )
    assert good.returncode == 0
    assert b"minimum / mean / maximum" in good.stdout
    assert bad.returncode == 3
    assert b"Traceback" not in bad.stderr


def test_objects_on_one_server_from_the_command_line(alone: ThreadServer, tmp_path: Path) -> None:
    url = f"{alone.url}/notes/x"
    data = os.urandom(100_000)
    (tmp_path / "file").write_bytes(data)
    assert answered("append", url, str(tmp_path / "file")) == b"100000 bytes appended, 100000 durable\n"
    assert json.loads(answered("append", url, "--json", stdin=b"more"))["size"] == 100_004
    assert answered("get", url) == data + b"more"
    assert answered("get", url, "--offset", "99999", "--max", "3") == data[-1:] + b"mo"
    line = json.loads(answered("get", url, "--offset", "100002", "--json"))
    assert (line["offset"], base64.b64decode(line["data"])) == (100_002, b"re")
    assert answered("ls", alone.url) == b"notes\n"
    assert answered("ls", f"{alone.url}/notes").split() == [b"100004", b"x"]
    assert json.loads(answered("stat", url, "--json"))[0]["synced"] == 100_004
    assert f"server_id={alone.server_id}" in answered("stat", alone.url).decode()
    assert json.loads(answered("ping", alone.url, "--json", "--count", "2"))[0]["count"] == 2


def test_names_are_listed_by_their_beginning(alone: ThreadServer) -> None:
    for where in ("app.w0000/a.1", "app.w0000/a.2", "app.w0000/b", "zoo/x"):
        answered("append", f"{alone.url}/{where}", stdin=b"hello")
    directory = f"{alone.url}/app.w0000"
    assert answered("ls", directory, "--prefix", "a.").split() == [b"5", b"a.1", b"5", b"a.2"]
    assert [row["name"] for row in json.loads(answered("ls", directory, "--prefix", "b", "--json"))] == ["b"]
    assert answered("ls", directory, "--prefix", "c") == b""
    assert answered("ls", alone.url, "--prefix", "app.") == b"app.w0000\n"
    assert "directory nowhere does not exist" in refused(1, "ls", f"{alone.url}/nowhere", "--prefix", "a")


def test_a_damaged_object_is_listed_as_what_it_is_beside_the_others(alone: ThreadServer) -> None:
    for name in ("bad", "good"):
        answered("append", f"{alone.url}/d/{name}", stdin=bytes(5_000))
    trio.run(damage, alone, "d", "bad")
    assert answered("ls", f"{alone.url}/d").split() == [b"0", b"bad", b"corrupt", b"5000", b"good"]
    bad, good = json.loads(answered("ls", f"{alone.url}/d", "--json"))
    assert (bad["corrupt"], "corrupt" in good) == (True, False)


def test_the_digest_of_a_prefix_is_visible(alone: ThreadServer) -> None:
    url, data = f"{alone.url}/notes/x", os.urandom(100_000)
    answered("append", url, stdin=data)
    for size in (0, 5, 65_536, 70_000, 100_000):
        (row,) = json.loads(answered("stat", url, "--digest-at", str(size), "--json"))
        assert (row["digest_at"], row["prefix_digest"]) == (size, f"{prefix_digest(data[:size]):016x}")
    assert f"digest_at=5  prefix_digest={prefix_digest(data[:5]):016x}" in (
        answered("stat", url, "--digest-at", "5").decode()
    )
    assert "beyond the 100000 durable bytes" in refused(2, "stat", url, "--digest-at", "100001")
    assert "must name an object" in refused(2, "stat", alone.url, "--digest-at", "5")
    assert "prefix_digest" not in answered("stat", url, "--json").decode()


def test_the_examples_of_the_commands_about_objects_work(alone: ThreadServer) -> None:
    answered("append", f"{alone.url}/app.w0000/greetings", stdin=b"hello, and more " * 20)
    examples = [
        arguments
        for command in ("ls", "get", "stat", "ping")
        for arguments in examples_of_command(command, alone)
    ]
    assert len(examples) == 6
    assert all(answered(*arguments) for arguments in examples)


@pytest.mark.process
def test_a_store_gives_what_a_quorum_has_and_follows_it(three: list[ThreadServer]) -> None:
    url = url_of(three)
    answered("store", "init", url)
    target = f"{url}/notes/x"
    answered("append", target, stdin=b"one, ")
    assert answered("get", target, "--follow", "--max", "3") == b"one"
    program = [sys.executable, "-c", "from dos_client.cli.objects import app; app(prog_name='dos')"]
    follower = subprocess.Popen([*program, "get", target, "-f", "--max", "8"], stdout=subprocess.PIPE)
    endless = subprocess.Popen(
        [*program, "get", target, "-f"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        three[0].kill()
        answered("append", target, stdin=b"two")
        assert follower.communicate(timeout=60)[0] == b"one, two"
        assert endless.stdout is not None
        assert endless.stdout.read(5) == b"one, "
        endless.send_signal(signal.SIGINT)
        assert b"Traceback" not in endless.communicate(timeout=60)[1]
        assert endless.returncode == 130
    finally:
        for process in (follower, endless):
            process.kill()
            process.wait()
    assert answered("get", target, "--any-member") in (b"one, ", b"one, two")
    assert answered("get", target) == b"one, two"
    assert "leave out --any-member" in refused(2, "get", target, "--follow", "--any-member")


def test_copies_that_contradict_each_other_are_not_appended_to(three: list[ThreadServer]) -> None:
    url = url_of(three)
    answered("append", f"{three[0].url}/notes/x", stdin=b"one thing")
    answered("append", f"{three[1].url}/notes/x", stdin=b"and another")
    for server in three[:2]:
        server.kill()
        (server.data / "kept").mkdir()
        for name in ("d", "directories"):
            (server.data / name).rename(server.data / "kept" / name)
        (server.data / "d").mkdir()
        (server.data / "directories").touch()
        server.restart()
    answered("store", "init", url)
    for server in three[:2]:
        server.kill()
        (server.data / "d").rmdir()
        for name in ("d", "directories"):
            (server.data / "kept" / name).rename(server.data / name)
        server.restart()
    three[2].kill()  # or it and one of the others may be the two that answer first
    words = refused(1, "append", f"{url}/notes/x", stdin=b"!")
    assert all(text in words for text in (three[0].location, three[1].location, "different bytes"))


def test_a_store_from_making_to_replacing(three: list[ThreadServer], tmp_path: Path) -> None:
    # EVIDENCE-OF: P-5
    url = url_of(three)
    assert "no store record could be confirmed" in refused(3, "store", "status", url)
    assert "create one: dos store init" in refused(3, "ls", url)
    assert b"of 3 servers, acknowledged by 2, generation 1" in answered("store", "init", url)
    assert json.loads(answered("store", "init", url, "--json"))["generation"] == 1
    answered("append", f"{url}/notes/x", stdin=b"one ")
    answered("append", f"{url}/notes/x", stdin=b"two")
    assert answered("get", f"{url}/notes/x") == b"one two"
    assert len(json.loads(answered("stat", f"{url}/notes/x", "--json"))) == 3
    assert [row["epoch"] for row in json.loads(answered("stat", f"{url}/notes", "--json"))] == [2, 2, 2]
    three[2].kill()
    status = dos("store", "status", url, "--json")
    assert status.code == 1
    assert json.loads(status.stdout)["usable"] is True
    new = ThreadServer(tmp_path / "new")
    try:
        done = dos("store", "replace", url, three[2].location, new.location)
        assert done.code == 0, done
        assert f"{new.location} has replaced {three[2].location}: generation 3" in done.stdout.decode()
        assert "finishing, " in done.stderr
        # The history of the change is on two members; of a slow third one the copy may be behind.
        answered("store", "repair", url_of([three[0], new]))
        assert b"usable" in answered("store", "status", url_of([three[0], new]))
        assert (
            json.loads(answered("store", "replace", url, three[2].location, new.location, "--json"))[
                "generation"
            ]
            == 3
        )
        three[1].kill()
        assert answered("get", f"{url_of([three[0], new])}/notes/x") == b"one two"
    finally:
        new.kill()


def example_of(command: str, url: str, **places: ThreadServer) -> list[str]:
    """The arguments of the example that a store command's help shows, at other places."""
    words = answered("store", command, "--help").decode().split("Example: dos ")[1].split("╭")[0].split()
    here = {f"{name}:9999": server.location for name, server in places.items()}
    return [url if word.startswith("dos://") else here.get(word, word) for word in words]


def examples_of_command(command: str, server: ThreadServer) -> list[list[str]]:
    """The arguments of the examples that a command's help shows, of another server alone."""
    shown = answered(command, "--help").decode().split("╭")[0].split("Example: dos ")[1:]
    return [
        [word.replace("dos://127.0.0.1", server.url) for word in example.split()]
        for example in shown
        if "127.0.0.1:9001" not in example
    ]


def test_the_examples_in_the_help_work(three: list[ThreadServer], tmp_path: Path) -> None:
    h1, h2, h3 = three
    h4, h5 = (ThreadServer(tmp_path / name) for name in ("h4", "h5"))
    try:
        for command in ("init", "status", "verify", "repair"):
            answered(*example_of(command, url_of(three)))
        h3.kill()
        assert dos(*example_of("replace", url_of(three), h3=h3, h4=h4)).code == 0
        now = url_of([h1, h2, h4])
        assert "2 members are needed" not in dos(*example_of("status", now)).stderr
        h2.kill()
        h4.kill()
        shutil.rmtree(h4.data)
        h4.restart()
        shutil.rmtree(h3.data)
        h3.restart()
        assert dos(*example_of("recover", now, h4=h4, h5=h5)).code == 0
        assert dos(*example_of("add", url_of([h1]), h3=h3)).code == 0
        assert b"4 members" in answered("store", "add", h1.url, h3.location)
    finally:
        h4.kill()
        h5.kill()


def test_a_store_of_two_continues_by_a_persons_word(three: list[ThreadServer]) -> None:
    # EVIDENCE-OF: P-5
    url = url_of(three[:2])
    gone, new = three[1].location, three[2].location
    answered("store", "init", url)
    answered("append", f"{url}/notes/x", stdin=b"kept")
    three[1].kill()
    assert "run the command again with --other-is-gone" in refused(2, "store", "replace", url, gone, new)
    assert "no acknowledged data is lost" in refused(2, "store", "recover", url)
    assert b"has replaced" in answered("store", "replace", url, gone, new, "--other-is-gone")
    now = url_of([three[0], three[2]])
    assert answered("get", f"{now}/notes/x") == b"kept"
    log = answered("store", "status", now, "--log").decode()
    assert "--other-is-gone, finished: generation 1 to 1048577" in log
    assert f"without {gone}" in log


def test_a_store_that_lost_too_much_continues_by_a_persons_word(three: list[ThreadServer]) -> None:
    url = url_of(three)
    answered("store", "init", url)
    answered("append", f"{url}/notes/x", stdin=b"kept")
    for server in three[1:]:
        server.kill()
    words = refused(2, "store", "recover", url)
    assert "2 of 3 members are needed, 1 answer" in words
    assert "notes: 1 objects, 4 bytes, epoch 1" in words
    assert f"missing: {three[2].location}" in words
    assert "--accept-loss" in words
    shown = answered("store", "recover", url, "--accept-loss").decode()
    assert "notes: claimed at epoch 1048577, above 1" in shown
    words = f"the store continues with {three[0].location}: generation 1048577, acknowledged by 1 of 1"
    assert words in shown
    assert (
        json.loads(answered("store", "status", three[0].url, "--json"))["overrides"][-1]["finished"] is True
    )


def test_a_directory_with_a_writer_is_not_taken_over_unasked(three: list[ThreadServer]) -> None:
    # EVIDENCE-OF: P-4
    url = url_of(three)

    async def write() -> None:
        await init_store(url)
        async with open_store(url) as store, await store.claim("app", 1, new_writer()) as claim:
            writer = claim.open_object("x")
            await writer.wait_synced(writer.append(b"theirs "))

    trio.run(write)
    assert "pass --take-over to confirm" in refused(2, "append", f"{url}/app/x", stdin=b"mine")
    answered("append", f"{url}/app/x", "--take-over", stdin=b"mine")
    assert answered("get", f"{url}/app/x") == b"theirs mine"


def test_what_goes_wrong_is_said_in_words_with_its_exit_code(
    alone: ThreadServer, three: list[ThreadServer]
) -> None:
    answered("append", f"{alone.url}/notes/x", stdin=b"x")
    assert "no object nothing in notes" in refused(1, "get", f"{alone.url}/notes/nothing")
    assert "directory nowhere does not exist" in refused(1, "ls", f"{alone.url}/nowhere")
    assert "cannot connect to 127.0.0.1:1: Connection refused" in refused(3, "ls", "dos://127.0.0.1:1")
    assert "a URL must begin with dos://" in refused(2, "ls", "http://x")
    assert "a name must match" in refused(2, "get", f"{alone.url}/../x")
    assert "must name an object" in refused(2, "get", f"{alone.url}/notes")
    assert "cannot read" in refused(2, "append", f"{alone.url}/notes/x", "/does/not/exist")
    assert "1 bytes are committed" in refused(2, "get", f"{alone.url}/notes/x", "--offset", "9")
    assert "holds the directory notes" in refused(2, "store", "init", url_of([alone, three[0]]))
    assert dos("ping", "dos://127.0.0.1:1").code == 3
    assert dos("ping", f"{alone.url},127.0.0.1:1").code == 1
    assert dos("get").code == 2


@pytest.mark.parametrize(
    "command",
    [
        ["ls"],
        ["rm"],
        ["get"],
        ["append"],
        ["stat"],
        ["ping"],
        ["store", "init"],
        ["store", "status"],
        ["store", "replace"],
        ["store", "verify"],
        ["store", "repair"],
        ["store", "recover"],
        ["store", "add"],
    ],
)
def test_every_command_explains_itself_with_an_example(command: list[str]) -> None:
    shown = answered(*command, "--help").decode()
    assert "Example: " in shown
    assert f"dos {' '.join(command)}" in shown


ERRORS = {
    "none": None,
    "dos": NotFoundError("no such thing"),
    "value": ValueError("not a number"),
    "bug": KeyError("forgotten"),
}
commands = typer.Typer()
Which = Annotated[str, typer.Argument()]


def result_of(which: str) -> Report:
    if (error := ERRORS[which]) is not None:
        raise error
    return Report({"found": 1}, "one", 3, "two more are missing")


@command(commands, "waits", ends=Ends(refused=(ValueError,)))
async def waits(call: Call, which: Which) -> Report:
    assert call.token == b""
    return result_of(which)


@command(commands, "never-waits", token=False, ends=Ends(negative=(ValueError,), refused=(ValueError,)))
def never_waits(which: Which) -> Report:
    """Read something, in one
    paragraph.

        dos never-waits   none
    """
    return result_of(which)


@pytest.mark.parametrize("name", ["waits", "never-waits"])
@pytest.mark.parametrize(("options", "shown"), [((), "one\n"), (("--json",), '{"found": 1}\n')])
def test_a_result_is_printed_and_then_its_problem(name: str, options: tuple[str, ...], shown: str) -> None:
    done = run_command(commands, name, "none", *options)
    assert (done.returncode, done.stdout, done.stderr) == (3, shown, "dos: two more are missing\n")


@pytest.mark.parametrize(
    ("name", "which", "code", "text"),
    [
        ("waits", "dos", 1, "no such thing"),
        ("waits", "value", 2, "not a number"),
        ("never-waits", "dos", 1, "no such thing"),
        ("never-waits", "value", 1, "not a number"),
    ],
)
def test_an_error_ends_a_command_with_its_text_and_code(name: str, which: str, code: int, text: str) -> None:
    done = run_command(commands, name, which)
    assert (done.returncode, done.stdout, done.stderr.startswith(f"dos: {text}")) == (code, "", True)


@pytest.mark.parametrize("name", ["waits", "never-waits"])
def test_a_bug_is_not_taken_for_an_error_of_the_user(name: str) -> None:
    with pytest.raises(AssertionError, match="forgotten"):
        run_command(commands, name, "bug")


def test_help_is_the_docstring_with_its_code_and_has_the_options_that_were_asked_for() -> None:
    shown = run_command(commands, "never-waits", "--help").stdout
    assert "Read something, in one paragraph." in shown
    assert "dos never-waits   none" in shown
    assert ("--json" in shown, "--token-file" in shown) == (True, False)
