"""Which state tables a person may write rows into.

| operator | table | rules in addition to those of `rows.py` |
|---|---|---|
| `count` | its counts | a count is above 0 |
| `aggregate` | its results | counts are not negative; a sum is a number or a stored sum |
| `dedup` | its keys | none |
| `map_state`, and the functions written for Spark | states and timers | a new timer is above the watermark |
| `broadcast_table` | the table, on every worker | a row has a value; not more rows than allowed |

Everything else is refused by name: watermarks, rows that wait for event time, windows (they belong together
with both), and the state of user operators, whose meaning only their own code knows. In the end, the operator
itself reads the rows, and must have the same rows then.
"""

from collections.abc import Mapping
from typing import Any, Final

from dataflow.core.plan import OperatorKind
from dataflow.editing.aggregate_rules import AggregateRules
from dataflow.editing.map_state_rules import MapStateRules
from dataflow.editing.rows import refuse
from dataflow.editing.rules import BroadcastRules, CountRules, DedupRules, EditRules
from dataflow.errors import nearest
from dataflow.graph.plan import GraphPlan
from dataflow.operators.aggregate import AggregateSpec
from dataflow.operators.base import OperatorContext, OperatorSpec
from dataflow.operators.broadcast_state import BroadcastStateSpec
from dataflow.operators.count import CountSpec
from dataflow.operators.dedup import DedupSpec
from dataflow.operators.map_state import MapStateSpec

_REFUSED: Final = {
    OperatorKind.WINDOW: "its windows belong together with its watermark",
    OperatorKind.WINDOW_DEDUP: "its windows belong together with its watermark",
    OperatorKind.COUNT_WINDOW: "its windows belong together with its counts and the rows that wait",
    OperatorKind.SORT: "its rows wait for event time",
    OperatorKind.TOP_K: "its rows wait for event time",
    OperatorKind.JOIN: "its rows wait for event time",
    OperatorKind.APPLY: "only its own code knows what the state of a user operator means",
    OperatorKind.EVENT_TIME: "a watermark follows from the input",
}
_TABLES: Final = {
    "~time": "its watermarks follow from the input",
    "~late": "it counts late rows",
    "~ahead": "it counts rows that were dropped",
    "~nulls": "it counts rows that were dropped",
}
_RULES: Final[Mapping[type[OperatorSpec], type[Any]]] = {
    CountSpec: CountRules,
    AggregateSpec: AggregateRules,
    DedupSpec: DedupRules,
    MapStateSpec: MapStateRules,
    BroadcastStateSpec: BroadcastRules,
}


def rules_of(plan: GraphPlan, name: str, region: str) -> EditRules:
    """Return the rules of the operator `name` of a graph. Raises EditRefusedError if it has no state that can
    be edited, which names those that have.
    """
    operator, tilde, table = name.partition("~")
    editable = [one for one, spec in plan.specs.items() if _class_of(spec) is not None]
    known = f"operators whose state can be edited: {', '.join(editable) or 'none'}"
    spec = plan.specs.get(operator)
    if spec is None:
        refuse(name, f"the region has no such operator{nearest(operator, plan.specs)}; {known}")
    if tilde:
        why = _TABLES.get(f"~{table}", "the rows of this table wait for event time, or belong to another one")
        refuse(name, f"this table cannot be edited: {why}", remedy=f"edit another table; {known}")
    rules = _class_of(spec)
    if rules is None:
        why = _REFUSED.get(spec.kind, "it keeps no state")
        rule = f"its state ({spec.kind.value}) cannot be edited: {why}"
        refuse(name, rule, remedy=f"edit another operator; {known}")
    context = OperatorContext(
        region, operator, 0, 1, bytes(16), plan.inputs_of(operator), plan.schemas[operator], broadcast={}
    )
    made: EditRules = rules(operator, spec, context)
    return made


def _class_of(spec: OperatorSpec) -> type[Any] | None:
    return next((rules for kind, rules in _RULES.items() if isinstance(spec, kind)), None)
