"""A member's disk is restored from an older copy while another member is away (docs/decisions/0211).

If an available member knows a newer stamp, the disk is detected before it counts. If none does,
an epoch is granted twice: then what was acknowledged before is on one member, and is neither overwritten nor
passed over in silence.
"""

import shutil
from pathlib import Path

import pytest
import trio

from dos_client import (
    QuorumUnavailableError,
    Store,
    StoreNotReadyError,
    init_store,
    open_store,
    repair_store,
    replace_member,
)
from dos_client.cli.store import finding_text
from dos_client.core.membership import Condition
from dos_client.membership.status import store_status
from dos_client.repair.repairing import RepairOutcome
from dos_client.repair.verifying import verify_store
from dos_client.sessions.connection import open_connection
from dos_protocol.messages import Stamp, Stamped, Witness, Witnessed
from dos_protocol.store_record import DiskStamp, decode_witnessed
from dos_server.core.requests.stamps import decode_history, decode_witnesses
from journal import ChainWriter, EpochUsedTwiceError, Op, Record, inspect_chain, read_records, take_over
from tests.dos_client.support import (
    PATIENCE_S,
    ThreadServer,
    caught_up,
    content_of,
    copy_disk,
    has,
    new_writer,
    off,
    on,
    until,
    url_of,
)

pytestmark = pytest.mark.trio


async def wrote(store: Store, *texts: str, journal: str = "J") -> tuple[int, str]:
    """Take the journal over, as any writer does, and append; the epoch, and the segment that was opened."""
    epoch = (await store.inspect("d")).epoch_seen + 1
    async with await store.claim("d", epoch, new_writer()) as claim:
        state = await take_over(claim, journal, generation=store.record.generation)
        writer = await ChainWriter.open(claim, journal, state, store.record.generation)
        for text in texts:
            await writer.wait_synced(writer.append(Record(Op.OUTPUT, strings=(text.encode(),))))
        return epoch, f"{journal}.{epoch:016x}.{0 if state.end is None else state.end.size:016x}"


async def shown(store: Store) -> list[str]:
    chain = await inspect_chain(store, "d", "J")
    records = [record async for _, record in read_records(store, chain, directory="d")]
    return [record.strings[0].decode() for record in records if record.op is Op.OUTPUT]


async def one_epoch_granted_twice(
    three: list[ThreadServer], after: int, journal: str = "J"
) -> tuple[str, bytes]:
    """The first member's disk goes back. Returns the segment of that epoch, and what the second member has of
    it. after: how many records the writer after that appends.
    """
    first, second, third = three
    url, image = url_of(three), first.data.with_name("image")
    await init_store(url)
    async with open_store(url) as store:
        assert (await wrote(store, "base"))[0] == 1
        if journal != "J":
            await wrote(store, "base", journal=journal)
        segments = (await store.inspect("d")).answers[bytes.fromhex(second.server_id)]
        for name in segments:
            content = await content_of(second, "d", name)
            for one in three:
                await has(one, "d", name, content)
    await off(first)
    await copy_disk(first, image)
    await on(first)
    await off(third)
    async with open_store(url) as store:
        epoch, segment = await wrote(store, "acknowledged by the first and the second")
    kept = await content_of(second, "d", segment)
    await off(first, second)
    await trio.to_thread.run_sync(shutil.rmtree, first.data)
    await trio.to_thread.run_sync(shutil.copytree, image, first.data)
    await on(first, third)
    async with open_store(url) as store:
        again = await wrote(store, *(f"other {number}" for number in range(after)), journal=journal)
        assert again[0] == epoch, "nobody who is there knows that this epoch was used"
    await on(second)
    return segment, kept


async def test_repair_overwrites_nothing_of_an_epoch_that_was_granted_twice(
    three: list[ThreadServer],
) -> None:
    # EVIDENCE-OF: P-5
    segment, kept = await one_epoch_granted_twice(three, after=3)
    async with open_store(url_of(three)) as store:
        verified = await verify_store(store)
        report = await repair_store(store)
    assert {one.outcome for one in report.repairs if one.name == segment} == {RepairOutcome.REFUSED}
    reason = next(one.reason for one in report.repairs if one.name == segment)
    assert "its epoch was granted twice: the disk of a member went back to an older state" in reason
    assert "`dos store replace`" in reason
    exchanged = [finding_text(one) for one in verified.differences if one.name == segment]
    assert any(
        "its epoch was granted twice: a member's disk went back to an older state" in one for one in exchanged
    )
    assert await content_of(three[1], "d", segment) == kept
    assert not list((three[1].data / "d" / "d").glob(".broken*"))


