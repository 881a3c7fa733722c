"""Wrong tokens, the file of tokens, and real servers that have one."""

import fcntl
import hashlib
import json
import logging
import signal
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from dos_client import connect
from dos_monitoring.logs import JsonLines
from dos_protocol import messages as m
from dos_protocol.errors import ErrorCode, ForbiddenError, LocalProtocolError, RefusedError, UnauthorisedError
from dos_server.core.access import (
    FILE_VERSION,
    GrantedToken,
    TokenFile,
    decode_tokens,
    encode_settings,
)
from dos_server.core.requests import greetings
from dos_server.core.requests.greetings import Attempts
from dos_server.watched_files import watched_tokens
from tests.dos_server.test_access import OPERATOR, READ, code_of, granted, tokens
from tests.support.core_harness import Harness
from tests.support.dos_command import dos
from tests.support.polling import until
from tests.support.servers import ServerProcess
from tests.support.wire import Wire

WAIT_S = 60.0


# --- wrong tokens -------------------------------------------------------------------------------------------


def test_a_host_that_sends_wrong_tokens_is_refused_later_and_later_and_locks_nobody_out() -> None:
    server = Harness(token=b"secret")
    for _ in range(3):
        assert server.connect(m.Hello(token=b"wrong"), "10.0.0.1") in server.closed
    waits = []
    for _ in range(7):
        session = server.connect(m.Hello(token=b"wrong"), "10.0.0.1")
        assert server.core.wants_tick()
        begun = server.now
        assert isinstance(server.heard[server.connect(m.Hello(token=b"secret"), "10.0.0.1")][0][1], m.Welcome)
        assert server.connect(m.Hello(token=b"wrong"), f"10.0.0.{session}") in server.closed, "another host"
        assert server.ask(session, m.List()) is None, "nothing of it is executed"
        while session not in server.closed:
            server.tick(0.05)
        assert code_of(server.heard[session][-1][1]) is ErrorCode.UNAUTHORISED
        waits.append(round(server.now - begun, 1))
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert not server.core.wants_tick()
    server.tick(61)
    assert server.connect(m.Hello(token=b"wrong"), "10.0.0.1") in server.closed, "it is forgotten"


def test_the_delay_holds_however_many_connections_guess() -> None:
    server = Harness(token=b"secret")
    guesses = [server.connect(m.Hello(token=b"wrong"), "10.0.0.1") for _ in range(300)]
    assert len(server.closed & {*guesses}) == 3, "the first ones are free"
    server.tick(1.9)
    assert len(server.closed & {*guesses}) == 8, "0.1, 0.2, 0.4, 0.8 and 1.6 s"
    assert isinstance(server.heard[server.connect(m.Hello(token=b"secret"), "10.0.0.1")][0][1], m.Welcome)
    for session in guesses[100:]:
        server.end(session)
    assert len(server.core._greetings._attempts._held) == 92, "those that left are forgotten"
    server.tick(0.2)
    assert {*guesses[:100]} <= server.closed
    assert not server.core.wants_tick()


def test_hosts_that_are_remembered_are_bounded() -> None:
    kept = Attempts()
    for number in range(greetings._HOSTS_MAX + 5):
        kept.failed(f"h{number}", 1.0)
    assert len(kept._failed) == greetings._HOSTS_MAX


def test_each_refusal_is_in_the_audit_log_by_a_line_or_by_its_number() -> None:
    server = Harness(tokens=tokens(OPERATOR, granted("t", ("shop", READ))))
    session = server.connect(m.Hello(token=b"t"))
    for wait_s in (0, 1, 1, 60):
        server.tick(wait_s)
        assert code_of(server.ask(session, m.ChangeDirectory("other"))) is ErrorCode.FORBIDDEN
        server.connect(m.Hello(token=b"made up"))
    refused, guessed, more, guessed_more = (one.action for one in server.audited)
    assert refused.startswith("refused: token 't' may not open directory 'other'")
    assert guessed == "sent a token that is missing, wrong, expired or revoked"
    assert (more, guessed_more) == tuple(
        f"{line} (2 times more since the last such line)" for line in (refused, guessed)
    )


