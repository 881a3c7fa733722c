"""The workers of a story of markers, and the next event in them.

After each step everything that can happen happens, worker after worker, except what is held back. The text of
a step contains: who ends it and what it sends, who has received it from all, and the result.
"""

from collections import defaultdict, deque
from collections.abc import Callable

from checkpoint.core.links.frames import ChannelFrame, FrameType
from checkpoint.errors import ChannelFrameError
from dataflow.core.peer_links import PeerLinks
from dataflow.limits import WorkerLimits
from dataflow.worker.messages import (
    CheckpointTaken,
    OutputMade,
    PausedAt,
    StageEnded,
    ToLinks,
)
from tests.dataflow.region_in_one_thread import OneThreadRegion, WorkerState
from tests.stories.markers.words import Words, counting, counts_in, words_in
from tests.stories.store.copies import in_words
from tests.stories.words import WrongStepError

Way = tuple[int, int]
"""From whom to whom."""


class Workers(OneThreadRegion):
    """The region of the tests, which tells what happens."""

    def __init__(self, workers: int, tell: Callable[[str], None]) -> None:
        self.words = Words()
        self.tell = tell
        self.heard: list[PeerLinks] = []
        super().__init__(counting(self.words), workers, lambda _: 0, WorkerLimits())

    def restore(self) -> None:
        number = self.incarnation + 1
        self.heard = [
            PeerLinks("region", worker, (number,) * self.workers, after_step=0, resumes=False)
            for worker in range(self.workers)
        ]
        super().restore()

    def _post_of(self, index: int) -> Callable[[ToLinks], None]:
        post = super()._post_of(index)

        def told(message: ToLinks) -> None:
            if isinstance(message, OutputMade):
                counts = counts_in([message.data])
                self.tell(f"worker {index} has step {message.step} of everybody, and counts {counts}")
            elif isinstance(message, PausedAt):
                self.tell(f"worker {index} takes no input after step {message.step}")
            post(message)

        return told

    def _stage_ended(self, index: int, message: StageEnded) -> None:
        if message.sources is None:
            does = f"makes step {message.step} again as it is recorded"
        else:
            part = message.sources["words"]["words"]
            read = self.words.given[index][part.begin : part.end]
            does = f"ends step {message.step} with {in_words(read) if read else 'no word'}"
        for peer, frames in message.frames.items():
            checkpoint = f", with checkpoint {frames[-1].checkpoint}" if frames[-1].checkpoint else ""
            gets = words_in(frames)
            gets = f"{gets} and the marker" if gets else "the marker alone"
            self.tell(f"worker {index} {does}; worker {peer} is sent {gets}{checkpoint}")
        super()._stage_ended(index, message)

    def _checkpoint_taken(self, index: int, message: CheckpointTaken) -> None:
        changed = counts_in(block.data for block in message.blocks)
        at = f"checkpoint {message.barrier.checkpoint}, the end of step {message.step}"
        self.tell(f"worker {index} votes for {at}: changed is {changed}")
        super()._checkpoint_taken(index, message)

    def _commit(self, number: int, votes: dict[int, CheckpointTaken]) -> None:
        self.tell(f"checkpoint {number}, the end of step {votes[0].step}, is committed")
        super()._commit(number, votes)

    def take(self, side: WorkerState, index: int, peer: int, frame: ChannelFrame) -> None:
        """What a link hands over."""
        shown = self.heard[index].take(peer, frame)
        side.shared.peers_at = max(side.shared.peers_at, self.heard[index].peers_at)
        if shown is not None:
            assert side.run is not None
            side.run.arrived(shown)

    def move(self, held: set[Way]) -> bool:
        """One thing that can happen; False if there is none."""
        for side in self.sides:
            if side.recorded:
                return self._sync(side)
        for index, side in enumerate(self.sides):
            for peer, queue in side.inbound.items():
                if queue and (peer, index) not in held:
                    self.take(side, index, peer, queue.popleft())
                    return True
        return any(side.run is not None and side.run.advance() for side in self.sides)


class Play:
    """The state of one story of markers."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.held: set[Way] = set()
        self.late: dict[Way, deque[ChannelFrame]] = defaultdict(deque)
        """Of earlier lives, still under way."""
        self.workers: Workers

    def make(self, count: int) -> None:
        if not 1 <= count <= 9:
            raise WrongStepError("there are 1 to 9 workers here")
        self.workers = Workers(count, lambda text: self.told.append(text))
        self.workers.restore()

    def end(self) -> None:
        """Nothing runs any more."""
        self.workers.close()

    def side(self, number: int) -> WorkerState:
        if number >= self.workers.workers:
            raise WrongStepError(f"there is no worker {number}: there are {self.workers.workers}")
        return self.workers.sides[number]

    def settle(self) -> None:
        """Everything that can happen."""
        while self.workers.move(self.held):
            pass

    def give(self, number: int, words: list[str]) -> None:
        self.side(number)
        self.workers.words.given[number] += words

    def ask(self, numbers: list[int], checkpoint: int) -> None:
        for number in numbers:
            run = self.side(number).run
            assert run is not None
            run.request_checkpoint(checkpoint, final=False)

    def pause(self, order: int) -> None:
        for side in self.workers.sides:
            assert side.run is not None
            side.run.pause(order)

    def hold(self, way: Way) -> None:
        self.side(max(way))
        self.held.add(way)

    def release(self, way: Way) -> None:
        """What is under way arrives; what is of an earlier life is not taken."""
        self.held.discard(way)
        peer, index = way
        for frame in self.late.pop(way, ()):
            try:
                self.workers.take(self.side(index), index, peer, frame)
            except ChannelFrameError:
                kind = "the marker" if frame.type is FrameType.STEP_END else "a batch"
                what = f"{kind} of step {frame.step}, of incarnation {frame.sender_epoch}"
                running = self.workers.incarnation
                self.told.append(f"worker {index} does not take {what}: {running} is running")

    def reset(self) -> None:
        for index, side in enumerate(self.workers.sides):
            for peer, queue in side.inbound.items():
                if (peer, index) in self.held:
                    self.late[peer, index] += queue
        self.workers.restore()
        at = self.workers.checkpoint
        where = "the beginning" if at is None else f"checkpoint {at.number}, the end of step {at.step}"
        self.told.append(f"incarnation {self.workers.incarnation}: all stand at {where}, and go on")
