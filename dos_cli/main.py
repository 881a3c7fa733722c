"""The `dos` command: the table of all commands, which imports the module of a command when it runs.

Do not import a package of this repository at the top, and do not implement a command here. `dos --help`,
`dos --version` and the completion of command names then need neither trio nor the server, and start as fast
as typer.

To add a command:

1. Write it in the `cli` module of its package, as a command of its `app` or as a function of the command's
   name. Build it from `dos_client.cli.kit`.
2. Add its row to `COMMANDS`. Tests run `--help` of every row.
"""

import importlib
import sys
from typing import Annotated, Any

import typer
from typer import core as typer_core
from typer.main import get_command, get_group

COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("dos_server.serve_cli", "Serve the objects kept in a directory."),
    "fsck": ("dos_server.offline.fsck", "Verify the data directory of a server that does not run."),
    "token": ("dos_server.settings_cli", "Add, list and revoke the tokens of a server, with their rights."),
    "quota": ("dos_server.settings_cli", "Set, list and remove limits for directories by prefix."),
    "store": ("dos_client.cli.objects", "Create a store of several servers; show, change, repair it."),
    "ls": ("dos_client.cli.objects", "List directories, or the objects of one directory."),
    "get": ("dos_client.cli.objects", "Write an object's committed bytes to standard output."),
    "append": ("dos_client.cli.objects", "Append a file or standard input to an object."),
    "rm": ("dos_client.cli.objects", "Delete an object of one server, permanently."),
    "stat": ("dos_client.cli.objects", "Show an object's sizes and digest."),
    "ping": ("dos_client.cli.objects", "Measure the round trip to a server."),
    "bench": ("dos_bench.cli", "Measure a store: latency, throughput, reads, recovery."),
    "region": ("checkpoint.cli.region", "Control a running region: status, checkpoint, reset, stop."),
    "checkpoint": (
        "checkpoint.cli.checkpoints",
        "Show and compare the committed checkpoints of a region.",
    ),
    "context": ("dos_client.cli.contexts", "Name stores, so that commands need no URL."),
    "input": ("dataflow.input_cli", "Receive lines as an input of an application; close, trim or sweep it."),
    "output": ("dataflow.merging.cli", "Read the merged output of replicas; show who reads an output."),
    "journal": ("journal.cli", "Dump, search, verify or replay a journal."),
    "sites": ("sites.cli", "Plan, deploy and run the replicas of an application's regions at several sites."),
    "files": ("journal.files_cli", "Mirror the journal of a local directory of files to a store."),
    "support-bundle": (
        "checkpoint.cli.support_bundle",
        "Collect what a report needs into one zip, without secrets.",
    ),
    "top": ("dos_ui.top", "Show a store or a region in the terminal, live."),
    "ui": ("dos_ui.page_cli", "Serve a web page that shows a store, its regions and what is stored."),
    "gateway": ("dos_gateway.gateway_cli", "Serve a tree of files to Spark and Hadoop clients, by WebHDFS."),
    "tls": ("dos_tls.cli", "Make and show the certificates of a store."),
    "chaos": ("dos_chaos.cli", "Test disks, or a store, with kills, stops, full and slow disks."),
}
"""Command -> (module that defines it, its line in `dos --help`)."""
_SERVICES = {"serve": "DOS_SERVE"}
"""Command of one function -> begin of the variables of its options; a group names that of its commands."""


class _NotLoaded(typer_core.TyperCommand):
    """Stands for a command in listings, which need its name and its line only."""


def load_command(name: str) -> Any:
    """Import and return the command of that name. Raises KeyError for a name that is not in `COMMANDS`.

    The module of a command needs no library of an extra: that is imported when the command runs.
    """
    module = importlib.import_module(COMMANDS[name][0])
    if name == "journal":  # it also reads data directories, and `journal` may not import `dos_server`
        opener = importlib.import_module("dos_server.offline.reading").DataDirectory
        importlib.import_module("journal.inspecting").read_data_directories_with(opener)
    if name == "region":  # it also compares graphs, and `checkpoint` may not import `dataflow`
        module.load_programs_with(_load_program)
    app = getattr(module, "app", None)
    if not isinstance(app, typer.Typer):
        single = typer.Typer(add_completion=False)
        settings = {"auto_envvar_prefix": _SERVICES[name]} if name in _SERVICES else None
        single.command(name, context_settings=settings)(getattr(module, name.replace("-", "_")))
        return get_command(single)
    group = get_group(app)
    return group.commands.get(name, group)


def _load_program(*given: Any) -> Any:
    """Import what reads graphs only when a command needs it."""
    return importlib.import_module("dataflow.programs").load_program(*given)


class LazyGroup(typer_core.TyperGroup):
    """A command group that lists the table, and imports a command when it runs."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # Not in methods: typer also looks here for names that are similar to one that does not exist.
        self.commands = {name: _NotLoaded(name, help=line) for name, (_, line) in COMMANDS.items()}

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - typer's signature
        return list(self.commands)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if isinstance(command, _NotLoaded):
            command = load_command(str(name))
            rest = self._completed(ctx, str(name), command, rest)
        return name, command, rest

    def _completed(self, ctx: Any, name: str, command: Any, rest: list[str]) -> list[str]:
        """Return the words of a command with the store of the context, if they leave it out."""
        settings = importlib.import_module("dos_client.cli.settings")
        try:
            return list(settings.complete_words(ctx, name, command, rest))
        except settings.ConfigurationError as error:
            if ctx.resilient_parsing:  # the shell asks for completions, and has no place for errors
                return rest
            print(f"dos: {error}", file=sys.stderr)
            raise typer.Exit(2) from None

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Ends with exit code 2 if it needs a library of an extra that is not installed."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            extras = importlib.import_module("dos_protocol.lazy_names")
            missing = extras.missing_extra(error, str(ctx.invoked_subcommand))
            if missing is None:
                raise
            print(f"dos: {missing}", file=sys.stderr)
            raise typer.Exit(2) from None


app = typer.Typer(
    name="dos",
    cls=LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="Try it:  dos serve --data /tmp/dos-data\n\nIn another terminal:  dos ping dos://127.0.0.1",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata  # slow to import

        typer.echo(f"dos {metadata.version('dos-journal')}")
        raise typer.Exit


def _complete_context(incomplete: str) -> list[str]:
    found = importlib.import_module("dos_client.cli.contexts").complete_context(incomplete)
    return list(found)


@app.callback()
def _root(
    context: Annotated[  # read by `LazyGroup`
        str,
        typer.Option(
            help="Use the store of this context (`dos context`); anywhere on the line.",
            metavar="NAME",
            show_default=False,
            autocompletion=_complete_context,
        ),
    ] = "",
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """DOS, the durable object service: append-only objects on one, two or three servers."""


def main() -> None:
    """Run the `dos` command. The fixed program name makes completion work for `python -m dos_cli` also."""
    app(prog_name="dos")
