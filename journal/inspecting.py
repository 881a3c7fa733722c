"""Where the commands get their records from: a local file, one object of a store, or a whole chain.

A fault in the records ends up in the outcome; a target that does not exist or cannot be reached is raised.

    FILE                               a journal file, version 0 or 1
    dos://h[,h2..]/directory/object    the longest copy of that object, committed or not
    dos://h[,h2..]/directory/CHAIN     if there is no such object: the chain, as a reader may see it
    s3://bucket/prefix/directory/CHAIN the archive of a chain
    JOURNAL                            the chain of a journal on the local disk (`LocalClaim`)
    DATA/directory/NAME                an object or a chain in the data directory of a stopped server: the
                                       bytes on that disk, whatever other servers have
    dos://..+s3://bucket/prefix        a chain whose older segments are in that archive
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from dos_client.errors import BadUrlError, DamagedMembersError
from dos_client.store import Store, connect, open_store
from dos_client.urls import SCHEME, DosUrl, parse_url
from dos_protocol.errors import (
    CorruptDataError,
    CorruptError,
    DosError,
    LocalProtocolError,
    NotFoundError,
    PoisonedError,
)
from journal.archive.bucket import SCHEME as S3_SCHEME
from journal.archive.bucket import Bucket, parse_s3_url
from journal.archive.reading import ArchivedChain, ServersAndArchive, in_thread, read_manifest
from journal.chain import inspect_chain, inspect_committed
from journal.core.chain import ChainState, SegmentSpan, parse_segment_name
from journal.core.errors import HistoryMissingError, HistoryTrimmedError, LostBytesError
from journal.core.inspection import Inspector, Located, Tally
from journal.core.record import VERSION_1, Decoded
from journal.core.scan import SpanReplay, Step
from journal.files.history import stretch_below
from journal.limits import file_read_bytes, read_bytes_max
from journal.local_store import LocalStore
from journal.ports import DirectoryViewPort, Progress, StorePort
from journal.reading import ChainSource, span_chunks

OpenDataDirectory = Callable[[Path], AbstractContextManager[StorePort]]
"""Opens the data directory of a server that does not run. Raises LocalProtocolError if it runs. `journal`
does not import `dos_server`, which knows the format: the program that runs the commands passes it in.
"""
_openers: list[OpenDataDirectory] = []


def read_data_directories_with(opener: OpenDataDirectory) -> None:
    _openers[:] = [opener]


def open_data_directory(root: Path) -> AbstractContextManager[StorePort]:
    """Open a data directory. Raises LocalProtocolError if its server runs, or if no opener is set."""
    if not _openers:
        raise LocalProtocolError(f"{root} is a data directory: `dos journal` reads these")
    return _openers[0](root)


class InDataDirectory(NamedTuple):
    """DATA/DIRECTORY/NAME: an object, or a chain, in a server's data directory."""

    root: Path
    directory: str
    name: str


def in_data_directory(target: str) -> InDataDirectory | None:
    """Return the object or chain in a data directory that the target names, None if it names no such path."""
    path = Path(target)
    if len(path.parts) < 3 or path.exists() or not (path.parents[1] / "identity").is_file():
        return None
    return InDataDirectory(path.parents[1], path.parent.name, path.name)


Consumer = Callable[[list[Located]], bool]  # takes records in order; False when it has seen enough


@dataclass(slots=True)
class InspectionOutcome:
    """The result of an inspection: the counts, and the first fault, whose segment begins at offset `base`."""

    target: str
    kind: str = "file"
    tally: Tally = field(default_factory=Tally)
    fault: DosError | None = None
    base: int = 0
    end: str = ""
    gone: str = ""  # of a chain's history: what was trimmed
    missing: str = ""  # of a chain's history: what is missing although no segment says it was trimmed
    left_out: str = ""  # of a replay: what was left out because of damage, as requested
    unproved: str = ""  # of a chain: what lies past its end and cannot be proved committed now

    @property
    def not_verified(self) -> tuple[str, ...]:
        return tuple(text for text in (self.missing, self.unproved) if text)  # a sentence each

    @property
    def committed_only(self) -> bool:
        """Whether only committed records were returned (R10). False for a segment read as an object."""
        return self.kind != "object" or parse_segment_name(self.target) is None


