"""Which checkpoints are retained, and what of their chains."""

import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from checkpoint.core.records.layout import even_layout
from checkpoint.core.records.manifest import (
    WorkerCheckpoint,
    check_checkpoint,
    floors_of,
    gaps_of,
    keep,
    retained_with,
    steps_kept_after,
    unneeded_of,
)
from checkpoint.errors import ManifestError
from journal.core.chain import Position, below, below_or_within, segment_name
from tests.checkpoint.manifest_samples import a_checkpoint, worker_checkpoint


@pytest.mark.parametrize(
    ("retained", "before", "text"),
    [
        ((3, 4, 5), (3, 4), None),
        ((4, 5), (), None),
        ((4,), (), "its own"),
        ((4, 6), (), "its own"),
        ((5, 5), (), "expected rising numbers"),
        ((0, 5), (), "expected rising numbers"),
        ((2, 5), (3, 4), r"retains \[2\], which checkpoint 4 released"),
    ],
)
def test_what_is_released_is_never_retained_again(retained, before, text) -> None:
    # EVIDENCE-OF: P-6
    checkpoint, older = a_checkpoint(retained=retained), a_checkpoint(number=4, parent=3, retained=before)
    if text is None:
        check_checkpoint(checkpoint, before=older)
        return
    with pytest.raises(ManifestError, match=text):
        check_checkpoint(checkpoint, before=older)


floors = st.dictionaries(st.sampled_from(["state", "steps"]), st.tuples(st.integers(1, 4), st.integers(0, 9)))


@given(st.lists(floors, min_size=1, max_size=12), st.integers(2, 5))
def test_nothing_that_a_retained_checkpoint_needs_is_ever_garbage(given_floors, retain) -> None:
    # EVIDENCE-OF: P-6
    kept, every = (), {}
    for number, chains in enumerate(given_floors, 1):
        checkpoint = a_checkpoint(
            number=number,
            parent=number - 1,
            step=number,
            workers={0: worker_checkpoint(floors=chains)},
            retained=retained_with(kept, number, retain),
        )
        kept, every[number] = keep(kept, checkpoint), chains
        assert [one.number for one in kept] == list(checkpoint.retained) == sorted(every)[-retain:]
        garbage = below(floors_of(kept, 0))
        for chain, epoch, base in itertools.product(("state", "steps", "out-x"), range(1, 5), range(10)):
            needed = any((epoch, base) >= every[one.number].get(chain, (0, 0)) for one in kept)
            if garbage(segment_name(chain, epoch, base)):
                assert not needed
                assert chain != "out-x"
        assert not garbage("state")
        assert steps_kept_after(kept) == kept[-1].step


ORDER = st.tuples(st.integers(1, 4), st.integers(0, 9))


@given(st.lists(st.tuples(ORDER, ORDER).map(sorted), min_size=1, max_size=5))
@example([[(1, 0), (1, 0)], [(1, 2), (1, 2)], [(1, 1), (1, 1)]])  # the last one was restored
@settings(max_examples=400)
def test_exactly_what_lies_between_a_position_and_the_next_floor_is_a_gap(needs) -> None:
    """Of state, steps and files; an output log has other readers, and no gap."""
    # EVIDENCE-OF: P-6
    chains = ("state", "steps", "files-own", "out-x")
    kept = ()
    for number, (floor, end) in enumerate(needs, 1):
        at = Position(*end, 0)
        floors = dict.fromkeys(chains, floor)
        part = WorkerCheckpoint(floors=floors, state=at, steps=at, directories={"own": at})
        kept = (*kept, a_checkpoint(number=number, workers={0: part}))
    is_garbage, lowest, gaps = unneeded_of(kept, 0), floors_of(kept, 0), gaps_of(kept, 0)
    is_released = below_or_within({}, gaps)
    assert "out-x" not in gaps
    for epoch, base in itertools.product(range(1, 5), range(10)):
        *older, (last, _) = needs
        needed = (epoch, base) >= last or any(low <= (epoch, base) <= high for low, high in older)
        for chain in chains[:-1]:
            name = segment_name(chain, epoch, base)
            assert is_garbage(name) == (not needed)
            assert is_released(name) == (not needed and (epoch, base) > lowest[chain])
        assert not is_garbage(segment_name("out-x", epoch, base))


def test_of_a_worker_in_no_retained_checkpoint_state_and_files_are_not_needed() -> None:
    """If it comes back, it continues its steps and its output, and begins anew with the others."""
    chains = dict.fromkeys(("state", "steps", "files-own", "out-x"), (3, 9))
    kept = (a_checkpoint(workers={0: worker_checkpoint(floors=chains)}, layout=even_layout(1)),)
    assert floors_of(kept, 0) == chains
    assert floors_of(kept, 1) == {"files-own": (4, 0), "state": (4, 0)}
    assert floors_of((), 1) == {}


def test_a_checkpoint_of_the_old_format_among_the_retained_keeps_everything() -> None:
    old, new = (
        a_checkpoint(number=4, parent=3, version=1),
        a_checkpoint(workers={0: worker_checkpoint(floors={"state": (3, 9)})}),
    )
    assert floors_of((old, new), 0) == {}
    assert floors_of((new,), 0) == {"state": (3, 9)}
    assert [
        checkpoint.number for checkpoint in keep(keep(keep((), old), a_checkpoint()), a_checkpoint(number=6))
    ] == [5, 6]
