"""Collects one worker's contributions to checkpoints, stage by stage. On the circuit thread."""

from checkpoint import SplitPosition
from checkpoint.chains.state_blocks import encode_block
from dataflow.core.schedule import Barrier
from dataflow.state.snapshot_spool import SnapshotSpool
from dataflow.worker.checkpoint_part import OwnPart
from dataflow.worker.circuit import Circuit
from dataflow.worker.identity import Clock
from dataflow.worker.messages import CheckpointTaken, Shared


class CheckpointTaking:
    """The checkpoints of one incarnation that are under way here: `collect` each stage, then `finish`."""

    def __init__(
        self, circuit: Circuit, shared: Shared, clock: Clock, scratch: str, *, incarnation: int
    ) -> None:
        self._circuit = circuit
        self._shared = shared
        self._clock = clock
        self._scratch = scratch
        self._incarnation = incarnation
        self._under_way: dict[int, tuple[OwnPart, dict[str, float]]] = {}
        """Step -> what is collected, and the seconds of each phase."""

    def collect(
        self, stage: int, step: int, checkpoint: int, *, aligned_s: float = 0.0, drained_s: float = 0.0
    ) -> None:
        """Collect what a stage contributes, after its run."""
        if step not in self._under_way:
            due = self._shared.snapshot_due or self._circuit.wants_snapshot
            spool = SnapshotSpool(self._scratch) if due else None
            self._under_way[step] = (OwnPart(checkpoint, spool, step=step), {})
        taken, phases = self._under_way[step]
        begin = self._clock.seconds()
        self._circuit.take_checkpoint(stage, taken)
        phases["align"] = phases.get("align", 0.0) + aligned_s
        phases["drain"] = phases.get("drain", 0.0) + drained_s
        phases["write"] = phases.get("write", 0.0) + self._clock.seconds() - begin

    def finish(
        self, step: int, barrier: Barrier, sources: dict[str, dict[str, SplitPosition]]
    ) -> CheckpointTaken:
        """Return the contributions of all stages. sources: the positions at the end of the step."""
        taken, phases = self._under_way.pop(step)
        begin = self._clock.seconds()
        blocks: list[tuple[str, bytes]] = []
        for name, block in taken.blocks.items():
            with self._circuit.calling(name.partition("~")[0], f"the checkpoint after step {step}"):
                blocks += [(name, data) for data in encode_block(block)]
        phases["write"] += self._clock.seconds() - begin
        self._shared.checkpoints += 1
        return CheckpointTaken(
            self._incarnation,
            step,
            barrier,
            tuple(blocks),
            taken.snapshot,
            sources,
            taken.sinks,
            dict(self._circuit.sinks),
            phases,
        )