DAMAGE: Final = CorruptDataError, LostBytesError, CorruptError, PoisonedError, DamagedMembersError
"""The errors that mean that the data are damaged or incomplete. All others mean that they cannot be read."""
_NAMES_LISTED_MAX: Final = 10


def is_url(target: str) -> bool:
    """Return whether a target is read like a store, and not as a journal file."""
    places = in_data_directory(target) or local_chain(target)
    return places is not None or target.startswith((SCHEME, S3_SCHEME))


def local_chain(target: str) -> str | None:
    """Return the chain whose segments a local directory holds; None if it is no journal of one chain."""
    path = Path(target)
    chains = {one.chain for one in LocalStore(path).segments()} if path.is_dir() else set()
    return chains.pop() if len(chains) == 1 else None


def inspect_file(path: Path, consume: Consumer, progress: Progress) -> InspectionOutcome:
    """Inspect a local journal file. Raises OSError if it cannot be read."""
    return _inspect_file(path, lambda inspector, chunk: consume(inspector.feed(chunk)), progress)


def replay_file(path: Path, take: Callable[[list[Decoded]], bool], progress: Progress) -> InspectionOutcome:
    """Inspect a local journal file faster: its records are passed with the logical offset just past each."""
    return _inspect_file(path, lambda inspector, chunk: take(inspector.feed_plain(chunk)), progress)


def _inspect_file(
    path: Path, feed: Callable[[Inspector, bytes], bool], progress: Progress
) -> InspectionOutcome:
    outcome = InspectionOutcome(str(path))
    inspector = Inspector(path.name)
    with path.open("rb", buffering=0) as file:
        size = path.stat().st_size
        done = 0
        while chunk := file.read(file_read_bytes):
            done += len(chunk)
            progress(done, size)
            if not feed(inspector, chunk) or inspector.fault is not None:
                return _outcome(outcome, inspector, ended=False)
    return _outcome(outcome, inspector, ended=True)


async def inspect_url(
    url: str, token: bytes, consume: Consumer, progress: Progress, *, history: bool = False
) -> InspectionOutcome:
    """Inspect an object or a chain of a store; history: also what exists below its newest snapshot. Raises
    NotFoundError, LocalProtocolError, and the errors of the client.
    """
    outcome = InspectionOutcome(url, "chain")
    try:
        async with open_target(url, token) as (store, directory, name, size):
            if size is not None:
                return await inspect_object(store, directory, name, size, consume, progress)
            state = await _chain_state(store, directory, name, outcome)
            if state is not None:
                below = await _below(store, directory, state, outcome) if history and state.segments else []
                await _inspect_chain(store, directory, [*below, state], outcome, consume, progress)
    except DosError as fault:
        _keep_damage(outcome, fault)
    return outcome


@asynccontextmanager
async def open_target(url: str, token: bytes) -> AsyncIterator[tuple[StorePort, str, str, int | None]]:
    """Open the target of a URL: return the store, the directory, the name, and the size of the longest copy
    of the object of that name; None if the name is that of a chain.
    """
    if (location := in_data_directory(url)) is not None:
        with open_data_directory(location.root) as disk:
            view = await disk.inspect(location.directory)
            _refuse_unknown(view, location.directory, location.name)
            found = [
                objects[location.name].synced for objects in view.answers.values() if location.name in objects
            ]
            yield disk, location.directory, location.name, max(found, default=None)
        return
    if (name := local_chain(url)) is not None:
        yield LocalStore(Path(url)), Path(url).name, name, None
        return
    if url.startswith(S3_SCHEME):
        archive, directory, chain = parse_s3_url(url).chain()
        yield await archived_chain(str(archive), archive.endpoint, directory, chain), directory, chain, None
        return
    servers, plus, bucket = url.partition(f"+{S3_SCHEME}")
    async with _in_servers(servers, token, known=not plus) as (store, directory, name, size):
        if plus and size is not None:
            raise BadUrlError(f"{servers} is an object; an archive holds only segments of chains")
        if plus:
            root = parse_s3_url(S3_SCHEME + bucket)
            archived = await archived_chain(str(root), root.endpoint, directory, name)
            yield ServersAndArchive(store, archived), directory, name, None
        else:
            yield store, directory, name, size


