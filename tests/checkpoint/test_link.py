"""Links: the job's key is proved both ways, frames arrive whole, ends and breaks are distinguished, a stand-
by becomes a worker only if both ends know of it. Real sockets.
"""

import logging
from contextlib import asynccontextmanager
from functools import partial

import msgspec
import pytest
import trio

from checkpoint import limits
from checkpoint import link as links
from checkpoint.core.links.frames import (
    ChannelFrame,
    FrameType,
    control_frame,
    decode_from_coordinator,
    decode_from_worker,
    encode,
    job_digest,
)
from checkpoint.core.links.handshake import (
    Acceptor,
    Challenge,
    Dialler,
    LinkAssigned,
    LinkHello,
    Proof,
    assignment,
    read_assignment,
)
from checkpoint.core.links.messages import VERSIONS, Heartbeat, Join, Stop, Vote, check_address
from checkpoint.errors import ChannelFrameError, ControlMessageError, HandshakeError, LinkClosedError
from checkpoint.link import StandbyLinks, accept_link, connect_link, serve_links, wait_for_assignment
from dos_protocol.errors import BrokenConnectionError, ClosedError

KEY, OTHER = b"k" * 32, b"o" * 32
HELLO = LinkHello(role="exchange", job="app", worker=3, attempt=2, incarnation=9, speaks=VERSIONS)

pytestmark = pytest.mark.trio


@asynccontextmanager
async def served(handler, *, key=KEY, job="app", ports=(0,)):
    async with trio.open_nursery() as nursery:
        yield await nursery.start(partial(serve_links, handler, job=job, key=key, ports=ports))
        nursery.cancel_scope.cancel()


async def echo(link):
    try:
        while True:
            await link.send(await link.receive())
    except LinkClosedError:
        pass


async def test_frames_of_any_size_return() -> None:
    seen = []

    async def handler(link):
        seen.append(link.hello)
        await echo(link)

    async with served(handler) as address:
        link = await connect_link(*address, key=KEY, hello=HELLO)
        for size in (0, 1, 100_000, 5_000_000):
            frame = ChannelFrame(FrameType.DATA, sender=3, step=size, payload=bytes(size))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(link.send, frame)
                assert await link.receive() == frame
        assert link.local_address[0] == "127.0.0.1"
        await link.aclose()
    assert [(hello.worker, hello.attempt, hello.incarnation, hello.role) for hello in seen] == [
        (3, 2, 9, "exchange")
    ]


async def test_a_wrong_key_is_refused_by_both_ends_and_shown_nowhere(caplog) -> None:
    caplog.set_level(logging.DEBUG)
    handled = []

    async def handler(link):
        handled.append(link)

    async with served(handler) as address:
        with pytest.raises(HandshakeError, match="the listener did not prove") as error:
            await connect_link(*address, key=OTHER, hello=HELLO)
    text = caplog.text + str(error.value) + repr(error.value.__cause__)
    for key in (KEY, OTHER):
        assert key.decode() not in text
        assert key.hex() not in text
    assert not handled


async def test_a_dialler_without_the_key_is_refused_though_it_does_not_care_for_proofs() -> None:
    handled = []

    async def handler(link):
        handled.append(link)

    async with served(handler) as (host, port):
        stream = await trio.open_tcp_stream(host, port)
        hello = msgspec.json.encode(msgspec.structs.replace(HELLO, nonce=bytes(32)))
        await stream.send_all(encode(ChannelFrame(FrameType.HANDSHAKE, job=job_digest("app"), payload=hello)))
        assert await stream.receive_some(4096)
        proof = msgspec.json.encode(Proof(proof=bytes(32)))
        await stream.send_all(encode(ChannelFrame(FrameType.HANDSHAKE, job=job_digest("app"), payload=proof)))
        answer = b""
        while data := await stream.receive_some(4096):
            answer += data
        assert b"did not prove that it has the key of this job" in answer
        await stream.aclose()
    assert not handled


async def test_another_job_is_refused_by_name() -> None:
    async with served(echo, job="other") as address:
        with pytest.raises(HandshakeError, match="received a link of job 'app', this is job 'other'"):
            await connect_link(*address, key=KEY, hello=HELLO)


