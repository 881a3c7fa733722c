"""The graphs of the model: their operators, what a step of one makes of its rows, and their notes.

A step is one function of the rows and the state of all workers. What is under test is which state, positions
and outputs a graph continues with, not how rows come to a worker.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from checkpoint.core.graph_change import OperatorNote

Row = Mapping[str, int]
Tables = dict[str, dict[int, Any]]
"""Table of an operator -> key -> what is stored for it."""
State = dict[str, Tables]
"""Operator -> its tables."""

STATEFUL: Final = frozenset({"count", "sum", "window", "join"})
STATELESS: Final = frozenset({"filter", "map", "union"})
SINKS: Final = frozenset({"step", "cut", "tx", "mail"})
"""Shown step by step; up to each checkpoint; transactions outside; rows that nobody can take back."""
SHOWS_STEPS: Final = frozenset({"step", "mail"})
IRREVOCABLE: Final = frozenset({"tx", "mail"})
INPUT: Final = ("k", "k2", "t", "v")
WINDOW: Final = 5
LATENESS: Final = 2
ROWS_OF_A_SIDE: Final = 3


class Op(NamedTuple):
    """An operator. detail: the place of a source or a sink, or what a stateless one does."""

    kind: str
    inputs: tuple[str, ...] = ()
    key: str = ""
    detail: str = ""


class Removed(NamedTuple):
    """The specification of an outside sink, as a program gives it that removes the sink."""

    text: str

    def detail(self) -> str:
        return self.text


Graph = dict[str, Op]


def source(place: str) -> Op:
    return Op("source", (), "", place)


def sources_of(graph: Graph) -> list[str]:
    return [name for name, op in graph.items() if op.kind == "source"]


def sinks_of(graph: Graph) -> list[str]:
    return [name for name, op in graph.items() if op.kind in SINKS]


def shows_steps(graph: Graph) -> bool:
    """Whether output of steps is shown before the next checkpoint."""
    return any(op.kind in SHOWS_STEPS for op in graph.values())


def in_order(graph: Graph) -> list[str]:
    """Return the operators, each after its inputs."""
    done: dict[str, None] = {}

    def visit(name: str) -> None:
        for above in graph[name].inputs:
            visit(above)
        done.setdefault(name)

    for name in sorted(graph):
        visit(name)
    return list(done)


def columns(graph: Graph, name: str) -> tuple[str, ...]:
    """Return the columns of an operator's output."""
    op = graph[name]
    if op.kind == "source":
        return INPUT
    above = columns(graph, op.inputs[0])
    if op.kind == "map" and op.detail == "adds x":
        return tuple(sorted({*above, "x"}))
    made = {"count": ("k", "n"), "sum": ("k", "n"), "window": ("end", "k", "n"), "join": ("k", "l", "r")}
    return made.get(op.kind, above)


def tables(graph: Graph, name: str) -> tuple[str, ...]:
    """Return the names of the tables of an operator."""
    of_kind = {"count": ("",), "sum": ("",), "window": ("~rows", "~time"), "join": ("~l", "~r")}
    return of_kind.get(graph[name].kind, ())


def empty_state(graph: Graph) -> State:
    return {name: {table: {} for table in found} for name in graph if (found := tables(graph, name))}


def copied(state: State) -> State:
    """Return a copy of a state; what is stored for a key does not change."""
    return {name: {table: dict(rows) for table, rows in found.items()} for name, found in state.items()}


def is_valid(graph: Graph) -> bool:
    """Whether a program could build the graph."""
    used = {above for op in graph.values() for above in op.inputs}
    if not used <= graph.keys() or not sinks_of(graph) or not sources_of(graph):
        return False
    return all(_fits(graph, name, used) for name in graph)


def _fits(graph: Graph, name: str, used: set[str]) -> bool:
    op = graph[name]
    if (op.kind in SINKS) == (name in used):
        return False
    above = [columns(graph, one) for one in op.inputs]
    if op.kind == "union":
        return len(set(above)) == 1
    return op.kind in SINKS or all(set(INPUT) <= set(one) for one in above)


def sources_above(graph: Graph, name: str) -> frozenset[str]:
    """Return the sources of an operator's rows."""
    if graph[name].kind == "source":
        return frozenset({name})
    return frozenset().union(*(sources_above(graph, one) for one in graph[name].inputs))


