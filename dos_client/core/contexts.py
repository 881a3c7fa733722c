"""Names for stores, and which store a command uses that names none. Two files of TOML: `contexts.toml` is
written by `dos context`, `dos.toml` by people.

    version = 1                      store = "dos://h1,h2,h3"
    current = "prod"                 tls = "/etc/dos/tls"       # or tls_ca, tls_cert, tls_key
    [contexts."prod"]                [serve]                    # options of dos serve, by long name
    store = "dos://h1,h2,h3"         data = "/var/lib/dos"
    token_file = "/etc/dos/token"    [watch]                    # dos store watch
    tls = "/etc/dos/tls"             replace_after = "10m"

Neither holds a token, only the path of its file. A token is sent only to the store that is named beside it.
`tls*` mean the variables DOS_TLS*; if one of these is set, none of a file is used.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from dos_client.errors import BadUrlError, ConfigurationError
from dos_client.urls import SCHEME, parse_url
from dos_protocol.names import check_name
from dos_tls import AUTHORITIES, CERTIFICATE, DIRECTORY, KEY, VARIABLES

_Kind = TypeVar("_Kind", bound=msgspec.Struct)

VERSION: Final = 1
STORE_VARIABLE: Final = "DOS_STORE"
CONTEXT_VARIABLE: Final = "DOS_CONTEXT"
HERE: Final = "dos:///"
"""A URL that begins so names the store of the context."""
NO_STORE: Final = (
    "pass its URL (dos://HOST,HOST2,HOST3), --context NAME, or set one with `dos context use NAME`"
)


class StoreContext(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A store by a short name. token_file: the path of the file with its token; "" for none."""

    store: str
    token_file: str = ""
    tls: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""


class Contexts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of contexts.toml. current: the name of the context that is used; "" for none."""

    version: int = VERSION
    current: str = ""
    contexts: dict[str, StoreContext] = {}

    def named(self, name: str) -> StoreContext:
        """Return the context of that name. Raises ConfigurationError, which lists the names."""
        if name not in self.contexts:
            known = ", ".join(sorted(self.contexts)) or "none"
            raise ConfigurationError(
                f"no context has the name {name!r}; there are: {known}", remedy="dos context add NAME URL"
            )
        return self.contexts[name]

    def with_context(self, name: str, context: StoreContext, *, use: bool) -> "Contexts":
        """Return the contexts with one more. Raises ConfigurationError if its name is taken, BadNameError."""
        check_name(name)
        if self.contexts.get(name, context) != context:
            raise ConfigurationError(
                f"context {name} is {self.contexts[name].store}",
                remedy=f"remove it first: dos context rm {name}",
            )
        return Contexts(current=name if use else self.current, contexts={**self.contexts, name: context})

    def without(self, name: str) -> "Contexts":
        self.named(name)
        left = {key: one for key, one in self.contexts.items() if key != name}
        return Contexts(current="" if name == self.current else self.current, contexts=left)


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    store: str = ""
    token_file: str = ""
    tls: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    serve: dict[str, Any] = {}
    watch: dict[str, Any] = {}


class NamedStore(NamedTuple):
    """A store that a command uses without naming it. origin: what named it. tls: variables that are named
    beside it.
    """

    url: str
    token_file: str
    origin: str
    tls: Mapping[str, str]


def decode_contexts(text: str, where: str) -> Contexts:
    found = _decode(text, where, Contexts)
    if found.version != VERSION:
        raise ConfigurationError(
            f"{where} has version {found.version}, this release reads version {VERSION}",
            remedy="use the release that wrote it, or add the contexts again",
        )
    return found


def encode_contexts(contexts: Contexts) -> str:
    lines = ["# written by `dos context`", f"version = {VERSION}", f"current = {_text(contexts.current)}"]
    for name, context in sorted(contexts.contexts.items()):
        lines += ["", f"[contexts.{_text(name)}]"]
        lines += [f"{key} = {_text(value)}" for key, value in msgspec.to_builtins(context).items()]
    return "\n".join(lines) + "\n"


def decode_settings(text: str, where: str) -> Settings:
    return _decode(text, where, Settings)


def check_store(url: str, origin: str) -> None:
    """Raise ConfigurationError unless the URL names a store, and nothing in it."""
    try:
        parsed = parse_url(url)
    except BadUrlError as error:
        raise ConfigurationError(f"{origin}: {error}") from error
    if parsed.directory is not None:
        raise ConfigurationError(
            f"{origin} names the directory {parsed.directory}",
            remedy="name the servers alone: dos://HOST,HOST2",
        )


def find_store(
    asked: str, variables: Mapping[str, str], contexts: Contexts, settings: Settings
) -> NamedStore:
    """Return the store of a command that names none. In this order: --context, DOS_STORE, DOS_CONTEXT or the
    current context, dos.toml. Raises ConfigurationError if none of them names one.
    """
    url = variables.get(STORE_VARIABLE, "")
    name = asked or ("" if url else variables.get(CONTEXT_VARIABLE, "") or contexts.current)
    if name:
        found = _named(contexts.named(name), f"context {name}")
    elif url:
        found = NamedStore(url, "", STORE_VARIABLE, {})
    elif settings.store:
        found = _named(settings, "dos.toml")
    else:
        raise ConfigurationError("no store is named", remedy=NO_STORE)
    check_store(found.url, found.origin)
    return found._replace(url=str(parse_url(found.url)))


class GivenArguments(NamedTuple):
    """The words of a command line after the name of a command. store_at: which argument is a store, or a
    thing in it; None if none is. words_before: precede that argument. has_token_file: None if the command
    takes none.
    """

    words: Sequence[str]
    arguments: Sequence[str]
    store_at: int | None
    words_before: int
    requires_store: bool
    arguments_max: float
    has_token_file: bool | None

    @property
    def leaves_store_out(self) -> bool:
        """Whether the store is to be put in: what is in its place is no URL, and there is room."""
        if self.store_at is None or not self.store_at <= len(self.arguments) < self.arguments_max:
            return False
        return not any(one.startswith(SCHEME) for one in self.arguments[self.store_at :][:1])

    @property
    def needs_store(self) -> bool:
        return self.leaves_store_out or any(word.startswith(HERE) for word in self.words)


def completed(given: GivenArguments, store: NamedStore) -> list[str]:
    path = store.url + "/"
    words = [path + word.removeprefix(HERE) if word.startswith(HERE) else word for word in given.words]
    if given.leaves_store_out:
        words.insert(given.words_before, store.url)
    # a line that names another store, too, sends its token to both: that of the context must not go there
    others = any(word.startswith(SCHEME) and not word.startswith(HERE) for word in given.words)
    if store.token_file and given.has_token_file is False and not others:
        return ["--token-file", store.token_file, *words]
    return words


def tls_to_set(store: NamedStore, variables: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables of TLS to set for a command that uses the store: none if any of them is set."""
    # They hold for all connections of the command, also if the line names another store: a token that the
    # line or a variable names must not pass in plain text because of that.
    return {} if any(name in variables for name in VARIABLES) else store.tls


def _named(one: StoreContext | Settings, origin: str) -> NamedStore:
    tls = {DIRECTORY: one.tls, AUTHORITIES: one.tls_ca, CERTIFICATE: one.tls_cert, KEY: one.tls_key}
    return NamedStore(one.store, one.token_file, origin, {name: path for name, path in tls.items() if path})


def _decode(text: str, where: str, kind: type[_Kind]) -> _Kind:
    try:
        return msgspec.convert(tomllib.loads(text), kind)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{where} is no TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{where}: {error}") from error


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
