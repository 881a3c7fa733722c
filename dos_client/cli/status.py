"""`dos store status`: the store's record, its members, and what was forced on it."""

import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer

from dos_client.cli.kit import (
    AsJson,
    StoreUrl,
    TokenFile,
    count_text,
    exit_with,
    print_json,
    read_token,
    run,
)
from dos_client.cli.store import record_json
from dos_client.core.change_log import Change
from dos_client.core.describing import MemberView
from dos_client.core.override_log import Override
from dos_client.membership.status import StoreStatus, store_status
from dos_client.repair.verifying import MemberHolding
from dos_client.urls import parse_url
from dos_protocol.names import id_text

Quick = Annotated[
    bool, typer.Option("--quick", help="Do not read the directories: faster, without lag and damage.")
]
Log = Annotated[
    bool,
    typer.Option("--log", help="Show what was forced on the store (--other-is-gone, ...), by whom, when."),
]

History = Annotated[
    bool,
    typer.Option(
        "--history", help="Show every change of the store: what, when, by whom or by which watcher, and why."
    ),
]


def status(
    url: StoreUrl,
    quick: Quick = False,
    log: Log = False,
    history: History = False,
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """Show the store that the servers of the URL belong to, and the state of each member.

    A member is available if its server answers at its address, with its identity and the current store
    record. All copies are compared by digest. "behind" is the number of bytes that the longest copies hold
    and the member lacks; "being written" those of them that a writer has just appended. Exit code 0 if all
    members are available and have room, and all copies are equal, or only behind an active writer; 1 if not;
    3 if writers wait, or would wait after a start: too few members are available, have room, or are undamaged
    in a directory.

    Bytes that were read long ago may have rotted since: `dos store verify` reads all of them. A server that
    does not answer within a second counts as unavailable.

    Example: dos store status dos://127.0.0.1:9001,127.0.0.1:9002,127.0.0.1:9003 --log
    """

    async def work() -> StoreStatus:
        return await store_status(parse_url(url).servers, holdings=not quick, token=read_token(token_file))

    state = run(work)
    if as_json:
        print_json(status_json(state))
    elif state.record is None:
        for line in [state.verdict, *state.problems]:
            print(f"dos: {line}", file=sys.stderr)
    else:
        _print_status(state, log=log)
        if history:
            _print_history(state.history)
    exit_with(whole=state.whole, writers_wait=state.writers_wait)


def status_json(state: StoreStatus) -> dict[str, Any]:
    """Return the status for --json."""
    if state.record is None:
        return {
            "store": None,
            "usable": False,
            "accepts_appends": False,
            "blocked": [],
            "writers_wait": True,
            "verdict": state.verdict,
            "whole": False,
            "problems": state.problems,
        }
    members = [
        _member_json(one, row, state.holdings.get(one.member.server_id))
        for one, row in zip(state.members, record_json(state.record)["members"], strict=True)
    ]
    return {
        "store": {**record_json(state.record), "members": members, "spares": _spares_json(state)},
        "usable": state.usable,
        "accepts_appends": state.accepts_appends,
        "blocked": state.blocked,
        "writers_wait": state.writers_wait,
        "verdict": state.verdict,
        "whole": state.whole,
        "bytes": state.total_bytes if state.holdings else None,
        "filling": _filling_json(state),
        "problems": state.problems,
        "overrides": None if state.overrides is None else [asdict(one) for one in state.overrides],
        "history": None if state.history is None else [asdict(one) for one in state.history],
    }


def _spares_json(state: StoreStatus) -> list[dict[str, Any]]:
    assert state.record is not None
    return [
        {
            "address": one.address,
            "server_id": id_text(one.server_id),
            "present": not state.spares.get(one.server_id),
            "detail": state.spares.get(one.server_id, ""),
        }
        for one in state.record.spares
    ]


def _filling_json(state: StoreStatus) -> dict[str, Any] | None:
    if state.filling is None:
        return None
    member, done = state.filling
    return {
        "address": member.address,
        "state": member.state,
        "bytes_done": done,
        "bytes_total": state.total_bytes,
    }


def _member_json(view: MemberView, row: dict[str, Any], holding: MemberHolding | None) -> dict[str, Any]:
    return {
        **row,
        "present": view.there,
        "counts": view.counts,
        "condition": view.condition.name.lower(),
        "detail": view.detail,
        "refuses_appends": view.refuses_appends,
        "generation": view.generation,
        "bytes": holding.bytes if holding is not None else None,
        "objects": holding.objects if holding is not None else None,
        "lag_bytes": holding.lag_bytes if holding is not None else None,
        "live_lag_bytes": holding.live_lag_bytes if holding is not None else None,
        "damaged": holding.damaged if holding is not None else None,
    }


def _print_status(state: StoreStatus, *, log: bool) -> None:
    record = state.record
    assert record is not None
    print(
        f"store {id_text(record.store_id)}, generation {record.generation}, acknowledged by"
        f" {record.ack_quorum} of {len(record.voters)}: {state.verdict}"
    )
    for view in state.members:
        condition = f"generation {view.generation}" if view.there else view.condition.value
        print(
            f"  {view.member.address:<24} {view.member.state:<8} {condition:<14}"
            f" {id_text(view.member.server_id)}"
            f"{_holding_text(state.holdings.get(view.member.server_id))}"
        )
        if view.detail:
            print(f"    {view.detail}")
    for spare in record.spares:
        problem = state.spares.get(spare.server_id, "")
        print(f"  {spare.address:<24} {'spare':<8} {problem or 'there':<14} {id_text(spare.server_id)}")
    for line in state.problems:
        print(f"  {line}")
    overrides = state.overrides or []
    if log:
        for one in overrides:
            _print_override(one)
        if not overrides:
            print("  nothing was ever forced on this store")
    elif overrides:
        changes = len({one.generation for one in overrides})
        print(f"  {changes} changes were forced on the store; --log lists them")


def _holding_text(holding: MemberHolding | None) -> str:
    if holding is None:
        return ""
    behind = f", {count_text(holding.lag_bytes)} behind" if holding.lag_bytes else ""
    if holding.live_lag_bytes == holding.lag_bytes != 0:
        behind += " (being written)"
    damaged = f", {len(holding.damaged)} damaged" if holding.damaged else ""
    return f"  {count_text(holding.bytes)} in {holding.objects} objects{behind}{damaged}"


def _print_history(changes: list[Change] | None) -> None:
    if changes is None:
        print("  the history cannot be read: too few members are available")
        return
    for one in changes:
        outcome = one.outcome or "not finished"
        who = f"{'automatic, ' if one.automatic else ''}{one.by}"
        places = " -> ".join(filter(None, [one.old, one.new]))
        print(f"  {one.at} {one.what} {places}: {outcome} (generation {one.generation}; {who})")
        if one.why:
            print(f"    {one.why}")
    if not changes:
        print("  nothing was ever changed on this store")


def _print_override(one: Override) -> None:
    done = "finished" if one.finished else "begun"
    print(
        f"  {one.at} {one.by}: --{one.what}, {done}: generation {one.generation_before} to {one.generation}"
    )
    print(f"    continued with {', '.join(one.kept)}; without {', '.join(one.lost)}")
    for line in one.details:
        print(f"    {line}")
