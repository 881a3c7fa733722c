"""`dos context`: names for stores, in a file of this user. `core/contexts.py` has the format."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from dos_client.cli.kit import (
    REFUSED,
    Ends,
    Report,
    command,
    fail,
    print_table,
    read_token,
)
from dos_client.cli.settings import contexts_path, read_contexts, store_in_use
from dos_client.core.contexts import (
    Contexts,
    Settings,
    StoreContext,
    check_store,
    encode_contexts,
    find_store,
)
from dos_client.errors import ConfigurationError
from dos_tls import AUTHORITIES, CERTIFICATE, KEY, client_context, replace_durably, settings_of

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Name stores, so that commands need no URL. A command uses, in this order: its URL, --context NAME,"
    " the variable DOS_STORE, the context of DOS_CONTEXT or `dos context use`, dos.toml."
    "\n\nExample: dos context add prod dos://h1,h2,h3 --use",
)

# A path may be no text: UnicodeEncodeError.
_ENDS: Final = Ends(refused=(UnicodeEncodeError,), code_of=lambda _: REFUSED)


def complete_context(incomplete: str) -> list[str]:
    """Return the names that begin so."""
    try:
        return [name for name in sorted(read_contexts().contexts) if name.startswith(incomplete)]
    except ConfigurationError:  # completion has no place for errors
        return []


Name = Annotated[str, typer.Argument(help="The name.", metavar="NAME", autocompletion=complete_context)]
NameOrNone = Annotated[
    str, typer.Argument(help="The name.", metavar="[NAME]", autocompletion=complete_context)
]


def _file_of_tls(what: str, variable: str) -> Any:
    return typer.Option(help=f"PEM file with the {what}, as {variable}.", exists=True, dir_okay=False)


@command(app, "add", as_json=False, token=False, ends=_ENDS)
def add(
    name: Annotated[str, typer.Argument(help="A name for the store.", metavar="NAME")],
    url: Annotated[
        str, typer.Argument(help="The store: dos://HOST:PORT,HOST2:PORT,HOST3:PORT", metavar="URL-OF-STORE")
    ],
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File whose first line is the store's token. Its path is remembered, not the token.",
            exists=True,
            dir_okay=False,
            readable=True,
        ),
    ] = None,
    tls: Annotated[
        Path | None,
        typer.Option(
            help="Directory of a client of `dos tls init`, as DOS_TLS.", exists=True, file_okay=False
        ),
    ] = None,
    tls_ca: Annotated[Path | None, _file_of_tls("authorities", AUTHORITIES)] = None,
    tls_cert: Annotated[Path | None, _file_of_tls("certificate", CERTIFICATE)] = None,
    tls_key: Annotated[Path | None, _file_of_tls("key of the certificate", KEY)] = None,
    use: Annotated[bool, typer.Option("--use", help="Make it the current context.")] = False,
) -> Report:
    """Name a store. Nothing is sent to it.

    Example: dos context add prod dos://h1,h2,h3 --token-file /etc/dos/token --tls /etc/dos/client-tls --use

    Then: dos region status wordcount

    Then: dos get dos:///notes/greetings
    """
    check_store(url, "a context")
    read_token(token_file)  # ends the command if the file holds none
    paths = (token_file, tls, tls_ca, tls_cert, tls_key)
    context = StoreContext(url, *(str(path.absolute()) if path else "" for path in paths))
    _check_tls(name, context)
    _change(lambda contexts: contexts.with_context(name, context, use=use))
    return Report(None, f"context {name} is {url}" + (", and the current one" if use else ""))


def _check_tls(name: str, context: StoreContext) -> None:
    """Raise TlsSettingsError if the files cannot be used: the command that needs them would fail."""
    found = find_store(name, {}, Contexts(contexts={name: context}), Settings())
    if (settings := settings_of(found.tls)) is not None:
        client_context(settings)


@command(app, "use", as_json=False, token=False, ends=_ENDS)
def use(name: Name) -> Report:
    """Make a context the current one: commands without a URL use its store.

    Example: dos context use prod
    """
    changed = _change(
        lambda found: Contexts(current=name, contexts={**found.contexts, name: found.named(name)})
    )
    return Report(None, f"the current context is {name}: {changed.contexts[name].store}")


@command(app, "ls", token=False, ends=_ENDS)
def ls() -> Report:
    """List the contexts. The current one has a star.

    Example: dos context ls
    """
    found = read_contexts()
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "store": one.store,
            "tokenFile": one.token_file,
            "tls": dict(find_store(name, {}, found, Settings()).tls),
            "current": name == found.current,
        }
        for name, one in sorted(found.contexts.items())
    ]
    cells = [
        ("*" if row["current"] else " ", row["name"], row["store"], row["tokenFile"], _tls_text(row["tls"]))
        for row in rows
    ]
    return Report(rows, lambda: print_table(("", "name", "store", "token file", "TLS"), cells))


@command(app, "rm", as_json=False, token=False, ends=_ENDS)
def rm(name: Name) -> Report:
    """Forget a context. Its store and its token file stay.

    Example: dos context rm prod
    """
    _change(lambda contexts: contexts.without(name))
    return Report(None, f"context {name} is forgotten")


@command(app, "show", token=False, ends=_ENDS)
def show(name: NameOrNone = "") -> Report:
    """Show a context; without NAME, the store that a command without a URL uses now, and what names it.

    Example: dos context show
    """
    found = store_in_use(name)
    value = {
        "store": found.url,
        "tokenFile": found.token_file,
        "tls": dict(found.tls),
        "from": found.origin,
    }
    token = f", token file {found.token_file}" if found.token_file else ""
    tls = f", {_tls_text(found.tls)}" if found.tls else ""
    return Report(value, f"{found.url}{token}{tls}, from {found.origin}")


def _tls_text(tls: Mapping[str, str]) -> str:
    return " ".join(f"{name}={path}" for name, path in tls.items())


def _change(change: Callable[[Contexts], Contexts]) -> Contexts:
    """Replace the file: a crash leaves the old one or the new one. Raises ConfigurationError, OSError."""
    path = contexts_path()
    if path is None:
        fail("there is no home directory for the contexts: set XDG_CONFIG_HOME or HOME", REFUSED)
    changed = change(read_contexts())
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_durably(path, encode_contexts(changed).encode())
    return changed
