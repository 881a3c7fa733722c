"""What a worker sends to its peers and accepts from them. Pure: no links, no threads.

1. An exchange link belongs to the terms of both ends. With global recovery, each is the incarnation; a peer
   dials once.
2. A frame whose sender, region or term differs from that of its link ends the link.
3. EOF: the sender's sources are exhausted. DURABLE(n): its input division of step n is synced on the quorum.
4. Local recovery: a link of an older term is refused; one of a newer term waits for the coordinator's `view`.
5. Local recovery: the acceptor begins with HAVE, what it has used of the dialler. It has dropped everything
   else, so the dialler sends from there on: retained steps, then new ones.
6. Local recovery: what both ends have of a step must agree, or the region resets.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

import msgspec

from checkpoint import ChannelFrame, FrameType, LinkHello, job_digest
from checkpoint.errors import ChannelFrameError
from dataflow.errors import StepDiffersError, StepsMissingError
from dataflow.limits import steps_ahead
from dos_protocol.errors import MALFORMED_JSON

# --- what is sent -------------------------------------------------------------------------------------------

Frames = tuple[ChannelFrame, ...]


class RowsRecord(NamedTuple):
    """The rows of one step from one worker to another on a channel: number, and sum of hashes modulo 2^64."""

    rows: int
    hashes: int


Records = Mapping[tuple[int, int], RowsRecord]
"""(channel, step) -> what was used of it."""


class Held(NamedTuple):
    """What a worker has used of a peer: the last step of each channel, and the records that it kept."""

    used: Mapping[int, int]
    records: Records


class Sent(NamedTuple):
    """The frames that a stage of a step sends to each peer."""

    step: int
    frames: Mapping[int, Frames]


class RetainedSteps:
    """The retained steps of one worker in one term. `after`: the step of the checkpoint it began at."""

    def __init__(self, after: int) -> None:
        self.purged = after
        """Nothing up to this step is retained."""
        self.bytes = 0
        """Of the payloads of all retained frames."""
        self.bytes_in_memory = 0
        """Of those that are not on the disk."""
        self.memory_begin = 0
        """The place of the first entry that is in memory."""
        self.begin = 0
        """The place of the first entry that is retained."""
        self._kept: deque[Sent] = deque()

    @property
    def end(self) -> int:
        """The place after the last entry."""
        return self.begin + len(self._kept)

    def add(self, sent: Sent) -> None:
        """Retain what a stage sends, after everything added before."""
        self._kept.append(sent)
        size = _size(sent)
        self.bytes += size
        self.bytes_in_memory += size

    def purge(self, step: int) -> None:
        """Forget the steps up to this one, which a committed checkpoint covers, and what precedes them."""
        self.purged = max(self.purged, step)
        while self._kept and self._kept[0].step <= self.purged:
            self._drop_first()

    def drop(self, place: int) -> None:
        """Forget the entries before a place."""
        while self._kept and self.begin < place:
            self._drop_first()

    def _drop_first(self) -> None:
        size = _size(self._kept.popleft())
        self.bytes -= size
        self.begin += 1
        if self.begin > self.memory_begin:
            self.memory_begin = self.begin
            self.bytes_in_memory -= size

    def after(self, place: int) -> Iterator[Sent]:
        for index in range(max(place - self.begin, 0), len(self._kept)):
            yield self._kept[index]

    def to_spill(self, until: int, size: int) -> list[Sent]:
        """Return the oldest entries in memory, below a place and of about this size; nothing if they are
        smaller.
        """
        found: list[Sent] = []
        left = size
        for index in range(self.memory_begin - self.begin, until - self.begin):
            if left <= 0:
                break
            found.append(self._kept[index])
            left -= _size(self._kept[index])
        return found if left <= 0 else []

    def spilled(self, place: int, entries: Sequence[Sent]) -> None:
        """Replace entries in memory, from a place on, by the same ones on the disk."""
        for index, entry in enumerate(entries, place):
            if index >= self.begin:
                self._kept[index - self.begin] = entry
                self.bytes_in_memory -= _size(entry)
        self.memory_begin = max(self.begin, place + len(entries))

    def check_complete(self, held: Held) -> None:
        """Raise StepsMissingError if a peer that has used only this needs steps that are purged."""
        first = min(held.used.values(), default=self.purged)
        if first < self.purged:
            raise StepsMissingError(
                f"it needs the steps after {first}, and those up to {self.purged} are not retained any more"
            )


def unused(sent: Sent, peer: int, held: Held) -> Frames:
    """Return the frames of an entry for a peer, without the channels on which it has used that step."""
    frames = sent.frames.get(peer, ())
    return tuple(frame for frame in frames if sent.step > held.used.get(frame.channel, 0))


def without_rows(frames: Frames) -> Frames:
    """Return the frames without rows, numbered anew. At-most-once sends rows only once."""
    numbers: dict[int, int] = {}
    found = []
    for frame in frames:
        if frame.type is not FrameType.DATA:
            seq = numbers.get(frame.channel, 0)
            numbers[frame.channel] = seq + 1
            found.append(frame._replace(seq=seq))
    return tuple(found)


def _size(sent: Sent) -> int:
    return sum(len(frame.payload) for frames in sent.frames.values() for frame in frames)


# --- links --------------------------------------------------------------------------------------------------


class Admission(Enum):
    """What to do with a link that a peer has dialled."""

    NOW = auto()
    LATER = auto()
    """Wait: it is of a term that this worker has not been shown yet."""
    NEVER = auto()


@dataclass(slots=True)
class _Outgoing:
    """One peer, as a receiver."""

    place: int = 0
    """The next retained entry to send."""
    bare_until: int = 0
    """Entries before this place are sent without rows: at-most-once."""
    held: Held | None = None
    """None: no link is open."""
    at: int = 0
    """The last step that it is known to have produced."""
    ahead_until: int = 0
    """Up to this step, this worker may be ahead of it: it has used steps of a former process of the peer."""
    was_open: bool = False
    greeted: bool = False
    durable: int = 0
    ended: bool = False


class PeerLinks:
    """The links of one worker in one term. `terms`: of all workers, by index."""

    def __init__(
        self,
        region: str,
        worker: int,
        terms: Sequence[int],
        *,
        after_step: int,
        at_most_once: bool = False,
        resumes: bool = True,
    ) -> None:
        """resumes: with local recovery. Otherwise each peer dials once, and what all got is forgotten."""
        self._resumes = resumes
        self._accepted: set[int] = set()
        self.terms = list(terms)
        self.retained = RetainedSteps(after_step)
        self.produced = after_step
        """The last step that this worker has produced."""
        self.peers_at = 0
        """The highest step that any peer has ended."""
        self.durable = 0
        """The divisions of this worker are durable up to this step."""
        self.exhausted = False
        self._worker = worker
        self._job = job_digest(region)
        self._at_most_once = at_most_once
        self._outgoing = {peer: _Outgoing() for peer in self.peers}
        self._behind = dict.fromkeys(self.peers, 0)
        """Peer -> the step up to which it may be ahead of this worker."""
        self._sent_at = dict.fromkeys(self.peers, 0)
        """Peer -> the last step of this worker that was sent to it (AT)."""
        self._made: dict[int, dict[tuple[int, int], RowsRecord]] = {peer: {} for peer in self.peers}

    @property
    def peers(self) -> list[int]:
        """All other workers."""
        return [peer for peer in range(len(self.terms)) if peer != self._worker]

    @property
    def term(self) -> int:
        return self.terms[self._worker]

    def view(self, peer: int, term: int) -> None:
        """Take the coordinator's word for the present term of a peer. Links of the older term are over."""
        self.terms[peer] = max(self.terms[peer], term)
        self.disconnected(peer)

    # --- in -----------------------------------------------------------------------------------------------

    def admits(self, hello: LinkHello) -> Admission:
        """Whether to accept a link. With global recovery, the second link of a peer is refused."""
        peer, fits = hello.worker, (hello.to_worker, hello.to_term) == (self._worker, self.term)
        if peer not in self._outgoing or not fits or hello.incarnation < self.terms[peer]:
            return Admission.NEVER
        if self._resumes:
            return Admission.NOW if hello.incarnation == self.terms[peer] else Admission.LATER
        if hello.incarnation != self.term or peer in self._accepted:
            return Admission.NEVER
        self._accepted.add(peer)
        return Admission.NOW

    def take(self, peer: int, frame: ChannelFrame) -> ChannelFrame | None:
        """Return the frame if it is for the circuit, otherwise None. Raises ChannelFrameError."""
        stated = (frame.sender, frame.job, frame.sender_epoch)
        if stated != (peer, self._job, self.terms[peer]):
            raise ChannelFrameError(f"worker {peer} sent a frame with (sender, job, term) {stated}")
        if frame.type is FrameType.STEP_END:
            self.peers_at = max(self.peers_at, frame.step)
        elif frame.type is FrameType.RESET:
            self._behind[peer] = frame.step
        for_circuit = frame.type in (FrameType.DATA, FrameType.WATERMARK, FrameType.STEP_END)
        return frame if for_circuit else None

    def at(self, peer: int) -> ChannelFrame | None:
        """Return the AT frame that is due to a peer, None if the peer cannot be ahead, or none is due."""
        sent = self._sent_at[peer]
        if sent >= min(self._behind[peer], self.produced):
            return None
        self._sent_at[peer] = self.produced
        return self._frame(FrameType.AT, self.produced)

    def have(self, peer: int, held: Held) -> ChannelFrame:
        records = [(*key, *record) for key, record in sorted(held.records.items())]
        self._behind[peer], self._sent_at[peer] = 0, self.produced
        payload = msgspec.json.encode(_Have(self.produced, dict(held.used), records))
        return self._frame(FrameType.HAVE, payload=payload)

    def answered(self, peer: int, frame: ChannelFrame) -> None:
        """Take a frame that came back on the link to a peer: HAVE first, then AT and PING.

        Raises ChannelFrameError; StepsMissingError and StepDiffersError if the region must be reset.
        """
        stated = (frame.sender, frame.job, frame.sender_epoch)
        out = self._outgoing[peer]
        first = frame.type is FrameType.HAVE
        if stated != (peer, self._job, self.terms[peer]) or first != (out.held is None):
            raise ChannelFrameError(f"worker {peer} answered {frame.type.name} with {stated}")
        if first:
            have = self._have_of(peer, frame)
            self._connected(peer, have)
            # It has ended these steps. Their STEP_ENDs come later: as fast as this worker makes its own.
            self.peers_at = max(self.peers_at, have.at)
        elif frame.type is FrameType.AT:
            out.at = max(out.at, frame.step)

    def opened(self, peer: int) -> None:
        """Begin to send to a peer with global recovery: it has nothing, and cannot be behind."""
        self._outgoing[peer] = _Outgoing(held=Held({}, {}), ahead_until=self.retained.purged)

    def _have_of(self, peer: int, frame: ChannelFrame) -> "_Have":
        try:
            return msgspec.json.decode(frame.payload, type=_Have)
        except MALFORMED_JSON as error:
            raise ChannelFrameError(f"HAVE of worker {peer} does not decode: {error}") from error

    def _connected(self, peer: int, have: "_Have") -> None:
        records = {(channel, step): RowsRecord(*values) for channel, step, *values in have.records}
        held = Held(have.used, records)
        self.retained.check_complete(held)
        for channel, step in records:
            self._compare(peer, channel, step, records)
        bare = self._at_most_once and self._outgoing[peer].was_open
        last = max((sent.step for sent in self.retained.after(0)), default=self.produced)
        self._outgoing[peer] = _Outgoing(
            bare_until=self.retained.end if bare else 0,
            held=held,
            at=have.at,
            ahead_until=last + steps_ahead,
            was_open=True,
        )

    # --- out ----------------------------------------------------------------------------------------------

    def add(self, sent: Sent, records: Records, *, produces: bool) -> None:
        """Retain what a stage sends. `records`: (peer, channel) -> its rows. Raises StepDiffersError."""
        if self._outgoing:  # the only worker of a region sends nothing
            self.retained.add(sent)
        if produces:
            self.produced = sent.step
        for (peer, channel), record in records.items():
            self._made[peer][channel, sent.step] = record
            held = self._outgoing[peer].held
            if held is not None:
                self._compare(peer, channel, sent.step, held.records)

    def purge(self, step: int) -> None:
        """Forget the steps up to this one: a committed checkpoint covers them."""
        self.retained.purge(step)
        for peer, made in self._made.items():
            self._made[peer] = {key: record for key, record in made.items() if key[1] > step}

    def disconnected(self, peer: int) -> None:
        self._outgoing[peer].held = None

    def next_frames(self, peer: int) -> Frames:
        """Return what is to be sent next, nothing if everything is sent or no link is open."""
        out = self._outgoing[peer]
        if out.held is None:
            return ()
        if not out.greeted:
            out.greeted = True
            return (self._frame(FrameType.RESET, out.ahead_until),)
        if out.durable < self.durable:
            out.durable = self.durable
            return (self._frame(FrameType.DURABLE, self.durable),)
        self._drop_sent()
        out.place = max(out.place, self.retained.begin)
        for sent in self.retained.after(out.place):
            if out.at + steps_ahead < sent.step <= out.ahead_until:
                return ()  # its alignment takes only few steps ahead
            bare = out.place < out.bare_until
            out.place += 1
            if frames := unused(sent, peer, out.held):
                return without_rows(frames) if bare else frames
        self._drop_sent()
        if self.exhausted and not out.ended:
            out.ended = True
            return (self._frame(FrameType.EOF, self.produced),)
        return ()

    def _drop_sent(self) -> None:
        # Without local recovery nobody asks again. A peer without a link has place 0, so it gets everything.
        if not self._resumes:
            self.retained.drop(min(out.place for out in self._outgoing.values()))

    @property
    def sent_until(self) -> int:
        """The place before which every peer with a link has got everything."""
        places = [out.place for out in self._outgoing.values() if out.held is not None]
        return max(min(places, default=self.retained.end), self.retained.begin)

    def ping(self) -> ChannelFrame:
        return self._frame(FrameType.PING)

    def _compare(self, peer: int, channel: int, step: int, used: Records) -> None:
        made, before = self._made[peer].get((channel, step)), used.get((channel, step))
        if made is not None and before is not None and made != before and not self._at_most_once:
            raise StepDiffersError(
                f"step {step} was made again with {made.rows} rows for worker {peer} on channel {channel},"
                f" which has used {before.rows}" + (" other ones" if made.rows == before.rows else ""),
                remedy="an operator returns other rows when it runs again; declare it deterministic=False",
            )

    def _frame(self, kind: FrameType, step: int = 0, *, payload: bytes = b"") -> ChannelFrame:
        return ChannelFrame(kind, self._worker, self._job, self.term, step, payload=payload)


class _Have(msgspec.Struct, frozen=True):
    """The payload of a HAVE frame."""

    at: int
    """The last step that the acceptor has produced."""
    used: dict[int, int]
    """Channel -> the last step that was used."""
    records: list[tuple[int, int, int, int]]
    """(channel, step, rows, sum of hashes) of the used steps that are not covered by a checkpoint yet."""