def notes(graph: Graph, identity: Mapping[str, str]) -> dict[str, OperatorNote]:
    """Return what a checkpoint stores of a graph. identity: source -> what its lineage is called."""
    return {name: _note(graph, name, identity) for name in graph}


def _note(graph: Graph, name: str, identity: Mapping[str, str]) -> OperatorNote:
    op = graph[name]
    lineage = tuple(
        tuple(sorted(identity[one] for one in sources_above(graph, above))) for above in op.inputs
    )
    stored: tuple[str, ...] = ()
    if op.kind in ("count", "sum"):
        stored = (op.key,)
    elif op.kind in ("window", "join") or op.kind in SINKS:
        stored = tuple(" ".join(columns(graph, above)) for above in op.inputs)
    key = f"key ({op.key})" if op.key else ""
    place = f"{op.kind} {op.detail}" if op.kind in SINKS else op.detail if op.kind == "source" else ""
    return OperatorNote(
        kind="sink" if op.kind in SINKS else op.kind,
        inputs=op.inputs,
        lineage=lineage,
        stored=stored,
        detail=key or place,
        gives=" ".join(columns(graph, name)) if op.kind not in SINKS else "",
        removed_with=Removed.__name__ if op.kind == "tx" else "",
    )


# --- one step -----------------------------------------------------------------------------------------------


def run_step(graph: Graph, state: State, batches: Mapping[str, Sequence[Row]]) -> dict[str, list[Row]]:
    """Change the state by the rows of one step. Return sink -> its rows."""
    made: dict[str, list[Row]] = {}
    for name in in_order(graph):
        op = graph[name]
        above = [made[one] for one in op.inputs]
        rows = [row for one in above for row in one]
        if op.kind == "source":
            made[name] = list(batches.get(name, ()))
        elif op.kind in STATEFUL:
            made[name] = _of_state(op, state[name], above)
        else:
            made[name] = _stateless(op, rows)
    return {name: made[name] for name in sinks_of(graph)}


def _stateless(op: Op, rows: list[Row]) -> list[Row]:
    if op.kind == "filter":
        return [row for row in rows if row["v"] % int(op.detail)]
    if op.kind == "map" and op.detail == "adds x":
        return [{**row, "x": row["v"] + 1} for row in rows]
    if op.kind == "map":
        return [{**row, "v": row["v"] * 3} for row in rows]
    return rows


def _of_state(op: Op, stored: Tables, above: list[list[Row]]) -> list[Row]:
    if op.kind == "join":
        return _join(op, stored, above)
    rows = above[0]
    if op.kind == "window":
        return _window(op, stored, rows)
    table = stored[""]
    for row in rows:
        table[row[op.key]] = table.get(row[op.key], 0) + (1 if op.kind == "count" else row["v"])
    return [{"k": key, "n": table[key]} for key in sorted({row[op.key] for row in rows})]


def _window(op: Op, stored: Tables, rows: Iterable[Row]) -> list[Row]:
    held, clock = stored["~rows"], stored["~time"]
    mark = clock.get(0, -1)
    for row in rows:
        if row["t"] > mark:
            held[row[op.key]] = (*held.get(row[op.key], ()), row)
    mark = clock[0] = max([mark, *(row["t"] - LATENESS for row in rows)])
    made: dict[tuple[int, int], int] = {}
    for key in sorted(held):
        ends = [(row["t"] // WINDOW + 1) * WINDOW for row in held[key]]
        for end in ends:
            if end <= mark:
                made[end, key] = made.get((end, key), 0) + 1
        held[key] = tuple(row for row, end in zip(held[key], ends, strict=True) if end > mark)
        if not held[key]:
            del held[key]
    return [{"end": end, "k": key, "n": number} for (end, key), number in sorted(made.items())]


def _join(op: Op, stored: Tables, above: list[list[Row]]) -> list[Row]:
    made: list[Row] = []
    for port, side in enumerate(("~l", "~r")):
        mine, other = stored[side], stored["~r" if side == "~l" else "~l"]
        for row in above[port]:
            key = row[op.key]
            for match in other.get(key, ()):
                left, right = (row, match) if port == 0 else (match, row)
                made.append({"k": key, "l": left["v"], "r": right["v"]})
            mine[key] = (*mine.get(key, ()), row)[-ROWS_OF_A_SIDE:]
    return made
