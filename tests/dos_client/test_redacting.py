"""No secret is left in text: a known one in any form, and what looks like one."""

import base64
import json
import string
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dos_client.redacting import REMOVED, Redactor, names_secret, secrets_in

secrets = st.text(string.ascii_letters + string.digits + "+/_-.$\"'\\ %é", min_size=1).filter(
    lambda text: any(map(str.isalnum, text.strip()))
)
FORMS = {
    "plain": lambda text: text,
    "json": lambda text: json.dumps({"a": text}),
    "repr": repr,
    "url": lambda text: quote(text, safe=""),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "line": lambda text: base64.b64encode(text.encode() + b"\n").decode().rstrip("="),
    "hex": lambda text: text.encode().hex(),
    "upper-case hex": lambda text: text.encode().hex().upper(),
}


@given(secrets, st.sampled_from(sorted(FORMS)))
def test_a_known_secret_is_removed_in_each_form(secret: str, form: str) -> None:
    printed = FORMS[form](secret)
    text = Redactor([secret]).redacted(f"before {printed} after")
    assert REMOVED in text
    assert text.startswith("before ")
    assert text.endswith(" after")
    assert secret.strip() not in text.removeprefix("before ").removesuffix(" after")


@given(st.binary(max_size=7), st.text(string.ascii_letters, min_size=12), st.binary(max_size=7))
def test_a_known_secret_is_removed_within_base64(before: bytes, secret: str, after: bytes) -> None:
    """As in `Basic` authentication, which has user and password."""
    printed = base64.b64encode(before + secret.encode() + after).decode()
    text = Redactor([secret]).redacted(printed)
    assert REMOVED in text
    for part in text.split(REMOVED):
        assert len(part) <= 14, "only what is around it is left, and parts of two characters"


@pytest.mark.parametrize(
    "text",
    [
        "password = hunter2",
        'PASSWORD: "hunter2"',
        '{"db_password": "hunter2"}',
        "--token=hunter2",
        "AWS_SECRET_ACCESS_KEY=hunter2",
        "https://ann:hunter2@proxy:3128/x",
        "https://hunter2@host/x",
        "Authorization: Basic hunter2hunter2",
        "sent Bearer hunter2hunter2 to",
        "dos ui: open http://127.0.0.1:4050/?key=hunter2",
        "GET /?a=1&key=hunter2 HTTP/1.1",
        "Cookie: a=b; dos_page=hunter2; c=d",
        "GET /x?X-Amz-Signature=hunter2&y=1",
        "-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nhunter2 and the end of the log",
    ],
)
def test_what_looks_like_a_secret_is_removed(text: str) -> None:
    assert "hunter2" not in Redactor([]).redacted(text)


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-27 20:00:00 WARNING listening on 10.0.0.1:9999 without TLS",
        "token_file = '/etc/dos/token'",
        "dos://h1:9999,h2:9999/notes/greetings",
        '{"digest": "0123456789abcdef", "synced": 12}',
    ],
)
def test_what_a_report_needs_stays(text: str) -> None:
    assert Redactor(["abc"]).redacted(text) == text


def test_json_without_secrets_is_json() -> None:
    value = {
        "password": 'a "b" c',
        "pin_token": 12,
        "tokens": None,
        "nested": [{"secret": ""}],
        "url": "dos://h",
    }
    found = json.loads(Redactor(['a "b" c']).redacted(json.dumps(value)))
    assert found == {**value, "password": REMOVED, "pin_token": REMOVED, "nested": [{"secret": REMOVED}]}


def test_a_short_secret_is_removed_as_a_word_and_not_as_a_letter() -> None:
    assert Redactor(["a"]).redacted("the token a is bad") == f"the token {REMOVED} is bad"


def test_variables_with_telling_names_are_secrets_and_places_of_secrets_are_not() -> None:
    variables = {
        "AWS_SECRET_ACCESS_KEY": "x1",
        "DOS_TOKEN_FILE": "/t",
        "DOS_STORE": "dos://h",
        "PGPASSWORD": "x2",
    }
    assert secrets_in(variables) == {"x1", "x2"}
    assert names_secret("DOS_TLS_KEY_PASSWORD")
    assert not names_secret("DOS_TLS_CERT")
