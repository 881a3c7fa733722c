"""Requests to regions of toy workers through real servers: which ones a driver reads, which answers count."""

import logging
import os
import signal
import time

import pytest
import trio

from checkpoint import limits
from checkpoint.chains.manifest_log import read_manifest
from checkpoint.core.region import RegionState, answers_directory, requests_directory
from checkpoint.core.requests import Answer, Request, encode_record
from checkpoint.errors import NoAnswerError, RegionFencedError
from checkpoint.requests.client import RequestClient
from checkpoint.requests.queue import write_records
from dos_client import QuorumUnavailableError, init_store, open_store
from tests.checkpoint.test_region_processes import Driver, DriverSpec
from tests.checkpoint.toy_region import ENDLESS, ToyRegion
from tests.support.dos_command import dos
from tests.support.servers import url_of

pytestmark = pytest.mark.process


def send_request(url, name, what, **options):
    """Ask from here; the last word."""

    async def main():
        async with open_store(url) as store:
            return await RequestClient(store, name).send(what, **options)

    return trio.run(main)


def put(url, name, *requests, directory=requests_directory):
    """Write records as they are."""

    async def main():
        async with open_store(url) as store:
            data = b"".join(one if isinstance(one, bytes) else encode_record(one) for one in requests)
            await write_records(store, directory(name), data)

    trio.run(main)


def a_request(region, number, what, **fields):
    now_ms = time.time_ns() // 1_000_000
    fields = {"wall_time_ms": now_ms, "patience_ms": 10_000, **fields}
    return Request(id=f"{number:032x}", region=region, what=what, **fields)


def test_a_server_that_was_unavailable_gets_the_requests_and_answers_that_it_missed_while_the_region_runs(
    three_servers, tmp_path, monkeypatch
):
    monkeypatch.setattr(limits, "queue_repair_s", 0.5)
    url = url_of(three_servers)
    trio.run(init_store, url)
    name = "missed"

    async def wait_equal():
        async with open_store(url) as store:
            for directory in (requests_directory(name), answers_directory(name)):
                with trio.fail_after(60):
                    while True:
                        copies = list((await store.inspect(directory)).answers.values())
                        if len(copies) == 3 and all(copy == copies[0] != {} for copy in copies):
                            break
                        await trio.sleep(0.1)

    with ToyRegion(url, tmp_path, name=name, numbers=ENDLESS) as running:
        running.wait_checkpoints(1)
        three_servers[2].kill()
        for _ in range(2):
            assert send_request(url, name, "status").answer.verdict == "done"
        three_servers[2].restart()
        trio.run(wait_equal)


def test_a_request_written_twice_is_carried_out_once(region) -> None:
    name = region.control.spec.name
    request = a_request(name, 7, "reset")
    put(region.store, name, request, request)
    put(region.store, name, request)
    region.wait_for(lambda _: len(region.resets) == 1)
    assert send_request(region.store, name, "checkpoint", wait_s=60).answer.verdict == "done"
    assert len(region.resets) == 1


def test_requests_that_are_older_than_the_driver_are_not_heard(shared_store, tmp_path) -> None:
    put(shared_store, "late", a_request("late", 1, "stop"), a_request("late", 2, "reset"))
    with ToyRegion(shared_store, tmp_path, name="late", numbers=ENDLESS) as region:
        region.wait_checkpoints(1)
        assert send_request(shared_store, "late", "checkpoint", wait_s=60).answer.verdict == "done"
        assert region.control.status().state is RegionState.RUNNING
        assert region.resets == []


def test_garbage_among_requests_is_skipped_said_and_harms_nothing(region, caplog) -> None:
    name = region.control.spec.name
    caplog.set_level(logging.WARNING, logger="dos.checkpoint")
    torn = encode_record(a_request(name, 1, "stop"))[:60]
    strange = a_request("other", 2, "stop")
    late = a_request(name, 3, "stop", wall_time_ms=1)
    put(region.store, name, b"stop it!" + torn, strange, late, a_request(name, 4, "explode"))
    assert send_request(region.store, name, "status").answer.verdict == "done"
    assert region.control.status().state is RegionState.RUNNING
    assert f"skipped a record in the requests directory {name}.requests: 8 bytes" in caplog.text
    assert "60 bytes: torn record, followed by another one" in caplog.text


def test_an_answer_of_a_superseded_driver_is_not_believed(region) -> None:
    """It says it runs the region; the manifest says it does not."""
    # EVIDENCE-OF: P-4
    name, url = region.control.spec.name, region.store
    region.control.stop()
    assert region.control.wait(20)
    epoch = region.control.status().incarnation

    async def main(incarnation):
        async with open_store(url) as store:
            asking = RequestClient(store, name)
            seen = []

            async def answer_as_the_old_one():
                requests = requests_directory(name)
                before = (await store.inspect(requests)).epoch_seen
                while (await store.inspect(requests)).epoch_seen == before:  # noqa: ASYNC110 - asks servers
                    await trio.sleep(0.02)
                answer = Answer(
                    requests=tuple(seen),
                    region=name,
                    incarnation=incarnation,
                    verdict="done",
                    wall_time_ms=0,
                    driver="old:1",
                    result={"state": "RUNNING"},
                )
                await write_records(store, answers_directory(name), encode_record(answer))

            request = asking._request

            def noted(*arguments):
                made = request(*arguments)
                seen.append(made.id)
                return made

            asking._request = noted
            async with trio.open_nursery() as nursery:
                nursery.start_soon(answer_as_the_old_one)
                try:
                    return (await asking.send("status", patience_s=4)).answer.result
                except NoAnswerError as error:
                    return str(error)
                finally:
                    nursery.cancel_scope.cancel()

    assert trio.run(main, epoch) == {"state": "RUNNING"}
    assert f"incarnation {epoch - 1}, old:1, answered, but epoch {epoch} has it" in trio.run(main, epoch - 1)


