"""No sequence of kills and power cuts takes anything back: see `lives`."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from tests.power.disk_state import DiskState
from tests.power.history import History
from tests.power.lives import NAMES, Life, many_lives
from tests.power.model_disk import DeadError, ModelDisk


@given(seed=st.integers(0, 2**32))
def test_no_sequence_of_kills_and_power_cuts_takes_back_what_was_told(seed: int) -> None:
    # EVIDENCE-OF: P-1, P-2, P-4
    many_lives(seed, 8)


def test_what_a_killed_server_left_in_memory_is_not_taken_for_durable() -> None:
    """Killed after each of its calls to the disk; the next life adds to what it finds; then all that was not
    synced goes. (A mark that said *removed* came back, and took away an object that had the name anew; and an
    identity could be read and was not durable.)"""
    # EVIDENCE-OF: P-1
    ended = False
    for count in range(1_000):
        history, state = History(), DiskState()
        with contextlib.suppress(DeadError):
            life = Life(ModelDisk(state, dies_after=count), history, 1)
            for name in NAMES:
                life.append(name, b"first")
                life.delete(name)
            ended = True
        life = Life(ModelDisk(state), history, 2)
        for name in NAMES:
            life.append(name, b"second")
        Life(ModelDisk(DiskState.of(state.bare())), history, 3)
        if ended:
            return
    raise AssertionError("the first life never came to its end")
