"""The read side of the source `dos`.

| files | purpose |
|---|---|
| `outputs`, `inputs`, `objects` | what exists in the store |
| `ranges` | which parts of it a task reads |
| `decoding`, `rows` | rows from bytes |
| `batch_reader`, `stream_reader` | Spark's classes, which call everything else |
| `session` | the only place that opens a store |

The driver plans, and reads only what planning needs. Tasks read planned ranges, so that a retried task
returns the same rows.
"""
