"""Reading several things at a time."""

import pytest
import trio
import trio.testing

from dos_client.errors import QuorumUnavailableError
from dos_client.tasks import AT_ONCE, read_each


@pytest.mark.trio
async def test_each_is_read_a_few_at_a_time_and_returned_in_order() -> None:
    busy, most = 0, 0

    async def read(name: str) -> str:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        await trio.testing.wait_all_tasks_blocked()
        busy -= 1
        return name.upper()

    names = [f"n{number:02d}" for number in reversed(range(3 * AT_ONCE))]
    assert [*(await read_each(names, read)).items()] == [(one, one.upper()) for one in sorted(names)]
    assert most == AT_ONCE


@pytest.mark.trio
async def test_the_first_error_ends_the_others_and_is_raised_as_it_is() -> None:
    async def read(name: str) -> None:
        if name == "bad":
            raise QuorumUnavailableError("two of three are away")
        await trio.sleep_forever()

    with pytest.raises(QuorumUnavailableError, match="two of three are away"):
        await read_each(["good", "bad"], read)
