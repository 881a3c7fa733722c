"""The scratch is a cache: it may fail, lie, or vanish, and no journal minds."""

import logging
from pathlib import Path

import pytest

from dos_protocol.digests import prefix_digest
from journal.core.chain import SegmentSpan
from journal.scratch import Scratch

NAME = "J.0000000000000001.0000000000000000"
DATA = bytes(range(256)) * 1000
SPAN = SegmentSpan(NAME, 0, 200_000, prefix_digest(DATA[:200_000]))


def filled(path: Path) -> Scratch:
    scratch = Scratch(path)
    mirror = scratch.mirror(NAME)
    for start in range(0, len(DATA), 7000):
        mirror.write(DATA[start : start + 7000])
    mirror.close()
    return scratch


def test_what_was_mirrored_covers_every_span_of_it(tmp_path: Path) -> None:
    scratch = filled(tmp_path / "a" / "b")
    assert scratch.covers(SPAN)
    assert b"".join(scratch.read(SPAN)) == DATA[: SPAN.length]


@pytest.mark.parametrize(
    "content", [b"", DATA[:199_999], DATA[:100] + b"\0" + DATA[101:], bytes(300_000), None]
)
def test_a_cache_that_is_short_wrong_or_gone_covers_nothing(tmp_path: Path, content: bytes | None) -> None:
    scratch = filled(tmp_path)
    if content is None:
        (tmp_path / NAME).unlink()
    else:
        (tmp_path / NAME).write_bytes(content)
    assert not scratch.covers(SPAN)


def test_only_this_chains_segments_are_tidied_away(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    kept = NAME, "K.0000000000000001.0000000000000000", "notes.txt"
    for name in (*kept, "J.0000000000000001.0000000000000100"):
        (tmp_path / name).write_bytes(b"x")
    scratch.keep_only("J", {NAME})
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)


def test_a_full_or_broken_disk_is_logged_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    with caplog.at_level(logging.WARNING, "dos.journal"):
        scratch = Scratch(tmp_path / "file" / "below")
        mirror = scratch.mirror(NAME)
        mirror.write(DATA)
        mirror.close()
        scratch.keep_only("J", set())
    assert not scratch.covers(SPAN)
    assert "continuing without it" in caplog.text
    (tmp_path / NAME).symlink_to("/dev/full")
    mirror = Scratch(tmp_path).mirror(NAME)
    mirror.write(DATA)
    mirror.write(DATA)
    assert "No space left" in caplog.text


def test_a_mirror_that_is_discarded_leaves_no_file(tmp_path: Path) -> None:
    mirror = Scratch(tmp_path).mirror(NAME)
    mirror.write(DATA)
    mirror.discard()
    assert list(tmp_path.iterdir()) == []
