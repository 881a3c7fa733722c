"""The demo's parts: above all its verdict, which must know right from wrong, or green shows nothing."""

import tempfile
from codecs import BOM_UTF8
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from checkpoint.core.links.messages import Counters
from checkpoint.core.region import RegionState, RegionStatus, WorkerStatus
from examples.demo.corpus import library_files, make_corpus
from examples.demo.engine import Speedometer
from examples.demo.faults import draw_faults
from examples.demo.verdict import judge

TRUTH = Counter({b"one": 1, b"two": 2, b"back\\slash": 3})


def written(directory: Path, *files: str) -> list[Path]:
    paths = []
    for number, content in enumerate(files):
        path = directory / f"part-w{number:04d}.tsv"
        path.write_text(content)
        paths.append(path)
    return paths


RIGHT = ("two\t1\ntwo\t3\ntwo\t4\n", "one\t2\nback\\\\slash\t6\n")


def test_counts_that_rise_to_the_truth_are_right(tmp_path: Path) -> None:
    verdict = judge(written(tmp_path, *RIGHT), TRUTH, passes=2)
    assert verdict.right
    assert (verdict.lines, verdict.distinct) == (5, 3)


@pytest.mark.parametrize(
    ("files", "wrong", "falling"),
    [
        ((RIGHT[0], "one\t2\n"), 1, 0),  # a word is missing
        ((RIGHT[0], RIGHT[1] + "three\t1\n"), 1, 0),  # a word too much
        ((RIGHT[0], "one\t3\nback\\\\slash\t6\n"), 1, 0),  # counted twice
        ((RIGHT[0], "one\t1\nback\\\\slash\t6\n"), 1, 0),  # not counted to the end
        (("two\t1\ntwo\t1\ntwo\t4\n", RIGHT[1]), 0, 1),  # a line written twice
        (("two\t3\ntwo\t1\ntwo\t4\n", RIGHT[1]), 0, 1),  # gone back
        ((RIGHT[0] + "two\t4\n", RIGHT[1]), 0, 1),  # the last line again
        ((RIGHT[0], RIGHT[1].rstrip("\n")), 0, 0),  # only the last newline is not there: the counts are right
    ],
)
def test_every_kind_of_wrong_output_is_seen(
    tmp_path: Path, files: tuple[str, ...], wrong: int, falling: int
) -> None:
    verdict = judge(written(tmp_path, *files), TRUTH, passes=2)
    assert (verdict.wrong_counts, verdict.not_increasing) == (wrong, falling)
    assert verdict.right == (wrong == falling == 0)
    assert bool(verdict.examples) == (not verdict.right)


@pytest.mark.parametrize(
    "broken", ["one\t2\nback\\\\slash\n", "one\t\n", "one\ttwo\n", "one\t2\t3\n", "\n\x00"]
)
def test_lines_of_another_form_are_wrong(tmp_path: Path, broken: str) -> None:
    verdict = judge(written(tmp_path, RIGHT[0], broken), TRUTH, passes=2)
    assert verdict.unreadable == 1
    assert not verdict.right


def test_no_output_at_all_is_wrong(tmp_path: Path) -> None:
    assert not judge([], TRUTH, passes=1).right
    assert not judge(written(tmp_path, ""), TRUTH, passes=1).right


@given(st.lists(st.binary(max_size=20), max_size=30))
def test_what_a_plain_loop_counts_is_judged_right(words: list[bytes]) -> None:
    counts = Counter(word for text in words for word in text.split())
    so_far: Counter[bytes] = Counter()
    lines = []
    for word in counts.elements():
        so_far[word] += 1
        lines.append(b"%b\t%d\n" % (word.replace(b"\\", b"\\\\"), so_far[word]))
    # The reader of the output drops a byte order mark at the very beginning of a file.
    assume(not b"".join(lines).startswith(BOM_UTF8))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "part-w0000.tsv"
        path.write_bytes(b"".join(lines))
        assert judge([path], counts, passes=1).right


def test_the_corpus_holds_every_word_of_the_library_once(tmp_path: Path) -> None:
    library = tmp_path / "lib"
    (library / "site-packages").mkdir(parents=True)
    (library / "site-packages" / "theirs.py").write_text("not ours")
    (library / "a.py").write_text("one two")  # no newline at its end
    (library / "b.py").write_bytes(b"two \xff three\n")
    (library / "notes.txt").write_text("no source")
    for parts in (1, 2, 3):
        corpus = make_corpus(tmp_path / str(parts), parts, library)
        assert corpus.counts == {b"one": 1, b"two": 2, "\ufffd".encode(): 1, b"three": 1}
        assert corpus.words == 5
        text = b"".join(path.read_bytes() for path in corpus.paths)
        assert Counter(text.split()) == corpus.counts
        assert len(text) == corpus.size_bytes
        assert len(corpus.paths) == parts


def test_the_standard_library_is_found_in_the_same_order_each_time() -> None:
    files = list(library_files())
    assert files == list(library_files())
    assert any(path.name == "argparse.py" for path in files)
    assert not any("site-packages" in path.parts for path in files)


@given(st.integers(), st.integers(1, 8))
def test_a_seed_always_gives_the_same_three_faults(seed: int, workers: int) -> None:
    faults = draw_faults(seed, workers=workers, servers=3)
    assert faults == draw_faults(seed, workers=workers, servers=3)
    assert sorted(fault.kind for fault in faults) == ["server", "worker", "worker"]
    assert [fault.moment for fault in faults] == sorted(fault.moment for fault in faults)
    assert all(0 <= fault.victim < (workers if fault.kind == "worker" else 3) for fault in faults)


def test_seeds_differ_in_order_and_moment() -> None:
    drawn = [draw_faults(seed, workers=2, servers=3) for seed in range(20)]
    assert len({tuple(fault.kind for fault in faults) for faults in drawn}) == 3
    assert len({faults[0].moment for faults in drawn}) == 20


def region(incarnation: int, last_checkpoint: int, *bytes_in: int) -> RegionStatus:
    workers = tuple(
        WorkerStatus(index, "RUNNING", counters=Counters(bytes_in=size))
        for index, size in enumerate(bytes_in)
    )
    return RegionStatus(
        RegionState.RUNNING, "", incarnation, last_checkpoint, 1, last_checkpoint, 0, workers, ()
    )


def test_what_is_read_again_after_a_loss_counts_for_the_speed_and_not_for_the_position() -> None:
    speed = Speedometer()
    speed.sample(region(1, 0, 100, 100), now=0.0)
    speed.sample(region(1, 1, 200, 200), now=1.0)  # a checkpoint, at 400
    speed.sample(region(1, 1, 300, 250), now=2.0)
    assert speed.position_bytes == 550
    speed.sample(region(2, 1, 300, 250), now=2.5)  # worker 1 is lost: back to the checkpoint
    assert speed.position_bytes == 400
    speed.sample(region(2, 1, 350, 40), now=2.9)  # worker 1 counts from 0 again
    assert speed.position_bytes == 490
    assert speed.bytes_per_s == pytest.approx((640 - 200) / 2.9)
