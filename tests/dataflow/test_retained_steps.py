"""Retained steps: how many bytes they have, where they are, and the records of rows that were used."""

import gc
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from checkpoint import ChannelFrame, FrameType
from checkpoint.key_hash import hash_keys
from dataflow.core.peer_links import Held, RetainedSteps, RowsRecord, Sent, unused, without_rows
from dataflow.errors import StepsMissingError
from dataflow.operators.base import HASH_COLUMN
from dataflow.worker.circuit_thread import UsedRows, rows_record
from dataflow.worker.exchange import spilled
from tests.support.small_disk import small_disk

_payloads = st.lists(st.binary(max_size=40), max_size=3)
_frames_of_peers = st.dictionaries(st.integers(1, 3), _payloads, min_size=1, max_size=3)
_actions = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 2), _frames_of_peers),
    st.tuples(st.just("purge"), st.integers(0, 9), st.none()),
    st.tuples(st.just("begin to spill"), st.integers(1, 60), st.none()),
    st.tuples(st.just("spilled"), st.integers(0, 9), st.none()),
)


def entry(step: int, payloads: dict[int, list[bytes]], channel: int = 0) -> Sent:
    """An entry with a frame for each payload, and the end of the step."""
    frames = {}
    for peer, items in payloads.items():
        kinds = [*((FrameType.DATA, item) for item in items), (FrameType.STEP_END, b"")]
        frames[peer] = tuple(
            ChannelFrame(
                kind, 0, 2**64 - 1, 65536, step, 3, seq, channel, 1 if payload == b"" else 0, payload
            )
            for seq, (kind, payload) in enumerate(kinds)
        )
    return Sent(step, frames)


def bytes_of(entries: list[Sent]) -> int:
    return sum(len(frame.payload) for one in entries for frames in one.frames.values() for frame in frames)


@given(st.lists(_actions, max_size=40))
@example(  # an entry is purged while it is written to the disk
    [*[("add", 1, {1: [b"x"]})] * 2, ("begin to spill", 1, None), ("purge", 1, None), ("spilled", 0, None)]
)
def test_bytes_and_places_are_those_of_the_entries(actions: list[tuple]) -> None:
    """Entries are moved to the disk while others are added and purged."""
    retained = RetainedSteps(after=0)
    added: list[Sent] = []  # by place
    begin = memory = step = 0
    under_way: tuple[int, list[Sent]] | None = None
    for kind, number, payloads in actions:
        if kind == "add":
            step += number
            added.append(entry(step, payloads))
            retained.add(added[-1])
        elif kind == "purge":
            while begin < len(added) and added[begin].step <= max(number, retained.purged):
                begin += 1
            retained.purge(number)
        elif kind == "begin to spill" and under_way is None:
            until = max(begin, len(added) - number % 3)
            found = retained.to_spill(until, number)
            place = max(begin, memory)
            assert found == added[place : place + len(found)], "the oldest ones in memory"
            assert place + len(found) <= max(until, place)
            if found:
                assert bytes_of(found) >= number > bytes_of(found[:-1])
                under_way = (place, found)
            else:
                assert bytes_of(added[place:until]) < number
        elif kind == "spilled" and under_way is not None:
            place, found = under_way
            retained.spilled(place, [Sent(one.step, dict(one.frames)) for one in found])
            memory, under_way = place + len(found), None
        assert (retained.begin, retained.end) == (begin, len(added))
        assert retained.bytes == bytes_of(added[begin:])
        assert retained.bytes_in_memory == bytes_of(added[max(begin, memory) :])
        assert retained.memory_begin == max(begin, memory)
        for place in (0, begin, begin + 1, len(added)):
            assert list(retained.after(place)) == added[max(place, begin) :]
    retained.purge(step)
    assert (retained.bytes, retained.bytes_in_memory, list(retained.after(0))) == (0, 0, [])


def test_an_entry_behind_one_of_a_later_step_is_forgotten_with_that() -> None:
    """Stage 0 of step 3 may run before stage 1 of step 2."""
    retained = RetainedSteps(after=0)
    for step in (2, 3, 2):
        retained.add(entry(step, {1: [b"x"]}))
    retained.purge(2)
    assert ([one.step for one in retained.after(0)], retained.purged) == ([3, 2], 2)
    retained.purge(1)
    assert retained.purged == 2, "a purge is never taken back"
    retained.purge(3)
    assert (list(retained.after(0)), retained.bytes) == ([], 0)


def test_a_peer_that_needs_purged_steps_on_any_channel_is_found() -> None:
    retained = RetainedSteps(after=4)
    retained.check_complete(Held({0: 4, 1: 9}, {}))
    retained.check_complete(Held({}, {}))
    with pytest.raises(
        StepsMissingError, match="needs the steps after 3, and those up to 4 are not retained"
    ):
        retained.check_complete(Held({0: 9, 1: 3}, {}))


def test_what_a_peer_has_used_is_left_out_by_channel() -> None:
    one = entry(5, {1: [b"a"]})
    other = entry(5, {1: [b"b"]}, channel=1)
    both = Sent(5, {1: one.frames[1] + other.frames[1]})
    assert unused(both, 1, Held({0: 5, 1: 4}, {})) == other.frames[1]
    assert unused(both, 1, Held({}, {})) == both.frames[1]
    assert unused(both, 1, Held({0: 5, 1: 6}, {})) == ()
    assert unused(both, 2, Held({}, {})) == ()


def test_frames_without_rows_are_numbered_anew_on_each_channel() -> None:
    frames = entry(5, {1: [b"a", b"b"]}).frames[1]
    time = frames[0]._replace(type=FrameType.WATERMARK, seq=2)
    end = frames[-1]._replace(seq=3)
    other = entry(5, {1: [b"c"]}, channel=1).frames[1]
    left = without_rows((*frames[:2], time, end, *other))
    assert left == (time._replace(seq=0), end._replace(seq=1), other[-1]._replace(seq=0))


