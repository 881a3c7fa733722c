"""Loads the graph of a program by its name, for commands."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path

from checkpoint import RegionSpec
from dataflow.graph.builder import Graph, parts_of
from dataflow.handle import spec_of_part
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


def load_program(text: str, application: str) -> RegionSpec:
    """Return the specification of the first region of a program, with the others beside it. It names no
    store. Raises as `load_graph`, and GraphError.
    """
    parts = parts_of(load_graph(text), application)
    first, *others = (
        spec_of_part(part, {}, application=application, store_url="dos://nowhere") for part in parts
    )
    return replace(first, beside=tuple(others))
