"""Random changes of a graph, with the options that a user gives for them and what must follow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from tests.sim.upgrading.durable import PLACES
from tests.sim.upgrading.graphs import (
    INPUT,
    SINKS,
    STATEFUL,
    Graph,
    Op,
    columns,
    is_valid,
    source,
    sources_above,
    tables,
)
from tests.sim.upgrading.rules import Options, operators_of

NAMES: Final[dict[str, tuple[str, ...]]] = {
    "source": ("s1", "s2", "s3"),
    "filter": ("f1", "f2"),
    "map": ("m1", "m2"),
    "union": ("u1",),
    "count": ("c1", "c2"),
    "sum": ("c1", "c2"),
    "window": ("w1", "w2"),
    "join": ("j1",),
    "step": ("o1", "o2", "o3"),
    "cut": ("o1", "o2", "o3"),
    "tx": ("o4", "o5"),
    "mail": ("o6",),
}
"""Few, so that a name that was removed comes again."""


@dataclass
class Edit:
    """A graph instead of `base`. was: kept operator -> its former name. fresh: those that begin anew.
    refuse: why no start may accept it.
    """

    base: Graph
    graph: Graph
    options: Options = field(default_factory=Options)
    was: dict[str, str] = field(default_factory=dict)
    fresh: set[str] = field(default_factory=set)
    boot: dict[str, dict[int, int]] = field(default_factory=dict)
    refuse: str = ""


def first_graph(rng: Random, *, outside: float) -> Graph:
    """Return the graph with which a history begins. outside: how likely a sink has transactions."""
    graph = {
        "s1": source("A"),
        "s2": source("B"),
        "f1": Op("filter", ("s1",), "", "5"),
        "c1": Op("count", ("f1",), "k"),
        "o1": Op(rng.choice(("step", "cut")), ("c1",), "", "p1"),
        "w1": Op("window", ("s1",), "k"),
        "o2": Op(rng.choice(("step", "cut")), ("w1",), "", "p2"),
        "j1": Op("join", ("s1", "s2"), "k"),
    }
    graph["o4"] = Op("tx", ("j1",), "", "p4")
    if rng.random() >= outside:
        graph["o3"] = Op(rng.choice(("step", "cut")), graph.pop("o4").inputs, "", "p3")
    if rng.random() < 0.3:
        graph["o6"] = Op("mail", ("c1",), "", "p6")
    return graph


def make_edit(base: Graph, rng: Random, kinds: Sequence[str] = ()) -> Edit | None:
    """Return a random edit of a graph, half of the time of these kinds; None if the kind does not apply."""
    edit = Edit(base, dict(base))
    make = _KINDS[rng.choice(kinds)] if kinds and rng.random() < 0.5 else rng.choice(_WEIGHTED)
    if not make(edit, rng) or not is_valid(edit.graph) or operators_of(edit.graph) == operators_of(base):
        return None
    return edit


def _pick(graph: Graph, rng: Random, *kinds: str) -> str:
    return rng.choice(sorted(name for name, op in graph.items() if op.kind in kinds) or [""])


def _free(edit: Edit, kind: str, rng: Random) -> str:
    return rng.choice([name for name in NAMES[kind] if name not in edit.graph] or [""])


def _replace_input(graph: Graph, old: str, new: str) -> None:
    for name, op in graph.items():
        graph[name] = op._replace(inputs=tuple(new if one == old else one for one in op.inputs))


def _insert(edit: Edit, rng: Random) -> bool:
    graph, kind = edit.graph, rng.choice(("filter", "map"))
    below, new = _pick(graph, rng, *STATEFUL, *SINKS), _free(edit, kind, rng)
    if not below or not new:
        return False
    port = rng.randrange(len(graph[below].inputs))
    above = graph[below].inputs[port]
    graph[new] = Op(kind, (above,), "", rng.choice(("2", "3")))
    inputs = tuple(new if index == port else one for index, one in enumerate(graph[below].inputs))
    graph[below] = graph[below]._replace(inputs=inputs)
    return True


def _take_out(edit: Edit, rng: Random) -> bool:
    name = _pick(edit.graph, rng, "filter", "map")
    if not name or edit.graph[name].detail == "adds x":
        return False
    above = edit.graph.pop(name).inputs[0]
    _replace_input(edit.graph, name, above)
    return True


def _rename(edit: Edit, rng: Random) -> bool:
    graph = edit.graph
    old = _pick(graph, rng, *STATEFUL, *SINKS, "source", "source", "filter", "map")
    new = _free(edit, graph[old].kind, rng) if old else ""
    if not new:
        return False
    stateless = graph[old].kind in ("filter", "map")
    edit.graph = {new if name == old else name: op for name, op in graph.items()}
    _replace_input(edit.graph, old, new)
    if not stateless:
        edit.options.renamed, edit.was = {old: new}, {new: old}
    return True


def _add_state(edit: Edit, rng: Random, kind: str = "") -> bool:
    kind = kind or rng.choice(("count", "sum", "window"))
    mode = rng.choice(("step", "cut"))
    new, out = _free(edit, kind, rng), _free(edit, mode, rng)
    above = _pick(edit.graph, rng, "source", "filter")
    if not (new and out and above):
        return False
    edit.graph[new] = Op(kind, (above,), rng.choice(("k", "k2")))
    edit.graph[out] = Op(mode, (new,), "", f"p{rng.random()}")
    edit.fresh = {new, out}
    return True


def _bootstrap(edit: Edit, rng: Random) -> bool:
    if not _add_state(edit, rng, "count"):
        return False
    new = next(name for name in edit.fresh if edit.graph[name].kind == "count")
    edit.boot = {new: {1: 100, 2: 7}}
    edit.options.bootstrap = edit.boot
    return True


def _without_unused(graph: Graph) -> None:
    while True:
        used = {above for op in graph.values() for above in op.inputs}
        unused = [name for name, op in graph.items() if op.kind not in SINKS and name not in used]
        if not unused:
            return
        for name in unused:
            del graph[name]


def _name_what_is_gone(edit: Edit) -> None:
    gone = [name for name in edit.base if name not in edit.graph]
    edit.options.drop_state = tuple(name for name in gone if tables(edit.base, name))
    edit.options.removed = tuple(name for name in gone if edit.base[name].kind in SINKS | {"source"})


def _drop(edit: Edit, rng: Random) -> bool:
    name = _pick(edit.graph, rng, *STATEFUL)
    if not name:
        return False
    for below in [one for one, op in edit.graph.items() if name in op.inputs]:
        del edit.graph[below]
    _without_unused(edit.graph)
    _name_what_is_gone(edit)
    return True


def _drop_unnamed(edit: Edit, rng: Random) -> bool:
    if not _drop(edit, rng):
        return False
    edit.options.drop_state, edit.refuse = (), "state that is dropped without its name"
    return True


def _other_kind(edit: Edit, rng: Random) -> bool:
    name = _pick(edit.graph, rng, "count", "sum")
    if not name:
        return False
    op = edit.graph[name]
    edit.graph[name] = op._replace(kind="sum" if op.kind == "count" else "count")
    if rng.random() < 0.4:
        edit.refuse = "another kind of operator under the same name"
    else:
        edit.options.drop_state, edit.fresh = (name,), {name}
    return True


def _begin_anew(edit: Edit, rng: Random) -> bool:
    """Drop the state of an operator that gets another key."""
    name = _pick(edit.graph, rng, "count", "sum", "window")
    if not name:
        return False
    op = edit.graph[name]
    edit.graph[name] = op._replace(key="k2" if op.key == "k" else "k")
    edit.options.drop_state, edit.fresh = (name,), {name}
    return True


def _other_key(edit: Edit, rng: Random) -> bool:
    if not _begin_anew(edit, rng):
        return False
    edit.options.drop_state, edit.fresh, edit.refuse = (), set(), "another key"
    return True


def _add_source(edit: Edit, rng: Random) -> bool:
    graph = edit.graph
    new, union = _free(edit, "source", rng), _free(edit, "union", rng)
    below = _pick(graph, rng, "count", "sum", "window")
    if not (new and union and below) or columns(graph, graph[below].inputs[0]) != INPUT:
        return False
    above = graph[below].inputs[0]
    graph[new], graph[union] = source(rng.choice(PLACES)), Op("union", (above, new))
    graph[below] = graph[below]._replace(inputs=(union,))
    edit.fresh = {new}
    if len(graph) % 2:
        edit.options.begins = {new: "latest"}
    return True


def _remove_source(edit: Edit, rng: Random) -> bool:
    graph, union = edit.graph, _pick(edit.graph, rng, "union")
    if not union:
        return False
    above, gone = graph[union].inputs
    if graph[gone].kind != "source" or sum(gone in op.inputs for op in graph.values()) > 1:
        return False
    del graph[union], graph[gone]
    _replace_input(graph, union, above)
    _name_what_is_gone(edit)
    return True


def _add_sink(edit: Edit, rng: Random) -> bool:
    mode = rng.choice(("step", "cut", "tx", "mail"))
    new = _free(edit, mode, rng)
    above = _pick(edit.graph, rng, "source", "filter", "count", "sum", "join")
    if not new or not above:
        return False
    edit.graph[new] = Op(mode, (above,), "", f"p{rng.random()}")
    edit.fresh = {new}
    return True


def _remove_sink(edit: Edit, rng: Random) -> bool:
    graph, name = edit.graph, _pick(edit.graph, rng, *SINKS)
    if not name or sum(graph[name].inputs[0] in op.inputs for op in graph.values()) < 2:
        return False
    del graph[name]
    _name_what_is_gone(edit)
    digit = edit.base[name].detail[-1]
    if digit in "123":
        edit.options.removed, edit.refuse = (), "a sink that is removed without its name"
    elif digit in "456" and edit.base[name].kind == "tx":
        edit.options.places, edit.refuse = {name: "tx elsewhere"}, "a sink that is removed at another place"
    return True


def _widen(edit: Edit, rng: Random) -> bool:
    graph, below = edit.graph, _pick(edit.graph, rng, "window", "join")
    new = _free(edit, "map", rng)
    if not below or not new or "x" in columns(graph, graph[below].inputs[0]):
        return False
    graph[new] = Op("map", (graph[below].inputs[0],), "", "adds x")
    graph[below] = graph[below]._replace(inputs=(new, *graph[below].inputs[1:]))
    edit.refuse = "other columns of stored rows"
    return True


def _exchange(edit: Edit, rng: Random) -> bool:
    graph, name = edit.graph, _pick(edit.graph, rng, "join")
    if not name:
        return False
    left, right = graph[name].inputs
    if sources_above(graph, left) & sources_above(graph, right):
        return False
    graph[name] = graph[name]._replace(inputs=(right, left))
    edit.refuse = "exchanged inputs"
    return True


def _rewire(edit: Edit, rng: Random) -> bool:
    graph, name = edit.graph, _pick(edit.graph, rng, "count", "sum", "window")
    above = _pick(graph, rng, "source")
    if not name or not above or above in sources_above(graph, name):
        return False
    graph[name] = graph[name]._replace(inputs=(above,))
    edit.refuse = "state of other sources"
    return True


def _swap_source(edit: Edit, rng: Random) -> bool:
    name, place = _pick(edit.graph, rng, "source"), rng.choice(PLACES)
    if not name or edit.graph[name].detail == place:
        return False
    edit.graph[name] = source(place)
    edit.refuse = "another input under the same name"
    return True


_KINDS: Final[dict[str, Callable[[Edit, Random], bool]]] = {
    "insert": _insert,
    "take out": _take_out,
    "rename": _rename,
    "add state": _add_state,
    "bootstrap": _bootstrap,
    "drop": _drop,
    "drop unnamed": _drop_unnamed,
    "other kind": _other_kind,
    "begin anew": _begin_anew,
    "other key": _other_key,
    "add source": _add_source,
    "remove source": _remove_source,
    "add sink": _add_sink,
    "remove sink": _remove_sink,
    "widen": _widen,
    "exchange": _exchange,
    "rewire": _rewire,
    "swap source": _swap_source,
}
_OFTEN: Final = ("insert", "rename", "add state", "drop", "add sink", "remove sink", "begin anew")
_WEIGHTED: Final = [*_KINDS.values(), *(_KINDS[kind] for kind in _OFTEN)]
