"""Streaming queries of other engines that are registered as consumers of an input or an output log. Pure.

A region's manifest shows what the region needs. The checkpoint of such a query is a directory of its engine,
which the store cannot read. So the query publishes positions in the register.

Theory:

1. A query registers before it reads its first row. It then needs everything, or everything from the offset on
   at which its engine continues.
2. It publishes a position only after its engine has durably committed the batches up to there: the engine can
   then replay only what follows. It publishes rarely, so the register is older than the checkpoint and asks
   for more, never for less.
3. What it needs is the lowest of its retained positions, each on its line of history
   (`core/records/consumers.py:query_need`). A position is dropped only once a later one is older
   than `retain_s`. Within this time the engine's checkpoint can lose its newest batches, or be restored from
   a backup, and the query still finds every row.
4. If the engine continues below what is registered (an older backup), the need is lowered before anything is
   read: rows that are still there stay. Rows that are gone are an error of the reader.
   A query that learns only from the data where it continues needs everything until then (`continued_later`).
5. One process at a time publishes under a name, the one that registered last (`session`). So a second query
   with the name of another one cannot release what the other one needs: one of the two fails. A process that
   registers again, because it lost its connection, does not take the name back (`check_session`).
"""

from collections.abc import Mapping, Sequence

import msgspec

from checkpoint.errors import ConsumerRefusedError, ConsumerTakenError

POSITIONS_PER_RETENTION = 4
"""How many positions a query publishes within the time for which it retains them; bounds the register."""
_POSITIONS_MAX = 8


class QueryPosition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A position of a query. at_ms: when it was published. splits: split -> the logical offset up to which
    the engine had committed it; a split that is not named is needed from 0 on. lines: split -> the line of
    history of an output on which that was read, if it is not line 0.
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
    the order of publication; the first one of a new query names no split.
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
    """Register a query that has no checkpoint: it needs everything.

    Raises ConsumerRefusedError if rows that a query under this name has read may be deleted: that one is
    another query, or its checkpoint was deleted.
    """
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
    """Register a query that continues at `start`, as its checkpoint says: it needs everything from there on,
    and whatever is registered already. lines: as in `QueryPosition`.
    """
    positions = () if known is None else known.positions
    here = QueryPosition(at_ms=now_ms, splits=dict(start), lines=_not_first(lines))
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
    """Register where a query continues that registered for everything, once it knows that. before: what was
    registered until then, which it needs too.

    Raises ConsumerRefusedError if another process has registered under this name, or a person has removed it.
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
    """Add a position up to which the engine has committed everything, and drop those that it replaces.

    Raises ConsumerRefusedError if another process has registered under this name, or a person has removed it.
    """
    known = check_session(known, name, session)
    retain_ms = int(1000 * retain_s)
    # A clock that was set back must not keep positions for ever: they count as published now.
    before = [msgspec.structs.replace(one, at_ms=min(one.at_ms, now_ms)) for one in known.positions]
    spacing_ms = retain_ms // POSITIONS_PER_RETENTION
    if not before or now_ms - before[-1].at_ms >= spacing_ms or len(before) == 1:
        before.append(QueryPosition(at_ms=now_ms, splits=dict(splits), lines=_not_first(lines)))
    old = [index for index, one in enumerate(before) if one.at_ms <= now_ms - retain_ms]
    kept = before[old[-1] :] if old else before
    first: list[QueryPosition] = []
    for index, one in enumerate(kept[:-_POSITIONS_MAX]):  # the register is bounded: the lowest stay
        if not _is_covered(one, [*first, *kept[index + 1 :]]):
            first.append(one)
    return msgspec.structs.replace(known, positions=(*first, *kept[-_POSITIONS_MAX:]))


def check_session(known: RegisteredQuery | None, name: str, session: str) -> RegisteredQuery:
    """Return what is registered. Raises ConsumerTakenError if another process has registered under this name,
    ConsumerRefusedError if a person has removed it.
    """
    if known is None:
        raise ConsumerRefusedError(
            f"{name!r} was removed from the consumers while its query ran",
            remedy="restart the query: it registers again, and continues if no row that it needs was deleted",
        )
    if known.session != session:
        raise ConsumerTakenError(
            f"{name!r} was registered by another process while this query ran: either this query was started"
            " a second time, or two queries use this name"
        )
    return known
