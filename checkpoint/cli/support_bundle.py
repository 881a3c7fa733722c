"""`dos support-bundle`: one zip for a report: what is installed, configured, stored and logged, no secrets.

Everything passes `_Collection.add`, which removes secrets (`dos_client/redacting.py`). The state of the
store is what the commands print that a person would run. Each runs in a process with a limit of time, so a
store that hangs does not keep the rest out.
"""

import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import zipfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, NamedTuple

import typer

from checkpoint.core.region import coordinator_directory
from dos_client.cli.kit import Call, Report, command, print_table, read_token, warn
from dos_client.cli.settings import contexts_path, read_contexts, read_settings, settings_path
from dos_client.errors import ConfigurationError
from dos_client.redacting import REMOVED, Redactor, names_secret, secrets_in
from dos_protocol.arguments import token_in
from dos_protocol.errors import DosError
from dos_protocol.lazy_names import DISTRIBUTION, EXTRA_OF

FORMAT: Final = "dos-support-bundle"
VERSION: Final = 1
_REGIONS_MAX: Final = 100
_LIBRARIES: Final = ("msgspec", "prometheus-client", "rich", "trio", "typer", "xxhash", *sorted(EXTRA_OF))
_OURS: Final = ("DOS_", "JAVA_", "SPARK_", "PYSPARK_", "PYTHON")
"""Variables that begin so are shown with their values; of others, nothing is."""


class _Command(NamedTuple):
    """A `dos` command whose output is a file of the bundle."""

    name: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"dos {' '.join(self.words)}"


Limit = Annotated[float, typer.Option(min=1, help="Seconds for each command that asks the store.")]
Logs = Annotated[
    list[Path] | None,
    typer.Option(
        "--log", metavar="FILE", exists=True, dir_okay=False, help="A log, of which the last lines are added."
    ),
]


app = typer.Typer(pretty_exceptions_enable=False)


