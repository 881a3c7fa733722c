"""A text description of a graph: its consistent regions, their operators, what is outside, the logs between.

One line for each operator and each log. `core/regions.py` and `core/plan.py` make the decisions that are
printed.
"""

from collections.abc import Mapping, Sequence

from dataflow.core.plan import CircuitPlan, NodePlan
from dataflow.core.regions import Choice


def explain(
    name: str,
    plan: CircuitPlan,
    choice: Choice,
    sinks: Mapping[str, str],
    logs: Sequence[tuple[str, str, str]],
) -> str:
    """Return several lines, without a newline at the end.

    sinks: sink -> its delivery. logs: for each log between two parts, (the operator whose output it has, the
    part that writes it, the part that reads it).
    """
    lines = [
        f"graph {name!r}: {_count(len(choice.regions), 'consistent region')}, {len(choice.outside)} outside"
    ]
    divided = len(choice.regions) > 1 or bool(choice.outside)
    width = max(len(node.name) for node in plan.nodes)
    for number, region in enumerate(choice.regions, 1):
        runs = f" (NAME.{region.members[0]})" if divided else ""
        lines += ["", f"region {number}{runs}: {region.settings}"]
        lines += [
            _line(plan.node(member), width, sinks, starts=region.starts, ends=region.ends)
            for member in region.members
        ]
    if choice.outside:
        lines += [
            "",
            "outside of any region: no checkpoints; after a failure it starts again at the current input",
        ]
        lines += [_line(plan.node(member), width, sinks) for member in choice.outside]
    if logs:
        lines += ["", "logs in the store, with what committed checkpoints cover:"]
        lines += [f"  {operator:<{width}}  from {writer} to {reader}" for operator, writer, reader in logs]
    return "\n".join(lines)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _line(
    node: NodePlan,
    width: int,
    sinks: Mapping[str, str],
    *,
    starts: Sequence[str] = (),
    ends: Sequence[str] = (),
) -> str:
    roles = [role for role, names in (("start", starts), ("end", ends)) if node.name in names]
    inputs = f" from {', '.join(node.inputs)}" if node.inputs else ""
    table = f", reads table {', '.join(node.broadcast_tables)}" if node.broadcast_tables else ""
    delivery = f", {sinks[node.name]}" if node.name in sinks else ""
    return f"  {'+'.join(roles):<9}  {node.name:<{width}}  {node.kind.value}{inputs}{table}{delivery}"