async def test_nothing_large_is_kept_for_one_that_has_proved_nothing() -> None:
    # EVIDENCE-OF: P-9
    head = encode(ChannelFrame(FrameType.DATA, payload=bytes(60_000_000)))[:64]
    async with served(echo) as (host, port):
        stream = await trio.open_tcp_stream(host, port)
        await stream.send_all(head)
        with trio.fail_after(2):  # at once, not when the time of the handshake is over
            while await stream.receive_some(4096):
                pass
        await stream.aclose()


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + bytes(100), b"\xd0\x43" + bytes(200)]
)
async def test_strangers_are_dropped_and_the_listener_lives(data) -> None:
    async with served(echo) as (host, port):
        stream = await trio.open_tcp_stream(host, port)
        await stream.send_all(data)
        with trio.fail_after(limits.handshake_timeout_s + 2):
            while await stream.receive_some(4096):
                pass
        await stream.aclose()
        link = await connect_link(host, port, key=KEY, hello=HELLO)
        await link.aclose()


async def test_one_that_says_nothing_is_dropped_in_time() -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    address = listeners[0].socket.getsockname()
    quiet = await trio.open_tcp_stream(*address)
    accepted = await listeners[0].accept()
    with pytest.raises(HandshakeError, match="did not prove itself"):
        await accept_link(accepted, job="app", key=KEY, timeout_s=0.05)
    with pytest.raises(BrokenConnectionError, match="did not answer"):
        await connect_link(*address, key=KEY, hello=HELLO, timeout_s=0.05)
    await quiet.aclose()
    await listeners[0].aclose()


async def test_nobody_there_is_said_with_the_address() -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    address = listeners[0].socket.getsockname()
    await listeners[0].aclose()
    with pytest.raises(BrokenConnectionError, match=f":{address[1]} cannot be reached"):
        await connect_link(*address, key=KEY, hello=HELLO)


async def test_an_orderly_end_a_break_and_a_close_are_distinguished() -> None:
    async def half_a_frame(link):
        await link._stream.send_all(encode(ChannelFrame(FrameType.DATA, payload=b"abc"))[:65])

    async def nothing(link):
        del link

    async def nonsense(link):
        await link._stream.send_all(b"\xd0\x43\x07" + bytes(70))

    for handler, kind in (
        (half_a_frame, BrokenConnectionError),
        (nothing, LinkClosedError),
        (nonsense, ChannelFrameError),
    ):
        async with served(handler) as address:
            link = await connect_link(*address, key=KEY, hello=HELLO)
            with pytest.raises(kind):
                await link.receive()
            await link.aclose()
            with pytest.raises(kind if kind is ChannelFrameError else ClosedError):
                await link.receive()


async def test_a_send_that_was_cancelled_midway_breaks_the_link_for_good() -> None:
    async def deaf(link):
        await trio.sleep_forever()

    async with served(deaf) as address:
        link = await connect_link(*address, key=KEY, hello=HELLO)
        with trio.move_on_after(0.2):
            await link.send(ChannelFrame(FrameType.DATA, payload=bytes(50_000_000)))
        with pytest.raises(BrokenConnectionError, match="broke within a frame"):
            await link.send(ChannelFrame(FrameType.EOF))
        await link.aclose()


async def test_the_first_free_port_of_a_range_is_taken() -> None:
    async with served(echo) as (_, taken), served(echo, ports=(taken, 0)) as (_, port):
        assert port not in (taken, 0)
        with pytest.RaisesGroup(
            pytest.RaisesExc(BrokenConnectionError, match=f"{taken}: Address already in use")
        ):
            async with served(echo, ports=(taken,)):
                pass


# --- the pure handshake --------------------------------------------------------------------------


def shake(dialler_key=KEY, acceptor_key=KEY):
    dialler = Dialler(HELLO, key=dialler_key, nonce=b"c" * 32)
    return dialler, Acceptor(job="app", key=acceptor_key, nonce=b"s" * 32)


async def test_a_proof_can_be_neither_mirrored_nor_replayed() -> None:
    dialler, acceptor = shake()
    challenge = acceptor.received(dialler.hello())
    mirrored = msgspec.json.decode(challenge.payload, type=Challenge).proof
    with pytest.raises(HandshakeError, match="did not prove"):
        acceptor.proved(ChannelFrame(FrameType.HANDSHAKE, payload=msgspec.json.encode(Proof(proof=mirrored))))
    proof = dialler.challenged(challenge)
    later = Acceptor(job="app", key=KEY, nonce=b"t" * 32)
    later.received(dialler.hello())
    with pytest.raises(HandshakeError, match="did not prove"):
        later.proved(proof)
    hello, accepted = acceptor.proved(proof)
    dialler.accepted(accepted)
    assert hello.worker == 3