async def archived_chain(url: str, endpoint: str | None, directory: str, chain: str) -> ArchivedChain:
    """Open the archive of a chain. Raises the errors of `read_manifest` and of the bucket."""
    bucket = await in_thread(Bucket, parse_s3_url(url, endpoint))
    return ArchivedChain(bucket, await read_manifest(bucket, directory, chain))


@asynccontextmanager
async def _in_servers(
    url: str, token: bytes, *, known: bool
) -> AsyncIterator[tuple[Store, str, str, int | None]]:
    parsed = parse_url(url)
    if parsed.directory is None or parsed.object is None:
        raise LocalProtocolError(
            f"{url} names no journal",
            remedy="name a chain or an object: dos://HOST/DIRECTORY/NAME; `dos ls` lists them",
        )
    async with AsyncExitStack() as stack:
        store = await _open(stack, parsed, token)
        view = await store.inspect(parsed.directory)
        if known:
            _refuse_unknown(view, parsed.directory, parsed.object)
        sizes = [found[parsed.object].synced for found in view.answers.values() if parsed.object in found]
        yield store, parsed.directory, parsed.object, max(sizes, default=None)


def _refuse_unknown(view: DirectoryViewPort, directory: str, name: str) -> None:
    """Raise NotFoundError, which lists the existing names, if no member stores the object or the chain."""
    objects = {one for found in view.answers.values() for one in found}
    chains = {parsed.chain for one in objects if (parsed := parse_segment_name(one)) is not None}
    if name in objects | chains:
        return
    names = sorted(chains or objects)
    if not names:
        raise NotFoundError(f"directory {directory} holds no objects", remedy="`dos ls` lists directories")
    more = ", .." if len(names) > _NAMES_LISTED_MAX else ""
    raise NotFoundError(
        f"{directory} has no object and no chain {name}; it has {', '.join(names[:_NAMES_LISTED_MAX])}{more}",
        remedy="`dos ls` lists all objects",
    )


@asynccontextmanager
async def open_chain(url: str, token: bytes) -> AsyncIterator[tuple[StorePort, str, ChainState]]:
    """Open the chain of a URL: return the store, the directory and its committed part. Raises
    LocalProtocolError for the URL of an object, and the errors of `inspect_committed`.
    """
    async with open_target(url, token) as (store, directory, name, size):
        if size is not None:
            raise LocalProtocolError(
                f"{directory}/{name} is an object, not a chain",
                remedy="name the chain: a segment's name without its last two parts",
            )
        yield store, directory, await inspect_committed(store, directory, name)


async def _open(stack: AsyncExitStack, url: DosUrl, token: bytes) -> Store:
    """Open the store of the servers in the URL. A single server that belongs to no store is read alone."""
    if len(url.servers) == 1:
        alone = await stack.enter_async_context(connect(url, token=token, client="dos journal"))
        if alone.server_record is None:
            return alone
    return await stack.enter_async_context(open_store(url, token=token, client="dos journal"))


async def inspect_object(
    store: StorePort, directory: str, name: str, size: int, consume: Consumer, progress: Progress
) -> InspectionOutcome:
    """Inspect the first `size` bytes of an object."""
    outcome, inspector = InspectionOutcome(name, "object"), Inspector(name)
    try:
        async with aclosing(_fed(store, directory, inspector, size)) as pieces:
            async for done, located in pieces:
                progress(done, size)
                if not consume(located):
                    return _outcome(outcome, inspector, ended=False)
    except DosError as fault:
        _keep_damage(_outcome(outcome, inspector, ended=False), fault)
        return outcome
    return _outcome(outcome, inspector, ended=True)


async def _chain_state(
    store: StorePort, directory: str, chain: str, outcome: InspectionOutcome
) -> ChainState | None:
    try:
        state = await inspect_chain(store, directory, chain)
    except DosError as fault:
        _keep_damage(outcome, fault)
        return None
    if state.end is None and not state.seen:
        raise NotFoundError(f"{directory} has no object and no chain {chain}")
    outcome.unproved = state.unproved_text
    return state


