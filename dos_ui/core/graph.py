"""The dataflow graph of a region, from the texts of its operators in a checkpoint. Pure.

A text begins with the kind of the operator and the operators that it reads, as
`OperatorSpec.describe` of `dataflow` writes it: "count from (by_word) key (word) gives (...)".
"""

import re
from collections.abc import Mapping
from typing import Any, Final

_TEXT: Final = re.compile(r"(\S+) from \(([^)]*)\) ?(.*)", re.DOTALL)


def graph_of(operators: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the operators in the order of the checkpoint: name, kind, the inputs that it reads, and the rest
    of the text. A text of another form has the kind "" and no inputs.
    """
    return [{"name": name, **_parsed(text)} for name, text in operators.items()]


def _parsed(text: str) -> dict[str, Any]:
    found = _TEXT.fullmatch(text)
    if found is None:
        return {"kind": "", "inputs": [], "detail": text}
    kind, inputs, detail = found.groups()
    return {"kind": kind, "inputs": [one for one in inputs.split(", ") if one], "detail": detail}
