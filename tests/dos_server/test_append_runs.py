"""Appends handed over in runs end as they would one by one."""

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from dos_protocol import messages as m
from dos_protocol.digests import PrefixDigest
from dos_protocol.frames import Frame
from dos_server.core import vocabulary as v
from dos_server.core.requests.appends import take_run
from dos_server.limits import extent_payload_bytes_max
from tests.support.core_harness import Harness


class AppendSpec(NamedTuple):
    """An append as a writer asks for it. `wrong_by`, `other_digest`: it is not what the object holds."""

    name: str
    count: int
    wrong_by: int
    other_digest: bool


append_specs = st.builds(
    AppendSpec,
    name=st.sampled_from(["o", "o", "o", "p", "not a name"]),
    count=st.sampled_from([0, 1, 100, 100, 100, 65_536, extent_payload_bytes_max + 1]),
    wrong_by=st.sampled_from([0, 0, 0, 0, 0, 0, 1]),
    other_digest=st.sampled_from([False] * 6 + [True]),
)


def frames_of(many: list[AppendSpec], folds: dict[str, PrefixDigest]) -> list[Frame]:
    """What a writer sends that believes all before was taken, but for those it got wrong."""
    frames = []
    for number, (name, count, wrong_by, other_digest) in enumerate(many, 100):
        fold = folds.setdefault(name, PrefixDigest())
        data = bytes([number % 256]) * count
        append = m.Append(name, fold.size + wrong_by, fold.value ^ other_digest, data)
        if not wrong_by and not other_digest and name != "not a name":
            fold.update(data)
        frames.append(m.encode(append, number))
    return frames


def lived(
    batches: list[list[AppendSpec]], *, runs: bool, claim: bool, reserve_bytes: int
) -> tuple[object, ...]:
    """What a server tells and holds after the batches."""
    server = Harness(reserve_bytes=reserve_bytes)
    server.event(v.SpaceSeen(4_000_000, 8_000_000, server.core.room_bytes))
    session = server.connect()
    server.ask(session, m.ChangeDirectory("dir", claim=claim, epoch=1, writer_id=b"w" * 16))
    folds: dict[str, PrefixDigest] = {}
    for batch in batches:
        frames = frames_of(batch, folds)
        if runs:
            server.event(v.ReceivedAppends(session, frames))
        else:
            for frame in frames:
                server.event(v.Received(session, frame))
        server.event(v.BatchEnded())
        server.settle()
    objects = server.core._tables.directories["dir"].objects
    at_end = server.core._tables.sessions[session]
    return (
        server.heard[session],
        {
            name: (state.info(), state.file_bytes, list(state.index._offsets))
            for name, state in objects.items()
        },
        (at_end.unsynced_bytes, at_end.unsynced_appends, at_end.wrote, session in server.closed),
        server.core.room_bytes,
    )


@given(
    batches=st.lists(st.lists(append_specs, max_size=12), max_size=4),
    claim=st.booleans(),
    reserve_bytes=st.sampled_from([0, 3_900_000, 3_989_000]),
)
def test_a_run_ends_as_its_appends_one_by_one(
    batches: list[list[AppendSpec]], claim: bool, reserve_bytes: int
) -> None:
    assert lived(batches, runs=True, claim=claim, reserve_bytes=reserve_bytes) == lived(
        batches, runs=False, claim=claim, reserve_bytes=reserve_bytes
    )


def test_a_run_is_taken_at_once_up_to_what_does_not_fit_it() -> None:
    server = Harness()
    session = server.connect()
    server.ask(session, m.ChangeDirectory("dir"))
    folds: dict[str, PrefixDigest] = {}
    right = AppendSpec("o", 100, 0, False)
    server.event(v.ReceivedAppends(session, frames_of([right], folds)))
    server.event(v.BatchEnded())
    server.settle()
    frames = frames_of([right] * 5 + [AppendSpec("p", 100, 0, False), right], folds)
    one = server.core._tables.sessions[session]
    assert take_run(server.core._tables, one, frames, 0) == 5
    assert one.unsynced_appends == 5
    assert take_run(server.core._tables, one, frames, 5) == 5


def test_a_run_never_takes_for_one_object_what_is_for_another_with_the_same_content() -> None:
    server = Harness()
    session = server.connect()
    server.ask(session, m.ChangeDirectory("dir"))
    server.ask(session, m.Append("short", 0, 0, b"a"))
    server.ask(session, m.Append("long", 0, 0, b"aa"))
    once, twice = PrefixDigest(), PrefixDigest()
    once.update(b"a")
    twice.update(b"aa")
    run = [m.Append("short", 1, once.value, b"a"), m.Append("long", 2, twice.value, b"a")]
    server.event(v.ReceivedAppends(session, [m.encode(one, 100) for one in run]))
    server.event(v.BatchEnded())
    server.settle()
    assert [server.ask(session, m.Stat(name)).info.synced for name in ("short", "long")] == [2, 3]


def test_a_superseded_writer_gets_nothing_in_by_a_run() -> None:
    server = Harness()
    old = server.connect()
    server.ask(old, m.ChangeDirectory("dir", claim=True, epoch=1, writer_id=b"w" * 16))
    folds: dict[str, PrefixDigest] = {}
    right = AppendSpec("o", 100, 0, False)
    server.event(v.ReceivedAppends(old, frames_of([right], folds)))
    server.event(v.BatchEnded())
    server.settle()
    new = server.connect()
    server.ask(new, m.ChangeDirectory("dir", claim=True, epoch=2, writer_id=b"x" * 16))
    server.event(v.ReceivedAppends(old, frames_of([right] * 3, folds)))
    server.event(v.BatchEnded())
    server.settle()
    assert server.ask(new, m.Stat("o")).info.synced == 100


def test_a_run_of_a_session_that_is_gone_changes_nothing() -> None:
    server = Harness()
    server.event(v.ReceivedAppends(99, frames_of([AppendSpec("o", 100, 0, False)], {})))
    server.event(v.BatchEnded())
    server.settle()
    assert not server.heard.get(99)
