"""Checkpoints and their records in the manifest chain: structs, encoding, decoding and checks. Pure: no I/O.

`checkpoint/coordinator/manifest_log.py` keeps the chain.

A checkpoint is a consistent cut, stored as a vector of positions: for each worker the position of its state
chain and of its steps chain, the position of every input split, and what each sink needs to truncate its
output. Its append to the manifest, synced on the quorum, *is* the commit. One record:

    op CHECKPOINT, flags see CheckpointFlag, ints = [checkpoint, step, incarnation], strings = [JSON of
    Checkpoint]

- The ints repeat fields of the JSON, so that a dump and a scan need no JSON. A record in which the two differ
  is refused.
- Numbers rise by at least one from record to record and are never used twice.
- A restore to an older checkpoint is a *new* one, flagged ROLLBACK, with the positions of the older one
  (`rolled_back_to`). It is acknowledged before any order is sent. It begins a new *line* of history.
- Therefore the last checkpoint of the chain is always the one to restore.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from checkpoint import limits
from checkpoint.core.graph_change import UPGRADE_PREFIX, OperatorNote, stored_under
from checkpoint.core.records.layout import Layout, check_layout
from checkpoint.core.records.outputs import OUTPUT_CHAIN_PREFIX
from checkpoint.errors import GraphChangeRefusedError, ManifestError
from dos_protocol.digests import ResumePoint
from dos_protocol.errors import MALFORMED_JSON
from dos_protocol.limits import digest_block_bytes
from journal import ORIGIN, Floor, Gap, Position, below_or_within, gaps_between, lowest


class Edit(msgspec.Struct, frozen=True, kw_only=True):
    """A person wrote rows into the state (`lines.py`)."""

    by: str = ""
    """user@host"""
    wall_time_ms: int = 0
    why: str = ""
    tables: dict[str, dict[str, int]] = {}
    """Operator -> how many keys were added, changed and deleted."""
    bootstraps: tuple[str, ...] = ()
    """Uids of operators of the next graph, whose first rows it adds. The state of the present graph is that
    of the checkpoint before."""
    made_of: int = 0
    """The checkpoint of which a program says that it made these rows."""


class SavepointNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who made a savepoint, when and why, for people."""

    by: str = ""
    """user@host, or host:pid of the driver whose program made it."""
    wall_time_ms: int = 0
    why: str = ""
    fork: str = ""
    """The region that began as a fork of this checkpoint. The savepoint is dropped when it needs it no more.
    """


NO_NOTE: Final = SavepointNote()


CHECKPOINT_VERSION: Final = 1
"""A record of another version is refused: a program that does not know a field could release or take back
what the field protects.
"""
_SAVEPOINT_NAME: Final = re.compile(
    rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{limits.savepoint_name_chars_max - 1}}}", re.ASCII
)
_RESERVED_NAME: Final = re.compile(
    rf"move-[0-9A-Fa-f]+|(?:fork|backup)-[0-9a-f]{{8}}|{UPGRADE_PREFIX}.*", re.ASCII
)
"""Names of savepoints that the project makes for itself; a person may use others, such as `backup-2026`."""
DIRECTORY_CHAIN_PREFIX: Final = "files-"
"""The chain of the files of an operator is named by this and the operator."""


class CheckpointFlag(IntFlag):
    """Bits of the flags of a checkpoint's record."""

    FINAL = 1
    """All sources were exhausted: no checkpoint follows unless an input grows."""
    ROLLBACK = 2
    """Made by hand, with the positions of an older checkpoint."""


class SplitPosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far one split is read: `position` in the source's own unit, the digest of the content, the end."""

    position: int
    digest: int = 0
    done: bool = False
    resume: ResumePoint = ResumePoint(0, 0)
    """For a file: a point below `position` from which its digest can be computed (decision 0224)."""
    version: str = ""
    """For an object of a bucket: its version (ETag), which every later read must find (decision 0226)."""
    line: int = 0
    """For an output log of another region: the line of history of the last step read. For a file of records:
    the number of lines before the position.
    """
    epoch: int = 0
    """For an output log: the epoch of its segment. A later region of that name has higher ones."""
    head: int = 0
    """For a file of records with a header: its digest, because `resume` may be far behind it."""


_Stored = TypeVar("_Stored")


def _under(stored: Mapping[str, _Stored], names: Mapping[str, str]) -> dict[str, _Stored]:
    return {names[name]: one for name, one in stored.items() if name in names}


class WorkerCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's part of a checkpoint. Its positions were synced on the quorum before it voted.

    Its sources, sinks and operators are named by their uids (`Checkpoint.uids`).
    """

    state: Position
    steps: Position
    sources: dict[str, dict[str, SplitPosition]] = {}
    sinks: dict[str, Any] = {}
    """Sink name -> the sink's own JSON (for a file: bytes and digest)."""
    floors: dict[str, Floor] = {}
    """Chain -> the lowest segment, (epoch, base), that a restore of this checkpoint reads.

    The segment begins with a snapshot whose end is acknowledged, or is the chain's first one. Of a chain that
    is not named, every segment may be needed.
    """
    directories: dict[str, Position] = {}
    """Operator that keeps files -> the position of the chain of its files."""

    def under(self, names: Mapping[str, str]) -> "WorkerCheckpoint":
        """Return it with other names of operators, without what is not among them."""
        return msgspec.structs.replace(
            self,
            sources=_under(self.sources, names),
            sinks=_under(self.sinks, names),
            directories=_under(self.directories, names),
        )

    @property
    def restore_bytes(self) -> int:
        """The bytes of its state chain that a restore reads: those from its snapshot on."""
        return self.state.size - self.floors.get("state", (0, 0))[1]

    def chains(self) -> dict[str, Position]:
        """Return chain -> its position, of the chains that only this region reads: all but output logs."""
        files = {f"{DIRECTORY_CHAIN_PREFIX}{name}": at for name, at in self.directories.items()}
        return {"state": self.state, "steps": self.steps, **files}

    def epochs(self) -> set[int]:
        """Return the epochs of all positions. They must be one incarnation when they are voted (R12)."""
        return {at.epoch for at in self.chains().values()}


