"""How the source `dos` reads: what is there (`outputs`, `inputs`, `objects`), which parts of it a task reads
(`ranges`), and rows of bytes (`decoding`, `rows`).

Rules of this room: everything here is asked by Spark's own classes (`batch_reader`, `stream_reader`), through
`session`, which is the one place that opens a store. The driver's side plans, and reads only what planning
needs; tasks read ranges that were planned, so that a task that is tried again gives the same rows.
"""
