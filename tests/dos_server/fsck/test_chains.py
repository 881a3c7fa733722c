"""The chain of one object, verified in parts: memory stays bounded, and a goal is held against it."""

import tracemalloc
from collections.abc import Iterator

import pytest

from dos_protocol.digests import PrefixDigest
from dos_server.core.files.extent import AcceptedBytes, build_extents, link_after, object_seed
from dos_server.core.files.records import ObjectMark
from dos_server.core.files.recovery import judge
from dos_server.core.files.scan import DamagedExtentError, VerifiedChain, VerifyGoal, beginning, verify_part
from dos_server.limits import extent_payload_bytes_max, fsck_part_bytes, fsck_part_extents_max


class Endless:
    """A file of any size that is in no memory: extents of 256 KiB, made when they are read."""

    def __init__(self, extents: int) -> None:
        self.seed = object_seed("dir", "big")
        payload, fold, link = b"z" * extent_payload_bytes_max, PrefixDigest(), 1
        self.payload = payload
        self.heads: list[bytes] = []
        for _ in range(extents):
            piece = AcceptedBytes(fold.size, fold.blocks_digest, payload)
            ((_, (head, _)),) = build_extents([piece], seed=self.seed, epoch=1, durable=fold.size, link=link)
            link = link_after(head)
            self.heads.append(bytes(head))
            fold.update(payload)
        self.digest = fold.value
        self.size, self.file_bytes = fold.size, extents * (64 + len(payload))
        self.longest_read = 0

    def read(self, position: int, count: int) -> bytes:
        self.longest_read = max(self.longest_read, count)
        parts, end = [], min(position + count, self.file_bytes)
        while position < end:
            number, within = divmod(position, 64 + len(self.payload))
            extent = self.heads[number] + self.payload
            parts.append(extent[within : within + end - position])
            position += len(parts[-1])
        return b"".join(parts)


def parts_of(file: Endless) -> Iterator[VerifiedChain]:
    chain, goal = beginning(1), VerifyGoal(file.size, file.digest)
    while chain.offset < goal.size:
        chain = verify_part(file.read, file.seed, chain, goal, fsck_part_bytes, fsck_part_extents_max)
        yield chain


def test_memory_does_not_grow_with_the_object() -> None:
    # EVIDENCE-OF: P-9
    file = Endless(1_000)
    tracemalloc.start()
    try:
        found = judge(file.read, file.file_bytes, file.seed, ObjectMark("big", file.size))
        *_, last = parts_of(file)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (found.size, last.offset, last.position) == (file.size, file.size, file.file_bytes)
    assert file.longest_read <= fsck_part_bytes
    assert peak < 4 * fsck_part_bytes


def test_a_goal_with_another_digest_is_damage_of_what_no_header_vouches_for() -> None:
    file = Endless(3)
    goal = VerifyGoal(file.size, file.digest ^ 1)
    with pytest.raises(DamagedExtentError) as caught:
        verify_part(file.read, file.seed, beginning(1), goal, fsck_part_bytes, 100)
    assert caught.value.offset == 2 * extent_payload_bytes_max


@pytest.mark.parametrize("lacks", [1, 64])
def test_an_extent_beyond_the_goal_is_damage(lacks: int) -> None:
    """A goal is the end of an extent: an extent that crosses it was not acknowledged like that."""
    file = Endless(3)
    goal = VerifyGoal(file.size - lacks, file.digest)
    with pytest.raises(DamagedExtentError, match="an extent of the bytes from"):
        verify_part(file.read, file.seed, beginning(1), goal, fsck_part_bytes, fsck_part_extents_max)