async def test_two_writers_of_one_epoch_are_an_alarm_also_in_segments_that_do_not_contradict(
    three: list[ThreadServer],
) -> None:
    """One wrote journal J, the other K: each segment is on one side only, as if the others lagged."""
    # EVIDENCE-OF: P-4
    segment, kept = await one_epoch_granted_twice(three, after=3, journal="K")
    async with open_store(url_of(three)) as store:
        verified = await verify_store(store)
        report = await repair_store(store)
    of_epoch = {one.name for one in verified.differences if "granted twice" in finding_text(one)}
    assert {name.partition(".")[0] for name in of_epoch} == {"J", "K"}
    assert {one.outcome for one in report.repairs if one.name in of_epoch} == {RepairOutcome.REFUSED}
    assert any("epoch 3 of d was granted to two writers" in one.reason for one in report.repairs)
    status = await store_status([one.location for one in three])
    assert not status.whole
    assert await content_of(three[1], "d", segment) == kept
    for one in three:
        held = {path.name for path in (one.data / "d" / "d").iterdir()}
        assert not {"J", "K"} <= {name.partition(".")[0] for name in held & of_epoch}, "nothing is merged"


async def test_a_copy_from_before_a_claim_is_detected_when_the_others_were_there_at_the_claim(
    three: list[ThreadServer],
) -> None:
    """The copy is of the running server, and younger than its newest stamp was."""
    # EVIDENCE-OF: P-5
    first, second, third = three
    url, image = url_of(three), first.data.with_name("image")
    await init_store(url)
    async with open_store(url) as store:
        await wrote(store, "base")
    before = decode_history((first.data / "stamps").read_bytes()).newest
    await copy_disk(first, image)
    async with open_store(url) as store:
        epoch = (await store.inspect("d")).epoch_seen + 1
        async with await store.claim("d", epoch, new_writer()) as claim:
            await claim.wait_all(30)

            def all_know() -> bool:
                files = [(one.data / "witnessed").read_bytes() for one in (second, third)]
                known = [decode_witnesses(data)[bytes.fromhex(first.server_id)] for data in files]
                return all(one.number > before.number for one in known)

            await until(all_know, "both others know a stamp of the first from after the claim")
    await off(first, second)
    await trio.to_thread.run_sync(shutil.rmtree, first.data)
    await trio.to_thread.run_sync(shutil.copytree, image, first.data)
    await on(first)
    async with open_store(url) as store:
        with pytest.raises(QuorumUnavailableError, match="went back in time"):
            await store.inspect("d")


@pytest.mark.parametrize(
    "after", [1, 3], ids=["the longer copy is the older", "the longer copy is the newer"]
)
async def test_a_take_over_that_meets_both_refuses_and_changes_nothing(
    three: list[ThreadServer], after: int
) -> None:
    segment, kept = await one_epoch_granted_twice(three, after)
    async with open_store(url_of(three)) as store:
        with pytest.raises(EpochUsedTwiceError, match="epoch 2 was granted twice"):
            await wrote(store, "on top of one of them")
    assert await content_of(three[1], "d", segment) == kept


async def test_without_a_restored_disk_the_same_outages_lose_nothing(three: list[ThreadServer]) -> None:
    first, second, third = three
    url = url_of(three)
    await init_store(url)
    async with open_store(url) as store:
        await wrote(store)
    for away, text in ((third, "a"), (second, "b"), (first, "c")):
        await off(away)
        async with open_store(url) as store:
            await wrote(store, text)
        await on(away)
    async with open_store(url) as store:
        await wrote(store, "d")
        assert await shown(store) == ["a", "b", "c", "d"]
        assert not [
            one for one in (await repair_store(store)).repairs if one.outcome is RepairOutcome.REFUSED
        ]


async def all_stamps_exchanged(store: Store, three: list[ThreadServer]) -> None:
    """Wait until each member keeps the newest stamp of each other one, on its disk."""
    histories = {bytes.fromhex(one.server_id): one.data / "stamps" for one in three}

    def exchanged() -> bool:
        newest = {one: decode_history(path.read_bytes()).newest for one, path in histories.items()}
        kept = [one.data / "witnessed" for one in three]
        return all(path.exists() for path in kept) and all(
            decode_witnesses(path.read_bytes())
            == {other: stamp for other, stamp in newest.items() if other != bytes.fromhex(one.server_id)}
            for one, path in zip(three, kept, strict=True)
        )

    # A member that granted a claim late may have made a stamp of which nobody heard, because the claim was
    # over: it is asked here, otherwise only after `stamp_renewal_s`.
    with trio.fail_after(PATIENCE_S):
        while True:
            with trio.move_on_after(5):
                while not exchanged():  # noqa: ASYNC110 - disks are watched from outside
                    await trio.sleep(0.01)
                return
            for one in histories:
                await store.witnesses.renew(one)


async def put_back(server: ThreadServer, image: Path) -> None:
    """Its disk is the copy again."""
    await off(server)
    await trio.to_thread.run_sync(shutil.rmtree, server.data)
    await trio.to_thread.run_sync(shutil.copytree, image, server.data)


