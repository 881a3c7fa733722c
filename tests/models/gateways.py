"""The model of gateways: two of them serve one tree in a store of three members to drivers that fail.

The tree is the product's own (`dos_gateway/core/tree.py`): what a request changes, what is answered, and on
which part of the log that rests. The model adds everything else.

    a take-over            any gateway claims two members at any time, adopts the longest copy of them, and
                           opens once its first record is on two members and the lease of the other is over
    an append              reaches one member after the other, later or never; two of three are a quorum
    an answer              is composed in one step, waits until what it rests on is on a quorum, and is sent
                           or lost
    a gateway that learns late   that its claim is lost: it takes and answers requests as before until then
    a gateway that stops   with requests in its sockets, and wakes up at any time
    a driver that repeats  a request whose answer was lost, or whose gateway failed, at either gateway
    a driver that is cut off   the end of its connection is not seen
    a request that is late   and arrives, with the end of its connection, after it was repeated
    an upload              its pieces and its file are appended one by one; it is never repeated

What is demanded: (G1) the line of history of every later take-over has each change on which an answer rests;
(G2) of two drivers that rename to one name, one succeeds; (G3) an answer is the one that all answers before
its request imply, and rests on what it shows; (G4) a driver whose answer was lost does not lose its file;
(G5) an overwritten file is never absent; a file has the bytes that its driver sent.

What is abstracted: time, so the lease is a right that ends at any moment, and while it lasts nobody else
opens (`gateway_time.py` shows that the times see to that); bytes and segments, so a copy is a line of records
(`take_over.py`); space. The members of the store are alike (`canonical`).
"""

from typing import Final, NamedTuple

from dos_gateway.core.hadoop import HadoopError, parts_of
from dos_gateway.core.space import BodyExtent, SegmentNote
from dos_gateway.core.tree import Change, MarkReplaceable, MoveNode, PutFile, RemoveNode, Tree

UUIDS: Final = ("11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222")
FINAL: Final = "/d/final"
TEMPORARY: Final = tuple(f"/d/.final.{uuid}.tmp" for uuid in UUIDS)
"""The file of each driver, which it renames."""


class GatewayRules(NamedTuple):
    """The rules of gateways. Each can be switched off."""

    claim_is_checked: bool = True
    """A member takes appends only of the gateway whose claim it granted last."""
    answers_after_the_quorum: bool = True
    """An answer waits until what it rests on is on a quorum."""
    refusals_are_answers: bool = True
    """A refusal waits, too."""
    composed_once: bool = True
    """An answer is composed with the position on which it rests; without it, anew when that is synced."""
    lease: bool = True
    """Without a lease an answer waits for a MARK."""
    mark_after_composing: bool = True
    """The MARK is appended after the answer was composed; without it, any append that is under way does."""
    wait_out_the_lease: bool = True
    """A gateway that takes over opens when the other one's lease is over."""
    start_before_serving: bool = True
    """It opens when its first record, and so all that it adopted, is on a quorum, and then without a lease;
    without it, its claim is proof enough of both."""
    one_step: bool = True
    """A change is checked, appended and applied in one step."""
    moved_from: bool = True
    """A moved file remembers its source."""
    moved_from_in_the_log: bool = True
    """It does so after a take-over, too."""
    replaceable: bool = True
    """A DELETE beside a temporary file of the same name only marks the file."""
    request_keeps_its_epoch: bool = True
    """An upload ends with the claim under which it began."""
    left_clients_are_dropped: bool = True
    """A request whose connection has ended is not executed."""
    arrival_order: bool = True
    """Requests that were held are executed in the order of their arrival."""
    grown_is_sent_on: bool = True
    """A request that came before the chain grew under another gateway is sent on."""
    woken_closes: bool = True
    """A gateway that stood still closes all connections unread."""


Request = tuple[str, ...]
"""("rename", source, target), ("delete", path), ("read", path), ("upload", path)"""


class GatewaySetup(NamedTuple):
    """One world. scripts: the requests of each driver. final: whether the contested file exists. Budgets:
    take-overs, answers that are lost, ends of connections that are not seen, gateways that stop.
    """

    scripts: tuple[tuple[Request, ...], ...]
    final: bool = False
    take_overs: int = 1
    losses: int = 1
    unseen: int = 0
    stops: int = 0
    holds: bool = False
    """Whether standbys hold requests. Without it, requests are sent only to gateways that serve."""
    late: bool = False
    """Whether requests, which are held, arrive later than they are sent."""
    as_one: bool = False
    """Whether the members of the store are always together: claims and appends reach all of them at once."""
    leases_end: bool = False
    """Whether the lease of a gateway ends also while it has the newest claim."""


class Entry(NamedTuple):
    """A record of the log: a change, ("piece", driver, number), or what changes nothing: start, mark."""

    epoch: int
    change: Change | tuple[str, int, int] | str


class Composed(NamedTuple):
    """What a request comes to at one line of history. rests_on: how many records of the line."""

    answer: str
    change: Change | None
    rests_on: int