class RetiredWorker(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint keeps of a worker that the region had before and does not have now: its output."""

    sinks: dict[str, Any] = {}
    """As in the last checkpoint of that worker. It continues there if it comes back."""
    floors: dict[str, Floor] = {}
    """As in `WorkerCheckpoint`, of its output logs."""

    def under(self, names: Mapping[str, str]) -> "RetiredWorker":
        """Return it with other names of sinks, without what is not among them."""
        return msgspec.structs.replace(self, sinks=_under(self.sinks, names))


class EndedLog(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The output log of a sink that the graph does not have any more, or that this line does not have."""

    sink: str
    """The last name of the sink."""
    checkpoint: int
    """The first one without it."""
    ends: dict[int, Position] = {}
    """Worker, present or former -> the end of its log. Empty: a restore took all of the log back."""
    floors: dict[int, Floor] = {}
    """Worker -> the lowest segment of its log that is retained. Empty: nothing is, the log was dropped."""
    dropped_by: str = ""
    """user@host"""


class Rewind(msgspec.Struct, frozen=True, kw_only=True):
    """A line of history began: the region was restored to an older checkpoint."""

    line: int
    to: int
    """The checkpoint whose positions it began with."""
    step: int
    """The step of that checkpoint: later steps of earlier lines do not belong to this line."""
    of: int = 0
    """The line of that checkpoint, which is not always the line before: a restore can be taken back."""
    by: str = ""
    """What the program requested that did it (`run(restore=...)`), "" if a person did."""
    outputs: dict[int, dict[str, int]] = {}
    """Worker -> output log -> the size of the log at `step`, where the line begins in it."""
    edited: str = ""
    """user@host of the person who edited the state with it; "" if the state is that of the checkpoint."""


class ForkOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """The region began as a fork of another one (`lines.py`)."""

    region: str
    checkpoint: int
    """The checkpoint of that region from which it began, and the step of that."""
    step: int
    savepoint: str
    """The savepoint of that region which holds the checkpoint until this region needs it no more."""
    application: str = ""
    """The application whose input handles it reads, if it is not the region's own."""
    logs: dict[str, str] = {}
    """Source that reads the output of another region -> that region."""
    same_place: tuple[str, ...] = ()
    """Sinks that may write to the place where that region writes."""
    wall_time_ms: int = 0


class OutputIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The region and the store (hexadecimal) under which sinks outside of the store know their owner.

    A region that was restored from a backup and replaces the original keeps that of the original.
    """

    region: str
    store: str


class ReplacedGraph(msgspec.Struct, frozen=True, omit_defaults=True):
    """A graph that the region does not have any more."""

    checkpoint: int
    """With which another graph began."""
    by: str = ""
    """The driver of that checkpoint; "" in the checkpoint itself, which has its own."""


class FormerSink(msgspec.Struct, frozen=True):
    """A sink that is gone, or can take rows back now, and whose former rows stay."""

    why: str
    until: int
    """The checkpoint with which it went: what it has shown after an older one stays if that is restored."""


class BatchNote(msgspec.Struct, frozen=True, kw_only=True):
    """The last micro-batch of a Spark query whose rows are in the state (`coordination/batches.py`)."""

    query: str
    """The identity of the query, which is in its checkpoint."""
    number: int
    time_us: int
    """When Spark planned it: microseconds since 1970. A batch that is planned again has another time."""
    rows: int
    after_step: int = 0
    """Its output is that of the steps above this one, up to `step`."""
    step: int = 0
    """The step of the checkpoint that was voted with it. Later checkpoints repeat the note."""
    begins: dict[int, dict[str, int]] = {}
    """Worker -> output log -> the size of the log at `after_step`; a log that is not named begins with it."""
    ends: dict[int, dict[str, int]] = {}
    """The same at `step`."""
    marks: dict[str, int] = {}
    """Uid of an `event_time` -> its watermark after the batch, on all workers."""


def check_output(region: str, note: BatchNote, sink: str, uids: Mapping[str, str]) -> None:
    """Raise GraphChangeRefusedError if a sink came after a batch: its log has nothing of it, and Spark would
    commit the batch without output.
    """
    uid = uids.get(sink, sink)
    if note.ends and not any(uid in logs for logs in note.ends.values()):
        raise GraphChangeRefusedError(
            f"batch {note.number} of region {region!r} was made by another graph, which had no sink {sink!r},"
            " and Spark repeats it, because it has not committed it",
            operators=(sink,),
            remedy="start the program that made it until the query has committed that batch, and stop it;"
            " then start this one. If this graph has begun in the region: first take it back (dos region"
            f" restore URL {region} --to savepoint:upgrade-HEX --stopped; dos region savepoints lists it)",
        )


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint: a consistent state of the whole region, everything up to the end of `step`."""

    number: int
    step: int
    incarnation: int
    final: bool
    wall_time_ms: int
    """For people, and for 'as of' queries by the clock; it orders nothing."""
    workers: dict[int, WorkerCheckpoint]
    layout: Layout
    operators: dict[str, OperatorNote]
    """The graph with which it continues: that of its votes, or of the checkpoint that it repeats."""
    uids: dict[str, str] = {}
    """Operator -> its uid, under which all of it is stored, if that is not its name (`graph_change.py`)."""
    replaced: dict[str, ReplacedGraph] = {}
    """Fingerprint -> a graph that another one has replaced, in that order, at most `replaced_graphs_max`. A
    program that has it would undo the change, unless it says that it means to."""
    parent: int = 0
    """The checkpoint that this one continues, 0 for the first."""
    retained: tuple[int, ...]
    """The checkpoints that are retained from this one on, itself included.

    Once it is acknowledged, all others are released permanently (R14).
    """
    irrevocable: dict[str, str]
    """Sink -> why a restore to an older checkpoint cannot take its rows back."""
    former_sinks: dict[str, FormerSink] = {}
    """Former ones of `irrevocable`, as long as a checkpoint is retained that is older than their end."""
    savepoints: dict[str, int] = {}
    """Savepoints: name -> the checkpoint retained until the savepoint is dropped."""
    notes: dict[str, SavepointNote] = {}
    """Savepoint -> who made it, when, and why."""
    rolled_back_to: int = 0
    """For a rollback: the checkpoint whose positions these are; 0 for one that was voted."""
    phases_s: dict[int, dict[str, float]] = {}
    """Worker -> phase (align, drain, write, sync) -> seconds. For people."""
    driver: str = ""
    """host:pid of the driver that committed it. For people."""
    version: int = CHECKPOINT_VERSION
    retired: dict[int, RetiredWorker] = {}
    """Workers that the region had before, with the output that they made."""
    declared: int = 0
    """The number of workers that a program asked for last, if the region was scaled to another one since;
    otherwise 0. A program that asks for the same number again gets the number of this checkpoint.
    """
    line: int = 0
    """How often the region was restored before: the number of its line of history."""
    rewinds: tuple[Rewind, ...] = ()
    """How the newest lines began, at most `rewinds_kept_max`, oldest first."""
    rewound: bool = False
    """Only in the record of a restore: every chain continues at its position here, whatever follows there,
    and the next checkpoint is taken before any step runs.
    """
    shows_on: bool = False
    """Whether output of steps after it may be visible for good before the next checkpoint. If not, nothing is
    shown before another one is acknowledged that states it.
    """
    orphans: tuple[int, ...] = ()
    """Only in the record of a restore: former workers that the restored checkpoint does not know. All of
    their output is taken back.
    """
    origin: ForkOrigin | None = None
    """Where a fork began. All of its checkpoints state it."""
    in_origin: bool = False
    """The positions of workers are in the chains of `origin.region`: the region has no chains of its own yet.
    """
    identity: OutputIdentity | None = None
    """The owner of the region's output outside of the store, if it is not its own name and store. All
    checkpoints state it.
    """
    application: str = ""
    """The application of which the region is a part. Another one may have a name that begins like it."""
    edit: Edit | None = None
    """Only in the record of an edit, and in the first checkpoint of a region whose state was given."""
    ended: dict[str, EndedLog] = {}
    """Uid -> the output log of a sink that the graph does not have any more, until a person drops it; then,
    for the newest `gone_logs_max`, that it is gone."""
    batch: BatchNote | None = None
    """The last batch of the query that drives the region. None: no batch was processed, or the region was
    released from its query.
    """

    def outputs(self) -> "dict[int, WorkerCheckpoint | RetiredWorker]":
        """Return worker -> `sinks` and `floors` of its output, of former workers and removed sinks, too."""
        found: dict[int, WorkerCheckpoint | RetiredWorker] = {**self.retired, **self.workers}
        for uid, log in self.ended.items():
            for worker, floor in log.floors.items():
                part = found.get(worker, RetiredWorker())
                floors = {**part.floors, f"{OUTPUT_CHAIN_PREFIX}{uid}": floor}
                sinks = {**part.sinks, uid: msgspec.to_builtins(log.ends[worker])}
                found[worker] = msgspec.structs.replace(part, sinks=sinks, floors=floors)
        return found

    def log_of(self, sink: str) -> str | None:
        """Return the uid of the output log that a reader of this sink reads, None if there is none. A name
        that the graph has comes first, then that of the log that ended last.
        """
        stored = stored_under(self.operators, self.uids)
        uid = stored.get(sink, sink)
        if uid in stored.values() or any(uid in part.sinks for part in self.workers.values()):
            return uid
        ended = [(log.checkpoint, uid) for uid, log in self.ended.items() if sink in (uid, log.sink)]
        return max(ended)[1] if ended else None

    def uid_of(self, operator: str) -> str:
        """Return under which name an operator is stored. A name that the graph does not have may be a uid: of
        an operator that was renamed.
        """
        return self.uids.get(operator, operator)

    def stored_table(self, table: str) -> str:
        """Return under which name a table of an operator is stored: OPERATOR, or OPERATOR~TABLE."""
        operator, mark, own = table.partition("~")
        return f"{self.uid_of(operator)}{mark}{own}"

    def by_name(self) -> "Checkpoint":
        """Return it with the names that its graph has, for people. It is no record."""
        uids = {uid for part in self.outputs().values() for uid in part.sinks}
        uids |= {uid for part in self.workers.values() for uid in (*part.sources, *part.directories)}
        names = {uid: name for name, uid in stored_under(self.operators, self.uids).items()}
        others = uids - names.keys() - set(names.values())
        return self.under({**names, **{uid: uid for uid in others}})

    def under(self, names: Mapping[str, str]) -> "Checkpoint":
        """Return it with other names of operators in the parts of workers, without what is not among them."""
        return msgspec.structs.replace(
            self,
            workers={worker: part.under(names) for worker, part in self.workers.items()},
            retired={worker: part.under(names) for worker, part in self.retired.items()},
        )

    def begins(self, layout: Layout) -> bool:
        """Whether something begins with this checkpoint, in an incarnation of this layout: the layout, a line
        of history, or a fork. Then the next checkpoint is committed before any worker starts.
        """
        return self.rewound or self.in_origin or self.layout != layout

    @property
    def is_quiet(self) -> bool:
        """Whether output of no step after it counts that may be visible."""
        return not self.shows_on or self.rewound or self.in_origin

    def begins_graph(self, operators: Mapping[str, OperatorNote], *, shows_steps: bool) -> bool:
        """Whether a graph begins with this checkpoint, or output of steps that are in no checkpoint. Then the
        next checkpoint is committed before any worker starts, too.
        """
        return self.operators != operators or (shows_steps and self.is_quiet)

    def chains_of(self, region: str) -> str:
        """Return the region in whose directories the chains of `workers` are. `region`: the one with this
        checkpoint.
        """
        return self.origin.region if self.in_origin and self.origin is not None else region

    @property
    def voted_as(self) -> int:
        """The number of the checkpoint that has its positions, also if this one only records them again."""
        return self.number if self.edit is not None else self.rolled_back_to or self.number

    @property
    def workers_declared(self) -> int:
        """The number of workers that a program asked for last."""
        return self.declared or len(self.workers)


def slowest(phases_s: Iterable[Mapping[str, float]]) -> Mapping[str, float]:
    """Return phase -> seconds of the worker that took longest, {} if there is none.

    A worker's phases follow each other. The longest of each phase, of different workers, would add up to more
    than the checkpoint took.
    """
    return max(phases_s, key=lambda one: sum(one.values()), default={})


def savepoint_name_problem(name: str, *, reserved: bool = False) -> str:
    """Return why a person's savepoint cannot have this name, empty if it can.

    reserved: also accept the names that the project reserves for its own savepoints. Records have them.
    """
    if not _SAVEPOINT_NAME.fullmatch(name):
        most = limits.savepoint_name_chars_max
        return (
            f"a savepoint's name has 1 to {most} letters, digits, '.', '_' or '-' and begins with a letter or"
            f" digit, got {name[: 2 * most]!r}"
        )
    if not reserved and _RESERVED_NAME.fullmatch(name):
        return (
            "savepoint names of 'fork-' or 'backup-' and 8 hexadecimal digits, of 'move-' and any, or that"
            " begin with 'upgrade-', are reserved for the savepoints that forks, backups, moves and changes"
            f" of the graph make, got {name!r}: use another name, such as 'my-{name}'"
        )
    return ""


def savepoint_why_problem(why: str) -> str:
    """Return why a savepoint cannot have this note of a person, empty if it can."""
    if len(why) > (most := limits.savepoint_why_chars_max):
        return f"a savepoint's note has at most {most} characters, got {len(why)}: shorten it"
    if not why.isprintable():
        wrong = next(one for one in why if not one.isprintable())
        return f"a savepoint's note is one line of printable characters, got {wrong!r}: leave it out"
    return ""


class CheckpointRecord(NamedTuple):
    """The arguments of the journal record of a checkpoint, whose op is CHECKPOINT."""

    flags: int
    ints: tuple[int, int, int]
    text: bytes


def encode_checkpoint(checkpoint: Checkpoint) -> CheckpointRecord:
    """Return the record of a checkpoint. Raises ManifestError above `manifest_record_bytes_max`."""
    text = msgspec.json.encode(checkpoint)
    if len(text) > limits.manifest_record_bytes_max:
        raise ManifestError(
            f"its record has {len(text)} bytes, the limit is {limits.manifest_record_bytes_max}",
            checkpoint=checkpoint.number,
            remedy="use fewer or larger input splits",
        )
    flags = (CheckpointFlag.FINAL if checkpoint.final else 0) | (
        CheckpointFlag.ROLLBACK if checkpoint.rolled_back_to else 0
    )
    return CheckpointRecord(flags, (checkpoint.number, checkpoint.step, checkpoint.incarnation), text)


def decode_checkpoint(flags: int, ints: Iterable[int], text: bytes) -> Checkpoint:
    """Return the checkpoint in a record. `check_checkpoint` then checks it against the region.

    Raises ManifestError if its fields are invalid or contradict each other.
    """
    numbers = tuple(ints)
    checkpoint_number = numbers[0] if numbers else 0
    if len(text) > limits.manifest_record_bytes_max:
        raise ManifestError(
            f"its record has {len(text)} bytes, the limit is {limits.manifest_record_bytes_max}",
            checkpoint=checkpoint_number,
        )
    _refuse_duplicates(text, checkpoint_number)
    try:
        checkpoint = msgspec.json.decode(text, type=Checkpoint)
    except MALFORMED_JSON as error:
        raise ManifestError(f"its record does not decode: {error}", checkpoint=checkpoint_number) from error
    if checkpoint.version != CHECKPOINT_VERSION:
        raise ManifestError(
            f"its record has version {checkpoint.version}, this program reads version {CHECKPOINT_VERSION}",
            checkpoint=checkpoint.number,
        )
    if numbers != (checkpoint.number, checkpoint.step, checkpoint.incarnation):
        raise ManifestError(
            f"its record has ints {list(numbers)}, but JSON"
            f" {[checkpoint.number, checkpoint.step, checkpoint.incarnation]}",
            checkpoint=checkpoint.number,
        )
    if flags != encode_checkpoint(checkpoint).flags:
        raise ManifestError(
            f"the flags {flags:#x} of its record contradict its JSON", checkpoint=checkpoint.number
        )
    return checkpoint


def _refuse_duplicates(text: bytes, checkpoint: int) -> None:
    """Raise ManifestError if a JSON object has a key twice: decoding would drop a worker or a split."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in items]
        if len(set(keys)) != len(keys):
            twice = sorted(key for key in set(keys) if keys.count(key) > 1)
            raise ManifestError(f"duplicate keys in its record: {', '.join(twice)}", checkpoint=checkpoint)
        return dict(items)

    try:
        json.loads(text, object_pairs_hook=pairs)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"its record is not JSON: {error}", checkpoint=checkpoint) from error


def check_checkpoint(checkpoint: Checkpoint, *, before: Checkpoint | None = None, gap: bool = False) -> None:
    """Raise ManifestError with the reason if a region cannot be restored to `checkpoint`.

    - `before`: the checkpoint before it in the chain, which it is compared with.
    - `gap`: released checkpoints may have been between the two, as in a snapshot of the manifest with a
      savepoint.
    """
    if checkpoint.number < 1 or checkpoint.step < 0 or checkpoint.incarnation < 1:
        raise ManifestError(
            f"it has step {checkpoint.step} and incarnation {checkpoint.incarnation}: numbers begin at 1,"
            f" steps at 0",
            checkpoint=checkpoint.number,
        )
    workers = max(checkpoint.workers, default=0) + 1
    missing = sorted(set(range(workers)) - checkpoint.workers.keys())
    if missing:
        raise ManifestError(
            f"it has no part of worker {missing[0]} of {workers}", checkpoint=checkpoint.number
        )
    for worker, part in checkpoint.workers.items():
        # The epochs of another region's chains have nothing to do with this region's incarnations.
        highest = None if checkpoint.in_origin else _last_term(checkpoint.incarnation)
        _check_worker(checkpoint.number, worker, part, checkpoint.incarnation, highest)
    _check_retired(checkpoint)
    _check_ended(checkpoint)
    _check_line(checkpoint)
    _check_origin(checkpoint, before)
    check_layout(checkpoint.layout, workers, checkpoint=checkpoint.number)
    if idle := sorted(checkpoint.workers.keys() - set(checkpoint.layout.workers)):
        raise ManifestError(f"worker {idle[0]} owns no shards", checkpoint=checkpoint.number)
    _check_retained(checkpoint, before)
    _check_savepoints(checkpoint)
    _check_batch(checkpoint)
    if before is not None:
        _check_order(checkpoint, before, gap=gap)


def _last_term(incarnation: int) -> int:
    """Return the highest epoch of a worker in an incarnation. With local recovery, whose first incarnation is
    `terms_per_incarnation`, a worker that was taken over has a term above the incarnation.
    """
    terms = limits.terms_per_incarnation
    return incarnation if incarnation < terms else incarnation - incarnation % terms + terms - 1


def _check_retired(checkpoint: Checkpoint) -> None:
    if both := sorted(checkpoint.retired.keys() & checkpoint.workers.keys()):
        raise ManifestError(
            f"worker {both[0]} has a part and is a former worker", checkpoint=checkpoint.number
        )
    if min(checkpoint.retired, default=0) < 0 or not 0 <= checkpoint.declared <= limits.workers_max:
        raise ManifestError(
            f"invalid former workers {sorted(checkpoint.retired)}, or number of workers"
            f" {checkpoint.declared}",
            checkpoint=checkpoint.number,
        )


def _check_ended(checkpoint: Checkpoint) -> None:
    stored = set(stored_under(checkpoint.operators, checkpoint.uids).values())
    voted = {uid for part in checkpoint.workers.values() for uid in part.sinks}
    voted |= {uid for part in checkpoint.retired.values() for uid in part.sinks}
    for uid, log in checkpoint.ended.items():
        if uid in stored or uid in voted:
            raise ManifestError(f"it has sink {uid!r}, whose log has ended", checkpoint=checkpoint.number)
        if log.floors.keys() not in (log.ends.keys(), set()) or not 0 < log.checkpoint <= checkpoint.number:
            raise ManifestError(f"invalid end of the log of sink {uid!r}", checkpoint=checkpoint.number)
        for worker, end in log.ends.items():
            epoch, base = log.floors.get(worker, (1, 0))
            if worker < 0 or end.epoch < 1 or epoch < 1 or not 0 <= base <= end.size:
                raise ManifestError(
                    f"worker {worker}: the log of sink {uid!r} is retained from {epoch}, {base} on, and ends"
                    f" at {end}",
                    checkpoint=checkpoint.number,
                )


def _check_line(checkpoint: Checkpoint) -> None:
    lines = [rewind.line for rewind in checkpoint.rewinds]
    kept = limits.rewinds_kept_max
    if lines != list(range(max(1, checkpoint.line - kept + 1), checkpoint.line + 1)):
        raise ManifestError(
            f"it is of line {checkpoint.line}, but states the lines {lines}", checkpoint=checkpoint.number
        )
    if any(
        rewind.step < 0 or not 0 < rewind.to < checkpoint.number or not 0 <= rewind.of < rewind.line
        for rewind in checkpoint.rewinds
    ):
        raise ManifestError(
            "a line of it begins with an invalid checkpoint or step", checkpoint=checkpoint.number
        )
    if (checkpoint.rewound or checkpoint.orphans) and not (
        checkpoint.rewound and checkpoint.rolled_back_to and checkpoint.line
    ):
        raise ManifestError(
            "it states a restore, and no checkpoint that was restored", checkpoint=checkpoint.number
        )
    if both := sorted(set(checkpoint.orphans) & checkpoint.workers.keys()):
        raise ManifestError(
            f"worker {both[0]} has a part, and its output is taken back", checkpoint=checkpoint.number
        )


def _check_origin(checkpoint: Checkpoint, before: Checkpoint | None) -> None:
    if checkpoint.in_origin and checkpoint.origin is None:
        raise ManifestError(
            "its positions are in another region, which it does not name", checkpoint=checkpoint.number
        )
    if checkpoint.in_origin and before is not None and not checkpoint.rolled_back_to:
        raise ManifestError(
            "only the first checkpoint of a fork is in another region", checkpoint=checkpoint.number
        )
    if before is not None and checkpoint.origin != before.origin:
        raise ManifestError(
            f"it states another origin of the region than checkpoint {before.number}",
            checkpoint=checkpoint.number,
        )


def _check_worker(
    checkpoint: int, worker: int, part: WorkerCheckpoint, incarnation: int, highest: int | None
) -> None:
    for chain, position in part.chains().items():
        if position.size < 0 or position.epoch < 1 or not 0 <= position.digest < 1 << 64:
            raise ManifestError(
                f"worker {worker}: invalid {chain} position {position}", checkpoint=checkpoint
            )
        if highest is not None and position.epoch > highest:
            raise ManifestError(
                f"worker {worker}: its {chain} position has epoch {position.epoch}, "
                f"which is above incarnation {incarnation}",
                checkpoint=checkpoint,
            )
    for chain, (epoch, base) in part.floors.items():
        if epoch < 1 or (highest is not None and epoch > highest) or base < 0:
            raise ManifestError(
                f"worker {worker}: invalid floor of chain {chain!r}: epoch {epoch}, base {base}",
                checkpoint=checkpoint,
            )
    for source, splits in part.sources.items():
        for split, at in splits.items():
            if at.position < 0 or not 0 <= at.digest < 1 << 64:
                raise ManifestError(
                    f"worker {worker}: invalid position {at.position} of split {split!r} of {source!r}",
                    checkpoint=checkpoint,
                )
            if not _can_resume(at.resume, at.position):
                raise ManifestError(
                    f"worker {worker}: the digest of split {split!r} of {source!r} at {at.position} cannot"
                    f" be resumed at {at.resume.size}",
                    checkpoint=checkpoint,
                )


def _can_resume(point: ResumePoint, position: int) -> bool:
    aligned = point.size % digest_block_bytes == 0
    return aligned and 0 <= point.size <= position and 0 <= point.digest < 1 << 64


def _check_savepoints(checkpoint: Checkpoint) -> None:
    if len(checkpoint.savepoints) > limits.savepoints_max:
        raise ManifestError(
            f"it has {len(checkpoint.savepoints)} savepoints, the limit is {limits.savepoints_max}",
            checkpoint=checkpoint.number,
        )
    for name, held in checkpoint.savepoints.items():
        if (problem := savepoint_name_problem(name, reserved=True)) != "":
            raise ManifestError(problem, checkpoint=checkpoint.number)
        if held not in checkpoint.retained:
            raise ManifestError(
                f"savepoint {name!r} holds checkpoint {held}, which it does not retain",
                checkpoint=checkpoint.number,
            )


def _check_batch(checkpoint: Checkpoint) -> None:
    batch = checkpoint.batch
    if batch is None:
        return
    numbers = batch.number, batch.rows, batch.after_step, batch.step - batch.after_step, batch.time_us - 1
    if not batch.query or min(numbers) < 0:
        raise ManifestError(
            f"it states batch {batch.number} of query {batch.query!r} at {batch.time_us} us with {batch.rows}"
            f" rows, in the steps after {batch.after_step} up to {batch.step}",
            checkpoint=checkpoint.number,
        )
    if batch.step > checkpoint.step:
        raise ManifestError(
            f"its step {checkpoint.step} is below step {batch.step}, with which batch {batch.number} ended",
            checkpoint=checkpoint.number,
        )


def _check_retained(checkpoint: Checkpoint, before: Checkpoint | None) -> None:
    kept = checkpoint.retained
    if kept[-1:] != (checkpoint.number,) or kept[0] < 1 or list(kept) != sorted(set(kept)):
        raise ManifestError(
            f"it retains {list(kept)}: expected rising numbers that end with its own",
            checkpoint=checkpoint.number,
        )
    if before is not None:
        again = sorted({number for number in kept if number <= before.number} - set(before.retained))
        if again:
            raise ManifestError(
                f"it retains {again}, which checkpoint {before.number} released", checkpoint=checkpoint.number
            )


def _check_order(checkpoint: Checkpoint, before: Checkpoint, *, gap: bool) -> None:
    if checkpoint.number <= before.number:
        raise ManifestError(
            f"it follows checkpoint {before.number}; numbers rise and are never used twice",
            checkpoint=checkpoint.number,
        )
    if checkpoint.incarnation < before.incarnation:
        raise ManifestError(
            f"its incarnation {checkpoint.incarnation} is below {before.incarnation} of checkpoint"
            f" {before.number}",
            checkpoint=checkpoint.number,
        )
    if checkpoint.parent != before.number and not (gap and checkpoint.parent > before.number):
        raise ManifestError(
            f"its parent is checkpoint {checkpoint.parent}, the one before it is {before.number}",
            checkpoint=checkpoint.number,
        )
    expected = (before.line, before.line + 1) if checkpoint.rewound else (before.line,)
    if checkpoint.line not in expected and not (gap and checkpoint.line > before.line):
        raise ManifestError(
            f"it is of line {checkpoint.line}, and checkpoint {before.number} of line {before.line}",
            checkpoint=checkpoint.number,
        )
    if not checkpoint.rolled_back_to and checkpoint.line == before.line and checkpoint.step < before.step:
        raise ManifestError(
            f"its step {checkpoint.step} is below step {before.step} of checkpoint {before.number}",
            checkpoint=checkpoint.number,
        )


OnDamaged: TypeAlias = Literal["fail", "previous"]
"""What follows if the last checkpoint is damaged: the region fails, or goes back to the newest older one that
is whole. As for the files of a journal.
"""


@dataclass(frozen=True, slots=True)
class ChainDamage:
    """A chain of a worker that does not read whole up to a position."""

    worker: int
    chain: str
    position: str
    why: str

    def __str__(self) -> str:
        return f"chain {self.chain} of worker {self.worker} up to position {self.position}: {self.why}"


@dataclass(frozen=True, slots=True)
class CheckpointDamage:
    """A checkpoint that cannot be restored. chains: those that are damaged."""

    checkpoint: int
    chains: tuple[ChainDamage, ...]

    def __str__(self) -> str:
        return f"checkpoint {self.checkpoint} is damaged: {'; '.join(map(str, self.chains))}"


@dataclass(frozen=True, slots=True)
class Examination:
    """The retained checkpoints, as far as they were read, newest first.

    damaged: those that do not read whole; empty if the last one does. whole: the newest one that reads whole,
    0 if none does. If the last one is in `damaged` and is also `whole`, only the steps that were recorded
    after it are damaged.
    """

    damaged: tuple[CheckpointDamage, ...]
    whole: int

    @property
    def text(self) -> str:
        """Return every damaged checkpoint with its chains, in words."""
        return "; ".join(map(str, self.damaged))


@dataclass(frozen=True, slots=True)
class Rolling:
    """When a chain continues in a new segment that begins with a snapshot.

    After that only older checkpoints need the segments below, which are deleted with them.
    """

    snapshot_bytes_min: int = field(default_factory=lambda: limits.snapshot_bytes_min)
    segments_max: int = field(default_factory=lambda: limits.chain_segments_max)
    manifest_segment_bytes_max: int = field(default_factory=lambda: limits.manifest_segment_bytes_max)
    manifest_replay_bytes_max: int = field(default_factory=lambda: limits.manifest_replay_bytes_max)


def retained_with(
    kept: Sequence[Checkpoint], number: int, retain: int, pinned: Collection[int] = ()
) -> tuple[int, ...]:
    """Return the checkpoints that are retained when `number` is committed after `kept`.

    These are the last `retain` numbers, including `number`, and those that savepoints hold (`pinned`).
    """
    numbers = (*(checkpoint.number for checkpoint in kept), number)
    return tuple(one for one in numbers if one > number - retain or one in pinned)


def keep(kept: Sequence[Checkpoint], checkpoint: Checkpoint) -> tuple[Checkpoint, ...]:
    """Return the checkpoints that are retained once `checkpoint` is acknowledged after `kept`.

    Raises ManifestError if it does not retain itself.
    """
    # With an empty list, everything before it would be released, and deleted for good (R14).
    if checkpoint.number not in checkpoint.retained:
        raise ManifestError("it does not retain itself", checkpoint=checkpoint.number)
    return (*(one for one in kept if one.number in checkpoint.retained), checkpoint)


def floors_of(kept: Sequence[Checkpoint], worker: int) -> dict[str, Floor]:
    """Return chain -> the lowest segment of this worker that a retained checkpoint needs.

    Of a worker in none of them that is a segment which cannot exist yet: if it was there before, nothing of
    its state and its files is needed. (Its steps chain and its output continue at their heads if it comes
    back.)
    """
    parts = [
        checkpoint.workers[worker]
        for checkpoint in kept
        if worker in checkpoint.workers and not checkpoint.in_origin
    ]
    if kept and not parts:
        chains = {"state"}.union(*(part.floors for part in kept[-1].workers.values()))
        begin_anew = [one for one in chains if one != "steps" and not one.startswith(OUTPUT_CHAIN_PREFIX)]
        return dict.fromkeys(sorted(begin_anew), (kept[-1].incarnation + 1, 0))
    return lowest(part.floors for part in parts)


def gaps_of(kept: Sequence[Checkpoint], worker: int) -> dict[str, tuple[Gap, ...]]:
    """Return chain -> the gaps above its floor, which no retained checkpoint needs (decision 0245).

    A checkpoint needs a chain from its floor up to its position, and only the last one needs what follows. So
    a savepoint does not hold what was written after it. Output logs have no gaps: they have other readers,
    unless they were dropped or taken back as a whole.
    """
    parts = [
        checkpoint.workers[worker]
        for checkpoint in kept
        if worker in checkpoint.workers and not checkpoint.in_origin
    ]
    found = {}
    for chain in floors_of(kept, worker) if parts else ():
        positions = [(part.floors[chain], part.chains().get(chain, ORIGIN)) for part in parts]
        needed = [(floor, (at.epoch, at.size)) for floor, at in positions[:-1] if at != ORIGIN]
        if not chain.startswith(OUTPUT_CHAIN_PREFIX):
            found[chain] = tuple(gaps_between(needed, positions[-1][0]))
    for last in kept[-1:]:
        had = {uid for one in kept for part in one.outputs().values() for uid in part.sinks}
        all_of_it = ((0, 0), (_last_term(last.incarnation) + 1, 0))
        gone = [uid for uid, log in last.ended.items() if not log.floors and uid not in had]
        found |= {f"{OUTPUT_CHAIN_PREFIX}{uid}": (all_of_it,) for uid in gone}
    return {chain: gaps for chain, gaps in found.items() if gaps}


def unneeded_of(kept: Sequence[Checkpoint], worker: int) -> Callable[[str], bool]:
    """Return a test of object names: whether it is a segment of this worker's chains that no retained
    checkpoint needs. Of output logs, only those that are gone.
    """
    floors = {
        chain: floor
        for chain, floor in floors_of(kept, worker).items()
        if not chain.startswith(OUTPUT_CHAIN_PREFIX)
    }
    return below_or_within(floors, gaps_of(kept, worker))


def steps_kept_after(kept: Sequence[Checkpoint]) -> int:
    """Return the step up to which no input division is needed again. A restore to an older checkpoint than
    the last one voids the steps that were recorded after it.
    """
    return kept[-1].step if kept else 0
