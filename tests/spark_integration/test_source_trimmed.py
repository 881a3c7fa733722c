"""Sources whose chains were trimmed: a stream begins at what is retained, and one that has fallen behind
stops.
"""

from types import SimpleNamespace
from typing import Any

import pytest

from checkpoint import limits
from checkpoint.core.records.outputs import Publish
from spark_integration.core.offsets import BEGINNING, SplitPoint
from spark_integration.core.options import ReadGuarantee, RewindPolicy
from spark_integration.errors import DataLossError
from spark_integration.reading.chains import ChainOrigin, InputOrigin, OutputOrigin
from tests.checkpoint import test_output_trimming as outputs
from tests.checkpoint import trim_model as inputs


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "input_segment_bytes_max", 1)
    monkeypatch.setattr(limits, "output_segment_bytes_max", 1)
    monkeypatch.setattr(limits, "output_poll_s", 0.0)


async def trimmed_input(*, fail: bool) -> tuple[ChainOrigin, str, int]:
    """The origin, its split, and how many pieces are retained."""
    model = inputs.TrimModel()
    await model.open()
    region = await model.region("region")
    for _ in range(12):
        await model.send()
        await region.read(1_000)
        await region.checkpoint()
    await model.trim()
    await model.trim()
    options: Any = SimpleNamespace(directory=inputs.APPLICATION, input=inputs.HANDLE, fail_on_data_loss=fail)
    first = model.segments()[0]
    return InputOrigin(model.store, options), inputs.PRODUCER, sum(end > first for end in model.ends)


async def trimmed_output(publish: Publish, *, fail: bool) -> tuple[ChainOrigin, str, int]:
    model = outputs.OutputModel(publish)
    await model.open()
    region = await model.region("reader")
    for _ in range(12):
        await model.checkpoint()
        await region.read(1_000)
        await region.checkpoint()
        await model.trim()
    found = [piece async for piece in model.follower(inputs.SplitPosition(0), from_retained=True).poll()]
    options: Any = SimpleNamespace(
        directory=outputs.REGION,
        output=outputs.SINK,
        read=ReadGuarantee.COMMITTED,
        fail_on_data_loss=fail,
        on_rewind=RewindPolicy.FAIL,
    )
    return OutputOrigin(model.store, options), outputs.SPLIT, len(found)  # type: ignore[arg-type]


async def made(kind: str, *, fail: bool = True) -> tuple[ChainOrigin, str, int]:
    return await (trimmed_input(fail=fail) if kind == "input" else trimmed_output(Publish(kind), fail=fail))


async def pieces_from(origin: ChainOrigin, split: str, start: SplitPoint) -> int:
    scan = await origin.scan(split, start)
    count = 0
    while await scan.next() is not None:
        count += 1
    await scan.aclose()
    return count


KINDS = pytest.mark.parametrize("kind", ["input", *Publish])


@pytest.mark.trio
@KINDS
async def test_earliest_is_the_oldest_retained_row(kind: str) -> None:
    origin, split, retained = await made(kind)
    begin = await origin.begin(split)
    assert begin.size > 0
    assert await pieces_from(origin, split, begin) == retained > 0
    end = await origin.end(split)
    ranges = await origin.ranges(split, begin, end)
    assert sum(one.end - one.begin for one in ranges) == end.size - begin.size
    assert (await origin.all_ranges(split))[0].base == begin.size
    assert [data async for data in origin.first_rows(split)]


@pytest.mark.trio
@KINDS
async def test_a_stream_that_has_fallen_behind_stops_or_continues_as_it_was_told(kind: str) -> None:
    origin, split, _ = await made(kind)
    behind = SplitPoint(1, 1)
    with pytest.raises(DataLossError, match="was trimmed"):
        await origin.scan(split, behind)
    lenient, split, retained = await made(kind, fail=False)
    assert await pieces_from(lenient, split, behind) == retained
    assert BEGINNING.size == 0
