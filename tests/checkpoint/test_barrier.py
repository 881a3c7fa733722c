"""Alignment: whatever the order of arrival, a step is the same; a checkpoint is where any sender put it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.core.links.barrier import Alignment, checkpoint_of_step
from dos_protocol.errors import RemoteProtocolError


@st.composite
def histories(draw):
    """For each sender its frames in order: (step, seq, item or None for the end, checkpoint)."""
    senders, steps = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    history = []
    for sender in range(senders):
        frames = []
        for step in range(1, steps + 1):
            count = draw(st.integers(0, 3))
            frames += [(step, seq, (sender, step, seq), 0) for seq in range(count)]
            frames.append((step, count, None, draw(st.sampled_from([0, 0, 0, 1, 2]))))
        history.append(frames)
    return history


def play(history, order):
    """Feed frames sender by sender as `order` says; the steps that come out, and when each sender may go
    on.
    """
    alignment = Alignment(len(history), first_step=1, last_checkpoint=0)
    left = [list(frames) for frames in history]
    done = []
    for choice in order:
        ready = [sender for sender, frames in enumerate(left) if frames and frames[0][0] < alignment.step + 4]
        if not ready:
            break
        sender = ready[choice % len(ready)]
        step, seq, item, checkpoint = left[sender].pop(0)
        if item is None:
            alignment.step_end(sender, step, seq, checkpoint=checkpoint)
        else:
            alignment.data(sender, step, seq, item)
        while (complete := alignment.take()) is not None:
            done.append(complete)
    return done, left


@given(histories(), st.lists(st.integers(0, 5), min_size=60, max_size=60), st.randoms())
def test_steps_and_checkpoints_do_not_depend_on_the_order_of_arrival(history, order, random) -> None:
    total = sum(len(frames) for frames in history)
    one, left = play(history, (order * 2)[:total])
    shuffled = order[:]
    random.shuffle(shuffled)
    other, _ = play(history, (shuffled * 2)[:total])
    assert one == other
    assert not any(left)
    assert [step.step for step in one] == list(range(1, len(one) + 1))
    for step in one:
        assert list(step.items) == sorted(step.items)


@given(histories(), st.lists(st.integers(0, 5), min_size=60, max_size=60))
def test_a_checkpoint_is_at_the_first_step_where_any_sender_asks_for_a_higher_number(history, order) -> None:
    done, _ = play(history, (order * 2)[: sum(len(frames) for frames in history)])
    last = 0
    for step in done:
        asked = [
            checkpoint
            for frames in history
            for n, _, item, checkpoint in frames
            if n == step.step and item is None
        ]
        expected = max(asked) if max(asked) > last else 0
        assert step.checkpoint == expected
        last = max(last, step.checkpoint)


def test_a_step_waits_for_every_sender_and_says_for_whom() -> None:
    alignment = Alignment(3, first_step=5, last_checkpoint=2)
    alignment.step_end(1, 5, 0, checkpoint=3)
    assert alignment.take() is None
    assert alignment.missing() == [0, 2]
    alignment.data(2, 5, 0, "c")
    alignment.step_end(2, 5, 1)
    alignment.step_end(2, 6, 0)
    alignment.data(0, 5, 0, "a")
    alignment.step_end(0, 5, 1)
    assert alignment.take() == (5, 3, False, ("a", "c"))
    assert alignment.take() is None
    assert alignment.step == 6


def test_asking_again_for_a_checkpoint_that_was_made_changes_nothing() -> None:
    alignment = Alignment(2, first_step=1, last_checkpoint=0)
    alignment.step_end(0, 1, 0, checkpoint=1)
    alignment.step_end(1, 1, 0)
    assert alignment.take().checkpoint == 1
    alignment.step_end(0, 2, 0)
    alignment.step_end(1, 2, 0, checkpoint=1, final=True)  # heard of it late
    again = alignment.take()
    assert (again.checkpoint, again.final) == (0, False)
    assert checkpoint_of_step([0, 1, 1], 1) == 0
    assert checkpoint_of_step([], 0) == 0


def test_a_final_checkpoint_is_known_by_its_flag() -> None:
    alignment = Alignment(2, first_step=1, last_checkpoint=3)
    alignment.step_end(0, 1, 0, checkpoint=4, final=True)
    alignment.step_end(1, 1, 0)
    assert alignment.take() == (1, 4, True, ())


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        ([(0, 1, 1)], "expected frame 0, got frame 1"),
        ([(0, 1, 0), (0, 1, 0)], "expected frame 1, got frame 0"),
        ([(2, 1, 0)], "frame of sender 2, but the channel has 2"),
        ([(0, 0, 0)], "step 0, which is over; step 1 is next"),
        ([(0, 5, 0)], "at least 4 ahead of step 1"),
        ([(0, 2, 0)], "before it ended step 1"),
        ([(0, 1, 0, "end"), (0, 1, 1)], "after it ended that step"),
        ([(0, 1, 0, "end"), (0, 1, 1, "end")], "after it ended that step"),
        ([(0, 1, 0), (0, 1, 0, "end")], "expected frame 1, got frame 0"),
    ],
)
def test_a_sender_that_breaks_the_order_is_told_so(frames, text) -> None:
    alignment = Alignment(2, first_step=1, last_checkpoint=0)
    *good, last = frames
    for sender, step, seq, *end in good:
        (alignment.step_end if end else alignment.data)(sender, step, seq, *([] if end else ["x"]))
    sender, step, seq, *end = last
    with pytest.raises(RemoteProtocolError, match=text):
        (alignment.step_end if end else alignment.data)(sender, step, seq, *([] if end else ["x"]))


def test_what_runs_ahead_is_bounded() -> None:
    # EVIDENCE-OF: P-9
    alignment = Alignment(2, first_step=1, last_checkpoint=0, steps_ahead_max=2)
    alignment.step_end(0, 1, 0)
    alignment.step_end(0, 2, 0)
    with pytest.raises(RemoteProtocolError, match="at least 2 ahead"):
        alignment.step_end(0, 3, 0)


def test_a_region_has_senders() -> None:
    with pytest.raises(ValueError, match="has 1 to"):
        Alignment(0, first_step=1, last_checkpoint=0)


def test_data_alone_ends_no_step() -> None:
    alignment: Alignment[str] = Alignment(1, first_step=1, last_checkpoint=0)
    alignment.data(0, 1, 0, "a")
    assert (alignment.take(), alignment.missing()) == (None, [0])
    alignment.step_end(0, 1, 1)
    assert alignment.take() == (1, 0, False, ("a",))
