"""Checkpoints for tests of the manifest."""

from hypothesis import strategies as st

from checkpoint.core.graph_change import OperatorNote
from checkpoint.core.records.layout import even_layout
from checkpoint.core.records.manifest import Checkpoint, WorkerCheckpoint
from journal.core.chain import Position

u64 = st.integers(0, 2**64 - 1)


names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)


def worker_checkpoint(epoch=3, size=100, **fields):
    return WorkerCheckpoint(state=Position(epoch, size, 7), steps=Position(epoch, size + 1, 8), **fields)


def notes(**kinds: str) -> dict[str, OperatorNote]:
    """Operators of these names and kinds."""
    return {name: OperatorNote(kind=kind) for name, kind in kinds.items()}


def a_checkpoint(**fields):
    given_ = {
        "number": 5,
        "step": 40,
        "incarnation": 3,
        "final": False,
        "wall_time_ms": 1,
        "workers": {0: worker_checkpoint(), 1: worker_checkpoint()},
        "layout": even_layout(2),
        "operators": notes(count="count"),
        "parent": 4,
        "irrevocable": {},
        **fields,
    }
    number = given_["number"]
    return Checkpoint(**{"retained": tuple(range(max(1, number - 1), number + 1)), **given_})


def part(size=100, **fields):
    """One worker's part of a checkpoint of incarnation 1."""
    return worker_checkpoint(1, size, **fields)


def numbered_checkpoint(number=5, *, workers=None, **fields):
    """A checkpoint whose step, time and parent follow from its number."""
    parts = {0: part(), 1: part(200)} if workers is None else workers
    numbered = {"number": number, "step": 8 * number, "wall_time_ms": 1000 * number, "parent": number - 1}
    return a_checkpoint(**{"workers": parts, "layout": even_layout(len(parts)), **numbered, **fields})
