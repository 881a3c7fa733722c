"""Tokens with limited rights: what each grants, and what the core executes."""

import hashlib
import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import ErrorCode
from dos_protocol.store_record import Member, StoreRecord, encode_store_record
from dos_server.core import access
from dos_server.core import vocabulary as v
from dos_server.core.access import (
    FILE_VERSION,
    Grant,
    GrantedToken,
    Right,
    TokenFile,
    Tokens,
    why_forbidden,
)
from tests.dos_server.core_requests import to_claim
from tests.support.core_harness import SERVER_ID, Harness
from tests.support.planted_source import planted

READ, APPEND, DELETE, ADMIN = Right
DIRECTORIES = ("shop", "shop.w0000", "shops", "prices", "shop-2", "a")
RECORD = encode_store_record(StoreRecord(b"s" * 16, 1, 1, (Member(SERVER_ID, "h:1"),)))
CONTENT = b"good"
WAIT_S = 60.0
pytestmark = pytest.mark.usefixtures("settings_twice")


def granted(name: str, *grants: tuple[Any, ...], expires_s: float | None = None) -> GrantedToken:
    """The token whose text is its name. grants: (prefix, right, ...)."""
    digest = hashlib.sha256(name.encode()).hexdigest()
    return GrantedToken(
        name, digest, tuple(Grant(prefix, tuple(rights)) for prefix, *rights in grants), expires_s
    )


def tokens(*listed: GrantedToken, now_s: float = 0.0) -> Tokens:
    return Tokens.of_file(TokenFile(FILE_VERSION, listed), now_s)


OPERATOR = granted("operator", ("*", *Right))


# --- what is granted ----------------------------------------------------------------------------------------


def requests() -> Iterator[tuple[m.Message, Right]]:
    yield m.Get("o", 0, 10, 0), READ
    yield m.Stat("o"), READ
    yield m.List(), READ
    yield m.Append("o", 4, prefix_digest(CONTENT), b"x"), APPEND
    yield m.Delete("o"), DELETE
    yield m.RepairChunk("o", 0, 4, 0, 4, 0, False, CONTENT), ADMIN


def covers(prefix: str, directory: str) -> bool:
    """Written out, for the directories of these tests."""
    return {
        "*": True,
        "shop": directory in ("shop", "shop.w0000"),
        "prices": directory == "prices",
        "shop.w0000": directory == "shop.w0000",
    }[prefix]


def check_rights() -> None:
    """Every set of rights, on every prefix, against every request in every directory."""
    sets = [s for size in range(1, 5) for s in itertools.combinations(Right, size)]
    for prefix, rights, directory in itertools.product(
        ("*", "shop", "prices", "shop.w0000"), sets, DIRECTORIES
    ):
        one = tokens(granted("t", (prefix, *rights))).find(b"t")
        assert one is not None
        inside = covers(prefix, directory)
        for request, right in requests():
            allowed = why_forbidden(one, directory, request) is None
            assert allowed == (inside and right in rights), (prefix, rights, directory, request)
        opens = why_forbidden(one, None, m.ChangeDirectory(directory)) is None
        claims = why_forbidden(one, "prices", m.ChangeDirectory(directory, claim=True, epoch=1)) is None
        assert (opens, claims) == (inside, inside and rights != (READ,)), (prefix, rights, directory)
        assert one.sees(directory) == inside
        configures = why_forbidden(one, directory, m.Configure(RECORD)) is None
        assert configures == (prefix == "*" and ADMIN in rights)
        for free in (m.Ping(b""), m.Quit(), m.List()):
            assert why_forbidden(one, None, free) is None


def check_tokens() -> None:
    both = tokens(
        granted("t", ("shop", READ)), OPERATOR, granted("old", ("*", READ), expires_s=5.0), now_s=5.0
    )
    assert both.find(b"old") is None, "it expires at that time"
    assert both.find(b"") is None
    assert both.find(b"tt") is None
    shop = both.find(b"t")
    assert shop is not None
    assert (shop.name, shop.may(READ, "shop"), shop.may(READ, "prices")) == ("t", True, False)
    several = tokens(granted("t", ("shop", READ), ("prices", APPEND))).find(b"t")
    assert several is not None
    rights = {(right, place) for right in Right for place in DIRECTORIES if several.may(right, place)}
    assert rights == {(READ, "shop"), (READ, "shop.w0000"), (APPEND, "prices")}
    everything = Tokens.single(b"secret").find(b"secret")
    assert everything is not None
    assert everything.is_admin
    assert Tokens.single(b"secret").find(b"") is None
    assert Tokens.single(b"").find(b"secret") is None, (
        "a client that sends a token expects that it is checked"
    )
    assert tokens(OPERATOR).renewed(shop) is None
    other = tokens(GrantedToken("t", hashlib.sha256(b"new").hexdigest(), (Grant("shop", (READ,)),)))
    assert other.renewed(shop) is None, "the same name with another secret is another token"


