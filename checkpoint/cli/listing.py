"""`dos region ls` and `dos input ls`: what a store has, read from manifests and registers."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from checkpoint.chains.consumer_register import read_register
from checkpoint.chains.manifest_log import ManifestView, read_manifest, regions_of
from checkpoint.core.records.consumers import input_register
from checkpoint.core.records.inputs import handles_among, producers_among
from checkpoint.core.records.lines import log_sizes
from checkpoint.errors import ManifestError, NoRegionError, RegisterUnsettledError
from checkpoint.runtime import wall_time_ms
from dos_client import MissingDataError, Store
from dos_client.cli.kit import Call, Report, StoreUrl, ago_text, print_table
from dos_client.tasks import read_each
from dos_protocol.errors import CorruptDataError

_UNREADABLE = (CorruptDataError, ManifestError, MissingDataError, NoRegionError, RegisterUnsettledError)
"""Errors of one region or input, which the list shows beside its name."""


async def ls_regions(call: Call, url: StoreUrl) -> Report:
    """List the regions of a store: the last checkpoint of each, its workers, savepoints and outputs.

    Reads the manifests only. Whether a driver runs the region is shown by `dos region status`; a last
    checkpoint that is older than the checkpoint interval tells that none does, or that it waits.

    Example: dos region ls dos://h1,h2,h3

    Exit codes: 0 listed, also if there is none or one cannot be read; 2 usage; 3 the store cannot be reached.
    """
    async with call.store(url) as store:
        rows = await region_rows(store)
    if not rows:
        return Report(rows, "the store has no region")
    now_ms = wall_time_ms()
    columns = ("region", "#checkpoint", "committed", "#step", "#workers", "savepoints", "outputs", "note")
    return Report(rows, lambda: print_table(columns, [_region_cells(one, now_ms) for one in rows]))


async def region_rows(store: Store) -> list[dict[str, Any]]:
    """Return a row for each region, as `dos region ls --json` prints it. Raises QuorumUnavailableError."""

    async def row(region: str) -> dict[str, Any]:
        return _region_row(await read_manifest(store, region))

    return await _rows(await regions_of(store), "region", row)


def _region_row(view: ManifestView) -> dict[str, Any]:
    last = view.last
    if last is None:
        return {"problem": view.unproved or ""}
    return {
        "checkpoint": last.number,
        "timeMs": last.wall_time_ms,
        "step": last.step,
        "final": last.final,
        "line": last.line,
        "workers": len(last.workers),
        "savepoints": sorted(last.savepoints),
        "outputs": sorted({sink for sinks in log_sizes(last).values() for sink in sinks}),
        "problem": view.unproved or "",
    }


def _region_cells(one: dict[str, Any], now_ms: int) -> tuple[Any, ...]:
    if "checkpoint" not in one:
        return (one["region"], *(None,) * 6, one["problem"] or "no checkpoint yet")
    note = "all input is processed" if one["final"] else ""
    return (
        one["region"],
        one["checkpoint"],
        ago_text(one["timeMs"], now_ms),
        one["step"],
        one["workers"],
        ", ".join(one["savepoints"]),
        ", ".join(one["outputs"]),
        one["problem"] or note,
    )


async def ls_inputs(call: Call, url: StoreUrl) -> Report:
    """List the inputs of a store: application and handle, its producers, and who reads it.

    Example: dos input ls dos://h1,h2,h3

    Exit codes: 0 listed, also if there is none or one cannot be read; 2 usage; 3 the store cannot be reached.
    """
    async with call.store(url) as store:
        rows = await input_rows(store)
    if not rows:
        return Report(rows, "the store has no input")
    columns = ("input", "producers", "regions", "queries", "note")
    return Report(rows, lambda: print_table(columns, [_input_cells(one) for one in rows]))


async def input_rows(store: Store) -> list[dict[str, Any]]:
    """Return a row for each input, as `dos input ls --json` prints it. Raises QuorumUnavailableError."""
    directories = await store.list_directories()
    handles = {"/".join(one): one for one in handles_among(directories)}

    async def row(name: str) -> dict[str, Any]:
        application, handle = handles[name]
        register = await read_register(store, input_register(application, handle))
        return {
            "application": application,
            "handle": handle,
            "producers": producers_among(directories, application, handle),
            "regions": sorted(register.consumers),
            "queries": sorted(register.queries),
            "problem": "",
        }

    return await _rows(handles, "input", row)


def _input_cells(one: dict[str, Any]) -> tuple[Any, ...]:
    lists = (", ".join(one.get(name, ())) for name in ("producers", "regions", "queries"))
    return (one["input"], *lists, one["problem"])


async def _rows(
    names: Iterable[str], key: str, row: Callable[[str], Awaitable[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Return the row of each name, sorted. One that cannot be read has its problem instead."""

    async def read(name: str) -> dict[str, Any]:
        try:
            return await row(name)
        except _UNREADABLE as error:
            return {"problem": str(error)}

    return [{key: name, **one} for name, one in (await read_each(names, read)).items()]