@command(app, "support-bundle", as_json=False, timeout=(Limit, 60.0))
def support_bundle(
    call: Call,
    url: Annotated[
        str, typer.Argument(metavar="[STORE-URL]", help="The store. Default: that of the context, or none.")
    ] = "",
    output: Annotated[
        Path | None, typer.Option(metavar="FILE.zip", help="Default: dos-support-TIME.zip, here.")
    ] = None,
    logs: Logs = None,
    log_lines: Annotated[int, typer.Option(min=1, help="Lines of each log, from its end.")] = 2_000,
    verify: Annotated[
        bool, typer.Option(help="Compare the copies of the store by digest; reads no content.")
    ] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be collected.")] = False,
) -> Report:
    """Collect what a report needs into one zip: versions, configuration, variables, the machine, the status
    and a comparison of the store, regions with their checkpoints, and the last lines of logs.

    Tokens and passwords are removed: known ones in every form, and what looks like one. Names of directories,
    regions and hosts, and the text of your logs stay. Read the zip before you send it. Nothing is changed: no
    request is sent to a driver.

    Example: dos support-bundle dos://h1,h2,h3 --log /var/log/dos.log

    Example: dos support-bundle --dry-run

    Exit codes: 0 written, also if the store cannot be reached, which the zip then shows; 2 usage.
    """
    token_file = call.token_file
    commands = _of_store(url, token_file, verify=verify) if url else []
    if dry_run:
        names = [("versions.json", ""), ("machine.json", ""), ("environment.json", "")]
        names += [(f"configuration/{path.name}", str(path)) for path in _configuration()]
        names += [(one.name, str(one)) for one in commands]
        names += (
            [("regions/NAME/...", "dos region status, dos checkpoint ls, for each region")] if url else []
        )
        names += [(_log_name(number, path), str(path)) for number, path in enumerate(logs or ())]
        return Report(names, lambda: print_table(("file", "from"), names))
    path = output or Path(f"dos-support-{datetime.now(UTC):%Y%m%d-%H%M%S}.zip")
    redactor = Redactor(_secrets(token_file))
    with _private(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        collection = _Collection(archive, redactor, call.display.say)
        _collect(collection, commands, url, token_file, call.timeout_s)
        for number, log in enumerate(logs or ()):
            collection.add(_log_name(number, log), _last_lines(log, log_lines))
        collection.finish()
    for failed in collection.failed:
        warn(failed)
    text = f"{path}: {len(collection.names)} files. Secrets are removed; read it before you send it."
    return Report(collection.names, text)


class _Collection:
    """Files that are written into the zip, each without secrets."""

    def __init__(self, archive: zipfile.ZipFile, redactor: Redactor, say: Callable[[str], None]) -> None:
        self._archive = archive
        self._redactor = redactor
        self._say = say
        self.names: list[str] = []
        self.failed: list[str] = []

    def add(self, name: str, text: str) -> None:
        name = self._redactor.redacted(name)
        self._archive.writestr(name, self._redactor.redacted(text))
        self.names.append(name)

    def add_json(self, name: str, value: Any) -> None:
        self.add(name, json.dumps(value, indent=2) + "\n")

    def run(self, command: _Command, limit: float) -> str:
        """Add what a command prints, and return its standard output; "" if it took too long."""
        self._say(f"runs {command}, at most {limit:g} s; {len(self.names)} files so far")
        program = [sys.executable, "-m", "dos_cli", *command.words]
        try:
            done = subprocess.run(  # noqa: S603 - our own program
                program, capture_output=True, timeout=limit, stdin=subprocess.DEVNULL, check=False
            )
        except subprocess.TimeoutExpired:
            self.failed.append(f"{command} did not end within {limit:g} s")
            self.add(f"{command.name}.error", f"{self.failed[-1]}\n")
            return ""
        shown, errors = (data.decode("utf-8", "replace") for data in (done.stdout, done.stderr))
        self.add(command.name, shown)
        if done.returncode or errors:
            self.add(f"{command.name}.error", f"{command}\nexit code {done.returncode}\n{errors}")
        return shown

    def finish(self) -> None:
        about = {"format": FORMAT, "version": VERSION, "created": datetime.now(UTC).isoformat()}
        self.add_json("bundle.json", {**about, "files": self.names, "failed": self.failed})


def _collect(
    collection: _Collection, commands: Sequence[_Command], url: str, token_file: Path | None, limit: float
) -> None:
    collection.add_json("versions.json", _versions())
    collection.add_json("machine.json", _machine())
    collection.add_json("environment.json", _variables(os.environ))
    for path in _configuration():
        collection.add(f"configuration/{path.name}", path.read_text(encoding="utf-8", errors="replace"))
    outputs = {one.name: collection.run(one, limit) for one in commands}
    try:
        directories = [str(row["name"]) for row in json.loads(outputs.get("store/directories.json") or "[]")]
    except ValueError:
        directories = []
    suffix = coordinator_directory("x").removeprefix("x")
    regions = [name.removesuffix(suffix) for name in directories if name.endswith(suffix)]
    for name in regions[:_REGIONS_MAX]:
        for one in _of_region(url, name, token_file):
            collection.run(one, limit)


def _of_store(url: str, token_file: Path | None, *, verify: bool) -> list[_Command]:
    token = _token_words(token_file)
    found = [
        _Command("store/status.json", ("store", "status", url, "--json", *token)),
        _Command("store/directories.json", ("ls", url, "--json", *token)),
    ]
    return [*found, *([_Command("store/verify.json", ("store", "verify", url, "--json", *token))] * verify)]


def _of_region(url: str, name: str, token_file: Path | None) -> Iterator[_Command]:
    token = _token_words(token_file)
    yield _Command(
        f"regions/{name}/status.json", ("region", "status", url, name, "--no-ask", "--json", *token)
    )
    yield _Command(f"regions/{name}/checkpoints.json", ("checkpoint", "ls", url, name, "--json", *token))


def _token_words(token_file: Path | None) -> tuple[str, ...]:
    return () if token_file is None else ("--token-file", str(token_file))


def _secrets(token_file: Path | None) -> set[str]:
    """Return the secrets that this machine is known to have: tokens of all named files, and of variables."""
    read_token(token_file)  # ends the command if the file that was passed holds none
    paths = [str(token_file or "")]
    paths += [
        value for name, value in os.environ.items() if name.startswith("DOS_") and name.endswith("TOKEN_FILE")
    ]
    try:
        settings = read_settings()
        paths += [settings.token_file, str(settings.serve.get("token_file", ""))]
        paths += [one.token_file for one in read_contexts().contexts.values()]
    except ConfigurationError as error:
        warn(f"{error}; a token that only this file names is removed only where it looks like one")
    found = secrets_in(os.environ)
    for path in filter(None, paths):
        try:
            found.add(token_in(Path(path).read_bytes(), path).decode("utf-8", "replace"))
        except (OSError, DosError):
            continue  # not readable for this user, so it cannot be in what this user collects by name
    return found


def _configuration() -> list[Path]:
    return [path for path in (settings_path(), contexts_path()) if path is not None and path.is_file()]


def _versions() -> dict[str, Any]:
    installed: dict[str, str | None] = {}
    for name in (DISTRIBUTION, *_LIBRARIES):
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            installed[name] = None
    return {"python": sys.version, "executable": sys.executable, "installed": installed}


def _machine() -> dict[str, Any]:
    memory = Path("/proc/meminfo")
    lines = memory.read_text(encoding="utf-8").splitlines()[:3] if memory.exists() else []
    disk = shutil.disk_usage("/")
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "load": os.getloadavg(),
        "memory": dict(" ".join(line.split()).split(": ", 1) for line in lines),
        "rootDisk": {"bytes": disk.total, "freeBytes": disk.free},
        "openFilesMax": resource.getrlimit(resource.RLIMIT_NOFILE),
        "time": datetime.now().astimezone().isoformat(),
    }


def _variables(variables: Mapping[str, str]) -> dict[str, str]:
    return {
        name: REMOVED if names_secret(name) else value
        for name, value in sorted(variables.items())
        if name.startswith(_OURS)
    }


def _last_lines(path: Path, count: int) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        return "".join(deque(file, maxlen=count))


def _log_name(number: int, path: Path) -> str:
    return f"logs/{number}-{path.name}"


def _private(path: Path) -> BinaryIO:
    """Create a file that only this user may read. Raises FileExistsError."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