@pytest.mark.parametrize(
    "secret", ["secret", "open sesame", "changeit", "a" * 40, "12341234123412341234", "correct horse"]
)
def test_a_token_that_can_be_guessed_is_refused(tmp_path: Path, secret: str) -> None:
    (tmp_path / "token").write_text(secret)
    options = ("--listen", "127.0.0.1:0", "--token-file", tmp_path / "token")
    refused = dos("serve", "--data", tmp_path / "d", *options)
    assert (refused.returncode, "can be guessed" in refused.stderr) == (2, True)
    assert "head --bytes 24 /dev/urandom | base64" in refused.stderr
    assert not (tmp_path / "d").exists()


def test_a_session_that_leaves_while_its_refusal_waits_is_forgotten() -> None:
    server = Harness(token=b"secret")
    sessions = [server.connect(m.Hello(token=b"wrong"), "h") for _ in range(5)]
    server.half_close(sessions[3])
    server.end(sessions[4])
    server.tick(5)
    assert not server.core.wants_tick()


# --- the file -----------------------------------------------------------------------------------------------


def test_the_file_says_what_is_wrong_with_it() -> None:
    file = TokenFile(FILE_VERSION, (OPERATOR, granted("t", ("shop", READ), expires_s=1e9)))
    assert decode_tokens(encode_settings(file), "f") == file
    text = encode_settings(file).decode()
    for before, after, words in (
        ('"version": 1', '"version": 2', "has version 2; this program reads version 1"),
        ('"read"', '"write"', "Invalid enum value 'write'"),
        ('"prefix": "shop"', '"prefix": "shop/x"', "'shop/x' is no directory"),
        ('"name": "t"', '"name": "operator"', "token 'operator' needs a name of its own"),
        (hashlib.sha256(b"t").hexdigest(), "zz", "sha256 must have 64 hexadecimal digits"),
        ('"expires_s": 1000000000.0', '"expires": 1', "unknown field `expires`"),
        ("]\n}", "]", "truncated"),
    ):
        with pytest.raises(LocalProtocolError, match="tokens file f") as error:
            decode_tokens(text.replace(before, after, 1).encode(), "f")
        assert words in str(error.value)
    with pytest.raises(LocalProtocolError, match="a token needs at least one grant"):
        decode_tokens(encode_settings(TokenFile(FILE_VERSION, (GrantedToken("t", "0" * 64, ()),))), "f")


