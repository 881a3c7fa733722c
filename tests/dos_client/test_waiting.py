"""Without a quorum a writer waits: nothing is lost, memory is bounded, and the status names the reason."""

import logging
import tracemalloc

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from dos_client import Claim, ObjectWriter, init_store, metrics
from dos_client.core.claim import ClaimState
from dos_client.core.status import MemberStatus, WaitBegan, WaitEnded, WaitTracker, waiting_reason
from dos_client.limits import journal_lag_bytes_max, waiting_after_s, waiting_report_s
from dos_client.sessions.connection import open_connection
from dos_protocol.digests import prefix_digest
from tests.dos_client.support import Threads, ThreadServer, caught_up, claimed, has, off, on, until, url_of


@given(st.lists(st.tuples(st.sampled_from(["", "this", "that"]), st.integers(0, 9)), max_size=20))
def test_waiting_is_reported_once_it_is_long_and_all_of_it_is_counted(looks: list[tuple[str, int]]) -> None:
    waiting, now, total, this_time, reported = WaitTracker(), 0.0, 0.0, 0.0, False
    before = ""
    for reason, eighths in looks:
        seconds = eighths / 8
        now += seconds
        this_time = this_time + seconds if before else 0.0
        total += seconds if before else 0.0
        long = this_time >= waiting_report_s
        expected: WaitBegan | WaitEnded | None = None
        if reason and not reported and long:
            expected = WaitBegan(reason)
        elif not reason and reported:
            expected = WaitEnded(this_time)
        assert waiting.inspect(reason, now) == expected
        assert (waiting.reason, waiting.seconds(now)) == (reason, this_time if reason else 0.0)
        reported = bool(reason) and (reported or long)
        before = reason
    assert waiting.total_s == total


def status_of(address: str, state: str, error: str = "", lag_s: float = 0.0) -> MemberStatus:
    return MemberStatus(address, address.encode(), state, 0, connected=True, error=error, lag_s=lag_s)


def test_the_reason_names_who_is_missing_and_why() -> None:
    members = [
        status_of("h1:1", "in sync"),
        status_of("h2:1", "unavailable", "cannot connect"),
        status_of("h3:1", "broken", "a/b on this member: damaged"),
    ]
    assert waiting_reason(2, 1, members) == (
        "2 members are needed and 1 hold the claim; h2:1 is unavailable: cannot connect;"
        " h3:1 is broken: a/b on this member: damaged"
    )
    late = status_of("h1:1", "catching up", lag_s=waiting_after_s + 0.1)
    assert waiting_reason(2, 3, [late, status_of("h2:1", "in sync")]) == (
        "2 members are needed and too few of 3 acknowledge; h1:1 acknowledges nothing"
    )


def figure(name: str) -> float:
    """A figure without labels, as it is scraped."""
    return next(
        float(line.split()[-1]) for line in metrics.text().splitlines() if line.startswith(f"{name} ")
    )


@pytest.mark.trio
async def test_a_writer_that_waits_reports_it_once_and_says_when_it_continues(
    three: Threads, caplog: pytest.LogCaptureFixture
) -> None:
    # EVIDENCE-OF: P-10
    await init_store(url_of(three))
    appended = figure("dos_client_appended_bytes_total")
    acknowledged = figure("dos_client_acknowledged_bytes_total")
    waited = figure("dos_client_waiting_seconds_total")
    with caplog.at_level(logging.INFO, "dos.client"):
        async with claimed(three) as (store, claim):
            writer = claim.open_object("x")
            await writer.wait_synced(writer.append(b"before"))
            assert claim.status().waiting == ""
            await caught_up(store)
            await off(*three[:2])
            size = writer.append(b" and after")
            await until(lambda: figure("dos_client_waiting_claims") == 1, "the metrics say that it waits")
            await until(lambda: "cannot connect" in claim.status().waiting, "the status names the cause")
            has_all = f'dos_client_member_lag_bytes{{member="{three[2].location}"}} 0.0'
            await until(lambda: has_all in metrics.text(), "the member that is there has all")
            check_status(claim, three)
            check_member_figures(three)
            await until(lambda: claim.status().waiting_s > waiting_report_s, "it waits for long")
            await on(*three[:2])
            await writer.wait_synced(size)
            await until(lambda: claim.status().waiting == "", "it does not wait any more")
            await until(lambda: figure("dos_client_waiting_claims") == 0, "the metrics show it")
            assert claim.status().waiting_s == 0
            for server in three:
                await has(server, "d", "x", b"before and after")
            assert sum(store.counts.reconnects.values()) >= 2
    messages = [one.getMessage() for one in caplog.records if "for the store" in one.getMessage()]
    assert len(messages) == 2
    assert "is waiting for the store: 2 members are needed and 1 hold the claim; " in messages[0]
    assert "d continues after waiting " in messages[1]
    assert figure("dos_client_appended_bytes_total") - appended == size
    assert figure("dos_client_acknowledged_bytes_total") - acknowledged == size
    assert figure("dos_client_waiting_seconds_total") > waited


