"""Removes secrets from text that leaves a machine: known ones in every form in which programs print them, and
what looks like one by its surroundings. Too much is removed rather than too little.
"""

import base64
import json
import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import quote, quote_plus

REMOVED: Final = "<***>"
_INNER_CHARS_MIN: Final = 8
_ALWAYS_CHARS_MIN: Final = 4
"""A shorter secret is removed where it is a word of its own: else a token `a` would remove every letter a."""

_SECRET_NAME: Final = re.compile(
    r"token|secret|passw|pwd|credential|private|signature|auth|api_?key|access_?key|session", re.IGNORECASE
)
_PLACE_NAME: Final = re.compile(r"(_FILE|_PATH|_DIR|_CERT)$", re.IGNORECASE)
"""A variable that ends so holds the place of a secret."""

_NAMED: Final = re.compile(
    r"""(?i)(["']?[\w.-]*(?:token|secret|passw(?:or)?d|pwd|credential|signature|api[_-]?key|access[_-]?key)"""
    r"""(?![\w.-]*(?:file|path|dir))[\w.-]*["']?\s*[=:]\s*)"""
    r"""(?!(?:null|true|false)\b)("[^"\n]*"|'[^'\n]*'|\d+(?=[\s,}\]])|[^\s,;&]+)"""
)
"""A name that tells, and its value: quoted, a number, or up to the next white space."""


def _without_value(found: re.Match[str]) -> str:
    name, value = found[1], found[2]
    mark = value[0] if value[0] in "\"'" else '"' if name.startswith('"') else ""
    return f"{name}{mark}{REMOVED}{mark}"


_PATTERNS: Final = (
    (re.compile(r"-----BEGIN [^-]*PRIVATE KEY-----.*?(?:-----END [^-]*-----|\Z)", re.DOTALL), REMOVED),
    (re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*://)[^\s/@\"']+@"), rf"\1{REMOVED}@"),
    (re.compile(r"(?i)(authorization[\"']?\s*[=:]\s*)[^\r\n]+"), rf"\1{REMOVED}"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[a-z0-9._~+/=-]{8,}"), rf"\1 {REMOVED}"),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b"), REMOVED),
    # the key of a page, in its address and in its cookie
    (re.compile(r"(?i)([?&]key=|\bdos_page[\"']?\s*[=:]\s*)[^\s&;\"']+"), rf"\1{REMOVED}"),
)


def names_secret(variable: str) -> bool:
    return _SECRET_NAME.search(variable) is not None and _PLACE_NAME.search(variable) is None


def secrets_in(variables: Mapping[str, str]) -> set[str]:
    """Return the values of variables whose names tell that they are secrets."""
    return {value for name, value in variables.items() if value and names_secret(name)}


class Redactor:
    """Removes a set of known secrets, and what looks like a secret, from text."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = {form for secret in secrets if secret.strip() for form in _forms(secret)}
        each = [
            re.escape(form) if len(form) >= _ALWAYS_CHARS_MIN else rf"(?<!\w){re.escape(form)}(?!\w)"
            for form in sorted(forms, key=len, reverse=True)  # a form may be a part of another
        ]
        self._known = re.compile("|".join(each)) if each else None

    def redacted(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(REMOVED, text)
        for pattern, instead in _PATTERNS:
            text = pattern.sub(instead, text)
        return _NAMED.sub(_without_value, text)


def _forms(secret: str) -> set[str]:
    encoded = secret.encode("utf-8", "replace")
    forms = {
        secret,
        secret.strip(),
        json.dumps(secret)[1:-1],
        repr(secret)[1:-1],
        quote(secret, safe=""),
        quote(secret),
        quote_plus(secret),
        encoded.hex(),
        encoded.hex().upper(),
    }
    for data in (encoded, encoded + b"\n"):
        forms |= {base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode()}
    for before in range(3):  # within more, as in `user:SECRET`: what does not depend on the rest
        inner = base64.b64encode(bytes(before) + encoded).decode().rstrip("=")
        inner = inner[(0, 2, 3)[before] : len(inner) - ((before + len(encoded)) % 3 > 0)]
        if len(inner) >= _INNER_CHARS_MIN:
            forms |= {inner, inner.translate(str.maketrans("+/", "-_"))}
    return {form for one in forms for form in (one, one.rstrip("=")) if form}