def test_a_file_that_becomes_invalid_changes_nothing_until_it_is_valid_again(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    path.write_bytes(encode_settings(TokenFile(FILE_VERSION, (OPERATOR,))))
    there = watched_tokens(path)
    assert (there.look(), there.problem) == (False, "")
    path.write_bytes(b"{")
    assert not there.look()
    assert "tokens file" in there.problem
    assert there.settings.find(b"operator") is not None
    path.unlink()
    assert not there.look()
    assert "No such file" in there.problem
    path.write_bytes(encode_settings(TokenFile(FILE_VERSION, (OPERATOR, granted("t", ("shop", READ))))))
    assert there.look()
    assert (there.problem, there.settings.names) == ("", {"operator", "t"})


def test_the_commands_change_the_file_and_a_running_server_notices(tmp_path: Path) -> None:
    path, secret = tmp_path / "tokens.json", tmp_path / "shop.token"
    operator = dos("token", "add", path, "operator", "--grant", "*:all").stdout.strip()
    audit = tmp_path / "audit"
    options = ("--tokens", str(path), "--audit-log", str(audit))
    with ServerProcess(tmp_path / "data", options=options) as server:
        url = server.url
        (tmp_path / "operator.token").write_text(operator)
        assert dos("ls", url, "--token-file", tmp_path / "operator.token").returncode == 0
        made = dos("token", "add", path, "shop", "--grant", "shop:read,append", "--out", secret)
        assert (made.returncode, made.stdout) == (0, "")
        assert secret.stat().st_mode & 0o777 == 0o600
        listed = json.loads(dos("token", "ls", path, "--json").stdout)
        assert listed[1] == {
            "name": "shop",
            "grants": [{"prefix": "shop", "rights": ["read", "append"]}],
            "expires": None,
        }
        assert "shop, shop.*" in dos("token", "ls", path).stdout
        (tmp_path / "line").write_text("one\n")

        def append(directory: str) -> Any:
            return dos("append", f"{url}/{directory}/o", tmp_path / "line", "--token-file", secret)

        until(lambda: append("shop").returncode == 0, "the server knows the new token", WAIT_S)
        refused = append("prices")
        assert refused.returncode == 2
        assert "token 'shop' may not open directory 'prices'" in refused.stderr
        assert "`dos token ls` shows what each one grants" in refused.stderr
        rotated = audit.rename(tmp_path / "audit.1")
        server.process.send_signal(signal.SIGHUP)
        assert dos("token", "revoke", path, "shop").stdout == "revoked: shop\n"
        wrong = "the token is missing, wrong, expired or revoked"
        # a command that had begun to append would wait for a valid token in its file
        until(
            lambda: wrong in dos("ls", f"{url}/shop", "--token-file", secret).stderr, "it is revoked", WAIT_S
        )
        assert wrong in append("shop").stderr
        with Wire(server.address) as wire:
            assert wire.welcome.code == ErrorCode.UNAUTHORISED
        log = server.log_path.read_text()
        assert secret.read_text().strip() not in log + path.read_text()
        assert "audit: token 'shop' from 127.0.0.1" in log
        assert "SIGHUP: nothing to do" in log
    assert '"removed this token"' not in rotated.read_text(), "the log that was moved away is closed"
    assert audit.stat().st_mode & 0o777 == 0o600
    lines = [json.loads(line) for file in (rotated, audit) for line in file.read_text().splitlines()]
    wrong = wrong.replace("the token", "sent a token that")
    assert any(one["action"] == wrong and not one["token"] for one in lines)
    assert [(one["token"], one["action"]) for one in lines if wrong not in one["action"]] == [
        ("shop", "added this token"),
        ("shop", "refused: token 'shop' may not open directory 'prices'"),
        ("shop", "removed this token"),
    ]


@pytest.mark.parametrize(
    ("before", "after", "refusal", "reason"),
    [
        ('"append"', '"delete"', ForbiddenError, "has no right append in directory"),
        ('"expires_s": null', '"expires_s": 1', UnauthorisedError, "was revoked, or has expired"),
    ],
    ids=["without the right", "expired"],
)
def test_a_writer_that_may_not_append_any_more_ends_with_the_reason(
    tmp_path: Path, before: str, after: str, refusal: type[RefusedError], reason: str
) -> None:
    path = tmp_path / "tokens.json"
    dos("token", "add", path, "writer", "--grant", "shop:read,append", "--out", tmp_path / "writer.token")
    dos("token", "add", path, "reader", "--grant", "shop:read", "--out", tmp_path / "reader.token")
    (tmp_path / "line").write_text("one\n")

    async def append_for_ever(url: str) -> None:
        token = (tmp_path / "writer.token").read_bytes().strip()
        async with connect(url, token=token) as store, await store.claim("shop", 1, b"w" * 16) as claim:
            writer = claim.open_object("o")
            await writer.wait_synced(writer.append(b"before"))
            path.write_text(path.read_text().replace(before, after, 1))
            while True:
                await writer.wait_synced(writer.append(b"x"))

    async def until_refused(url: str) -> None:
        with trio.fail_after(WAIT_S), pytest.raises(refusal, match=reason):
            await append_for_ever(url)

    with ServerProcess(tmp_path / "data", options=("--tokens", str(path))) as server:
        url = f"{server.url}/shop/o"
        refused = dos("append", url, tmp_path / "line", "--token-file", tmp_path / "reader.token")
        assert refused.returncode == 2
        assert "token 'reader' has no right append in directory 'shop'" in refused.stderr
        trio.run(until_refused, server.url)


def test_a_log_of_json_has_a_line_for_each_event(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    dos("token", "add", path, "reader", "--grant", "shop:read", "--out", tmp_path / "reader.token")
    options = ("--tokens", str(path), "--log-json")
    with ServerProcess(tmp_path / "data", options=options) as server:
        (tmp_path / "line").write_text("one\n")
        url = f"{server.url}/prices/o"
        dos("append", url, tmp_path / "line", "--token-file", tmp_path / "reader.token")
        with Wire(server.address) as wire:
            assert wire.welcome.code == ErrorCode.UNAUTHORISED
        lines = server.log_path.read_text().splitlines()
    logged = [json.loads(line) for line in lines if line.startswith("{")]
    assert len(logged) == len(lines) - sum(line.startswith("dos: serving") for line in lines)
    assert all({"time", "level", "logger", "message"} <= one.keys() for one in logged)
    refused, guessed = [one["audit"] for one in logged if "audit" in one]
    assert (refused["token"], refused["peer"].partition(":")[0]) == ("reader", "127.0.0.1")
    assert refused["action"] == "refused: token 'reader' may not open directory 'prices'"
    assert guessed["action"] == "sent a token that is missing, wrong, expired or revoked"


def test_an_unexpected_error_is_one_line_with_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    record = logging.LogRecord("dos.server", logging.ERROR, "x", 1, "it\nbroke: %s", ("why",), None)
    try:
        raise ValueError("a reason")
    except ValueError:
        record.exc_info = sys.exc_info()
    text = JsonLines().format(record)
    assert "\n" not in text
    found = json.loads(text)
    assert (found["message"], found["level"], found["logger"]) == ("it\nbroke: why", "ERROR", "dos.server")
    assert "ValueError: a reason" in found["traceback"]
    assert capsys.readouterr().err == ""


def test_the_commands_refuse_what_makes_no_sense(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"

    def refused(*arguments: Any, code: int = 2) -> str:
        done = dos("token", *arguments)
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        return done.stderr

    for grant in ("shop", ":read", "shop:write", "shop:"):
        assert "a grant is PREFIX:RIGHTS" in refused("add", path, "t", "--grant", grant)
    assert "'s/x' is no directory" in refused("add", path, "t", "--grant", "s/x:read")
    assert "invalid time 'soon'" in refused("add", path, "t", "--grant", "s:read", "--expires-in", "soon")
    assert not path.exists()
    assert dos("token", "add", path, "t", "--grant", "s:read").returncode == 0
    assert "has a token 't' already" in refused(
        "add", path, "t", "--grant", "s:read", "--out", tmp_path / "x"
    )
    assert not (tmp_path / "x").exists()
    assert "has no token 'u'; it has t" in refused("revoke", path, "u", code=1)
    half = tmp_path / "tokens.json.new"
    half.write_text('{"version": 1, "tokens": [{"name": "half')  # of a command that was killed
    with half.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert "another `dos token` changes" in refused("revoke", path, "t")
    assert dos("token", "add", path, "v", "--grant", "s:read").returncode == 0
    assert not half.exists()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert dos("token", "revoke", path, "v").returncode == 0
    assert "cannot be read" in refused("ls", tmp_path / "none")
    both = dos("serve", "--data", tmp_path / "d", "--tokens", path, "--token-file", path)
    assert both.returncode == 2
    assert "not both" in both.stderr
    path.write_text("{")
    bad = dos("serve", "--data", tmp_path / "d", "--tokens", path)
    assert (bad.returncode, (tmp_path / "d").exists()) == (2, False)
    assert "tokens file" in bad.stderr