async def _below(
    store: StorePort, directory: str, head: ChainState, outcome: InspectionOutcome
) -> list[ChainState]:
    found = [head]
    try:
        while (
            below := await stretch_below(store, directory, head.chain, found[-1], head.released)
        ) is not None:
            found.append(below)
    except HistoryMissingError as error:
        outcome.missing = str(error)
    except HistoryTrimmedError as error:
        outcome.gone = str(error)
    return found[:0:-1]


async def _inspect_chain(
    store: StorePort,
    directory: str,
    states: Sequence[ChainState],
    outcome: InspectionOutcome,
    consume: Consumer,
    progress: Progress,
) -> None:
    end, size = states[-1].end, sum(state.bytes for state in states)
    outcome.end = str(end) if end is not None else "nothing committed"
    before = 0
    for span in (span for state in states for span in state.segments):
        outcome.base = span.base
        outcome.tally.segments += 1
        try:
            async with aclosing(span_records(store, directory, span)) as pieces:
                async for done, located in pieces:
                    progress(before + done, size)
                    _count(outcome.tally, located)
                    if not consume(located):
                        return
        except DosError as fault:
            _keep_damage(outcome, fault)
            return
        before += span.length


async def span_records(
    store: StorePort, directory: str, span: SegmentSpan
) -> AsyncGenerator[tuple[int, list[Located]]]:
    """Yield (bytes read, complete records) of a span. Raises its fault, also at its end; as reading does."""
    replay, offset, done = SpanReplay(span), span.base, 0
    async with aclosing(span_chunks(ChainSource(store, directory), span, None)) as chunks:
        async for chunk in chunks:
            done += len(chunk)
            located = _locate(span, offset, replay.feed(chunk))
            offset = located[-1].end if located else offset
            yield done, located
    replay.finish()


async def object_records(
    store: StorePort, directory: str, name: str, size: int
) -> AsyncGenerator[tuple[int, list[Located]]]:
    """Yield (bytes read, complete records) of the first `size` bytes of an object that holds a journal."""
    inspector = Inspector(name)
    async with aclosing(_fed(store, directory, inspector, size)) as pieces:
        async for piece in pieces:
            yield piece
    if (fault := inspector.finish()) is not None:
        raise fault


async def _fed(
    store: StorePort, directory: str, inspector: Inspector, size: int
) -> AsyncGenerator[tuple[int, list[Located]]]:
    """Yield (bytes read, complete records) up to the first fault, which the inspector keeps."""
    source, done = ChainSource(store, directory), 0
    async with aclosing(source.chunks(inspector.where, size, chunk_bytes=read_bytes_max)) as chunks:
        async for chunk in chunks:
            done += len(chunk)
            yield done, inspector.feed(chunk)
            if inspector.fault is not None:
                return


def _locate(span: SegmentSpan, offset: int, steps: list[Step]) -> list[Located]:
    located = []
    for position, record in steps:
        located.append(Located(span.name, offset, position.size, VERSION_1, record))
        offset = position.size
    return located


def _count(tally: Tally, located: list[Located]) -> None:
    if not located:
        return
    tally.version = VERSION_1
    tally.records += len(located)
    tally.end_offset = located[-1].end
    if tally.first_offset is None:
        tally.first_offset = located[0].offset
    tally.bytes = tally.end_offset - tally.first_offset


def _outcome(outcome: InspectionOutcome, inspector: Inspector, *, ended: bool) -> InspectionOutcome:
    outcome.fault = inspector.finish() if ended else inspector.fault
    outcome.tally = inspector.tally
    outcome.base = inspector.logical_base
    outcome.end = str(inspector.tally.end_offset)
    return outcome


def _keep_damage(outcome: InspectionOutcome, fault: DosError) -> None:
    """Keep an error that means that the data are damaged. Raise any other error."""
    if not isinstance(fault, DAMAGE):
        raise fault
    outcome.fault = fault