async def restored_while_another_is_away(three: list[ThreadServer], *, running: bool) -> None:
    """The first has the disk of before the record "acknowledged by the first and the second", of which the
    third knows nothing. It and the third are there, the second is not."""
    first, second, third = three
    url, image = url_of(three), first.data.with_name("image")
    await init_store(url)
    async with open_store(url) as store:
        await wrote(store, "base")
        await all_stamps_exchanged(store, three)
    if not running:
        await off(first)
    await copy_disk(first, image)
    if not running:
        await on(first)
    async with open_store(url) as store:
        if running:
            before = decode_history((image / "stamps").read_bytes()).newest
            await until(
                lambda: decode_history((first.data / "stamps").read_bytes()).newest.number > before.number,
                "the disk has another stamp",
            )
        await all_stamps_exchanged(store, three)
    await off(third)
    async with open_store(url) as store:
        await wrote(store, "acknowledged by the first and the second")
    await off(second)
    await put_back(first, image)
    await on(first, third)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disks are given a new stamp all the time."""
    monkeypatch.setattr("dos_server.core.requests.stamps.stamp_seconds", 0.1)
    monkeypatch.setattr("dos_client.sessions.members.stamp_renewal_s", 0.2)


@pytest.mark.parametrize("running", [False, True], ids=["the copy of a stopped disk", "of a running one"])
async def test_a_disk_that_went_back_counts_for_nothing_and_nothing_acknowledged_is_missing(
    three: list[ThreadServer], request: pytest.FixtureRequest, running: bool
) -> None:
    # EVIDENCE-OF: P-5
    if running:
        request.getfixturevalue("often")
    await restored_while_another_is_away(three, running=running)
    first, second, _ = three
    url = url_of(three)
    with pytest.raises(QuorumUnavailableError, match="went back in time"):
        async with open_store(url) as store:
            await store.inspect("d")
    with pytest.raises(StoreNotReadyError, match="its disk went back in time"):
        async with open_store(url):
            pass
    await off(first)
    await on(first)
    status = await store_status([one.location for one in three])
    assert any("its disk went back in time" in one for one in status.problems), "it knows after a start, too"
    await on(second)
    async with open_store(url) as store:
        await wrote(store, "goes on")
        assert await shown(store) == ["base", "acknowledged by the first and the second", "goes on"]
        await until(
            lambda: (
                "went back in time"
                in next(one for one in store.members() if one.address == first.location).error
            ),
            "the status names why it is unavailable",
        )
    status = await store_status([one.location for one in three])
    assert [one.condition for one in status.members] == [
        Condition.ROLLED_BACK,
        Condition.THERE,
        Condition.THERE,
    ]


async def test_a_writer_that_lives_is_witness_enough(three: list[ThreadServer]) -> None:
    """No other member needs to know: the writer itself has seen the start that the disk lacks."""
    first, second, third = three
    url, image = url_of(three), first.data.with_name("image")
    await init_store(url)
    await off(first)
    await copy_disk(first, image)
    await on(first)
    async with open_store(url) as store, await store.claim("d", 1, new_writer()) as claim:
        writer = claim.open_object("o")
        await writer.wait_synced(writer.append(b"acknowledged"))
        await caught_up(store)
        for one in (second, third):
            (one.data / "witnessed").unlink()
        await off(second, third)
        await put_back(first, image)
        await on(first)
        await until(
            lambda: (
                "went back in time"
                in next(one for one in claim.status().members if one.address == first.location).error
            ),
            "the writer reports it",
        )
        await on(second, third)
        await writer.wait_synced(writer.append(b", and more"))
    assert await content_of(second, "d", "o") == b"acknowledged, and more"


async def test_a_member_that_went_back_is_emptied_and_replaced_under_its_own_address(
    three: list[ThreadServer],
) -> None:
    await restored_while_another_is_away(three, running=False)
    first, second, _ = three
    url = url_of(three)
    await on(second)
    status = await store_status([one.location for one in three])
    assert status.members[0].condition is Condition.ROLLED_BACK, "by the look itself"
    assert status.usable
    await off(first)
    await trio.to_thread.run_sync(shutil.rmtree, first.data)
    await on(first)
    await replace_member(url, old=first.location, new=first.location)
    await off(second)
    async with open_store(url) as store:
        await wrote(store, "goes on")
        assert await shown(store) == ["base", "acknowledged by the first and the second", "goes on"]


async def test_false_stamps_of_a_client_put_no_member_out_of_service(three: list[ThreadServer]) -> None:
    # EVIDENCE-OF: P-5
    url, false = url_of(three), DiskStamp(1_000, b"f" * 16)
    await init_store(url)
    async with open_store(url) as store:
        await wrote(store, "base")
        await all_stamps_exchanged(store, three)
        ids = [bytes.fromhex(one.server_id) for one in three]
        for server, server_id in zip(three, ids, strict=True):
            async with open_connection(
                server.location, store_id=store.record.store_id, generation=store.record.generation
            ) as liar:
                known = decode_witnessed(liar.welcome.witnessed)
                for other in set(ids) - {server_id}:
                    await liar.call(Witness(other, *false, *known[other]), Witnessed, 10.0)
                await liar.call(Stamp(*false), Stamped, 10.0)
    async with open_store(url) as store:
        await all_stamps_exchanged(store, three)
        await wrote(store, "goes on")
        assert await shown(store) == ["base", "goes on"]
        assert not (await store_status([one.location for one in three])).problems
