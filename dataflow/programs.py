"""Loads the graph of a program by its name, for commands, and finds the regions that its parts continue."""

import importlib
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import trio

from checkpoint import Checkpoint, GraphOptions, RegionSpec
from checkpoint.chains.manifest_log import last_checkpoints_of
from dataflow.graph.builder import Graph, GraphPart, parts_named, parts_of
from dataflow.handle import spec_of_part
from dos_client import open_store
from dos_protocol.errors import LocalProtocolError


def load_graph(text: str) -> Graph:
    """Return the graph MODULE:GRAPH; GRAPH may be a function without arguments that returns it. The module is
    found from the current directory, too. Raises LocalProtocolError, and what importing and the function
    raise.
    """
    module, colon, name = text.partition(":")
    if not (colon and name):
        raise LocalProtocolError(f"{text!r} names no graph: write MODULE:GRAPH, for example jobs.shop:graph")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module), name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise LocalProtocolError(f"there is no graph {text!r}: {error}") from error
    graph = found if isinstance(found, Graph) or not callable(found) else found()
    if not isinstance(graph, Graph):
        kind = type(graph).__name__
        raise LocalProtocolError(f"{text} is {kind}, and no Graph or function that returns one")
    return graph


def parts_in_store(
    graph: Graph, application: str, store_url: str, options: GraphOptions, *, token: bytes = b""
) -> list[GraphPart]:
    """Return the parts of an application under the names of the regions of a store that they continue.

    A graph that is one region needs no store. Raises as `parts_of`, `continued_regions`, and what opening and
    reading the store raises: a part with another name would begin without its state.
    """
    parts = parts_of(graph, application)
    if len(parts) == 1:
        return parts

    async def read() -> dict[str, Checkpoint]:
        async with open_store(store_url, token=token, client=f"application {application}") as store:
            return await last_checkpoints_of(store, application)

    return parts_named(graph, application, trio.run(read), options)


def load_program(
    text: str, application: str, regions: Mapping[str, Checkpoint], options: GraphOptions
) -> RegionSpec:
    """Return the specification of the first region of a program, with the others beside it. It names no
    store. regions: as for `continued_regions`. Raises as that, `load_graph`, and GraphError.
    """
    parts = parts_named(load_graph(text), application, regions, options)
    first, *others = (
        spec_of_part(part, {}, application=application, store_url="dos://nowhere") for part in parts
    )
    return replace(first, beside=tuple(others))