@pytest.mark.parametrize(
    "frame", [ChannelFrame(FrameType.DATA), ChannelFrame(FrameType.HANDSHAKE, payload=b"{"), None]
)
async def test_anything_else_during_the_handshake_is_refused(frame) -> None:
    dialler, acceptor = shake()
    with pytest.raises(HandshakeError):
        acceptor.received(frame or acceptor.refusal(HandshakeError("no")))
    with pytest.raises(HandshakeError):
        dialler.challenged(frame or dialler.hello())
    with pytest.raises(HandshakeError):
        dialler.accepted(frame or dialler.hello())
    with pytest.raises(HandshakeError, match="expected Proof"):
        acceptor.proved(dialler.hello())


async def test_a_short_key_is_a_bug() -> None:
    with pytest.raises(ValueError, match="at least 16 bytes, got 3"):
        Dialler(HELLO, key=b"abc", nonce=b"c" * 32)


# --- control messages ----------------------------------------------------------------------------


async def test_control_messages_return_and_are_checked_against_their_frame() -> None:
    join = Join(
        job="app", worker=3, attempt=1, pid=9, host="h", exchange_host="h", exchange_port=1, speaks=VERSIONS
    )
    frame = control_frame(join)
    assert decode_from_worker(frame) == join
    assert decode_from_coordinator(control_frame(Heartbeat(job="app"))) == Heartbeat(job="app")
    for wrong, text in (
        (frame._replace(sender=4), "frame of worker 4 carries a message of worker 3"),
        (frame._replace(job=1), "differ in job"),
        (frame._replace(sender_epoch=1), "differ in job, incarnation"),
        (frame._replace(checkpoint=1), "differ in job, incarnation or checkpoint"),
        (frame._replace(payload=b"{}"), "does not decode"),
        (frame._replace(payload=b"[" * 50_000), "does not decode"),
        (
            frame._replace(payload=b'{"type":"Paused","job":"app","worker":3,"pause":1,"step":4}'),
            "`counters`",
        ),
        (frame._replace(type=FrameType.DATA), "a DATA frame on a control link"),
        (control_frame(Stop(job="app", kind="stopped", reason="")), "does not decode"),
    ):
        with pytest.raises(ControlMessageError, match=text):
            decode_from_worker(wrong)
    with pytest.raises(ControlMessageError, match="frame of sender 3 carries a Heartbeat"):
        decode_from_coordinator(control_frame(Heartbeat(job="app"))._replace(sender=3))
    with pytest.raises(ControlMessageError, match="does not decode"):
        decode_from_coordinator(frame)


async def test_a_message_is_addressed_to_a_region_and_a_life() -> None:
    message = Heartbeat(job="app", incarnation=4)
    assert check_address(message, job="app", incarnation=4) is None
    assert check_address(message, job="b", incarnation=4).name == "WRONG_JOB"
    assert check_address(message, job="app", incarnation=5).name == "STALE_INCARNATION"
    assert check_address(message, job="app", incarnation=3).name == "FUTURE_INCARNATION"
    assert Vote.__struct_fields__[:4] == ("job", "incarnation", "epoch", "checkpoint")


# --- stand-bys --------------------------------------------------------------------------------------------


PATIENCE_S = 20.0


class Region:
    """A listener with the links of stand-bys."""

    def __init__(self, address, links, scope) -> None:
        self.address, self.links, self._scope = address, links, scope

    def end(self) -> None:
        self._scope.cancel()

    async def waits(self, *numbers: int) -> None:
        with trio.fail_after(PATIENCE_S):
            while sorted(self.links.numbers()) != list(numbers):  # noqa: ASYNC110 - the condition sets no event
                await trio.sleep(0.001)

    async def assign(self, number: int, worker: int, attempt: int) -> bool:
        return await trio.to_thread.run_sync(self.links.assign, number, worker, attempt)

    async def dial(self, number: int):
        hello = LinkHello(role="standby", job="app", worker=-1, attempt=number)
        return await connect_link(*self.address, key=KEY, hello=hello)


@asynccontextmanager
async def region():
    links, scope = StandbyLinks("app"), trio.CancelScope()

    async def serve(task_status) -> None:
        with scope:
            await serve_links(links.serve, job="app", key=KEY, task_status=task_status)

    async with trio.open_nursery() as nursery:
        yield Region(await nursery.start(serve), links, scope)
        scope.cancel()


