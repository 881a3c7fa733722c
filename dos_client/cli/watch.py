"""`dos store watch | spare | move`: the commands that keep a store whole."""

import signal
from typing import Annotated, Any

import trio
import typer

from dos_client.cli.kit import (
    NEGATIVE,
    UNREACHABLE,
    Call,
    MetricsAddress,
    Report,
    StoreUrl,
    command,
    metrics_served,
    parsed_option,
    print_json,
)
from dos_client.cli.store import filling_progress, named_json, record_json, store_app
from dos_client.core import watching as core
from dos_client.limits import watch_interval_s, watch_stand_by_s
from dos_client.membership.record_log import now_text
from dos_client.membership.replacing import add_spare, move_member, remove_spare
from dos_client.membership.watching import Seen, StoreWatcher, WatchOptions
from dos_monitoring import silence_of
from dos_protocol.arguments import parse_span
from dos_protocol.store_record import StoreRecord

spare_app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="The spare servers of a store: empty servers by which `dos store watch` replaces members.\n\n"
    "Example: dos store spare add dos://h1,h2,h3 h4:9999",
)


@command(
    store_app,
    "watch",
    log_json=True,
    progress=False,
    context_settings={"auto_envvar_prefix": "DOS_WATCH"},
)
async def watch(
    call: Call,
    url: StoreUrl,
    replace_after: Annotated[
        str, typer.Option(help="Replace a member that is silent for this long, such as 90s, 15m, 2h.")
    ] = "15m",
    look_at: Annotated[
        list[str] | None,
        typer.Option(help="Another address where a member may be found, as host:port; may be repeated."),
    ] = None,
    interval: Annotated[str, typer.Option(help="The pause between two looks.")] = f"{watch_interval_s:g}s",
    stand_by: Annotated[
        str,
        typer.Option(help="Complete a change that another run began after it stood still for this long."),
    ] = f"{watch_stand_by_s:g}s",
    once: Annotated[
        bool, typer.Option("--once", help="Look once, act if an action is due, and end.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done; do nothing.")] = False,
    serve_metrics: MetricsAddress = None,
) -> None:
    """Keep a store whole, without end: replace members that are silent by spares, follow members to new
    addresses, repair copies, and complete changes that were interrupted.

    Any number of watchers may run: each action is performed under a claim, so one of them performs it, and if
    it dies another one completes it. Nothing is done while this host sees no quorum of the members. A member
    that only this host cannot reach is replaced as well, unless its stamps show that other clients reach it
    (they are renewed every minute). That loses nothing; it costs a spare and one copy of the data.

    Run it under a supervisor, on another host than the servers if possible. It ends at SIGTERM or SIGINT with
    exit code 0. `dos store status --history` shows its actions. With --once, exit code 0 if nothing is
    to be done now or it was done; 1 if a person has to act, the action failed, or --dry-run left it undone; 3
    if too few members are available. To wait for a silent member or another run is 0. Silence is counted by
    each watcher from its own start, so --once replaces no member; it completes, follows and repairs.

    Example: dos store watch dos://h1,h2,h3 --replace-after 10m

    Example: dos store watch dos://h1,h2,h3 --look-at h1b:9999 --once --dry-run

    Example: dos store watch dos://h1,h2,h3 --metrics 127.0.0.1:9400
    """
    replace_after_s, interval_s, stand_by_s = (
        parsed_option(parse_span, text) for text in (replace_after, interval, stand_by)
    )
    options = WatchOptions(look_at or (), replace_after_s, interval_s, stand_by_s, dry_run)
    printer = _Printer(as_json=call.as_json, dry_run=dry_run)
    health = _WatchHealth(printer)
    with metrics_served(serve_metrics, hangs=health.hangs, not_ready=health.not_ready):
        watcher = StoreWatcher(url, options, progress=filling_progress(call), token=call.token)
        if once:
            printer.show(await watcher.step())
        else:
            with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(watcher.run, printer.show)
                    async for _ in signals:
                        break
                    nursery.cancel_scope.cancel()
    if once and printer.last is not None:
        _exit_after(printer.last)


def _exit_after(seen: Seen) -> None:
    """End `--once` with the exit code of what was seen."""
    if core.why_stuck(seen.sight) is not None:
        raise typer.Exit(UNREACHABLE)
    undone = not seen.done and not isinstance(seen.action, core.WaitAction)
    if undone or core.report_of(seen.sight, seen.action) is not None:
        raise typer.Exit(NEGATIVE)


class _WatchHealth:
    """Whether this watcher moves and can act, for its HTTP port. Make it in the watcher's loop."""

    def __init__(self, printer: "_Printer") -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._printer = printer

    def hangs(self) -> str:
        return silence_of(self._token)

    def not_ready(self) -> str:
        """Return why the watcher cannot keep the store whole; "" if it can."""
        seen = self._printer.last
        if seen is None:
            return "it has not looked at the store yet"
        report = core.report_of(seen.sight, seen.action)
        return _report_text(report) if report is not None else seen.failure


