"""Who still needs the data of an input or an output: registered consumers, the retention rule, and how far a
chain may be trimmed. Pure; docs/decisions/0221 has the reasons.

A region registers durably before it reads an input, and stays registered until a person removes it. What it
needs follows from its manifest alone: everything from the lowest position of its retained checkpoints on. A
producer trims whole segments in two phases (R14): once the start that names a floor is acknowledged, *the
register is read again*, and only what no consumer needs then is deleted. Without a consumer and a rule
nothing is deleted; a limit by size or age deletes also what a consumer needs. A streaming query of another
engine, whose checkpoint the store cannot read, publishes positions that its engine has committed; it needs
everything from the lowest retained one on. One process at a time publishes under a name, the last one that
registered.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from checkpoint.core.graph_change import born_with, stored_under
from checkpoint.core.records.inputs import EntryOrigins, check_input_name
from checkpoint.core.records.lines import parting
from checkpoint.core.records.manifest import Checkpoint
from checkpoint.core.records.outputs import OUTPUT_CHAIN_PREFIX, output_chain
from checkpoint.errors import ConsumerRefusedError, ConsumerTakenError
from dos_protocol.errors import MALFORMED_JSON, CorruptDataError
from dos_protocol.names import check_name
from journal import NO_FLOOR, Floor

POSITIONS_PER_RETENTION = 4
"""How many positions a query publishes within the time for which it retains them; bounds the register."""
_POSITIONS_MAX = 8


class QueryPosition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A position of a query. at_ms: when it was published. splits: split -> the logical offset committed by
    the engine; one that is not named is needed from 0 on. lines: split -> its line of history, if not 0.
    """

    at_ms: int
    splits: dict[str, int]
    lines: dict[str, int] = {}

    def point(self, split: str) -> tuple[int, int]:
        """Return the offset of a split, and its line."""
        return self.splits.get(split, 0), self.lines.get(split, 0)

    def covers(self, split: str, position: int, line: int) -> bool:
        """Return whether what is needed from that position of a line on is needed from this one on, too."""
        here, of_line = self.point(split)
        return not here or (here <= position and of_line == line)


class RegisteredQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query that reads the data. session: of the process that may publish. positions: the retained ones, in
    order; the first one of a new query names no split.
    """

    session: str
    since_ms: int
    positions: tuple[QueryPosition, ...]

    @property
    def needs_everything(self) -> bool:
        """Whether it needs everything since it was registered: it is new, or was new recently."""
        return any(not one.splits for one in self.positions)

    @property
    def published_ms(self) -> int:
        """When it last published."""
        return max((one.at_ms for one in self.positions), default=self.since_ms)

    def read(self, split: str) -> int:
        """Return how far it had committed a split when it last published."""
        return self.positions[-1].splits.get(split, 0) if self.positions else 0


def new_query(known: RegisteredQuery | None, name: str, session: str, now_ms: int) -> RegisteredQuery:
    """Register a query that has no checkpoint: it needs everything. Raises ConsumerRefusedError if rows that
    one under this name has read may be deleted.
    """
    # One that still needs everything may have died between its registration and its first recorded batch.
    if known is not None and not known.needs_everything:
        raise ConsumerRefusedError(
            f"{name!r} is registered for a query that has read rows; this query has no checkpoint",
            remedy="choose another name for the option 'consumer', or, if the other query is gone for ever,"
            f" remove it: dos input|output forget ... query:{name} --apply",
        )
    since_ms = now_ms if known is None else known.since_ms
    return RegisteredQuery(
        session=session, since_ms=since_ms, positions=(QueryPosition(at_ms=now_ms, splits={}),)
    )


def continued_query(
    known: RegisteredQuery | None,
    session: str,
    start: Mapping[str, int],
    now_ms: int,
    lines: Mapping[str, int] = {},
) -> RegisteredQuery:
    """Register a query that continues at `start`, and needs whatever is registered already. lines: as in
    `QueryPosition`.
    """
    positions = () if known is None else known.positions
    here = QueryPosition(at_ms=now_ms, splits=dict(start), lines=_not_first(lines))
    # Also below what is registered: an engine that continues from an older backup of its checkpoint needs
    # what is still there.
    if not _is_covered(here, positions):
        positions = (*positions, here)
    return RegisteredQuery(
        session=session, since_ms=now_ms if known is None else known.since_ms, positions=positions
    )


def continued_later(
    known: RegisteredQuery | None,
    before: RegisteredQuery | None,
    name: str,
    session: str,
    start: Mapping[str, int],
    now_ms: int,
    lines: Mapping[str, int] = {},
) -> RegisteredQuery:
    """Register where a query continues that registered for everything. before: what was registered until
    then, which it needs too. Raises ConsumerRefusedError.
    """
    check_session(known, name, session)
    return continued_query(before, session, start, now_ms, lines)


def _not_first(lines: Mapping[str, int]) -> dict[str, int]:
    return {split: line for split, line in lines.items() if line}


def _is_covered(position: QueryPosition, others: Sequence[QueryPosition]) -> bool:
    """Return whether everything that is needed from a position on is needed from others on, too."""
    named = {split for one in others for split in one.splits} | position.splits.keys()
    return bool(others) and all(
        any(one.covers(split, *position.point(split)) for one in others) for split in named
    )


def published(
    known: RegisteredQuery | None,
    name: str,
    session: str,
    splits: Mapping[str, int],
    now_ms: int,
    retain_s: float,
    lines: Mapping[str, int] = {},
) -> RegisteredQuery:
    """Add a position up to which the engine has committed, and drop those that it replaces. Raises
    ConsumerRefusedError.
    """
    known = check_session(known, name, session)
    retain_ms = int(1000 * retain_s)
    # A clock that was set back must not keep positions for ever: they count as published now.
    before = [msgspec.structs.replace(one, at_ms=min(one.at_ms, now_ms)) for one in known.positions]
    spacing_ms = retain_ms // POSITIONS_PER_RETENTION
    if not before or now_ms - before[-1].at_ms >= spacing_ms or len(before) == 1:
        before.append(QueryPosition(at_ms=now_ms, splits=dict(splits), lines=_not_first(lines)))
    # A position stays until a later one is older than `retain_s`: meanwhile the engine's checkpoint may lose
    # its newest batches, and the query must still find every row.
    old = [index for index, one in enumerate(before) if one.at_ms <= now_ms - retain_ms]
    kept = before[old[-1] :] if old else before
    first: list[QueryPosition] = []
    for index, one in enumerate(kept[:-_POSITIONS_MAX]):  # the register is bounded: the lowest stay
        if not _is_covered(one, [*first, *kept[index + 1 :]]):
            first.append(one)
    return msgspec.structs.replace(known, positions=(*first, *kept[-_POSITIONS_MAX:]))


def check_session(known: RegisteredQuery | None, name: str, session: str) -> RegisteredQuery:
    """Return what is registered. Raises ConsumerTakenError, or ConsumerRefusedError if a person has removed
    it.
    """
    if known is None:
        raise ConsumerRefusedError(
            f"{name!r} was removed from the consumers while its query ran",
            remedy="restart the query: it registers again, and continues if no row that it needs was deleted",
        )
    # A second query with the name of this one would release what this one needs: one of the two must fail.
    # Nor does a process that lost its connection take the name back.
    if known.session != session:
        raise ConsumerTakenError(
            f"{name!r} was registered by another process while this query ran: either this query was started"
            " a second time, or two queries use this name"
        )
    return known


REGISTER_VERSION: Final = 1
"""A reader refuses any other: it would trim what consumers need that it does not know of."""
QUERY_PREFIX: Final = "query:"
"""Distinguishes queries from regions where a person names one. No name of a region contains a colon."""


INPUT_REGISTERS: Final = ".rd."
"""In the name of a register's directory: between the application and the input."""
OUTPUT_REGISTERS: Final = ".ro"
"""The end of the name of the directory with the registers of a region's output logs."""


class RegisterPlace(NamedTuple):
    """Where a register is kept. The directories are never longer than those of the data, so every valid name
    stays valid.
    """

    directory: str
    chain: str


