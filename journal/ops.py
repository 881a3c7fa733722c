"""The operations that a record can carry, by number.

A number is never reused. If an operation is removed, its name stays, prefixed `RETIRED_`. The first three are
those of version 0 and keep their arguments. The module that writes an operation defines the meaning of its
arguments. The table `ARGUMENTS` here explains a dump; the arity of the three file operations is also checked.
"""

from enum import IntEnum


class Op(IntEnum):
    """The operation of a record. The first three are those of version 0."""

    TRUNCATE = 0
    WRITE = 1
    REMOVE = 2
    SEGMENT_START = 3
    MARK = 4
    CHECKPOINT = 5
    STATE_BLOCK = 6
    SNAPSHOT_BEGIN = 7
    SNAPSHOT_END = 8
    DIVISION = 9
    OUTPUT = 10
    INPUT = 11
    INPUT_CLOSED = 12
    CONSUMERS = 13
    INPUT_MARK = 14
    DEPLOYMENT = 15
    REPORT = 16


OPS_BY_NUMBER: tuple[Op, ...] = tuple(Op)
assert [int(op) for op in OPS_BY_NUMBER] == list(range(len(OPS_BY_NUMBER))), "op numbers have no holes"

FILE_ARITY: dict[Op, tuple[int, int]] = {
    Op.TRUNCATE: (1, 1),
    Op.WRITE: (1, 2),
    Op.REMOVE: (0, 1),
}
"""Number of (ints, strings) of the file operations. Encoder and decoder reject any other number."""

ARGUMENTS: dict[Op, str] = {
    Op.TRUNCATE: "ints=[new length] strings=[path]",
    Op.WRITE: "ints=[offset] strings=[path, data]",
    Op.REMOVE: "ints=[] strings=[path]",
    Op.SEGMENT_START: "ints=[] strings=[JSON SegmentStart]",
    Op.MARK: "ints=[wall clock, ms since 1970] strings=[]",
    Op.CHECKPOINT: (
        "ints=[checkpoint, step, incarnation] strings=[JSON Checkpoint]; of files"
        " ints=[checkpoint, step] strings=[]"
    ),
    Op.STATE_BLOCK: "ints=[checkpoint] strings=[operator, Arrow IPC stream]",
    Op.SNAPSHOT_BEGIN: "ints=[] strings=[]",
    Op.SNAPSHOT_END: "ints=[records between begin and end] strings=[]",
    Op.DIVISION: "ints=[step, time ms, possibly a checkpoint] strings=[JSON division, possibly workers]",
    Op.OUTPUT: "ints=[step, wall clock ms, rows, digest] strings=[JSON head, Arrow IPC stream]",
    Op.INPUT: "ints=[batch, part, 1 if the last, rows, digest before, wall clock ms] strings=[data, mark];"
    " of an entry point ints=[..., time us] strings=[..., late rows]",
    Op.INPUT_CLOSED: "ints=[wall clock ms] strings=[JSON of the producers' ends]",
    Op.CONSUMERS: "ints=[wall clock ms, epochs of changes]"
    " strings=[JSON of the consumers and the retention rule]",
    Op.INPUT_MARK: "ints=[mark us, version, origin, last time us, batch, digest before, wall clock ms]"
    " strings=[mark]",
    Op.DEPLOYMENT: "ints=[wall clock ms, epochs of changes]"
    " strings=[JSON of the replicas and streams of an application]",
    Op.REPORT: "ints=[wall clock ms, epochs of changes]"
    " strings=[JSON of what a reader of replicas, or a site, reports]",
}
assert set(ARGUMENTS) == set(Op)
