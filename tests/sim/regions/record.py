"""Record the votes, orders, appends and commits of a region during a run, and detect contradictions at once.

The tasks report them as they happen, and the record compares them with the sizes that the machines reported
as synced. It queries no core. When a sync is reported late, the synced object may already be removed, because
a newer incarnation has replaced it.
"""

from typing import TYPE_CHECKING

import msgspec

from checkpoint.chains.directory_store import directory_chain
from checkpoint.core.links.messages import Committed, RequestCheckpoint, Restore, Start, ToWorker, Vote
from checkpoint.core.records.manifest import Checkpoint, WorkerCheckpoint, decode_checkpoint
from checkpoint.core.records.outputs import output_chain
from checkpoint.core.region import coordinator_directory, worker_directory
from journal import Op
from journal.core.chain import Position, parse_segment_name
from journal.core.record import decode_all
from tests.sim.history import ViolationError

if TYPE_CHECKING:
    from tests.sim.regions.region import Region
    from tests.sim.store.machine import Machine

_ORDERS = (Restore, Start, RequestCheckpoint, Committed)


class Record:
    """The votes and commits of one region. `committed`: checkpoints whose append was acknowledged, in
    order."""

    def __init__(self, region: "Region") -> None:
        self._region = region
        self.votes: dict[tuple[int, int], dict[int, WorkerCheckpoint]] = {}
        """(incarnation, checkpoint) -> worker -> the positions of its vote."""
        self.opened: dict[int, Checkpoint | None] = {}
        """Incarnation -> the last checkpoint of its manifest when its start was acknowledged."""
        self.committed: list[Checkpoint] = []
        self.reported: dict[int, Checkpoint] = {}
        """Number -> the checkpoint that was reported to workers as committed, or ordered to be restored."""
        self.terms: dict[tuple[int, int], int] = {}
        """(incarnation, worker) -> the epoch of its last order to restore."""
        self._restores: set[tuple[int, int, int]] = set()

    def voted(self, worker: int, incarnation: int, vote: Vote) -> None:
        """A worker sends a vote: all that it names must be durable."""
        directory = worker_directory(self._region.spec.name, worker)
        chains = {"state": vote.positions.state, "steps": vote.positions.steps}
        files = {directory_chain(name): at for name, at in vote.positions.directories.items()}
        for chain, position in {**chains, **files}.items():
            self._check_durable(
                directory, chain, position, f"worker {worker} votes for checkpoint {vote.checkpoint}"
            )
        for sink, prepared in vote.positions.sinks.items():
            if "epoch" in prepared:  # an output log
                at = msgspec.convert(prepared, Position)
                self._check_durable(
                    directory,
                    output_chain(sink),
                    at,
                    f"worker {worker} votes for checkpoint {vote.checkpoint}",
                )
                continue
            durable = self._region.output.durable_bytes(worker, sink)
            if durable < prepared["size"]:
                raise ViolationError(
                    "O7",
                    f"worker {worker} votes for checkpoint {vote.checkpoint}; of output {sink} {durable}"
                    f" bytes of "
                    f"{prepared['size']} are durable",
                )
        self.votes.setdefault((incarnation, vote.checkpoint), {})[worker] = vote.positions

    def started(self, incarnation: int, last: Checkpoint | None) -> None:
        """The start of a manifest segment counts as acknowledged."""
        name, directory = f"manifest.{incarnation:016x}.", coordinator_directory(self._region.spec.name)
        holders = sum(
            machine.wiped
            or any(
                place == directory and segment.startswith(name) for place, segment in machine.reported.ever()
            )
            for machine in self._region.machines
        )
        if holders < self._region.quorum:
            raise ViolationError(
                "O7", f"incarnation {incarnation} begins, {holders} members have its start (R8)"
            )
        if incarnation in self.opened:
            raise ViolationError("O4", f"two coordinators began incarnation {incarnation}")
        self.opened[incarnation] = last

    def sent(self, message: ToWorker) -> None:
        """A driver sends an order."""
        if not isinstance(message, _ORDERS):
            return
        if message.incarnation not in self.opened:
            raise ViolationError(
                "O7", f"{type(message).__name__} before incarnation {message.incarnation} began"
            )
        if isinstance(message, Restore):
            self.terms[message.incarnation, message.worker] = message.epoch
            key = (message.incarnation, message.epoch, message.worker)
            if key in self._restores:
                raise ViolationError(
                    "O7", f"worker {message.worker} is ordered twice in one incarnation (R11)"
                )
            self._restores.add(key)
            if message.restore is not None:
                self._report(message.restore)
        elif isinstance(message, Committed):
            known = self.reported.get(message.checkpoint)
            if known is None or known.incarnation != message.incarnation:
                raise ViolationError(
                    "O7", f"checkpoint {message.checkpoint} is reported as committed, and is not"
                )

    def appended(self, checkpoint: Checkpoint, workers: int) -> None:
        """A checkpoint is appended to the manifest: it needs every worker's vote of this incarnation, or the
        positions of the older checkpoint that it restores.
        """
        if checkpoint.rewound:
            if checkpoint.workers != self.reported[checkpoint.rolled_back_to].workers:
                raise ViolationError(
                    "O7", f"{checkpoint.number} does not restore checkpoint {checkpoint.rolled_back_to}"
                )
            return
        terms = {worker: self.terms[checkpoint.incarnation, worker] for worker in checkpoint.workers}
        old = [worker for worker, part in checkpoint.workers.items() if part.epochs() != {terms[worker]}]
        if old:
            raise ViolationError(
                "O7", f"checkpoint {checkpoint.number} has parts of former processes of workers {old}"
            )
        votes = self.votes.get((checkpoint.incarnation, checkpoint.number), {})
        if votes != checkpoint.workers or set(votes) != set(range(workers)):
            raise ViolationError(
                "O7",
                f"checkpoint {checkpoint.number} of incarnation {checkpoint.incarnation} has"
                f" {sorted(checkpoint.workers)}; its "
                f"votes are of {sorted(votes)}",
            )

    def acknowledged(self, checkpoint: Checkpoint) -> None:
        """The append of a checkpoint is acknowledged, which is the commit."""
        if self.committed and checkpoint.number <= self.committed[-1].number:
            raise ViolationError(
                "O7", f"checkpoint {checkpoint.number} is committed after {self.committed[-1].number}"
            )
        self._check_kept(checkpoint)
        self.committed.append(checkpoint)
        self._report(checkpoint)

    def _report(self, checkpoint: Checkpoint) -> None:
        known = self.reported.setdefault(checkpoint.number, checkpoint)
        if not same(known, checkpoint):
            raise ViolationError(
                "O7",
                f"checkpoint {checkpoint.number} is of incarnations {known.incarnation} and"
                f" {checkpoint.incarnation}",
            )

    def _check_kept(self, checkpoint: Checkpoint) -> None:
        """Check that its record in the manifest is reported as synced by a quorum of machines (R9)."""
        directory = coordinator_directory(self._region.spec.name)
        most = 0
        for (place, segment), content in self._region.history.segments.items():
            name = parse_segment_name(segment) if place == directory else None
            if name is None or name.epoch != checkpoint.incarnation:
                continue
            end = _end_in(bytes(content), checkpoint.number)
            if end is None:
                continue
            reported = [machine.reported.ever().get((place, segment), 0) for machine in self._region.machines]
            wiped = sum(machine.wiped for machine in self._region.machines)
            most = max(most, sum(size >= end for size in reported) + wiped)
        if most < self._region.quorum:
            raise ViolationError(
                "O7", f"checkpoint {checkpoint.number} counts as committed, {most} members have it (R9)"
            )

    def _check_durable(self, directory: str, chain: str, position: Position, what: str) -> None:
        """Check that the position of the chain is reported as synced by a quorum of machines."""
        holders = sum(
            machine.wiped or self._has(machine, directory, chain, position)
            for machine in self._region.machines
        )
        if holders < self._region.quorum:
            raise ViolationError("O7", f"{what}, whose {chain} only {holders} members have up to {position}")

    @staticmethod
    def _has(machine: "Machine", directory: str, chain: str, position: Position) -> bool:
        for (place, segment), reported in machine.reported.ever().items():
            name = parse_segment_name(segment) if place == directory else None
            if name is None or (name.chain, name.epoch) != (chain, position.epoch):
                continue
            if name.base <= position.size <= name.base + reported:
                return True
        return False


def _end_in(segment: bytes, number: int) -> int | None:
    """Return where the record of that checkpoint ends in a segment of a manifest; None if it is not there."""
    for end, record in decode_all(segment)[0]:
        if (
            record.op is Op.CHECKPOINT
            and decode_checkpoint(record.flags, record.ints, record.strings[0]).number == number
        ):
            return end
    return None


def same(one: Checkpoint, other: Checkpoint) -> bool:
    """Return whether they are one checkpoint, except for the wall time, which is set when it is written."""
    return (one.number, one.incarnation, one.workers) == (other.number, other.incarnation, other.workers)
