"""The power of one real server is cut, end to end: a process, on a disk that loses what was not synced.

The disk freezes in the middle of whatever it does, the server dies with it, and starts again on what is left.
What a client had been told by then is there, and what was on its way to it.
"""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dos_protocol import messages as m
from dos_protocol.errors import ErrorCode
from tests.power.history import History, Observation, observe
from tests.power.mount import LossyDisk
from tests.power.workload import STORE, Writer, make_store_of_one, until_dark, work
from tests.support.servers import NO_LOG, ServerProcess
from tests.support.wire import Wire

pytestmark = pytest.mark.process
ALONE = m.Hello(client="power")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LossyDisk]:
    with LossyDisk(tmp_path / "disk") as disk:
        yield disk


def assert_kept(server: ServerProcess, history: History, hello: m.Hello = ALONE) -> Observation:
    """All that was acknowledged is shown, and nothing else; from now on that is the history."""
    with Wire(server.address, hello=hello) as wire:
        shown = observe(wire.ask)
    wrong = history.violations(shown)
    assert not wrong, wrong
    history.go_on_from(shown)
    return shown


def cut_at_work(
    disk: LossyDisk, server: ServerProcess, history: History, seed: int | None, hello: m.Hello = ALONE
) -> None:
    """Two writers do everything; the power goes after some steps of theirs."""
    steps = 20 + 7 * (seed or 0) % 30
    writers = [Writer(server, history, f"dir{number}", steps + number) for number in range(2)]
    cutter = threading.Thread(target=disk.cut, args=(seed,))

    def cut_at(step: int) -> None:
        if step == steps:
            cutter.start()

    with until_dark():
        for writer in writers:
            writer.hello = hello
            writer.claim()
        work(writers, 100_000, steps, at_step=cut_at)
    cutter.join()
    for writer in writers:
        writer.drain()
        writer.close()


def test_power_cuts_at_work_take_back_nothing_that_was_acknowledged(disk: LossyDisk) -> None:
    """Pipelined appends to objects old and new, reads, claims, DELETE; REPAIR in a store of one."""
    # EVIDENCE-OF: P-1, P-2, P-4
    server, history, hello = disk.start_server(), History(), ALONE
    identity = server.server_id
    for seed in range(6):
        if seed == 3:
            make_store_of_one(server)
            hello = STORE
        cut_at_work(disk, server, history, seed, hello)
        assert history.acknowledged_bytes > 0
        server.restart()
        assert server.server_id == identity
        assert_kept(server, history, hello)


def first_ack(disk: LossyDisk, server: ServerProcess, history: History, seed: int | None) -> None:
    """A new object in a new directory; the power goes the moment that its first bytes are acknowledged."""
    writer = Writer(server, history, f"new{seed}", 0)
    writer.claim()
    writer.append("object", b"first bytes")
    writer.settle("object")
    disk.cut(seed)
    writer.close()


def test_a_new_object_in_a_new_directory_exists_after_its_first_acknowledgement(disk: LossyDisk) -> None:
    # EVIDENCE-OF: P-1
    server, history = disk.start_server(), History()
    for seed in (None, 1, 2):
        first_ack(disk, server, history, seed)
        server.restart()
        shown = assert_kept(server, history)
        assert shown.objects[f"new{seed}", "object"] == b"first bytes"


def test_a_claim_that_was_answered_exists_and_none_is_half_there(disk: LossyDisk) -> None:
    """Eight directories are claimed at once, again and again; the power goes when some were answered."""
    # EVIDENCE-OF: P-4
    server, history = disk.start_server(), History()
    for epoch in range(1, 5):
        wires = [Wire(server.address) for _ in range(8)]
        for number, wire in enumerate(wires):
            claim = m.ChangeDirectory(f"dir{number}", claim=True, epoch=epoch, writer_id=b"%016d" % epoch)
            wire.send(claim)
        for number, wire in enumerate(wires):
            with until_dark():
                opened = wire.receive()
                assert isinstance(opened, m.DirectoryOpened), opened
                assert opened.epoch == epoch
                history.claimed(f"dir{number}", epoch)
            if number == epoch:
                disk.cut(epoch)
            wire.close()
        server.restart()
        assert_kept(server, history)
        with Wire(server.address) as wire:
            refused = wire.claim("dir0", epoch, b"z" * 16)
            assert (refused.code, refused.actual) == (ErrorCode.FENCED, epoch), refused


Scenario = Callable[[LossyDisk, ServerProcess, History, int | None], None]


@pytest.mark.parametrize(
    ("scenario", "files", "folders"),
    [
        pytest.param(cut_at_work, True, False, id="files-at-work"),
        pytest.param(first_ack, True, False, id="files-first-ack"),
        pytest.param(first_ack, False, True, id="folders-first-ack"),
    ],
)
def test_on_a_disk_whose_syncs_do_nothing_the_same_cut_loses_what_was_acknowledged(
    disk: LossyDisk, scenario: Scenario, *, files: bool, folders: bool
) -> None:
    """The mutant: were there no fsync, the tests above would fail. With a group log no folder needs one
    for the first acknowledgement."""
    server, history = disk.start_server(*(NO_LOG if folders else ())), History()
    scenario(disk, server, history, 1)
    server.restart()
    assert_kept(server, history)
    disk.lie(files=files, folders=folders)
    scenario(disk, server, history, None)
    server.restart()
    with pytest.raises(AssertionError, match="acknowledged"):
        assert_kept(server, history)