def input_register(application: str, handle: str) -> RegisterPlace:
    """Return the place of the register of an input. Raises BadNameError."""
    return RegisterPlace(
        check_name(f"{application}{INPUT_REGISTERS}{check_input_name('an input handle', handle)}"),
        "consumers",
    )


def output_register(region: str, sink: str) -> RegisterPlace:
    """Return the place of the register of an output log. Raises BadNameError."""
    return RegisterPlace(check_name(f"{region}{OUTPUT_REGISTERS}"), check_name(output_chain(sink)))


class Consumer(msgspec.Struct, frozen=True, kw_only=True):
    """A region that reads the data. sources: its sources that do. since_ms: wall clock of the first one."""

    sources: tuple[str, ...]
    since_ms: int


class RetentionRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is deleted. by_consumers: what every consumer has read. The limits delete more; None: no limit.

    bytes_max: of each chain, the newest bytes that stay, in whole segments. age_max_s: older rows may be
    deleted, by their writer's clock. set_by, set_ms: who set it and when, for errors.
    """

    by_consumers: bool = True
    bytes_max: int | None = None
    age_max_s: float | None = None
    set_by: str = ""
    set_ms: int = 0

    @property
    def limits_anything(self) -> bool:
        return self.bytes_max is not None or self.age_max_s is not None

    def __str__(self) -> str:
        limits = []
        if self.bytes_max is not None:
            limits.append(f"at most {self.bytes_max} bytes")
        if self.age_max_s is not None:
            limits.append(f"at most {self.age_max_s:g} s")
        return " and ".join(limits) or "no limit"


class Register(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a register. Each record of its chain has all of it; the last one counts."""

    version: int = REGISTER_VERSION
    consumers: dict[str, Consumer] = {}
    """Region -> what it reads."""
    rule: RetentionRule | None = None
    """Set by a person. None: the default, which is `RetentionRule()` of an input, and the sink's of an
    output.
    """
    queries: dict[str, RegisteredQuery] = {}
    """Name -> the streaming query of another engine."""
    entry: EntryOrigins | None = None
    """Of an input that entry points serve: their settings and its origins."""
    difference: str = ""
    """Of an input that a merge of replicas records: what it found them to differ in last. Every later merge
    compares all rows.
    """


_decoder: "msgspec.json.Decoder[Register]" = msgspec.json.Decoder(Register)


def encode_register(register: Register) -> bytes:
    """Return the JSON of a register."""
    content = msgspec.to_builtins(register)
    if not register.queries:
        del content["queries"]
    if register.entry is None:
        del content["entry"]
    if not register.difference:
        del content["difference"]
    return msgspec.json.encode(content)


def decode_register(strings: Sequence[bytes], *, where: str, at: int) -> Register:
    """Return the register in the record CONSUMERS that ends at byte `at` of the chain `where`. Raises
    CorruptDataError, also for a newer version.
    """
    try:
        register = _decoder.decode(strings[0])
    except (IndexError, *MALFORMED_JSON) as error:
        raise CorruptDataError(where, at, "the JSON of a register of consumers", str(error)) from error
    if register.version != REGISTER_VERSION:
        expected = f"a register of version {REGISTER_VERSION}"
        raise CorruptDataError(where, at, expected, str(register.version))
    return register


def with_consumer(register: Register, region: str, source: str, now_ms: int) -> Register:
    """Return the register with this source of a region added; the same one if it is there."""
    known = register.consumers.get(region, Consumer(sources=(), since_ms=now_ms))
    if source in known.sources:
        return register
    added = msgspec.structs.replace(known, sources=tuple(sorted({*known.sources, source})))
    return msgspec.structs.replace(register, consumers={**register.consumers, region: added})


