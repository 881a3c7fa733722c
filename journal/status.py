"""`dos journal status`: how much of a chain a recovery would read, and how long it would take on this
machine.

It reads the first bytes of the chain to measure the rate.
"""

from contextlib import aclosing
from typing import Any

import msgspec
import trio

from journal.core.chain import ChainState, segments_seen
from journal.core.segment import parse_segment_name
from journal.inspecting import Progress, open_chain
from journal.limits import status_read_bytes_max
from journal.ports import StorePort
from journal.reading import read_plain_batches


class ChainStatus(msgspec.Struct, frozen=True):
    """The status of the committed part of a chain.

    end_epoch, end: the epoch and the logical offset of the end of the last committed record.
    recovery_segments, recovery_bytes: what a replay reads, from the newest finished snapshot on.
    recovery_s, bytes_per_s: the estimated time of that replay on this machine, from the measured rate.
    snapshot_end: the logical offset at which the snapshot ends, None if there is none.
    below_*: the older segments, which a recovery does not read.
    leftover_*: segments of dead writers that are not part of the chain.
    """

    directory: str
    chain: str
    end_epoch: int
    end: int
    recovery_segments: int
    recovery_bytes: int
    recovery_s: float
    bytes_per_s: float
    snapshot_end: int | None
    below_segments: int
    below_bytes: int
    leftover_segments: int
    leftover_bytes: int

    def as_text(self) -> str:
        """Format the status as text, one line per item."""
        snapshot = "none" if self.snapshot_end is None else f"ends at {self.snapshot_end:,}"
        speed = f"{self.recovery_s:.1f} s on this machine ({self.bytes_per_s / 1e6:.0f} MB/s)"
        reads = f"reads {self.recovery_bytes:,} bytes in {self.recovery_segments} segments"
        rows = [
            ("chain", f"{self.chain} in {self.directory}"),
            ("end", f"{self.end:,}, written by epoch {self.end_epoch}"),
            ("recovery", f"{reads}, {speed}"),
            ("snapshot", snapshot),
            ("below", f"{self.below_bytes:,} bytes in {self.below_segments} older segments, not read"),
            (
                "leftovers",
                f"{self.leftover_bytes:,} bytes in {self.leftover_segments} segments of dead writers",
            ),
        ]
        return "\n".join(f"{name:<10} {text}" for name, text in rows)


async def chain_status(url: str, token: bytes, progress: Progress) -> ChainStatus:
    """Return the status of the chain of a URL.

    Raises NotFoundError, LocalProtocolError for the URL of an object, and the errors of `inspect_chain` and
    of reading a chain.
    """
    async with open_chain(url, token) as (store, directory, state):
        return await _status(store, directory, state, progress)


async def _status(store: StorePort, directory: str, state: ChainState, progress: Progress) -> ChainStatus:
    assert state.end is not None
    bytes_per_s = await _rate(store, directory, state, progress)
    on_chain = {span.name for span in state.segments}
    floor = parse_segment_name(state.segments[0].name) if state.segments else None
    below: list[int] = []
    leftover: list[int] = []
    for seen in segments_seen(state.chain, (await store.inspect(directory)).answers):
        if str(seen.name) not in on_chain:
            is_below = floor is not None and seen.name.order < floor.order
            (below if is_below else leftover).append(seen.longest)
    return ChainStatus(
        directory=directory,
        chain=state.chain,
        end_epoch=state.end.epoch,
        end=state.end.size,
        recovery_segments=len(state.segments),
        recovery_bytes=state.bytes,
        recovery_s=state.bytes / bytes_per_s if bytes_per_s else 0.0,
        bytes_per_s=bytes_per_s,
        snapshot_end=state.snapshot_size if state.segments and state.segments[0].snapshot_end else None,
        below_segments=len(below),
        below_bytes=sum(below),
        leftover_segments=len(leftover),
        leftover_bytes=sum(leftover),
    )


async def _rate(store: StorePort, directory: str, state: ChainState, progress: Progress) -> float:
    """Measure the rate at which records are read and decoded, in bytes per second; 0 for an empty chain."""
    if not state.segments:
        return 0.0
    base, read, begun = state.segments[0].base, 0, trio.current_time()
    wanted = min(state.bytes, status_read_bytes_max)
    async with aclosing(read_plain_batches(store, state, directory=directory)) as batches:
        async for batch in batches:
            read = batch[-1][0] - base
            progress(min(read, wanted), wanted)
            if read >= wanted:
                break
    return read / max(trio.current_time() - begun, 1e-6)


def as_json(status: ChainStatus) -> str:
    """Format the status as one JSON object, with the fields of ChainStatus."""
    fields: dict[str, Any] = msgspec.to_builtins(status)
    return msgspec.json.encode(fields).decode()