@asynccontextmanager
async def waiting(subject: Region, number: int, orphan_timeout_s: float = PATIENCE_S):
    """A stand-by in a task of its own; yields a list that gets what it returns."""
    returned: list[LinkAssigned | None] = []

    async def run() -> None:
        returned.append(
            await wait_for_assignment(
                subject.address, job="app", key=KEY, number=number, orphan_timeout_s=orphan_timeout_s
            )
        )

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            yield returned


async def answer(link, frame):
    """Send a frame and return what follows."""
    await link.send(frame)
    return await link.receive()


async def test_a_stand_by_becomes_the_worker_that_it_is_assigned_and_no_other() -> None:
    async with region() as subject:
        async with waiting(subject, 1) as first, waiting(subject, 2) as second:
            await subject.waits(1, 2)
            assert await subject.assign(2, 5, 7)
            await subject.waits(1)
            assert not await subject.assign(2, 5, 8), "it is a worker now"
            assert await subject.assign(1, 0, 3)
        assert (first, second) == ([LinkAssigned(worker=0, attempt=3)], [LinkAssigned(worker=5, attempt=7)])


async def test_at_the_end_of_the_region_the_stand_by_ends_without_an_error() -> None:
    async with region() as subject:
        async with waiting(subject, 1) as returned:
            await subject.waits(1)
            subject.end()
        assert returned == [None]
    assert not await subject.assign(1, 0, 1)


async def test_nothing_is_assigned_before_a_stand_by_waits_or_after_the_run_has_ended() -> None:
    links = StandbyLinks("app")
    assert not links.assign(1, 0, 1)

    async def whole_run() -> StandbyLinks:
        async with region() as subject, waiting(subject, 1):
            await subject.waits(1)
            subject.end()
        return subject.links

    over = await trio.to_thread.run_sync(trio.run, whole_run)
    assert not await trio.to_thread.run_sync(over.assign, 1, 0, 1)


async def test_an_answer_that_comes_too_late_is_not_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "standby_answer_s", 0.05)
    async with region() as subject:
        link = await subject.dial(1)
        await subject.waits(1)
        assert not await subject.assign(1, 0, 1)
        offered = read_assignment(await link.receive())
        assert offered == LinkAssigned(worker=0, attempt=1)
        with pytest.raises((LinkClosedError, BrokenConnectionError)):
            await answer(link, assignment("app", offered))
        assert subject.links.numbers() == []
        await link.aclose()


async def test_a_stand_by_that_ends_or_answers_something_else_is_not_used() -> None:
    async with region() as subject:
        for frame in (
            None,
            assignment("app", LinkAssigned(worker=3, attempt=3)),
            control_frame(Heartbeat(job="app")),
        ):
            link = await subject.dial(1)
            await subject.waits(1)
            async with trio.open_nursery() as nursery:
                used: list[bool] = []

                async def assign(used=used) -> None:
                    used.append(await subject.assign(1, 0, 1))

                nursery.start_soon(assign)
                await link.receive()
                if frame is not None:
                    await link.send(frame)
                await link.aclose()
            assert used == [False], frame
            assert subject.links.numbers() == []


async def test_a_stand_by_whose_host_is_silent_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with region() as subject:
        async with waiting(subject, 1) as returned:
            await subject.waits(1)
            monkeypatch.setattr(limits, "standby_silent_s", -1.0)
            assert not await subject.assign(1, 0, 1)
        assert returned == [None], "its link was closed"


async def test_a_stand_by_whose_coordinator_is_silent_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "heartbeat_s", 0.01)
    async with region() as subject:
        async with waiting(subject, 1, orphan_timeout_s=-1.0) as returned:
            pass
        assert returned == [None]


async def test_a_stand_by_of_a_version_that_was_replaced_declines(monkeypatch: pytest.MonkeyPatch) -> None:
    async with region() as subject:
        async with waiting(subject, 1) as returned:
            await subject.waits(1)
            monkeypatch.setattr(links.metadata, "version", lambda name: f"{name} of tomorrow")
            assert not await subject.assign(1, 0, 1)
        assert returned == [None]


async def test_a_region_that_cannot_be_reached_and_a_wrong_key_are_errors() -> None:
    async with region() as subject:
        with pytest.raises(HandshakeError):
            await wait_for_assignment(
                subject.address, job="app", key=b"o" * 32, number=1, orphan_timeout_s=PATIENCE_S
            )
        assert subject.links.numbers() == []
    with pytest.raises(BrokenConnectionError):
        await wait_for_assignment(subject.address, job="app", key=KEY, number=1, orphan_timeout_s=PATIENCE_S)
