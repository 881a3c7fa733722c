"""Streams of version 0 and their status frames, event by event on the fake disk with the test's own clock."""

import random

import pytest

from dos_protocol import messages as m
from dos_server.limits import version0_in_flight_batches_max, version0_in_flight_bytes_max
from tests.dos_server.version0.streams import reading, streaming, written
from tests.support.core_harness import Harness

# Streams and their status


def test_a_stream_is_reported_nothing_within_the_first_second_and_the_truth_at_its_end() -> None:
    # EVIDENCE-OF: P-1
    server = Harness()
    session = streaming(server)
    server.stream(session, b"hello ")
    server.stream(session, b"world")
    server.half_close(session)
    assert server.replies(session) == []
    assert session not in server.closed
    server.settle()
    assert server.replies(session) == [b"11\t11"]
    assert session in server.closed
    assert server.ask(reading(server), m.Get("f", 0, 100)).payload == b"hello world"


def test_the_end_of_an_empty_stream_is_reported_too() -> None:
    server = Harness()
    written(server, "f", b"12345")
    session = streaming(server, "f", 5)
    server.half_close(session)
    assert server.replies(session) == [b"5\t5"]
    assert session in server.closed


def test_while_bytes_come_a_status_goes_out_a_second_after_the_last() -> None:
    server = Harness()
    session = streaming(server)
    for _ in range(25):
        server.tick(0.125)
        server.stream(session, b"x")
        server.settle()
    # each eighth byte comes a second after the last status; it is written then, and not yet synced
    assert server.replies(session) == [b"8\t7", b"16\t15", b"24\t23"]


def test_the_two_numbers_are_what_is_written_and_what_is_synced() -> None:
    # EVIDENCE-OF: P-1
    server = Harness()
    session = streaming(server)
    server.stream(session, b"x" * 100)
    server.tick(1.1)
    assert server.replies(session) == [b"100\t0"]
    server.stream(session, b"y" * 10)
    server.finish()
    server.tick(1.1)
    assert server.replies(session) == [b"110\t100"]
    server.settle()
    server.tick(0.5)
    assert server.replies(session) == []
    server.tick(0.6)
    assert server.replies(session) == [b"110\t110"]


def test_after_a_pause_of_a_second_what_is_new_is_reported_once_and_then_nothing() -> None:
    server = Harness()
    session = streaming(server)
    server.tick(10.0)
    assert server.replies(session) == []
    assert not server.core.wants_tick()
    server.stream(session, b"abc")
    assert server.replies(session) == [b"3\t0"], "the last one is ten seconds ago"
    server.settle()
    server.tick(0.9)
    assert server.replies(session) == []
    server.tick(0.2)
    assert server.replies(session) == [b"3\t3"]
    server.tick(5.0)
    assert server.replies(session) == []
    assert not server.core.wants_tick(), "a stream at rest costs no ticks"


def test_bytes_of_one_read_become_extents_of_a_quarter_mebibyte() -> None:
    server = Harness()
    session = streaming(server)
    server.stream(session, bytes(range(256)) * 2560)  # 640 KiB
    server.settle()
    handle = server.disk.open("d/dir/f", create=False)
    assert server.disk.size(handle) == 655_360 + 3 * 64
    data = server.ask(reading(server), m.Get("f", 300_000, 1000))
    assert data.payload == (bytes(range(256)) * 2560)[300_000:301_000]


@pytest.mark.parametrize("chunk_bytes", [1 << 20, 1])
def test_a_stream_is_not_read_while_too_much_of_it_is_unsynced(chunk_bytes: int) -> None:
    # EVIDENCE-OF: P-9
    server = Harness()
    session = streaming(server)
    chunk = bytes(chunk_bytes)
    taken = 0
    while server.core.may_read(session):
        server.stream(session, chunk)
        taken += len(chunk)
        assert taken <= min(version0_in_flight_bytes_max, version0_in_flight_batches_max * chunk_bytes)
    server.settle()
    assert server.core.may_read(session)


def test_nothing_is_read_while_a_request_is_being_answered() -> None:
    server = Harness()
    session = server.connect0()
    assert server.core.may_read(session)
    server.request(session, "udir")
    assert not server.core.may_read(session)
    server.settle()
    assert server.core.may_read(session)


def test_a_new_file_is_durable_before_its_append_is_answered() -> None:
    # EVIDENCE-OF: P-1
    server = Harness()
    session = server.connect0("dir")
    server.request(session, "af\t0")
    assert server.replies(session) == []
    server.finish()
    assert server.replies(session) == [b"ok"]
    server.disk.power_cut(random.Random(1))
    server.start()
    assert server.ask0(server.connect0("dir"), "l") == b"f\t0\tno\n"


def test_nothing_is_reported_of_a_new_file_before_its_name_is_durable() -> None:
    """Not even that it has no bytes, by a session that did not make it; nobody else appends until it is."""
    # EVIDENCE-OF: P-1
    server = Harness()
    first, second, third = (server.connect0("dir") for _ in range(3))
    server.request(first, "af\t0")
    server.request(second, "sf")
    server.end(first)
    server.request(third, "af\t0")
    assert server.replies(second) == []
    assert server.replies(third) == [b"ERROR: another session appends to f"]
    server.settle()
    assert server.replies(second) == [b"0\t0"]
    assert server.ask0(server.connect0("dir"), "af\t0") == b"ok"


@pytest.mark.parametrize("offset", [0, 4, 6, 2**63 - 1])
def test_an_offset_that_is_not_the_size_is_refused_and_ends_the_connection(offset: int) -> None:
    # EVIDENCE-OF: P-3, P-8
    server = Harness()
    written(server, "f", b"12345")
    session = server.connect0("dir")
    assert server.ask0(session, f"af\t{offset}") == f"ERROR: f has 5 bytes, not {offset}".encode()
    assert session in server.closed
    assert server.ask0(server.connect0("dir"), "l") == b"f\t5\tno\n"


def test_a_refused_append_makes_no_file() -> None:
    # EVIDENCE-OF: P-8
    server = Harness()
    session = server.connect0("dir")
    assert server.ask0(session, "anew\t7") == b"ERROR: new has 0 bytes, not 7"
    assert server.ask0(server.connect0("dir"), "l") == b""