def test_a_token_grants_what_its_file_says_and_nothing_else() -> None:
    check_rights()
    check_tokens()


BUGS = {
    "a prefix covers names that begin alike": ('startswith(f"{prefix}.")', "startswith(prefix)"),
    "a prefix covers its directory only": (' or directory.startswith(f"{prefix}.")', ""),
    "an admin of a prefix is one of the store": (
        "self.may(Right.ADMIN, EVERY)",
        "any(Right.ADMIN in one.rights for one in self.grants or ())",
    ),
    "everybody may configure": ("if isinstance(message, m.Configure | m.ScrubRequest):", "if False:"),
    "a reader may claim": ("if message.claim else tuple(Right)", "and tuple(Right)"),
    "a repair needs no right": ("    m.RepairChunk: Right.ADMIN,\n", ""),
    "one right is enough": ("right in grant.rights and grant.covers(directory)", "grant.covers(directory)"),
    "an expired token is valid": ("if one.expires_s is None or now_s < one.expires_s", ""),
    "it is valid a moment too long": ("now_s < one.expires_s", "now_s <= one.expires_s"),
    "the last token wins": (
        "            if hmac.compare_digest(presented, digest):\n",
        "            if True:\n",
    ),
    "sessions stay by name": (
        "self._valid.get(access.digest)",
        "next((o for o in self._valid.values() if o.name == access.name), None)",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = planted(access, *BUGS[bug])
    for name in ("Grant", "GrantedToken", "Right", "TokenFile", "Tokens", "why_forbidden"):
        monkeypatch.setitem(globals(), name, names[name])
    for name, right in zip(("READ", "APPEND", "DELETE", "ADMIN"), names["Right"], strict=True):
        monkeypatch.setitem(globals(), name, right)
    with pytest.raises(AssertionError):
        test_a_token_grants_what_its_file_says_and_nothing_else()


# --- in the core --------------------------------------------------------------------------------------------


def server_of(*listed: GrantedToken) -> Harness:
    """A server whose directories all have an object."""
    server = Harness(tokens=tokens(OPERATOR, *listed))
    for directory in DIRECTORIES:
        writer = entered(server, "operator", directory, claim=True)
        server.ask(writer, m.Append("o", 0, 0, CONTENT))
    return server


def entered(server: Harness, token: str, directory: str, *, claim: bool = False, epoch: int = 1) -> int:
    session = server.connect(m.Hello(token=token.encode()))
    request = m.ChangeDirectory(directory, claim=claim, epoch=epoch if claim else 0, writer_id=b"w" * 16)
    assert isinstance(server.ask(session, request), m.DirectoryOpened)
    return session


def code_of(answer: Any) -> ErrorCode | None:
    return ErrorCode(answer.code) if isinstance(answer, m.Error) else None


def test_what_is_not_granted_is_refused_by_name_and_the_session_continues() -> None:
    server = server_of(granted("reader", ("shop", READ)))
    session = entered(server, "reader", "shop")
    assert server.ask(session, m.Get("o", 0, 10, 0)).payload == CONTENT
    refused = server.ask(session, m.Append("o", 4, prefix_digest(CONTENT), b"x"))
    assert code_of(refused) is ErrorCode.FORBIDDEN
    assert refused.message == "token 'reader' has no right append in directory 'shop'"
    assert code_of(server.ask(session, m.Delete("o"))) is ErrorCode.FORBIDDEN
    for request in (
        m.ChangeDirectory("prices"),
        m.ChangeDirectory("no-such-directory"),
        to_claim(9, directory="shop"),
    ):
        assert code_of(server.ask(session, request)) is ErrorCode.FORBIDDEN
    assert server.ask(session, m.Stat("o")).info.synced == 4, "it is where it was"
    assert [one.action.split(":")[0] for one in server.audited] == ["refused"] * 5
    assert {one.token for one in server.audited} == {"reader"}
    server.ask(session, m.Delete("o"))
    assert len(server.audited) == 5, "each kind of refusal is logged once in a minute"
    server.tick(60)
    server.ask(session, m.Delete("o"))
    assert len(server.audited) == 6


def test_the_list_of_directories_has_those_of_the_token() -> None:
    server = server_of(granted("shop", ("shop", APPEND), ("prices", READ)))
    session = server.connect(m.Hello(token=b"shop"))
    listing = server.ask(session, m.List())
    assert ([one.name for one in listing.entries], listing.more) == (["prices", "shop", "shop.w0000"], False)
    first = server.ask(session, m.List("", "", 1))
    assert ([one.name for one in first.entries], first.more) == (["prices"], True)
    rest = server.ask(session, m.List("", "prices", 10))
    assert [one.name for one in rest.entries] == ["shop", "shop.w0000"]


def test_a_run_of_appends_is_checked_too() -> None:
    """Several frames at once take another way through the core."""
    server = server_of(granted("deleter", ("shop", DELETE, READ)))
    session = entered(server, "deleter", "shop", claim=True, epoch=2)
    frames = [m.encode(m.Append("o", 4, prefix_digest(CONTENT), b"x"), number) for number in (7, 8)]
    server.event(v.ReceivedAppends(session, frames))
    server.event(v.BatchEnded())
    server.settle()
    assert [code_of(server.answer(session, number)) for number in (7, 8)] == [ErrorCode.FORBIDDEN] * 2
    assert server.ask(session, m.Stat("o")).info.received == 4


def test_a_revoked_token_ends_its_sessions_and_a_changed_one_changes_them() -> None:
    server = server_of(granted("a", ("shop", READ, APPEND)), granted("b", ("shop", READ)))
    a, b = entered(server, "a", "shop", claim=True, epoch=2), entered(server, "b", "shop")
    waiting = server.connect0()  # it has not greeted
    server.event(v.TokensChanged(tokens(OPERATOR, granted("a", ("shop", READ)), granted("c", ("*", READ)))))
    assert b in server.closed
    (ended,) = server.unasked(b, m.Error)
    assert (code_of(ended), ended.message) == (
        ErrorCode.UNAUTHORISED,
        "token 'b' was revoked, or has expired",
    )
    assert {a, waiting}.isdisjoint(server.closed)
    refused = server.ask(a, m.Append("o", 4, prefix_digest(CONTENT), b"x"))
    assert code_of(refused) is ErrorCode.FORBIDDEN, "it keeps its claim, and may not append any more"
    assert [(one.token, one.action) for one in server.audited[:2]] == [
        ("c", "added this token"),
        ("b", "removed this token"),
    ]
    assert isinstance(server.heard[server.connect(m.Hello(token=b"c"))][0][1], m.Welcome)


def test_only_an_admin_of_everything_changes_the_store_record() -> None:
    server = server_of(granted("admin", ("shop", *Right)))
    session = server.connect(m.Hello(token=b"admin"))
    assert code_of(server.ask(session, m.Configure(RECORD))) is ErrorCode.FORBIDDEN
    operator = server.connect(m.Hello(token=b"operator"))
    assert server.ask(operator, m.Configure(RECORD)) == m.Configured(1)
    assert server.audited[-1] == v.Audit(operator, "operator", "stored generation 1 of the store record")


def play(seed: int) -> int:
    """Random requests with random tokens: what is carried out was granted. Returns how many were refused."""
    rng = random.Random(seed)
    listed = [
        granted(
            f"t{number}",
            *(
                (rng.choice(["shop", "prices", "*"]), *rng.sample([*Right], rng.randrange(1, 4)))
                for _ in range(2)
            ),
        )
        for number in range(3)
    ]
    server = server_of(*listed)
    sessions = {server.connect(m.Hello(token=one.name.encode())): one for one in listed}
    refused, epochs = 0, itertools.count(2)
    where: dict[int, str | None] = dict.fromkeys(sessions)
    for _ in range(40):
        session = rng.choice([*sessions])
        held = {
            (right, place)
            for grant in sessions[session].grants
            for right in grant.rights
            for place in DIRECTORIES
            if covers(grant.prefix, place)
        }
        if rng.random() < 0.4:
            place, claim = rng.choice(DIRECTORIES), rng.random() < 0.5
            rights = {right for right, there in held if there == place}
            request = m.ChangeDirectory(
                place, claim=claim, epoch=next(epochs) if claim else 0, writer_id=b"w" * 16
            )
            allowed = bool(rights - {READ} if claim else rights)
            answer = server.ask(session, request)
            where[session] = place if allowed else where[session]
            assert isinstance(answer, m.DirectoryOpened) == allowed
        elif (place := where[session]) is not None:
            request, right = rng.choice([*requests()])
            answer = server.ask(session, request)
            assert (code_of(answer) is ErrorCode.FORBIDDEN) == ((right, place) not in held)
        else:
            continue
        refused += code_of(answer) is ErrorCode.FORBIDDEN
    return refused


def test_random_sessions_do_what_is_granted_and_nothing_else() -> None:
    assert sum(map(play, range(12))) > 30