class _Printer:
    """Prints what a watcher saw, if it is not the same as before."""

    def __init__(self, *, as_json: bool, dry_run: bool) -> None:
        self._as_json, self._dry_run = as_json, dry_run
        self._before: Any = None
        self.last: Seen | None = None

    def show(self, seen: Seen) -> None:
        self.last = seen
        # silence grows with every look: a line per minute of it is enough
        sight = tuple((one.member, one.present, int(one.silent_s / 60)) for one in seen.sight.members)
        report = core.report_of(seen.sight, seen.action)
        now = type(seen.action), core.subject(seen.action), seen.done, seen.failure, sight, report
        if now == self._before:
            return
        self._before = now
        if self._as_json:
            print_json(seen_json(seen))
        else:
            print(f"{now_text()} {_text(seen, dry_run=self._dry_run)}", flush=True)
            if report is not None and report != seen.action:
                print(f"{now_text()} {_report_text(report)}", flush=True)


def _report_text(report: core.ReportAction) -> str:
    return f"a person has to act: {report.why} ({report.remedy})"


def _text(seen: Seen, *, dry_run: bool) -> str:
    action, record = seen.action, seen.sight.record
    if isinstance(action, core.ReportAction):
        return _report_text(action)
    if isinstance(action, core.WaitAction):
        if action.why:
            return f"waiting: {action.why}"
        assert record is not None
        spares = ", ".join(one.address for one in record.spares) or "none"
        return f"generation {record.generation}: {len(record.members)} members are present; spares: {spares}"
    if seen.failure:
        return f"not done: {_action_text(action)}: {seen.failure}"
    return f"{'would ' if dry_run else 'done: '}{_action_text(action)}: {action.why}"


def _action_text(action: core.Action) -> str:
    match action:
        case core.CompleteAction(old, new):
            return f"complete: {new.address} {f'replaces {old.address}' if old is not None else 'is added'}"
        case core.ReplaceAction(old, new):
            return f"replace {old.address} by {new.address}"
        case core.FollowAction(addresses):
            return f"follow to {', '.join(addresses.values())}"
        case core.RepairAction(directories):
            return f"repair {', '.join(directories) or 'all directories'}"
    return core.name_of(action)


def seen_json(seen: Seen) -> dict[str, Any]:
    action, record = seen.action, seen.sight.record
    report = core.report_of(seen.sight, action)
    return {
        "at": now_text(),
        "action": core.name_of(action),
        "why": action.why,
        "remedy": getattr(action, "remedy", ""),
        "report": "" if report is None else report.why,
        "subject": list(core.subject(action)[1:]),
        "done": seen.done,
        "failure": seen.failure,
        "generation": record.generation if record is not None else None,
        "members": [
            {
                **named_json(one.member, "address server_id"),
                **named_json(one, "present elsewhere why refuses_appends"),
                "silent_s": round(one.silent_s, 3),
            }
            for one in seen.sight.members
        ],
        "spares": [{"address": one.member.address, "problem": one.problem} for one in seen.sight.spares],
    }


def _spares_text(record: StoreRecord) -> str:
    spares = ", ".join(one.address for one in record.spares) or "none"
    return f"generation {record.generation}; spares: {spares}"


@command(spare_app, "add")
async def spare_add(
    call: Call,
    url: StoreUrl,
    new: Annotated[str, typer.Argument(help="Spare server, as host:port; empty, and not in a store.")],
) -> Report:
    """Add an empty server to the store's spares. `dos store watch` replaces a member that is lost by it.

    The list is part of the store record, so all watchers see the same list, in the same order. A spare holds
    no data. In a store of two members, the first spare also decides together with one member that the other
    one is replaced: such a store continues after one loss.

    Example: dos store spare add dos://h1,h2,h3 h4:9999
    """
    record = await add_spare(url, new=new, token=call.token)
    return Report(record_json(record), _spares_text(record))


@command(spare_app, "remove")
async def spare_remove(
    call: Call,
    url: StoreUrl,
    spare: Annotated[str, typer.Argument(help="The spare, as host:port or by its identity in hex.")],
) -> Report:
    """Remove a server from the store's spares. To use it in a store again, empty its data directory.

    Example: dos store spare remove dos://h1,h2,h3 h4:9999
    """
    record = await remove_spare(url, spare=spare, token=call.token)
    return Report(record_json(record), _spares_text(record))


@command(store_app, "move")
async def move(
    call: Call,
    url: StoreUrl,
    new: Annotated[str, typer.Argument(help="The member's new address, as host:port.")],
) -> Report:
    """Record the new address of a member: it was started elsewhere, with its data directory.

    Its identity tells which member it is. Refused if the member also answers at its old address, and if its
    disk is an older copy of itself. A store of one or two members has no other members that could detect a
    copy that is used at the old address: make sure that the old server is stopped.

    Example: dos store move dos://h1,h2,h3 h3b:9999
    """
    record = await move_member(url, new=new, token=call.token)
    text = f"{new} is the address of a member: generation {record.generation}"
    return Report(record_json(record), text)