def without_consumer(register: Register, region: str) -> Register:
    """Return the register without a region, or `query:NAME`. Raises ConsumerRefusedError if it is not
    registered.
    """
    if region.startswith(QUERY_PREFIX) and region.removeprefix(QUERY_PREFIX) in register.queries:
        return with_query(register, region.removeprefix(QUERY_PREFIX), None)
    if region not in register.consumers:
        kind = "query" if region.startswith(QUERY_PREFIX) else "region"
        known = ", ".join(names_of(register)) or "none"
        raise ConsumerRefusedError(
            f"{kind} {region.removeprefix(QUERY_PREFIX)!r} is not registered; registered are: {known}"
        )
    left = {name: one for name, one in register.consumers.items() if name != region}
    return msgspec.structs.replace(register, consumers=left)


def with_query(register: Register, name: str, query: RegisteredQuery | None) -> Register:
    """Return the register with a query added or replaced; None: without it."""
    queries = {known: one for known, one in register.queries.items() if known != name}
    if query is not None:
        queries[name] = query
    return msgspec.structs.replace(register, queries=queries)


def with_entry(register: Register, entry: EntryOrigins) -> Register:
    """Return the register with these origins of entry points."""
    return msgspec.structs.replace(register, entry=entry)


def names_of(register: Register) -> list[str]:
    """Return the names of all consumers, as people write them."""
    return [*sorted(register.consumers), *(QUERY_PREFIX + name for name in sorted(register.queries))]


def with_rule(register: Register, rule: RetentionRule | None) -> Register:
    """Return the register with another rule; None: the default."""
    return msgspec.structs.replace(register, rule=rule)


class OutputOf(NamedTuple):
    """Whose output log it is that consumers read. last: the last checkpoint of its region."""

    sink: str
    last: Checkpoint | None


def output_of(place: RegisterPlace) -> tuple[str, str] | None:
    """Return the region and the sink whose register this is; None for that of an input."""
    if not place.directory.endswith(OUTPUT_REGISTERS):
        return None
    return place.directory.removesuffix(OUTPUT_REGISTERS), place.chain.removeprefix(OUTPUT_CHAIN_PREFIX)


def on_line(position: int, line: int, split: str, output: OutputOf | None) -> int:
    """Return from where on a consumer needs a split read up to `position` on a line; output None: an input
    has one line.
    """
    last = None if output is None else output.last
    if output is None or last is None or line == last.line:
        return position
    if line > last.line:  # the manifest was read before the region was restored
        return 0
    # However far it had read: what follows the parting is on the present line, and it has not read that.
    parted = parting(last, line)
    assert parted is not None, "the lines differ"
    return min(position, parted.outputs.get(int(split[1:]), {}).get(output.sink, 0))


def need_of(
    kept: Sequence[Checkpoint],
    sources: Sequence[str],
    split: str,
    output: OutputOf | None = None,
    *,
    region: str = "",
) -> int | None:
    """Return the position from which on a region needs a split: the lowest one of its retained checkpoints
    that have a source which reads it, 0 if one has not read it. None: nothing (`still_read`).
    """
    # A manifest that is read late asks for more, never for less: releases are not taken back, and a restore
    # goes to a retained checkpoint.
    return min(
        (
            _position(checkpoint, source, split, output)
            for source in still_read(kept, sources, region)
            for checkpoint in [one for one in kept if _has(one, source)] or kept
        ),
        default=None if kept else 0,
    )


def still_read(kept: Sequence[Checkpoint], sources: Sequence[str], region: str) -> tuple[str, ...]:
    """Return those of the registered sources of a region, by their uids, that may read any more. kept: its
    retained checkpoints. region: its name; "": only what these checkpoints need counts.

    A source is registered before a checkpoint has it, and stays registered after it was removed. One that
    comes has a uid of the last checkpoint. One of an earlier checkpoint that no retained one has was removed,
    or its graph was given up before its first checkpoint: it never comes again.
    """
    comes = born_with(region, kept[-1].number) if kept and region else ""
    return tuple(
        one
        for one in sources
        if not kept or (comes and one.startswith(comes)) or any(_has(checkpoint, one) for checkpoint in kept)
    )


def _has(checkpoint: Checkpoint, source: str) -> bool:
    if any(source in part.sources for part in checkpoint.workers.values()):
        return True
    return source in stored_under(checkpoint.operators, checkpoint.uids).values()