def test_of_two_drivers_the_newer_one_answers_also_while_the_older_one_is_asleep(
    shared_store, tmp_path
) -> None:
    # EVIDENCE-OF: P-4
    spec = DriverSpec(
        store=shared_store, folder=str(tmp_path / "old"), workers=2, numbers=ENDLESS, pace_s=0.005
    )
    (tmp_path / "old").mkdir()
    old = Driver(spec)
    try:
        old.wait_for(lambda lines: any("checkpoint" in line for line in lines))
        assert send_request(shared_store, "toy", "status").answer.driver.endswith(f":{old.process.pid}")
        old.process.send_signal(signal.SIGSTOP)
        (tmp_path / "new").mkdir()
        with ToyRegion(shared_store, tmp_path / "new", numbers=ENDLESS) as new:
            new.wait_checkpoints(1)
            assert send_request(shared_store, "toy", "status").answer.driver.endswith(f":{os.getpid()}")
            old.process.send_signal(signal.SIGCONT)
            old.wait_for(lambda lines: any(line.get("state") == "FENCED" for line in lines))
            answer = send_request(shared_store, "toy", "checkpoint", wait_s=60).answer
            assert answer.driver.endswith(f":{os.getpid()}")
            assert new.control.status().state is RegionState.RUNNING
    finally:
        old.process.send_signal(signal.SIGCONT)
        old.close()


def test_a_fenced_driver_says_nothing_and_the_newer_one_answers(region, tmp_path) -> None:
    name = region.control.spec.name
    (tmp_path / "newer").mkdir()
    with ToyRegion(region.store, tmp_path / "newer", name=name, numbers=ENDLESS) as newer:
        newer.wait_checkpoints(1)
        assert region.control.wait(60)
        assert isinstance(region.control.exception(), RegionFencedError)
        answer = send_request(region.store, name, "status").answer
        assert answer.incarnation == newer.control.status().incarnation


def test_a_region_that_takes_no_requests_is_left_alone_and_that_is_reported(shared_store, tmp_path) -> None:
    with ToyRegion(shared_store, tmp_path, name="deaf", numbers=ENDLESS, answer_requests=False) as region:
        region.wait_checkpoints(1)
        result = dos("region", "stop", shared_store, "deaf", "--timeout", 1)
        assert result.returncode == 1
        result = dos("region", "status", shared_store, "deaf", "--timeout", 1)
        assert result.returncode == 1
        assert "answer_requests=False" in result.stderr
        assert region.control.status().state is RegionState.RUNNING


def test_with_one_server_away_requests_work_and_without_a_quorum_the_command_reports_it(
    three_servers, tmp_path
) -> None:
    url = url_of(three_servers)
    trio.run(init_store, url)
    with ToyRegion(url, tmp_path, numbers=ENDLESS) as region:
        region.wait_checkpoints(1)
        three_servers[0].kill()
        assert send_request(url, "toy", "checkpoint", wait_s=60).answer.verdict == "done"
        three_servers[1].kill()
        region.wait_for(lambda _: region.control.status().state is RegionState.WAITING_FOR_STORE)
        result = dos("region", "status", url, "toy")
        assert result.returncode == 3
        assert three_servers[1].location in result.stderr
        three_servers[0].restart()
        three_servers[1].restart()
        region.wait_for(lambda _: region.control.status().state is RegionState.RUNNING)
        answer = send_request(url, "toy", "stop", wait_s=60).answer
        assert answer.result["state"] == "STOPPED"
        assert region.control.wait(20)

        async def last():
            async with open_store(url) as store:
                return (await read_manifest(store, "toy")).last

        assert trio.run(last).number == answer.result["lastCheckpoint"]


def test_a_request_that_cannot_be_written_is_told_with_the_members_that_are_unavailable(
    three_servers, tmp_path, monkeypatch
) -> None:
    url = url_of(three_servers)
    trio.run(init_store, url)
    monkeypatch.setattr(limits, "request_write_s", 1.0)

    async def main():
        async with open_store(url) as store:
            asking = RequestClient(store, "toy")
            await asking._queue.skip_present()
            asking._began = True
            for server in three_servers[:2]:
                server.pause()
            try:
                await asking.send("stop", patience_s=1)
            finally:
                for server in three_servers[:2]:
                    server.resume()

    with pytest.raises(QuorumUnavailableError, match=r"could not be written within 1 s|members are needed"):
        trio.run(main)
