"""The tables of docs/protocol/journals.md that this package owns, drawn from the code: `python -m
tests.checkpoint.protocol_tables`. Each stands between `<!-- table: checkpoint/NAME -->` and `<!-- end
-->`; `test_protocol_md.py` demands that they agree.
"""

import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import get_args

from checkpoint.core.coordination.workers import WORKERS
from checkpoint.core.links import messages as m
from checkpoint.core.links.frames import ChannelFrame, FrameFlag, FrameType, encode, job_digest
from checkpoint.core.records.layout import Kind, Value, canonical_key, key_hash

JOURNALS = Path(__file__).parent.parent.parent / "docs" / "protocol" / "journals.md"

KEYS = [
    (("string",), ("",)),
    (("string",), ("the",)),
    (("string",), ("Größe",)),
    (("binary",), (b"\x00\xff",)),
    (("bool",), (True,)),
    (("int",), (-1,)),
    (("int",), (258,)),
    (("uint",), (2**64 - 1,)),
    (("float",), (-0.0,)),
    (("float",), (1.5,)),
    (("float",), (float("nan"),)),
    (("decimal",), (-2,)),
    (("date",), (19_000,)),
    (("timestamp",), (1_000_000,)),
    (("string",), (None,)),
    (("string", "int"), ("ab", 1)),
    (("string", "string"), ("", None)),
    ((("string", "int"),), (("ab", 1),)),
    (("string", ("int",)), ("", (None,))),
]


def _first_sentence(text: str | None) -> str:
    text = " ".join((text or "").split())
    return text.split(". ")[0].rstrip(".")


def frame_vector() -> str:
    frame = ChannelFrame(FrameType.STEP_END, 3, job_digest("wordcount"), 7, 42, 5, 9, 1, FrameFlag.FINAL)
    text = encode(frame).hex()
    lines = "\n".join(f"    {text[start : start + 64]}" for start in range(0, len(text), 64))
    return (
        'STEP_END of sender 3, job "wordcount", sender epoch 7, step 42, checkpoint 5, seq 9, channel 1,'
        " FINAL:\n\n"
        f"{lines}"
    )


def _key_text(kind: Kind, value: Value) -> str:
    if isinstance(kind, tuple) and isinstance(value, tuple):
        return f"struct of ({', '.join(map(_key_text, kind, value))})"
    return f"{kind} {value!r}"


def key_vectors() -> str:
    lines = ["| key | canonical bytes | `_hash` |", "|---|---|---|"]
    for kinds, values in KEYS:
        fields = ", ".join(map(_key_text, kinds, values))
        data = canonical_key(kinds, values)
        lines.append(f"| {fields} | `{data.hex()}` | `{key_hash(kinds, values):016x}` |")
    return "\n".join(lines)


def control_messages() -> str:
    lines = [
        "| from | message | fields besides job, incarnation, epoch, checkpoint | what it says |",
        "|---|---|---|---|",
    ]
    kinds = [
        *(("worker", kind) for kind in get_args(m.ToCoordinator)),
        *(("coordinator", kind) for kind in get_args(m.ToWorker)),
        *(("task, to the desk of the driver", kind) for kind in get_args(m.ToDesk)),
        *(("task", kind) for kind in get_args(m.FromTask)),
        *(
            ("coordinator, to a task" if kind is not m.RegionAt else "desk, to a task", kind)
            for kind in get_args(m.ToTask)
        ),
        ("task, and worker in return", m.BatchShare),
    ]
    for sender, kind in kinds:
        fields = [name for name in kind.__struct_fields__ if name not in m.ControlMessage.__struct_fields__]
        says = _first_sentence(kind.__doc__)
        lines.append(f"| {sender} | {kind.__name__} | {', '.join(fields) or '-'} | {says} |")
    return "\n".join(lines)


def _diagram(table: Mapping[Enum, Mapping[Enum, Enum]]) -> str:
    lines = [
        f"    {state.name} --> {after.name}: {event.name}"
        for state, row in table.items()
        for event, after in row.items()
    ]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


TABLES = {
    "frame vector": frame_vector,
    "key vectors": key_vectors,
    "worker diagram": lambda: _diagram(WORKERS),
}


def with_tables(text: str) -> str:
    """The text with every table of ours as the code says it. Raises KeyError for one that nobody draws."""

    def draw(match: re.Match[str]) -> str:
        return f"<!-- table: checkpoint/{match[1]} -->\n\n{TABLES[match[1]]()}\n\n<!-- end -->"

    return re.sub(r"<!-- table: checkpoint/([\w ]+) -->.*?<!-- end -->", draw, text, flags=re.DOTALL)


if __name__ == "__main__":
    JOURNALS.write_text(with_tables(JOURNALS.read_text(encoding="utf-8")), encoding="utf-8")