def _position(checkpoint: Checkpoint, source: str, split: str, output: OutputOf | None) -> int:
    found = [part.sources.get(source, {}).get(split) for part in checkpoint.workers.values()]
    return min((on_line(at.position, at.line, split, output) for at in found if at is not None), default=0)


def query_need(query: RegisteredQuery, split: str, output: OutputOf | None = None) -> int:
    """Return the position from which on a query needs a split; `on_line` has the reason for `output`."""
    return min((on_line(*one.point(split), split, output) for one in query.positions), default=0)


class ChainNow(NamedTuple):
    """A chain that may be trimmed. last_end: of the last complete batch, or to where its writer may return.
    times_ms: segment -> wall clock of its first record, as far as known.
    """

    segments: Sequence[Floor]
    end: int
    last_end: int
    times_ms: Mapping[Floor, int]


class Reason(NamedTuple):
    """How far a chain may be trimmed, and because of what: "consumers", "size", "age" or "" (nowhere)."""

    floor: Floor
    because: str


def trim_floor(chain: ChainNow, needs: Mapping[str, int], rule: RetentionRule, now_ms: int) -> Reason:
    """Return the lowest segment that stays. needs: consumer -> the position from which on it needs the chain.
    The segment that contains `last_end` always stays.
    """
    found = Reason(NO_FLOOR, "")
    if needs and rule.by_consumers:
        found = max(found, Reason(_containing(chain, min(needs.values())), "consumers"))
    if rule.bytes_max is not None:
        found = max(found, Reason(_containing(chain, chain.end - rule.bytes_max), "size"))
    if rule.age_max_s is not None:
        found = max(found, Reason(_as_old(chain, now_ms - int(1000 * rule.age_max_s)), "age"))
    # The producer's next batch continues the last one: without it, the producer would begin at 1 again, and
    # count a batch twice.
    return found._replace(floor=min(found.floor, _containing(chain, chain.last_end)))


def may_trim(segments: Sequence[Floor], last_end: int) -> bool:
    """Return whether anything could be trimmed if no consumer needed it."""
    return any(one[1] < last_end for one in segments[1:])


def _containing(chain: ChainNow, position: int) -> Floor:
    """Return the segment that contains the byte before a position; NO_FLOOR if that is below all."""
    # So the segment in which a reader stopped stays, even if it stopped at its end: it continues there.
    return max((one for one in chain.segments if one[1] < position), default=NO_FLOOR)


def _as_old(chain: ChainNow, before_ms: int) -> Floor:
    """Return the highest segment whose first record is as old: all records below it are at least as old."""
    floor = NO_FLOOR
    for one in chain.segments:
        time_ms = chain.times_ms.get(one)
        if time_ms is not None and time_ms > before_ms:
            break
        if time_ms is not None:
            floor = one
    return floor


def trimmed_because(register: Register) -> str:
    """Return why rows were trimmed, according to the register, for the error of a reader that needs them."""
    rule, names = register.rule, ", ".join(names_of(register))
    if rule is not None and rule.limits_anything:
        by = f", set by {rule.set_by}" if rule.set_by else ""
        return f"the retention rule is {rule}{by}, and deletes rows that consumers still need"
    if names:
        return f"all consumers that were registered at that time had read them; registered now are: {names}"
    return "consumers that are no longer registered had read them, or a rule that was removed allowed it"


class TrimStep(NamedTuple):
    """What a writer does next: delete below `collect`, then name `release` in a new segment. NO_FLOOR: not
    now.
    """

    collect: Floor
    release: Floor


def next_step(
    segments: Sequence[Floor], floor: Floor, released: Floor, collected: Floor, segments_max: int
) -> TrimStep:
    """Return the next step toward a floor that was computed *after* `released` was acknowledged. collected:
    what is being deleted already. segments_max: how many one step releases.
    """
    # Never above `released`: a consumer that registers after `floor` was computed finds the released floor
    # before its first row, but nothing would tell it of a higher one.
    collect = max(collected, min(floor, released))
    above = [one for one in segments[1:] if released < one <= floor]
    return TrimStep(collect, above[min(segments_max, len(above)) - 1] if above else NO_FLOOR)
