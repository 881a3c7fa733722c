"""The inspection formats: `dos-journal` (records), `dos-checkpoints` (the checkpoints of a region) and
`dos-state` (the state of its operators).

`sources` has Spark's classes; each format is a `InsideTable` (`table`) in a file of its own. They read with
the code of `dos journal` and `dos checkpoint`, and use the same names. The driver determines what exists and
fixes it; tasks read what was fixed, so that a retried task returns the same rows.
"""