# --- on the disk --------------------------------------------------------------------------------------------


def mapped() -> str:
    """The mappings and open files of this process that are of retained steps."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    files = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return "\n".join(line for line in [*maps, *files] if "dos-retained-" in line)


@given(st.lists(st.tuples(st.integers(0, 2**40), _frames_of_peers), min_size=1, max_size=6))
def test_entries_come_back_equal_from_the_disk(entries: list[tuple[int, dict[int, list[bytes]]]]) -> None:
    before = [entry(step, payloads) for step, payloads in entries]
    after = spilled(before, "")
    assert after == before
    assert [list(one.frames) for one in after] == [list(one.frames) for one in before]
    assert bytes_of(after) == bytes_of(before)


def test_entries_on_the_disk_have_no_file_name_and_free_their_space_when_they_are_purged(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "made" / "when it is needed"
    payload = random.Random(1).randbytes(300_000)
    stored = spilled([entry(1, {1: [payload], 2: [payload[:9]]})], str(folder))
    assert list(folder.iterdir()) == []
    assert "(deleted)" in mapped(), "the rows are in a file without a name"
    assert bytes(stored[0].frames[1][0].payload) == payload
    retained = RetainedSteps(after=0)
    retained.add(stored[0])
    del stored
    retained.purge(1)
    assert mapped() == "", "neither a mapping nor an open file"


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """A file is in its way: permissions would not stop a test that runs as root."""
    (tmp_path / "file").write_text("x")
    before = entry(1, {1: [b"abc"]})
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OSError, match="file"):
            spilled([before], str(folder))
    assert before == entry(1, {1: [b"abc"]})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.process
def test_a_full_disk_is_an_error_and_nothing_remains_on_it(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        folder = disk.path / "scratch"
        with pytest.raises(OSError, match=r"[Nn]o space left"):
            spilled([entry(1, {1: [bytes(2 << 20)]})], str(folder))
        assert list(folder.iterdir()) == []
        assert mapped() == ""
        assert spilled([entry(1, {1: [b"abc"]})], str(folder)) == [entry(1, {1: [b"abc"]})]


# --- the records of rows ------------------------------------------------------------------------------------


def keyed(words: list[str]) -> pa.RecordBatch:
    """Rows as they are sent on the channel of a key_by: with the hash of their key."""
    column = pa.array(words, pa.string())
    return pa.record_batch({"word": column, HASH_COLUMN: pa.array(hash_keys([column]), pa.uint64())})


def broadcast(words: list[str]) -> pa.RecordBatch:
    """Rows as they are sent on the channel of a broadcast table."""
    return pa.record_batch(
        {"word": pa.array(words, pa.string()), "n": pa.array([1] * len(words), pa.int64())}
    )


def divided(words: list[str], at: list[int]) -> list[list[str]]:
    checkpoints = sorted(one % (len(words) + 1) for one in at)
    return [
        words[begin:end] for begin, end in zip([0, *checkpoints], [*checkpoints, len(words)], strict=True)
    ]


_words = st.lists(st.sampled_from(["a", "b", "cc", "", "\n"]), max_size=12)


@pytest.mark.parametrize("batch", [keyed, broadcast])
@given(words=_words, at=st.lists(st.integers(0, 99), max_size=4), rng=st.randoms(use_true_random=False))
def test_a_record_does_not_depend_on_batches_or_on_the_order_of_rows(
    batch: Callable[[list[str]], pa.RecordBatch], words: list[str], at: list[int], rng: random.Random
) -> None:
    record = rows_record([batch(words)])
    assert record.rows == len(words)
    assert 0 <= record.hashes < 1 << 64
    shuffled = rng.sample(words, len(words))
    assert rows_record([batch(part) for part in divided(shuffled, at)]) == record


@pytest.mark.parametrize("batch", [keyed, broadcast])
@given(words=_words, others=_words)
def test_a_record_differs_for_other_rows(
    batch: Callable[[list[str]], pa.RecordBatch], words: list[str], others: list[str]
) -> None:
    equal = sorted(words) == sorted(others)
    assert (rows_record([batch(words)]) == rows_record([batch(others)])) is equal


def test_no_rows_are_a_record_too() -> None:
    assert rows_record([]) == rows_record([keyed([])]) == rows_record([broadcast([])]) == RowsRecord(0, 0)


def test_rows_of_a_broadcast_table_differ_in_any_column() -> None:
    one = broadcast(["a"])
    other = one.set_column(1, "n", pa.array([2], pa.int64()))
    assert rows_record([one]) != rows_record([other])


def test_used_rows_are_recorded_by_sender_channel_and_step_until_a_checkpoint_covers_them() -> None:
    used = UsedRows(workers=3)
    used.note(1, {0: [(0, keyed(["a"])), (2, keyed(["b"])), (0, keyed(["c"]))], 1: []})
    used.note(2, {0: [(2, keyed(["b"]))]})
    assert used.of(0) == {
        (0, 1): rows_record([keyed(["a", "c"])]),
        (1, 1): RowsRecord(0, 0),
        (0, 2): RowsRecord(0, 0),
    }
    assert used.of(2)[0, 1] == used.of(2)[0, 2] == rows_record([keyed(["b"])])
    assert used.of(1)[0, 1] == RowsRecord(0, 0)
    used.purge(1)
    assert {peer: list(used.of(peer)) for peer in range(3)} == {peer: [(0, 2)] for peer in range(3)}
    assert used.of(7) == {}
