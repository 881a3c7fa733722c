"""Completes the arguments of a command from contexts, variables and dos.toml, before the command parses them.

A command sees what a person would have typed, so no command knows of contexts. `core/contexts.py` decides;
this file reads the files and the definition of the command. It is used by `dos_cli` and by `dos context`.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dos_client.core.contexts import (
    CONTEXT_VARIABLE,
    STORE_VARIABLE,
    Contexts,
    GivenArguments,
    NamedStore,
    Settings,
    completed,
    decode_contexts,
    decode_settings,
    find_store,
    tls_to_set,
)
from dos_client.errors import ConfigurationError

CONFIG_VARIABLE: Final = "DOS_CONFIG"
CONTEXTS_VARIABLE: Final = "DOS_CONTEXTS"
TOKEN_FILE_VARIABLE: Final = "DOS_TOKEN_FILE"  # noqa: S105 - a name
_SYSTEM_FILE: Final = Path("/etc/dos/dos.toml")
_STORES: Final = ("STORE-URL", "URL", "[STORE-URL]")
"""The metavars of an argument that is a store, or an object in it."""
_SERVICES: Final = {("serve",): "serve", ("store", "watch"): "watch"}
"""Words of a command -> its table in dos.toml."""


def contexts_path(variables: Mapping[str, str] = os.environ) -> Path | None:
    """Return where contexts.toml is, or will be; None for a user without a home."""
    if named := variables.get(CONTEXTS_VARIABLE):
        return Path(named)
    home = _config_directory(variables)
    return home / "contexts.toml" if home else None


def _config_directory(variables: Mapping[str, str]) -> Path | None:
    home = variables.get("XDG_CONFIG_HOME") or (variables.get("HOME") and f"{variables['HOME']}/.config")
    return Path(home) / "dos" if home else None


def read_contexts() -> Contexts:
    path = contexts_path()
    if path is None or not _is_there(path):
        return Contexts()
    return decode_contexts(_text_of(path), str(path))


def settings_path(variables: Mapping[str, str] = os.environ) -> Path | None:
    """Return the path of dos.toml: that in DOS_CONFIG, or the user's, or the machine's; None without one."""
    if named := variables.get(CONFIG_VARIABLE):
        return Path(named)
    home = _config_directory(variables)
    places = [_SYSTEM_FILE] if home is None else [home / "dos.toml", _SYSTEM_FILE]
    return next(filter(_is_there, places), None)


def read_settings() -> Settings:
    path = settings_path()
    return Settings() if path is None else decode_settings(_text_of(path), str(path))


def _is_there(path: Path) -> bool:
    """Return whether the file exists. The home of another user (sudo keeps HOME) has none for this one."""
    try:
        return path.exists()
    except PermissionError:
        return False


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from error


def store_in_use(asked: str = "") -> NamedStore:
    """Return the store of a command that names none. Raises ConfigurationError."""
    return find_store(asked, os.environ, read_contexts(), read_settings())


def complete_words(context: Any, name: str, command: Any, words: list[str]) -> list[str]:
    """Return the words after `dos NAME` with what they leave out, and set the defaults of a service.

    context: that of the root command, with `--context` in its params. Raises ConfigurationError.
    """
    words, asked = _without_context(words, str(context.params.get("context") or ""))
    path, leaf = [name], command
    while hasattr(leaf, "commands") and words[len(path) - 1 : len(path)]:
        path.append(words[len(path) - 1])
        leaf = leaf.commands.get(path[-1])
    if leaf is None or hasattr(leaf, "commands") or "--help" in words:
        return words
    if tuple(path) in _SERVICES:
        _set_defaults(context, path, leaf)
    given = _given(context, leaf, words[len(path) - 1 :])
    if given.needs_store:
        store = _store_for(given, asked)
        if store is None:
            return words
        _set_tls(context, store)
        return [*path[1:], *completed(given, store)]
    if asked:
        raise ConfigurationError(
            f"context {asked} is not used: the command names its store, or takes none",
            remedy="omit one of them",
        )
    return words


def _store_for(given: GivenArguments, asked: str) -> NamedStore | None:
    """Return the store in use; None if there is none, and the command does not require one."""
    contexts, settings = read_contexts(), read_settings()
    names_one = asked or contexts.current or settings.store or os.environ.get(STORE_VARIABLE)
    if not (given.requires_store or names_one or os.environ.get(CONTEXT_VARIABLE)):
        return None
    return find_store(asked, os.environ, contexts, settings)


def _set_tls(context: Any, store: NamedStore) -> None:
    """Set the variables of TLS until the command has ended, for it and for the processes that it starts."""
    added = tls_to_set(store, os.environ)
    os.environ.update(added)
    if not context.resilient_parsing:  # a completion asks the store after its context is closed
        context.call_on_close(lambda: [os.environ.pop(name, None) for name in added])


def _without_context(words: list[str], asked: str) -> tuple[list[str], str]:
    """Return the words without `--context NAME`, which may be anywhere before `--`, and the name."""
    left: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        option, equals, value = word.partition("=")
        if word == "--":
            return [*left, word, *rest], asked
        if option != "--context":
            left.append(word)
        elif equals or rest:
            asked = value if equals else rest.pop(0)
        else:
            raise ConfigurationError("--context needs a name", remedy="dos context ls")
    return left, asked


def _given(context: Any, leaf: Any, words: list[str]) -> GivenArguments:
    """Divide the words into options and arguments, as the command will. Mistakes are left to the command."""
    takes = [one for one in leaf.params if one.param_type_name == "argument"]
    store_at = next((at for at, one in enumerate(takes) if one.metavar in _STORES), None)
    options, arguments = _parsed(context, leaf, words)
    before = range(len(words) + 1) if store_at else range(1)
    has_token_file = None
    if any(one.name == "token_file" for one in leaf.params):
        has_token_file = "token_file" in options or bool(os.environ.get(TOKEN_FILE_VARIABLE))
    return GivenArguments(
        words=words,
        arguments=arguments,
        store_at=store_at,
        words_before=next(
            (count for count in before if len(_parsed(context, leaf, words[:count])[1]) == store_at), 0
        ),
        requires_store=store_at is not None and takes[store_at].required,
        arguments_max=float("inf") if any(one.nargs == -1 for one in takes) else len(takes),
        has_token_file=has_token_file,
    )


def _parsed(context: Any, leaf: Any, words: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the options of a command line by name, and its arguments in order."""
    parsing = leaf.context_class(leaf, info_name=leaf.name, parent=context, resilient_parsing=True)
    options, left, _ = leaf.make_parser(parsing).parse_args(list(words))
    arguments: list[str] = []
    for one in leaf.params:
        value = options.get(one.name) if one.param_type_name == "argument" else None
        arguments += [] if value is None else [value] if isinstance(value, str) else list(value)
    return options, [*arguments, *left]


def _set_defaults(context: Any, path: list[str], leaf: Any) -> None:
    """Make the table of a service in dos.toml the defaults of its options. Raises ConfigurationError."""
    table, words = _SERVICES[tuple(path)], f"dos {' '.join(path)}"
    names = {opt.removeprefix("--").replace("-", "_"): one.name for one in leaf.params for opt in one.opts}
    defaults: Any = {}
    for key, value in getattr(read_settings(), table).items():
        if key not in names:
            raise ConfigurationError(
                f"{settings_path()}: [{table}] has {key!r}, which is no option of `{words}`",
                remedy=f"see {words} --help",
            )
        defaults[names[key]] = value
    for word in reversed(path):
        defaults = {word: defaults}
    context.default_map = defaults
