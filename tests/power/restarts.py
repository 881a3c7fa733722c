"""Many short runs of a server on a disk that loses what was not synced, each ended by a kill or a power cut
between any two of its calls to the disk; the next one starts on what is left.

A kill leaves what the kernel had in memory: the next run sees it, and relies on it, and then the power goes.
So this finds what is taken for durable because it can be read. In memory, one thread, no clock: a number is a
run.
"""

import contextlib
import errno
import functools
import random
from collections.abc import Callable

from dos_protocol import messages as m
from dos_protocol.digests import PrefixDigest
from dos_protocol.errors import ErrorCode
from dos_server.core import vocabulary as v
from dos_server.limits import again_seconds
from tests.power.disk_state import DiskState
from tests.power.history import History, Observation, observe
from tests.power.model_disk import DeadError, ModelDisk
from tests.support.core_harness import Harness

NAMES = ("a", "b", "c")


class ServerRun:
    """A server and its one client, the writer of `dir`. Raises DeadError when the server dies."""

    def __init__(self, disk: ModelDisk, history: History, epoch: int) -> None:
        """What is shown has to be as promised, and is from then on what there is."""
        self.server = Harness(disk)
        self.history = history
        wrong = history.violations(self.inspect())
        assert not wrong, wrong
        self.session = self.server.connect()
        claim = m.ChangeDirectory("dir", claim=True, epoch=epoch, writer_id=b"w" * 16)
        opened = self.server.ask(self.session, claim)
        assert isinstance(opened, m.DirectoryOpened), opened
        history.go_on_from(self.inspect())
        history.claimed("dir", epoch)

    def inspect(self) -> Observation:
        return observe(functools.partial(self.server.ask, self.server.connect()))

    def append(self, name: str, payload: bytes) -> None:
        """Appended and acknowledged; or refused, and then as if it had never been asked for (P-8)."""
        existed = ("dir", name) in self.history.objects
        one = self.history.of("dir", name)
        made = one.versions[-1] is None
        if made:
            one.replace(b"")
        request = m.Append(name, one.fold.size, one.fold.value, payload)
        one.grow(payload)
        first = len(self.server.heard[self.session])
        answer = self.server.ask(self.session, request)
        if isinstance(answer, m.Error):
            assert answer.code in (ErrorCode.NO_SPACE, ErrorCode.BUSY), answer
            if made:
                one.versions.pop()
            elif not existed:
                del self.history.objects["dir", name]
            else:
                one.shrink(len(one.content) - len(payload))
            return
        self.wait()
        for _, message in self.server.heard[self.session][first:]:
            assert isinstance(message, m.DurabilityAck), message
            one.acknowledged(message.synced)

    def stream(self, name: str, payload: bytes) -> None:
        """The same by a session of version 0, in a directory that nobody claims: only SYNCED acknowledges."""
        one = self.history.of("plain", name)
        session = self.server.connect0()
        assert self.server.ask0(session, "uplain") == b"ok"
        assert self.server.ask0(session, f"a{name}\t{len(one.content)}") == b"ok"
        one.grow(payload)
        self.server.stream(session, payload)
        self.server.event(v.BatchEnded())
        self.server.event(v.HalfClosed(session))
        self.server.settle()
        for status in self.server.replies(session):
            one.acknowledged(int(status.split(b"\t")[1]))

    def wait(self) -> None:
        """What the disk could not begin it begins later, when nothing keeps it from that any more."""
        while self.server.core.wants_tick():
            self.server.now += again_seconds
            self.server.event(v.Tick())
            self.server.settle()

    def delete(self, name: str) -> None:
        one = self.history.of("dir", name)
        if one.versions[-1]:
            one.replace(None)
            request = self.server.send(self.session, m.Delete(name))
            self.server.settle()
            self.wait()
            answer = self.server.answer(self.session, request)
            if isinstance(answer, m.Error):
                assert answer.code == ErrorCode.BUSY, answer
                one.versions.pop()
                one.fold = PrefixDigest()
                one.fold.update(bytes(one.content))
                return
            assert isinstance(answer, m.Deleted), answer
            one.acknowledged()


PASSING = (errno.EMFILE, errno.ENFILE, errno.EACCES)


def _trouble(rng: random.Random) -> Callable[[str], int]:
    """What a disk, or the system around it, refuses for a while: it is full, or descriptors or rights are
    missing. Not both at once: then what a full disk let in cannot be taken back, and it is poisoned."""
    often, full = rng.choice((0.05, 0.3)), rng.random() < 0.5

    def trouble(method: str) -> int:
        if rng.random() >= often or (full and method != "write") or (not full and method.startswith("write")):
            return 0
        return errno.ENOSPC if full else rng.choice(PASSING)

    return trouble


def _begin_in_trouble(state: DiskState, rng: random.Random) -> None:
    """A run that may not get through its start, nor its first look at a directory; what it leaves of them is
    for the next one."""
    disk = ModelDisk(state, dies_after=rng.randrange(60))
    disk.trouble = _trouble(rng)
    with contextlib.suppress(DeadError, OSError):
        server = Harness(disk)
        server.ask(server.connect(), m.ChangeDirectory("dir"))


def many_runs(seed: int, count: int, *, troubled: bool = False, version0: bool = False) -> None:
    """So many runs one after the other. Raises AssertionError when one of them lost or made up something.

    `troubled`: the disk is full, and descriptors and rights are missing, now and then, in starts too.
    `version0`: its clients write too.
    """
    rng, history, state = random.Random(seed), History(), DiskState()
    for epoch in range(1, count + 1):
        if troubled and rng.random() < 0.4:
            _begin_in_trouble(state, rng)
            if rng.random() < 0.4:
                state = DiskState.of(state.crash(rng.getrandbits(64)))
        with contextlib.suppress(DeadError):
            disk = ModelDisk(state, dies_after=rng.randrange(60))
            run = ServerRun(disk, history, epoch)
            if troubled:
                disk.trouble = _trouble(rng)
            while True:
                if version0 and rng.random() < 0.5:
                    run.stream(rng.choice(NAMES), rng.randbytes(rng.choice((1, 500, 9_000))))
                elif rng.random() < 0.3:
                    run.delete(rng.choice(NAMES))
                else:
                    run.append(rng.choice(NAMES), rng.randbytes(rng.choice((1, 500, 9_000))))
        if rng.random() < 0.4:
            state = DiskState.of(state.crash(rng.getrandbits(64)))
    ServerRun(ModelDisk(state), history, count + 1)