def check_status(claim: Claim, three: Threads) -> None:
    status = claim.status()
    assert (status.directory, status.epoch, status.state) == ("d", 1, ClaimState.WAITING)
    assert (status.lag_bytes, status.waiting_s > 0, status.lag_s > 0) == (10, True, True)
    assert all(server.location in status.waiting for server in three[:2])
    assert three[2].location not in status.waiting
    assert {one.address: one.state for one in status.members} == {
        three[0].location: "unavailable",
        three[1].location: "unavailable",
        three[2].location: "in sync",
    }


def check_member_figures(three: Threads) -> None:
    found = metrics.text()
    assert f'dos_client_member_lag_bytes{{member="{three[0].location}"}} 10.0' in found
    away = (
        f'dos_client_member_state{{dos_client_member_state="unavailable",member="{three[0].location}"}} 1.0'
    )
    assert away in found


@pytest.mark.trio
async def test_fifty_failed_attempts_are_two_lines_in_the_log_at_most(
    three: Threads, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dos_client.randomness.backoff_max_s", 0.02)
    await init_store(url_of(three))
    with caplog.at_level(logging.INFO, "dos.client"):
        async with claimed(three) as (_, claim):
            writer = claim.open_object("x")
            await writer.wait_synced(writer.append(b"1"))
            link = next(one for one in claim.links() if one.member.address == three[2].location)
            await until(lambda: link.connection is not None, "it is there")
            caplog.clear()
            await off(three[2])
            await until(lambda: link.outage.attempts >= 50, "it was tried again and again")
            assert len(about(caplog, three[2])) <= 2
            await on(three[2])
            await until(lambda: link.connection is not None, "it is back")
            back = about(caplog, three[2])[-1]
            assert "back after" in back
            assert int(back.split()[-2]) >= 50


def about(caplog: pytest.LogCaptureFixture, server: ThreadServer) -> list[str]:
    return [one.getMessage() for one in caplog.records if server.location in one.getMessage()]


@pytest.mark.trio
async def test_without_a_quorum_memory_is_bounded_and_everything_arrives_in_the_end(three: Threads) -> None:
    # EVIDENCE-OF: P-5, P-9, P-10
    await init_store(url_of(three))
    async with claimed(three) as (_, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b""))
        await off(*three)
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            number = await append_until_it_waits(writer)
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert held - before < journal_lag_bytes_max * 1.05
        assert writer.size < journal_lag_bytes_max + 100_000
        await on(*three[:2])
        await writer.wait_synced(writer.size)
        digest = prefix_digest(b"".join(piece(one) for one in range(number)))
        for _ in range(3):
            writer.append(b"goes on")
            await writer.wait_room()
        target = claim.targets["x"]
        assert target.milestones.at(0) == 0
        await writer.wait_synced(writer.size)
        assert digest == await digest_on(three[0], writer.size - 21)


def piece(number: int) -> bytes:
    return number.to_bytes(8) * 12_345


async def append_until_it_waits(writer: ObjectWriter) -> int:
    number = 0
    with trio.move_on_after(30) as scope:
        while True:
            writer.append(piece(number))
            number += 1
            with trio.move_on_after(1.0) as waits:
                await writer.wait_room()
            if waits.cancelled_caught:
                return number
    assert not scope.cancelled_caught
    return number


async def digest_on(server: ThreadServer, size: int) -> int:
    async with open_connection(server.location) as connection:
        await connection.open_directory("d")
        return (await connection.stat("x", size)).digest


@pytest.mark.trio
async def test_the_figures_are_served_to_prometheus(three: Threads) -> None:
    await init_store(url_of(three))
    async with claimed(three) as (_, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"abc"))
        await until(lambda: three[0].location in metrics.text(), "the members are shown")
        server = metrics.serve(0)
        try:
            with trio.fail_after(20):
                stream = await trio.open_tcp_stream("127.0.0.1", server.port)
                await stream.send_all(b"GET /metrics HTTP/1.0\r\n\r\n")
                answer = b"".join([part async for part in stream]).decode()
                await stream.aclose()
        finally:
            await trio.to_thread.run_sync(server.close)
        assert answer.startswith("HTTP/1.0 200")
        assert f'dos_client_sent_bytes_total{{member="{three[0].location}"}}' in answer
    assert f'dos_client_member_lag_bytes{{member="{three[0].location}"' not in metrics.text(), "it is closed"
