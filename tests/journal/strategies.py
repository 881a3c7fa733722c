"""Records for hypothesis: any that version 1 can say, and any that version 0 can."""

from hypothesis import strategies as st

from journal.core.record import FILE_ARITY, Op, Record

u64 = st.integers(0, 2**64 - 1)
strings = st.binary(max_size=40)


def file_records(op: Op) -> st.SearchStrategy[Record]:
    ints, texts = FILE_ARITY[op]
    return st.builds(
        Record,
        op=st.just(op),
        tag=u64,
        ints=st.tuples(*[u64] * ints),
        strings=st.tuples(*[strings] * texts),
    )


v0_records = st.sampled_from(sorted(FILE_ARITY)).flatmap(file_records)

other_records = st.builds(
    Record,
    op=st.sampled_from([op for op in Op if op not in FILE_ARITY]),
    tag=u64,
    ints=st.lists(u64, max_size=5).map(tuple),
    strings=st.lists(strings, max_size=4).map(tuple),
    flags=st.integers(0, 0xFF),
)

v1_records = st.one_of(other_records, v0_records)


def records(version: int) -> st.SearchStrategy[Record]:
    return v1_records if version == 1 else v0_records
