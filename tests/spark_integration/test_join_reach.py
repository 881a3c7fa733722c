"""How far apart the times of a pair of a join of streams can be, by the comparisons of its condition."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_integration.joins import LEFT, RIGHT, Shifted, reach_us

HOLDS = {"<": lambda a, b: a <= b, ">": lambda a, b: a >= b, "=": lambda a, b: a == b}


def shifted(side: str) -> st.SearchStrategy[Shifted]:
    amounts = st.tuples(st.integers(-4, 4), st.integers(-4, 4))
    return amounts.map(lambda both: Shifted(side, min(both), max(both)))


COMPARISON = st.tuples(
    st.sampled_from("<>="),
    st.permutations([LEFT, RIGHT]).flatmap(lambda sides: st.tuples(*map(shifted, sides))),
).map(lambda one: (one[0], *one[1]))


@given(st.lists(COMPARISON, min_size=1, max_size=3))
def test_no_pair_for_which_the_comparisons_can_hold_is_further_apart(
    comparisons: list[tuple[str, Shifted, Shifted]],
) -> None:
    reach = reach_us(comparisons)

    def can_hold(distance: int) -> bool:
        times = {LEFT: 0, RIGHT: distance}
        return all(
            any(
                HOLDS[sign](times[first.side] + a, times[second.side] + b)
                for a in range(first.least, first.most + 1)
                for b in range(second.least, second.most + 1)
            )
            for sign, first, second in comparisons
        )

    far = [abs(distance) for distance in range(-30, 31) if can_hold(distance)]
    if reach is None:
        assert max(far) == 30, "it is not limited"
    else:
        assert all(one <= reach for one in far)


@pytest.mark.parametrize(("sign", "sides"), [*itertools.product("<>", [(LEFT, RIGHT), (RIGHT, LEFT)])])
def test_one_direction_is_no_limit_and_an_hour_is_one(sign: str, sides: tuple[str, str]) -> None:
    hour = 3_600_000_000
    first, second = Shifted(sides[0]), Shifted(sides[1], hour, hour)
    assert reach_us([(sign, first, second)]) is None
    other = {"<": ">", ">": "<"}[sign]
    assert reach_us([(sign, first, second), (other, first, Shifted(sides[1]))]) == hour
