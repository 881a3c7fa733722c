"""Hypothesis strategies for everything the wire carries."""

from hypothesis import strategies as st

from dos_protocol import messages as m
from dos_protocol.store_record import Member, MemberState, StoreRecord

u8 = st.integers(0, 255)
u16 = st.integers(0, 2**16 - 1)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
ids = st.binary(min_size=16, max_size=16)
good_names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", fullmatch=True)
wire_names = st.text(st.characters(max_codepoint=255), max_size=255)
texts = st.text(max_size=60)
blobs = st.binary(max_size=80)
payloads = st.one_of(
    st.binary(max_size=200), st.integers(0, 5000).map(lambda n: bytes(i % 251 for i in range(n)))
)
infos = st.builds(m.ObjectInfo, wire_names, u64, u64, u64, st.booleans(), st.booleans(), st.booleans())
entries = st.lists(infos, max_size=5).map(tuple)

messages: st.SearchStrategy[m.Message] = st.one_of(
    st.builds(m.Hello, u8, blobs, ids, u64, texts),
    st.builds(m.Welcome, u8, ids, u32, u32, u32, blobs, u64, ids, st.booleans(), blobs, st.booleans()),
    st.builds(m.ChangeDirectory, wire_names, st.booleans(), u64, ids),
    st.builds(m.DirectoryOpened, u64, ids, entries),
    st.builds(m.Append, wire_names, u64, u64, payloads),
    st.builds(m.DurabilityAck, wire_names, u64, u64),
    st.builds(m.Get, wire_names, u64, u32, u32),
    st.builds(m.Data, wire_names, u64, u64, payloads),
    st.builds(m.List, wire_names, wire_names, u32),
    st.builds(m.Listing, entries, st.booleans()),
    st.builds(m.Stat, wire_names, u64),
    st.builds(m.StatResult, infos, u64, u64),
    st.builds(m.Delete, wire_names),
    st.builds(m.Deleted, wire_names),
    st.builds(m.Configure, blobs),
    st.builds(m.Configured, u64),
    st.builds(m.Ping, payloads),
    st.builds(m.Pong, payloads),
    st.just(m.Quit()),
    st.just(m.Bye()),
    st.builds(m.RepairChunk, wire_names, u64, u64, u64, u64, u64, st.booleans(), payloads),
    st.builds(m.RepairAck, wire_names, u64, st.booleans()),
    st.builds(m.Stamp, u64, ids),
    st.builds(m.Stamped, u64, ids),
    st.builds(m.Witness, ids, u64, ids, u64, ids),
    st.builds(m.Witnessed, ids, u64, ids),
    st.builds(m.ScrubRequest, st.booleans(), u64),
    st.builds(m.ScrubProgress, u64, u64, u64, u64, u64),
    st.builds(m.Error, u16, texts, texts, u64, blobs),
)


@st.composite
def store_records(draw: st.DrawFn) -> StoreRecord:
    count, extra = draw(st.integers(1, 5)), draw(st.integers(0, 2))
    server_ids = draw(st.lists(ids.filter(any), min_size=count + extra, max_size=count + extra, unique=True))
    joining = draw(st.booleans()) and count > 1
    state: MemberState = draw(st.sampled_from(["joining", "adding"]))

    def state_of(index: int) -> MemberState:
        return "spare" if index >= count else state if joining and index == count - 1 else "in"

    every = tuple(
        Member(one, f"host-{index}:{9000 + index}", state_of(index)) for index, one in enumerate(server_ids)
    )
    quorum = draw(st.integers(1, count - joining))
    generation = draw(st.integers(1, 2**64 - 1))
    return StoreRecord(draw(ids.filter(any)), generation, quorum, every[:count], every[count:])