class Lines:
    """All lines of history, each a number: a tree of them, in which one line continues another."""

    def __init__(self, setup: GatewaySetup, rules: GatewayRules) -> None:
        self.rules = rules
        self.above = [0]
        self.length = [0]
        self.entries: list[Entry | None] = [None]
        self._children: dict[tuple[int, Entry], int] = {}
        self._trees: dict[tuple[int, int], Tree] = {}
        self._composed: dict[tuple[int, int, Request], Composed] = {}
        self.first = 0
        own = {request[1] for script in setup.scripts for request in script if request[0] == "rename"}
        for number, path in enumerate((*TEMPORARY, FINAL), 1):
            if path not in own and not (path == FINAL and setup.final):
                continue
            put = PutFile(path, 0, number, (BodyExtent(0, number, 0),))
            self.first = self.extend(self.first, Entry(1, put))

    def extend(self, line: int, entry: Entry) -> int:
        found = self._children.get((line, entry))
        if found is None:
            found = self._children[line, entry] = len(self.entries)
            self.entries.append(entry)
            self.above.append(line)
            self.length.append(self.length[line] + 1)
        return found

    def cut(self, line: int, length: int) -> int:
        """Return the line of the first records of another one."""
        while self.length[line] > length:
            line = self.above[line]
        return line

    def continues(self, line: int, other: int) -> bool:
        return self.cut(line, self.length[other]) == other

    def epoch(self, line: int) -> int:
        entry = self.entries[line]
        return 0 if entry is None else entry.epoch

    def last_change(self, line: int) -> int:
        """Return the line without the records at its end that change nothing."""
        while (entry := self.entries[line]) is not None and not isinstance(entry.change, Change):
            line = self.above[line]
        return line

    def records(self, line: int) -> list[Entry]:
        found = []
        while (entry := self.entries[line]) is not None:
            found.append(entry)
            line = self.above[line]
        return found[::-1]

    def tree(self, line: int, epoch: int) -> Tree:
        """Return the tree of a line, as a gateway of that epoch has it."""
        if self.rules.moved_from_in_the_log:
            epoch = 0
        if (known := self._trees.get((line, epoch))) is not None:
            return known
        tree = Tree([SegmentNote(1, 0, 0, 0)])
        for position, entry in enumerate(self.records(line), 1):
            if not isinstance(entry.change, Change):
                continue
            tree.apply(entry.change, position)
            if isinstance(entry.change, MoveNode) and (not self.rules.moved_from or entry.epoch < epoch):
                tree.get(parts_of(entry.change.target)).moved_from = ""
        self._trees[line, epoch] = tree
        return tree

    def compose(self, line: int, epoch: int, request: Request) -> Composed:
        key = (line, epoch, request)
        if (known := self._composed.get(key)) is None:
            known = self._composed[key] = self._compose(self.tree(line, epoch), request)
        return known

    def _compose(self, tree: Tree, request: Request) -> Composed:
        op, *paths = request
        parts = [parts_of(path) for path in paths]
        answer, change = "", None
        try:
            if op == "read":
                answer = f"{tree.get(parts[0]).length}"
            elif op == "rename":
                moved = tree.move(parts[0], parts[1], "NONE", 0)
                answer, change = "done", None if isinstance(moved, bool) else moved
            elif op == "delete":
                change = tree.remove(parts[0], recursive=False, now_ms=0)
                if isinstance(change, MarkReplaceable) and not self.rules.replaceable:
                    change = RemoveNode(change.path, 0)
                answer = "done" if change is not None else "nothing"
            else:
                tree.check_put(parts[0], overwrite=False)
                answer = "done"
        except HadoopError as error:
            answer = {"FileNotFoundException": "missing"}.get(error.java.rpartition(".")[2], "exists")
        return Composed(answer, change, tree.rests_on(*parts))


class Member(NamedTuple):
    """A member of the store. acked: of each gateway, how much of its line it has acknowledged to it."""

    claim: int
    copy: int
    acked: tuple[int, int]


class Held(NamedTuple):
    """A request that a gateway has received and not executed. knew: the line on which all answers rested that
    were given before it was sent. arrived: not on its way any more. waits: for its answer. gone: its
    connection has ended, which is seen. grown: the chain has grown since it came.
    """

    driver: int
    request: Request
    knew: int
    arrived: bool = True
    waits: bool = True
    gone: bool = False
    grown: bool = False


class Running(NamedTuple):
    """A request that is executed, and its answer waits. line: of the gateway, when it was composed. pieces:
    of an upload, where they are. answer: empty until its change is appended.
    """

    driver: int
    request: Request
    knew: int
    line: int
    answer: str
    rests_on: int
    pieces: tuple[int, ...] = ()
    waits: bool = True


STANDBY, CLAIMED, OPEN = range(3)


class GatewayState(NamedTuple):
    """One gateway. line: what it has applied. adopted: how much of that it took over."""

    stage: int = STANDBY
    epoch: int = 0
    line: int = 0
    adopted: int = 0
    lease: bool = False
    stopped: bool = False
    held: tuple[Held, ...] = ()
    running: tuple[Running, ...] = ()


class Driver(NamedTuple):
    """done: how many of its requests were answered. waiting: for an answer."""

    done: int = 0
    waiting: bool = False


class TreeState(NamedTuple):
    """The whole state. told: the line on which the answers rest that were given. winners: drivers whose
    rename succeeded. spent: take-overs, losses, unseen ends, stops.
    """

    members: tuple[Member, ...]
    gateways: tuple[GatewayState, ...]
    drivers: tuple[Driver, ...]
    told: int
    winners: tuple[int, ...] = ()
    spent: tuple[int, int, int, int] = (0, 0, 0, 0)
    wrong: str = ""
