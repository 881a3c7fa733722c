"""The pure core of retention, and the register of consumers."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.chains.consumer_register import (
    QueryRegistration,
    RowsChain,
    TrimPlanner,
    change_register,
    needs_of,
    read_register,
)
from checkpoint.chains.manifest_log import CHAIN, checkpoint_record
from checkpoint.core.graph_change import born_with
from checkpoint.core.records.consumers import (
    ChainNow,
    Consumer,
    Register,
    RetentionRule,
    continued_query,
    decode_register,
    encode_register,
    may_trim,
    need_of,
    next_step,
    output_register,
    published,
    trim_floor,
    with_consumer,
    without_consumer,
)
from checkpoint.core.records.layout import even_layout
from checkpoint.core.records.manifest import (
    Checkpoint,
    Rewind,
    SplitPosition,
    WorkerCheckpoint,
)
from checkpoint.core.region import coordinator_directory
from checkpoint.errors import ConsumerRefusedError, ConsumerTakenError, RegisterUnsettledError
from dos_protocol.errors import CorruptDataError
from journal import NO_FLOOR, ChainWriter, Position, limits, whole_state
from journal.core.record import decode_all
from tests.checkpoint.manifest_samples import notes
from tests.checkpoint.test_input_trimming import model_with
from tests.checkpoint.trim_model import REGISTER, PatientHost, TrimModel
from tests.journal.memory_store import MemoryStore

if TYPE_CHECKING:
    from dos_client import Store

# --- the pure core ---------------------------------------------------------------------------------------

BASES = st.lists(st.integers(1, 50), min_size=0, max_size=8).map(
    lambda sizes: [(1 + n // 3, sum(sizes[:n])) for n in range(len(sizes) + 1)]
)


@given(BASES, st.integers(0, 60), st.dictionaries(st.sampled_from("abc"), st.integers(0, 400)), st.data())
def test_no_byte_that_a_consumer_needs_lies_below_the_floor(
    segments: list[tuple[int, int]], tail: int, needs: dict[str, int], data: st.DataObject
) -> None:
    end = segments[-1][1] + 1 + tail
    last_end = data.draw(st.integers(0, end))
    chain = ChainNow(segments, end, last_end, {})
    reason = trim_floor(chain, needs, RetentionRule(), 0)
    assert reason.floor == NO_FLOOR or reason.floor in segments
    assert reason.floor[1] <= min(needs.values(), default=0)
    assert reason.floor == NO_FLOOR or reason.floor[1] < last_end, "the segment of the last batch stays"
    if needs:
        higher = [one for one in segments if one > reason.floor and one[1] < min(*needs.values(), last_end)]
        assert not higher, "and not more stays than that"
    if reason.floor > segments[0]:
        assert may_trim(segments, last_end)


@given(BASES, st.integers(0, 8), st.integers(0, 8), st.integers(0, 8), st.integers(1, 4))
def test_a_step_deletes_only_what_was_released_and_releases_only_what_is_unneeded(
    segments: list[tuple[int, int]], floor: int, released: int, collected: int, most: int
) -> None:
    marks = [NO_FLOOR, *segments]
    low, mid = sorted((marks[collected % len(marks)], marks[released % len(marks)]))
    wanted = marks[floor % len(marks)]
    step = next_step(segments, wanted, mid, low, most)
    assert low <= step.collect <= max(low, mid)
    assert step.collect == low or step.collect <= wanted
    if step.release != NO_FLOOR:
        assert mid < step.release <= wanted
        assert sum(mid < one <= step.release for one in segments) <= most + 1
    else:
        assert wanted <= max(mid, segments[0])


@pytest.mark.trio
async def test_a_consumer_of_a_line_that_was_left_needs_what_follows_where_the_lines_part() -> None:
    """It had read up to 900 on line 0; the region went back to 100, and line 1 has grown past that."""
    # EVIDENCE-OF: P-6
    store, region, place = MemoryStore(), "counts", output_register("counts", "x")
    read = {"line 0": (900, 0), "line 1": (900, 1), "before": (50, 0), "later": (900, 2)}
    needed = {"line 0": 100, "line 1": 900, "before": 50, "later": 0}  # "later": the manifest read is older
    checkpoints = [
        worker_checkpoint(at=900),
        worker_checkpoint(at=100, checkpoint=2),
        worker_checkpoint(at=1_200, checkpoint=3),
    ]
    rewind = Rewind(line=1, to=1, step=1, of=0, outputs={0: {"x": 100}})
    restored = msgspec.structs.replace(
        checkpoints[1], line=1, rewinds=(rewind,), rewound=True, rolled_back_to=1
    )
    later = msgspec.structs.replace(checkpoints[2], line=1, rewinds=(rewind,))
    await write_manifest(store, region, [checkpoints[0], restored, later])
    host = PatientHost(store)
    for name, (at, line) in read.items():
        query = QueryRegistration(host, place, name, session=name, retain_s=0.0)
        await query.begin({"w0000": at}, {"w0000": line})
        source = {"in": {"w0000": SplitPosition(at, line=line)}}
        await write_manifest(store, name.replace(" ", ""), [worker_checkpoint(at=1, sources=source)])
        await change_register(
            host, place, lambda register, name=name: with_consumer(register, name.replace(" ", ""), "in", 1)
        )
    needs = await needs_of(store, await read_register(store, place), place, "w0000")
    for name, at in needed.items():
        assert (needs[f"query:{name}"], needs[name.replace(" ", "")]) == (at, at), name
    for name in ("later", "before"):
        await change_register(
            host, place, lambda register, name=name: without_consumer(register, f"query:{name}")
        )
        await change_register(host, place, lambda register, name=name: without_consumer(register, name))
    planner = TrimPlanner(cast("Store", store), place)
    chain = RowsChain(
        "counts.w0000", "out-x", "w0000", tuple((1, base) for base in range(0, 1_200, 90)), 1_200, 1_200
    )
    assert (await planner.plan(chain, 0)).floor == (1, 90), "the segment with the byte before 100 stays"


def worker_checkpoint(
    *, at: int, checkpoint: int = 1, sources: dict[str, dict[str, SplitPosition]] | None = None
) -> Checkpoint:
    position = Position(1, at, 0)
    sinks = {"x": msgspec.to_builtins(position)}
    part = WorkerCheckpoint(state=position, steps=position, sinks=sinks, sources=sources or {})
    return Checkpoint(
        number=checkpoint,
        step=checkpoint,
        incarnation=1,
        final=False,
        wall_time_ms=0,
        workers={0: part},
        layout=even_layout(1),
        operators={},
        parent=checkpoint - 1,
        retained=(checkpoint - 1, checkpoint) if checkpoint > 1 else (1,),
        irrevocable={},
    )


async def write_manifest(store: MemoryStore, region: str, checkpoints: list[Checkpoint]) -> None:
    claim = store.claim(1, directory=coordinator_directory(region))
    manifest = await ChainWriter.open(claim, CHAIN, None, 1, pipelined=False)
    for checkpoint in checkpoints:
        manifest.append(checkpoint_record(checkpoint))
        await manifest.wait_synced()


def test_positions_of_a_query_that_are_dropped_need_nothing_that_others_do_not_need() -> None:
    query = continued_query(None, "s", {"w0000": 900}, 0)
    for number in range(1, 13):  # a query that starts again and again, below and on other lines
        query = continued_query(query, "s", {"w0000": 900 - number}, number, {"w0000": number // 6})
    before = query.positions
    query = published(query, "q", "s", {"w0000": 950}, 13, 30.0, {"w0000": 2})
    assert len(query.positions) < len(before)
    for one in before:
        at, line = one.splits["w0000"], one.lines.get("w0000", 0)
        assert any(kept.covers("w0000", at, line) for kept in query.positions), (at, line)


def test_registers_are_read_as_they_were_written_and_refused_if_a_newer_version_wrote_them() -> None:
    register = with_consumer(Register(), "shop", "taken", 17)
    register = with_consumer(register, "shop", "again", 18)
    assert with_consumer(register, "shop", "taken", 19) is register
    assert register.consumers == {"shop": Consumer(sources=("again", "taken"), since_ms=17)}
    text = encode_register(register)
    assert (
        text == b'{"version":1,"consumers":{"shop":{"sources":["again","taken"],"since_ms":17}},"rule":null}'
    )
    assert decode_register([text], where="d", at=9) == register
    assert without_consumer(register, "shop") == Register()
    with pytest.raises(ConsumerRefusedError, match="region 'other' is not registered; registered are: shop"):
        without_consumer(register, "other")
    for bad in (b"", b"{", b'{"version":4}', b'{"rule":{"bytes_max":"x"}}'):
        with pytest.raises(CorruptDataError):
            decode_register([bad], where="d", at=9)


def test_the_registers_of_the_golden_file_are_read_for_ever() -> None:
    golden = Path(__file__).parent.parent / "journal" / "golden" / "v1-consumers.journal"
    records, fault = decode_all(golden.read_bytes())
    assert fault is None
    first, second = (decode_register(record.strings, where="golden", at=end) for end, record in records)
    assert first.consumers == {"shop": Consumer(sources=("orders",), since_ms=1_732_147_200_000)}
    assert first.rule == RetentionRule(
        bytes_max=1 << 30, age_max_s=604_800, set_by="ops@h1", set_ms=1_732_147_200_123
    )
    assert (second.rule, second.consumers) == (RetentionRule(by_consumers=False), {})
    for register, (_, record) in zip((first, second), records, strict=True):
        assert encode_register(register) == record.strings[0]


@pytest.mark.trio
async def test_a_register_can_be_begun_and_changed_without_one_member_and_never_loses_a_change() -> None:
    model = TrimModel()
    for number, away in enumerate(model.store.servers):
        away.up = False
        await change_register(
            PatientHost(model.store),
            REGISTER,
            lambda register, number=number: with_consumer(register, f"r{number}", "s", 1),  # type: ignore[misc]
        )
        away.up = True
        assert sorted((await read_register(model.store, REGISTER)).consumers) == [
            f"r{one}" for one in range(number + 1)
        ]


# EVIDENCE-OF: P-6
@pytest.mark.trio
async def test_a_register_whose_change_was_interrupted_is_not_read_as_it_was_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A trimmer that saw the older state would delete what the consumer `late` needs."""
    monkeypatch.setattr(limits, "state_poll_s", 0.0)
    model = TrimModel()
    host, away = PatientHost(model.store), model.store.servers[2]

    async def register(name: str) -> None:
        await change_register(host, REGISTER, lambda old: with_consumer(old, name, "s", 1))

    await register("early")
    away.up = False
    await register("late")
    away.up = True  # with the segment in which `late` is not registered yet
    epoch = (await host.inspect(REGISTER.directory)).epoch_seen
    await host.claim(REGISTER.directory, epoch + 1)  # by a process that is killed now
    with pytest.raises(RegisterUnsettledError, match=r"shop.rd.orders .* epoch 3 did not complete"):
        await read_register(model.store, REGISTER)
    await TrimPlanner(model.store, REGISTER).deletes_anything()  # a writer that trims settles it
    assert sorted((await read_register(model.store, REGISTER)).consumers) == ["early", "late"]


@pytest.mark.trio
async def test_a_change_that_is_refused_leaves_the_register_as_it_was() -> None:
    model = TrimModel()
    host = PatientHost(model.store)
    await change_register(host, REGISTER, lambda old: with_consumer(old, "shop", "s", 1))
    with pytest.raises(ConsumerRefusedError):
        await change_register(host, REGISTER, lambda old: without_consumer(old, "other"))
    assert sorted((await read_register(model.store, REGISTER)).consumers) == ["shop"]


@pytest.mark.trio
async def test_a_register_that_is_replaced_while_it_is_read_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between the listing of the directory and the read, a change deletes the segment that was listed."""
    monkeypatch.setattr(limits, "state_poll_s", 0.0)
    model = TrimModel()
    host, inspect = PatientHost(model.store), whole_state.inspect_chain
    await change_register(host, REGISTER, lambda old: with_consumer(old, "early", "s", 1))
    changes = ["late"]

    async def inspect_and_change(*args: Any) -> Any:
        found = await inspect(*args)
        if changes:
            name = changes.pop()
            await change_register(host, REGISTER, lambda old: with_consumer(old, name, "s", 1))
        return found

    monkeypatch.setattr(whole_state, "inspect_chain", inspect_and_change)
    assert sorted((await read_register(model.store, REGISTER)).consumers) == ["early", "late"]


@pytest.mark.trio
async def test_a_process_that_registers_again_does_not_take_the_name_from_another_one() -> None:
    host = PatientHost((await model_with(1)).store)
    first, second = (
        QueryRegistration(host, REGISTER, "board", session=session, retain_s=0.0) for session in ("s1", "s2")
    )
    await first.begin({})
    await first.begin({}, again=True)
    await second.begin({})
    with pytest.raises(ConsumerTakenError, match="'board' was registered by another process"):
        await first.begin({}, again=True)
    await second.begin({}, again=True)
    await first.begin({})  # a process that is started later


def test_a_checkpoint_whose_graph_does_not_have_a_source_needs_nothing_of_it() -> None:
    """The savepoint from before the source came does not hold its input for ever."""

    def reading(number: int, at: int | None, **uids: str) -> Checkpoint:
        sources = {} if at is None else {"_1f-more": {"p": SplitPosition(at)}}
        graph = notes(rows="source") if at is None else notes(rows="source", more="source")
        checkpoint = worker_checkpoint(at=9, checkpoint=number, sources=sources)
        return msgspec.structs.replace(checkpoint, operators=graph, uids=uids)

    before, after = reading(4, None), reading(5, 700, more="_1f-more")
    assert need_of([before, after], ["_1f-more"], "p") == 700
    assert need_of([before, reading(5, 0, more="_1f-more")], ["_1f-more"], "p") == 0
    assert need_of([before], ["_1f-more"], "p") is None
    comes = f"{born_with('shop', 4)}more"
    assert need_of([before], [comes], "p", region="shop") == 0, "it comes with the next one, and needs all"
    assert need_of([before], [comes], "p") is None, "of a backup of it"
    assert need_of([], ["more"], "p", region="shop") == 0, "the region begins"


def test_a_source_that_was_removed_holds_its_input_as_long_as_a_checkpoint_has_it() -> None:
    def checkpoint(number: int, at: int | None, **uids: str) -> Checkpoint:
        sources = {} if at is None else {"old": {"p": SplitPosition(at)}}
        graph = notes(rows="source") if at is None else notes(rows="source", old="source")
        made = worker_checkpoint(at=9, checkpoint=number, sources=sources)
        return msgspec.structs.replace(made, operators=graph)

    last, after, later = checkpoint(4, 700), checkpoint(5, None), checkpoint(6, None)
    assert need_of([last, after], ["old"], "p", region="shop") == 700, "a restore would read it"
    assert need_of([after, later], ["old"], "p", region="shop") is None
    given_up = f"{born_with('shop', 4)}old"  # registered, and its graph was never committed
    assert need_of([after, later], ["old", given_up], "p", region="shop") is None
    assert need_of([later], ["old", f"{born_with('shop', 6)}old"], "p", region="shop") == 0, "it comes back"
